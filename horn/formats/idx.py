"""IDX files, plain or gzipped: the format of MNIST.

Two zero bytes, a type code, the number of axes, each axis as a big-endian 32-bit number, then the
values, big-endian, last axis fastest. Plain files of bytes are memory-mapped; gzipped ones are
unpacked straight into the array.

Source: Y. LeCun, C. Cortes, C. J. C. Burges, "The MNIST database", section "File formats".
"""

from __future__ import annotations

import gzip
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from horn.errors import DataError
from horn.formats.files import reading

TYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype(np.uint8),
    0x09: np.dtype(np.int8),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}

# gzip returns copies: small pieces keep the copy small.
PIECE_BYTES = 131_072


def read(path: Path) -> np.ndarray:
    """Read the array of an IDX file, in native byte order; read-only where it is memory-mapped.
    Raises NotFound or DataError.
    """
    with reading(path):
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else open(path, "rb") as file:
            return _read(file, path, packed)


def _read(file: Any, path: Path, packed: bool) -> np.ndarray:
    head = np.empty(4, np.uint8)
    got = _fill(file, head)
    if got < 4 or head[0] != 0 or head[1] != 0 or int(head[2]) not in TYPES or head[3] == 0:
        raise DataError(
            f"{path}: begins with {head[:got].tobytes().hex(' ') or 'nothing'}, but an IDX file "
            "begins with 00 00, a type code (08 for bytes) and the number of axes; give an IDX "
            "file, as the MNIST site has them, plain or gzipped"
        )
    axes = np.empty(int(head[3]), ">u4")
    got = 4 + _fill(file, axes.view(np.uint8))
    if got < 4 + axes.nbytes:
        raise DataError(
            f"{path}: is cut short: {got} bytes, but its header alone takes {4 + axes.nbytes}; "
            f"fetch the file again"
        )
    shape, dtype = tuple(int(n) for n in axes), TYPES[int(head[2])]
    expected = math.prod(shape) * dtype.itemsize
    available = path.stat().st_size
    # Deflate packs at most 1032 to 1: a larger size, from a wrong header, is not allocated.
    if expected > available * (1032 if packed else 1):
        raise _cut_short(path, _count(file), expected)
    try:
        np.broadcast_to(np.empty((), dtype), shape)  # takes no memory
        is_array = math.prod(n for n in shape if n) * dtype.itemsize <= sys.maxsize
    except ValueError:  # more axes than NumPy has
        is_array = False
    if not is_array:
        raise DataError(
            f"{path}: its header says {len(shape)} axes of {', '.join(map(str, shape[:8]))}"
            f"{' ...' * (len(shape) > 8)}, which no array has; fetch the file again"
        )
    if not packed and dtype == np.uint8 and expected:
        _check_length(path, available - got, expected)
        return np.asarray(np.memmap(path, dtype, mode="r", offset=got, shape=shape))
    values: np.ndarray = np.empty(shape, dtype)
    arrived = _fill(file, values.reshape(-1).view(np.uint8))
    if arrived == expected:  # reading past the end makes gzip check its checksum
        arrived += _count(file)
    _check_length(path, arrived, expected)
    return values.astype(dtype.newbyteorder("="), copy=False)


def _check_length(path: Path, got: int, expected: int) -> None:
    if got < expected:
        raise _cut_short(path, got, expected)
    if got > expected:
        raise DataError(
            f"{path}: has {got:,} bytes of values, but its header says {expected:,}; fetch the "
            "file again"
        )


def _cut_short(path: Path, got: int, expected: int) -> DataError:
    return DataError(
        f"{path}: is cut short: got {got:,} bytes of values, expected {expected:,} by its header; "
        f"fetch the file again"
    )


def _fill(file: Any, out: np.ndarray) -> int:
    """Read into the bytes of ``out`` until it is full or the file ends; return the bytes read."""
    view, done = out.data, 0
    try:
        while done < len(view):
            # readinto1, not readinto: keeps the bytes before a premature end
            got = file.readinto1(view[done : done + PIECE_BYTES])
            if not got:
                break
            done += got
    except EOFError:  # gzip: the end came before its end mark
        pass
    return done


def _count(file: Any) -> int:
    """The number of bytes left in a file, without keeping them."""
    scratch, total = np.empty(PIECE_BYTES, np.uint8), 0
    while got := _fill(file, scratch):
        total += got
    return total
