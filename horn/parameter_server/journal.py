"""The write-ahead log of a durable server, from which alone it is restored.

    <folder>/journal-<n>    records: the messages since state n, as frames
    <folder>/state-<n>      records: facts, then arrays in pieces, then the end

    record = fixed | sizes | parts     fixed = magic, number of parts, number of the record, crc of
                                       sizes, crc of fixed; sizes = uint64 each; parts = a frame

Frames have checksums of their own (``frames.decode``). The last file may end inside a record, or in
zeros, which are cut off; everything else that does not fit is damage. If it was cut between two
records, it is the journal of an earlier moment, and nothing in it can say more: a group that is
still there then pushes out of turn, and is refused. Nothing is fsynced: see docs/notes/0061.
Source: the layout of docs/notes/0020, ZooKeeper's log.
"""

from __future__ import annotations

import itertools
import json
import logging
import mmap
import os
import re
import struct
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from horn.checkpoint.disk import remove_files
from horn.errors import JournalError
from horn.wire.frames import CHUNK_BYTES, Array, BadFrame, Buffer, WireMessage, decode, encode
from horn.wire.messages import MAX_BODIES, Note

MAGIC = b"HJR\1"
FIXED = struct.Struct("<4sIQII")
MAX_PARTS = MAX_BODIES + 2
MAX_PART = 16 * 1024 * 1024
# A state is written after a journal of so many bytes, but of two states; after so many seconds with
# a change, or so much work on its messages, which a restart repeats, but for at most a twentieth of
# them: a server that writes its state answers nobody.
JOURNAL_BYTES, JOURNAL_S, REPLAY_S, SAVING = 256 * 1024 * 1024, 60.0, 1.0, 20
AGAIN_S = 60.0  # after a state that could not be written
STATE, ARRAY, END = "state", "array", "end"  # topics of the notes in a state

logger = logging.getLogger(__name__)


def record(message: WireMessage) -> list[Buffer]:
    """Encode a message as a record; its ``seq`` is the record's number."""
    parts = encode(message)
    sizes = struct.pack(f"<{len(parts)}Q", *map(len, parts))
    fixed = FIXED.pack(MAGIC, len(parts), message.seq, zlib.crc32(sizes), 0)[:-4]
    return [fixed + zlib.crc32(fixed).to_bytes(4, "little") + sizes, *parts]


def records(data: Buffer, where: str, first: int, *, may_be_torn: bool) -> Iterator[WireMessage]:
    """Yield all messages of a file, numbered from ``first``. Raises JournalError, which names the
    byte; _Torn if the end is missing.
    """
    view, at, number = memoryview(data), 0, first
    size = len(view)
    while at < size:
        begin = at

        def damage(what: str, begin: int = begin) -> NoReturn:
            raise JournalError(where, begin, what)

        if not any(view[at : at + FIXED.size]) and not bytes(view[at:]).strip(b"\0"):
            break  # allocated, but never written
        if at + FIXED.size > size:
            break
        magic, n_parts, got, sizes_crc, crc = FIXED.unpack_from(view, at)
        if crc != zlib.crc32(view[at : at + FIXED.size - 4]):
            damage("the checksum of a record's beginning is wrong")
        if magic != MAGIC or not 2 <= n_parts <= MAX_PARTS or got != number:
            damage(f"record {got} of {n_parts} parts, expected record {number}")
        at += FIXED.size
        if at + 8 * n_parts > size:
            at = begin
            break
        if sizes_crc != zlib.crc32(view[at : at + 8 * n_parts]):
            damage("the checksum of a record's sizes is wrong")
        sizes = struct.unpack_from(f"<{n_parts}Q", view, at)
        at += 8 * n_parts
        if max(sizes) > MAX_PART:
            damage(f"a part of {max(sizes)} bytes, but at most {MAX_PART} are written")
        if at + sum(sizes) > size:
            at = begin
            break
        parts: list[Buffer] = []
        for n in sizes:
            parts.append(view[at : at + n])
            at += n
        try:
            message = decode(parts)
        except BadFrame as error:
            raise JournalError(where, begin, str(error)) from error
        if message.seq != number:
            damage(f"message {message.seq} in record {number}")
        yield message
        number += 1
    if at < size:
        if not may_be_torn:
            raise JournalError(where, at, "it ends inside a record, but a later file follows it")
        raise _Torn(at)


class _Torn(Exception):
    """A file ends inside a record; the argument is the record's offset."""


@dataclass(frozen=True)
class JournalState:
    """A whole state of a server: ``facts`` are JSON, ``arrays`` by name."""

    facts: dict[str, Any]
    arrays: dict[str, Array]


class Journal:
    """A server's folder. First ``recover``, and consume all messages; then ``append``.

    most_bytes, most_s, most_work_s : bytes, age and seconds of work of a journal, after any of
    which it ``is_long``. lost : what ``recover`` has found missing at the end, in words; else "".

    Raises
    ------
    JournalError : a file is damaged, or cannot be read, written or removed.
    """

    def __init__(
        self,
        folder: Path,
        most_bytes: int = JOURNAL_BYTES,
        most_s: float = JOURNAL_S,
        most_work_s: float = REPLAY_S,
    ) -> None:
        self.folder, self.most_bytes, self.most_s = folder, most_bytes, most_s
        self.most_work_s = most_work_s
        self.n_records = self.n_bytes = 0  # of the open journal
        self.work_s = 0.0  # of the server on its messages
        self._save_s = 0.0  # the time of the last ``save``
        self._number = self._state_bytes = 0
        self._again_at = 0.0
        self._is_failing = False
        self.lost = ""
        self._begun = time.monotonic()
        self._fd = -1
        with _as_journal_errors(folder, "made"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _files(self, kind: str) -> dict[int, Path]:
        names = ((re.fullmatch(rf"{kind}-(\d+)", p.name), p) for p in self.folder.iterdir())
        return dict(sorted((int(match[1]), path) for match, path in names if match))

    @property
    def is_new(self) -> bool:
        """Whether no server has opened it yet."""
        return not self._files("journal") and not self._files("state")

    # restoring

    def recover(self) -> tuple[JournalState | None, Iterator[WireMessage]]:
        """Read the newest whole state, and the messages since, all of which must be consumed."""
        number, state = 0, None
        with _as_journal_errors(self.folder, "read"):
            for path in self.folder.glob("*.new"):
                path.unlink()  # its writer was killed
            states = self._files("state")
            if states:
                number, path = max(states.items())
                self._state_bytes = path.stat().st_size
                messages = records(_mapped(path), str(path), 1, may_be_torn=False)
                try:
                    state = _read_state(messages, path)
                except StopIteration:
                    raise JournalError(str(path), self._state_bytes, "it has no end") from None
        return state, self._since(number)

    def _since(self, number: int) -> Iterator[WireMessage]:
        with _as_journal_errors(self.folder, "read"):
            yield from self._read_since(number)

    def _read_since(self, number: int) -> Iterator[WireMessage]:
        journals = {n: path for n, path in self._files("journal").items() if n >= number}
        for n in range(number, max(journals, default=number)):
            if n not in journals:
                raise JournalError(str(self.folder / f"journal-{n}"), 0, "it is missing")
        last = max(journals, default=number)
        if number and not journals:
            self.lost = (
                f"{self.folder / f'journal-{number}'} is missing: what came after state-{number} "
                f"is lost, unless the server ended just as it had written that"
            )
        began = time.monotonic()
        for n, path in journals.items():
            data = _mapped(path)
            count = 0
            try:
                for message in records(data, str(path), 1, may_be_torn=n == last):
                    count += 1
                    yield message
            except _Torn as torn:
                (at,) = torn.args
                os.truncate(path, at)
                self.lost = (
                    f"{path} ended inside record {count + 1}, whose {len(data) - at} bytes from "
                    f"byte {at} on were cut off"
                )
            self.n_records, self.n_bytes = count, path.stat().st_size
        self.work_s = time.monotonic() - began
        self._open(last)

    # writing

    def _open(self, number: int) -> None:
        path = self.folder / f"journal-{number}"
        with _as_journal_errors(path, "opened"):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.close()
        self._fd, self._number, self._begun = fd, number, time.monotonic()

    def append(self, message: WireMessage, work_s: float = 0.0) -> None:
        """Write a message; it outlives a kill of this process. work_s : of its effect here."""
        began = time.monotonic()
        self.n_records += 1
        numbered = WireMessage(
            message.meta, message.arrays, message.src, message.attempt, self.n_records
        )
        try:
            self.n_bytes += _write(self._fd, record(numbered))
        except OSError as error:
            path = str(self.folder / f"journal-{self._number}")
            what = f"cannot be written: {error.strerror}; make room, or choose another folder"
            raise JournalError(path, self.n_bytes, what) from error
        self.work_s += work_s + time.monotonic() - began  # reading takes about as long as writing

    @property
    def is_long(self) -> bool:
        if time.monotonic() < self._again_at:
            return False
        if self.n_bytes > max(self.most_bytes, 2 * self._state_bytes):
            return True
        if self.work_s > max(self.most_work_s, SAVING * self._save_s):
            return True
        age_s = time.monotonic() - self._begun
        return self.n_records > 0 and age_s > max(self.most_s, SAVING * self._save_s)

    def shorten(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """``save``; where that fails, as in a folder that was moved away, the open journal, which
        has all of it, grows on.
        """
        number = self._number
        try:
            self.save(facts, arrays)
        except JournalError as error:
            if self._number != number:  # only the older files are still there
                logger.warning("%s; the run goes on beside older files, which take room", error)
                return
            state = self.folder / f"state-{number + 1}"
            # Or what is told from now on would be left out, or find no room on a full disk.
            for written in (state, state.with_name(f"{state.name}.new")):
                with _as_journal_errors(written, "removed"):
                    written.unlink(missing_ok=True)
            self._again_at = time.monotonic() + AGAIN_S
            if not self._is_failing:
                logger.warning("%s; the run goes on, but not if this server ends", error)
            self._is_failing = True
        else:
            self._is_failing = False

    def save(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Write the whole state, and remove older files."""
        number, began = self._number + 1, time.monotonic()
        path = self.folder / f"state-{number}"
        new = path.with_name(f"{path.name}.new")
        with _as_journal_errors(new, "written"):
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                n_bytes = sum(_write(fd, record(message)) for message in _state(facts, arrays))
            finally:
                os.close(fd)
            os.rename(new, path)  # a kill before ``_open`` leaves a state without a journal
        self._open(number)
        self._state_bytes = n_bytes
        self.n_records, self.n_bytes, self.work_s = 0, 0, 0.0
        self._save_s = time.monotonic() - began
        with _as_journal_errors(self.folder, "tidied up"):
            found = [self._files(kind).items() for kind in ("journal", "state")]
            remove_files(path for files in found for n, path in files if n < number)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextmanager
def _as_journal_errors(path: Path, what: str) -> Iterator[None]:
    """Make an OSError a JournalError: what cannot be done, with the file that it names, or path."""
    try:
        yield
    except OSError as error:
        where = path if error.filename is None else error.filename
        raise JournalError(str(where), 0, f"cannot be {what}: {error.strerror}") from error


def _mapped(path: Path) -> Buffer:
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def _write(fd: int, parts: Sequence[Buffer]) -> int:
    """Write all parts, which may take several calls; return the number of bytes."""
    views = [memoryview(part) for part in parts if len(part)]
    total, n = sum(map(len, views)), os.writev(fd, views)
    rest = memoryview(b"".join(views) if n < total else b"")
    while n < total:
        n += os.write(fd, rest[n:])
    return total


def _state(facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Iterator[WireMessage]:
    number = itertools.count(1)

    def notes(topic: str, fields: dict[str, Any], flat: Array) -> Iterator[WireMessage]:
        note = Note(topic=topic, fields={**fields, "size": len(flat)})
        at_once = CHUNK_BYTES // flat.itemsize
        for start in range(0, max(len(flat), 1), at_once):
            yield WireMessage(note, (flat[start : start + at_once],), seq=next(number))

    packed = json.dumps(facts, sort_keys=True).encode()
    yield from notes(STATE, {}, np.frombuffer(packed, np.uint8))
    for name, array in arrays.items():
        yield from notes(ARRAY, {"name": name}, np.ascontiguousarray(array).reshape(-1))
    n = next(number)
    yield WireMessage(Note(topic=END, fields={"n": n - 1}), seq=n)


def _read_state(found: Iterator[WireMessage], path: Path) -> JournalState:
    """Read a state from its messages. Raises StopIteration if there is no end."""
    packed, arrays, facts = b"", dict[str, Array](), None
    filled: dict[str, int] = {}
    while True:
        message = next(found)
        note = message.meta
        if not isinstance(note, Note):
            raise JournalError(str(path), 0, f"{type(note).__name__} in a state")
        if note.topic == END:
            if any(found):
                raise JournalError(str(path), 0, "something follows its end")
            short = [name for name, array in arrays.items() if filled[name] != len(array)]
            if facts is None or short:
                raise JournalError(str(path), 0, f"{short or 'its facts'}: not all is there")
            return JournalState(facts, arrays)
        [body] = message.arrays
        if note.topic == STATE:
            packed += body.tobytes()
            if len(packed) == note.fields["size"]:
                facts = json.loads(packed)
            continue
        name, size = str(note.fields["name"]), int(note.fields["size"] or 0)
        if name not in arrays:
            arrays[name], filled[name] = np.empty(size, body.dtype), 0
        at = filled[name]
        arrays[name][at : at + len(body)] = body
        filled[name] = at + len(body)
