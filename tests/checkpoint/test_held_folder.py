"""The folder of a run's checkpoints: it is that of one run at a time, and is tried at once."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import horn
from horn.checkpoint import disk
from horn.errors import CheckpointError, Conflict, JobError


def job(**settings: Any) -> horn.Job:
    net = horn.Network(seed=5)
    net.input(3)
    net.layer(4, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    x = np.random.default_rng(0).random((10, 3), np.float32)
    return horn.Job(net, (x, np.arange(10) % 2), **{"batch_size": 4, "epochs": 2} | settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"tasks": 2}, marks=pytest.mark.cluster),
        pytest.param({"groups": 2, "strategy": "downpour"}, marks=pytest.mark.cluster),
    ],
    ids=str,
)
def test_a_run_keeps_others_out_of_its_folder_until_it_ends(settings: Any, tmp_path: Path):
    """They wrote into it together: each removed what the other had saved."""
    said = []

    def another(row: Any) -> None:
        with pytest.raises(Conflict, match=f"{tmp_path}: another run that has not ended keeps"):
            horn.train(job(), checkpoints=tmp_path, resume=True, **settings)
        said.append(row["epoch"])

    every = {} if "strategy" in settings else {"checkpoint_every": 1}
    horn.train(job(), checkpoints=tmp_path, progress=another, **every, **settings)
    assert said == [1, 2]
    horn.train(job(epochs=3), checkpoints=tmp_path, resume=True, **settings)


def test_a_link_to_a_folder_is_as_good_as_the_folder(tmp_path: Path):
    """Not one checkpoint was saved there, only a warning given of each."""
    (tmp_path / "large disk").mkdir()
    (tmp_path / "run").symlink_to("large disk")
    horn.train(job(), checkpoints=tmp_path / "run", checkpoint_every=3)
    assert {path.name for path in (tmp_path / "large disk").iterdir()} == {
        "ckpt-000000003-0000",
        "ckpt-000000006-0000",
    }


@pytest.mark.parametrize("folder", ["file", "file/run", "nowhere", "/proc/run", "x" * 300])
def test_a_folder_that_cannot_be_is_refused_before_training(folder: str, tmp_path: Path):
    """Each checkpoint was only warned of, or the name ended in an OSError."""
    (tmp_path / "file").write_text("")
    (tmp_path / "nowhere").symlink_to("nothing")
    with pytest.raises(CheckpointError, match=r"cannot be made \(.*errno"):
        horn.train(job(), checkpoints=tmp_path / folder, checkpoint_every=3)


def test_a_folder_that_cannot_be_written_to_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "access", lambda *a: False)  # root may always, but for such disks
    with pytest.raises(CheckpointError, match="cannot be written to .* that you may write to"):
        horn.train(job(), checkpoints=tmp_path, checkpoint_every=3)


@pytest.mark.parametrize(("flags", "name"), [(os.ST_RDONLY, "EROFS"), (0, "EACCES")])
def test_a_read_only_file_system_is_named_as_such(
    flags: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It was said to be a matter of permissions."""
    monkeypatch.setattr(os, "access", lambda *a: False)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flags))
    with pytest.raises(CheckpointError, match=f"errno [0-9]+ {name}.*; choose a folder") as caught:
        with disk.locked(tmp_path):
            pass
    assert caught.value.errno == getattr(errno, name)


def test_a_folder_that_stays_empty_goes_again(tmp_path: Path):
    horn.train(job(), checkpoints=tmp_path / "run", checkpoint_every=100)
    (tmp_path / "mine").mkdir()
    horn.train(job(), checkpoints=tmp_path / "mine", checkpoint_every=100)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_that_another_run_removes_at_its_end_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The lock was of the folder that had gone: a third run took the new one at the same time."""
    path, lock = tmp_path / "run", disk._lock
    first = disk.locked(path)
    first.__enter__()

    def late(descriptor: int, path: Path) -> None:
        monkeypatch.setattr(disk, "_lock", lock)
        first.__exit__(None, None, None)  # after the folder was opened
        lock(descriptor, path)

    monkeypatch.setattr(disk, "_lock", late)
    with disk.locked(path):
        assert path.is_dir()
        with pytest.raises(Conflict, match="another run that has not ended"), disk.locked(path):
            pass
    assert not path.exists()


def test_what_a_full_disk_refuses_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The temporary folder of each checkpoint stayed until the next start."""

    def on_a_full_disk(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(os, "write", on_a_full_disk)
    horn.train(job(), checkpoints=tmp_path / "run", checkpoint_every=3)
    assert caplog.text.count("ENOSPC") == 2
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_removed_is_said(tmp_path: Path):
    """It was "the attempt was given up meanwhile", of a run that has one."""
    whole = disk.failed(tmp_path / "part", "cannot be written", FileNotFoundError(2, "No such"))
    assert "its folder has gone: it was removed, or the attempt given up" in str(whole)


def test_a_folder_without_a_name_is_refused():
    """As of a variable of the shell that is not set: it was the current folder."""
    with pytest.raises(JobError, match=r'checkpoints is ""; name a folder'):
        horn.train(job(), checkpoints="", checkpoint_every=3)
    with pytest.raises(JobError, match=r"checkpoints is a folder, .* got True; how often .* is ch"):
        horn.train(job(), checkpoints=True, checkpoint_every=3)
