"""Copies of blocks out of arrays and into them, combined in task order, not in that of arrival."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn.backends._compiled import Runner
from horn.partition.share import Array
from horn.runtime.blocks import Index

COMBINE: dict[str, Any] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "any": np.maximum, "all": np.minimum,
}  # fmt: skip


class ArrayRegion:
    """The part of an array that a block carries: a view, or indices along one axis."""

    __slots__ = ("view", "axis", "places", "shape")

    def __init__(self, array: Array, index: Index, turned: bool) -> None:
        if turned:
            array, index = array.T, index[::-1]
        picked = [axis for axis, places in enumerate(index) if not isinstance(places, slice)]
        assert len(picked) <= 1, "only one axis is picked"
        (self.axis,) = picked or [0]
        places: Any = index[self.axis] if picked else None
        self.places = places
        ranges = tuple(p if isinstance(p, slice) else slice(None) for p in index)
        self.view: Array = array[ranges] if ranges else array
        self.shape = tuple(
            len(self.places) if axis in picked else n for axis, n in enumerate(self.view.shape)
        )

    def read(self) -> Array:
        return self.view if self.places is None else self.view.take(self.places, self.axis)

    def read_into(self, block: Array) -> None:
        block = _cut(block, self.shape)
        if self.places is None:
            block[...] = self.view
        else:  # the places are inside; "raise" would go through a copy
            self.view.take(self.places, self.axis, block, mode="clip")

    def write(self, content: Array) -> None:
        content = _cut(content, self.shape)
        if self.places is None:
            self.view[...] = content
        else:
            self.view[(slice(None),) * self.axis + (self.places,)] = content

    def add(self, content: Array, combine: Any) -> None:
        if self.places is None:
            combine(self.view, content, out=self.view)
        else:
            self.write(combine(self.read(), content))

    def covers(self, array: Array) -> bool:
        """Whether it is all of an array, which may be turned."""
        return self.places is None and sorted(self.shape) == sorted(array.shape)

    def is_same(self, other: ArrayRegion) -> bool:
        a, b = self.view, other.view
        return (
            self.places is None
            and other.places is None
            and (a.ctypes.data, a.shape, a.strides) == (b.ctypes.data, b.shape, b.strides)
        )


@dataclass(frozen=True, slots=True)
class Unpacking:
    """The unpacking of one move's blocks into its array.

    pieces : the destination of each block, with its channel or, for this task's own block, its
    source. combine : None where blocks do not overlap. fills : each block covers all of ``out``.
    begins : only this task has ``out``, and its own part covers it, so other parts are added to
    that; the first piece is the own one, unless it is in place already.
    """

    out: Array
    pieces: list[tuple[ArrayRegion, ArrayRegion | int]]
    combine: Any
    identity: float
    fills: bool
    begins: bool = False

    def take(self, inbox: Callable[[int], Array]) -> None:
        parts = (
            (region, _cut(inbox(what) if isinstance(what, int) else what.read(), region.shape))
            for region, what in self.pieces
        )
        if self.combine is None:
            for region, part in parts:
                region.write(part)
            return
        if self.begins:
            for number, (region, part) in enumerate(parts):
                if number == 0 and not isinstance(self.pieces[0][1], int):
                    region.write(part)
                else:
                    region.add(part, self.combine)
            return
        every = list(parts)
        if not self.fills:
            self.out[...] = self.identity
            for region, part in every:
                region.write(self.combine(region.read(), part))
            return
        out, (first, *rest) = every[0][0].view, (part for _, part in every)
        if not rest:
            out[...] = first
        for part in rest:
            self.combine(first, part, out=out)
            first = out


@dataclass(frozen=True, slots=True)
class ReadInPlace:
    """The unpacking of a move of one block: the block is read in its inbox, without a copy."""

    runner: Runner
    name: str
    part: int

    def take(self, inbox: Callable[[int], Array]) -> None:
        self.runner.settle(self.name, inbox(self.part))


class SumBundle:
    """Small sums over groups, of one monoid, in one block instead of one for each.

    pieces : array, out and how many numbers, one after the other in a block. sources : the part of
    each group in order, None for this task's own. sent : the part to send, if any.
    """

    def __init__(
        self,
        runner: Runner,
        pieces: list[tuple[str, str, int]],
        sources: list[int | None],
        sent: int | None,
        monoid: str,
        dtype: str,
    ) -> None:
        self.runner, self.pieces, self.sources, self.sent = runner, pieces, sources, sent
        self.combine = COMBINE[monoid]
        self.mine = np.empty(sum(n for _, _, n in pieces), dtype)
        self.total = np.empty_like(self.mine)
        ends = np.cumsum([n for _, _, n in pieces]).tolist()
        self.places = [slice(end - n, end) for end, (_, _, n) in zip(ends, pieces, strict=True)]

    def pack(self, outbox: Callable[[int], Array]) -> None:
        for (array, _, _), place in zip(self.pieces, self.places, strict=True):
            self.mine[place] = self.runner.array(array).reshape(-1)
        if self.sent is not None:
            outbox(self.sent)[...] = self.mine

    def unpack(self, inbox: Callable[[int], Array]) -> None:
        parts = [self.mine if part is None else inbox(part) for part in self.sources]
        self.total[...] = parts[0]
        for part in parts[1:]:
            self.combine(self.total, part, out=self.total)
        for (_, out, _), place in zip(self.pieces, self.places, strict=True):
            self.runner.target_array(out).reshape(-1)[...] = self.total[place]


def _cut(block: Array, shape: tuple[int, ...]) -> Array:
    """A block without the rows that a short batch does not have."""
    return block if block.shape == shape else block[tuple(slice(0, n) for n in shape)]
