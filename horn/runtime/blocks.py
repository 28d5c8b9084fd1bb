"""The blocks of a program's moves: senders, receivers and array regions.

One rule gives every block: the places that the source has and the destination wants, axis by axis.
Where each neuron's values for the batch lie together, blocks lie so, too: (neurons, rows) instead
of (rows, neurons), so that no copy has to turn them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from horn.partition.share import Array, Places, Share, count, tight
from horn.program import Move, Program, base
from horn.transport import Channel

Index = tuple[Any, ...]  # for each axis a slice, or int64 places


@dataclass(frozen=True)
class Block:
    """Part of a move: where it lies in the arrays of source and destination.

    part : its channel, None where source and destination are one task.
    """

    src: int
    taken: Index
    put: Index
    shape: tuple[int, ...]
    part: int | None


class _Met(NamedTuple):
    """The places that a source and some readers have in common. key : of ``taken``."""

    who: list[int]
    taken: Index
    put: Index
    shape: tuple[int, ...]
    key: tuple[Any, ...]


def blocks_of(
    move: Move,
    program: Program,
    shares: Mapping[int, Share],
    batch_size: int,
    dtype: str,
    first_part: int = 0,
    layout: str = "batch",
    rank: int | None = None,
) -> tuple[list[Channel], dict[int, list[Block]]]:
    """Make the channels of a move, and for every destination its blocks in task order; with a rank
    only those that it sends or wants. A block that several ranks want is one channel.

    shares : of all participants, by rank. dtype : as in a Channel.
    """
    have = program.buffers[move.array].axes
    want = program.buffers[move.out].axes
    channels: list[Channel] = []
    wanted: dict[int, list[Block]] = {rank: [] for rank in shares}
    wants = _by_places(shares, want, batch_size)
    met = _met(_by_places(shares, have, batch_size), wants)
    for source in shares:
        sent: dict[tuple[Any, ...], int] = {}
        readers: dict[int, list[int]] = {}
        shapes: dict[int, tuple[int, ...]] = {}
        for who, taken, put, shape, key in met[source]:
            others = [reader for reader in who if reader != source]
            part = None
            if others:
                part = sent.setdefault(key, first_part + len(channels) + len(sent))
                readers.setdefault(part, []).extend(others)
                shapes[part] = shape
            for reader in who if rank in (None, source) else (rank,) if rank in who else ():
                at = None if reader == source else part
                wanted[reader].append(Block(source, taken, put, shape, at))
        for part, tasks in readers.items():
            label = f"{move.array} to {move.out}"
            turned = is_turned(have, layout)
            shape = shapes[part][::-1] if turned else shapes[part]
            order = "turned" if turned else ""  # another BLAS may differ: then agree fails
            to = tuple(sorted(tasks))
            channels.append(Channel(part, source, to, dtype, shape, label, order))
    return channels, wanted


def _by_places(
    shares: Mapping[int, Share], axes: Sequence[str], batch_size: int
) -> list[tuple[Index, list[int]]]:
    """The places that shares have along axes, each with the ranks that have just these."""
    found: dict[Any, tuple[Index, list[int]]] = {}
    for rank, share in shares.items():
        places, known = _of_axes(share, axes, batch_size)
        found.setdefault(known, (places, []))[1].append(rank)
    return list(found.values())


def _met(
    haves: Sequence[tuple[Index, list[int]]], wants: Sequence[tuple[Index, list[int]]]
) -> dict[int, list[_Met]]:
    """By source, what it has in common with readers, where that is anything. A group of n has n
    squared pairs: those of the same places are met once, and most of the others, whose ranges lie
    apart, are passed over at once.
    """
    had, wanted = _bounds(haves)[:, None], _bounds(wants)[None]
    near = np.all((had[..., 0] < wanted[..., 1]) & (wanted[..., 0] < had[..., 1]), axis=-1)
    found: dict[int, list[_Met]] = {}
    for (places, sources), of_source in zip(haves, near, strict=True):
        met = []
        for theirs, who in itertools.compress(wants, of_source):
            both = [_intersection(a, b) for a, b in zip(places, theirs, strict=True)]
            taken, put = tuple(m[0] for m in both), tuple(m[1] for m in both)
            shape = tuple(map(count, taken))
            if 0 not in shape:
                met.append(_Met(who, taken, put, shape, tuple(map(_key, taken))))
        found |= dict.fromkeys(sources, met)
    return found


def _bounds(some: Sequence[tuple[Index, list[int]]]) -> Array:
    """(places, axes, 2) the first place along each axis, and the one after the last."""
    found = np.zeros((len(some), len(some[0][0]), 2), np.int64)
    for bounds, (index, _) in zip(found, some, strict=True):
        for ends, places in zip(bounds, index, strict=True):
            if isinstance(places, slice):
                ends[:] = places.start, places.stop
            elif len(places):
                ends[:] = places[0], places[-1] + 1
    return found


def is_turned(axes: tuple[str, ...], layout: str) -> bool:
    """Whether blocks of a buffer have its axes the other way round."""
    return layout == "neuron" and len(axes) == 2 and base(axes[0]) == "b"


def _key(places: Places) -> Any:
    return (places.start, places.stop) if isinstance(places, slice) else places.tobytes()


def _of_axes(share: Share, axes: Sequence[str], batch_size: int) -> tuple[Index, Any]:
    """The places of a share along axes, and a hashable key of them."""
    places = tuple(
        share.rows(axis, batch_size, batch_size) if base(axis) == "b" else share.places(axis)
        for axis in axes
    )
    return places, tuple(map(_key, places))


def _intersection(a: Places, b: Places) -> tuple[Places, Places]:
    """The intersection of two sets of places, as places within ``a`` and as places within ``b``."""
    if isinstance(a, slice) and isinstance(b, slice):
        start = max(a.start, b.start)
        stop = max(min(a.stop, b.stop), start)
        return slice(start - a.start, stop - a.start), slice(start - b.start, stop - b.start)
    if isinstance(a, slice):
        return _intersection(b, a)[::-1]
    if isinstance(b, slice):
        first, past = np.searchsorted(a, (b.start, b.stop))
        return slice(int(first), int(past)), tight(a[first:past] - b.start)
    at = np.searchsorted(b, a)
    is_there = np.append(b, -1)[at] == a  # beyond the end of b there is nothing
    return tight(np.flatnonzero(is_there)), tight(at[is_there])
