"""Windows within a channel: pooling, normalisation over neighbouring channels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horn.connections import Placed
from horn.connections.windows import Padding, Sizes, Windows, placed, whole
from horn.errors import ModelError
from horn.mistakes import teaches


@teaches
@dataclass(frozen=True)
class Window(Windows):
    """Each neuron receives a window of its own channel of the layer below, or of that and its
    neighbours: ``channels`` in all, an odd number.

    kernel, stride, padding, dilation : as for ``horn.Convolution``. There are as many channels as
    below, and nothing is shared.
    """

    kernel: int | Sizes
    stride: int | Sizes = 1
    padding: Padding = "valid"
    dilation: int | Sizes = 1
    channels: int = 1

    def __post_init__(self) -> None:
        whole(self, "channels")
        if self.channels % 2 == 0:
            raise ModelError(
                f"Window: channels must be odd, the neuron's own in the middle; got {self.channels}"
            )
        super().__post_init__()

    def at(self, below: Sizes, where: str) -> Placed:
        """The synapses to a layer of shape ``below``; errors begin with ``where``."""
        taps = self.taps(below, where)
        n = below[-1]
        reach = min(self.channels // 2, n - 1)  # beyond there is none
        near = np.arange(n)[:, None] + np.arange(-reach, reach + 1)
        near = np.where((near >= 0) & (near < n), near, -1)
        return placed(taps, near, n, where)
