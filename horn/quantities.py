"""Sizes and times in words, as tables and messages have them."""

from __future__ import annotations


def size(n_bytes: float) -> str:
    """A number of bytes in words: 512 B, 30.5 kB, 2.3 MB."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"


def duration(seconds: float) -> str:
    """A short time in words: 12 us, 3.4 ms, 1.2 s."""
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} us"
    return f"{1e3 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
