"""Windows whose weights are shared by all positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horn.connections import Placed
from horn.connections.windows import Padding, Sizes, Windows, check_synapses, placed, whole
from horn.errors import ModelError
from horn.mistakes import teaches


@dataclass(frozen=True)
class SharedWindows(Windows):
    """Windows of ``channels`` maps with the same weights at all positions."""

    channels: int
    kernel: int | Sizes
    stride: int | Sizes = 1
    padding: Padding = "valid"
    dilation: int | Sizes = 1
    groups: int = 1

    def __post_init__(self) -> None:
        whole(self, "channels")
        whole(self, "groups")
        super().__post_init__()

    def check_groups(self, below: int, where: str) -> None:
        """Check that groups deal out all channels. Raises ModelError."""
        if below % self.groups or self.channels % self.groups:
            raise ModelError(
                f"{where}: {type(self).__name__}: groups={self.groups} must divide the {below} "
                f"channels below and the {self.channels} maps"
            )


@teaches
@dataclass(frozen=True)
class Convolution(SharedWindows):
    """``channels`` maps: each has a neuron at every position that receives a window, with the same
    weights everywhere. Bias and Parameters are one per map, too.

    kernel, stride, dilation : a number, or one per dimension of the layer below, whose shape is
    (n, channels) or (height, width, channels). padding : "valid", "same", or the number of
    positions outside at each end, which send no messages; per dimension a number, or a pair
    (before, after): ((2, 0),) along a signal, ((0, 1), (0, 1)) of a picture. groups : the channels
    below are split into so many groups, and each map receives one of them.

    The weights are an array (channels, *kernel, channels below / groups).
    """

    def at(self, below: Sizes, where: str) -> Placed:
        """The synapses to a layer of shape ``below``; errors begin with ``where``."""
        taps = self.taps(below, where)
        n, maps, groups = below[-1], self.channels, self.groups
        self.check_groups(n, where)
        each = n // groups
        check_synapses(taps, maps * each, where)
        first = np.arange(maps) // (maps // groups) * each
        kernel = self._each("kernel", len(taps.space))
        heard = first[:, None] + np.arange(each)
        return placed(taps, heard, n, where, (maps, *kernel, each))
