"""Sums over many groups, level by level, so that each group meets few others.

Few groups send every part of a sum to all others at once. That takes groups squared blocks: beyond
``MAX_DIRECT`` groups, four groups add their parts, then four such fours, and so on. Each group ends
with the whole sum, added in the same order, and has met fewer than 4 log4(groups) + 2 others.
Groups beyond the largest power of two first send theirs to one below, and get the sum from it last.
Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
2005, section 4.5 (recursive doubling; here four at a time).
"""

from __future__ import annotations

from functools import lru_cache

MAX_DIRECT = 16  # groups; also the most parts that a fused update adds without losing its speed
WIDTH = 4  # half the supersteps of pairs, each with three blocks instead of one

Circles = tuple[tuple[int, ...], ...]  # groups that add their parts; every group is in one


def is_tree(n_groups: int) -> bool:
    """Whether this many groups sum level by level."""
    return n_groups > MAX_DIRECT


@lru_cache
def levels(n_groups: int) -> tuple[Circles, ...]:
    """The circles that add up, level by level; without the last one, which only sends the sum."""
    full = 1 << (n_groups.bit_length() - 1)
    found = [_pairs(n_groups, full)] if full < n_groups else []
    beyond = tuple((group,) for group in range(full, n_groups))
    stride = 1
    while stride < full:
        width = min(WIDTH, full // stride)
        starts = (g for g in range(full) if g // stride % width == 0)
        circles = tuple(tuple(g + stride * k for k in range(width)) for g in starts)
        found.append(circles + beyond)
        stride *= width
    return tuple(found)


@lru_cache
def handing(n_groups: int) -> Circles:
    """The circles in which the first group sends the sum to the others at the end; may be empty."""
    full = 1 << (n_groups.bit_length() - 1)
    return _pairs(n_groups, full) if full < n_groups else ()


def _pairs(n_groups: int, full: int) -> Circles:
    n_beyond = n_groups - full
    pairs = tuple((group, full + group) for group in range(n_beyond))
    return pairs + tuple((group,) for group in range(n_beyond, full))
