"""Connections: the synapses between the neurons of two layers.

A connection has one method: ``edges``, for layers whose sizes are given, or ``at``, which computes
the receiving layer's shape from that of the layer below. Each file here with a CONNECTION is one
implementation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Index = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Edges:
    """Synapses by receiver (CSR): receiver o has the sources ``indices[indptr[o]:indptr[o + 1]]``,
    each at most once.

    Shapes: indptr (n_receivers + 1,), indices (n_edges,); a weight array of the connection is
    (n_edges,) in this order, or, where synapses share weights, of ``weight_shape``: then ``weight``
    (n_edges,) is the index of each synapse's weight in that array, flat.
    """

    indptr: Index
    indices: Index
    weight: Index | None = None
    weight_shape: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Placed:
    """A connection between layers whose shapes are known; ``edges`` as of Connection.

    shape : of the receiving layer. kinds : if its neurons are the same at all positions, the number
    of kinds; neuron o is of kind o % kinds.
    """

    shape: tuple[int, ...]
    edges: Edges | None
    kinds: int | None = None


class PlacedConnection(Protocol):
    """A connection that follows from the shape of the layer below."""

    def at(self, below: tuple[int, ...], where: str) -> Placed:
        """The connection to a layer ``below``. Raises ModelError, which begins with ``where``, if
        they do not fit.
        """
        ...


class Connection(Protocol):
    """A connection between two layers of given sizes."""

    def edges(self, n_sources: int, n_receivers: int, rng: np.random.Generator) -> Edges | None:
        """The synapses, or None if every receiver has every source. Raises ModelError if they
        cannot fit.
        """
        ...
