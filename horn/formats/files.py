"""Errors of reading a data file, as sentences."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from horn.errors import DataError, NotFound


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """A context in which NotFound is raised for a missing file, DataError for an unreadable one."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file; check the name") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"{path}: the gzip data are damaged ({error}); fetch the file again"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
