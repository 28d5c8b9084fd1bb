"""A file is written whole, or it is as it was and nothing lies beside it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from horn.atomic_write import atomic_write
from tests.support.room import no_room


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("is_synced", [True, False])
def test_a_file_takes_the_place_of_another_at_the_end(tmp_path: Path, is_synced: bool) -> None:
    (tmp_path / "a").write_text("before")
    with atomic_write(tmp_path / "a", is_synced=is_synced) as file:
        file.write(b"after")
        assert (tmp_path / "a").read_text() == "before"
    assert files(tmp_path) == {"a": "after"}


def test_any_error_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "a") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert files(tmp_path) == {"a": "before"}
    with pytest.raises(OSError), no_room(2), atomic_write(tmp_path / "a") as file:
        file.write(b"half")
    assert files(tmp_path) == {"a": "before"}


def test_data_are_on_the_disk_before_they_have_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        steps.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).suffix}")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", lambda *paths: (steps.append("rename"), replace(*paths)))
    (folder := tmp_path / "b.folder").mkdir()
    with atomic_write(folder / "a"):
        pass
    assert steps == ["sync .part", "rename", "sync .folder"]
    with atomic_write(folder / "a", is_synced=False):
        pass
    assert steps[3:] == ["rename"]


def test_permissions_are_those_of_a_new_file_or_the_given_ones(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "a") as file:
            os.unlink(file.name)  # as safetensors, which puts a file of its own in the place
            os.close(os.open(file.name, os.O_CREAT, 0o600))
        with atomic_write(tmp_path / "b", mode=0o644):
            pass
        with atomic_write(tmp_path / "key", mode=0o600) as file:
            assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"a": 0o640, "b": 0o644, "key": 0o600}


def test_a_link_stays_unless_the_file_is_for_some_alone(tmp_path: Path) -> None:
    for name in ("own", "secret"):
        (tmp_path / name).symlink_to(tmp_path / f"{name}.target")
        (tmp_path / f"{name}.target").write_text("before")
    with atomic_write(tmp_path / "own") as file:
        file.write(b"after")
    with atomic_write(tmp_path / "secret", mode=0o600) as file:
        file.write(b"after")
    assert (tmp_path / "own").is_symlink() and not (tmp_path / "secret").is_symlink()
    assert files(tmp_path) == {
        "own": "after", "own.target": "after", "secret": "after", "secret.target": "before",
    }  # fmt: skip


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(FileExistsError, match="a device or a pipe"), atomic_write(path):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_the_longest_name_has_room_and_errors_have_the_name_that_was_given(tmp_path: Path) -> None:
    with atomic_write(tmp_path / ("é" * 127)) as file:
        file.write(b"a")
    assert files(tmp_path) == {"é" * 127: "a"}
    with pytest.raises(FileNotFoundError) as told, atomic_write(tmp_path / "gone" / "a"):
        pass
    assert told.value.filename == str(tmp_path / "gone" / "a")


def test_numpy_says_why_it_cannot_write(tmp_path: Path) -> None:
    """It said: 60000 requested and 12484 written."""
    with pytest.raises(OSError) as told, no_room(1000), atomic_write(tmp_path / "a.npy") as file:
        np.save(file, np.ones(60_000))
    assert told.value.strerror == "File too large" and not files(tmp_path)
