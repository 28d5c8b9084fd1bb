"""What an array holds, in a few letters: equal values give equal digests, wherever they are stored.

The values are summed up in blocks of about 1 MiB by the 64-bit sum of messages, which takes no
longer than reading them, and the sums by SHA-256. Made to notice another or an altered data set,
not a forger.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from horn._kernels.checksum import sum64
from horn.data import ahead

Array = np.ndarray[Any, Any]
BLOCK_BYTES = 1 << 20
# A mapped file beyond this is too much to read before a start; so much of it is looked at, evenly.
MAX_FILE_BYTES = 1 << 30


def digest(array: Array, max_file_bytes: int = MAX_FILE_BYTES) -> str:
    """As in "float32 (60000, 784) 3f2a9c0d51b7e864". Of an array in a mapped file of more than
    ``max_file_bytes`` only so many are read, in blocks from its beginning to its end; the number of
    blocks is said then.
    """
    rows = array.reshape(1) if array.ndim == 0 else array
    n_rows = len(rows)
    step = max(BLOCK_BYTES // max(rows.nbytes // max(n_rows, 1), 1), 1)
    starts = range(0, n_rows, step)
    n_blocks = len(starts)
    looked_at: Any = starts
    said = ""
    if rows.nbytes > max_file_bytes and ahead.is_file(rows):
        n_looked_at = max(max_file_bytes // BLOCK_BYTES, 2)
        if n_looked_at < n_blocks:
            looked_at = [
                starts[k * (n_blocks - 1) // (n_looked_at - 1)] for k in range(n_looked_at)
            ]
            said = f" of {n_looked_at} of {n_blocks} blocks"
    little = rows.dtype.newbyteorder("<")
    sums = np.empty(len(looked_at), "<u8")
    for k, start in enumerate(looked_at):
        block = np.ascontiguousarray(rows[start : start + step], little)
        sums[k] = sum64(block.reshape(-1).view(np.uint8).data) if block.size else 0
    what = f"{array.dtype.name} {array.shape}"
    found = hashlib.sha256(what.encode() + sums.tobytes()).hexdigest()[:16]
    return f"{what} {found}{said}"
