"""The windows of a convolution as lists for the tape: who adds what to whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from horn.connections.convolution import Convolution
from horn.layers import Link

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class WindowLists:
    """forward, backward : arguments of ``Tape.windows``. sources : (positions, places), the neuron
    below at each place of each window, -1 for none, int32.
    """

    forward: dict[str, Any]
    backward: dict[str, Any]
    sources: Array

    @classmethod
    def of(cls, link: Link) -> WindowLists:
        connection = link.connection
        assert isinstance(connection, Convolution) and connection.groups == 1
        channels, maps = link.source.shape[-1], connection.channels
        _, taps = connection.taps(link.source.shape, link.weight)  # (positions, taps)
        n_taps = taps.shape[1]
        n_places = n_taps * channels
        sources = taps[:, :, None] * channels + np.arange(channels)
        sources = np.where(taps[:, :, None] < 0, -1, sources).reshape(len(taps), -1)
        here = sources >= 0
        forward = {
            "ptr": _ends(here.sum(axis=1)),
            "src": sources[here].astype(np.int32),
            "row": np.nonzero(here)[1].astype(np.int32),
            "base": np.arange(n_places),
            "step": n_places,
        }
        # Of each position below: the windows that it lies in, and where.
        window, tap = np.nonzero(taps >= 0)
        below = taps[window, tap]
        order = np.argsort(below, kind="stable")
        window, tap, below = window[order], tap[order], below[order]
        every = np.arange(maps)
        backward = {
            "ptr": _ends(np.bincount(below, minlength=link.source.size // channels) * maps),
            "src": (window[:, None] * maps + every).reshape(-1).astype(np.int32),
            "row": (tap[:, None] * maps + every).reshape(-1).astype(np.int32),
            "base": (every * n_places + np.arange(n_taps)[:, None] * channels).reshape(-1),
            "step": 1,
        }
        return cls(forward, backward, np.ascontiguousarray(sources, np.int32))


def _ends(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
