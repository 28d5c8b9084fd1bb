"""Ask the kernel for the rows of a mapped file before they are read."""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
from typing import Any

import numpy as np

_C = ctypes.CDLL(None, use_errno=True)


def is_file(array: np.ndarray) -> bool:
    """Whether an array lies in a mapped file of a disk, and not in memory."""
    if isinstance(array, np.memmap):
        return True
    return array.nbytes > 0 and _is_mapped(array.__array_interface__["data"][0])


def _is_mapped(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, _, _, inode, *name = line.split(maxsplit=5)
            first, _, last = span.partition("-")
            if int(first, 16) <= address < int(last, 16):
                path = name[0].strip() if name else ""
                return inode != "0" and _is_regular(path)
    return False


def _is_regular(path: str) -> bool:
    """memfds are in the list too, as /memfd:name (deleted)."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def want(array: np.ndarray, rows: Any) -> None:
    """The kernel begins to read these rows of a mapped array, and does not wait for it."""
    start, step = array.__array_interface__["data"][0], array.strides[0]
    for row in rows:
        begin = (start + int(row) * step) & ~(mmap.PAGESIZE - 1)
        end = start + int(row) * step + step
        # Only a wish: what it answers changes nothing.
        _C.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_WILLNEED)
