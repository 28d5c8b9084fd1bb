"""Sums of products become matrix products.

A sum over one axis of an expression over (b, o, i) is a *contraction* if the expression is a
polynomial whose factors each vary along at most one axis besides the summed one: then it is a sum
of matrix products. (input - weight)^2 summed over the synapses is sum(input^2) - 2 input @ weight'
+ sum(weight^2).
"""

from __future__ import annotations

from horn.compiler import ir
from horn.compiler.ir import Node, Op, const, mul, reduce, select

MAX_TERMS = 8  # beyond this many products a fused loop is no slower

Monomial = tuple[float, tuple[Node, ...]]  # coefficient, factors (repeated for powers)


def contract(node: Node, axis: str, count: Node) -> Node | None:
    """Sum over ``axis`` of the node as matrix products, or None if it is not a contraction.
    ``count``: the length of the axis.
    """
    if node.op is Op.SELECT and axis not in node.args[0].axes:
        a, b = (contract(x, axis, count) for x in node.args[1:])
        return None if a is None or b is None else select(node.args[0], a, b)
    if axis not in node.axes:
        return mul(node, count)
    terms = monomials(node)
    if terms is None:
        return None
    total: Node = const(0.0)
    for coefficient, factors in terms:
        term = _term(coefficient, factors, axis, count)
        if term is None:
            return None
        total = ir.add(total, term)
    return total


def _term(coefficient: float, factors: tuple[Node, ...], axis: str, count: Node) -> Node | None:
    outside: Node = const(coefficient)
    sides: dict[str, Node] = {}
    alone: Node | None = None
    for factor in factors:
        others = factor.axes.replace(axis, "")
        if axis not in factor.axes:
            outside = mul(outside, factor)
        elif len(others) > 1:
            return None
        elif not others:
            alone = factor if alone is None else mul(alone, factor)
        else:
            sides[others] = mul(sides[others], factor) if others in sides else factor
    if alone is not None and sides:
        first = next(iter(sides))
        sides[first] = mul(sides[first], alone)
        alone = None
    if len(sides) == 2:
        a, b = (sides[k] for k in sorted(sides, key=ir.AXES.index))
        return mul(outside, ir.matmul(a, b, axis))
    rest = alone if alone is not None else next(iter(sides.values()), None)
    return mul(outside, count if rest is None else reduce("sum", axis, rest))


def monomials(node: Node) -> list[Monomial] | None:
    """The expression as a sum of products of factors that do not vary along all three axes; None if
    it is not one.
    """
    if node.op is Op.CONST:
        return [(float(node.value), ())]
    if node.op is Op.NEG:
        inner = monomials(node.args[0])
        return None if inner is None else [(-c, f) for c, f in inner]
    full = len(node.axes) == 3
    if node.op is Op.MUL:
        a, b = (monomials(x) for x in node.args)
        if not full and (a is None or b is None or len(a) * len(b) > 1):
            return [(1.0, (node,))]
        return _product(a, b)
    if not full:
        return [(1.0, (node,))]
    if node.op in (Op.ADD, Op.SUB):
        a, b = (monomials(x) for x in node.args)
        if a is None or b is None or len(a) + len(b) > MAX_TERMS:
            return None
        return [*a, *((c if node.op is Op.ADD else -c, f) for c, f in b)]
    if node.op is Op.DIV and len(node.args[1].axes) < 3:
        a = monomials(node.args[0])
        inverse = ir.make(Op.DIV, const(1.0), node.args[1])
        return None if a is None else [(c, (*f, inverse)) for c, f in a]
    if node.op is Op.POW and ir.is_const(node.args[1]) and node.args[1].value in (2.0, 3.0, 4.0):
        base = monomials(node.args[0])
        result = base
        for _ in range(int(node.args[1].value) - 1):
            result = _product(result, base)
        return result
    return None


def _product(a: list[Monomial] | None, b: list[Monomial] | None) -> list[Monomial] | None:
    if a is None or b is None or len(a) * len(b) > 2 * MAX_TERMS:
        return None
    merged: dict[tuple[Node, ...], float] = {}
    for c, f in a:
        for d, g in b:
            key = tuple(sorted((*f, *g), key=lambda n: n.place))
            merged[key] = merged.get(key, 0.0) + c * d
    return [(c, f) for f, c in merged.items()] if len(merged) <= MAX_TERMS else None
