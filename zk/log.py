"""The data folder: an append-only log, and snapshots that let it start anew.

    lock                 held by the one server that may write here
    snapshot.<zxid>      the whole state as of that zxid; written aside, then renamed
    log.<zxid>           every change after it, in batches

A batch is what one fsync covers: length, crc32 of length and payload, payload. The next batch
starts only after the fsync, so a crash can tear the last one and nothing else: a torn last batch
was never acknowledged and is cut off; anything else that does not add up is damage, and the
server refuses to start, naming file and offset. An empty batch is what an orderly end leaves: a
log that ends with it was not torn. zxids in a log have no gaps, which finds a lost file or batch.

The only file here that touches the disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import logging
import operator
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from zk import record as records
from zk import wire
from zk.acl import Acls
from zk.errors import LogError, ServerError, WireError
from zk.record import Record
from zk.sessions import Sessions
from zk.tree import Node, Tree
from zk.wire import Reader

logger = logging.getLogger(__name__)

# A log is replaced by a snapshot after so many changes (or as many as there are nodes): 10,000 are
# read back in 0.17 s, and the snapshot of 10,000 nodes takes about 0.05 s (docs/notes/0010).
SNAPSHOT_AFTER_CHANGES = 10_000
SNAPSHOT_AFTER_BYTES = 64 << 20

_LOG_MAGIC, _SNAPSHOT_MAGIC = b"HORNLOG1", b"HORNSNP1"
_HEAD = struct.Struct(">8sqI")  # magic, zxid, crc32 of both
_BATCH = struct.Struct(">II")  # length, crc32 of length and payload
_SIZE = struct.Struct(">I")
_NODE = struct.Struct(">qqqqiiiqqi")  # these, and which list of ACLs
_STORED = "czxid mzxid ctime mtime version cversion aversion owner pzxid".split()
_stored = operator.attrgetter(*_STORED)
_SECTOR_BYTES = 512
_EMPTY_BATCH = _BATCH.pack(0, zlib.crc32(bytes(4)))
_CHUNK_BYTES = 1 << 18


class Log:
    """One data folder, locked for this server.

    Raises
    ------
    ServerError : the folder cannot be made or written, or another server holds it.
    LogError : from ``recover``, when a file is damaged; nothing is changed then.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._file = -1
        self.n_changes = self.n_bytes = 0
        self._snapshot_bytes = 0
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _cannot_write(self.folder, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise ServerError(
                f"data folder {self.folder} is in use by another server; stop it, or take another "
                f"folder with --data-dir",
                exit_code=6,
            ) from error

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        os.close(self._lock)

    # Reading back.

    def recover(self, tree: Tree, sessions: Sessions, replay: Callable[[Record], None]) -> None:
        """Restore the content of the folder into an empty state, and open the log for more."""
        was_collecting = gc.isenabled()
        gc.disable()  # nothing that is read back is garbage
        try:
            self._recover(tree, sessions, replay)
        except OSError as error:
            raise _cannot_write(self.folder, error) from error
        finally:
            if was_collecting:
                gc.enable()

    def _recover(self, tree: Tree, sessions: Sessions, replay: Callable[[Record], None]) -> None:
        for path in self.folder.glob("*.tmp"):
            path.unlink()
        snapshots, logs = self._numbered("snapshot"), self._numbered("log")
        base = max(snapshots, default=0)
        if snapshots:
            self._snapshot_bytes = snapshots[base].stat().st_size
            _load_snapshot(snapshots[base], base, tree, sessions)
        if base not in logs:
            if snapshots or any(_has_batches(path) for path in logs.values()):
                missing = self._log_path(base)
                raise LogError(str(missing), 0, "the file is missing")
            _create_log(self._log_path(base), base)
            _sync_folder(self.folder)
        elif base == 0 and logs[base].stat().st_size < _HEAD.size:
            _create_log(self._log_path(base), base)  # died while making the very first file
        path = self._log_path(base)
        self._read_log(path, base, replay)
        for number, other in logs.items():
            if number > base and _has_batches(other):
                raise LogError(str(other), _HEAD.size, f"snapshot.{number:016x} is missing, found")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        # The writer of these files may have been killed before its fsyncs: sync first, then remove.
        os.fdatasync(self._file)
        _sync_folder(self.folder)
        for number, other in [*logs.items(), *snapshots.items()]:
            if number != base:
                other.unlink()

    def _numbered(self, kind: str) -> dict[int, Path]:
        found: dict[int, Path] = {}
        for path in self.folder.glob(f"{kind}.*"):
            with contextlib.suppress(ValueError):
                found[int(path.suffix[1:], 16)] = path
        return found

    def _log_path(self, base: int) -> Path:
        return self.folder / f"log.{base:016x}"

    def _read_log(self, path: Path, base: int, replay: Callable[[Record], None]) -> None:
        data = path.read_bytes()
        _check_head(path, data, _LOG_MAGIC, base)
        pos, zxid = _HEAD.size, base
        while pos < len(data):
            payload = _batch_at(data, pos)
            if payload is None:
                _refuse_damage(path, data, pos, zxid)
                logger.warning(
                    "torn tail cut file=%s offset=%d bytes=%d", path, pos, len(data) - pos
                )
                with open(path, "r+b") as file:
                    file.truncate(pos)
                    os.fsync(file.fileno())
                break
            try:
                reader = Reader(payload)
                while reader.pos < reader.end:
                    record = records.decode(reader)
                    if record.zxid != zxid + 1:
                        what = f"change {record.zxid} follows change {zxid}"
                        raise LogError(str(path), pos, what)
                    replay(record)
                    zxid += 1
                    self.n_changes += 1
            except (WireError, KeyError, AssertionError) as error:
                raise LogError(str(path), pos, f"not a change ({error!r})") from error
            pos += _BATCH.size + len(payload)
        self.n_bytes = pos

    # Writing.

    def append(self, batch: Sequence[Record]) -> None:
        """Write changes and fsync once; when this returns they are kept.

        Raises
        ------
        ServerError : the disk is full or fails. Unacknowledged changes may or may not be kept.
        """
        payload = b"".join([records.encode(record) for record in batch])
        size = len(payload).to_bytes(4, "big")
        crc = zlib.crc32(payload, zlib.crc32(size))
        data = memoryview(size + crc.to_bytes(4, "big") + payload)
        try:
            written = os.write(self._file, data)
            while written < len(data):
                written += os.write(self._file, data[written:])
            os.fdatasync(self._file)
        except OSError as error:
            raise _cannot_write(self.folder, error, exit_code=3) from error
        self.n_bytes += len(data)
        self.n_changes += len(batch)

    def seal(self) -> None:
        """Say that all that was appended was kept; for an orderly end, after the last append. A
        log that could not be read back is left as it is.

        Raises
        ------
        ServerError : as of ``append``. The log is then as good as after a crash.
        """
        if self._file >= 0:
            self.append([])

    def wants_snapshot(self, n_nodes: int) -> bool:
        return self.n_changes > max(SNAPSHOT_AFTER_CHANGES, n_nodes) or self.n_bytes > max(
            SNAPSHOT_AFTER_BYTES, 2 * self._snapshot_bytes
        )

    def snapshot(self, tree: Tree, sessions: Sessions) -> None:
        """Write the whole state aside, start a new log, then rename: at no moment is there less."""
        zxid = tree.zxid
        final = self.folder / f"snapshot.{zxid:016x}"
        temporary = final.with_suffix(final.suffix + ".tmp")
        try:
            with open(temporary, "xb", opener=_private) as file:
                size = crc = 0
                for chunk in _snapshot_chunks(tree, sessions):
                    crc = zlib.crc32(chunk, crc)
                    size += file.write(chunk)
                size += file.write(crc.to_bytes(4, "big"))
                file.flush()
                os.fsync(file.fileno())
            _create_log(self._log_path(zxid), zxid)
            _sync_folder(self.folder)  # a snapshot without its log is refused
            os.rename(temporary, final)
            _sync_folder(self.folder)
            following = os.open(self._log_path(zxid), os.O_WRONLY | os.O_APPEND)
            os.close(self._file)
            self._file = following
            logs, snapshots = self._numbered("log"), self._numbered("snapshot")
            for number, path in [*logs.items(), *snapshots.items()]:
                if number != zxid:
                    path.unlink()
        except OSError as error:
            raise _cannot_write(self.folder, error, exit_code=3) from error
        self.n_changes, self.n_bytes, self._snapshot_bytes = 0, _HEAD.size, size


def _cannot_write(folder: Path, error: OSError, exit_code: int = 2) -> ServerError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ServerError(
            f"data folder {folder}: the disk is full; nothing that was acknowledged is lost. Free "
            f"some space and start the server again",
            exit_code=3,
        )
    reason = error.strerror or str(error)
    return ServerError(
        f"data folder {folder} cannot be written: {reason}; give another one with --data-dir",
        exit_code=exit_code,
    )


def _private(path: str, flags: int) -> int:
    # Session passwords are inside.
    return os.open(path, flags, 0o600)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _head(magic: bytes, zxid: int) -> bytes:
    body = magic + wire.pack_int64(zxid)
    return body + zlib.crc32(body).to_bytes(4, "big")


def _check_head(path: Path, data: bytes, magic: bytes, zxid: int) -> None:
    if data[: _HEAD.size] != _head(magic, zxid):
        raise LogError(str(path), 0, "the head of the file is not what was written")


def _create_log(path: Path, zxid: int) -> None:
    with open(path, "wb", opener=_private) as file:
        file.write(_head(_LOG_MAGIC, zxid))
        file.flush()
        os.fsync(file.fileno())


def _has_batches(path: Path) -> bool:
    return path.stat().st_size > _HEAD.size


def _batch_at(data: bytes, pos: int) -> bytes | None:
    """The payload of the batch at ``pos``, or None where there is no whole one."""
    start = pos + _BATCH.size
    if start > len(data):
        return None
    size, crc = _BATCH.unpack_from(data, pos)
    if size > len(data) - start:
        return None
    payload = data[start : start + size]
    return payload if zlib.crc32(payload, zlib.crc32(data[pos : pos + 4])) == crc else None


def _refuse_damage(path: Path, data: bytes, pos: int, zxid: int) -> None:
    """Raise unless the bytes from ``pos`` on can be a batch that a crash has torn. zxid : of the
    last change before them.

    A crash leaves less than was written, or zeros where a sector did not reach the disk.
    """
    if data.endswith(_EMPTY_BATCH, pos):
        raise LogError(str(path), pos, "a batch is damaged in a log that was closed in order")
    rest = len(data) - pos - _BATCH.size
    if rest <= 0:
        return
    size, crc = _BATCH.unpack_from(data, pos)
    if size > rest:
        # Cut short; unless all of it is there and only the length is wrong.
        true_size = rest.to_bytes(4, "big")
        if zlib.crc32(data[pos + _BATCH.size :], zlib.crc32(true_size)) == crc:
            raise LogError(str(path), pos, "the length of a batch is damaged")
    elif size and not _has_zero_sector(data, pos, pos + _BATCH.size + size):
        raise LogError(str(path), pos, "a batch is damaged")
    most = len(data) - pos - _BATCH.size
    for later in range(pos + 1, len(data) - _BATCH.size):
        # A checksum at every place that may be a length would be quadratic.
        if 0 < _SIZE.unpack_from(data, later)[0] < most and _is_batch(data, later, zxid):
            raise LogError(str(path), pos, "a batch is damaged, and whole ones follow")


def _is_batch(data: bytes, pos: int, zxid: int) -> bool:
    """Whether a whole batch is there, of changes after ``zxid``."""
    (size,) = _SIZE.unpack_from(data, pos)
    reader = Reader(data, pos + _BATCH.size)
    reader.end = min(reader.pos + size, reader.end)
    try:
        while reader.pos < reader.end:
            found = records.decode(reader).zxid
            if found <= zxid:
                return False
            zxid = found
    except WireError:
        return False
    return _batch_at(data, pos) is not None


def _has_zero_sector(data: bytes, start: int, end: int) -> bool:
    """Whether one sector's part of data[start:end] is all zeros."""
    while start < end:
        stop = min(end, (start // _SECTOR_BYTES + 1) * _SECTOR_BYTES)
        if not any(data[start:stop]):
            return True
        start = stop
    return False


def _snapshot_chunks(tree: Tree, sessions: Sessions) -> Iterator[bytes]:
    yield _head(_SNAPSHOT_MAGIC, tree.zxid)
    numbers: dict[Acls, int] = {}
    for _, node in tree.items():
        numbers.setdefault(node.acl, len(numbers))
    parts = [wire.pack_int32(len(sessions))]
    for session in sessions.by_id.values():
        parts.append(wire.pack_int64(session.id) + wire.pack_int32(session.timeout_ms))
        parts.append(wire.write_buffer(session.password))
    parts.append(wire.pack_int32(len(numbers)))
    parts += [wire.write_acls(acl) for acl in numbers]
    parts.append(wire.pack_int32(len(tree)))
    size = 0
    for path, n in tree.items():
        parts.append(wire.write_string(path))
        parts.append(wire.write_buffer(n.data))
        parts.append(_NODE.pack(*_stored(n), numbers[n.acl]))
        size += len(parts[-2])
        if size > _CHUNK_BYTES or len(parts) > 3000:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts)


def _load_snapshot(path: Path, zxid: int, tree: Tree, sessions: Sessions) -> None:
    data = path.read_bytes()
    _check_head(path, data, _SNAPSHOT_MAGIC, zxid)
    if zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "big"):
        raise LogError(str(path), _HEAD.size, "the snapshot's checksum is wrong")
    r = Reader(data, _HEAD.size)
    try:
        for _ in range(r.int32()):
            sessions.open(r.int64(), r.int32(), r.buffer() or b"")
        acls = [r.acls() for _ in range(r.int32())]
        nodes: dict[str, Node] = {}
        for _ in range(r.int32()):
            name, data_or_none = r.path(), r.buffer()
            *fields, acl = _NODE.unpack_from(r.data, r.pos)
            r.pos += _NODE.size
            node = nodes[name] = Node(data_or_none, acls[acl], 0, 0, 0)
            for field, value in zip(_STORED, fields, strict=True):
                setattr(node, field, value)
        tree.restore(nodes, zxid)
    except (WireError, struct.error, KeyError, IndexError) as error:
        raise LogError(str(path), r.pos, f"not a snapshot ({error!r})") from error
