"""Convolutions that go from few positions to more, as in a decoder."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from horn.connections import Placed
from horn.connections.convolution import Convolution, SharedWindows
from horn.connections.windows import Sizes, at_ends, check_positions
from horn.errors import ModelError
from horn.mistakes import teaches


@teaches
@dataclass(frozen=True)
class TransposedConvolution(SharedWindows):
    """``channels`` maps, larger by ``stride`` than the layer below: each neuron of that sends to a
    window of every map, with the same weights everywhere. A neuron receives what the windows send
    in which it lies. Bias and Parameters are one per map.

    It is a convolution the other way round (Dumoulin & Visin, "A guide to convolution arithmetic
    for deep learning", 2016, chapter 4): the one with these arguments leads from its maps to the
    layer below. kernel, stride, dilation, groups : as for ``horn.Convolution``. padding : "valid"
    ((n - 1) * stride + reach positions from n, where reach = (kernel - 1) * dilation + 1), "same"
    (n * stride), or how much of "valid" is left out at each end: as for ``horn.Convolution`` a
    number, or per dimension one or a pair (before, after).

    The weights are an array (channels below, *kernel, channels / groups).
    """

    def back(self, below: Sizes) -> Convolution:
        """The convolution from the maps to a layer of shape ``below``: it owns the windows."""
        return Convolution(
            below[-1], self.kernel, self.stride, self.padding, self.dilation, self.groups
        )

    def shape(self, below: Sizes, where: str) -> Sizes:
        """The shape of the maps over a layer of shape ``below``. Raises ModelError, which begins
        with ``where``, if there is none.
        """
        space, kernel, stride, dilation = self.sizes(below, where)
        found = []
        for axis, (n, k, step, apart, (before, after)) in enumerate(
            zip(space, kernel, stride, dilation, self.outside(len(space)), strict=True)
        ):
            whole_size = (n - 1) * step + (k - 1) * apart + 1
            size = n * step if self.padding == "same" else whole_size - before - after
            if size < 1:
                raise ModelError(
                    f"{where}: horn.TransposedConvolution makes {whole_size} positions of the {n} "
                    f"below (dimension {axis} of {below}), and padding={self.padding} leaves out "
                    f"{at_ends(before, after)}; what leaves one is a padding of at most "
                    f"{(whole_size - 1) // 2}"
                )
            found.append(size)
            check_positions(math.prod(found), 1, where)
        return (*found, self.channels)

    def at(self, below: Sizes, where: str) -> Placed:
        """The synapses from a layer of shape ``below``; errors begin with ``where``."""
        shape, maps = self.shape(below, where), below[-1]
        self.check_groups(maps, where)
        back = self.back(below)
        edges = back.at(shape, where).edges
        assert edges is not None
        heard = np.repeat(back.taps(shape, where).lookers * (maps // self.groups), self.channels)
        return Placed(shape, edges.turned(heard), self.channels)
