"""The check that a State or SynapseState may keep the mean over a batch.

Every sample of a batch starts from the kept value, and the mean of the samples' new values is
kept. That is right for values that samples add to (averages, traces, thresholds). It is meaningless
where one sample sets the number anew and another carries it on (a reset, the last or the largest of
samples), since the next sample then needs the value of this one; and where the number is a place
(argmax).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from horn import ir
from horn.ir import Node, Op
from horn.ir.neuron_ir import BackwardIR, ForwardIR

_OF_A_SAMPLE = frozenset({
    Op.INPUT, Op.DELTA, Op.GRADIENT, Op.OUTPUT, Op.UPSTREAM, Op.ERROR, Op.LOSS, Op.TARGET
})  # fmt: skip
_BETWEEN = frozenset({Op.MAXIMUM, Op.MINIMUM})
_SUMS = (Op.ADD, Op.SUB)
_LIMITS = frozenset({Op.LT, Op.LE, Op.GT, Op.GE})


def not_means(forward: ForwardIR, backward: BackwardIR | None) -> dict[str, str]:
    """The reasons why a State or SynapseState cannot keep the mean over a batch, by its name."""
    found: dict[str, str] = {}
    for method in (forward, backward):
        if method is None:
            continue
        kept = [(Op.STATE, method.states), (Op.TRACE, method.traces)]
        for op, values in kept:
            for name, value in values.items():
                why = _why(value, op, name)
                if why:
                    found.setdefault(name, why)
    return found


def _why(value: Node, op: Op, name: str) -> str:
    known = _Nodes(value, op, name)
    ends = [*_ends(value, known)]
    if any(n.op is Op.REDUCE and n.value[0] in ("argmax", "argmin") for n, _ in ends):
        return "is the place of a neuron, and the mean of places is none"
    own = {n in known.own for n, _ in ends}
    if len(own) == 2 and any(by_sample for _, by_sample in ends):
        return "is carried on by some samples and set anew by others"
    return ""


class _Nodes:
    """What holds of the nodes of a kept value. Found in one walk, arguments first: a variable that
    is used twice, again and again, has more paths than could be followed.

    own : the nodes that the value kept before is part of. varies : those that may differ between
    the samples of one batch; a kept value does not, all samples begin with the same. constants :
    the few constants that a node may be, or None.
    """

    def __init__(self, value: Node, op: Op, name: str) -> None:
        self.own: set[Node] = set()
        self.varies: set[Node] = set()
        self.constants: dict[Node, set[float] | None] = {}
        for node in ir.walk(value):
            if (node.op is op and node.value == name) or not self.own.isdisjoint(node.args):
                self.own.add(node)
            if _is_of_a_sample(node) or not self.varies.isdisjoint(node.args):
                if node.op is not Op.REDUCE or node.value[1] != "b":
                    self.varies.add(node)
            self.constants[node] = _constants(node, self.constants)

    def is_gate(self, node: Node) -> bool:
        """Whether the node is 0 for some samples and another constant for others."""
        numbers = self.constants[node]
        return numbers is not None and 0.0 in numbers and len(numbers) > 1 and node in self.varies


def _ends(value: Node, known: _Nodes) -> Iterator[tuple[Node, bool]]:
    """The possible values of an expression, path by path, each with whether the sample decides."""
    pending, seen = [(value, False)], set[tuple[Node, bool]]()
    while pending:
        entry = pending.pop()
        if entry in seen:
            continue
        seen.add(entry)
        node, by_sample = entry
        if node.op is Op.SELECT:
            c, a, b = node.args
            if c.op in _LIMITS and set(c.args) == {a, b}:  # a max or min, written with an if
                pending += _limited(a, b, by_sample, known)
            else:
                pending += [(x, by_sample or c in known.varies) for x in (a, b)]
        elif node.op in _BETWEEN:
            a, b = node.args
            pending += _limited(a, b, by_sample, known)
        elif node.op in _SUMS and sum(x in known.own for x in node.args) == 1:
            pending += [(x, by_sample) for x in node.args if x in known.own]
        elif node.op is Op.MUL and any(map(known.is_gate, factors := _factors(node))):
            # A reset by multiplication, as in  v * (1 - spike).
            rest = [n for n in factors if not known.is_gate(n)]
            pending += [(n, True) for n in (ir.ZERO, *rest)]
        else:
            yield node, by_sample


def _factors(node: Node) -> list[Node]:
    """The factors of a product, each once."""
    found, pending, seen = list[Node](), [node], set[Node]()
    while pending:
        n = pending.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op is Op.MUL:
            pending += reversed(n.args)
        else:
            found.append(n)
    return found


def _constants(node: Node, known: Mapping[Node, set[float] | None]) -> set[float] | None:
    """The few constants that the node may be, or None. known : those of its arguments."""
    if node.op is Op.CONST:
        return {node.value}
    if node.op in ir.BOOLEAN:
        return {0.0, 1.0}
    if node.op not in (*_SUMS, Op.MUL, Op.NEG, Op.SELECT):
        return None
    found = [known[x] for x in (node.args[1:] if node.op is Op.SELECT else node.args)]
    if any(x is None or len(x) > 2 for x in found):
        return None
    if node.op is Op.SELECT:
        return set().union(*(x for x in found if x))
    return {
        ir.compute(node.op, list(each)) for each in itertools.product(*(x or () for x in found))
    }


def _limited(a: Node, b: Node, by_sample: bool, known: _Nodes) -> list[tuple[Node, bool]]:
    """The sides of a max or min that can be the value: a number common to samples is a limit."""
    sides = [x for x in (a, b) if x in known.varies or x in known.own]
    if len(sides) == 2:
        return [(x, True) for x in sides]
    return [(x, by_sample) for x in sides]


def _is_of_a_sample(node: Node) -> bool:
    is_draw = node.op in (Op.DRAW, Op.MESSAGE_DRAW) and "b" in node.axes
    return node.op in _OF_A_SAMPLE or is_draw
