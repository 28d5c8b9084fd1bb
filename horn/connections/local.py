"""Windows with separate weights at each position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horn.connections import Placed
from horn.connections.windows import Padding, Sizes, Windows, check_synapses, placed, whole
from horn.mistakes import teaches


@teaches
@dataclass(frozen=True)
class Local(Windows):
    """``channels`` neurons at each position receive all channels of a window; nothing is shared.

    kernel, stride, padding, dilation : as for ``horn.Convolution``.
    """

    channels: int
    kernel: int | Sizes
    stride: int | Sizes = 1
    padding: Padding = "valid"
    dilation: int | Sizes = 1

    def __post_init__(self) -> None:
        whole(self, "channels")
        super().__post_init__()

    def at(self, below: Sizes, where: str) -> Placed:
        """The synapses to a layer of shape ``below``; errors begin with ``where``."""
        taps = self.taps(below, where)
        check_synapses(taps, self.channels * below[-1], where)
        heard = np.broadcast_to(np.arange(below[-1]), (self.channels, below[-1]))
        return placed(taps, heard, below[-1], where)
