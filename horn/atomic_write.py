"""Files that are written whole or not at all: to a temporary file beside them, which is renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom
from pathlib import Path


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], *, mode: int | None = None, is_synced: bool = True
) -> Iterator[BufferedRandom]:
    """A context with an empty file, which takes the place of ``path`` at its end. After an error in
    it, which is raised on, ``path`` is as it was, and the other file is gone. What writes files by
    their names may write to ``file.name``.

    mode : the permissions, exactly; then a link of that name is replaced. By default they are those
    of a new file, and a link stays: its target is replaced. is_synced : whether the file is on the
    disk at the end of the context.

    Raises
    ------
    OSError : from the file system; or ``path`` is a folder, a device or a pipe.
    """
    target = Path(path)
    if mode is None and target.is_symlink():
        target = Path(os.path.realpath(target))
    if target.exists() and not target.is_file():
        raise FileExistsError(errno.EEXIST, "is a folder, a device or a pipe", str(path))
    # A part of the name: one that is as long as is allowed has room for no more.
    part = target.with_name(f".{target.name[:50]}.{os.urandom(4).hex()}.part")

    def new(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_EXCL | os.O_NOFOLLOW, 0o666 if mode is None else mode)

    try:
        # For reading, too: NumPy writes to the descriptor of what is open for writing alone, and
        # does not know then why that failed.
        with open(part, "w+b", opener=new) as file:
            rights = os.fstat(file.fileno()).st_mode & 0o777 if mode is None else mode
            yield file
        os.chmod(part, rights)  # an umask takes bits away
        if is_synced:
            _sync(part)
        os.replace(part, target)
        if is_synced:
            sync_folder(target.parent)
    except OSError as error:
        if error.filename == str(part):  # of which the caller knows nothing
            error.filename, error.filename2 = str(target), None
        raise
    finally:
        with suppress(OSError):  # the first error is the one to report
            part.unlink()


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Write a folder's entries to the disk; a link to it is followed. One that may be written to,
    and not read, cannot be asked for that, and is left to the system.

    Raises
    ------
    OSError : from the file system.
    """
    with suppress(PermissionError):
        _sync(path)


def _sync(path: str | os.PathLike[str]) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
