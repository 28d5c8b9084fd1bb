"""Connections to one part of the layer below: a network with several inputs makes one for each of
them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from horn.connections import Edges, Placed
from horn.connections.windows import Sizes
from horn.errors import ModelError


@dataclass(frozen=True)
class Part:
    """One synapse per neuron: the k-th receives neuron ``start`` + k; ``shape`` is the layer's.

    Raises ModelError if the layer below ends before.
    """

    start: int
    shape: Sizes

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))

    def at(self, below: Sizes, where: str) -> Placed:
        n = math.prod(self.shape)
        if self.start < 0 or self.start + n > math.prod(below):
            raise ModelError(
                f"{where}: neurons {self.start} to {self.start + n - 1} of a layer of "
                f"{math.prod(below)}; take a part of it"
            )
        places = np.arange(n + 1, dtype=np.int64)
        return Placed(self.shape, Edges(places, places[:-1] + self.start))
