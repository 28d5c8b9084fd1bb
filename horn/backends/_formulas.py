"""Formulas of the IR as passes over given arrays: updates of weights outside a program.

An expression loads arrays by name; the caller's views say where these lie, along which axes and at
which places. Nodes without axes are computed once before a run, not once per number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from horn import ir
from horn._kernels.engine import Scalar, Tape, View
from horn.ir import Node, Op
from horn.scheduling.passes import NAMES


class Formulas:
    """Appends passes to a tape, and sets the scalars that they read (``Scalar(name)``)."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.scalars: dict[str, Scalar] = {}
        self.derived: dict[Node, Scalar] = {}

    def append(
        self,
        axes: Mapping[str, int],
        outputs: Sequence[tuple[View, Node]],
        views: Mapping[str, View],
        reduce: tuple[str, str] | None = None,
        label: str = "",
    ) -> None:
        """Append one pass: every output is the value of its node. ``views``: the loads, by name."""
        inputs: list[Any] = []
        ops: list[tuple[Any, ...]] = []
        known: dict[Node, tuple[bool, int]] = {}  # (is an operation, index)

        def read(node: Node, what: Any) -> None:
            known[node] = (False, len(inputs))
            inputs.append(what)

        def lower(node: Node) -> None:
            if node in known:
                return
            if node.op is Op.LOAD:
                read(node, views[node.value])
            elif node.op is Op.CONST:
                read(node, float(node.value))
            elif not node.axes:
                read(node, self._number(node))
            else:
                for argument in node.args:
                    lower(argument)
                known[node] = (True, len(ops))
                ops.append((NAMES[node.op], *(known[a] for a in node.args)))

        for _, root in outputs:
            lower(root)

        def place(value: tuple[bool, int]) -> int:
            return value[1] + (len(inputs) if value[0] else 0)

        self.tape.loop(
            axes, inputs, [(name, *map(place, args)) for name, *args in ops],
            [(view, place(known[root])) for view, root in outputs], reduce=reduce, label=label,
        )  # fmt: skip

    def _number(self, node: Node) -> Scalar:
        for leaf in ir.walk(node):
            if leaf.op is Op.SCALAR and leaf.value not in self.scalars:
                self.scalars[leaf.value] = self.tape.scalar()
        if node.op is Op.SCALAR:
            return self.scalars[node.value]
        if node not in self.derived:
            self.derived[node] = self.tape.scalar()
        return self.derived[node]

    def set(self, **values: float) -> None:
        """Set the scalars, and the nodes derived from them, for the next runs."""
        numbers = self.tape.scalars
        for name, scalar in self.scalars.items():
            if name in values:
                numbers[scalar.index] = values[name]
        here = {name: float(numbers[scalar.index]) for name, scalar in self.scalars.items()}
        for node, scalar in self.derived.items():
            numbers[scalar.index] = _evaluated(node, here)


def _evaluated(node: Node, scalars: Mapping[str, float]) -> float:
    """The value of a node without axes, in double precision."""
    values: dict[Node, float] = {}
    for n in ir.walk(node):
        if n.op is Op.CONST:
            values[n] = float(n.value)
        elif n.op is Op.SCALAR:
            values[n] = scalars[n.value]
        else:
            values[n] = ir.compute(n.op, [values[a] for a in n.args])
    return values[node]
