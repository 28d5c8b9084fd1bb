"""The log gives back what was written, cuts what a crash tore, and refuses what is damaged."""

from __future__ import annotations

import logging
import os
import random
import shutil
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.zk import client_wire
from tests.zk.state import Talker, facts, new_service, recover
from zk import log as log_module
from zk.acl import OPEN, digest_id
from zk.errors import LogError, ServerError
from zk.log import Log
from zk.record import Record
from zk.service import Service
from zk.sessions import Sessions
from zk.tree import SetData, Tree
from zk.wire import Acl, Op

PRIVATE = (Acl(31, "digest", digest_id(b"u:p")),)


def busy_folder(folder: Path, n_batches: int = 12) -> list[Any]:
    """A log of several batches; the state after each of them, and where each ends."""
    service = new_service()
    log = Log(folder)
    log.recover(service.tree, service.sessions, service.replay)
    talker = Talker(service)
    states = [(facts(service), log.n_bytes)]

    def commit() -> None:
        log.append(service.journal)
        service.journal.clear()
        states.append((facts(service), log.n_bytes))

    talker.connect()
    talker.call(Op.CREATE, "/a", b"data", OPEN, 0)
    commit()
    for i in range(n_batches):
        talker.call(Op.CREATE, f"/a/n{i}", bytes([i]) * i, PRIVATE if i % 3 == 0 else OPEN, i % 2)
        talker.call(Op.CREATE, "/a/s-", None, OPEN, 2)
        talker.call(Op.SET_DATA, "/a", b"x" * i, -1)
        if i % 3 == 2:
            talker.call(Op.DELETE, f"/a/n{i - 1}", -1)
            talker.call(Op.SET_ACL, "/a", OPEN + PRIVATE, -1)
        multi = [
            (Op.CREATE, (f"/m{i}", b"", OPEN, 0)),
            (Op.CHECK, ("/a", -1)),
            (Op.SET_DATA, (f"/m{i}", b"v", 0)),
        ]
        talker.raw(Op.MULTI, client_wire.encode_multi(multi))
        commit()
    talker.call(Op.CREATE2, "/last", b"z", OPEN, 0)
    commit()
    log.close()
    return states


def the_log(folder: Path) -> Path:
    (path,) = folder.glob("log.*")
    return path


def test_restart_gives_back_everything(tmp_path: Path) -> None:
    states = busy_folder(tmp_path / "d")
    assert facts(recover(tmp_path / "d")) == states[-1][0]


def test_files_are_private(tmp_path: Path) -> None:
    busy_folder(tmp_path / "d")
    for path in [tmp_path / "d", *(tmp_path / "d").iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_log_cut_at_every_byte_of_its_last_batch_gives_the_state_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "d"
    states = busy_folder(folder)
    (before, start), (after, end) = states[-2:]
    whole = the_log(folder).read_bytes()
    assert len(whole) == end
    for size in range(start, end):
        the_log(folder).write_bytes(whole[:size])
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert facts(recover(folder)) == before, size
        # Bytes were dropped, so it says so; and the file is clean again.
        assert bool(caplog.records) == (size > start)
        assert the_log(folder).stat().st_size == start
    the_log(folder).write_bytes(whole)
    assert facts(recover(folder)) == after


def test_writing_goes_on_after_a_cut(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    states = busy_folder(folder)
    whole = the_log(folder).read_bytes()
    the_log(folder).write_bytes(whole[:-3])
    service = new_service()
    log = Log(folder)
    log.recover(service.tree, service.sessions, service.replay)
    talker = Talker(service)
    talker.connect()
    talker.call(Op.CREATE, "/later", b"", OPEN, 0)
    log.append(service.journal)
    log.close()
    assert "/later" in recover(folder).tree.nodes
    assert "/last" not in recover(folder).tree.nodes
    assert recover(folder).tree.zxid > states[-2][0][0]


@pytest.mark.parametrize("n_zeros", [1, 3, 4, 8, 100, 511, 512, 5000])
def test_tail_of_zeros_is_cut(tmp_path: Path, n_zeros: int) -> None:
    folder = tmp_path / "d"
    states = busy_folder(folder)
    with the_log(folder).open("ab") as file:
        file.write(bytes(n_zeros))
    assert facts(recover(folder)) == states[-1][0]


def test_batch_whose_later_sectors_are_zeros_is_cut(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    service = new_service()
    log = Log(folder)
    log.recover(service.tree, service.sessions, service.replay)
    talker = Talker(service)
    talker.connect()
    log.append(service.journal)
    service.journal.clear()
    before, size = facts(service), log.n_bytes
    talker.call(Op.CREATE, "/big", b"x" * 3000, OPEN, 0)
    log.append(service.journal)
    log.close()
    data = bytearray(the_log(folder).read_bytes())
    data[1024:2048] = bytes(1024)
    the_log(folder).write_bytes(data)
    assert facts(recover(folder)) == before
    assert the_log(folder).stat().st_size == size


def zeros_folder(folder: Path) -> Any:
    """A log with an orderly end after a batch with sectors of zeros of its own; its state."""
    service = new_service()
    log = Log(folder)
    log.recover(service.tree, service.sessions, service.replay)
    talker = Talker(service)
    talker.connect()
    talker.call(Op.CREATE, "/zeros", b"head" + bytes(2000) + b"tail", OPEN, 0)
    log.append(service.journal)
    log.seal()
    log.close()
    return facts(service)


def test_after_an_orderly_end_no_flipped_bit_costs_a_change(tmp_path: Path) -> None:
    """A batch with zeros of its own, and one bit flipped, was cut as if a crash had torn it."""
    folder = tmp_path / "d"
    state = zeros_folder(folder)
    whole = the_log(folder).read_bytes()
    n_sealed = len(whole) - 8  # before the end's own bytes, which hold no change
    for byte in [*range(200), *range(n_sealed - 200, n_sealed)]:
        data = bytearray(whole)
        data[byte] ^= 1
        the_log(folder).write_bytes(data)
        with pytest.raises(LogError):
            recover(folder)
        assert the_log(folder).read_bytes() == data
    for size in range(n_sealed, len(whole) + 1):  # the end itself may be torn
        the_log(folder).write_bytes(whole[:size])
        assert facts(recover(folder)) == state


def test_after_an_orderly_end_writing_goes_on_and_a_crash_may_tear_that(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    zeros_folder(folder)
    service = new_service()
    log = Log(folder)
    log.recover(service.tree, service.sessions, service.replay)
    sealed = facts(service)
    Talker(service).connect()
    log.append(service.journal)
    log.close()
    assert facts(recover(folder)) == facts(service) != sealed
    whole = the_log(folder).read_bytes()
    the_log(folder).write_bytes(whole[:-3])
    assert facts(recover(folder)) == sealed


def test_a_torn_batch_is_not_summed_again_from_every_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data full of what may be lengths: a start took half a minute for a megabyte."""
    folder = tmp_path / "d"
    service = new_service()
    log = Log(folder)
    log.recover(service.tree, service.sessions, service.replay)
    talker = Talker(service)
    talker.connect()
    talker.call(Op.CREATE, "/a", b"\0\0\xff\xff" * 25_000, OPEN, 0)
    log.append(service.journal)
    log.close()
    whole = the_log(folder).read_bytes()
    the_log(folder).write_bytes(whole[:-10])
    n_summed = 0
    crc32 = zlib.crc32

    def counted(data: bytes, start: int = 0) -> int:
        nonlocal n_summed
        n_summed += len(data)
        return crc32(data, start)

    monkeypatch.setattr(log_module.zlib, "crc32", counted)
    assert not recover(folder).sessions.by_id
    assert n_summed < 4 * len(whole)


@pytest.mark.parametrize("size", [100_000, 28])
def test_whole_batch_after_a_damaged_one_is_found(tmp_path: Path, size: int) -> None:
    folder = tmp_path / "d"
    log = Log(folder)
    log.recover(Tree(), Sessions(500), lambda record: None)
    log.append([Record(1, 0, 0, (SetData("/", b"\0\0\xff\xff" * 25_000, 1),))])
    damaged = log.n_bytes - 512
    changes = (SetData("/", bytes(size - 28), 2),) if size > 28 else ()
    log.append([Record(2, 0, 0, changes)])
    log.close()
    data = bytearray(the_log(folder).read_bytes())
    data[damaged // 512 * 512 - 512 : damaged // 512 * 512] = bytes(512)  # as a crash leaves one
    the_log(folder).write_bytes(data)
    with pytest.raises(LogError, match="a batch is damaged, and whole ones follow"):
        recover(folder)


def flip_bits(folder: Path, n_flips: int, seed: int) -> dict[str, int]:
    """Flip one bit at a time, anywhere; count what a start does. Wrong trees are asserted away."""
    states = busy_folder(folder)
    known = [state for state, _ in states]
    path = the_log(folder)
    whole = path.read_bytes()
    rng = random.Random(seed)
    counts = {"refused": 0, "cut": 0}
    for _ in range(n_flips):
        bit = rng.randrange(len(whole) * 8)
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            got = facts(recover(folder))
        except LogError as error:
            counts["refused"] += 1
            assert str(path) in str(error) and f"offset {error.offset}" in str(error)
            assert error.offset <= bit // 8
            assert path.read_bytes() == data, "a refused log is left as it is"
        else:
            counts["cut"] += 1
            assert got in known
            # Only the last batch can look torn.
            assert got == known[-2], f"bit {bit}"
    return counts


def test_flipped_bit_never_gives_a_wrong_tree(tmp_path: Path) -> None:
    counts = flip_bits(tmp_path / "d", n_flips=200, seed=int(os.environ.get("HORN_SEED", "0")))
    assert counts["refused"] >= 190


@pytest.mark.slow
def test_two_thousand_flipped_bits_never_give_a_wrong_tree(tmp_path: Path) -> None:
    counts = flip_bits(tmp_path / "d", n_flips=2000, seed=1)
    print(f"2,000 flipped bits: {counts}")
    assert counts["refused"] >= 1900


def snapshot_folder(folder: Path) -> Service:
    """A folder with a snapshot, and two changes after it."""
    busy_folder(folder)
    service = new_service()
    log = Log(folder)
    log.recover(service.tree, service.sessions, service.replay)
    log.snapshot(service.tree, service.sessions)
    talker = Talker(service)
    talker.connect()
    talker.call(Op.CREATE, "/after", b"", OPEN, 0)
    log.append(service.journal)
    service.journal.clear()
    log.close()
    return service


def test_snapshot_and_the_log_after_it_give_back_everything(tmp_path: Path) -> None:
    service = snapshot_folder(tmp_path)
    assert facts(recover(tmp_path)) == facts(service)
    names = sorted(path.name.split(".")[0] for path in tmp_path.iterdir())
    assert names == ["lock", "log", "snapshot"]


def test_crash_at_every_step_of_a_snapshot_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "d"
    busy_folder(folder)

    class Died(Exception):
        pass

    steps = ["_create_log", "rename", "_sync_folder", "unlink"]
    for step in steps:
        copy = tmp_path / step
        shutil.copytree(folder, copy)
        service = new_service()
        log = Log(copy)
        log.recover(service.tree, service.sessions, service.replay)
        expected = facts(service)

        def die(*args: object, **kwargs: object) -> None:
            raise Died

        with monkeypatch.context() as patch:
            if step == "rename":
                patch.setattr(os, "rename", die)
            elif step == "unlink":
                patch.setattr(Path, "unlink", die)
            else:
                patch.setattr(log_module, step, die)
            with pytest.raises(Died):
                log.snapshot(service.tree, service.sessions)
        log.close()
        assert facts(recover(copy)) == expected, step
        assert facts(recover(copy)) == expected, f"{step}, second start"


def steps_of(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> list[str]:
    """The order of what ``act`` has on the disk, or does to names there."""
    steps: list[str] = []
    with monkeypatch.context() as patch:
        for owner, name in (
            (log_module, "_create_log"), (log_module, "_sync_folder"), (os, "rename"),
            (os, "fdatasync"), (Path, "unlink"),
        ):  # fmt: skip
            before: Callable[..., object] = getattr(owner, name)

            def step(
                *args: object, name: str = name, before: Callable[..., object] = before
            ) -> object:
                steps.append(name)
                return before(*args)

            patch.setattr(owner, name, step)
        act()
    return steps


def test_names_are_on_the_disk_before_others_count_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may keep a later change of names and lose an earlier one, until a folder is synced."""
    folder = tmp_path / "d"
    busy_folder(folder)
    service = new_service()
    log = Log(folder)
    log.recover(service.tree, service.sessions, service.replay)
    steps = steps_of(monkeypatch, lambda: log.snapshot(service.tree, service.sessions))
    log.close()
    assert steps == ["_create_log", "_sync_folder", "rename", "_sync_folder", "unlink"]


def test_what_a_killed_server_left_is_on_the_disk_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed after its rename, or its write, and before the fsync."""
    folder = tmp_path / "d"
    busy_folder(folder)
    old = the_log(folder)
    kept = old.read_bytes()
    service = new_service()
    log = Log(folder)
    log.recover(service.tree, service.sessions, service.replay)
    log.snapshot(service.tree, service.sessions)
    log.close()
    old.write_bytes(kept)
    steps = steps_of(monkeypatch, lambda: facts(recover(folder)))
    assert steps == ["fdatasync", "_sync_folder", "unlink"]


def test_damaged_snapshot_is_refused(tmp_path: Path) -> None:
    snapshot_folder(tmp_path)
    (path,) = tmp_path.glob("snapshot.*")
    whole = path.read_bytes()
    for position in range(0, len(whole), 29):
        data = bytearray(whole)
        data[position] ^= 0x10
        path.write_bytes(data)
        with pytest.raises(LogError, match="snapshot"):
            recover(tmp_path)
    for size in (0, 5, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(LogError, match="snapshot"):
            recover(tmp_path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    snapshot_folder(tmp_path / "a")
    (path,) = (tmp_path / "a").glob("log.*")
    path.unlink()
    with pytest.raises(LogError, match="missing"):
        recover(tmp_path / "a")

    snapshot_folder(tmp_path / "b")
    (path,) = (tmp_path / "b").glob("snapshot.*")
    path.unlink()
    with pytest.raises(LogError, match="missing"):
        recover(tmp_path / "b")


def test_lost_batch_is_noticed(tmp_path: Path) -> None:
    states = busy_folder(tmp_path)
    path = the_log(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: states[3][1]] + data[states[4][1] :])
    with pytest.raises(LogError, match="follows"):
        recover(tmp_path)


def test_crash_while_the_first_file_is_made_is_an_empty_folder(tmp_path: Path) -> None:
    recover(tmp_path)
    path = the_log(tmp_path)
    head = path.read_bytes()
    for size in range(len(head)):
        path.write_bytes(head[:size])
        assert recover(tmp_path).tree.zxid == 0


def test_folder_has_one_server(tmp_path: Path) -> None:
    log = Log(tmp_path)
    with pytest.raises(ServerError, match="in use by another server") as caught:
        Log(tmp_path)
    assert caught.value.exit_code == 6
    log.close()
    Log(tmp_path).close()


def test_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServerError, match="cannot be written: Not a directory") as caught:
        Log(tmp_path / "file" / "d")
    assert caught.value.exit_code == 2


def test_full_disk_ends_with_a_sentence_and_keeps_what_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = new_service()
    log = Log(tmp_path)
    log.recover(service.tree, service.sessions, service.replay)
    talker = Talker(service)
    talker.connect()
    log.append(service.journal)
    service.journal.clear()
    acknowledged = facts(service)
    talker.call(Op.CREATE, "/a", b"x" * 1000, OPEN, 0)
    write, room = os.write, 300

    def full(handle: int, data: Any) -> int:
        nonlocal room
        if room == 0:
            raise OSError(28, "No space left on device")
        written = write(handle, data[:room])
        room -= written
        return written

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ServerError, match="the disk is full") as caught:
        log.append(service.journal)
    monkeypatch.undo()
    log.close()
    assert caught.value.exit_code == 3
    assert facts(recover(tmp_path)) == acknowledged
