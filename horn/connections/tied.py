"""Connections that share the weights of another layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from horn.connections import Placed
from horn.errors import ModelError
from horn.mistakes import teaches


@teaches
@dataclass(frozen=True, eq=False)
class Tied:
    """A connection with another layer's weights: one array, which both layers train.

    layer : the other layer. transposed : whether the direction is reversed, as in a decoder; by
    default found by the sizes, where they differ. input : the name of the layer's input, if it has
    several. The receiving layer has the shape of the other connection's source if reversed, else of
    its receiver.

    Raises ModelError if the sizes do not fit, or the layer has no weights.
    """

    layer: Any
    transposed: bool | None = None
    input: str = ""

    def resolved(self, size: int, where: str) -> Tied:
        """The connection with its direction decided, from a layer below of this size."""
        if not getattr(self.layer, "links", ()):
            is_name = isinstance(self.layer, str)
            what = "is a name, maybe of a layer that comes later" if is_name else "has no weights"
            raise ModelError(
                f"{where}: Tied takes an earlier layer with weights, as net.layer returned it; "
                f"{self.layer!r} {what}: of two layers the later is tied to the earlier"
            )
        called = [link.input or link.source.name for link in self.layer.links]
        if self.input not in called and (self.input or len(called) > 1):
            raise ModelError(
                f"{where}: Tied({self.layer.name}): which of its inputs? say "
                f"{' or '.join(f'input={name!r}' for name in called)}"
            )
        tied, name, link = self.owner, self.layer.name, self.link
        if tied is not None:
            raise ModelError(
                f"{where}: the weights of {name} are those of {tied.layer.name}; write "
                f"Tied({tied.layer.name})"
            )
        if not link.weights:
            raise ModelError(
                f"{where}: Tied({name}): {self.layer.neuron.__name__} reads no weights, so there "
                f"are none to share; tie it to another layer"
            )
        ends, begins = self.layer.size, link.source.size
        fits = {way for way, n in ((False, begins), (True, ends)) if n == size}
        if self.transposed is not None:
            fits &= {self.transposed}
        if not fits:
            way = "" if self.transposed is None else f", transposed={self.transposed}"
            raise ModelError(
                f"{where}: Tied({name}{way}): its weights are between {begins} and {ends} neurons, "
                f"but the layer below has {size}; tie it to a layer of these sizes"
            )
        if len(fits) > 1:
            raise ModelError(
                f"{where}: Tied({name}): its weights are between {begins} and {ends} neurons, so "
                f"they fit both ways; say transposed=True (the other way) or transposed=False"
            )
        return replace(self, transposed=fits.pop())

    @property
    def position(self) -> int:
        """The position of the tied link among the layer's links."""
        called = [link.input or link.source.name for link in self.layer.links]
        return called.index(self.input) if self.input else 0

    @property
    def link(self) -> Any:
        """The link whose weights the connection shares."""
        return self.layer.links[self.position]

    @property
    def owner(self) -> Tied | None:
        """The tie of the shared link itself, or None."""
        connection = self.link.connection
        return connection if isinstance(connection, Tied) else None

    def at(self, below: tuple[int, ...], where: str) -> Placed:
        """The connection to a layer ``below``. Raises ModelError, which begins with ``where``, if
        they do not fit.
        """
        way, link = self.resolved(math.prod(below), where).transposed, self.link
        shape = link.source.shape if way else self.layer.shape
        kinds = self.layer.kinds
        if way:
            kinds = shape[-1] if link.is_shared and len(shape) > 1 else None
        if link.edges is None:
            return Placed(shape, None, kinds)
        if not way:
            return Placed(shape, link.edges.numbered, kinds)
        counts = np.bincount(link.edges.indices, minlength=link.source.size)
        return Placed(shape, link.edges.turned(counts), kinds)


def one_rule(array: str) -> str:
    """The complaint where some links of an array push its changes, and others derive a gradient."""
    return (
        f"{array} is tied: some of its connections push its changes (horn.Direct) and others "
        "derive gradients; let all push, or none, or take another optimizer, as horn.SGD"
    )
