"""All-to-all connections: every neuron receives every neuron below."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horn.connections import Edges
from horn.mistakes import teaches


@teaches
@dataclass(frozen=True)
class Dense:
    """All to all; weights are (fan_out, fan_in)."""

    def edges(self, n_sources: int, n_receivers: int, rng: np.random.Generator) -> Edges | None:
        """None: every receiver has every source."""
        return None
