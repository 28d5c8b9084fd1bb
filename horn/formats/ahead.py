"""Prefetching: the kernel is asked for rows of a mapped file before they are read."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np

_C = ctypes.CDLL(None, use_errno=True)


def is_file(array: np.ndarray) -> bool:
    """Whether an array lies in a mapped file of a disk, and not in memory."""
    if isinstance(array, np.memmap) or not array.nbytes:
        return isinstance(array, np.memmap)
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, _, _, inode, *name = line.split(maxsplit=5)
            first, _, last = span.partition("-")
            if int(first, 16) <= address < int(last, 16):
                # memfds have inodes, too: /memfd:name (deleted) is no path
                return inode != "0" and bool(name) and os.path.isfile(name[0].strip())
    return False


def want(array: np.ndarray, rows: Any) -> None:
    """Ask the kernel to begin reading these rows of a mapped array, without waiting for it."""
    start, step = array.__array_interface__["data"][0], array.strides[0]
    for row in rows:
        begin = (start + int(row) * step) & ~(mmap.PAGESIZE - 1)
        end = start + int(row) * step + step
        # A hint: failures change nothing.
        _C.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_WILLNEED)
