"""The steps of a batch of sequences: the content before and after them, and their parts in turn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from horn import random
from horn.backends import Array
from horn.backends._step_buffers import StepBuffer
from horn.backends._tape_memory import TapeMemory
from horn.backends._tape_writer import IN_PARTS, TapeWriter


class StepLoop:
    """The runs of a tape over the steps of a batch; without steps, its runs.

    n_steps : of the running part. longest : the steps of the longest sequence in the batch.
    """

    def __init__(self, memory: TapeMemory, writer: TapeWriter) -> None:
        self.memory, self.writer, self.tape = memory, writer, writer.tape
        self.program = memory.program
        self.longest, self.n_rows = self.program.steps, 0
        self.n_steps = memory.steps
        self.first_sample: int | Array = 0
        self.step = 0  # that ran last
        self.begun: list[list[Array]] = []  # the content before the steps of each part
        self.left: dict[str, Array] = {}  # with parts, the last steps of the last part
        self.lengths: Array | None = None  # of the data's sequences, where some end early
        self.ends: list[tuple[Array, Array]] | None = None  # for a sequence that continues
        known = memory.network.remembered
        self.carried = [
            n for n, b in self.program.buffers.items() if b.role == "carried" and n in known
        ]
        # the rows and steps for which the content before and after the steps is 0
        self.n_zeroed = 0, 0
        self.goes_on = False  # whether the next batch goes on from what it was given to hear

    def start(self, n_rows: int, first_sample: int | Array) -> None:
        self.n_rows = n_rows
        if self.lengths is not None:
            self.longest = int(self.lengths[self.writer.picks[: self.n_rows]].max(initial=1))
        if (self.n_rows, self.longest) != self.n_zeroed:  # another batch's numbers are there
            self._zero_around()
            self.n_zeroed = self.n_rows, self.longest
        self.first_sample = first_sample
        self._enter(0, min(self.memory.steps, self.longest))

    def _enter(self, first: int, n_steps: int) -> None:
        """Enter a part that begins at step ``first``: set its extents, and what comes of them."""
        self.n_steps, memory, dims = n_steps, self.memory, self.tape.dims
        for each, rows in zip(memory.several, (memory.rows, memory.own_rows), strict=True):
            dims[each.index] = dims[rows.index] * n_steps
        self.tape.seek(0, first)
        self.step = 0
        writer = self.writer
        if writer.numbers or writer.turned or writer.ends_of:
            self._number(np.arange(first, first + n_steps)[:, None])

    def _number(self, at: Array) -> None:
        """Set the numbers, orders and ends of these steps, (n_steps, 1)."""
        n_steps, memory, dims = self.n_steps, self.memory, self.tape.dims
        for (axis, per), span in self.writer.numbers.items():
            n = int(dims[span.rows.index])
            here = memory.places(axis).start
            samples = random.numbers(self.first_sample, self.n_rows)[here : here + n]
            numbers = (at.astype(np.uint64) << np.uint64(32)) + samples
            numbers = random.of_sequences(numbers) if per == "sequence" else numbers
            span.memory[: n_steps * n] = numbers.ravel()
        for axis, (turned, dim) in self.writer.turned.items():
            n = int(dims[dim.index])
            own = np.full(n, n_steps) if self.lengths is None else self._lengths(axis)
            there = np.where(at < own, own - 1 - at, at) * n + np.arange(n)
            turned[: there.size] = there.ravel()
        for name, kind in self.writer.ends_of.items():
            if name not in memory.spans:  # not read
                continue
            span, own = memory.spans[name], self._lengths(self.program.buffers[name].axes[0])
            ends = at < own if kind == "valid" else at == own - 1
            lies = span.first * len(own)
            span.memory[lies : lies + ends.size] = ends.ravel()

    def _lengths(self, axis: str) -> Array:
        """The lengths of this batch's sequences along an axis."""
        assert self.lengths is not None
        lengths: Array = self.lengths[self.writer.picks[: self.n_rows]]
        return lengths[self.memory.share.rows(axis, self.n_rows, self.memory.batch_size)]

    def _zero_around(self) -> None:
        """Zero the content before the first step and behind the last one; where no sequence ends
        early also the steps that no statement writes.
        """
        if self.lengths is None:
            self.forget()
            return
        for span in self._own_spans().values():
            n = int(self.tape.dims[span.rows.index])
            if not self.goes_on:
                span.before(n)[...] = 0
            if self.longest <= self.memory.steps:
                span.behind(n, self.longest)[...] = 0

    def carry(self) -> None:
        if self.ends is None:
            self.ends = [span.ends(1) for span in self._own_spans().values() if span.first]
        for before, last in self.ends:
            before[...] = last.copy() if len(last) > self.memory.steps else last

    def forget(self) -> None:
        for span in self._own_spans().values():
            span.memory.fill(0)

    def heard(self) -> dict[str, Array]:
        found = {}
        for name, span in self._own_spans().items():
            if span.first:
                n = self._rows_of(span)
                last = self.left[name] if self.left else span.ends(n)[1]
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
        self.n_rows, self.goes_on = rows, bool(heard)
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
        """This batch's rows of a buffer that rows carry on."""
        axis = self.program.buffers[name].axes[0]
        return self.memory.arrays[name][: self.memory.n_of(axis, self.n_rows)]

    def _rows_of(self, span: StepBuffer) -> int:
        """The rows of a buffer in this batch: all, or this task's."""
        return self.memory.n_of("b" if span.rows is self.memory.rows else "b@own", self.n_rows)

    def _own_spans(self) -> dict[str, StepBuffer]:
        buffers = self.program.buffers
        return {
            name: span for name, span in self.memory.spans.items() if buffers[name].role != "late"
        }

    def array(self, name: str) -> Array:
        """A buffer of all steps at the step that ran last; a view."""
        span = self.memory.spans[name]
        return span.at(self._rows_of(span), self.step)

    def compute(self, bounds: Sequence[tuple[int, int, int]], step: int = -1) -> None:
        """Run these ranges. step : this step alone of a repeated range, if given."""
        if step >= 0:
            self.step = step
            self.tape.seek(step)
        for first, last, turns in bounds:
            if turns == IN_PARTS:
                self._compute_parts()
            elif turns and step < 0:
                self.tape.repeat(first, last, self.n_steps, turns < 0)
                self.step = 0 if turns < 0 else self.n_steps - 1
            else:
                self.tape.run(first, last)

    def _compute_parts(self) -> None:
        """Run the bodies of ``Parts`` in its order."""
        steps = self.longest
        spans = [s for s in self._own_spans().values() if s.first or s.after]
        rows = [self._rows_of(span) for span in spans]
        firsts = range(0, steps, self.memory.steps)
        if not self.begun:
            parts = range(0, self.program.steps, self.memory.steps)
            self.begun = [[np.empty_like(s.before(s.step.shape[0])) for s in spans] for _ in parts]
        begun_all = self.begun[: len(firsts)]
        for first, begun in zip(firsts, begun_all, strict=True):
            self._enter(first, min(self.memory.steps, steps - first))
            for kept, span, n in zip(begun, spans, rows, strict=True):
                kept[: span.first * n] = span.before(n)
            if first < firsts[-1]:
                self.compute(self.writer.pieces["forward"])
                for span, n in zip(spans, rows, strict=True):
                    span.before(n)[...] = span.at_end(n, self.n_steps).copy()
        for first, begun in zip(reversed(firsts), reversed(begun_all), strict=True):
            # The gradients of the part behind, which had other steps.
            for span, n in zip(spans, rows, strict=True):
                gradient = 0.0 if first == firsts[-1] else span.at_start(n).copy()
                span.behind(n, min(self.memory.steps, steps - first))[...] = gradient
            self._enter(first, min(self.memory.steps, steps - first))
            for kept, span, n in zip(begun, spans, rows, strict=True):
                span.before(n)[...] = kept[: span.first * n]
            self.compute(self.writer.pieces["forward"])
            self.compute(self.writer.pieces["behind"])
            if first == firsts[-1]:
                self.compute(self.writer.pieces["judge"])
                self.left = {
                    name: span.at_end(self._rows_of(span), self.n_steps).copy()
                    for name, span in self._own_spans().items()
                    if span.first
                }
            self.compute(self.writer.pieces["backward"])
