"""The windows of a convolution as lists for the tape: the terms of each sum.

Positions whose windows have the same taps inside of the layer differ only in where these begin, so
they share a list. A picture has few: those of its inside and of each distance from its border.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from horn.connections.windows import Span, Taps
from horn.layers import Link
from horn.partition.share import Array, Places


class WindowLists:
    """The index lists of a convolution, each made when it is first read.

    link : the convolution. receivers, senders : the neurons at both ends that a task has: whole
    positions, or, at one end, ``by_channels``, some channels of all; by default all. For a
    transposed tie the senders are the maps.

    Positions, maps and channels have the task's own numbers. The groups of a convolution are parts
    of each position: the maps of a part receive the channels of one.
    """

    def __init__(
        self,
        link: Link,
        receivers: Places | None = None,
        senders: Places | None = None,
        by_channels: bool = False,
    ) -> None:
        connection, looked_at = link.windows
        assert not by_channels or connection.groups == 1
        channels, maps, n_parts = looked_at[-1], connection.channels, connection.groups
        self._spans = connection.spans(looked_at, link.weight)
        above, under = (senders, receivers) if link.is_turned else (receivers, senders)
        n_above = maps * math.prod(s.n_out for s in self._spans)
        above = slice(0, n_above) if above is None else above
        under = slice(0, math.prod(looked_at)) if under is None else under
        self._under, theirs = _positions(under, channels, by_channels)
        self._above, mine = _positions(above, maps, by_channels)
        self._n_parts, heard = n_parts, channels // n_parts
        self._n_here, self._n_maps = len(theirs) // n_parts, len(mine) // n_parts  # of a part
        # Of each part and tap the place of its first channel in the weights of the part's first map
        n_taps = math.prod(s.kernel for s in self._spans)
        self._n_places = n_taps * heard  # in the weights of a map
        part, tap = np.arange(n_parts)[:, None, None], np.arange(n_taps)[:, None] * heard
        first_map = mine.start + part * self._n_maps
        self._place = first_map * self._n_places + tap + theirs.start

    @cached_property
    def to_maps(self) -> dict[str, Any]:
        """Arguments of ``Tape.windows`` from the channels below to the maps."""
        base = (self._place + np.arange(self._n_here)).reshape(-1)
        runs = self._forward.runs(self._n_here, self._n_parts)
        return runs | {"base": base, "step": self._n_places}

    @cached_property
    def to_channels(self) -> dict[str, Any]:
        """Arguments of ``Tape.windows`` from the maps back to the channels."""
        base = (self._place + np.arange(self._n_maps) * self._n_places).reshape(-1)
        look = _look(self._spans, self._above, self._under, _back)
        return look.runs(self._n_maps, self._n_parts, reverse=True) | {"base": base, "step": 1}

    @cached_property
    def gradients(self) -> dict[str, Any]:
        """Arguments of ``Tape.window_gradients``."""
        look, n = self._forward, self._n_here
        taps = look.table[:, :, None]
        sources = np.where(taps < 0, -1, taps * (n * self._n_parts) + np.arange(n, dtype=np.int32))
        return {
            "src": sources.reshape(look.n_lists, look.n_taps * n),
            "which": look.which,
            "first": look.first * np.int32(n * self._n_parts),
            # parts of channels that are not there are none
            "n_parts": self._n_parts if len(self._under) else 1,
            "step": n,
        }

    @cached_property
    def _forward(self) -> _Look:
        return _look(self._spans, self._above, self._under, _forward)


@dataclass(frozen=True)
class _Look:
    """At which positions taps look from others.

    n_taps : of each list, few of which may be inside of the layer. ptr : (lists + 1,) where taps
    inside of each list begin. tap, position : (taps inside,) int32, the tap, and the position that
    it looks at, from the first that its list has. which, first : (positions,) int32, the list of
    each position, and the first that it looks at.
    """

    n_taps: int
    ptr: Array
    tap: Array
    position: Array
    which: Array
    first: Array

    @classmethod
    def of(
        cls,
        keys: Array,
        at: Callable[[Array, Array], Array],
        n_taps: int,
        inside: tuple[Array, Array] | None = None,
    ) -> _Look:
        """keys : (positions,) what is equal only where taps are. at : the position, -1 for none, at
        which taps look from positions. inside : (positions,) each, taps outside of these look at
        none.
        """
        _, example, which = np.unique(keys, return_index=True, return_inverse=True)
        n = len(example)
        begin, end = np.zeros(n, np.int64), np.full(n, n_taps)
        if inside is not None:
            begin, end = (bound[example] for bound in inside)
        of = np.repeat(np.arange(n), end - begin)
        tap = np.arange(len(of)) + np.repeat(end - np.cumsum(end - begin), end - begin)
        seen = at(example[of], tap)
        of, tap, seen = (array[seen >= 0] for array in (of, tap, seen))
        ptr = np.searchsorted(of, np.arange(n + 1))
        has = np.flatnonzero(np.diff(ptr))
        least, tap_of_least = np.zeros((2, n), np.int64)
        if len(has):
            least[has] = np.minimum.reduceat(seen, ptr[has])
            is_least = np.flatnonzero(seen == least[of])
            tap_of_least[of[is_least]] = tap[is_least]
        first = np.maximum(at(np.arange(len(keys)), tap_of_least[which]), 0)
        return cls(n_taps, ptr, *_as_int32(tap, seen - least[of], which, first))

    @property
    def n_lists(self) -> int:
        return len(self.ptr) - 1

    @property
    def table(self) -> Array:
        """(lists, taps) int32, the positions, -1 for none."""
        found = np.full((self.n_lists, self.n_taps), -1, np.int32)
        found[np.repeat(np.arange(self.n_lists), np.diff(self.ptr)), self.tap] = self.position
        return found

    def by(self, inner: _Look, n: int) -> _Look:
        """The look of all positions (of self, of inner), at those, of which inner has n."""
        counts, inner_counts = np.diff(self.ptr), np.diff(inner.ptr)
        ptr = np.zeros(self.n_lists * inner.n_lists + 1, np.int64)
        np.cumsum(np.outer(counts, inner_counts), out=ptr[1:])
        of = np.repeat(np.arange(self.n_lists), counts)
        inner_of = np.repeat(np.arange(inner.n_lists), inner_counts)
        # each pair of taps has its place in the pair of lists: by the tap of self, then of inner
        place = ptr[of[:, None] * inner.n_lists + inner_of]
        place += (np.arange(len(of)) - self.ptr[of])[:, None] * inner_counts[inner_of]
        place += np.arange(len(inner_of)) - inner.ptr[inner_of]
        tap, position = np.empty((2, place.size), np.int32)
        tap[place] = self.tap[:, None] * inner.n_taps + inner.tap
        position[place] = self.position[:, None] * n + inner.position
        which = (self.which[:, None] * inner.n_lists + inner.which).reshape(-1)
        first = (self.first[:, None] * n + inner.first).reshape(-1)
        return _Look(self.n_taps * inner.n_taps, ptr, tap, position, *_as_int32(which, first))

    def runs(self, n: int, n_parts: int, reverse: bool = False) -> dict[str, Any]:
        """The lists, of n rows of each of n_parts parts of a position, as ``Tape.windows`` has
        them; with ``reverse`` from the last tap.
        """
        part = np.arange(n_parts)
        of = np.repeat(np.arange(self.n_lists), np.diff(self.ptr))
        tap, position = self.tap.astype(np.int64), self.position.astype(np.int64)
        if reverse:
            backwards = self.ptr[of] + self.ptr[of + 1] - 1 - np.arange(len(of))
            tap, position = tap[backwards], position[backwards]
        src = (position * n_parts + part[:, None]).reshape(-1) * n
        row = (part[:, None] * self.n_taps + tap).reshape(-1) * n
        of = (part[:, None] * self.n_lists + of).reshape(-1)  # lists of a part after each other
        apart = n_parts if n == 1 else 1  # in a run: rows of a part, or one of each position
        goes_on = (np.diff(of) == 0) & (np.diff(src) == n * apart) & (np.diff(row) == n)
        begins = np.flatnonzero(np.concatenate([np.ones(min(len(of), 1), bool), ~goes_on]))
        which = self.which[:, None] + part * self.n_lists
        ends = np.searchsorted(of[begins], np.arange(n_parts * self.n_lists + 1))
        return {
            "ptr": ends.astype(np.int64),
            "src": src[begins].astype(np.int32),
            "row": row[begins].astype(np.int32),
            "length": (np.diff(begins, append=len(of)) * n).astype(np.int32),
            "which": which.reshape(-1).astype(np.int32),
            "first": np.repeat(self.first * np.int32(n * n_parts), n_parts),
            "apart": apart,
        }


def _as_int32(*arrays: Array) -> list[Array]:
    return [np.ascontiguousarray(array, np.int32) for array in arrays]


def _look(spans: list[Span], above: Array, below: Array, way: Callable[[Span], _Look]) -> _Look:
    """From the positions above at those below (``way`` is _forward) or back (_back), in the task's
    own numbers.
    """
    is_back = way is _back
    if not len(above) or not len(below):  # a task's rows may hear nothing, or not be heard
        none = np.full((len(above), math.prod(s.kernel for s in spans)), -1)
        return _listed(none, below, is_back)
    row_above, row_below = (spans[1].n_out, spans[1].n) if len(spans) > 1 else (1, 1)
    mine, theirs = _rows(above, row_above), _rows(below, row_below)
    if mine is None or theirs is None:
        return _listed(Taps(spans).sources[above], below, is_back)
    before = spans[0].before + theirs.start - mine.start * spans[0].stride
    look = way(spans[0]._replace(n=len(theirs), n_out=len(mine), before=before))
    if len(spans) > 1:
        look = look.by(way(spans[1]), row_above if is_back else row_below)
    return look


def _rows(positions: Array, n: int) -> range | None:
    """The rows, of n positions each, that these are if they follow each other and are whole."""
    first, last = int(positions[0]), int(positions[-1])
    if first % n or len(positions) % n or last - first + 1 != len(positions):
        return None
    return range(first // n, last // n + 1)


def _forward(span: Span) -> _Look:
    """From windows along a dimension at their sources."""
    first, end = span.inside
    return _Look.of(first * (span.kernel + 1) + end, span.source, span.kernel, (first, end))


def _back(span: Span) -> _Look:
    """From sources along a dimension at the windows that have them."""
    at, n = np.arange(span.n) + span.before, span.kernel + 1
    low = np.clip((at - span.n_out * span.stride) // span.dilation + 1, 0, span.kernel)
    high = np.clip(at // span.dilation + 1, low, span.kernel)
    keys = (at % span.stride * n + low) * n + high
    return _Look.of(keys, span.window, span.kernel, (low, high))


def _listed(sources: Array, below: Array, is_back: bool) -> _Look:
    """From windows with these sources (positions, taps) at what is there of them, or back."""
    number = np.full(max(sources.max(initial=-1), below.max(initial=-1)) + 2, -1)
    number[below] = np.arange(len(below))  # the last stands for no position
    table = number[sources]
    if is_back:
        windows = np.full((len(below), sources.shape[1]), -1)
        window, tap = np.nonzero(table >= 0)
        windows[table[window, tap], tap] = window
        table = windows
    begin = np.where(table < 0, table.max(initial=0), table).min(axis=1, keepdims=True)
    taps = np.where(table < 0, -1, table - begin)
    keys = np.unique(taps, axis=0, return_inverse=True)[1].reshape(-1)
    return _Look.of(keys, lambda position, tap: table[position, tap], table.shape[1])


def _positions(places: Places, channels: int, by_channels: bool) -> tuple[Array, range]:
    """The positions of neurons, and the channels of each."""
    each = np.arange(places.start, places.stop) if isinstance(places, slice) else places
    if not len(each):
        return np.zeros(0, np.int64), range(0 if by_channels else channels)
    n = int(np.count_nonzero(each // channels == each[0] // channels))
    found, first = each[::n] // channels, int(each[0] % channels)
    assert len(found) * n == len(each), "as many channels of each position"
    return np.asarray(found), range(first, first + n)
