"""Errors of reading a data file, as sentences."""

from __future__ import annotations

import contextlib
import difflib
import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from horn.errors import DataError, NotFound


def near(path: Path) -> Path | None:
    """The file beside ``path`` with the most similar name, of the same ending where it has one."""
    try:
        beside = list(path.parent.iterdir())
    except OSError:
        return None
    # Compares stems: a common ending would make all names alike.
    names = {entry.stem: entry.name for entry in beside if entry.suffix == path.suffix}
    names = names or {entry.stem: entry.name for entry in beside}
    found = difflib.get_close_matches(path.stem, names, 1)
    return path.with_name(names[found[0]]) if found else None


def missing(path: Path) -> NotFound:
    """The error for a file that is not there: where it was looked for, and a near name."""
    folder = path.parent.absolute()
    if os.path.isdir(path):
        return NotFound(f"{path}: is a folder; name a file in it")
    if not os.path.isdir(folder):
        return NotFound(f"{path}: no such file, since there is no folder {folder}")
    other = near(path)
    hint = f"; did you mean {other}?" if other else ""
    return NotFound(f"{path}: no such file in {folder}{hint}")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """A context in which NotFound is raised for a missing file, DataError for an unreadable one."""
    try:
        yield
    except FileNotFoundError:
        raise missing(path) from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"{path}: the gzip data are damaged ({error}); fetch the file again"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
