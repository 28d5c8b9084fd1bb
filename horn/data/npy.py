""".npy files: one array each, memory-mapped, so that data larger than memory can be learned from.

Objects are never unpickled. An array in Fortran order is copied by whoever needs its rows.

Source: NumPy, "A simple file format for NumPy arrays" (numpy.lib.format).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from horn.data.arrays import kind_name
from horn.errors import DataError, NotFound


def read(path: Path) -> np.ndarray:
    """The array of a file, read-only and memory-mapped.

    Raises
    ------
    NotFound : no such file.
    DataError : no .npy file, shorter than its header says, or with Python objects.
    """
    try:
        size_bytes = path.stat().st_size
        with open(path, "rb") as file:
            shape, fortran, dtype = _header(file)
            offset = file.tell()
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file; check the name") from None
    except ValueError as error:
        raise DataError(
            f"{path}: is no .npy file, or its header is damaged ({_one_line(error)}); "
            "write it again with np.save"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
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


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    # Version 3 differs from 2 in the coding of field names only; arrays with fields are refused.
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read_header(file)
    if any(n < 0 for n in shape):
        raise ValueError(f"its shape is {shape}")
    return shape, fortran, dtype


def _one_line(error: ValueError) -> str:
    return str(error).splitlines()[0].rstrip(".")
