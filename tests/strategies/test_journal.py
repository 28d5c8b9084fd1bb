"""A server's journal: what was appended comes back, what was being written is cut off, and what is
damaged is refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horn.errors import JournalError
from horn.parameter_server.journal import Journal, record, records
from horn.wire.frames import WireMessage
from horn.wire.messages import JoinServers, LeaveServers, PullParameters, PushGradients

MESSAGES = [
    WireMessage(JoinServers(), src=1, attempt=2),
    WireMessage(PushGradients(pieces=(0, 3), clock=7, samples=5, part=1), (np.arange(9.0),), 1, 2),
    WireMessage(PullParameters(clock=8, turn=3), src=0, attempt=4),
    WireMessage(PushGradients(pieces=(1,), clock=8, samples=0, part=2), (np.ones(3, "<f4"),), 1, 2),
]


def plain(message: WireMessage) -> Any:
    arrays = [(a.dtype.str, a.tolist()) for a in message.arrays]
    meta = (
        type(message.meta).__name__,
        {
            name: getattr(message.meta, name)
            for name in message.meta.__struct_fields__
            if name != "arrays"
        },
    )
    return meta, arrays, message.src, message.attempt


def written(folder: Path, messages: list[WireMessage]) -> Journal:
    journal = Journal(folder)
    state, since = journal.recover()
    assert state is None and list(since) == []
    for message in messages:
        journal.append(message)
    journal.close()
    return journal


def recovered(folder: Path) -> tuple[Any, list[Any], Journal]:
    journal = Journal(folder)
    state, since = journal.recover()
    found = [plain(message) for message in since]
    return state, found, journal


def test_what_was_appended_comes_back_in_order(tmp_path):
    written(tmp_path / "deep" / "server-0", MESSAGES)
    _, found, journal = recovered(tmp_path / "deep" / "server-0")
    assert found == [plain(message) for message in MESSAGES]
    journal.append(MESSAGES[0])
    journal.close()
    assert recovered(tmp_path / "deep" / "server-0")[1] == [
        plain(message) for message in [*MESSAGES, MESSAGES[0]]
    ]
    assert oct((tmp_path / "deep" / "server-0").stat().st_mode)[-3:] == "700"


def test_cut_at_any_byte_of_the_last_record_the_others_come_back(tmp_path):
    written(tmp_path, MESSAGES)
    path = tmp_path / "journal-0"
    whole = path.read_bytes()
    last = sum(map(len, record(WireMessage(MESSAGES[-1].meta, MESSAGES[-1].arrays, 1, 2, 4))))
    for size in range(len(whole) - last, len(whole)):
        path.write_bytes(whole[:size])
        _, found, journal = recovered(tmp_path)
        assert found == [plain(message) for message in MESSAGES[:-1]]
        assert path.stat().st_size == len(whole) - last
        journal.append(MESSAGES[-1])  # it goes on where the last whole record ends
        journal.close()
        assert path.read_bytes() == whole


@pytest.mark.parametrize("n_zeros", [1, 23, 24, 100, 5000])
def test_zeros_at_the_end_were_never_written(tmp_path, n_zeros):
    written(tmp_path, MESSAGES)
    path = tmp_path / "journal-0"
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(bytes(n_zeros))
    _, found, journal = recovered(tmp_path)
    journal.close()
    assert len(found) == 4 and path.stat().st_size == size


def test_no_flipped_bit_goes_unnoticed(tmp_path):
    written(tmp_path, MESSAGES)
    path = tmp_path / "journal-0"
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(JournalError, match="journal-0, byte [0-9]+: ") as caught:
            list(records(bytes(damaged), str(path), 1, may_be_torn=True))
        assert caught.value.at <= bit // 8
    path.write_bytes(damaged)
    with pytest.raises(JournalError):
        recovered(tmp_path)
    assert path.read_bytes() == damaged  # nothing is cut off that might be asked for


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 4))
def test_junk_is_refused_or_cut_off(tmp_path_factory, junk, n_before):
    folder = tmp_path_factory.mktemp("journal")
    written(folder, MESSAGES[:n_before])
    path = folder / "journal-0"
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(junk)
    try:
        _, found, journal = recovered(folder)
    except JournalError:
        return
    journal.close()
    assert found == [plain(message) for message in MESSAGES[:n_before]]
    assert path.stat().st_size == size


def test_a_record_that_is_missing_or_comes_twice_is_noticed(tmp_path):
    written(tmp_path, MESSAGES)
    path = tmp_path / "journal-0"
    parts = [
        b"".join(map(bytes, record(WireMessage(m.meta, m.arrays, m.src, m.attempt, n))))
        for n, m in enumerate(MESSAGES, 1)
    ]
    for order in ([0, 2, 3], [0, 1, 1], [1], [0, 2, 1]):
        path.write_bytes(b"".join(parts[n] for n in order))
        with pytest.raises(JournalError, match="expected record"):
            recovered(tmp_path)


# whole states

FACTS = {"clock": 3, "names": ["a", "b"], "long": "x" * 100_000}
ARRAYS = {"w": np.arange(2_000_000.0), "none": np.zeros(0, "f4"), "m": np.ones((2, 3))}


def same_state(state: Any) -> bool:
    assert state.facts == FACTS and state.arrays.keys() == ARRAYS.keys()
    return all(
        state.arrays[name].dtype == a.dtype and np.array_equal(state.arrays[name], a.reshape(-1))
        for name, a in ARRAYS.items()
    )


def saved(folder: Path) -> Journal:
    journal = Journal(folder)
    list(journal.recover()[1])
    journal.append(MESSAGES[0])
    journal.save(FACTS, ARRAYS)
    return journal


def test_a_state_takes_the_place_of_what_was_told_before(tmp_path):
    journal = saved(tmp_path)
    journal.append(MESSAGES[1])
    journal.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal-1", "state-1"]
    state, found, journal = recovered(tmp_path)
    assert same_state(state) and found == [plain(MESSAGES[1])]
    journal.save(FACTS, ARRAYS)
    journal.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal-2", "state-2"]
    state, found, journal = recovered(tmp_path)
    journal.close()
    assert same_state(state) and found == []


def test_who_dies_while_it_saves_has_what_was_before(tmp_path):
    written(tmp_path, MESSAGES)
    (tmp_path / "state-1.new").write_bytes(b"HJR\1 half a state")
    state, found, journal = recovered(tmp_path)
    journal.close()
    assert state is None and len(found) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["journal-0"]


def test_who_dies_between_a_state_and_its_journal_has_the_state(tmp_path):
    journal = saved(tmp_path)
    journal.close()
    (tmp_path / "journal-1").unlink()
    (tmp_path / "journal-0").write_bytes(b"what is older does not count")
    state, found, journal = recovered(tmp_path)
    journal.append(MESSAGES[2])
    journal.close()
    assert same_state(state) and found == []
    assert recovered(tmp_path)[1] == [plain(MESSAGES[2])]


@pytest.mark.parametrize("how", ["flip", "cut", "no end", "zeros"])
def test_a_damaged_state_is_refused(tmp_path, how):
    saved(tmp_path).close()
    path = tmp_path / "state-1"
    data = bytearray(path.read_bytes())
    if how == "flip":
        data[len(data) // 2] ^= 4
    elif how == "zeros":
        data[-50:] = bytes(50)
    else:
        del data[-1 if how == "cut" else data.rindex(b"HJR\1") :]
    path.write_bytes(data)
    with pytest.raises(JournalError, match="state-1, byte [0-9]+: "):
        recovered(tmp_path)


def test_a_journal_that_is_missing_between_others_is_noticed(tmp_path):
    written(tmp_path, MESSAGES)
    os.rename(tmp_path / "journal-0", tmp_path / "journal-2")
    with pytest.raises(JournalError, match="journal-0, byte 0: it is missing"):
        recovered(tmp_path)


def test_a_full_disk_is_told_and_where(tmp_path):
    journal = Journal(tmp_path)
    list(journal.recover()[1])
    os.close(journal._fd)
    journal._fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(JournalError, match="journal-0, byte 0: cannot be written: No space left"):
        journal.append(MESSAGES[1])
    journal.close()


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        JournalError, match="file/server-0, byte 0: cannot be made: Not a directory"
    ):
        Journal(tmp_path / "file" / "server-0")


def test_a_journal_that_cannot_be_read_or_tidied_up_is_told(tmp_path):
    journal = Journal(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(JournalError, match="/gone, byte 0: cannot be read: No such file"):
        journal.recover()
    for name in ("state-1", "journal-0"):
        folder = tmp_path / f"with {name}"
        (folder / name).mkdir(parents=True)
        with pytest.raises(JournalError, match=f"/{name}, byte 0: cannot be read: Is a directory"):
            recovered(folder)
    journal = Journal(tmp_path / "there")
    list(journal.recover()[1])
    (tmp_path / "there" / "state-0").mkdir()
    with pytest.raises(JournalError, match="/state-0, byte 0: cannot be tidied up: Is a direc"):
        journal.save({}, {})
    journal.close()


def test_a_journal_whose_folder_was_moved_grows_on(tmp_path, caplog):
    """Its server ended with the state that it could not write, and the run with it."""
    folder, there = tmp_path / "server-0", tmp_path / "there"
    journal = Journal(folder)
    list(journal.recover()[1])
    journal.append(MESSAGES[0])
    folder.rename(there)
    for _ in range(2):
        journal.shorten({}, {})
    journal.append(MESSAGES[1])
    journal.close()
    (said,) = caplog.messages
    assert "state-1.new, byte 0: cannot be written: No such file or directory; the run goes" in said
    state, found, back = recovered(there)
    assert state is None and found == [plain(message) for message in MESSAGES[:2]]
    back.close()


def test_older_files_that_cannot_be_removed_are_told_and_the_others_removed(tmp_path, caplog):
    """Each later state stayed, and each journal, which are as large as the parameters."""
    journal = Journal(tmp_path)
    list(journal.recover()[1])
    journal.save({}, {})
    (tmp_path / "state-0").mkdir()
    journal.shorten({}, {})
    journal.close()
    (said,) = caplog.messages
    assert "/state-0, byte 0: cannot be tidied up: Is a directory" in said and "take room" in said
    there = sorted(path.name for path in tmp_path.iterdir())
    assert there == ["journal-2", "state-0", "state-2"]


@pytest.mark.parametrize("name", ["journal-1", "state-0"])
def test_what_is_told_after_a_state_that_failed_is_not_left_out(tmp_path, name):
    """A state without its journal would hide it; older files that cannot be removed do not."""
    journal = Journal(tmp_path)
    list(journal.recover()[1])
    journal.append(MESSAGES[0])
    (tmp_path / name).mkdir()
    journal.shorten({}, {})
    journal.append(MESSAGES[1])
    journal.close()
    (tmp_path / name).rmdir()
    state, found, back = recovered(tmp_path)
    n = 0 if state is None else 1  # the state has the first
    assert (n, found) == (int(name == "state-0"), [plain(m) for m in MESSAGES[n:2]])
    back.close()


@pytest.fixture
def full_after(monkeypatch):
    """Makes the disk full after so many bytes of a record, as many as have been written before."""

    def fill(n_left):
        def write(fd, parts):
            nonlocal n_left
            n_left -= sum(map(len, parts))
            if n_left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return os.write(fd, b"".join(parts))

        monkeypatch.setattr("horn.parameter_server.journal._write", write)

    return fill


def test_a_state_that_failed_leaves_the_next_one_as_far_off_as_before(tmp_path, clock, full_after):
    """It counted as none: a journal was long after so many bytes as of no state."""
    journal = Journal(tmp_path, most_bytes=1000, most_s=float("inf"))
    list(journal.recover()[1])
    journal.save({}, {"w": np.zeros(10_000)})
    for _ in range(10):
        journal.append(MESSAGES[1])
    assert 1000 < journal.n_bytes < 80_000 and not journal.is_long
    full_after(100)
    journal.shorten({}, {"w": np.zeros(10_000)})
    clock.now += 1000.0
    assert not journal.is_long
    journal.close()


def test_a_state_that_failed_leaves_its_room_to_the_journal(tmp_path, full_after):
    """Its part stayed: on a full disk the server could not write what came next, and ended."""
    journal = Journal(tmp_path)
    list(journal.recover()[1])
    full_after(1000)
    journal.shorten({"some": "facts"}, {"w": np.zeros(10_000)})
    assert [path.name for path in tmp_path.iterdir()] == ["journal-0"]
    journal.close()


class Clock:
    """Instead of the module ``time`` of a journal: each look at it is ``step_s`` after the last."""

    def __init__(self):
        self.now, self.step_s = 100.0, 0.0

    def monotonic(self):
        self.now += self.step_s
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("horn.parameter_server.journal.time", made)
    return made


def test_a_journal_is_long_when_to_come_back_would_take_long(tmp_path, clock):
    """Small messages are few bytes and much work: who comes back does it again."""
    journal = Journal(tmp_path, most_s=float("inf"), most_work_s=5.0)
    list(journal.recover()[1])
    journal.append(MESSAGES[1], 4.0)
    assert not journal.is_long
    journal.append(MESSAGES[1], 2.0)
    assert journal.is_long
    journal.close()
    back = Journal(tmp_path, most_s=float("inf"), most_work_s=5.0)
    clock.step_s = 7.0
    assert len(list(back.recover()[1])) == 2
    clock.step_s = 0.0
    assert back.is_long  # it took 7 s this time
    back.save({}, {})
    assert not back.is_long and back.work_s == 0.0
    back.append(MESSAGES[1], 6.0)
    assert back.is_long
    clock.step_s = 0.5  # a look at its beginning, one when the journal is opened, one at its end
    back.save({}, {})
    clock.step_s = 0.0
    back.append(MESSAGES[1], 6.0)
    assert not back.is_long  # a state that takes a second is written after twenty of work
    back.append(MESSAGES[1], 15.0)
    assert back.is_long
    back.close()


def test_a_journal_is_long_after_so_many_bytes_or_seconds(tmp_path, clock):
    journal = Journal(tmp_path, most_bytes=1000, most_s=1000.0)
    list(journal.recover()[1])
    assert not journal.is_long
    for _ in range(10):
        journal.append(MESSAGES[1])
    assert journal.is_long
    journal.save({}, {})
    assert not journal.is_long
    journal.append(WireMessage(LeaveServers(), src=1))
    clock.now += 999.0
    assert not journal.is_long
    clock.now += 2.0
    assert journal.is_long
    journal.close()


def test_a_state_that_takes_long_is_written_as_rarely_by_age_as_by_work(tmp_path, clock):
    """A server that writes its state answers nobody: 20 times as long it does."""
    journal = Journal(tmp_path, most_s=60.0)
    list(journal.recover()[1])
    clock.step_s = 50.0  # a look at its beginning, one when the journal is opened, one at its end
    journal.save({}, {})
    clock.step_s = 0.0
    journal.append(MESSAGES[1])
    opened = clock.now - 50.0
    clock.now = opened + 20 * 100.0 - 1.0
    assert not journal.is_long
    clock.now += 2.0
    assert journal.is_long
    journal.close()
