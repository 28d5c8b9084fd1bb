"""The memory of a program's buffers: aligned, in parts of each other, or step after step."""

from __future__ import annotations

from horn._kernels.engine import Dim, Tape
from horn.backends import Array
from horn.backends._constants import constant
from horn.backends._edge_lists import EdgeLists
from horn.backends._step_buffers import Blocks, StepBuffer, aligned, is_aligned
from horn.partition.share import Share
from horn.program import Buffer, Program, base
from horn.scheduling.choices import is_stream, parts_of_wholes
from horn.scheduling.lifetimes import rooms


class TapeMemory:
    """The arrays of a program's buffers, or of a task's share of them.

    arrays : with a batch axis as long as the largest batch; in a program with steps, those of one
    step. spans, all_steps : in such a program, buffers with all steps, and their arrays.
    """

    def __init__(
        self,
        program: Program,
        persistent: dict[str, Array],
        batch_size: int,
        share: Share,
        tape: Tape,
        layout: str,
    ) -> None:
        self.program, self.persistent, self.batch_size = program, persistent, batch_size
        self.network, self.share, self.layout = program.network, share, layout
        self.tape, self.dtype = tape, tape.dtype
        self.is_stream = is_stream(program, batch_size)
        self.rows: Dim = tape.dim(batch_size)
        self.own = self.places("b@own")  # the rows of "b@own", which has a length of its own
        n_own = self.own.stop - self.own.start
        self.own_rows = self.rows if n_own == batch_size else tape.dim(n_own)
        self.steps = program.steps_of_buffers  # that buffers have
        self.several: tuple[Dim, Dim] = (self.rows, self.own_rows)  # rows of all steps
        if self.steps:
            rows = tape.dim(batch_size * self.steps)
            own = self.own_rows is not self.rows
            self.several = rows, tape.dim(n_own * self.steps) if own else rows
        self.blocks = Blocks()
        self.spans: dict[str, StepBuffer] = {}
        self.all_steps: dict[str, Array] = {}
        self._edges: dict[tuple[int, int, str], EdgeLists] = {}
        self.multiples: dict[tuple[Dim, int], Dim] = {}
        self.inside = parts_of_wholes(program, share)
        self.rooms = rooms(program, batch_size)
        self.arrays: dict[str, Array] = {}
        for name in program.buffers:
            self.allocate(name)

    def rows_of(self, axis: str) -> Dim:
        """The rows of a batch axis in a step."""
        return self.rows if axis == "b" else self.own_rows

    def times(self, rows: Dim, n: int) -> Dim:
        """So many times the rows of a batch."""
        if n == 1:
            return rows
        if (rows, n) not in self.multiples:
            self.multiples[rows, n] = self.tape.dim(rows.maximum * n)
        return self.multiples[rows, n]

    def n_of(self, axis: str, n_rows: int) -> int:
        """The number of a batch's rows along an axis: a short batch leaves the last tasks fewer."""
        return n_rows if axis == "b" else max(0, min(n_rows, self.own.stop) - self.own.start)

    def allocate(self, name: str) -> Array:
        """A buffer's array, its axes in the program's order, whatever its layout."""
        if name not in self.arrays:
            buffer = self.program.buffers[name]
            if buffer.role == "late":
                whole, delay = buffer.value
                self.allocate(whole)
                self._as_span(name, self.spans[whole].late(delay))
            elif name in self.rooms:
                self.arrays[name] = self.allocate(self.rooms[name])
                if self.rooms[name] in self.spans:
                    self._as_span(name, self.spans[self.rooms[name]])
            elif buffer.span is not None:
                self._as_span(name, self._span(buffer))
            elif buffer.role == "view":
                self.arrays[name] = self.part_of(buffer.value[0], buffer)
            elif name in self.inside:
                self.arrays[name] = self.part_of(self.inside[name], buffer)
            else:
                self.arrays[name] = self._array(name, buffer, self.persistent)
        return self.arrays[name]

    def _span(self, buffer: Buffer) -> StepBuffer:
        assert buffer.span is not None
        rows = buffer.axes[0]
        shape = [self.length(axis) for axis in buffer.axes]
        turned = self.layout == "neuron" and len(shape) == 2
        return StepBuffer.of(
            shape, self.dtype, self.steps, buffer.span, self.rows_of(rows), turned, self.blocks
        )

    def _as_span(self, name: str, span: StepBuffer) -> None:
        self.spans[name] = span
        self.arrays[name], self.all_steps[name] = span.step, span.all_steps

    def part_of(self, whole: str, buffer: Buffer) -> Array:
        """A buffer in the memory of another, which is longer along some axes."""
        have = self.program.buffers[whole].axes
        return self.allocate(whole)[
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
            return array.reshape(-1) if len(buffer.axes) == 1 else array  # shared ones have a shape
        if buffer.role == "constant":
            return constant(buffer.value, self.network, self.dtype, self.share, buffer.axes)
        shape = [self.length(axis) for axis in buffer.axes]
        if self.layout == "neuron" and len(shape) == 2 and base(buffer.axes[0]) == "b":
            return aligned(shape[::-1], self.dtype).T
        return aligned(shape, self.dtype)

    def length(self, axis: str) -> int:
        return self.share.length(axis, self.batch_size)

    def places(self, axis: str) -> slice:
        """The range of the whole axis that a share has."""
        if base(axis) == "b":
            return self.share.rows(axis, self.batch_size, self.batch_size)
        places = self.share.places(axis)
        assert isinstance(places, slice), axis
        return places

    def edges_of(self, layer: int, link: int, split: str) -> EdgeLists:
        key = (layer, link, split)
        if key not in self._edges:
            self._edges[key] = EdgeLists.of(self.share.edges(layer, link, split))
        return self._edges[key]
