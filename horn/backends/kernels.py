"""Programs on the engine of ``horn/_kernels``: compiled to a tape once, run without Python.

Learned arrays, states and slots are used where they are, in the user's shapes. Everything with a
batch axis is neuron-major (each neuron's values for the batch side by side) or batch-major, as
``choices.choose_layout`` says. See docs/notes/0002-engine.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from horn import random
from horn._kernels import blas
from horn._kernels.engine import Anchor, Coef, Dim, Drawn, Iota, Ragged, Scalar, Tape, View
from horn.backends import Array, Setup
from horn.backends._compiled import CompiledEngine, constant
from horn.backends._step_buffers import StepBuffer, aligned, is_aligned
from horn.backends._windows import WindowLists
from horn.data import Dataset
from horn.ir import Node, Op
from horn.neuron import OF_A_SAMPLE
from horn.partition.share import LocalEdges, Share, edge_link
from horn.program import (
    AllSteps,
    Buffer,
    ChannelSum,
    Convolve,
    Draw,
    Expand,
    Frame,
    Input,
    Live,
    Loop,
    Matmul,
    Output,
    Parts,
    Pick,
    Program,
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
    out_letters,
    segments,
    writes,
)
from horn.scheduling.choices import (
    MAX_LIVE_ROWS,
    choose_layout,
    choose_threads,
    only_multiplied,
    parts_of_wholes,
)
from horn.scheduling.folds import End, Fold, Joined, only_fold, plan
from horn.scheduling.lifetimes import rooms
from horn.scheduling.passes import Pass, passes

IN_PARTS = 2  # how a range of instructions runs: once 0, step by step 1, or in reverse -1
SCALARS = (
    "learning_rate", "iteration", "updates", "rows", "inv_rows", "begins", "inv_steps",
)  # fmt: skip


@dataclass(frozen=True)
class EdgeLists:
    """A sparse link's synapses, those of this task, as index lists, seen from the receivers and
    from the sources that it has.
    """

    indptr: Array  # (n_receivers + 1,) int64
    sources: Array  # (n_edges,) int32, in edge order
    receivers: Array  # (n_edges,) int32
    back_indptr: Array  # (n_sources + 1,)
    back_edges: Array  # edge numbers by source
    back_receivers: Array

    @classmethod
    def of(cls, edges: LocalEdges) -> EdgeLists:
        sources = np.ascontiguousarray(edges.sources, np.int32)
        counts = np.diff(edges.indptr)
        receivers = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        by_source = np.argsort(sources, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(sources, minlength=edges.n_sources))
        return cls(
            np.ascontiguousarray(edges.indptr, np.int64),
            sources,
            receivers,
            np.concatenate([[0], ends]).astype(np.int64),
            by_source,
            np.ascontiguousarray(receivers[by_source]),
        )


class Runner:
    """One program, or a task's share of it, as a tape."""

    is_static = True

    def __init__(
        self,
        program: Program,
        arrays: dict[str, Array],
        setup: Setup,
        batch_size: int,
        share: Share | None = None,
    ) -> None:
        self.program, self.setup = program, setup
        self.network = program.network
        self.share = share or Share(program.network)
        self.segments = segments(program)
        self.dtype = np.dtype(setup.dtype)
        self.batch_size = batch_size
        n_threads = choose_threads(self.network, batch_size, setup.threads, self.share.n_tasks)
        library = blas.load()
        self.tape = Tape(self.dtype, n_threads, library)
        self.layout = choose_layout(program, self.tape.products, batch_size)
        self.rows: Dim = self.tape.dim(batch_size)
        self.own = self._places("b@own")  # the rows of "b@own", which has a length of its own
        n_own = self.own.stop - self.own.start
        self.own_rows = self.rows if n_own == batch_size else self.tape.dim(n_own)
        self.of_a_step = self.rows, self.own_rows
        self.iteration: Dim = self.tape.dim(random.ONCE)
        self.once: Dim = self.tape.dim(random.ONCE)  # what is drawn for the whole run has this
        self.scalars: dict[str, Scalar] = {name: self.tape.scalar() for name in SCALARS}
        self.step: Scalar = self.tape.scalar()  # learning rate per row
        self.steps, self.is_wide = program.held, False  # that buffers have
        self.longest = program.steps  # how many the longest sequence of the batch has
        self.first_step, self.n_steps, self.first_sample = 0, self.steps, 0  # of the part that runs
        self.pieces: dict[str, list[tuple[int, int, int]]] = {}  # of Parts, as bounds
        self.begun: list[list[Array]] = []  # what lay before the steps of each part
        self.lengths: Array | None = None  # of the data's sequences, where some end early
        self.turned: dict[str, tuple[Array, Dim]] = {}  # by axis, the rows of a reversal
        self.ends_of: dict[str, str] = {}  # buffer -> "valid" or "last", as Target has it
        self.steady: Set[str] = frozenset()  # buffers that stay as they are while steps go by
        self.spans: dict[str, StepBuffer] = {}
        self.all_steps: dict[str, Array] = {}  # buffers of all steps together
        self.several: tuple[Dim, Dim] = (self.rows, self.own_rows)  # rows of all steps
        if self.steps:
            rows = self.tape.dim(batch_size * self.steps)
            own = self.own_rows is not self.rows
            self.several = rows, self.tape.dim(n_own * self.steps) if own else rows
        self.ends: list[tuple[Array, Array]] | None = None  # of spans, where a sequence goes on
        # of samples, by their axis and how often they draw
        self.numbers: dict[tuple[str, str], StepBuffer] = {}
        self.picks = np.zeros(batch_size, np.int64)
        self.samples = np.zeros(batch_size, np.uint64)
        self.sequences = self.samples.copy()
        self.offsets = np.arange(batch_size, dtype=np.uint64)
        self.reads_samples = False
        self.n_rows = 0
        self.edges: dict[tuple[int, int, str], EdgeLists] = {}
        self.taken: dict[str, str] = {}  # full buffer -> its live part, as long as both agree
        self.alive: dict[int, tuple[Array, Dim]] = {}  # layer -> its live neurons, how many
        # live parts that nobody needs side by side, and what they are parts of
        self.in_place: dict[str, str] = {}
        if self.tape.reads_live and batch_size <= MAX_LIVE_ROWS:
            self.in_place = only_multiplied(program)
        # instructions that read the data: x, y or weight, and which columns of it
        self.loads: list[tuple[int, str, slice | int]] = []
        known = self.network.remembered
        self.carried = [
            n for n, b in program.buffers.items() if b.role == "carried" and n in known
        ]
        # for how many rows and steps what lies before and after the steps is 0
        self.n_zeroed = 0, 0
        self.persistent = arrays
        self.inside = parts_of_wholes(program, self.share)
        # steps lie inside other statements: there each is done by itself
        self.plan: Joined = Joined({}, frozenset(), {}) if program.steps else plan(program)
        self.rooms = rooms(program)
        self.arrays: dict[str, Array] = {}
        for name in program.buffers:
            self._allocate(name)

        self.made: list[tuple[int, int]] = []  # of each statement between exchanges, instructions
        self.is_batch = False
        for statement in program.prologue:
            self._lower(statement)
        self.is_batch = True
        self.tape.dims[self.iteration.index] = random.ONCE
        self.tape.run()
        self.first = len(self.tape)
        self.anchors: dict[str, Anchor] = {}  # of buffers that move
        # of each segment, in instructions, with whether it is repeated: 1, or -1 in reverse
        self.bounds: list[list[tuple[int, int, int]]] = []
        for segment in self.segments:
            self.bounds.append(self._lower_all(segment))
        spans = {id(span): span for span in (*self.spans.values(), *self.numbers.values())}
        for span in spans.values():
            span.move(self.tape)

    def _lower_all(self, statements: Sequence[Statement]) -> list[tuple[int, int, int]]:
        """The instructions of statements, with how they run."""
        found: list[tuple[int, int, int]] = []
        for statement in statements:
            before, turns = len(self.tape), 0
            if isinstance(statement, Parts):
                for what in ("forward", "behind", "judge", "backward"):
                    self.pieces[what] = self._lower_all(getattr(statement, what))
                turns = IN_PARTS
            else:
                self._lower(statement)
            if isinstance(statement, Repeat):
                turns = -1 if statement.reverse else 1
            if found and not found[-1][2] and not turns:
                before = found.pop()[0]
            found.append((before, len(self.tape), turns))
        return found

    def _allocate(self, name: str) -> Array:
        """A buffer's array, its axes in the program's order, whatever its layout."""
        if name not in self.arrays:
            buffer = self.program.buffers[name]
            if buffer.role == "late":
                whole, delay = buffer.value
                self._allocate(whole)
                self._as_span(name, self.spans[whole].late(delay))
            elif name in self.rooms:
                self._allocate(self.rooms[name])
                self._as_span(name, self.spans[self.rooms[name]])
            elif buffer.span is not None:
                self._as_span(name, self._span(buffer))
            elif buffer.role == "view":
                self.arrays[name] = self._part_of(buffer.value[0], buffer)
            elif name in self.inside:
                self.arrays[name] = self._part_of(self.inside[name], buffer)
            else:
                self.arrays[name] = self._array(name, buffer, self.persistent)
        return self.arrays[name]

    def _span(self, buffer: Buffer) -> StepBuffer:
        assert buffer.span is not None
        rows = buffer.axes[0]
        shape = [self._length(axis) for axis in buffer.axes]
        dim = self.rows if rows == "b" else self.own_rows
        turned = self.layout == "neuron" and len(shape) == 2
        return StepBuffer.of(shape, self.dtype, self.steps, buffer.span, dim, turned)

    def _as_span(self, name: str, span: StepBuffer) -> None:
        self.spans[name] = span
        self.arrays[name], self.all_steps[name] = span.step, span.all_steps

    def _part_of(self, whole: str, buffer: Buffer) -> Array:
        """A buffer in the memory of another, which has more along some axes."""
        have = self.program.buffers[whole].axes
        return self._allocate(whole)[
            tuple(
                self.share.within(b, a, self.batch_size)
                for a, b in zip(have, buffer.axes, strict=True)
            )
        ]

    def _array(self, name: str, buffer: Buffer, arrays: dict[str, Array]) -> Array:
        if buffer.role in ("learned", "state", "slot"):
            if not is_aligned(arrays[name]):
                arrays[name] = aligned(arrays[name].shape, arrays[name].dtype, arrays[name])
            array = arrays[name]
            return array.reshape(-1) if len(buffer.axes) == 1 else array  # shared: it has a shape
        if buffer.role == "constant":
            if (
                buffer.value[0] == "edge"
            ):  # compared with an argmax: the place in the receiver's row
                edges = self._edges(*edge_link(buffer.axes[0]), buffer.axes[0].partition("@")[2])
                places = np.arange(len(edges.sources)) - edges.indptr[edges.receivers]
                return places.astype(self.dtype)
            return constant(buffer.value, self.network, self.dtype, self.share, buffer.axes)
        shape = [self._length(axis) for axis in buffer.axes]
        if self.layout == "neuron" and len(shape) == 2 and base(buffer.axes[0]) == "b":
            return aligned(shape[::-1], self.dtype).T
        return aligned(shape, self.dtype)

    def _length(self, axis: str) -> int:
        return self.share.length(axis, self.batch_size)

    def _places(self, axis: str) -> slice:
        """What of the whole axis a share has that is a range."""
        if base(axis) == "b":
            return self.share.rows(axis, self.batch_size, self.batch_size)
        places = self.share.places(axis)
        assert isinstance(places, slice), axis
        return places

    def _edges(self, layer: int, link: int, split: str) -> EdgeLists:
        key = (layer, link, split)
        if key not in self.edges:
            self.edges[key] = EdgeLists.of(self.share.edges(layer, link, split))
        return self.edges[key]

    # --- Runner

    def bind(self, data: Dataset) -> None:
        x = data.x
        if x.dtype not in (np.uint8, np.float32, np.float64, np.int32, np.int64):
            x = x.astype(self.dtype)
        y = data.y
        if y is not None and y.dtype not in (np.float32, np.float64, np.int32, np.int64):
            y = y.astype(np.int64 if y.dtype.kind in "iub" else self.dtype)
        self.n_samples = len(data)
        self.lengths = data.lengths
        center, factor, scale = None, None, data.scale
        if data.normalization is not None:  # which holds the scale
            (center, factor), scale = data.normalization.steps(scale, self.dtype), 1.0
        for number, what, columns in self.loads:
            if self.steps:
                source = {"x": x, "weight": data.weight, "y": y}[what.partition(" ")[0]]
                assert source is not None
                self.tape.scalars[self.scale.index] = scale
                self.tape.rebind(number, source[:, columns] if source.ndim == 2 else source)
            elif what == "x":
                own = [None if v is None else v[columns].copy() for v in (center, factor)]
                self.tape.rebind(number, x[:, columns], *own)
                self.tape.scalars[self.scale.index] = scale
            elif what == "weight":
                assert data.weight is not None
                self.tape.rebind(number, data.weight)
            elif y is not None:
                self.tape.rebind(number, y[:, columns] if y.ndim == 2 else y)

    def run(self, rows: Array, scalars: Mapping[str, float], first_sample: int) -> None:
        self.start(rows, scalars, first_sample)
        if not self.steps:
            self.tape.run(self.first)
            return
        for segment in range(len(self.segments)):
            self.compute(segment)

    def start(self, rows: Array, scalars: Mapping[str, float], first_sample: int) -> None:
        n = self.n_rows = len(rows)
        if not self.tape.pick(rows, self.picks, self.n_samples):
            raise IndexError(f"rows must be in 0 to {self.n_samples - 1}, got {rows!r}")
        if self.reads_samples and not self.steps:
            np.add(self.offsets[:n], np.uint64(first_sample), out=self.samples[:n])
            self.sequences[:n] = random.of_sequences(self.samples[:n])
        tape = self.tape
        dims, numbers = tape.dims, tape.scalars
        dims[self.rows.index] = n
        if self.own_rows is not self.rows:
            dims[self.own_rows.index] = self._own_rows()
        dims[self.iteration.index] = int(scalars["iteration"])
        for name, scalar in self.scalars.items():
            numbers[scalar.index] = scalars.get(name, 1.0)  # "begins", "inv_steps": not of all
        numbers[self.step.index] = scalars["learning_rate"] * scalars["inv_rows"]
        if self.steps:
            self._start_steps(first_sample)

    def _start_steps(self, first_sample: int) -> None:
        if self.lengths is not None:
            self.longest = int(self.lengths[self.picks[: self.n_rows]].max(initial=1))
        if (self.n_rows, self.longest) != self.n_zeroed:  # another batch's numbers lie there
            self._zero_around()
            self.n_zeroed = self.n_rows, self.longest
        self.first_sample = first_sample
        self._enter(0, min(self.steps, self.longest))

    def _enter(self, first: int, n_steps: int) -> None:
        """From now on steps are those of a part that begins with the first."""
        self.first_step, self.n_steps = first, n_steps
        for each, rows in zip(self.several, (self.rows, self.own_rows), strict=True):
            self.tape.dims[each.index] = self.tape.dims[rows.index] * n_steps
        at = np.arange(first, first + n_steps)[:, None]
        for (axis, per), span in self.numbers.items():
            n = int(self.tape.dims[span.rows.index])
            begin = self.first_sample
            begin += self.share.rows(axis, self.batch_size, self.batch_size).start
            samples = np.arange(begin, begin + n, dtype=np.uint64)
            numbers = (at.astype(np.uint64) << np.uint64(32)) + samples
            numbers = random.of_sequences(numbers) if per == "sequence" else numbers
            span.memory[: n_steps * n] = numbers.ravel()
        for axis, (turned, dim) in self.turned.items():
            n = int(self.tape.dims[dim.index])
            own = np.full(n, n_steps)
            if self.lengths is not None:
                lengths = self.lengths[self.picks[: self.n_rows]]
                own = lengths[self.share.rows(axis, self.n_rows, self.batch_size)]
            there = np.where(at < own, own - 1 - at, at) * n + np.arange(n)
            turned[: there.size] = there.ravel()
        for name, kind in self.ends_of.items():
            if name not in self.spans:  # nobody reads it
                continue
            assert self.lengths is not None
            lengths = self.lengths[self.picks[: self.n_rows]]
            span, axis = self.spans[name], self.program.buffers[name].axes[0]
            own = lengths[self.share.rows(axis, self.n_rows, self.batch_size)]
            ends = at < own if kind == "valid" else at == own - 1
            lies = span.first * len(own)
            span.memory[lies : lies + ends.size] = ends.ravel()
        self.tape.seek(0, first)

    def _zero_around(self) -> None:
        """Before the first step and after the last one of a batch of so many rows are zeros; of
        sequences that have all steps also at those that nobody writes.
        """
        if self.lengths is None:
            self.forget()
            return
        for span in self._own_spans().values():
            n = int(self.tape.dims[span.rows.index])
            span.before(n)[...] = 0
            if self.longest <= self.steps:
                span.behind(n, self.longest)[...] = 0

    def carry(self) -> None:
        if self.ends is None:
            self.ends = [span.ends(1) for span in self._own_spans().values() if span.first]
        for before, last in self.ends:
            before[...] = last.copy() if len(last) > self.steps else last

    def forget(self) -> None:
        for span in self._own_spans().values():
            span.memory.fill(0)

    def heard(self) -> dict[str, Array]:
        found = {}
        for name, span in self._own_spans().items():
            if span.first:
                n = self._rows_of(span)
                _, last = span.ends(n)
                size = math.prod(last.shape[1:])
                found[name] = last.reshape(span.first, n, size).swapaxes(0, 1).copy()
        for name in self.carried:
            here = self._own_part(name)
            found[name] = here.reshape(len(here), 1, math.prod(here.shape[1:])).copy()
        return found

    def hear(self, rows: int, heard: Mapping[str, Array]) -> None:
        if (rows, self.longest) != self.n_zeroed:
            self.forget()
            self.n_zeroed = rows, self.longest
        self.n_rows = rows
        for name, span in self._own_spans().items():
            if span.first:
                n = self._rows_of(span)
                before, _ = span.ends(n)
                before[...] = 0.0
                if name in heard:
                    given = heard[name][:n, -span.first :].swapaxes(0, 1)
                    before[...] = given.reshape(before.shape)
        for name in self.carried:
            if name in heard:
                here = self._own_part(name)
                here[...] = heard[name][: len(here), -1].reshape(here.shape)

    def _own_part(self, name: str) -> Array:
        """The rows of this batch of a buffer that rows carry."""
        is_all = self.program.buffers[name].axes[0] == "b"
        return self.arrays[name][: self.n_rows if is_all else self._own_rows()]

    def _rows_of(self, span: StepBuffer) -> int:
        """How many rows of this batch a buffer has: all, or this task's."""
        return self.n_rows if span.rows is self.of_a_step[0] else self._own_rows()

    def _own_spans(self) -> dict[str, StepBuffer]:
        buffers = self.program.buffers
        return {name: span for name, span in self.spans.items() if buffers[name].role != "late"}

    @property
    def bytes_of_steps(self) -> int:
        """What buffers of all steps take, and what is kept of where parts begin."""
        memories = {id(s.memory): s.memory.nbytes for s in self.spans.values()}
        return sum(memories.values()) + sum(a.nbytes for part in self.begun for a in part)

    def compute(self, segment: int) -> None:
        self._compute(self.bounds[segment])

    def _compute(self, bounds: Sequence[tuple[int, int, int]]) -> None:
        for first, last, turns in bounds:
            if turns == IN_PARTS:
                self._compute_parts()
            elif turns:
                self.tape.repeat(first, last, self.n_steps, turns < 0)
            else:
                self.tape.run(first, last)

    def _compute_parts(self) -> None:
        """As ``Parts`` says."""
        n, steps = self.n_rows, self.longest
        spans = [s for s in self._own_spans().values() if s.first or s.after]
        firsts = range(0, steps, self.steps)
        if not self.begun:
            parts = range(0, self.program.steps, self.steps)
            self.begun = [[np.empty_like(s.before(self.batch_size)) for s in spans] for _ in parts]
        begun_all = self.begun[: len(firsts)]
        for first, begun in zip(firsts, begun_all, strict=True):
            self._enter(first, min(self.steps, steps - first))
            for kept, span in zip(begun, spans, strict=True):
                kept[: span.first * n] = span.before(n)
            if first < firsts[-1]:
                self._compute(self.pieces["forward"])
                for span in spans:
                    span.before(n)[...] = span.at_end(n, self.n_steps).copy()
        for first, begun in zip(reversed(firsts), reversed(begun_all), strict=True):
            for span in spans:  # what the part behind said, which had other steps
                told = 0.0 if first == firsts[-1] else span.told(n).copy()
                span.behind(n, min(self.steps, steps - first))[...] = told
            self._enter(first, min(self.steps, steps - first))
            for kept, span in zip(begun, spans, strict=True):
                span.before(n)[...] = kept[: span.first * n]
            self._compute(self.pieces["forward"])
            self._compute(self.pieces["behind"])
            if first == firsts[-1]:
                self._compute(self.pieces["judge"])
            self._compute(self.pieces["backward"])

    def array(self, name: str) -> Array:
        return self.arrays[name]

    def target_array(self, name: str) -> Array:
        return self.arrays[name]

    def _own_rows(self) -> int:
        """How many rows of this batch are this task's: a short batch leaves the last tasks less."""
        return max(0, int(min(self.n_rows, self.own.stop) - self.own.start))

    def settle(self, name: str, memory: Array) -> None:
        """From now on a buffer lies in this memory, which is contiguous and as large."""
        if name not in self.anchors:
            self.anchors[name] = self.tape.anchor(self.arrays[name])
        self.anchors[name].settle(memory)

    def place(self, name: str, memory: Array) -> None:
        if name not in self.program.buffers:
            return
        self.settle(name, memory)
        self.arrays[name] = memory.reshape(self.arrays[name].shape)
        for view, buffer in self.program.buffers.items():
            if buffer.role == "view" and buffer.value[0] == name:
                self.arrays[view] = self._part_of(name, buffer)

    def value(self, name: str) -> Array:
        if name in self.spans:
            span = self.spans[name]
            return span.value(int(self.tape.dims[span.rows.index]), self.n_steps)
        buffer, array = self.program.buffers[name], self.arrays[name]
        if buffer.axes and base(buffer.axes[0]) == "b":
            array = array[: self.n_rows if buffer.axes[0] == "b" else self._own_rows()]
        if buffer.full or not self.alive:
            return array
        for axis, label in enumerate(buffer.axes):
            k = layer_of(label)
            if k in self.alive:
                kept, count = self.alive[k]
                live = kept[: self.tape.dims[count.index]]
                whole = np.zeros(array.shape, array.dtype)
                place: tuple[Any, ...] = (slice(None),) * axis
                whole[(*place, live)] = array[(*place, slice(0, len(live)))]
                array = whole
        return array

    def mean(self, name: str) -> float:
        whole = self.program.buffers[name].axes[0] == "b"
        n = self.n_rows if whole else self._own_rows()
        return self.tape.total(self.arrays[name][:n]) / n

    def push(self) -> None:
        """Nothing to do: the tape works on the persistent arrays themselves."""

    def pull(self) -> None:
        """Nothing to do: the tape works on the persistent arrays themselves."""

    # --- statements

    def _lower(self, s: Statement) -> None:
        before = len(self.tape)
        self._statement(s)
        if self.is_batch and not isinstance(s, (Repeat, AllSteps)):
            self.made.append((before, len(self.tape)))

    def _statement(self, s: Statement) -> None:
        if id(s) in self.plan.with_end:
            first, end = self.plan.with_end[id(s)]
            if isinstance(first, Convolve):
                self._convolve(first, end)
            else:
                assert isinstance(first, Loop)
                fold = only_fold(self.program, first)
                assert fold is not None
                self._fold(first, fold, end)
        elif id(s) in self.plan.done:
            pass
        elif isinstance(s, Repeat):
            moving = {name for each in s.body for name in writes(each)} | self.spans.keys()
            self.steady = self.program.buffers.keys() - moving
            for statement in s.body:
                self._lower(statement)
            self.steady = frozenset()
        elif isinstance(s, AllSteps):
            of_a_step = self.arrays, self.rows, self.own_rows
            self.arrays = {**self.arrays, **self.all_steps}
            (self.rows, self.own_rows), self.is_wide = self.several, True
            for statement in s.body:
                self._lower(statement)
            (self.arrays, self.rows, self.own_rows), self.is_wide = of_a_step, False
        elif isinstance(s, Input):
            self._data(s.out, "x", True)
        elif isinstance(s, Target) and s.kind in ("valid", "last"):
            self.ends_of[s.out] = s.kind
        elif isinstance(s, Target):
            what = {"input": "x", "weight": "weight"}.get(s.kind, "y")
            self._data(s.out, what, s.each_step, s.first)
        elif isinstance(s, Draw):
            self._draw(s)
        elif isinstance(s, Live):
            size = self.network.layers[s.layer].size
            kept = np.zeros(size + 1, np.int32)
            count = self.tape.dim(size)
            self.tape.live(self.arrays[s.mask], kept, count, label=s.mask)
            self.alive[s.layer] = (kept, count)
        elif isinstance(s, Take):
            self._take(s)
        elif isinstance(s, Pick):
            self._pick(s)
        elif isinstance(s, Matmul):
            self._matmul(s)
        elif isinstance(s, Update):
            self._update(s)
        elif isinstance(s, Rank):
            self._rank(s)
        elif isinstance(s, ChannelSum):
            self._channel_sum(s)
        elif isinstance(s, Convolve):
            self._convolve(s)
        elif isinstance(s, Expand):
            self._expand(s)
        elif isinstance(s, ScatterAdd):
            self._scatter_add(s)
        elif isinstance(s, Turn):
            self._turn(s)
        elif isinstance(s, Reverse):
            self._reverse(s)
        else:
            assert isinstance(s, Loop), s
            self._loop(s)
            for output in s.outputs:
                self.taken.pop(output.buffer, None)

    def _data(self, out: str, what: str, each_step: bool, first: int = -1) -> None:
        """Read a batch's rows of what is bound; of the targets of several outputs the columns from
        ``first``.
        """
        array, (rows, *columns) = self.arrays[out], self.program.buffers[out].axes
        source = np.zeros((1, *array.shape[1:]), self.dtype)
        here: dict[str, Any] = {"rows": self._extent(rows), "label": out}
        if what == "x" or self.steps:
            if not hasattr(self, "scale"):
                self.scale: Scalar = self.tape.scalar(1.0)
        if what == "x":
            here["scale"] = self.scale
        number = self.tape.load(source, self.picks[self._places(rows)], array, **here)
        taken = self._places(columns[0]) if columns else slice(None)
        if self.steps and each_step:
            n = len(range(*taken.indices(array.shape[1]))) if columns else 1
            self.tape.step_load(number, self.program.network.layers[0].size if what == "x" else n)
            taken = taken if columns else slice(0, 1)
        own: slice | int = taken
        if first >= 0:
            is_wide = columns or (self.steps and each_step)
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
        draw |= {"first": self._places(neurons).start, "label": s.out}
        if s.per in OF_A_SAMPLE:
            samples = self.sample_numbers(axes[0], s.per)
            self.tape.draw(out, kind, rows=self._extent(axes[0]), samples=samples, **draw)
        elif s.per == "synapse" and len(axes) == 2:
            here = self._places(axes[1])
            sources = np.arange(here.start, here.stop, dtype=np.uint64) + np.uint64(s.link << 32)
            self.tape.draw(out.T, kind, samples=sources, **draw)
        elif s.per == "synapse":
            self.tape.draw(out[None, :], kind, samples=np.array([s.link << 32], np.uint64), **draw)
        else:
            self.tape.draw(out[None, :], kind, **draw)

    def sample_numbers(self, axis: str, per: str) -> Array:
        """The numbers of the samples along an axis; of sequences of one step, or of all of them:
        with the step, or the same at each where they draw per sequence.
        """
        self.reads_samples = True
        if not self.steps:
            return (self.sequences if per == "sequence" else self.samples)[self._places(axis)]
        if (axis, per) not in self.numbers:
            places = self._places(axis)
            rows = places.stop - places.start
            dim = self.of_a_step[axis != "b"]
            span = StepBuffer.of([rows], np.dtype(np.uint64), self.steps, (0, 0), dim, False)
            self.numbers[axis, per] = span
        span = self.numbers[axis, per]
        return span.all_steps if self.is_wide else span.step

    def _edge_draws(self, kind: str, key: random.Key, s: Draw) -> Array:
        """A sparse link's synapse draws: neuron = receiver, sample = (link << 32) + source."""
        draw = random.normal if kind == "normal" else random.uniform
        whole = self.network.layers[s.layer].links[s.link].edges
        assert whole is not None
        (axis,) = self.program.buffers[s.out].axes
        places = self.share.places(axis)
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
        """A copy of some places of an array, along at most one axis none that are a range."""
        axes = self.program.buffers[s.out].axes
        names = [f"a{k}" for k in range(len(axes))]
        array, index = self.arrays[s.array], {}
        have = self.program.buffers[s.array].axes
        for k, (name, a, b) in enumerate(zip(names, have, axes, strict=True)):
            if a == b:
                continue
            if base(b) == "b" or isinstance(self.share.places(b), slice):
                array = array[(slice(None),) * k + (self._places(b),)]
            else:
                index[name] = np.ascontiguousarray(self.share.places(b), np.int32)
        extents = {name: self._extent(axis) for name, axis in zip(names, axes, strict=True)}
        view = View(array, names, index, ascending=True)
        self.tape.loop(extents, [view], [], [(View(self.arrays[s.out], names), 0)], label=s.out)

    def _reverse(self, s: Reverse) -> None:
        """A copy of all steps, by a list of the rows that each batch has."""
        assert self.is_wide
        (rows, _), names = self.program.buffers[s.out].axes, ("a0", "a1")
        if rows not in self.turned:
            dim = self.of_a_step[rows != "b"]
            self.turned[rows] = np.zeros(self._length(rows) * self.steps, np.int32), dim
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
        view = self._live_view(s.array, names)
        self.tape.loop(extents, [view], [], [(View(self.arrays[s.out], names), 0)], label=s.out)
        self.taken[s.array] = s.out

    def _extent(self, axis: str) -> int | Dim:
        if base(axis) == "b":
            return self.rows if axis == "b" else self.own_rows
        if layer_of(axis) in self.alive:
            return self.alive[layer_of(axis)][1]
        return self._length(axis)

    def _live_view(self, name: str, names: Sequence[str]) -> View:
        """A full buffer at its live places."""
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
        if not c.size:  # a range of a layer that has fewer neurons than there are groups
            return
        extent = self._extents(s.frame)
        if s.b in self.in_place:
            axes = s.b_axes.replace(s.axis, "k").replace(right, "n")
            w = self._live_view(self.in_place[s.b], axes)
            self.tape.live_gemm(
                a, w, c, beta=0.0, m=extent[left], n=extent[right], k=extent[s.axis], label=s.out
            )
            return
        self.tape.gemm(a, b, c, beta=0.0, m=extent[left], n=extent[right], k=extent[s.axis],
                       thin=s.frame.grouped, steady=s.b in self.steady,
                       label=s.out)  # fmt: skip

    def _convolve(self, s: Convolve, end: End | None = None) -> None:
        layer = self.network.layers[s.frame.layer]
        link = layer.links[s.frame.link or 0]
        rows = self._extent(letter_axes(self.network, s.frame, "b")[0])
        receivers, senders = (
            self.share.places(letter_axes(self.network, s.frame, x)[0]) for x in "oi"
        )
        by_channels = s.frame.split == "m"
        windows = WindowLists.of(link, receivers, senders, by_channels)
        name = end.out if end else s.out
        a, b, out = self.arrays[s.a].T, self.arrays[s.b], self.arrays[name]
        if not out.size:
            return
        here: dict[str, Any] = {"rows": rows, "label": name}
        if s.axis == "b":
            maps, below = (b.T, a) if link.is_turned else (a, b.T)
            grid = out.reshape(-1, windows.sources.shape[1])
            self.tape.window_gradients(below, maps, grid, src=windows.sources, **here)
        else:
            is_to_maps = (s.axis == "i") != link.is_turned
            lists = windows.to_maps if is_to_maps else windows.to_channels
            if end:
                here["relu"] = end.relu
                here["bias"] = self.arrays[end.bias] if end.bias else None
                here["gate"] = self.arrays[end.gate].T if end.gate else None
            self.tape.windows(a, b, out.T, **lists, **here)

    def _fold(self, s: Loop, fold: Fold, end: End | None = None) -> None:
        """A fold of windows, and where the extreme was, if somebody asks."""
        edges = self._edges(s.frame.layer, s.frame.link or 0, s.frame.split)
        name = end.out if end else s.outputs[0].buffer
        here: dict[str, Any] = {"rows": self._extent(self.program.buffers[name].axes[0])}
        here |= {"ptr": edges.indptr, "src": edges.sources}
        if fold.axis == "o":
            here |= {"ptr": edges.back_indptr, "src": edges.back_receivers}
        if fold.upper:
            here["upper"] = self.arrays[fold.upper].T
            here["place"] = self.arrays[fold.place][edges.back_edges]
        if id(s) in self.plan.places:
            here["where"] = self.arrays[self.plan.places[id(s)]].T
        if end and end.gate:
            here["gate"] = self.arrays[end.gate].T
        x, out = self.arrays[fold.source].T, self.arrays[name].T
        self.tape.pool(x, out, fold.kind, **here, label=name)

    def _expand(self, s: Expand) -> None:
        (axis,) = self.program.buffers[s.out].axes
        numbers = np.ascontiguousarray(self.share.numbers(axis), np.int32)
        view = View(self.arrays[s.array], "o", {"o": numbers})
        self.tape.loop({"o": len(numbers)}, [view], [], [(View(self.arrays[s.out], "o"), 0)],
                       label=s.out)  # fmt: skip

    def _scatter_add(self, s: ScatterAdd) -> None:
        """A row for each shared number, of those that have it."""
        (axis,), out = self.program.buffers[s.array].axes, self.arrays[s.out]
        numbers = self.share.numbers(axis)
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

    def _channel_sum(self, s: ChannelSum) -> None:
        """A number for each sample and channel, and that for all its positions."""
        layer = self.network.layers[s.frame.layer]
        array, out = (
            a.reshape(*a.shape[:-1], -1, layer.extents[-1])
            for a in (self.arrays[s.array], self.arrays[s.out])
        )
        assert np.shares_memory(out, self.arrays[s.out])
        rows = "b" * (array.ndim - 2)
        total = np.zeros(array.shape[:-2] + array.shape[-1:], self.dtype)
        extent: dict[str, Any] = {"p": layer.n_positions, "c": layer.extents[-1]}
        extent |= {"b": self._extents(s.frame)["b"]} if rows else {}
        self.tape.loop(extent, [View(array, f"{rows}pc")], [], [(View(total, f"{rows}c"), 0)],
                       reduce=("sum", "p"), label=s.out)  # fmt: skip
        self.tape.loop(extent, [View(total, f"{rows}c")], [], [(View(out, f"{rows}pc"), 0)],
                       label=s.out)  # fmt: skip

    def _rank(self, s: Rank) -> None:
        """The sum over all others of whether they come before."""
        extent, array = self._extents(s.frame), self.arrays[s.array]
        ops = [("gt", 0, 1), ("eq", 0, 1), ("lt", 2, 3), ("and", 5, 6), ("or", 4, 7)]
        self.tape.loop(
            {"b": extent["b"], "o": extent["o"], "i": extent["o"]},
            [View(array, "bi"), View(array, "bo"), Iota("i"), Iota("o")], ops,
            [(View(self.arrays[s.out], "bo"), 8)], reduce=("sum", "i"), label=s.out,
        )  # fmt: skip

    def _update(self, s: Update) -> None:
        delta, x, w = self.arrays[s.a].T, self.arrays[s.b], self.arrays[s.weight]
        step = Coef(-1.0, self.scalars["learning_rate"], per=self.of_a_step[0])
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
        if s.velocity is None:
            self.tape.gemm(delta, x, w, alpha=step, beta=1.0, k=self.rows, label=s.weight)
            return
        v = self.arrays[s.velocity]
        self.tape.gemm_loop(
            delta, x, v, alpha=step, beta=s.momentum, k=self.rows, label=s.weight,
            inputs=[View(w, "mn"), View(v, "mn")], ops=[("add", 0, 1)],
            outputs=[(View(w, "mn"), 2)],
        )  # fmt: skip

    def _update_live(self, s: Update, delta: Array, x: Array, step: Coef) -> None:
        """The update at the live places. The product itself is seldom written (Tape.gemm_loop)."""
        extent = self._extents(s.frame)
        product = np.empty(self.arrays[s.weight].shape, self.dtype)
        w = self._live_view(s.weight, "mn")
        inputs: list[Any] = [w, View(product, "mn")]
        ops: list[tuple[Any, ...]] = [("add", 0, 1)]
        outputs = [(w, 2)]
        if s.velocity is not None:
            v = self._live_view(s.velocity, "mn")
            inputs = [w, v, View(product, "mn"), s.momentum]
            ops = [("fma", 1, 3, 2), ("add", 0, 4)]
            outputs = [(v, 4), (w, 5)]
        self.tape.gemm_loop(
            delta, x, product, alpha=step, m=extent["o"], n=extent["i"], k=self.rows,
            inputs=inputs, ops=ops, outputs=outputs, label=s.weight,
        )  # fmt: skip

    def _extents(self, frame: Frame) -> dict[str, int | Dim]:
        """What the letters of a frame run over; "1" is for what has no axes."""
        extent: dict[str, int | Dim] = {"1": 1}
        letters = "o" if frame.shared else "bo" if frame.link is None else "boi"
        for letter in letters:
            (axis,) = letter_axes(self.network, frame, letter)
            extent[letter] = self._extent(axis)
        return extent

    # --- loops

    def _loop(self, s: Loop) -> None:
        fold = only_fold(self.program, s)
        if fold:
            self._fold(s, fold)
            return
        for each in passes(s):
            self._pass(s, each)

    def _pass(self, s: Loop, each: Pass) -> None:
        """One engine loop: elementwise with all its outputs, or one reduction."""
        frame, axis = s.frame, each.axis
        domain = each.domain(self.network, frame, self.program.buffers)
        edges = None
        if frame.link is not None and "o" in domain and "i" in domain:
            link = link_of(self.network, frame)
            if link.edges is not None:
                edges = self._edges(frame.layer, frame.link, frame.split)
        place = _Places(self, s, domain, edges, axis)
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

        def number(value: tuple[str, int]) -> int:
            return value[1] + (len(inputs) if value[0] == "op" else 0)

        outputs = zip(each.outputs, each.results, strict=True)
        self.tape.loop(
            place.axes, inputs, [(name, *map(number, args)) for name, *args in each.ops],
            [(place.out(o), number(value)) for o, value in outputs],
            reduce=(each.monoid, place.folded) if axis else None, label=each.outputs[0].buffer,
        )  # fmt: skip


class _Places:
    """Where the letters of one loop lie: as themselves, or on the edges of a sparse link.

    On edges everything is taken along one axis "e" of all edges; a reduction over the sources of a
    receiver (i) or the receivers of a source (o) makes that axis ragged.
    """

    def __init__(
        self, runner: Runner, s: Loop, domain: str, edges: EdgeLists | None, axis: str
    ) -> None:
        self.runner, self.s, self.edges, self.axis = runner, s, edges, axis
        extent = runner._extents(s.frame)
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
        """A loaded buffer, seen along letters."""
        runner, edges = self.runner, self.edges
        array = runner.arrays[name]
        if not letters:
            return View(array.reshape(()), ())
        buffer = runner.program.buffers[name]
        if edges is None:
            if self.s.scatter and buffer.full:
                if name in runner.taken:  # gathered for the forward pass, and not changed since
                    return View(runner.arrays[runner.taken[name]], letters)
                return runner._live_view(name, letters)
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
        """Draws of the frame's messages; of the bias there is no letter i."""
        runner, network = self.runner, self.runner.network
        kind, site, per, number, position = node.value
        layer, axes = network.layers[number], node.axes
        keys = random.receiver_keys(
            random.key(network.seed, number), np.arange(layer.size), position
        )
        names = {letter: letter_axes(network, self.s.frame, letter)[0] for letter in axes}
        samples = None
        if "b" in axes:
            samples = runner.sample_numbers(names["b"], per)
        index = {}
        if self.edges is not None:
            edges = layer.links[position].edges
            assert edges is not None
            (axis,) = letter_axes(network, self.s.frame, "oi")
            places = runner.share.places(axis)
            receivers = np.repeat(np.arange(layer.size), np.diff(edges.indptr))[places]
            keys, sources = keys[receivers], np.asarray(edges.indices)[places]
            axes = axes.replace("oi", "e")
            if self.axis == "o":
                index["e"] = self.edges.back_edges
        else:
            keys = keys[runner.share.places(names["o"])]
            here = runner._places(names["i"]) if "i" in axes else slice(0, 1)
            sources = np.arange(here.start, here.stop)
        return Drawn(
            kind, site, axes, keys.astype(np.uint32), sources.astype(np.int64), samples,
            runner.once if per == "run" else runner.iteration, index,
        )  # fmt: skip

    def iota(self, name: str, letter: str) -> Iota | None:
        """The places of a layer's neurons as the loop counts them, where that is what it loads."""
        runner = self.runner
        buffer = runner.program.buffers[name]
        if buffer.role != "constant" or buffer.value[0] != "index" or self.edges is not None:
            return None
        if not isinstance(runner.share.places(buffer.axes[0]), slice):
            return None
        if layer_of(buffer.axes[0]) in runner.alive:
            return None
        return Iota(letter, runner._places(buffer.axes[0]).start)

    def out(self, output: Output) -> View:
        """An output buffer."""
        runner, name = self.runner, output.buffer
        array = runner.arrays[name]
        letters = out_letters(runner.network, self.s.frame, output, runner.program.buffers)
        if self.edges is not None:
            return View(array, letters.replace("oi", "e"))
        if not letters:
            return View(array.reshape(1), "1") if "1" in self.axes else View(array.reshape(()), ())
        if self.s.scatter and runner.program.buffers[name].full:
            return runner._live_view(name, letters)
        return View(array, letters)


def _as(array: Array, have: str, want: str) -> Array:
    return array.transpose([have.index(letter) for letter in want])


class Engine(CompiledEngine):
    """The kernels backend."""

    runner = Runner


BACKEND = Engine
