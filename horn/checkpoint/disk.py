"""Durable files: a call returns when they are on the disk; errors have path and errno.

A failed fsync is not tried again: the system may have dropped the pages that it could not write,
and a second fsync succeeds (Rebello et al., "Can Applications Recover from fsync Failures?", 2020).
The file is removed, to be written anew.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from horn import atomic_write
from horn.errors import CheckpointError, Conflict

logger = logging.getLogger(__name__)

CHUNK_BYTES = 4 << 20  # of one write and of one step of sha256
OURS = re.compile(r"MANIFEST\.json|[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.safetensors")
NO_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)
ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space, or keep fewer checkpoints"),
    **dict.fromkeys(NO_RIGHTS, "choose a folder that you may write to"),
    errno.EFBIG: "raise the limit of file sizes",
    errno.ENOENT: "its folder has gone: it was removed, or the attempt given up",
}


def failed(path: str | os.PathLike[str], what: str, error: OSError) -> CheckpointError:
    """Make an OSError a sentence: the file, the failed step, the system's message."""
    number = error.errno or 0
    name = errno.errorcode.get(number, "unknown")
    said = f"{os.strerror(number) if number else error}, errno {number} {name}"
    advice = ADVICE.get(number, "look at the disk and at the system's log")
    return CheckpointError(str(path), f"{what} ({said}); {advice}", exit_code=1, errno=number)


def create(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a new file (0600) in place of another; return its size and sha256. After an error there
    is none. Raises CheckpointError.
    """
    digest, size_bytes, descriptor, is_done = hashlib.sha256(), 0, -1, False
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        for chunk in chunks:
            digest.update(chunk)
            left = memoryview(chunk)
            size_bytes += len(left)
            while left:  # a disk that fills up takes only a part
                left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
        closing, descriptor = descriptor, -1
        os.close(closing)  # some file systems report a lost write here
        is_done = True
    except OSError as error:
        raise failed(path, "cannot be written", error) from error
    finally:
        if not is_done:
            if descriptor >= 0:
                with suppress(OSError):  # the first error is the one to report
                    os.close(descriptor)
            try:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            except OSError as error:
                logger.warning("left behind: %s", failed(path, "cannot be removed", error))
    return size_bytes, digest.hexdigest()


def make_folder(path: Path) -> None:
    """Make a folder (0700) and its parents, durably. An existing one stays as it is; after an error
    there is no new one.
    """
    try:
        if not path.parent.is_dir():
            make_folder(path.parent)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not path.is_dir():
                raise
            return
    except OSError as error:
        raise failed(path, "cannot be made", error) from error
    try:
        sync_folder(path.parent)
    except CheckpointError:
        remove(path)
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other runs out of a folder, which is made if missing and removed again if it stays
    empty. Raises CheckpointError if nothing can be written there; Conflict if a run holds it.
    """
    descriptor, is_new = _held(path)
    try:
        if not os.access(path, os.W_OK | os.X_OK):
            is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
            number = errno.EROFS if is_read_only else errno.EACCES
            raise failed(path, "cannot be written to", OSError(number, os.strerror(number)))
        try:
            yield
        finally:
            if is_new:
                with suppress(OSError):  # it is not empty
                    os.rmdir(path)
            with suppress(OSError):  # for a child of a fork, which has it as well
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _held(path: Path) -> tuple[int, bool]:
    """A descriptor of the folder, locked, and whether the folder is new."""
    while True:  # another run that made it removes it at its end, also after it was opened here
        is_new = not os.path.lexists(path)
        make_folder(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise failed(path, "cannot be written to", error) from error
        try:
            _lock(descriptor, path)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    kept, descriptor = descriptor, -1
                    return kept, is_new
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(
            f"{path}: another run that has not ended keeps its checkpoints there; wait for its "
            f"end, or choose another folder"
        ) from None
    except OSError as error:  # a file system without locks, such as some over a network
        logger.info("no lock folder=%s reason=%s", path, error)


def sync_folder(path: Path) -> None:
    """Write a folder's entries to the disk. Raises CheckpointError."""
    try:
        atomic_write.sync_folder(path)  # follows a link, which users put in the folder's place
    except OSError as error:
        raise failed(path, "cannot be written", error) from error


def rename(old: Path, new: Path) -> None:
    try:
        os.rename(old, new)
    except OSError as error:
        raise failed(new, f"cannot be renamed from {old.name}", error) from error


def remove(folder: Path) -> bool:
    """Remove a folder of horn's files. If something stays, logs why and returns False."""
    try:
        ours = [entry for entry in os.scandir(folder) if OURS.fullmatch(entry.name)]
        remove_files(e.path for e in ours if not e.is_dir(follow_symlinks=False))
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError as error:
        logger.warning("left behind: %s", failed(folder, "cannot be removed", error))
        return False
    return True


def remove_others(folder: Path, names: set[str]) -> None:
    """Remove horn's files in a folder that do not have these names."""
    try:
        ours = [entry for entry in os.scandir(folder) if OURS.fullmatch(entry.name)]
        remove_files(entry.path for entry in ours if entry.name not in names)
    except OSError as error:
        raise failed(folder, "cannot be tidied up", error) from error


def remove_files(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Remove all files that can be removed. Raises OSError, the first, if others cannot."""
    errors = []
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    # O_NONBLOCK: opening a pipe with the name of a file would wait
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def reading(path: Path, size_bytes: int | None = None) -> Iterator[int]:
    """Open a regular file for reading, of this size if one is given. Raises CheckpointError."""
    try:
        with _opened(path) as descriptor:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise CheckpointError(str(path), "is not a file; restore the checkpoint")
            if size_bytes is not None and found.st_size != size_bytes:
                what = "is cut short" if found.st_size < size_bytes else "has bytes too many"
                raise CheckpointError(
                    str(path),
                    f"{what}: got {found.st_size:,} bytes, expected {size_bytes:,} by the "
                    "manifest; use an older checkpoint",
                )
            yield descriptor
    except OSError as error:
        if error.errno == errno.ENOENT:
            what = "no such file; the checkpoint is incomplete, use an older one"
            raise CheckpointError(str(path), what) from None
        if error.errno == errno.ELOOP:
            what = "is a link, and no file of a checkpoint is; copy the file itself"
            raise CheckpointError(str(path), what) from None
        wrapped = failed(path, "cannot be read", error)
        raise CheckpointError(wrapped.path, wrapped.what, 2, wrapped.errno) from error


def read(path: Path, most_bytes: int) -> bytes:
    with reading(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > most_bytes:
            what = f"has {size:,} bytes, expected at most {most_bytes:,}; use an older checkpoint"
            raise CheckpointError(str(path), what)
        return read_up_to(descriptor, size)


def read_up_to(descriptor: int, n_bytes: int) -> bytes:
    """Read ``n_bytes`` bytes, or fewer at the end of the file."""
    found = bytearray()
    while len(found) < n_bytes and (more := os.read(descriptor, n_bytes - len(found))):
        found += more
    return bytes(found)


def sha256(descriptor: int) -> str:
    """The sha256 of an open file; read, not mapped: an error of the disk raises, and no signal."""
    size_bytes = min(CHUNK_BYTES, os.fstat(descriptor).st_size + 1)
    digest, buffer, at = hashlib.sha256(), memoryview(bytearray(size_bytes)), 0
    while n := os.preadv(descriptor, [buffer], at):
        digest.update(buffer[:n])
        at += n
    return digest.hexdigest()
