"""The monoid of a variable in a loop over messages: the element that one message combines with
it.
"""

from __future__ import annotations

from horn import ir
from horn.ir import Node, Op, const, select

_OR_EQUAL = {Op.GT: Op.GE, Op.LT: Op.LE, Op.GE: Op.GT, Op.LE: Op.LT}
_MIRROR = {Op.GT: Op.LT, Op.LT: Op.GT, Op.GE: Op.LE, Op.LE: Op.GE}


def peel(value: Node, me: Node, monoid: str, lax: bool = False) -> Node | None:
    """The element e if value is (me (+) e) for this monoid, under any selects; else None.

    Among equals max and min keep the first, which gets the gradient; if lax also the last.
    """
    found: dict[Node, Node | None] = {}  # of nodes that depend on carried variables
    for node in ir.walk(value):
        if node is me:
            found[node] = const(ir.IDENTITY[monoid])
        elif node.op is Op.CARRY or any(a in found for a in node.args):
            found[node] = _peeled(node, me, monoid, lax, found)
    return found.get(value)


def _peeled(
    value: Node, me: Node, monoid: str, lax: bool, found: dict[Node, Node | None]
) -> Node | None:
    """The result of ``peel`` of a node from those of its arguments; others are not carried."""
    if value.op is Op.SELECT:
        c, a, b = value.args
        if c not in found:
            left, right = (x if _settles(x, monoid) else found.get(x) for x in (a, b))
            return None if left is None or right is None else select(c, left, right)
        # if v > best: best = v; perhaps of some messages only, as if c and v > best
        if monoid in ("max", "min"):
            better, worse = (Op.GT, Op.LE) if monoid == "max" else (Op.LT, Op.GE)
            for new, old, op, joins in ((a, b, better, Op.AND), (b, a, worse, Op.OR)):
                ops = (op, _OR_EQUAL[op]) if lax else (op,)
                if old is not me or new in found:
                    continue
                tests = _joined(c, joins)
                others = [test for test in tests if test not in found]
                if len(others) != len(tests) - 1:
                    continue
                (test,) = (test for test in tests if test in found)
                if (test.op in ops and test.args == (new, me)) or (
                    _MIRROR.get(test.op) in ops and test.args == (me, new)
                ):
                    for other in others:
                        sides = (new, const(ir.IDENTITY[monoid]))
                        new = select(other, *(sides if joins is Op.AND else sides[::-1]))
                    return new
        return None
    if monoid == "sum" and value.op is Op.SUB:
        left = found.get(value.args[0])
        return None if left is None or value.args[1] in found else left - value.args[1]
    if monoid == "prod" and value.op is Op.DIV:
        left = found.get(value.args[0])
        return None if left is None or value.args[1] in found else left / value.args[1]
    if monoid == "prod" and value.op is Op.NEG:
        inner = found[value.args[0]]
        return None if inner is None else -inner
    if monoid in ("any", "all") and value.op is Op.NE:
        for a, b in (value.args, value.args[::-1]):
            if ir.is_const(b, 0.0):
                return found.get(a)
    if value.op is ir.COMBINE[monoid]:
        a, b = value.args
        first_only = monoid in ("max", "min") and not lax
        for mine, other in ((a, b),) if first_only else ((a, b), (b, a)):
            if mine in found and other not in found:
                inner = found[mine]
                return None if inner is None else ir.combine(monoid, inner, other)
    return None


def _settles(node: Node, monoid: str) -> bool:
    """Whether it decides alone, whatever the other messages are: if c: found = True."""
    return monoid in ("any", "all") and ir.is_const(node, 1.0 if monoid == "any" else 0.0)


def _joined(condition: Node, op: Op) -> list[Node]:
    """The conditions that this one is made of by ``op``, and or or."""
    found, stack = list[Node](), [condition]
    while stack:
        n = stack.pop()
        if n.op is op:
            stack.extend(n.args)
        else:
            found.append(n)
    return found
