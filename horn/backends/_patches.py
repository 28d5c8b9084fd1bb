"""Loops of a convolution over its patches (horn/scheduling/patches.py), appended to a tape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn._kernels.engine import Dim, Iota, Scalar, Tape, View
from horn.backends import Array
from horn.backends._step_buffers import aligned
from horn.backends._tape_memory import TapeMemory
from horn.connections.convolution import Convolution
from horn.ir import Node, Op
from horn.layers import Link
from horn.program import Loop, ScatterAdd, letter_axes, link_of
from horn.scheduling.passes import Pass
from horn.scheduling.patches import Patched

MOST = 1 << 18  # numbers of an array of patches: what lies near the processor
MOST_PARTS = 256  # of the positions, since each takes some microseconds, and more when it is made


@dataclass(frozen=True)
class Patch:
    """Positions whose windows have the same taps.

    positions : of the receivers, ascending int32. taps : those of the kernel, ascending int32.
    below : (positions, taps), int32, the positions that they look at.
    """

    positions: Array
    taps: Array
    below: Array


def patches_of(link: Link, rows: int) -> Iterator[Patch]:
    """The windows of a convolution by their taps, and so many at a time that the patches of a batch
    of ``rows`` have at most MOST numbers.
    """
    connection, source = link.connection, link.source
    assert isinstance(connection, Convolution)
    below = connection.taps(source.shape, link.weight).sources  # (positions, taps), -1 for none
    kinds, kind = np.unique(below >= 0, axis=0, return_inverse=True)
    for k, has in enumerate(kinds):
        positions, taps = np.flatnonzero(kind.ravel() == k), np.flatnonzero(has)
        each = rows * max(len(taps) * source.shape[-1], connection.channels)
        n_parts = min(-(-len(positions) // max(MOST // max(each, 1), 1)), MOST_PARTS)
        for part in np.array_split(positions, n_parts):
            lists = part, taps, below[np.ix_(part, taps)]
            yield Patch(*(np.ascontiguousarray(a, np.int32) for a in lists))


@dataclass(frozen=True)
class _Window:
    """A pass of a convolution: its link's maps and channels, and the rows of its batch."""

    label: str
    maps: int
    channels: int
    size: int  # the most rows
    rows: Dim


class PatchWriter:
    """Appends the patched passes of a program without steps.

    Arrays (batch, neurons) lie with the batch side by side; ``rows`` has the copies with a sample's
    numbers so, by buffer, as long as they are up to date. sums : weights' gradients (maps, taps,
    channels), by the buffer of sums per synapse that they stand for.
    """

    def __init__(
        self, tape: Tape, memory: TapeMemory, scalars: Mapping[str, Scalar], patched: Patched
    ) -> None:
        self.tape, self.memory, self.scalars, self.patched = tape, memory, scalars, patched
        self.rows: dict[str, Array] = {}
        self.sums: dict[str, Array] = {}
        self._scratch: dict[tuple[tuple[int, ...], str], Array] = {}

    def forget(self, names: Iterable[str]) -> None:
        """Note that buffers have changed."""
        for name in names:
            self.rows.pop(name, None)

    def write(self, s: Loop, each: Pass) -> None:
        """Append a pass, patch by patch: what it reads is laid out, a dense loop runs, its results
        are put where they belong. Weights' gradients wait for ``store``.
        """
        link, (output,) = link_of(self.memory.network, s.frame), each.outputs
        assert isinstance(link, Link) and isinstance(link.connection, Convolution)
        out = self.memory.arrays[output.buffer]
        loads = [node for node in each.inputs if node.op is Op.LOAD]
        of_samples = [node.value for node in loads if "b" in node.axes]
        size = self.memory.arrays[of_samples[0]].shape[0]
        rows = self.memory.rows_of(letter_axes(self.memory.network, s.frame, "b")[0])
        channels = link.source.shape[-1]
        here = _Window(output.buffer, link.connection.channels, channels, size, rows)
        for name in of_samples:
            self._in_rows(name, here)
        if each.axis == "b":
            n_taps = math.prod(link.shape(0)[1:]) // channels
            result = self.sums[here.label] = aligned((here.maps, n_taps, channels), out.dtype)
            self._clear(result, "otc", {}, here)
        else:
            result = self._array(out.shape, "result")
        if each.axis == "o":
            self._clear(result, "bn", {"b": rows}, here)
        place = {"b": self._sum, "i": self._put, "o": self._add}[each.axis]
        for patch in patches_of(link, size):
            place(self._dense(each, patch, here), result, patch, here)
        if each.axis != "b":
            self._copy(View(result, "bn"), View(out, "bn"), {"b": rows, "n": out.shape[1]}, here)

    def store(self, s: ScatterAdd, name: str, factor: float) -> None:
        """Append the sum, multiplied, of a buffer of sums per synapse over those of each weight."""
        sums = self.sums[name]
        out = _shaped(self.memory.arrays[s.out], sums.shape[0], sums.shape[2])
        extents = dict(zip("otc", sums.shape, strict=True))
        self.tape.loop(extents, [View(sums, "otc"), factor], [("mul", 0, 1)],
                       [(View(out, "otc"), 2)], label=s.out)  # fmt: skip

    def _array(self, shape: tuple[int, ...], what: str) -> Array:
        """An array that passes share."""
        if (shape, what) not in self._scratch:
            self._scratch[shape, what] = aligned(shape, self.tape.dtype)
        return self._scratch[shape, what]

    def _clear(self, array: Array, axes: str, rows: Mapping[str, Dim], here: _Window) -> None:
        extents = {**dict(zip(axes, array.shape, strict=True)), **rows}
        self.tape.loop(extents, [0.0], [], [(View(array, axes), 0)], label=here.label)

    def _copy(self, view: View, to: View, extents: Mapping[Any, Any], here: _Window) -> None:
        self.tape.loop(extents, [view], [], [(to, 0)], label=here.label)

    def _in_rows(self, name: str, here: _Window) -> None:
        if name not in self.rows:
            array = self.memory.arrays[name]
            copy = self.rows[name] = self._array(array.shape, f"rows of {name}")
            extents = {"b": here.rows, "n": array.shape[1]}
            self._copy(View(array, "bn"), View(copy, "bn"), extents, here)

    def _dense(self, each: Pass, patch: Patch, here: _Window) -> Array:
        """Append the dense loop of a patch. Its rows are samples and positions."""
        inputs = [self._input(node, k, each, patch, here) for k, node in enumerate(each.inputs)]
        n_rows, n_places = len(patch.positions), len(patch.taps) * here.channels
        lengths = {"b": here.size * n_rows, "o": here.maps, "i": n_places}
        letters = "boi".replace(each.axis, "")
        made = self._array(tuple(lengths[letter] for letter in letters), "made")
        self.tape.loop(
            {**lengths, "b": self.memory.times(here.rows, n_rows)}, inputs,
            each.numbered, [(View(made, letters), each.number(each.results[0]))],
            reduce=(each.monoid, each.axis), label=here.label,
        )  # fmt: skip
        return made

    def _input(self, node: Node, k: int, each: Pass, patch: Patch, here: _Window) -> Any:
        """Operand k of the dense loop of a patch."""
        if node.op is Op.CONST:
            return float(node.value)
        if node.op is Op.SCALAR:
            return self.scalars[node.value]
        if node is each.index:
            return Iota("i")
        if not node.axes:
            return View(self.memory.arrays[node.value].reshape(()), ())
        if "b" in node.axes:
            return View(self._laid(node, k, each, patch, here), node.axes)
        shared = self.memory.arrays[self.patched.shared[node.value]]
        if node.axes == "o":
            return View(shared.reshape(here.maps), "o")
        return View(self._weights(shared, k, patch, here), "oi")

    def _laid(self, node: Node, k: int, each: Pass, patch: Patch, here: _Window) -> Array:
        """What a patch reads of a buffer of samples: (rows, places), or (rows, maps)."""
        array, n_rows = self.rows[node.value], here.size * len(patch.positions)
        is_below = node.axes == "bi"
        at = (patch.below if is_below else patch.positions).ravel()
        n = here.channels if is_below else here.maps
        laid = array
        if at.size * n != array.shape[1] or (at != np.arange(at.size)).any():
            laid = self._array((here.size, at.size, n), f"laid {k}")
            view = View(array.reshape(here.size, -1, n), "bqc", {"q": at})
            extents = {"b": here.rows, "q": at.size, "c": n}
            self._copy(view, View(laid, "bqc"), extents, here)
        laid = laid.reshape(n_rows, -1)
        if is_below or each.index is None or each.axis != "b":
            return laid
        # looked up row by row for each map
        turned = self._array(laid.shape[::-1], f"turned {k}").T
        extents = {"b": self.memory.times(here.rows, len(patch.positions)), "o": here.maps}
        self._copy(View(laid, "bo"), View(turned, "bo"), extents, here)
        return turned

    def _weights(self, shared: Array, k: int, patch: Patch, here: _Window) -> Array:
        """The weights (maps, places) of a patch."""
        whole, n_taps = _shaped(shared, here.maps, here.channels), len(patch.taps)
        if n_taps == whole.shape[1]:
            return whole.reshape(here.maps, -1)
        part = self._array((here.maps, n_taps, here.channels), f"weights {k}")
        view = View(whole, "otc", {"t": patch.taps}, ascending=True)
        self._copy(view, View(part, "otc"), dict(zip("otc", part.shape, strict=True)), here)
        return part.reshape(here.maps, -1)

    def _sum(self, made: Array, result: Array, patch: Patch, here: _Window) -> None:
        """Add the sums of a patch to those of its taps."""
        shape = here.maps, len(patch.taps), here.channels
        there = View(result, "otc", {"t": patch.taps}, ascending=True)
        self.tape.loop(
            dict(zip("otc", shape, strict=True)), [there, View(made.reshape(shape), "otc")],
            [("add", 0, 1)], [(there, 2)], label=here.label,
        )  # fmt: skip

    def _put(self, made: Array, result: Array, patch: Patch, here: _Window) -> None:
        """Store the results of a patch at its positions."""
        n = len(patch.positions)
        there = result.reshape(here.size, -1, here.maps)
        self._copy(
            View(made.reshape(here.size, n, here.maps), "bqc"),
            View(there, "bqc", {"q": patch.positions}, ascending=True),
            {"b": here.rows, "q": n, "c": here.maps}, here,
        )  # fmt: skip

    def _add(self, made: Array, result: Array, patch: Patch, here: _Window) -> None:
        """Add the results of a patch at what its windows look at, tap by tap: at one tap no two
        windows look at the same position.
        """
        n, n_taps = patch.below.shape
        parts = made.reshape(here.size, n, n_taps, here.channels)
        out = result.reshape(here.size, -1, here.channels)
        extents = {"b": here.rows, "q": n, "c": here.channels}
        for t, at in enumerate(np.ascontiguousarray(patch.below.T)):
            there = View(out, "bqc", {"q": at}, ascending=True)
            self.tape.loop(extents, [there, View(parts[:, :, t], "bqc")], [("add", 0, 1)],
                           [(there, 2)], label=here.label)  # fmt: skip


def _shaped(shared: Array, maps: int, channels: int) -> Array:
    """A view (maps, taps, channels) of an array of shared weights."""
    found = shared.reshape(maps, -1, channels)
    assert np.shares_memory(found, shared)
    return found
