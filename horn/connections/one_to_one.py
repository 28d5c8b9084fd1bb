"""One-to-one connections: each neuron receives the neuron at its own place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horn.connections import Edges, Placed
from horn.connections.windows import Sizes
from horn.mistakes import teaches


@teaches
@dataclass(frozen=True)
class OneToOne:
    """One synapse per neuron; both layers have the same shape."""

    def at(self, below: Sizes, where: str) -> Placed:
        """The synapses to a layer of shape ``below``; errors begin with ``where``."""
        n = int(np.prod(below))
        return Placed(below, Edges(np.arange(n + 1, dtype=np.int64), np.arange(n, dtype=np.int64)))
