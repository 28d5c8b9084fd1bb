"""Sums over many groups, level by level, so that each group meets few others.

A few groups give every part of a sum to all others at once. That is groups squared blocks: from so
many groups on, four groups add what they have, then four such fours, and so on. Each group ends
with the whole sum, added in the same order, and has met fewer than 4 log4(groups) + 2 others.
Groups beyond the largest power of two hand theirs to one below first, and get the sum from it last.
Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
2005, section 4.5 (recursive doubling; here four at a time).
"""

from __future__ import annotations

from functools import lru_cache

MAX_DIRECT = 16  # groups; also what a fused update adds up at once without losing its speed
WIDTH = 4  # half the supersteps of pairs, each with three blocks instead of one

Circles = tuple[tuple[int, ...], ...]  # groups that add what they have; every group is in one


def is_tree(n_groups: int) -> bool:
    """Whether so many groups sum level by level."""
    return n_groups > MAX_DIRECT


@lru_cache
def levels(n_groups: int) -> tuple[Circles, ...]:
    """Who adds up with whom, level by level; not where the last one hands out."""
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
    """Who hands the sum to whom in the end: the first of each to the others. Empty: nobody."""
    full = 1 << (n_groups.bit_length() - 1)
    return _pairs(n_groups, full) if full < n_groups else ()


def _pairs(n_groups: int, full: int) -> Circles:
    n_beyond = n_groups - full
    pairs = tuple((group, full + group) for group in range(n_beyond))
    return pairs + tuple((group,) for group in range(n_beyond, full))
