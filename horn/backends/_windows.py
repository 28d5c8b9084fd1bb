"""The windows of a convolution as lists for the tape: the terms of each sum.

Positions whose windows have the same taps inside of the layer differ only in where these begin, so
they share a list. A picture has few: those of its inside and of each distance from its border.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn.connections.windows import Span, Taps
from horn.layers import Link
from horn.partition.share import Array, Places


@dataclass(frozen=True)
class WindowLists:
    """The index lists of a convolution.

    to_maps, to_channels : arguments of ``Tape.windows``, from the channels below a convolution to
    its maps, and back. gradients : those of ``Tape.window_gradients``.

    Positions, maps and channels have the task's own numbers. The groups of a convolution are parts
    of each position: the maps of a part receive the channels of one.
    """

    to_maps: dict[str, Any]
    to_channels: dict[str, Any]
    gradients: dict[str, Any]

    @classmethod
    def of(
        cls,
        link: Link,
        receivers: Places | None = None,
        senders: Places | None = None,
        by_channels: bool = False,
    ) -> WindowLists:
        """receivers, senders : the neurons at both ends that a task has: whole positions, or, at
        one end, ``by_channels``, some channels of all; by default all. For a transposed tie the
        senders are the maps.
        """
        connection, looked_at = link.windows
        assert not by_channels or connection.groups == 1
        channels, maps, n_parts = looked_at[-1], connection.channels, connection.groups
        spans = connection.spans(looked_at, link.weight)
        above, under = (senders, receivers) if link.is_turned else (receivers, senders)
        above = slice(0, maps * int(np.prod([s.n_out for s in spans]))) if above is None else above
        under = slice(0, math.prod(looked_at)) if under is None else under
        below, theirs = _positions(under, channels, by_channels)
        here_at, mine = _positions(above, maps, by_channels)
        forward, back = _looks(spans, here_at, below)
        n_taps, heard = forward.taps.shape[1], channels // n_parts
        n_places = n_taps * heard  # places in the weights of a map
        part, tap = np.arange(n_parts)[:, None, None], np.arange(n_taps)[:, None] * heard
        n_here, n_maps = len(theirs) // n_parts, len(mine) // n_parts  # of a part
        maps_of = mine.start + part * n_maps
        place = (maps_of * n_places + tap + theirs.start + np.arange(n_here)).reshape(-1)
        to_maps = forward.runs(n_here, n_parts) | {"base": place, "step": n_places}
        first = ((maps_of + np.arange(n_maps)) * n_places + tap + theirs.start).reshape(-1)
        to_channels = back.runs(n_maps, n_parts, reverse=True) | {"base": first, "step": 1}
        taps = forward.taps[:, :, None]
        sources = np.where(
            taps < 0, -1, taps * (n_here * n_parts) + np.arange(n_here, dtype=np.int32)
        )
        gradients = {
            "src": sources.reshape(len(taps), n_taps * n_here),
            "which": forward.which,
            "first": forward.first * np.int32(n_here * n_parts),
            # parts of channels that are not there are none
            "n_parts": n_parts if len(below) else 1,
            "step": n_here,
        }
        return cls(to_maps, to_channels, gradients)


@dataclass(frozen=True)
class _Look:
    """At which positions taps look from others.

    taps : (lists, taps) int32, positions from the first that a list has, -1 for none. which, first:
    (positions,) int32, the list of each position, and the first that it looks at.
    """

    taps: Array
    which: Array
    first: Array

    @classmethod
    def of(cls, keys: Array, at: Callable[[Array, Array], Array], n_taps: int) -> _Look:
        """keys : (positions,) what is equal only where taps are. at : the position, -1 for none, at
        which taps look from positions.
        """
        _, example, which = np.unique(keys, return_index=True, return_inverse=True)
        seen = at(example[:, None], np.arange(n_taps)[None])
        least = np.where(seen < 0, np.iinfo(np.int64).max, seen).argmin(axis=1)
        begin = np.take_along_axis(seen, least[:, None], axis=1)
        taps = np.where(seen < 0, -1, seen - begin)
        first = np.maximum(at(np.arange(len(keys)), least[which]), 0)
        return cls(*(np.ascontiguousarray(a, np.int32) for a in (taps, which, first)))

    def by(self, inner: _Look, n: int) -> _Look:
        """The look of all positions (of self, of inner), at those, of which inner has n."""
        outer_taps, inner_taps = self.taps[:, None, :, None], inner.taps[None, :, None, :]
        taps = np.where(
            (outer_taps < 0) | (inner_taps < 0), np.int32(-1), outer_taps * n + inner_taps
        )
        return _Look(
            taps.reshape(taps.shape[0] * taps.shape[1], taps.shape[2] * taps.shape[3]),
            (self.which[:, None] * len(inner.taps) + inner.which).reshape(-1),
            (self.first[:, None] * n + inner.first).reshape(-1),
        )

    def runs(self, n: int, n_parts: int, reverse: bool = False) -> dict[str, Any]:
        """The lists, of n rows of each of n_parts parts of a position, as ``Tape.windows`` has
        them; with ``reverse`` from the last tap.
        """
        taps = self.taps[:, ::-1] if reverse else self.taps
        n_taps, part = taps.shape[1], np.arange(n_parts)
        of, tap = np.nonzero(taps >= 0)
        src = (taps[of, tap] * n_parts + part[:, None]).reshape(-1) * n
        place = n_taps - 1 - tap if reverse else tap
        row = (part[:, None] * n_taps + place).reshape(-1) * n
        of = (part[:, None] * len(taps) + of).reshape(-1)  # lists of a part after each other
        apart = n_parts if n == 1 else 1  # in a run: rows of a part, or one of each position
        goes_on = (np.diff(of) == 0) & (np.diff(src) == n * apart) & (np.diff(row) == n)
        begins = np.flatnonzero(np.concatenate([np.ones(min(len(of), 1), bool), ~goes_on]))
        which = self.which[:, None] + part * len(taps)
        return {
            "ptr": np.searchsorted(of[begins], np.arange(n_parts * len(taps) + 1)).astype(np.int64),
            "src": src[begins].astype(np.int32),
            "row": row[begins].astype(np.int32),
            "length": (np.diff(begins, append=len(of)) * n).astype(np.int32),
            "which": which.reshape(-1).astype(np.int32),
            "first": np.repeat(self.first * np.int32(n * n_parts), n_parts),
            "apart": apart,
        }


def _looks(spans: list[Span], above: Array, below: Array) -> tuple[_Look, _Look]:
    """From the positions above at those below, and back, in the task's own numbers."""
    if not len(above) or not len(below):  # a task's rows may hear nothing, or not be heard
        return _listed(np.full((len(above), math.prod(s.kernel for s in spans)), -1), below)
    row_above, row_below = (spans[1].n_out, spans[1].n) if len(spans) > 1 else (1, 1)
    mine, theirs = _rows(above, row_above), _rows(below, row_below)
    if mine is None or theirs is None:
        return _listed(Taps(spans).sources[above], below)
    before = spans[0].before + theirs.start - mine.start * spans[0].stride
    rows = spans[0]._replace(n=len(theirs), n_out=len(mine), before=before)
    forward, back = _forward(rows), _back(rows)
    if len(spans) > 1:
        forward, back = (
            forward.by(_forward(spans[1]), row_below),
            back.by(_back(spans[1]), row_above),
        )
    return forward, back


def _rows(positions: Array, n: int) -> range | None:
    """The rows, of n positions each, that these are if they follow each other and are whole."""
    first, last = int(positions[0]), int(positions[-1])
    if first % n or len(positions) % n or last - first + 1 != len(positions):
        return None
    return range(first // n, last // n + 1)


def _forward(span: Span) -> _Look:
    """From windows along a dimension at their sources."""
    first, end = span.inside
    return _Look.of(first * (span.kernel + 1) + end, span.source, span.kernel)


def _back(span: Span) -> _Look:
    """From sources along a dimension at the windows that have them."""
    at, n = np.arange(span.n) + span.before, span.kernel + 1
    low = np.clip((at - span.n_out * span.stride) // span.dilation + 1, 0, span.kernel)
    high = np.clip(at // span.dilation + 1, low, span.kernel)
    return _Look.of((at % span.stride * n + low) * n + high, span.window, span.kernel)


def _listed(sources: Array, below: Array) -> tuple[_Look, _Look]:
    """From windows with these sources (positions, taps) at what is there of them, and back."""
    number = np.full(max(sources.max(initial=-1), below.max(initial=-1)) + 2, -1)
    number[below] = np.arange(len(below))  # the last stands for no position
    sources = number[sources]
    windows = np.full((len(below), sources.shape[1]), -1)
    window, tap = np.nonzero(sources >= 0)
    windows[sources[window, tap], tap] = window

    def look(table: Array) -> _Look:
        begin = np.where(table < 0, table.max(initial=0), table).min(axis=1, keepdims=True)
        taps = np.where(table < 0, -1, table - begin)
        keys = np.unique(taps, axis=0, return_inverse=True)[1].reshape(-1)
        return _Look.of(keys, lambda position, tap: table[position, tap], table.shape[1])

    return look(sources), look(windows)


def _positions(places: Places, channels: int, by_channels: bool) -> tuple[Array, range]:
    """The positions of neurons, and the channels of each."""
    each = np.arange(places.start, places.stop) if isinstance(places, slice) else places
    if not len(each):
        return np.zeros(0, np.int64), range(0 if by_channels else channels)
    n = int(np.count_nonzero(each // channels == each[0] // channels))
    found, first = each[::n] // channels, int(each[0] % channels)
    assert len(found) * n == len(each), "as many channels of each position"
    return np.asarray(found), range(first, first + n)
