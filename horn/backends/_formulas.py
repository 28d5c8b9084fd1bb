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
from horn.program import Output
from horn.scheduling.passes import single


class Formulas:
    """Appends passes to a tape, and sets the scalars that they read (``Scalar(name)``)."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.scalars: dict[str, Scalar] = {}
        self.derived: dict[Node, str] = {}  # by what a scalar is made of, its name

    def append(
        self,
        axes: Mapping[str, int],
        outputs: Sequence[tuple[View, Node]],
        views: Mapping[str, View],
        reduce: tuple[str, str] | None = None,
        label: str = "",
    ) -> None:
        """Append one pass: every output is the value of its node. ``views``: the loads, by name."""
        monoid, axis = reduce or ("", "")
        each = single([Output(label, self._lifted(node), axis, monoid) for _, node in outputs])
        inputs: list[Any] = []
        for node in each.inputs:
            if node.op is Op.LOAD:
                inputs.append(views[node.value])
            else:
                inputs.append(
                    float(node.value) if node.op is Op.CONST else self._scalar(node.value)
                )
        results = zip(outputs, each.results, strict=True)
        self.tape.loop(
            axes, inputs, each.numbered, [(view, each.number(at)) for (view, _), at in results],
            reduce=reduce, label=label,
        )  # fmt: skip

    def _lifted(self, root: Node) -> Node:
        """The expression with a scalar of its own for each number that is made of scalars."""

        def find(node: Node) -> Node | None:
            if node.axes or node.op in (Op.LOAD, Op.CONST, Op.SCALAR):
                return None
            name = self.derived.setdefault(node, f"#{len(self.derived)}")
            for each in (name, *(leaf.value for leaf in ir.walk(node) if leaf.op is Op.SCALAR)):
                self._scalar(each)
            return ir.Scalar(name)

        return ir.replace(root, find)

    def _scalar(self, name: str) -> Scalar:
        if name not in self.scalars:
            self.scalars[name] = self.tape.scalar()
        return self.scalars[name]

    def set(self, **values: float) -> None:
        """Set the scalars, and the nodes derived from them, for the next runs."""
        numbers = self.tape.scalars
        for name, scalar in self.scalars.items():
            if name in values:
                numbers[scalar.index] = values[name]
        here = {name: float(numbers[scalar.index]) for name, scalar in self.scalars.items()}
        for node, name in self.derived.items():
            numbers[self.scalars[name].index] = _evaluated(node, here)


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
