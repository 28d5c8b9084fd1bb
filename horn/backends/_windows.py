"""The windows of a convolution as lists for the tape: who adds what to whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from horn.connections.convolution import Convolution
from horn.layers import Link
from horn.partition.share import Array, Places


@dataclass(frozen=True)
class WindowLists:
    """forward, backward : arguments of ``Tape.windows``. sources : (positions, places), the neuron
    below at each place of each window, -1 for none, int32.

    Positions and neurons below are numbered as the task has them.
    """

    forward: dict[str, Any]
    backward: dict[str, Any]
    sources: Array

    @classmethod
    def of(
        cls, link: Link, receivers: Places | None = None, senders: Places | None = None
    ) -> WindowLists:
        """receivers, senders : the neurons at both ends that a task has: whole positions, or, of
        receivers, some maps of all; by default all.
        """
        connection = link.connection
        assert isinstance(connection, Convolution) and connection.groups == 1
        channels, maps = link.source.shape[-1], connection.channels
        _, taps = connection.taps(link.source.shape, link.weight)  # (positions, taps)
        receivers = slice(0, len(taps) * maps) if receivers is None else receivers
        senders = slice(0, link.source.size) if senders is None else senders
        (below, _), (here_at, mine) = _positions(senders, channels), _positions(receivers, maps)
        number = np.full(link.source.n_positions + 1, -1)  # the last is that of no position
        number[below] = np.arange(len(below))
        taps = number[taps[here_at]]
        n_taps = taps.shape[1]
        n_places = n_taps * channels
        sources = taps[:, :, None] * channels + np.arange(channels)
        sources = np.where(taps[:, :, None] < 0, -1, sources).reshape(-1, n_places)
        here = sources >= 0
        forward = {
            "ptr": _ends(here.sum(axis=1)),
            "src": sources[here].astype(np.int32),
            "row": np.nonzero(here)[1].astype(np.int32),
            "base": np.arange(n_places) + mine.start * n_places,
            "step": n_places,
        }
        # Of each position below: the windows that it lies in, and where.
        window, tap = np.nonzero(taps >= 0)
        at = taps[window, tap]
        order = np.argsort(at, kind="stable")
        window, tap, at = window[order], tap[order], at[order]
        maps, every = len(mine), np.arange(len(mine))
        backward = {
            "ptr": _ends(np.bincount(at, minlength=len(below)) * maps),
            "src": (window[:, None] * maps + every).reshape(-1).astype(np.int32),
            "row": (tap[:, None] * maps + every).reshape(-1).astype(np.int32),
            "base": (
                (every + mine.start) * n_places + np.arange(n_taps)[:, None] * channels
            ).reshape(-1),
            "step": 1,
        }
        return cls(forward, backward, np.ascontiguousarray(sources, np.int32))


def _positions(places: Places, channels: int) -> tuple[Array, range]:
    """The positions of neurons, and which channels of each are there."""
    each = np.arange(places.start, places.stop) if isinstance(places, slice) else places
    if not len(each):
        return np.zeros(0, np.int64), range(0)
    n = int(np.count_nonzero(each // channels == each[0] // channels))
    found, first = each[::n] // channels, int(each[0] % channels)
    assert len(found) * n == len(each), "as many channels of each position"
    return np.asarray(found), range(first, first + n)


def _ends(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
