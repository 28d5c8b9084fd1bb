"""Connections: which neurons of a layer listen to which neurons of the layer below.

A connection answers one question: ``edges``, of layers whose sizes are given, or ``at``, which goes
by the shape of the layer below and says that of the layer that listens. Each file here with a
CONNECTION is one implementation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Index = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Edges:
    """Synapses by receiver (CSR): receiver o listens to ``indices[indptr[o]:indptr[o + 1]]``, each
    source at most once.

    Shapes: indptr (n_receivers + 1,), indices (n_edges,); a weight array of the connection is
    (n_edges,) in this order, or, where synapses share weights, of ``weight_shape``: then ``weight``
    (n_edges,) says which number of it, flat, each synapse has.
    """

    indptr: Index
    indices: Index
    weight: Index | None = None
    weight_shape: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Placed:
    """A connection between layers whose shapes are known; ``edges`` as of Connection.

    shape : of the layer that listens. kinds : if its neurons are the same at all positions, how
    many kinds there are; neuron o is of kind o % kinds.
    """

    shape: tuple[int, ...]
    edges: Edges | None
    kinds: int | None = None


class PlacedConnection(Protocol):
    """Who listens to whom, by the shape of the layer below."""

    def at(self, below: tuple[int, ...], where: str) -> Placed:
        """Raises ModelError, which begins with ``where``, if they do not fit."""
        ...


class Connection(Protocol):
    """Who listens to whom between two layers."""

    def edges(self, n_sources: int, n_receivers: int, rng: np.random.Generator) -> Edges | None:
        """The synapses, or None if every receiver listens to every source. Raises ModelError if
        they cannot fit.
        """
        ...
