"""The judge: programs in plain NumPy, one statement after the other, nothing fused or reused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from horn import random
from horn.backends import Array, Setup, check_rows
from horn.backends._compiled import CompiledEngine
from horn.backends._constants import constant
from horn.backends._reference_loops import receivers_of, result
from horn.data import Dataset
from horn.ir import Node
from horn.neuron import OF_A_SAMPLE
from horn.partition.share import Share, count
from horn.program import (
    AllSteps,
    BatchSum,
    ChannelSum,
    Convolve,
    Draw,
    Expand,
    Input,
    Live,
    Loop,
    Matmul,
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
    segments,
)


class Runner:
    """Runs one program. Buffers are made anew for every batch."""

    layout, is_static = "batch", False

    def __init__(
        self,
        program: Program,
        arrays: dict[str, Array],
        setup: Setup,
        batch_size: int,
        share: Share | None = None,
    ) -> None:
        self.program, self.arrays, self.setup = program, arrays, setup
        self.batch_size = batch_size
        self.share = share or Share(program.network)
        self.segments = segments(program)
        self.dtype = np.dtype(setup.dtype)
        self.network = program.network
        self.env: dict[str, Array] = {}
        self.once: dict[str, Array] = {
            name: constant(buffer.value, self.network, self.dtype, self.share, buffer.axes)
            for name, buffer in program.buffers.items()
            if buffer.role == "constant" and buffer.span is None
        }
        self.alive: dict[int, Array] = {}
        self.step, self.is_wide = 0, False  # the step of sequences, or all steps together
        self.first_step, self.n_steps = 0, program.steps  # of the running part
        self.after: dict[str, Array] = {}  # the content behind its steps, if it is not 0
        self.spans: dict[str, Array] = {}  # (steps and those besides, rows, ...)
        self.carried = {
            name: [self.share.length(axis, 0) for axis in buffer.axes[1:]]
            for name, buffer in program.buffers.items()
            if buffer.role == "carried"
        }
        self.before: dict[str, Array] = {}  # the content before the steps, if it is not 0
        self.left: dict[str, Array] | None = None  # with parts, the last steps of the last part
        self.scalars: Mapping[str, float] = {"iteration": 0.0}
        self.first_sample: int | Array = 0
        self.rows = np.empty(0, np.int64)
        self.orders: dict[Node, list[Node]] = {}  # of evaluation
        self.data: Dataset | None = None
        self.lengths: Array | None = None  # of sequences that end early, of this batch
        for statement in program.prologue:
            if isinstance(statement, Pick):
                self.pick(statement)
            else:
                assert isinstance(statement, Draw)
                self.draw(statement)
        self.once.update(self.env)

    def bind(self, data: Dataset) -> None:
        self.data = data

    def push(self) -> None:
        pass

    def pull(self) -> None:
        pass

    def value(self, name: str) -> Array:
        buffer = self.program.buffers[name]
        if buffer.span is not None:
            first = buffer.span[0]
            return self.spans[name][first : first + self.n_steps].swapaxes(0, 1)
        value = self.env[name]
        if buffer.full:
            return value
        for axis, label in enumerate(buffer.axes):
            k = layer_of(label)
            if k in self.program.compact:
                shape = list(value.shape)
                shape[axis] = self.network.layers[k].size
                whole = np.zeros(shape, value.dtype)
                whole[(slice(None),) * axis + (self.alive[k],)] = value
                value = whole
        return value

    def mean(self, name: str) -> float:
        return float(self.value(name).mean(dtype=np.float64))

    def start(self, rows: Array, scalars: Mapping[str, float], first_sample: int | Array) -> None:
        if self.data is not None:
            check_rows(rows, len(self.data))
        self.env, self.alive = dict(self.once), {}
        self.spans, self.step = {}, 0
        self.first_step, self.n_steps, self.after = 0, self.program.steps, {}
        self.rows, self.first_sample = rows, first_sample
        self.scalars = {"begins": 1.0, **scalars}
        self.lengths = None
        if self.program.steps and self.data is not None and self.data.lengths is not None:
            self.lengths = self.data.lengths[rows]
            self.n_steps = int(self.lengths.max(initial=1))
        for name, shape in self.carried.items():
            n = count(self.rows_of(self.program.buffers[name].axes[0]))
            held = self.before.get(name)
            self.env[name] = np.zeros((n, *shape), self.dtype)
            if held is not None:
                self.env[name][...] = held.reshape(n, *shape)

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    def compute(self, segment: int, step: int = -1) -> None:
        statements = self.segments[segment]
        if step >= 0:
            (turn,) = statements
            assert isinstance(turn, Repeat)
            self.step, statements = step, turn.body
        with np.errstate(all="ignore"):
            self.all_of(statements)

    def repeat(self, s: Repeat) -> None:
        steps = range(self.n_steps)
        for self.step in reversed(steps) if s.reverse else steps:
            self.all_of(s.body)

    def parts(self, s: Parts) -> None:
        steps = self.n_steps
        given, begun = self.before, list[dict[str, Array]]()
        firsts = range(0, steps, s.length)
        self.before = given | {
            name: whole[: span[0]].copy() for name, whole in self.spans.items()
            if (span := self.program.buffers[name].span)
        }  # fmt: skip
        self.spans = {}
        for self.first_step in firsts:
            self.n_steps = min(s.length, steps - self.first_step)
            self.step = 0
            begun.append(self.before)
            if self.first_step + s.length < steps:
                self.all_of(s.forward)
                self.carry()
                self.spans = {}
        after: dict[str, Array] = {}
        for self.first_step, before in zip(reversed(firsts), reversed(begun), strict=True):
            self.n_steps = min(s.length, steps - self.first_step)
            self.spans, self.before, self.after, self.step = {}, before, after, 0
            self.all_of((*s.forward, *s.behind))
            if self.first_step == firsts[-1]:
                self.all_of(s.judge)
                self.carry()
                self.left, self.before = self.before, before
            self.all_of(s.backward)
            after = {}
            for name, whole in self.spans.items():
                first, n = self.program.buffers[name].span or (0, 0)
                after[name] = whole[first : first + n]
        self.first_step, self.n_steps, self.after, self.before = 0, steps, {}, given

    def all_of(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            getattr(self, type(statement).__name__.lower())(statement)

    def allsteps(self, s: AllSteps) -> None:
        self.is_wide = True
        self.all_of(s.body)
        self.is_wide = False

    def run(self, rows: Array, scalars: Mapping[str, float], first_sample: int | Array) -> None:
        self.start(rows, scalars, first_sample)
        for segment in range(len(self.segments)):
            self.compute(segment)

    def array(self, name: str) -> Array:
        buffer = self.program.buffers[name]
        if buffer.role == "view":
            whole = buffer.value[0]
            return self.at(self.array(whole), buffer.axes, self.program.buffers[whole].axes)
        if buffer.role == "late" or buffer.span is not None:
            return self.at_steps(name)
        if name in self.env:
            return self.env[name]
        array = self.arrays[name]
        return array.reshape(-1) if len(buffer.axes) == 1 else array  # shared numbers have a shape

    def at_steps(self, name: str) -> Array:
        """A buffer of sequences at this step, or at all of them; a view."""
        buffer, steps = self.program.buffers[name], self.n_steps
        delay = 0
        if buffer.role == "late":
            name, delay = buffer.value
            buffer = self.program.buffers[name]
        assert buffer.span is not None
        before, after = buffer.span
        if name not in self.spans:
            if buffer.role == "constant":
                self.spans[name] = (np.arange(steps) == steps - 1).astype(self.dtype)
            else:
                shape = [self.share.length(a, 0) for a in buffer.axes if base(a) != "b"]
                n = [count(self.rows_of(a)) for a in buffer.axes if base(a) == "b"]
                self.spans[name] = np.zeros((before + steps + after, *n, *shape), self.dtype)
                if name in self.before:
                    self.spans[name][:before] = self.before[name].reshape(before, *n, *shape)
                self.spans[name][before + steps :] = self.after.get(name, 0.0)
        first, whole = before - delay, self.spans[name]
        if not self.is_wide:
            return np.asarray(whole[first + self.step])
        found = whole[first : first + steps]
        return found.reshape(int(np.prod(found.shape[:2])), *found.shape[2:])

    def put(self, name: str, value: Array) -> None:
        """Set the content of a buffer."""
        buffer = self.program.buffers[name]
        if buffer.role == "late" or buffer.span is not None:
            self.at_steps(name)[...] = value
        else:
            self.env[name] = value

    def carry(self) -> None:
        steps = self.n_steps
        self.before = dict(self.before)
        for name, whole in self.spans.items():
            span = self.program.buffers[name].span
            if span is not None and span[0]:
                self.before[name] = whole[steps : steps + span[0]]
        for name in self.carried:
            if name in self.network.remembered:
                self.before[name] = self.env[name][None]

    def forget(self) -> None:
        self.before = {}

    def heard(self) -> dict[str, Array]:
        if self.left is None:
            self.carry()
        else:
            self.before = self.left
        found = {}
        for name, whole in self.before.items():
            steps, n, *shape = whole.shape
            size = int(np.prod(shape, dtype=np.int64))
            found[name] = whole.swapaxes(0, 1).reshape(n, steps, size).copy()
        return found

    def hear(self, rows: int, heard: Mapping[str, Array]) -> None:
        self.before = {}
        for name, array in heard.items():
            buffer = self.program.buffers.get(name)
            if buffer is None:
                continue
            steps = 1 if name in self.carried else 0 if buffer.span is None else buffer.span[0]
            if steps:
                n = count(self.share.rows(buffer.axes[0], rows, self.batch_size))
                self.before[name] = array[:n, -steps:].swapaxes(0, 1)

    def numbers(self, axis: str, per: str = "sample") -> Array:
        """The numbers of the samples, which key their draws."""
        if per == "sequence":
            return random.of_sequences(self.numbers(axis))
        numbers = random.numbers(self.first_sample, len(self.rows))[self.rows_of(axis)]
        if not self.is_wide:
            return numbers + np.uint64(self.first_step + self.step << 32)
        steps = np.arange(self.n_steps, dtype=np.uint64) + np.uint64(self.first_step)
        steps <<= np.uint64(32)
        return (steps[:, None] + numbers).ravel()

    def target_array(self, name: str) -> Array:
        if name in self.arrays:
            return self.arrays[name]
        if self.program.buffers[name].span is not None:
            return self.at_steps(name)
        shape = [
            count(self.here(axis)) if base(axis) == "b" else self.share.length(axis, 0)
            for axis in self.program.buffers[name].axes
        ]
        self.env[name] = np.zeros(shape, self.dtype)
        return self.env[name]

    def settle(self, name: str, memory: Array) -> None:
        raise AssertionError("buffers are made anew for every batch")

    def place(self, name: str, memory: Array) -> None:
        self.arrays[name] = memory

    def here(self, axis: str) -> slice:
        """The rows of this batch along "b" or "b@own"; of all steps inside AllSteps."""
        rows = self.rows_of(axis)
        return slice(0, count(rows) * self.n_steps) if self.is_wide else rows

    def rows_of(self, axis: str) -> slice:
        return self.share.rows(axis, len(self.rows), self.batch_size)

    def at(
        self, array: Array, axes: tuple[str, ...], outer: tuple[str, ...] | None = None
    ) -> Array:
        """The share of an array that has all of it: whole, or with the outer axes."""
        if axes and base(axes[0]) == "b":
            rows = self.rows_of(axes[0])
            n = count(rows) * self.n_steps
            if not self.is_wide:
                array = array[rows]
            elif len(array) != n:  # every row, step after step
                steps = array.reshape(self.n_steps, len(array) // self.n_steps, *array.shape[1:])
                array = steps[:, rows].reshape(n, *array.shape[1:])
        for position, axis in enumerate(axes):
            if "@" in axis and base(axis) != "b":
                whole = base(axis) if outer is None else outer[position]
                here = self.share.within(axis, whole, self.batch_size)
                array = array[(slice(None),) * position + (here,)]
        return array

    # --- statements

    def input(self, s: Input) -> None:
        assert self.data is not None
        out = self.read()
        self.put(s.out, self.at(out, self.program.buffers[s.out].axes))

    def read(self) -> Array:
        """The samples; of sequences their features at this step."""
        assert self.data is not None
        out = np.empty((len(self.rows), self.network.n_features), self.dtype)
        self.data.read(self.rows, out)
        n = self.network.n_inputs
        at = self.first_step + self.step
        return out[:, at * n : (at + 1) * n]

    def target(self, s: Target) -> None:
        assert self.data is not None
        if s.kind in ("valid", "last"):
            assert self.lengths is not None
            left = self.lengths - self.first_step - self.step  # steps to the end
            out = np.where(left > 0 if s.kind == "valid" else left == 1, self.dtype.type(1), 0)
        elif s.kind == "input":
            out = self.read()
        else:
            source = self.data.weight if s.kind == "weight" else self.data.y
            assert source is not None
            out = source[self.rows].astype(self.dtype)
            if s.first >= 0:  # the columns of one of several outputs
                _, *axis = self.program.buffers[s.out].axes
                size = self.network.layers[layer_of(base(axis[0]))].size if axis else 1
                size *= self.program.steps if s.each_step else 1
                is_wide = axis or s.each_step
                out = out[:, s.first : s.first + size] if is_wide else out[:, s.first]
            if s.each_step:
                each = int(np.prod(out.shape[1:])) // self.program.steps  # there may be no rows
                out = out.reshape(len(out), self.program.steps, each)
                out = out[:, self.first_step + self.step]
                out = out if len(self.program.buffers[s.out].axes) == 2 else out[:, 0]
        self.put(s.out, self.at(out, self.program.buffers[s.out].axes))

    def draw(self, s: Draw) -> None:
        layer = self.network.layers[s.layer]
        key = random.key(self.network.seed, s.layer)
        f = random.normal if s.kind == "normal" else random.uniform
        axes = self.program.buffers[s.out].axes
        if s.per == "synapse":
            neurons = np.arange(layer.size)
            if s.link == len(layer.links):
                out = f(key, s.site, neurons, [s.link << 32], random.ONCE)[0]
            else:
                link = layer.links[s.link]
                sources = np.arange(link.source.size, dtype=np.uint64) + np.uint64(s.link << 32)
                out = f(key, s.site, neurons, sources, random.ONCE).T
                if link.edges is not None:
                    out = out[receivers_of(link.edges.indptr), link.edges.indices]
            out = self.share.part(out, axes)
        else:
            neurons = np.arange(layer.size)[self.share.places(axes[-1])]
            if s.per in OF_A_SAMPLE:
                numbers = self.numbers(axes[0], s.per)
                out = f(key, s.site, neurons, numbers, int(self.scalars["iteration"]))
            else:
                iteration = random.ONCE if s.per == "run" else int(self.scalars["iteration"])
                out = f(key, s.site, neurons, [random.SHARED], iteration)[0]
        self.put(s.out, np.ascontiguousarray(out, self.dtype))

    def pick(self, s: Pick) -> None:
        found = self.at(self.array(s.array), self.program.buffers[s.out].axes)
        self.put(s.out, np.ascontiguousarray(found))

    def expand(self, s: Expand) -> None:
        (axis,) = self.program.buffers[s.out].axes
        self.put(s.out, self.array(s.array)[self.share.numbers(axis)])

    def convolve(self, s: Convolve) -> None:
        """Sum synapse by synapse."""
        frame = s.frame
        edges = self.share.edges(frame.layer, frame.link or 0, frame.split)
        numbers = self.share.numbers(letter_axes(self.network, frame, "oi")[0])
        a, b = self.array(s.a), self.array(s.b)
        if s.axis == "b":
            each = (a[:, edges.receivers] * b[:, edges.sources]).sum(axis=0, dtype=np.float64)
            (shared,) = self.program.buffers[s.out].axes
            mine = self.share.places(shared)
            if isinstance(mine, slice):
                mine = np.arange(mine.start, mine.stop)
            out = np.zeros(len(mine))
            np.add.at(out, np.searchsorted(mine, numbers), each)
            self.put(s.out, out.astype(self.dtype))
            return
        here, there = edges.receivers, edges.sources
        if s.axis != "i":
            here, there = there, here
        (_, axis) = self.program.buffers[s.out].axes
        out = np.zeros((self.share.length(axis, 0), len(a)))
        np.add.at(out, here, (a[:, there] * b[numbers]).T)
        self.put(s.out, np.ascontiguousarray(out.T, self.dtype))

    def scatteradd(self, s: ScatterAdd) -> None:
        (axis,), (shared,) = (self.program.buffers[name].axes for name in (s.array, s.out))
        out = np.zeros(self.share.length(shared, 0))
        np.add.at(out, self.share.numbers(axis), self.array(s.array))
        self.put(s.out, out.astype(self.dtype))

    def reverse(self, s: Reverse) -> None:
        assert self.is_wide
        rows = self.rows_of(self.program.buffers[s.array].axes[0])
        n, at = count(rows), np.arange(self.n_steps)[:, None]
        lengths = np.full(n, self.n_steps) if self.lengths is None else self.lengths[rows]
        there = np.where(at < lengths, lengths - 1 - at, at) * n + np.arange(n)
        self.put(s.out, self.array(s.array)[there.ravel()])

    def turn(self, s: Turn) -> None:
        array = self.array(s.array)
        self.put(s.out, np.ascontiguousarray(array.T if s.transposed else array))

    def channelsum(self, s: ChannelSum) -> None:
        array, layer = self.array(s.array), self.network.layers[s.frame.layer]
        # Not -1: a task of a small batch may have no rows, for which NumPy cannot infer a length.
        lying = array.reshape(*array.shape[:-1], layer.n_positions, layer.extents[-1])
        added = lying.sum(axis=-2, keepdims=True, dtype=np.float64).astype(self.dtype)
        self.put(s.out, np.broadcast_to(added, lying.shape).reshape(array.shape))

    def batchsum(self, s: BatchSum) -> None:
        assert not self.is_wide
        array = self.array(s.array)
        total = array.sum(axis=0, dtype=np.float64).astype(self.dtype)
        self.put(s.out, np.broadcast_to(total, array.shape).copy())

    def rank(self, s: Rank) -> None:
        order = np.argsort(-self.array(s.array), axis=1, kind="stable")
        self.put(s.out, np.argsort(order, axis=1, kind="stable").astype(self.dtype))

    def live(self, s: Live) -> None:
        self.alive[s.layer] = np.flatnonzero(self.env[s.mask])

    def take(self, s: Take) -> None:
        value = self.array(s.array)
        for axis, label in enumerate(self.program.buffers[s.out].axes):
            k = layer_of(label)
            if k in self.program.compact:
                value = np.take(value, self.alive[k], axis=axis)
        self.put(s.out, value)

    def matmul(self, s: Matmul) -> None:
        letters = f"{s.a_axes},{s.b_axes}->{s.out_axes}"
        self.put(s.out, np.einsum(letters, self.array(s.a), self.array(s.b), optimize=True))

    def update(self, s: Update) -> None:
        gradient = self.array(s.a).T @ self.array(s.b)
        for part in s.parts:
            gradient = gradient + self.array(part)
        step = self.dtype.type(-self.scalars["learning_rate"] * self.scalars["inv_rows"]) * gradient
        here = self.places(s.weight)
        if s.velocity is not None:
            velocity = self.arrays[s.velocity]
            velocity[here] = velocity[here] * self.dtype.type(s.momentum) + step
            step = velocity[here]
        self.array(s.weight)[here] += step

    # --- loops

    def loop(self, s: Loop) -> None:
        results = [result(self, s, output) for output in s.outputs]
        for output, value in zip(s.outputs, results, strict=True):
            buffer = self.program.buffers[output.buffer]
            if buffer.role in ("work", "late"):
                self.put(output.buffer, value)
            elif s.scatter:
                self.arrays[output.buffer][self.places(output.buffer)] = value
            else:
                self.array(output.buffer)[...] = value

    def places(self, name: str) -> Any:
        """The places of the live part in a full array."""
        axes = self.program.buffers[name].axes
        index = []
        for size, label in zip(self.array(name).shape, axes, strict=True):
            k = layer_of(label)
            index.append(self.alive[k] if k in self.program.compact else np.arange(size))
        if all(len(i) == n for i, n in zip(index, self.array(name).shape, strict=True)):
            return ...
        return np.ix_(*index)


class Engine(CompiledEngine):
    """The reference backend."""

    runner = Runner


BACKEND = Engine
