"""Connections: which neurons of a layer listen to which neurons of the layer below.

A connection answers one question, ``edges``. Each file here is one implementation; its last line
names the class.
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
    (n_edges,) in this order.
    """

    indptr: Index
    indices: Index


class Connection(Protocol):
    """Who listens to whom between two layers."""

    def edges(self, n_sources: int, n_receivers: int, rng: np.random.Generator) -> Edges | None:
        """The synapses, or None if every receiver listens to every source. Raises ModelError if
        they cannot fit.
        """
        ...
