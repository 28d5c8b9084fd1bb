""".npy files: one array each, memory-mapped, so that data larger than memory can be learned from.

Objects are never unpickled. An array in Fortran order is copied where its rows are needed. Beside
x.npy there may be x.names.txt, UTF-8 text with the name of a column in each line.

Source: NumPy, "A simple file format for NumPy arrays" (numpy.lib.format).
"""

from __future__ import annotations

import math
import sys
import tokenize
from pathlib import Path
from typing import Any

import numpy as np

from horn.errors import DataError
from horn.formats.files import reading
from horn.formats.parts import kind_name

# Errors of Python's parser, which reads NumPy's headers, that NumPy does not catch.
HEADER_ERRORS = (TypeError, OverflowError, SyntaxError, tokenize.TokenError, MemoryError,
                 RecursionError)  # fmt: skip


def read(path: Path) -> np.ndarray:
    """Read the array of a file, read-only and memory-mapped. Raises NotFound or DataError."""
    try:
        with reading(path), open(path, "rb") as file:
            size_bytes = path.stat().st_size
            shape, fortran, dtype = header(file)
            offset = file.tell()
    except ValueError as error:
        line = str(error).splitlines()[0].rstrip(".")
        raise DataError(
            f"{path}: is no .npy file, or its header is damaged ({line}); "
            "write it again with np.save"
        ) from error
    if dtype.hasobject:
        raise DataError(
            f"{path}: holds {kind_name(dtype)}, which horn never unpickles; "
            "save plain numbers, np.array(values, dtype='float32')"
        )
    expected, got = math.prod(shape) * dtype.itemsize, size_bytes - offset
    if got < expected:
        raise DataError(
            f"{path}: is cut short: got {got:,} bytes of values, expected {expected:,} by its "
            "header; write it again with np.save"
        )
    if expected == 0:  # nothing can be mapped
        return np.empty(shape, dtype)
    return np.asarray(np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C"))


def names_file(path: Path) -> Path:
    """The place of the names of an array's columns."""
    return path.with_suffix(".names.txt")


def names(path: Path, x: np.ndarray) -> tuple[str, ...]:
    """The names of the columns of an array x (n, columns), the file's; () if there are none.
    Raises DataError.
    """
    place = names_file(path)
    if not place.exists():
        return ()
    try:
        with reading(place):
            text = place.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: is not UTF-8 text ({error.reason}); save it as UTF-8") from error
    found = tuple(text.removesuffix("\n").split("\n"))
    if x.shape[1:] != (len(found),):
        raise DataError(
            f"{place}: has {len(found):,} names, one a line, but the samples of {path.name} have "
            f"the shape {x.shape[1:]}; give each column a name, or remove the file"
        )
    return found


def header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header: (shape, whether in Fortran order, dtype) of an array that memory allowing
    can be made; ``file`` is then at the first value. Raises ValueError.
    """
    form = np.lib.format
    # Version 3 differs from 2 in the coding of field names only; arrays with fields are refused.
    is_first = form.read_magic(file) == (1, 0)
    read_header = form.read_array_header_1_0 if is_first else form.read_array_header_2_0
    try:
        shape, fortran, dtype = read_header(file)
        if any(n < 0 for n in shape) or not all(type(n) is int for n in shape):
            raise ValueError(f"its shape is {shape}")
        np.broadcast_to(np.empty((), dtype), shape)  # takes no memory
        # NumPy counts the bytes of an empty array as if it had one of each axis.
        if math.prod(n for n in shape if n) * dtype.itemsize > sys.maxsize:
            raise ValueError(f"its shape is {shape}")
    except HEADER_ERRORS as error:
        raise ValueError(str(error) or type(error).__name__) from error
    return shape, fortran, dtype
