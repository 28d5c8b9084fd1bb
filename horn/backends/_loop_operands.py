"""The operands of loops, as a tape takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from horn import random
from horn._kernels.engine import Dim, Drawn, Iota, Ragged, View
from horn.backends import Array
from horn.backends._edge_lists import EdgeLists
from horn.backends._tape_memory import TapeMemory
from horn.ir import Node
from horn.network import Network
from horn.program import (
    Frame,
    Loop,
    Output,
    Program,
    layer_of,
    letter_axes,
    out_letters,
)


class Writer(Protocol):
    """What loops are written from: a ``TapeWriter``, at this statement."""

    program: Program
    network: Network
    memory: TapeMemory
    arrays: dict[str, Array]
    taken: dict[str, str]
    alive: dict[int, tuple[Array, Dim]]
    iteration: Dim
    once: Dim

    def extents(self, frame: Frame) -> dict[str, int | Dim]: ...

    def live_view(self, name: str, names: Sequence[str]) -> View: ...

    def sample_numbers(self, axis: str, per: str) -> Array: ...


class LoopOperands:
    """The operands of one loop: along the frame's letters, or on the edges of a sparse link.

    On edges all are taken along one axis "e" of all edges; a reduction over the sources of a
    receiver (i) or the receivers of a source (o) makes that axis ragged.
    """

    def __init__(
        self, writer: Writer, s: Loop, domain: str, edges: EdgeLists | None, axis: str
    ) -> None:
        self.writer, self.s, self.edges, self.axis = writer, s, edges, axis
        extent = writer.extents(s.frame)
        self.axes: dict[str, Any]
        self.folded = axis
        if edges is None:
            self.axes = {letter: extent[letter] for letter in domain or "1"}
            return
        self.axes = {"e": len(edges.sources)}
        if axis == "i":
            self.axes = {"o": extent["o"], "e": Ragged(edges.indptr, "o")}
        elif axis == "o":
            self.axes = {"i": extent["i"], "e": Ragged(edges.back_indptr, "i")}
        if "b" in domain:
            self.axes["b"] = extent["b"]
        if axis in ("o", "i"):
            self.folded = "e"

    def view(self, name: str, letters: str) -> View:
        """A view of a loaded buffer along letters."""
        writer, edges = self.writer, self.edges
        array = writer.arrays[name]
        if not letters:
            return View(array.reshape(()), ())
        buffer = writer.program.buffers[name]
        if edges is None:
            if self.s.scatter and buffer.full:
                if name in writer.taken:  # gathered for the forward pass, unchanged since
                    return View(writer.arrays[writer.taken[name]], letters)
                return writer.live_view(name, letters)
            return View(array, letters)
        names, index = [], {}
        backwards = self.axis == "o"
        for letter in letters.replace("oi", "e"):
            if letter in self.axes and letter != "e":
                names.append(letter)
                continue
            names.append("e")
            if letter == "e" and backwards:
                index["e"] = edges.back_edges
            elif letter == "o":
                index["e"] = edges.back_receivers if backwards else edges.receivers
            elif letter == "i":
                index["e"] = edges.sources
        return View(array, names, index)

    def drawn(self, node: Node) -> Drawn:
        """The draws of the frame's messages; a bias has no letter i."""
        writer, network = self.writer, self.writer.network
        kind, site, per, number, position = node.value
        layer, axes = network.layers[number], node.axes
        key = random.key(network.seed, number)
        keys = random.receiver_keys(key, np.arange(layer.size), position)
        names = {letter: letter_axes(network, self.s.frame, letter)[0] for letter in axes}
        samples = writer.sample_numbers(names["b"], per) if "b" in axes else None
        index = {}
        if self.edges is not None:
            edges = layer.links[position].edges
            assert edges is not None
            (axis,) = letter_axes(network, self.s.frame, "oi")
            places = writer.memory.share.places(axis)
            receivers = np.repeat(np.arange(layer.size), np.diff(edges.indptr))[places]
            keys, sources = keys[receivers], np.asarray(edges.indices)[places]
            axes = axes.replace("oi", "e")
            if self.axis == "o":
                index["e"] = self.edges.back_edges
        else:
            keys = keys[writer.memory.share.places(names["o"])]
            here = writer.memory.places(names["i"]) if "i" in axes else slice(0, 1)
            sources = np.arange(here.start, here.stop)
        return Drawn(
            kind, site, axes, keys.astype(np.uint32), sources.astype(np.int64), samples,
            writer.once if per == "run" else writer.iteration, index,
        )  # fmt: skip

    def iota(self, name: str, letter: str) -> Iota | None:
        """A counter in place of a load of the neurons' indices, where the loop can count them."""
        writer = self.writer
        buffer = writer.program.buffers[name]
        if buffer.role != "constant" or buffer.value[0] != "index" or self.edges is not None:
            return None
        is_range = isinstance(writer.memory.share.places(buffer.axes[0]), slice)
        if not is_range or layer_of(buffer.axes[0]) in writer.alive:
            return None
        return Iota(letter, buffer.value[2] + writer.memory.places(buffer.axes[0]).start)

    def out(self, output: Output) -> View:
        """A view of an output buffer."""
        writer, name = self.writer, output.buffer
        array = writer.arrays[name]
        letters = out_letters(writer.network, self.s.frame, output, writer.program.buffers)
        if self.edges is not None:
            return View(array, letters.replace("oi", "e"))
        if not letters:
            return View(array.reshape(1), "1") if "1" in self.axes else View(array.reshape(()), ())
        if self.s.scatter and writer.program.buffers[name].full:
            return writer.live_view(name, letters)
        return View(array, letters)
