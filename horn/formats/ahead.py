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
    inode, path = mapped_at(array.__array_interface__["data"][0])
    return inode != 0 and os.path.isfile(path)  # memfds have inodes, too, but no path


def mapped_at(address: int) -> tuple[int, str]:
    """The inode and path of what is mapped at an address of this process, 0 and "" of none. A
    path that is no more has a word behind it; so has a memfd: "/memfd:name (deleted)".
    """
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            span, _, _, _, inode, *path = line.split(maxsplit=5)
            first, _, last = span.partition(b"-")
            if int(first, 16) <= address < int(last, 16):
                return int(inode), os.fsdecode(path[0].rstrip(b"\n")) if path else ""
    return 0, ""


def want(array: np.ndarray, rows: Any) -> None:
    """Ask the kernel to begin reading these rows of a mapped array, without waiting for it."""
    start, step = array.__array_interface__["data"][0], array.strides[0]
    for row in rows:
        begin = (start + int(row) * step) & ~(mmap.PAGESIZE - 1)
        end = start + int(row) * step + step
        # A hint: failures change nothing.
        _C.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_WILLNEED)
