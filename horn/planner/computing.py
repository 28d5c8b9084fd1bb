"""What computing takes: the seconds of each statement of a program, per task.

A statement is a linear function of a few counts: multiplications, elements, results, strips.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from horn._kernels.engine import STRIP_BYTES
from horn._kernels.tiles import (
    COLUMNS,
    FUNCTIONS,
    LESS,
    MORE,
    PLACES,
    QUOTIENTS,
    SLOPES,
    SQUARES,
    WAVES,
)
from horn.network import Network
from horn.partition.share import Share
from horn.planner.machine import Machine
from horn.program import (
    Buffer,
    Convolve,
    Draw,
    Expand,
    Frame,
    Input,
    Loop,
    Matmul,
    Program,
    ScatterAdd,
    Statement,
    Target,
    Update,
    base,
    letter_axes,
)
from horn.scheduling.choices import choose_layout
from horn.scheduling.folds import Fold, only_fold, only_squares
from horn.scheduling.passes import Pass, Shape, passes
from horn.scheduling.patches import Patched, dense_shape, find_patched

Array = np.ndarray[Any, Any]

# Results per tile of sums over windows: fewer than the least take as long as the least.
MIN_RESULTS, MAX_RESULTS = 4, 12
# The kinds of tiles other than rows, by their names in figures.
_TILES = {COLUMNS: "columns", PLACES: "places", QUOTIENTS: "quotients"}
# Shorter rows are reduced number by number (strips.h).
LANES = 32
# An array of at most so many bytes stays in the nearest cache between the passes of a loop: 2 ** 15
# is the smallest such cache of processors in twenty years.
NEAR_BYTES = 2**15


class Computing:
    """The computing of a network's programs on tasks of a machine, each with a core of its own."""

    def __init__(
        self, network: Network, machine: Machine, n_tasks: int, batch_size: int, itemsize: int
    ) -> None:
        self.network, self.machine, self.n_tasks = network, machine, n_tasks
        self.batch_size, self.itemsize = batch_size, itemsize
        self.shares = [Share(network, task, n_tasks) for task in range(n_tasks)]
        self.layout = "batch"  # of arrays; ``begin`` sets it, and what runs in patches
        self.patched = Patched()
        self.n_steps = 1  # of sequences: the number of steps whose rows are computed at once
        self._lengths: dict[str, Array] = {}

    def begin(self, program: Program) -> None:
        """Take the layout of arrays from a program; it is the same in every placement."""
        self.layout = choose_layout(program, self.machine.products, self.batch_size)
        self.patched = find_patched(program, self.batch_size)

    def in_patches(self, s: Statement) -> tuple[bool, ...]:
        """Which passes of a loop run in patches, and whether it is left out for them, as the
        statements around it decide; empty for most.
        """
        found = [each is not None for each in self.patched.loops.get(id(s), ())]
        return (*found, True) if id(s) in self.patched.multiplied else tuple(found)

    def length(self, axis: str) -> Array:
        """The number of places of an axis that each task has (n_tasks,)."""
        if axis not in self._lengths:
            found = [share.length(axis, self.batch_size) for share in self.shares]
            self._lengths[axis] = np.array(found, np.float64)
        return self._lengths[axis] * (self.n_steps if base(axis) == "b" else 1)

    def size(self, axes: tuple[str, ...]) -> Array:
        """The number of elements of an array with these axes, per task (n_tasks,)."""
        found = np.ones(self.n_tasks)
        for axis in axes:
            found = found * self.length(axis)
        return found

    def seconds(self, statement: Statement, buffers: Mapping[str, Buffer]) -> Array:
        """Seconds of a statement that is no exchange, per task (n_tasks,)."""
        machine = self.machine
        if isinstance(statement, (Matmul, Update)):
            return self._product_s(statement)
        if isinstance(statement, Loop):
            program = Program(self.network, dict(buffers), (), (), (), None)
            if fold := only_fold(program, statement):
                return self._fold_s(statement, fold)
            if only_squares(program, statement):
                return self._windows_s(statement.frame, "i", "squares")
            found = np.zeros(self.n_tasks)
            if id(statement) in self.patched.multiplied:
                return found
            loops = passes(statement)
            patched = self.patched.loops.get(id(statement), [None] * len(loops))
            for each, in_patches in zip(loops, patched, strict=True):
                found = found + (
                    self._pass_s(statement.frame, each, buffers)
                    if in_patches is None
                    else self._patches_s(statement.frame, in_patches)
                )
            return found
        if isinstance(statement, Expand) and statement.out in self.patched.unread:
            return np.zeros(self.n_tasks)
        is_sum = isinstance(statement, ScatterAdd) and statement.array not in self.patched.sums
        if isinstance(statement, Convolve):
            kind = {"i": "forward", "o": "backward", "b": "gradient"}[statement.axis]
            return self._windows_s(statement.frame, statement.axis, kind)
        size = self.size(buffers[statement.array if is_sum else statement.out].axes)  # type: ignore[attr-defined]
        if isinstance(statement, Draw):
            return machine.call_s + size * machine.draw_s[statement.kind]
        is_given = isinstance(statement, (Input, Target))
        return machine.call_s + size * (machine.input_s if is_given else machine.fetch_s["copy"])

    def _windows_s(self, frame: Frame, axis: str, kind: str) -> Array:
        """Seconds of a sum along an axis of windows: per synapse of the task and sample, in whole
        vectors, and slower where few results are computed side by side.
        """
        machine, layer = self.machine, self.network.layers[frame.layer]
        link = layer.links[frame.link or 0]
        connection, _ = link.windows
        maps, channels = (  # of a group: what is computed side by side
            n // connection.groups for n in (layer.shape[-1], link.source.shape[-1])
        )
        if frame.split == "m":
            maps = max(maps // self.n_tasks, 1)
        elif frame.split == "c":
            channels = max(channels // self.n_tasks, 1)
        results = maps if axis == "i" else channels
        if link.is_turned:
            maps, channels = channels, maps
            kind = {"forward": "backward", "backward": "forward"}.get(kind, kind)
        synapses = self.size(letter_axes(self.network, frame, "oi"))
        rows = self.size(letter_axes(self.network, frame, "b"))
        if kind == "gradient":
            work = synapses * rows * (self._vectors(np.array(float(maps))) / maps)
            work = np.minimum(work, 2 * synapses * self._vectors(rows))  # few maps: of samples
        else:
            side = results / -(-results // MAX_RESULTS)
            work = synapses * self._vectors(rows) * max(MIN_RESULTS / side, 1.0)
        sides = self.size(letter_axes(self.network, frame, "o" if axis == "o" else "i"))
        return np.asarray(
            machine.call_s + work * machine.window_s[kind]
            + sides * rows * 2 * machine.operation_s["add"]
        )  # fmt: skip

    def _fold_s(self, s: Loop, fold: Fold) -> Array:
        synapses = self.size(letter_axes(self.network, s.frame, "oi"))
        rows = self._vectors(self.size(letter_axes(self.network, s.frame, "b")))
        kind = "slope" if fold.upper else "sum" if fold.kind == "sum" else "both"
        return np.asarray(self.machine.call_s + synapses * rows * self.machine.pool_s[kind])

    def _vectors(self, n: Array) -> Array:
        """The numbers rounded up to whole vectors."""
        lanes = self.machine.lanes
        return np.asarray(np.ceil(n / lanes) * lanes)

    def _product_s(self, s: Matmul | Update) -> Array:
        machine = self.machine
        o, i, b = (self.size(letter_axes(self.network, s.frame, letter)) for letter in "oib")
        kind = _kind(s)
        weights = o * i
        once = self._at_size(machine.weight_s[kind], weights)
        each = self._at_size(machine.row_s[kind], weights)
        found = machine.product_s[kind] + weights * (once + b * each)
        found = found + (o + i) * b * machine.edge_s[kind]
        return np.asarray(np.where(weights * b > 0, found, machine.call_s))

    def _at_size(self, figures: tuple[float, ...], elements: Array) -> Array:
        """The figure for a weight array of this many elements, interpolated between sizes."""
        sides = np.log(np.maximum(elements, 1.0)) / 2
        return np.asarray(np.interp(sides, np.log(self.machine.sides), figures))

    def _pass_s(self, frame: Frame, each: Pass, buffers: Mapping[str, Buffer]) -> Array:
        """Seconds of one loop of the engine; tasks with the same extents are computed once."""
        shape = Shape.of(each, self.network, frame, buffers, self.layout)
        one = np.ones(self.n_tasks)
        lengths = [self.length(axis) if axis else one for axis in shape.axes.values()]
        of_tasks = [*map(tuple, np.array(lengths, np.int64).T.tolist())]
        seconds = {
            kind: self._extents_s(shape, dict(zip(shape.axes, kind, strict=True)))
            for kind in dict.fromkeys(of_tasks)
        }
        return np.array([seconds[kind] for kind in of_tasks])

    def _patches_s(self, frame: Frame, each: Pass) -> Array:
        """Seconds of a pass along patches: what it reads is laid out, position by position, and
        what it makes is added, or put, where it belongs.
        """
        machine, layer = self.machine, self.network.layers[frame.layer]
        link = layer.links[frame.link or 0]
        edges, maps = link.edges, layer.extents[-1]
        assert edges is not None
        shape, n_positions = dense_shape(each), layer.n_positions
        places = max(round(edges.n / (n_positions * maps)), 1)
        found = []
        for rows in self.size(letter_axes(self.network, frame, "b")).tolist():
            lengths = {"b": int(rows) * n_positions, "o": maps, "i": places}
            seconds = self._loop_s(shape, lengths) if rows else machine.call_s
            for array in shape.seen:
                if "b" in array.axes:
                    n = math.prod(lengths[a] for a in array.axes)
                    of_layer = rows * (link.source.size if "i" in array.axes else layer.size)
                    seconds += n * machine.fetch_s["copy"] + of_layer * machine.fetch_s["step"]
            found.append(seconds)
        return np.array(found)

    def _extents_s(self, shape: Shape, lengths: Mapping[str, int]) -> float:
        machine = self.machine
        if not all(lengths.values()):
            return machine.call_s
        copied = [math.prod(lengths[a] for a in one.axes) for one in shape.seen if one.is_copied]
        copies_s = sum(machine.call_s + n * machine.fetch_s["step"] for n in copied)
        return copies_s + self._loop_s(shape, lengths)

    def _loop_s(self, shape: Shape, lengths: Mapping[str, int]) -> float:
        machine, each = self.machine, shape.each
        if shape.is_sparse and each.is_sum_of_products and "b" in lengths:
            letter = each.axis or "b"
            if lengths["b"] == 1:
                return machine.call_s + lengths["e"] * machine.synapse_alone_s[letter]
            row_s, once_s = machine.synapse_s[letter], machine.synapse_once_s[letter]
            return machine.call_s + lengths["e"] * (lengths["b"] * row_s + once_s)
        if tile := shape.tile(lengths, machine.lanes):
            kind = _TILES.get(tile.fast, each.monoid)
            if tile.fast in (WAVES, SLOPES):
                kind = FUNCTIONS[tile.term] + ("" if tile.fast == WAVES else " slope")
            if tile.fast == SQUARES:
                kind = "squares" if each.axis == "i" else "square columns"
            if kind == "prod" and tile.term in (LESS, MORE):
                kind = "near"
            over = [n for name, n in lengths.items() if tile.fast != PLACES or name in "bo"]
            results = math.prod(n for name, n in lengths.items() if name != each.axis)
            once_s = results * machine.tile_result_s[kind]
            return machine.call_s + math.prod(over) * machine.tile_s[kind] + once_s
        w = shape.walk(lengths, self.itemsize, machine.lanes)
        if each.is_gated and not shape.is_sparse:
            return machine.call_s + w.results * machine.result_s
        whole = w.elements - w.left
        n_views = len(shape.seen) - (len(each.outputs) if each.axis else 0)
        strip_s = machine.strip_s + n_views * machine.view_s + len(each.ops) * machine.apply_s
        found = w.strips * strip_s
        for name, *_ in each.ops:
            found += whole * machine.operation_s[name] + w.left * machine.left_s[name]
        found += w.fetches * machine.fetch_row_s
        found += sum(n * machine.fetch_s[kind] for kind, n in w.fetched.items())
        found += each.n_constants * STRIP_BYTES / self.itemsize * machine.fetch_s["fill"]
        if each.axis:
            found += w.folded * machine.fold_s[each.monoid]
            in_lanes = min(w.folded / (w.folds * LANES), 1.0) if w.folds else 0.0
            found += w.folds * machine.fold_row_s[each.monoid] * in_lanes
            found += w.crossed * machine.cross_s[each.monoid] + w.results * machine.result_s
        return machine.call_s + max(found, self._streamed_s(shape, lengths))

    def _streamed_s(self, shape: Shape, lengths: Mapping[str, int]) -> float:
        """Seconds of transfers into the nearest cache: arrays too large to stay there move once for
        every pass of the outermost axis over them; an array that is written is read before.
        """
        outermost = next((name for name in shape.order(lengths) if name is not None), "1")
        is_deep = bool(shape.each.axis) and len(shape.axes) == 3 and not shape.is_sparse
        found = 0.0
        for k, array in enumerate(shape.seen):
            size = math.prod(lengths[name] for name in array.axes)
            if size * self.itemsize <= NEAR_BYTES:
                continue
            # each place has edges of its own; a reduction over three axes goes by blocks
            once = shape.ragged or is_deep or outermost in array.axes
            times = 1 if once else lengths[outermost]
            if k >= len(shape.seen) - len(shape.each.outputs):
                times *= 2
            found += times * size * float(self._at_size(self.machine.stream_s, np.array(size)))
        return found


def _kind(s: Matmul | Update) -> str:
    if isinstance(s, Update):
        return "update" if s.velocity is None else "momentum"
    return {"i": "forward", "o": "backward", "b": "gradient"}[s.axis]
