"""The windows of a convolution as lists for the tape: the terms of each sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from horn.connections.convolution import Convolution
from horn.layers import Link
from horn.partition.share import Array, Places


@dataclass(frozen=True)
class WindowLists:
    """The index lists of a convolution. to_maps, to_channels : arguments of ``Tape.windows``, from
    the channels below a convolution to its maps, and back. sources : (positions, places), the
    neuron below at each place of each window, -1 for none, int32.

    Positions, maps and channels have the task's own numbers.
    """

    to_maps: dict[str, Any]
    to_channels: dict[str, Any]
    sources: Array

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
        owner = link.owner
        connection, source = owner.connection, owner.source
        assert isinstance(connection, Convolution) and connection.groups == 1
        channels, maps = source.shape[-1], connection.channels
        _, taps = connection.taps(source.shape, owner.weight)  # (positions, taps)
        above, under = (senders, receivers) if link.is_turned else (receivers, senders)
        above = slice(0, len(taps) * maps) if above is None else above
        under = slice(0, source.size) if under is None else under
        below, theirs = _positions(under, channels, by_channels)
        here_at, mine = _positions(above, maps, by_channels)
        number = np.full(source.n_positions + 1, -1)  # the last stands for no position
        number[below] = np.arange(len(below))
        taps = number[taps[here_at]]
        n_taps, n_here = taps.shape[1], len(theirs)
        sources = taps[:, :, None] * n_here + np.arange(n_here)
        sources = np.where(taps[:, :, None] < 0, -1, sources).reshape(len(taps), n_taps * n_here)
        here = sources >= 0
        n_places = n_taps * channels  # places in the weights of a map
        place = (np.arange(n_taps)[:, None] * channels + theirs.start + np.arange(n_here)).ravel()
        to_maps = {
            "ptr": _ends(here.sum(axis=1)),
            "src": sources[here].astype(np.int32),
            "row": np.nonzero(here)[1].astype(np.int32),
            "base": place + mine.start * n_places,
            "step": n_places,
        }
        # For each position below: the windows that contain it, and its tap in each.
        window, tap = np.nonzero(taps >= 0)
        at = taps[window, tap]
        order = np.argsort(at, kind="stable")
        window, tap, at = window[order], tap[order], at[order]
        maps, every = len(mine), np.arange(len(mine))
        first = np.arange(n_taps)[:, None] * channels + theirs.start
        to_channels = {
            "ptr": _ends(np.bincount(at, minlength=len(below)) * maps),
            "src": (window[:, None] * maps + every).reshape(-1).astype(np.int32),
            "row": (tap[:, None] * maps + every).reshape(-1).astype(np.int32),
            "base": ((every + mine.start) * n_places + first).reshape(-1),
            "step": 1,
        }
        return cls(to_maps, to_channels, np.ascontiguousarray(sources, np.int32))


def _positions(places: Places, channels: int, by_channels: bool) -> tuple[Array, range]:
    """The positions of neurons, and the channels of each."""
    each = np.arange(places.start, places.stop) if isinstance(places, slice) else places
    if not len(each):
        return np.zeros(0, np.int64), range(0 if by_channels else channels)
    n = int(np.count_nonzero(each // channels == each[0] // channels))
    found, first = each[::n] // channels, int(each[0] % channels)
    assert len(found) * n == len(each), "as many channels of each position"
    return np.asarray(found), range(first, first + n)


def _ends(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
