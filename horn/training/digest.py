"""Digests of arrays, against mistakes, not against forgers: SHA-256 of the 64-bit sums (those of
messages) of blocks of about 1 MiB, which takes no longer than reading them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from horn._kernels.checksum import sum64
from horn.formats import ahead

Array = np.ndarray[Any, Any]
BLOCK_BYTES = 1 << 20
MAX_FILE_BYTES = 1 << 30  # of a larger mapped file only so much is read, evenly


def digest(array: Array, max_file_bytes: int = MAX_FILE_BYTES) -> str:
    """The digest of an array, as in "float32 (60000, 784) 3f2a9c0d51b7e864". Of a mapped file of
    more than ``max_file_bytes`` only so many are read, in blocks evenly over the file, and their
    number is added.
    """
    rows = array.reshape(1) if array.ndim == 0 else array
    n_rows = len(rows)
    step = max(BLOCK_BYTES // max(rows.nbytes // max(n_rows, 1), 1), 1)
    starts: Sequence[int] = range(0, n_rows, step)
    n, n_blocks, said = max(max_file_bytes // BLOCK_BYTES, 2), len(starts), ""
    if n < n_blocks and rows.nbytes > max_file_bytes and ahead.is_file(rows):
        starts = [starts[k * (n_blocks - 1) // (n - 1)] for k in range(n)]
        said = f" of {n} of {n_blocks} blocks"
    little = rows.dtype.newbyteorder("<")
    sums = np.empty(len(starts), "<u8")
    for k, start in enumerate(starts):
        block = np.ascontiguousarray(rows[start : start + step], little)
        sums[k] = sum64(block.reshape(-1).view(np.uint8).data) if block.size else 0
    what = f"{array.dtype.name} {array.shape}"
    found = hashlib.sha256(what.encode() + sums.tobytes()).hexdigest()[:16]
    return f"{what} {found}{said}"
