"""The neurons of each sub-model. Pure: the same in every task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn import random
from horn.backends import Array
from horn.layers import Layer, Link
from horn.network import Network
from horn.topology import share

# Draws of members have keys of their own, far from those of layers.
MEMBERS = 1 << 20


@dataclass(frozen=True)
class SubModelRules:
    """The rules that draw sub-models. n : their number; the rest as in ``ParallelDropout``."""

    n: int
    keep: float | None
    redraw: int
    dropconnect: float

    def sizes(self, size: int) -> list[int]:
        if self.keep is not None:
            return [round(self.keep * size)] * self.n
        shares = (share(size, k, self.n) for k in range(self.n))
        return [end - first for first, end in shares]

    def members(self, network: Network, layer: Layer, draw: int) -> list[Array]:
        """The neurons of a layer that each sub-model has in a draw, int32 and ascending."""
        if layer.kind != "hidden":
            return [np.arange(layer.size, dtype=np.int32)] * self.n
        sizes = self.sizes(layer.size)
        if self.keep is None:
            (order,) = _orders(network.seed, layer, [random.SHARED], draw)
            chosen: Sequence[Array] = np.split(order, np.cumsum(sizes)[:-1])
        else:
            orders = _orders(network.seed, layer, range(self.n), draw)
            chosen = [order[:n] for order, n in zip(orders, sizes, strict=True)]
        return [np.sort(some).astype(np.int32) for some in chosen]

    def rate(self, link: Link) -> float:
        """The probability that a connection of a link takes part, as far as its source decides: 1/K
        or ``keep``, times ``dropconnect``. Given that the receiver takes part, too, it is more
        where K divides neither layer, as the largest sub-model has most of both: of two layers
        of 3 in 2 sub-models 5/9, not 1/2.
        """
        source = link.source
        if source.kind != "hidden":
            return self.dropconnect
        if self.keep is None:
            return self.dropconnect / self.n
        return self.dropconnect * round(self.keep * source.size) / source.size

    def rates(self, network: Network) -> dict[str, float]:
        """The factor that scales the weights of each array for inference: ``rate`` of its link."""
        return {
            array: self.rate(link)
            for layer in network.layers[1:]
            for link in layer.links
            for array in link.weights.values()
        }


def _orders(seed: int, layer: Layer, samples: Any, draw: int) -> Array:
    """Draw an order of a layer's neurons for each sample number: (len(samples), n)."""
    key = random.key(seed, MEMBERS + layer.index)
    numbers = random.uniform(key, 0, np.arange(layer.size), samples, draw)
    found: Array = numbers.argsort(axis=1, kind="stable")
    return found
