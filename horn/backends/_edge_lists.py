"""The synapses of a sparse link as lists for the tape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horn.backends import Array
from horn.partition.share import LocalEdges


@dataclass(frozen=True)
class EdgeLists:
    """A sparse link's synapses, those of this task, as index lists, seen from the receivers and
    from the sources that it has.
    """

    indptr: Array  # (n_receivers + 1,) int64
    sources: Array  # (n_edges,) int32, in edge order
    receivers: Array  # (n_edges,) int32
    back_indptr: Array  # (n_sources + 1,)
    back_edges: Array  # edge numbers by source
    back_receivers: Array

    @classmethod
    def of(cls, edges: LocalEdges) -> EdgeLists:
        sources = np.ascontiguousarray(edges.sources, np.int32)
        counts = np.diff(edges.indptr)
        receivers = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        by_source = np.argsort(sources, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(sources, minlength=edges.n_sources))
        return cls(
            np.ascontiguousarray(edges.indptr, np.int64),
            sources,
            receivers,
            np.concatenate([[0], ends]).astype(np.int64),
            by_source,
            np.ascontiguousarray(receivers[by_source]),
        )
