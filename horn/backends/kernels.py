"""Programs on the engine of ``horn/_kernels``: compiled to a tape once, run without Python.

Learned arrays, states and slots are used where they are, in the user's shapes. Everything with a
batch axis is neuron-major (each neuron's values for the batch side by side) or batch-major, as
``choices.choose_layout`` says. See docs/notes/0002-engine.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from horn import random
from horn._kernels import blas
from horn._kernels.engine import Anchor, Tape
from horn.backends import Array, Setup, no_rows
from horn.backends._compiled import CompiledEngine
from horn.backends._step_loop import StepLoop
from horn.backends._tape_memory import TapeMemory
from horn.backends._tape_writer import TapeWriter
from horn.data import Dataset
from horn.partition.share import Share
from horn.program import Program, base, layer_of, segments
from horn.scheduling.choices import choose_layout, choose_threads, least_rows


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
        self.program = program
        share = share or Share(program.network)
        n_threads = choose_threads(program.network, batch_size, setup.threads, share.n_tasks)
        self.least_rows = least_rows(program.network, share.n_tasks)  # for all these threads
        self.tape = Tape(setup.dtype, n_threads, blas.load())
        self.dtype = self.tape.dtype
        self.layout = choose_layout(program, self.tape.products, batch_size)
        self.memory = TapeMemory(program, arrays, batch_size, share, self.tape, self.layout)
        self.arrays = self.memory.arrays
        self.writer = writer = TapeWriter(self.tape, self.memory)
        self.loop = StepLoop(self.memory, writer)
        self.n_rows = 0
        self.anchors: dict[str, Anchor] = {}  # of buffers that move
        self.tape.dims[writer.iteration.index] = random.ONCE
        self.tape.run()
        self.first = len(self.tape)
        self.made = writer.made
        # the instructions of each segment, with their mode: repeated 1, in reverse -1, else 0
        self.bounds = [writer.write_all(segment) for segment in segments(program)]
        spans = [*self.memory.spans.values(), *writer.numbers.values()]
        for span in {id(span): span for span in spans}.values():
            span.move(self.tape)

    @property
    def n_steps(self) -> int:
        """The number of steps of the last batch."""
        return self.loop.n_steps

    # --- Runner

    def bind(self, data: Dataset) -> None:
        x = data.x
        if x.dtype not in (np.uint8, np.float32, np.float64, np.int32, np.int64):
            x = x.astype(self.dtype)
        y = data.y
        if y is not None and y.dtype not in (np.float32, np.float64, np.int32, np.int64):
            y = y.astype(np.int64 if y.dtype.kind in "iub" else self.dtype)
        self.n_samples = len(data)
        self.loop.lengths = data.lengths
        normal, scale = tuple[Array, ...](), data.scale
        if data.normalization is not None:  # the normalization includes the scale
            normal, scale = data.normalization.steps(scale, x.dtype, self.dtype), 1.0
        self.tape.scalars[self.writer.scale.index] = scale
        for number, what, columns in self.writer.loads:
            source = {"x": x, "weight": data.weight, "y": y}[what]
            if source is not None:
                own = [v[columns].copy() for v in normal if what == "x"]
                self.tape.rebind(number, source[:, columns] if source.ndim == 2 else source, *own)

    def run(self, rows: Array, scalars: Mapping[str, float], first_sample: int | Array) -> None:
        self.start(rows, scalars, first_sample)
        if not self.memory.steps:
            self.tape.run(self.first, is_alone=self.n_rows < self.least_rows)
            return
        for segment in range(len(self.bounds)):
            self.compute(segment)

    def start(self, rows: Array, scalars: Mapping[str, float], first_sample: int | Array) -> None:
        n = self.n_rows = len(rows)
        if not self.tape.pick(rows, self.writer.picks, self.n_samples):
            raise no_rows(rows, self.n_samples)
        writer, dims, numbers = self.writer, self.tape.dims, self.tape.scalars
        if writer.reads_samples and not self.memory.steps:
            writer.samples[:n] = random.numbers(first_sample, n)
            writer.sequences[:n] = random.of_sequences(writer.samples[:n])
        dims[self.memory.rows.index] = n
        if self.memory.own_rows is not self.memory.rows:
            dims[self.memory.own_rows.index] = self.memory.n_of("b@own", n)
        for (rows_of, times), each in self.memory.multiples.items():
            dims[each.index] = dims[rows_of.index] * times
        dims[writer.iteration.index] = int(scalars["iteration"])
        for name, scalar in writer.scalars.items():
            numbers[scalar.index] = scalars.get(name, 1.0)  # "begins" or "inv_steps" may lack
        numbers[writer.step.index] = scalars["learning_rate"] * scalars["inv_rows"]
        if self.memory.steps:
            self.loop.start(n, first_sample)

    def compute(self, segment: int, step: int = -1) -> None:
        self.loop.compute(self.bounds[segment], step)

    def array(self, name: str) -> Array:
        return self.loop.array(name) if name in self.memory.spans else self.arrays[name]

    def target_array(self, name: str) -> Array:
        return self.array(name)

    def settle(self, name: str, memory: Array) -> None:
        """Move a buffer into this memory, which is contiguous and as large."""
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
                self.arrays[view] = self.memory.part_of(name, buffer)

    def value(self, name: str) -> Array:
        if name in self.memory.spans:
            span = self.memory.spans[name]
            return span.value(int(self.tape.dims[span.rows.index]), self.n_steps)
        buffer, array = self.program.buffers[name], self.arrays[name]
        if buffer.axes and base(buffer.axes[0]) == "b":
            array = array[: self.memory.n_of(buffer.axes[0], self.n_rows)]
        if buffer.full or not self.writer.alive:
            return array
        for axis, label in enumerate(buffer.axes):
            k = layer_of(label)
            if k in self.writer.alive:
                kept, count = self.writer.alive[k]
                live = kept[: self.tape.dims[count.index]]
                whole = np.zeros(array.shape, array.dtype)
                place: tuple[Any, ...] = (slice(None),) * axis
                whole[(*place, live)] = array[(*place, slice(0, len(live)))]
                array = whole
        return array

    def carry(self) -> None:
        self.loop.carry()

    def forget(self) -> None:
        self.loop.forget()

    def heard(self) -> dict[str, Array]:
        return self.loop.heard()

    def hear(self, rows: int, heard: Mapping[str, Array]) -> None:
        self.loop.hear(rows, heard)

    def mean(self, name: str) -> float:
        n = self.memory.n_of(self.program.buffers[name].axes[0], self.n_rows)
        return self.tape.total(self.arrays[name][:n]) / n

    def push(self) -> None:
        """Nothing to do: the tape works on the persistent arrays themselves."""

    def pull(self) -> None:
        """Nothing to do: the tape works on the persistent arrays themselves."""


class Engine(CompiledEngine):
    """The kernels backend."""

    runner = Runner


BACKEND = Engine
