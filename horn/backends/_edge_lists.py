"""The synapses of a sparse link as lists for the tape."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np

from horn.backends import Array
from horn.errors import ModelError
from horn.partition.share import LocalEdges

MOST_EDGES = 2**31 - 1  # they are numbered in 32 bits


def check_edges(n: int) -> None:
    """Check that the tape can number n synapses."""
    if n > MOST_EDGES:
        raise ModelError(
            f"a sparse connection has {n:,} synapses on one task, of which "
            f'backend="kernels" numbers {MOST_EDGES:,}: divide the layer among more tasks, or '
            "connect it in several layers"
        )


@dataclass(frozen=True)
class EdgeLists:
    """This task's synapses of a sparse link as index lists, by receiver and by source."""

    indptr: Array  # (n_receivers + 1,) int64
    sources: Array  # (n_edges,) int32, in edge order
    receivers: Array  # (n_edges,) int32
    back_indptr: Array  # (n_sources + 1,)
    back_edges: Array  # edge numbers by source
    back_receivers: Array

    @classmethod
    def of(cls, edges: LocalEdges) -> EdgeLists:
        """The lists of a link's synapses; made once for all programs."""
        found = _MADE.get(edges)
        if found is None:
            found = _MADE[edges] = cls._of(edges)
        return found

    @classmethod
    def _of(cls, edges: LocalEdges) -> EdgeLists:
        check_edges(len(edges.sources))
        sources = np.ascontiguousarray(edges.sources, np.int32)
        counts = np.diff(edges.indptr)
        receivers = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        by_source = _order(sources)
        ends = np.cumsum(np.bincount(sources, minlength=edges.n_sources))
        return cls(
            np.ascontiguousarray(edges.indptr, np.int64),
            sources,
            receivers,
            np.concatenate([[0], ends]).astype(np.int64),
            by_source,
            np.ascontiguousarray(receivers[by_source]),
        )


_MADE: weakref.WeakKeyDictionary[LocalEdges, EdgeLists] = weakref.WeakKeyDictionary()


def _order(numbers: Array) -> Array:
    """A stable argsort of numbers from 0: NumPy sorts 16 bits by radix; of more bits it sorts
    numbers, each with its place below it, several times as fast as places.
    """
    if numbers.max(initial=0) < 1 << 16:
        return np.argsort(numbers.astype(np.uint16), kind="stable").astype(np.int32)
    keys = numbers.astype(np.int64) << 32
    keys |= np.arange(len(keys))
    keys.sort()
    keys &= (1 << 32) - 1
    return keys.astype(np.int32)
