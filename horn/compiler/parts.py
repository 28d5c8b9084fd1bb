"""Sequences in parts: forward is computed again for one part after the other, from the last to the
first, so that memory holds the steps of one part and the beginning of each.

    Parts(forward: up to the circle; behind: statements after it; judge; backward)

The gradients of learned arrays add up over the parts, and are applied afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from horn import ir
from horn.errors import CompileError
from horn.ir import load
from horn.network import Network
from horn.program import (
    Buffer,
    Convolve,
    Frame,
    Loop,
    Matmul,
    Output,
    Statement,
    base,
    out_letters,
    reads,
    writes,
)

OF_A_STEP = ("late", "carried")  # roles of buffers that differ at each step


def length_of(steps: int) -> int:
    """The steps of a part, so that there are about as many parts."""
    return math.isqrt(max(steps - 1, 0)) + 1


class Sums:
    """The statements after the last step, as they run with parts. known : first, where no step
    changes their inputs; each : for every part; zero : before the parts; after : after all parts.

    changed : the buffers that the statements of parts write.
    """

    def __init__(
        self,
        network: Network,
        buffers: dict[str, Buffer],
        statements: Sequence[Statement],
        has_rows: Callable[[Statement], bool],
        changed: Collection[str],
    ) -> None:
        self.network, self.buffers = network, buffers
        self.known: list[Statement] = []
        self.each: list[Statement] = []
        self.zero: list[Statement] = []
        self.after: list[Statement] = []
        self.names: set[str] = set()  # the buffers that parts add up
        whole: set[str] = set()  # complete after all parts
        for statement in statements:
            if not has_rows(statement) and self.is_known(statement, {*changed, *whole}):
                self.known.append(statement)
                continue
            if not has_rows(statement):
                self.after.append(statement)
                whole |= {*writes(statement)}
                continue
            for name in whole & {*reads(statement)}:
                if buffers[name].role == "work":
                    raise CompileError(
                        f"{self.place(statement)}{name}: what all steps say together is asked of "
                        'single ones; recompute="sqrt" has them part by part: train without it'
                    )
            sums = [n for n in writes(statement) if self.is_sum(n)]
            whole |= {*sums}
            self.each.append(self.here(statement, sums))
            for name in sums:
                self.add(name, statement)

    def is_known(self, s: Statement, changed: Collection[str]) -> bool:
        """Whether its inputs are learned or fixed, known before any step."""
        heard, made = {*reads(s)}, {*writes(s)}
        if (heard | made) & {*changed} or any(self.buffers[n].role in OF_A_STEP for n in heard):
            return False
        return all(self.buffers[name].role == "work" for name in made)

    def place(self, s: Statement) -> str:
        """The layer and the neuron of a statement, as the beginning of a message."""
        if not isinstance(frame := getattr(s, "frame", None), Frame):
            return ""
        layer = self.network.layers[frame.layer]
        return f"{layer.name} ({layer.neuron.__name__}): "

    def is_sum(self, name: str) -> bool:
        return not any(base(axis) == "b" for axis in self.buffers[name].axes)

    def here(self, s: Statement, sums: Sequence[str]) -> Statement:
        """The statement for one part alone."""
        for name in sums:
            self.buffers[f"{name}.here"] = replace(self.buffers[name], name=f"{name}.here")
        if isinstance(s, Loop):
            outputs = (
                replace(o, buffer=f"{o.buffer}.here") if o.buffer in sums else o for o in s.outputs
            )
            return replace(s, outputs=tuple(outputs))
        if isinstance(s, (Matmul, Convolve)):
            return replace(s, out=f"{s.out}.here") if sums else s
        if sums:
            raise CompileError(
                f'{self.place(s)}{sums[0]}: recompute="sqrt" does not add up what '
                f"{type(s).__name__} says of parts; train without it"
            )
        return s

    def add(self, name: str, s: Statement) -> None:
        """Add this part's sum to that of the other parts."""
        self.names.add(name)
        assert isinstance(s, (Loop, Matmul, Convolve))
        frame, letters = s.frame, "o"
        if isinstance(s, Matmul):
            letters = s.out_axes
        elif isinstance(s, Convolve):
            frame = replace(frame, shared=True)
        else:
            output = next(o for o in s.outputs if o.buffer == name)
            letters = out_letters(self.network, frame, output, self.buffers)
        both = load(name, letters) + load(f"{name}.here", letters)
        self.each.append(Loop(frame, (Output(name, both, letters=letters),)))
        self.zero.append(Loop(frame, (Output(name, ir.const(0.0), letters=letters),)))
