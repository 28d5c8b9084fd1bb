"""The check that a State or SynapseState may keep the mean over a batch.

Every sample of a batch starts from the kept value, and the mean of the samples' new values is
kept. That is right for values that samples add to (averages, traces, thresholds). It is meaningless
where one sample sets the number anew and another carries it on (a reset, the last or the largest of
samples), since the next sample then needs the value of this one; and where the number is a place
(argmax).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

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
    def is_own(node: Node) -> bool:
        return any(n.op is op and n.value == name for n in ir.walk(node))

    ends = [*_ends(value, is_own)]
    if any(n.op is Op.REDUCE and n.value[0] in ("argmax", "argmin") for n, _ in ends):
        return "is the place of a neuron, and the mean of places is none"
    own = {is_own(n) for n, _ in ends}
    if len(own) == 2 and any(by_sample for _, by_sample in ends):
        return "is carried on by some samples and set anew by others"
    return ""


def _ends(value: Node, is_own: Callable[[Node], bool]) -> Iterator[tuple[Node, bool]]:
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
                pending += _limited(a, b, by_sample, is_own)
            else:
                pending += [(x, by_sample or _varies(c)) for x in (a, b)]
        elif node.op in _BETWEEN:
            a, b = node.args
            pending += _limited(a, b, by_sample, is_own)
        elif node.op in _SUMS and sum(map(is_own, node.args)) == 1:
            pending += [(x, by_sample) for x in node.args if is_own(x)]
        elif node.op is Op.MUL and any(map(_is_gate, _factors(node))):
            # A reset by multiplication, as in  v * (1 - spike).
            rest = [n for n in _factors(node) if not _is_gate(n)]
            pending += [(n, True) for n in (ir.ZERO, *rest)]
        else:
            yield node, by_sample


def _factors(node: Node) -> list[Node]:
    if node.op is not Op.MUL:
        return [node]
    return [n for a in node.args for n in _factors(a)]


def _is_gate(node: Node) -> bool:
    """Whether the node is 0 for some samples and another constant for others."""
    numbers = _constants(node)
    return numbers is not None and 0.0 in numbers and len(numbers) > 1 and _varies(node)


def _constants(node: Node) -> set[float] | None:
    """The few constants that the node may be, or None."""
    if node.op is Op.CONST:
        return {node.value}
    if node.op in ir.BOOLEAN:
        return {0.0, 1.0}
    parts = node.args[1:] if node.op is Op.SELECT else node.args
    found = [_constants(x) for x in parts] if parts and node.op in ir.ELEMENTWISE else [None]
    if any(x is None or len(x) > 2 for x in found):
        return None
    if node.op is Op.SELECT:
        return set().union(*(x for x in found if x))
    if node.op not in (*_SUMS, Op.MUL, Op.NEG):
        return None
    return {
        ir.compute(node.op, list(each)) for each in itertools.product(*(x or () for x in found))
    }


def _limited(
    a: Node, b: Node, by_sample: bool, is_own: Callable[[Node], bool]
) -> list[tuple[Node, bool]]:
    """The sides of a max or min that can be the value: a number common to samples is a limit."""
    sides = [x for x in (a, b) if _varies(x) or is_own(x)]
    if len(sides) == 2:
        return [(x, True) for x in sides]
    return [(x, by_sample) for x in sides]


def _varies(node: Node) -> bool:
    """Whether the node may differ between the samples of one batch. A kept value does not: all
    samples begin with the same.
    """
    done: set[Node] = set()
    pending = [node]
    while pending:
        n = pending.pop()
        if n in done or (n.op is Op.REDUCE and n.value[1] == "b"):
            continue
        done.add(n)
        is_draw = n.op in (Op.DRAW, Op.MESSAGE_DRAW) and "b" in n.axes
        if n.op in _OF_A_SAMPLE or is_draw:
            return True
        pending += n.args
    return False
