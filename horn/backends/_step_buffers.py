"""Buffers of the kernels: aligned, and for sequences with all steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn._kernels.engine import Dim, Tape
from horn.backends import Array

# Bytes of a cache line and of a vector register. NumPy aligns to 16: then every vector access of a
# weight update straddles two lines, and the fused update takes 20 % longer (docs/notes/0002).
LINE = 64
# Buffers of so many bytes share blocks of BLOCK_BYTES: of arrays of 4 MB and more, NumPy asks the
# system for huge pages, and an LSTM's eight buffers of 2.5 MB take 640 small ones each, which
# the processor looks up while it computes (3 to 4 % of a training step; docs/speed.md).
SHARED_BYTES = range(1 << 20, 1 << 22)
BLOCK_BYTES = 1 << 26  # untouched zeros take no memory


class Blocks:
    """Zeros for one buffer after another, each from a cache line on."""

    def __init__(self) -> None:
        self._rest = np.empty(0, np.uint8)

    def zeros(self, shape: Sequence[int], dtype: Any) -> Array:
        n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if n_bytes not in SHARED_BYTES:
            return aligned(shape, dtype)
        if n_bytes > len(self._rest):
            self._rest = aligned([BLOCK_BYTES], np.uint8)
        found: Array = self._rest[:n_bytes].view(dtype).reshape(shape)
        self._rest = self._rest[-(-n_bytes // LINE) * LINE :]
        return found


@dataclass
class StepBuffer:
    """A buffer with all steps of a sequence. Its rows lie step after step, as many as the batch
    has, so that all steps together are rows, too.

    memory : (rows of all steps, neurons) in the order in memory. step, all_steps : placeholders
    that instructions are made with; they never hold anything. first : the index of its first step.
    """

    memory: Array
    step: Array
    all_steps: Array
    first: int
    unit: int
    rows: Dim
    n_steps: int
    turned: bool
    after: int  # steps behind the last one, besides

    @classmethod
    def of(
        cls, shape: Sequence[int], dtype: Any, steps: int, span: tuple[int, int], rows: Dim,
        turned: bool, blocks: Blocks,
    ) -> StepBuffer:  # fmt: skip
        n, *rest = shape
        whole = n * (span[0] + steps + span[1])
        lies = [*rest, whole] if turned else [whole, *rest]
        memory = blocks.zeros(lies, dtype)
        step, every = (cls._like(memory, k, turned) for k in (n, n * steps))
        unit = memory.itemsize * (1 if turned else int(np.prod(rest, dtype=np.int64)))
        return cls(memory, step, every, span[0], unit, rows, steps, turned, span[1])

    @staticmethod
    def _like(memory: Array, n: int, turned: bool) -> Array:
        """A separate array of n rows with the memory's layout."""
        if turned:
            return np.empty_like(memory)[:, :n].T
        return np.empty((n, *memory.shape[1:]), memory.dtype)

    def late(self, delay: int) -> StepBuffer:
        """The same buffer, ``delay`` steps ago."""
        n = self.step.shape[0]
        step, every = (self._like(self.memory, k, self.turned) for k in (n, n * self.n_steps))
        return dataclasses.replace(self, step=step, all_steps=every, first=self.first - delay)

    def move(self, tape: Tape) -> None:
        """Point the tape's instructions at its memory."""
        tape.move(self.step, self.memory, self.first, self.unit, self.rows)
        tape.move(self.all_steps, self.memory, self.first, self.unit, self.rows, stays=True)

    def ends(self, n: int) -> tuple[Array, Array]:
        """The steps before the first one, and the last steps, of n rows; views."""
        whole = self.memory.T if self.turned else self.memory
        return whole[: self.first * n], whole[self.n_steps * n : (self.n_steps + self.first) * n]

    def before(self, n: int) -> Array:
        """The content before the first step, of n rows; a view, as the following ones."""
        return self._steps(0, self.first, n)

    def at_end(self, n: int, n_steps: int) -> Array:
        """The last of ``n_steps`` steps, as many as there are before the first one."""
        return self._steps(n_steps, self.first, n)

    def at_start(self, n: int) -> Array:
        """The first steps, as many as there are behind the last one."""
        return self._steps(self.first, self.after, n)

    def behind(self, n: int, n_steps: int) -> Array:
        """The content behind ``n_steps`` steps."""
        return self._steps(self.first + n_steps, self.after, n)

    def _steps(self, at: int, steps: int, n: int) -> Array:
        whole = self.memory.T if self.turned else self.memory
        return whole[at * n : (at + steps) * n]

    def at(self, n: int, step: int) -> Array:
        """Its content of n rows at a step; a view."""
        return self._steps(self.first + step, 1, n)

    def value(self, n: int, n_steps: int) -> Array:
        """Its content of n rows at ``n_steps`` steps: (rows, steps, ...)."""
        whole = self.memory.T if self.turned else self.memory
        here = whole[self.first * n : (self.first + n_steps) * n]
        return here.reshape(n_steps, n, *here.shape[1:]).swapaxes(0, 1)


def is_aligned(array: Array) -> bool:
    flags = array.flags
    return bool(flags.c_contiguous and flags.writeable and array.ctypes.data % LINE == 0)


def aligned(shape: Sequence[int], dtype: Any, content: Any = 0) -> Array:
    """A C-ordered array that starts at a cache line, holding `content`."""
    n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    is_zero = np.ndim(content) == 0 and content == 0
    room = (np.zeros if is_zero else np.empty)(n_bytes + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    array: Array = room[start : start + n_bytes].view(dtype).reshape(shape)
    if not is_zero:  # untouched zeros take no memory
        array[...] = content
    return array
