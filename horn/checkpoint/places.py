"""The places of a part of an array, axis by axis, and the intersection of two parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Place = slice | Array  # along one axis of the whole array; an Array is int64, in any order
Axis = range | Array  # the same, with its ends known
Index = slice | Array


def axis(place: Place | range, length: int | None = None) -> Axis:
    """Give a place known ends. length : of the part, for an open slice. Raises ValueError."""
    found: Axis
    if isinstance(place, range):
        found = place
    elif isinstance(place, slice):
        start, step = place.start or 0, 1 if place.step is None else place.step
        stop = place.stop
        if stop is None:
            if length is None:
                raise ValueError(f"{place} has no end")
            stop = start + length * step
        found = range(start, stop, step)
    else:
        found = np.asarray(place)
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise ValueError(
                f"indices have dtype {found.dtype} and {found.ndim} axes, not int64 (n,)"
            )
        found = found.astype(np.int64, copy=False)
    if isinstance(found, range):
        if found.step < 1 or found.start < 0:
            raise ValueError(f"{found} does not count upward from 0 or more")
    elif len(found) and int(found.min()) < 0:
        raise ValueError(f"indices begin at {found.min()}, not at 0 or more")
    if length is not None and len(found) != length:
        raise ValueError(f"{len(found)} places are given for {length} values")
    return found


def intersection(have: Axis, want: Axis) -> tuple[Index, Index]:
    """The places that are in both, as indices into ``have`` and into ``want``."""
    if isinstance(have, range) and isinstance(want, range) and have.step == want.step == 1:
        start = max(have.start, want.start)
        stop = max(start, min(have.stop, want.stop))
        a, b = have.start, want.start
        return slice(start - a, stop - a), slice(start - b, stop - b)
    wanted = np.arange(want.start, want.stop, want.step) if isinstance(want, range) else want
    if isinstance(have, range):
        offset = wanted - have.start
        found = (offset >= 0) & (wanted < have.stop) & (offset % have.step == 0)
        return _tight(offset[found] // have.step), _tight(np.flatnonzero(found))
    if not len(have):
        return slice(0, 0), slice(0, 0)
    order = np.argsort(have, kind="stable")
    near = np.minimum(np.searchsorted(have, wanted, sorter=order), len(have) - 1)
    found = have[order[near]] == wanted
    return _tight(order[near[found]]), _tight(np.flatnonzero(found))


def _tight(indices: Array) -> Index:
    """Make indices in equal steps a slice, which NumPy copies much faster."""
    if not len(indices):
        return slice(0, 0)
    first, last = int(indices[0]), int(indices[-1])
    step = int(indices[1]) - first if len(indices) > 1 else 1
    if step > 0 and last == first + step * (len(indices) - 1) and np.all(np.diff(indices) == step):
        return slice(first, last + 1, step)
    return indices


def count(indices: Sequence[Index]) -> int:
    """The number of values that these indices, one for each axis, select."""
    return math.prod(
        len(range(i.start, i.stop, i.step or 1)) if isinstance(i, slice) else len(i)
        for i in indices
    )


def cross(indices: Sequence[Index]) -> tuple[Any, ...]:
    """Make an index of an array that takes each axis by itself (NumPy would pair two arrays up)."""
    if sum(not isinstance(i, slice) for i in indices) < 2:
        return tuple(indices)
    return np.ix_(
        *(np.arange(i.start, i.stop, i.step or 1) if isinstance(i, slice) else i for i in indices)
    )
