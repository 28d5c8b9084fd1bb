"""Statements of a program, appended to a tape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal

import numpy as np

from horn import random
from horn._kernels.engine import Coef, Dim, Ragged, Scalar, Tape, View
from horn.backends import Array
from horn.backends._edge_lists import check_edges
from horn.backends._loop_operands import LoopOperands
from horn.backends._patches import PatchWriter
from horn.backends._step_buffers import StepBuffer, aligned
from horn.backends._tape_memory import TapeMemory
from horn.backends._windows import WindowLists
from horn.ir import Op
from horn.layers import Link
from horn.neuron import OF_A_SAMPLE
from horn.program import (
    AllSteps,
    BatchSum,
    ChannelSum,
    Convolve,
    Draw,
    Expand,
    Frame,
    Input,
    Live,
    Loop,
    Matmul,
    Parts,
    Pick,
    Rank,
    Repeat,
    Reverse,
    ScatterAdd,
    Statement,
    Take,
    Target,
    Turn,
    Update,
    base,
    layer_of,
    letter_axes,
    link_of,
    writes,
)
from horn.scheduling.choices import MAX_LIVE_ROWS, only_multiplied
from horn.scheduling.folds import End, Fold, Joined, joined_of, only_fold, only_squares
from horn.scheduling.passes import Pass, needs_rows, passes
from horn.scheduling.patches import find_patched

IN_PARTS = 2  # the mode of a range of instructions: once 0, step by step 1, in reverse -1
SCALARS = (
    "learning_rate", "iteration", "updates", "rows", "inv_rows", "begins", "inv_steps",
)  # fmt: skip


class TapeWriter:
    """Appends the statements of a program to a tape.

    made : the instructions of each statement between exchanges. loads : those that read the data:
    the array, "x", "y" or "weight", and its columns.
    """

    def __init__(self, tape: Tape, memory: TapeMemory) -> None:
        self.tape, self.memory, self.program = tape, memory, memory.program
        self.network, self.dtype = memory.network, tape.dtype
        # of one step, or inside AllSteps of all steps
        self.arrays, self.rows, self.own_rows = memory.arrays, memory.rows, memory.own_rows
        self.is_wide, self.is_stream = False, memory.is_stream
        self.iteration: Dim = tape.dim(random.ONCE)
        self.once: Dim = tape.dim(random.ONCE)  # the iteration of draws for the whole run
        self.scalars: dict[str, Scalar] = {name: tape.scalar() for name in SCALARS}
        self.step: Scalar = tape.scalar()  # learning rate per row
        self.scale: Scalar = tape.scalar(1.0)  # of the data
        self.pieces: dict[str, list[tuple[int, int, int]]] = {}  # of Parts, as bounds
        self.turned: dict[str, tuple[Array, Dim]] = {}  # rows in reversed order, by axis
        self.ends_of: dict[str, str] = {}  # buffer -> "valid" or "last", a Target's kind
        self.steady: Set[str] = frozenset()  # buffers that no step changes
        # the samples' numbers, by axis and by the period of their draws
        self.numbers: dict[tuple[str, str], StepBuffer] = {}
        self.picks = np.zeros(memory.batch_size, np.int64)
        self.samples = np.zeros(memory.batch_size, np.uint64)
        self.sequences = self.samples.copy()
        self.reads_samples = False
        # of convolutions, by link and the axes of both ends
        self.windows: dict[tuple[Link, str, str, bool], WindowLists] = {}
        self.taken: dict[str, str] = {}  # full buffer -> its live part, as long as both agree
        self.alive: dict[int, tuple[Array, Dim]] = {}  # layer -> its live neurons, how many
        # live parts that nobody needs as a copy, and their whole buffers
        self.in_place: dict[str, str] = {}
        if tape.reads_live and memory.batch_size <= MAX_LIVE_ROWS:
            self.in_place = only_multiplied(self.program)
        # arrays of loops that need a sample's numbers side by side, by shape and operand
        self.in_rows: dict[tuple[tuple[int, ...], int], Array] = {}
        self.loads: list[tuple[int, str, slice | int]] = []
        # with steps, statements lie inside others, and each is written by itself
        self.joined = Joined({}, frozenset(), {}) if self.program.steps else joined_of(self.program)
        self.patches = find_patched(self.program, memory.batch_size)
        self.in_patches = PatchWriter(tape, memory, self.scalars, self.patches)
        self.made: list[tuple[int, int]] = []
        self.is_batch = False
        for statement in self.program.prologue:
            self.write(statement)
        self.is_batch = True

    def write_all(self, statements: Sequence[Statement]) -> list[tuple[int, int, int]]:
        """The instructions of statements, with the mode in which they run."""
        found: list[tuple[int, int, int]] = []
        for statement in statements:
            before, turns = len(self.tape), 0
            if isinstance(statement, Parts):
                for what in ("forward", "behind", "judge", "backward"):
                    self.pieces[what] = self.write_all(getattr(statement, what))
                turns = IN_PARTS
            else:
                self.write(statement)
            if isinstance(statement, Repeat):
                turns = -1 if statement.reverse else 1
            if found and not found[-1][2] and not turns:
                before = found.pop()[0]
            found.append((before, len(self.tape), turns))
        return found

    def write(self, s: Statement) -> None:
        before = len(self.tape)
        self._statement(s)
        self.in_patches.forget(writes(s))
        if self.is_batch and not isinstance(s, (Repeat, AllSteps)):
            self.made.append((before, len(self.tape)))

    def _statement(self, s: Statement) -> None:
        if id(s) in self.joined.with_end:
            first, end = self.joined.with_end[id(s)]
            if isinstance(first, Convolve):
                self._convolve(first, end)
            else:
                assert isinstance(first, Loop)
                fold = only_fold(self.program, first)
                assert fold is not None
                self._fold(first, fold, end)
        elif id(s) in self.joined.done:
            pass
        elif isinstance(s, Repeat):
            moving = {name for each in s.body for name in writes(each)} | self.memory.spans.keys()
            self.steady = self.program.buffers.keys() - moving
            for statement in s.body:
                self.write(statement)
            self.steady = frozenset()
        elif isinstance(s, AllSteps):
            of_a_step = self.arrays, self.rows, self.own_rows
            self.arrays = {**self.arrays, **self.memory.all_steps}
            (self.rows, self.own_rows), self.is_wide = self.memory.several, True
            for statement in s.body:
                self.write(statement)
            (self.arrays, self.rows, self.own_rows), self.is_wide = of_a_step, False
        elif isinstance(s, Input):
            self._data(s.out, "x", True)
        elif isinstance(s, Target) and s.kind in ("valid", "last"):
            self.ends_of[s.out] = s.kind
        elif isinstance(s, Target):
            what = {"input": "x", "weight": "weight"}.get(s.kind, "y")
            self._data(s.out, what, s.each_step, s.first)
        elif isinstance(s, Live):
            size = self.network.layers[s.layer].size
            kept = np.zeros(size + 1, np.int32)
            count = self.tape.dim(size)
            self.tape.live(self.arrays[s.mask], kept, count, label=s.mask)
            self.alive[s.layer] = (kept, count)
        elif isinstance(s, Loop):
            self._loop(s)
            for output in s.outputs:
                self.taken.pop(output.buffer, None)
        else:
            getattr(self, f"_{type(s).__name__.lower()}")(s)

    def _data(self, out: str, what: str, each_step: bool, first: int = -1) -> None:
        """Read a batch's rows of the bound data; of several outputs' targets, from ``first`` on."""
        array, (rows, *columns) = self.arrays[out], self.program.buffers[out].axes
        source = np.zeros((1, *array.shape[1:]), self.dtype)
        here: dict[str, Any] = {"rows": self._extent(rows), "label": out}
        if what == "x":
            here["scale"] = self.scale
        number = self.tape.load(source, self.picks[self.memory.places(rows)], array, **here)
        if out in self.memory.all_steps:
            self.tape.of_data(self.memory.all_steps[out])
        taken = self.memory.places(columns[0]) if columns else slice(None)
        if self.memory.steps and each_step:
            n = len(range(*taken.indices(array.shape[1]))) if columns else 1
            self.tape.step_load(number, self.program.network.layers[0].size if what == "x" else n)
            taken = taken if columns else slice(0, 1)
        own: slice | int = taken
        if first >= 0:
            is_wide = columns or (self.memory.steps and each_step)
            own = slice(first + taken.start, first + taken.stop) if is_wide else first
        self.loads.append((number, what, own))

    def _draw(self, s: Draw) -> None:
        layer = self.network.layers[s.layer]
        key = random.key(self.network.seed, s.layer)
        out, axes = self.arrays[s.out], self.program.buffers[s.out].axes
        kind: Literal["normal", "uniform"] = "normal" if s.kind == "normal" else "uniform"
        if s.per == "synapse" and s.link < len(layer.links):
            if layer.links[s.link].edges is not None:
                out[...] = self._edge_draws(kind, key, s)
                return
        neurons = axes[0] if s.per == "synapse" else axes[-1]
        draw: dict[str, Any] = {"key": key, "site": s.site, "iteration": self.iteration}
        draw |= {"first": self.memory.places(neurons).start, "label": s.out}
        if s.per in OF_A_SAMPLE:
            samples = self.sample_numbers(axes[0], s.per)
            self.tape.draw(out, kind, rows=self._extent(axes[0]), samples=samples, **draw)
        elif s.per == "synapse" and len(axes) == 2:
            here = self.memory.places(axes[1])
            sources = np.arange(here.start, here.stop, dtype=np.uint64) + np.uint64(s.link << 32)
            self.tape.draw(out.T, kind, samples=sources, **draw)
        elif s.per == "synapse":
            self.tape.draw(out[None, :], kind, samples=np.array([s.link << 32], np.uint64), **draw)
        else:
            self.tape.draw(out[None, :], kind, **draw)

    def sample_numbers(self, axis: str, per: str) -> Array:
        """The numbers of the samples along an axis; of sequences at one step, or at all of them:
        with the step, or equal at all steps where they draw per sequence.
        """
        self.reads_samples = True
        memory = self.memory
        places = memory.places(axis)
        if not memory.steps:
            return (self.sequences if per == "sequence" else self.samples)[places]
        if (axis, per) not in self.numbers:
            rows, dim = places.stop - places.start, memory.rows_of(axis)
            span = StepBuffer.of(
                [rows], np.dtype(np.uint64), memory.steps, (0, 0), dim, False, memory.blocks
            )
            self.numbers[axis, per] = span
        span = self.numbers[axis, per]
        return span.all_steps if self.is_wide else span.step

    def _edge_draws(self, kind: str, key: random.Key, s: Draw) -> Array:
        """A sparse link's synapse draws: neuron = receiver, sample = (link << 32) + source."""
        draw = random.normal if kind == "normal" else random.uniform
        whole = self.network.layers[s.layer].links[s.link].edges
        assert whole is not None
        (axis,) = self.program.buffers[s.out].axes
        places = self.memory.share.places(axis)
        sources = np.asarray(whole.indices)[places].astype(np.uint64) + np.uint64(s.link << 32)
        counts = np.diff(whole.indptr)
        receivers = np.repeat(np.arange(len(counts)), counts)[places]
        starts = np.flatnonzero(np.diff(receivers, prepend=-1))
        result = np.empty(len(sources))
        for start, stop in zip(starts, np.append(starts, len(sources))[1:], strict=True):
            row = slice(start, stop)
            result[row] = draw(key, s.site, [receivers[start]], sources[row], random.ONCE)[:, 0]
        return result

    def _pick(self, s: Pick) -> None:
        """Copy some places of an array; along at most one axis they are no range."""
        axes = self.program.buffers[s.out].axes
        names = [f"a{k}" for k in range(len(axes))]
        array, index = self.arrays[s.array], {}
        have = self.program.buffers[s.array].axes
        for k, (name, a, b) in enumerate(zip(names, have, axes, strict=True)):
            if a == b:
                continue
            if base(b) == "b" or isinstance(self.memory.share.places(b), slice):
                array = array[(slice(None),) * k + (self.memory.places(b),)]
            else:
                index[name] = np.ascontiguousarray(self.memory.share.places(b), np.int32)
        extents = {name: self._extent(axis) for name, axis in zip(names, axes, strict=True)}
        view = View(array, names, index, ascending=True)
        self.tape.loop(extents, [view], [], [(View(self.arrays[s.out], names), 0)], label=s.out)

    def _reverse(self, s: Reverse) -> None:
        """Copy all steps in reverse, by a list of each batch's rows."""
        assert self.is_wide
        (rows, _), names = self.program.buffers[s.out].axes, ("a0", "a1")
        if rows not in self.turned:
            dim = self.memory.rows_of(rows)
            places = np.zeros(self.memory.length(rows) * self.memory.steps, np.int32)
            self.turned[rows] = places, dim
        axes = zip(names, self.program.buffers[s.out].axes, strict=True)
        extents = {name: self._extent(axis) for name, axis in axes}
        view = View(self.arrays[s.array], names, {"a0": self.turned[rows][0]})
        self.tape.loop(extents, [view], [], [(View(self.arrays[s.out], names), 0)], label=s.out)

    def _take(self, s: Take) -> None:
        if s.out in self.in_place:
            return
        axes = self.program.buffers[s.out].axes
        names = [f"a{k}" for k in range(len(axes))]
        extents = {name: self._extent(axis) for name, axis in zip(names, axes, strict=True)}
        view = self.live_view(s.array, names)
        self.tape.loop(extents, [view], [], [(View(self.arrays[s.out], names), 0)], label=s.out)
        self.taken[s.array] = s.out

    def _extent(self, axis: str) -> int | Dim:
        if base(axis) == "b":
            return self.rows if axis == "b" else self.own_rows
        if layer_of(axis) in self.alive:
            return self.alive[layer_of(axis)][1]
        return self.memory.length(axis)

    def live_view(self, name: str, names: Sequence[str]) -> View:
        """A view of a full buffer at its live places."""
        index = {}
        for label, axis in zip(names, self.program.buffers[name].axes, strict=True):
            if layer_of(axis) in self.alive:
                index[label] = self.alive[layer_of(axis)][0]
        return View(self.arrays[name], names, index, ascending=True)

    def _matmul(self, s: Matmul) -> None:
        left, right = s.a_axes.replace(s.axis, ""), s.b_axes.replace(s.axis, "")
        a = _as(self.arrays[s.a], s.a_axes, left + s.axis)
        b = _as(self.arrays[s.b], s.b_axes, s.axis + right)
        c = _as(self.arrays[s.out], s.out_axes, left + right)
        if not c.size:  # a group's range may be empty
            return
        extent = self.extents(s.frame)
        if s.b in self.in_place:
            axes = s.b_axes.replace(s.axis, "k").replace(right, "n")
            w = self.live_view(self.in_place[s.b], axes)
            self.tape.live_gemm(
                a, w, c, beta=0.0, m=extent[left], n=extent[right], k=extent[s.axis], label=s.out
            )
            return
        sizes = extent[right], extent[s.axis]
        if self.is_stream and left == "b" and not any(isinstance(n, Dim) for n in sizes):
            # One row: a matrix product would pack all weights, only to read them once.
            over = dict(zip("ok", sizes, strict=True))
            row, sums = View(a[0], "k"), View(c[0], "o")
            self.tape.loop(over, [View(b, "ko"), row], [("mul", 0, 1)], [(sums, 2)],
                           reduce=("sum", "k"), label=s.out)  # fmt: skip
            return
        self.tape.gemm(a, b, c, beta=0.0, m=extent[left], n=extent[right], k=extent[s.axis],
                       thin=s.frame.grouped, steady=s.b in self.steady,
                       zeros=self._zeros(left, right), label=s.out)  # fmt: skip

    def _zeros(self, left: str, right: str) -> str:
        """The operand of a product that may be mostly 0, with steps: the values of samples, for
        spikes are; in a gradient the neurons' outputs.
        """
        if not self.program.steps:
            return ""
        return "a" if left == "b" else "b" if right != "b" else ""

    def _convolve(self, s: Convolve, end: End | None = None, of_squares: bool = False) -> None:
        layer = self.network.layers[s.frame.layer]
        link = layer.links[s.frame.link or 0]
        rows = self._extent(letter_axes(self.network, s.frame, "b")[0])
        by_channels = s.frame.split in ("m", "c")
        receivers, senders = (letter_axes(self.network, s.frame, x)[0] for x in "oi")
        key = (link, receivers, senders, by_channels)
        if (windows := self.windows.get(key)) is None:
            above, under = (self.memory.share.places(axis) for axis in (receivers, senders))
            windows = self.windows[key] = WindowLists(link, above, under, by_channels)
        name = end.out if end else s.out
        a, b, out = self.arrays[s.a].T, self.arrays[s.b], self.arrays[name]
        if not out.size:
            return
        here: dict[str, Any] = {"rows": rows, "label": name}
        if s.axis == "b":
            maps, below = (b.T, a) if link.is_turned else (a, b.T)
            grid = out.reshape(-1, windows.gradients["src"].shape[1])
            self.tape.window_gradients(below, maps, grid, **windows.gradients, **here)
        else:
            is_to_maps = (s.axis == "i") != link.is_turned
            lists = windows.to_maps if is_to_maps else windows.to_channels
            if end:
                here["relu"] = end.relu
                here["bias"] = self.arrays[end.bias] if end.bias else None
                here["gate"] = self.arrays[end.gate].T if end.gate else None
            self.tape.windows(a, b, out.T, of_squares=of_squares, **lists, **here)

    def _fold(self, s: Loop, fold: Fold, end: End | None = None) -> None:
        """Fold windows, and store the place of the extreme, if it is read."""
        edges = self.memory.edges_of(s.frame.layer, s.frame.link or 0, s.frame.split)
        name = end.out if end else s.outputs[0].buffer
        here: dict[str, Any] = {"rows": self._extent(self.program.buffers[name].axes[0])}
        here |= {"ptr": edges.indptr, "src": edges.sources}
        if fold.axis == "o":
            here |= {"ptr": edges.back_indptr, "src": edges.back_receivers}
        if fold.upper:
            here["upper"] = self.arrays[fold.upper].T
            here["place"] = self.arrays[fold.place][edges.back_edges]
        if id(s) in self.joined.places:
            here["where"] = self.arrays[self.joined.places[id(s)]].T
        if end and end.gate:
            here["gate"] = self.arrays[end.gate].T
        x, out = self.arrays[fold.source].T, self.arrays[name].T
        self.tape.pool(x, out, fold.kind, **here, label=name)

    def _expand(self, s: Expand) -> None:
        if s.out in self.patches.unread:
            return
        (axis,) = self.program.buffers[s.out].axes
        numbers = np.ascontiguousarray(self.memory.share.numbers(axis), np.int32)
        view = View(self.arrays[s.array], "o", {"o": numbers})
        self.tape.loop({"o": len(numbers)}, [view], [], [(View(self.arrays[s.out], "o"), 0)],
                       label=s.out)  # fmt: skip

    def _scatteradd(self, s: ScatterAdd) -> None:
        """Sum the numbers of the synapses, or neurons, that share each number."""
        if s.array in self.patches.sums:
            self.in_patches.store(s, *self.patches.sums[s.array])
            return
        (axis,), out = self.program.buffers[s.array].axes, self.arrays[s.out]
        numbers = self.memory.share.numbers(axis)
        check_edges(len(numbers))
        order = np.argsort(numbers, kind="stable").astype(np.int32)
        counts = np.bincount(numbers, minlength=len(out))
        ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        view = View(self.arrays[s.array], "e", {"e": order})
        self.tape.loop({"o": len(out), "e": Ragged(ends, "o")}, [view], [],
                       [(View(out, "o"), 0)], reduce=("sum", "e"), label=s.out)  # fmt: skip

    def _turn(self, s: Turn) -> None:
        array, out = self.arrays[s.array], self.arrays[s.out]
        axes = "io" if s.transposed else "oi"
        self.tape.loop({"o": out.shape[0], "i": out.shape[1]}, [View(array, axes)], [],
                       [(View(out, "oi"), 0)], label=s.out)  # fmt: skip

    def _channelsum(self, s: ChannelSum) -> None:
        """Sum over the positions of each channel, and copy the sum to all of them."""
        layer = self.network.layers[s.frame.layer]
        array, out = (
            a.reshape(*a.shape[:-1], layer.n_positions, layer.extents[-1])  # there may be no rows
            for a in (self.arrays[s.array], self.arrays[s.out])
        )
        assert not out.size or np.shares_memory(out, self.arrays[s.out])
        rows = "b" * (array.ndim - 2)
        total = np.zeros(array.shape[:-2] + array.shape[-1:], self.dtype)
        extent: dict[str, Any] = {"p": layer.n_positions, "c": layer.extents[-1]}
        extent |= {"b": self.extents(s.frame)["b"]} if rows else {}
        self.tape.loop(extent, [View(array, f"{rows}pc")], [], [(View(total, f"{rows}c"), 0)],
                       reduce=("sum", "p"), label=s.out)  # fmt: skip
        self.tape.loop(extent, [View(total, f"{rows}c")], [], [(View(out, f"{rows}pc"), 0)],
                       label=s.out)  # fmt: skip

    def _batchsum(self, s: BatchSum) -> None:
        """Sum over the rows of a step, and copy the sum to all of them."""
        assert not self.is_wide
        array, out = self.arrays[s.array], self.arrays[s.out]
        total = np.zeros(array.shape[1:], self.dtype)
        extents = self.extents(s.frame)
        extent = {letter: extents[letter] for letter in "bo"}
        self.tape.loop(extent, [View(array, "bo")], [], [(View(total, "o"), 0)],
                       reduce=("sum", "b"), label=s.out)  # fmt: skip
        self.tape.loop(extent, [View(total, "o")], [], [(View(out, "bo"), 0)], label=s.out)

    def _rank(self, s: Rank) -> None:
        extent = self.extents(s.frame)
        self.tape.rank(self.arrays[s.array], self.arrays[s.out], rows=extent["b"],
                       neurons=extent["o"], label=s.out)  # fmt: skip

    def _update(self, s: Update) -> None:
        delta, x, w = self.arrays[s.a].T, self.arrays[s.b], self.arrays[s.weight]
        step = Coef(-1.0, self.scalars["learning_rate"], per=self.memory.rows)
        live = any(layer_of(axis) in self.alive for axis in self.program.buffers[s.weight].axes)
        for name in (s.weight, s.velocity):
            self.taken.pop(name or "", None)
        if live:
            self._update_live(s, delta, x, step)
            return
        if s.frame.grouped:
            if w.size:
                step = Coef(-1.0, self.step)  # the rows of all groups count
                self.tape.update(
                    delta, x, w, alpha=step, k=self.rows, label=s.weight, decay=s.momentum,
                    v=None if s.velocity is None else self.arrays[s.velocity],
                    parts=[self.arrays[part] for part in s.parts],
                )  # fmt: skip
            return
        zeros = self._zeros("o", "i")
        if s.velocity is None:
            self.tape.gemm(delta, x, w, alpha=step, beta=1.0, k=self.rows, zeros=zeros,
                           label=s.weight)  # fmt: skip
            return
        v = self.arrays[s.velocity]
        self.tape.gemm_loop(
            delta, x, v, alpha=step, beta=s.momentum, k=self.rows, zeros=zeros, label=s.weight,
            inputs=[View(w, "mn"), View(v, "mn")], ops=[("add", 0, 1)],
            outputs=[(View(w, "mn"), 2)],
        )  # fmt: skip

    def _update_live(self, s: Update, delta: Array, x: Array, step: Coef) -> None:
        """Update at the live places. The product itself is seldom written (Tape.gemm_loop)."""
        extent = self.extents(s.frame)
        product = np.empty(self.arrays[s.weight].shape, self.dtype)
        w = self.live_view(s.weight, "mn")
        inputs: list[Any] = [w, View(product, "mn")]
        ops: list[tuple[Any, ...]] = [("add", 0, 1)]
        outputs = [(w, 2)]
        if s.velocity is not None:
            v = self.live_view(s.velocity, "mn")
            inputs = [w, v, View(product, "mn"), s.momentum]
            ops = [("fma", 1, 3, 2), ("add", 0, 4)]
            outputs = [(v, 4), (w, 5)]
        self.tape.gemm_loop(
            delta, x, product, alpha=step, m=extent["o"], n=extent["i"], k=self.rows,
            inputs=inputs, ops=ops, outputs=outputs, label=s.weight,
        )  # fmt: skip

    def extents(self, frame: Frame) -> dict[str, int | Dim]:
        """The extents of the letters of a frame; "1" for outputs without axes."""
        extent: dict[str, int | Dim] = {"1": 1}
        letters = "o" if frame.shared else "bo" if frame.link is None else "boi"
        for letter in letters:
            (axis,) = letter_axes(self.network, frame, letter)
            extent[letter] = self._extent(axis)
        return extent

    def _loop(self, s: Loop) -> None:
        fold = only_fold(self.program, s)
        if fold:
            self._fold(s, fold)
            return
        squares = only_squares(self.program, s)
        if squares:
            out = s.outputs[0].buffer
            sums = Convolve(s.frame, out, squares.source, squares.weight, "i")
            self._convolve(sums, of_squares=True)
            return
        if id(s) in self.patches.multiplied:
            return
        found = passes(s)
        patched = self.patches.loops.get(id(s), [None] * len(found))
        for each, in_patches in zip(found, patched, strict=True):
            if in_patches is None:
                self._pass(s, each)
            else:
                self.in_patches.write(s, in_patches)

    def _pass(self, s: Loop, each: Pass) -> None:
        """Append one engine loop: elementwise with all its outputs, or one reduction."""
        frame, axis = s.frame, each.axis
        domain = each.domain(self.network, frame, self.program.buffers)
        edges = None
        if frame.link is not None and "o" in domain and "i" in domain:
            link = link_of(self.network, frame)
            if link.edges is not None:
                edges = self.memory.edges_of(frame.layer, frame.link, frame.split)
        place = LoopOperands(self, s, domain, edges, axis)
        inputs: list[Any] = []
        for given in each.inputs:
            if given is each.index and (iota := place.iota(given.value, given.axes)):
                inputs.append(iota)
            elif given.op is Op.LOAD:
                inputs.append(place.view(given.value, given.axes))
            elif given.op is Op.MESSAGE_DRAW:
                inputs.append(place.drawn(given))
            elif given.op is Op.CONST:
                inputs.append(float(given.value))
            else:
                inputs.append(self.scalars[given.value])
        outs, label = [place.out(o) for o in each.outputs], each.outputs[0].buffer
        rows = outs
        if needs_rows(domain, edges is not None, self.memory.layout):
            rows = [self._in_rows(out, -1 - k) for k, out in enumerate(outs)]
            for k, view in enumerate(inputs):
                if isinstance(view, View):
                    inputs[k] = self._in_rows(view, k)
                    self._copy(view, inputs[k], place.axes, label)
        self.tape.loop(
            place.axes, inputs, each.numbered,
            [(row, each.number(value)) for row, value in zip(rows, each.results, strict=True)],
            reduce=(each.monoid, place.folded) if axis else None, label=label,
        )  # fmt: skip
        for row, out in zip(rows, outs, strict=True):
            self._copy(row, out, place.axes, label)

    def _in_rows(self, view: View, k: int) -> View:
        """The view, or operand k of a loop that has a sample's numbers side by side instead."""
        array = view.array
        is_of_samples = not view.index and array.ndim == 2 and view.axes[0] == "b"
        if not is_of_samples or array.strides[1] == array.itemsize:
            return view
        key = array.shape, k
        if key not in self.in_rows:
            self.in_rows[key] = aligned(array.shape, self.dtype)
        return View(self.in_rows[key], view.axes)

    def _copy(self, view: View, to: View, axes: Mapping[Any, Any], label: str) -> None:
        if to is not view:
            extents = {name: axes[name] for name in view.axes}
            self.tape.loop(extents, [view], [], [(to, 0)], label=label)


def _as(array: Array, have: str, want: str) -> Array:
    return array.transpose([have.index(letter) for letter in want])
