"""The folder of a run with servers: what it refuses before any process starts."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import CheckpointError, Conflict
from horn.training.journals import JournalFolder


def job() -> horn.Job:
    net = horn.Network(seed=5)
    net.input(3)
    net.layer(4, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    x = np.random.default_rng(0).random((10, 3), np.float32)
    return horn.Job(net, (x, np.arange(10) % 2), batch_size=4, epochs=1)


@pytest.mark.parametrize("strategy", ["downpour", "easgd"])
def test_servers_do_not_begin_anew_in_a_folder_of_checkpoints(strategy: str, tmp_path: Path):
    """As if nothing had been trained, while the checkpoints lie beside."""
    horn.train(job(), checkpoints=tmp_path, checkpoint_every=1)
    with pytest.raises(CheckpointError, match="cannot go on from each other; take the strategy"):
        horn.train(job(), checkpoints=tmp_path, resume=True, groups=2, strategy=strategy)
    with pytest.raises(Conflict, match="has checkpoints of a run without servers, the newest of"):
        horn.train(job(), checkpoints=tmp_path, groups=2, strategy=strategy)
    assert not (tmp_path / "servers").exists()


def test_a_run_without_servers_does_not_begin_in_the_folder_of_one_with(tmp_path: Path):
    JournalFolder(tmp_path, {}, resume=False)
    with pytest.raises(CheckpointError, match="servers of another run were told, and downpour"):
        horn.train(job(), checkpoints=tmp_path, resume=True)
    with pytest.raises(Conflict, match="has what servers of another run were told; choose"):
        horn.train(job(), checkpoints=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["servers"]


@pytest.mark.parametrize(
    "change",
    [{"identity": None}, {"rows": [3]}, {"told": 3}, {"n_starts": "x"}, {"n_starts": -1}],
)
def test_an_odd_file_of_the_run_is_refused(change: dict[str, Any], tmp_path: Path):
    JournalFolder(tmp_path, {}, resume=False)
    file = tmp_path / "servers" / "run.json"
    whole = json.loads(file.read_text())
    for found in (whole | change, {k: v for k, v in whole.items() if k not in change}, []):
        file.write_text(json.dumps(found))
        with pytest.raises(CheckpointError, match="run.json: cannot be read: "):
            JournalFolder(tmp_path, {}, resume=True)


def test_the_file_of_the_run_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """After a loss of power it was empty, and refused; the first one most likely."""
    done: list[str] = []
    fsync, rename, names = os.fsync, os.rename, ("run.new", "servers", tmp_path.name)

    def synced(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def renamed(old: Any, new: Any) -> None:
        done.append("renamed")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    made = JournalFolder(tmp_path, {}, resume=False)
    new, servers, above = names
    assert done == [above, new, "renamed", servers]
    done.clear()
    made.keep([{"epoch": 1, "iteration": 3}])
    assert done == [new, "renamed", servers]
    assert len(json.loads((made.path / "run.json").read_text())["rows"]) == 1
    assert [path.name for path in made.path.iterdir()] == ["run.json"]


def test_a_file_of_the_run_that_cannot_be_written_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    made = JournalFolder(tmp_path, {}, resume=False)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"run.new: cannot be written .*; free some space"):
        made.keep([{"epoch": 1, "iteration": 3}])
    assert json.loads((made.path / "run.json").read_text())["rows"] == []
