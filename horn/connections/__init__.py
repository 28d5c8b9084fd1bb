"""Connections: the synapses between the neurons of two layers.

A connection has one method: ``edges``, for layers whose sizes are given, or ``at``, which computes
the receiving layer's shape from that of the layer below. Any object with one of them connects:
a user's own as those of the files here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

import numpy as np

Index = np.ndarray[Any, np.dtype[np.int64]]


class Edges:
    """Synapses by receiver (CSR): receiver o has the sources ``indices[indptr[o]:indptr[o + 1]]``,
    each at most once.

    Shapes: indptr (n_receivers + 1,), indices (n,); a weight array of the connection is (n,) in
    this order, or, where synapses share weights, of ``weight_shape``: then ``weight`` (n,) is the
    index of each synapse's weight in that array, flat.

    ``indices`` and ``weight`` may be functions that make them when they are asked for: those of
    windows over a large picture take gigabytes, and what runs along windows needs neither.
    """

    def __init__(
        self,
        indptr: Index,
        indices: Index | Callable[[], Index],
        weight: Index | Callable[[], Index] | None = None,
        weight_shape: tuple[int, ...] | None = None,
    ) -> None:
        self.indptr, self.weight_shape = indptr, weight_shape
        self._indices, self._weight = indices, weight

    @property
    def n(self) -> int:
        """The number of synapses."""
        return int(self.indptr[-1])

    @property
    def is_shared(self) -> bool:
        """Whether synapses share weights."""
        return self._weight is not None

    @property
    def has_list(self) -> bool:
        """Whether ``indices`` are there, not made when they are asked for."""
        return not callable(self._indices)

    @property
    def numbered(self) -> Edges:
        """The same synapses with the index of each one's weight."""
        if self.is_shared:
            return self
        return Edges(self.indptr, self._indices, lambda: np.arange(self.n), (self.n,))

    def turned(self, counts: Index) -> Edges:
        """The same synapses the other way round, with the index of each one's weight. counts :
        (n_sources,) the number of synapses of each source, a receiver now.
        """
        own = self.numbered

        @cache
        def found() -> tuple[Index, Index]:
            receivers = np.repeat(np.arange(len(own.indptr) - 1), np.diff(own.indptr))
            order = np.lexsort((receivers, own.indices))
            weight = own.weight
            assert weight is not None
            return receivers[order], weight[order]

        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Edges(indptr, lambda: found()[0], lambda: found()[1], own.weight_shape)

    @cached_property
    def indices(self) -> Index:
        return self._indices() if callable(self._indices) else self._indices

    @cached_property
    def weight(self) -> Index | None:
        return self._weight() if callable(self._weight) else self._weight


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
