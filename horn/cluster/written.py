"""The files that the callbacks of a job wrote, in a folder of its results.

The job writes there, perhaps as another user, and the agent that reads it holds the cluster's key:
no link is followed on the way to a file, and paths are those that a package may have.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated

import msgspec

from horn.cluster.package import MAX_DEPTH, MAX_FILES, PATH_BYTES, BadPackage, check_path
from horn.cluster.user import opened
from horn.errors import JobError, NotFound

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class WrittenFiles(msgspec.Struct, frozen=True):
    """The files of callbacks. sizes : in bytes, by path. n_left_out : files that are not given out
    (links, pipes, names that no package may have, more than MAX_FILES); why : of the first of them.
    """

    sizes: dict[Annotated[str, msgspec.Meta(max_length=PATH_BYTES)], int]
    n_left_out: int = 0
    why: str = ""


def find(kept: Path, name: str) -> WrittenFiles:
    """List the files in ``kept/name``; none if that is no folder."""
    sizes: dict[str, int] = {}
    reasons: list[str] = []
    try:
        root = os.open(kept, _FOLDER)
    except OSError:
        return WrittenFiles(sizes)
    try:
        for at, folders, files, here in os.fwalk(name, dir_fd=root, follow_symlinks=False):
            parts = at.split("/")[1:]
            if len(parts) >= MAX_DEPTH - 1 and folders:
                reasons.append(f"the folder {'/'.join(parts)!r:.200} is {len(parts)} deep")
                folders.clear()
            folders.sort()
            for found in sorted([*files, *folders]):
                try:
                    is_here = os.stat(found, dir_fd=here, follow_symlinks=False)
                except OSError:  # removed meanwhile
                    continue
                if stat.S_ISDIR(is_here.st_mode):
                    continue
                path = "/".join([*parts, found])
                if reason := _reason(path, is_here, len(sizes)):
                    reasons.append(reason)
                else:
                    sizes[path] = is_here.st_size
    except OSError:  # a folder was removed meanwhile: list what was seen
        pass
    finally:
        os.close(root)
    return WrittenFiles(sizes, len(reasons), reasons[0] if reasons else "")


def _reason(path: str, found: os.stat_result, n: int) -> str:
    """The reason not to give a file out; "" if it may be. n : files so far."""
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        return f"{path!r:.200} is a link or no regular file"
    try:
        check_path(path)
    except BadPackage as error:
        return str(error)
    return f"there are more than {MAX_FILES} files" if n >= MAX_FILES else ""


def open_file(kept: Path, name: str, path: str) -> int:
    """Open a file of ``find``. Raises NotFound. BadPackage: no file has this path. JobError."""
    check_path(path)
    *folders, last = path.split("/")
    at = -1
    try:
        at = os.open(kept, _FOLDER)
        for folder in (name, *folders):
            inner = os.open(folder, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        return opened(last, os.O_RDONLY, at)
    except (FileNotFoundError, NotFound):
        raise NotFound(f"there is no {path} here") from None
    except OSError as error:
        raise JobError(f"{path} cannot be opened: {error.strerror}") from error
    finally:
        if at >= 0:
            os.close(at)
