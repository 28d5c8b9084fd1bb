"""Windows with separate weights at each position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horn.connections import Placed
from horn.connections.windows import Sizes, Windows, channels_of, placed, whole
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
    padding: str | int | Sizes = "valid"
    dilation: int | Sizes = 1

    def __post_init__(self) -> None:
        whole(self, "channels")
        super().__post_init__()

    def at(self, below: Sizes, where: str) -> Placed:
        space, sources = self.taps(below, where)
        all_channels = np.arange(below[-1])[None, :]
        found = channels_of(sources, all_channels, below[-1])
        return placed(space, found, self.channels, where)


CONNECTION = Local
