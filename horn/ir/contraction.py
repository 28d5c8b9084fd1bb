"""Sums of products become matrix products.

A sum over one axis of an expression over (b, o, i) is a *contraction* if the expression is a
polynomial whose factors each vary along at most one axis besides the summed one: then it is a sum
of matrix products. (input - weight) (other - weight2) summed over the synapses is that of four.

A square, or a higher power, of a sum is none: sum(input^2) - 2 input @ weight' + sum(weight^2)
loses the digits of (input - weight)^2 where both are close to each other and far from 0, and may
be below 0: near 1,000 half of a squared distance of 1 is lost in float32 (docs/notes/0111).
"""

from __future__ import annotations

from collections.abc import Callable

from horn import ir
from horn.ir import Node, Op, const, mul, reduce, select

MAX_TERMS = 8  # beyond this many products a fused loop is no slower
MAX_FACTORS = 32  # v = v * v, repeated, doubles the number of factors each time

# functions of a product, or of a sum, that are products of functions of its parts
_SPLIT = (Op.ABS, Op.SIGN, Op.SIN, Op.COS)

_FINITE = frozenset({*_SPLIT, Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.TANH, Op.SIGMOID, Op.REDUCE})
# And these: a condition may well keep the argument of one of them from overflowing.
_UNLESS_GUARDED = frozenset({
    *ir.BOOLEAN, Op.SELECT, Op.EXP, Op.EXPM1, Op.SOFTPLUS, Op.RELU, Op.ERF, Op.ERFC, Op.ATAN,
    Op.ATAN2, Op.FLOOR, Op.MAXIMUM, Op.MINIMUM, Op.STOP_GRADIENT,
})  # fmt: skip

Monomial = tuple[float, tuple[Node, ...]]  # coefficient, factors (repeated for powers)


def contract(node: Node, axis: str, count: Node) -> Node | None:
    """Sum over ``axis`` of the node as matrix products, or None if it is not a contraction.
    ``count``: the length of the axis.
    """
    done: dict[Node, Node | None] = {}
    stack = [node]
    while stack:
        n = stack[-1]
        if n in done:
            stack.pop()
        elif n.op is not Op.SELECT or axis in n.args[0].axes:
            done[n] = _contracted(n, axis, count)
        elif missing := [x for x in n.args[1:] if x not in done]:
            stack.extend(missing)
        else:
            a, b = (done[x] for x in n.args[1:])
            done[n] = None if a is None or b is None else select(n.args[0], a, b)
    return done[node]


def _contracted(node: Node, axis: str, count: Node) -> Node | None:
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


def taken_out(
    node: Node, axis: str, may_leave: Callable[[Node], bool] = lambda factor: True
) -> tuple[Node, Node]:
    """Split a product into the factors that do not vary along the axis, and the rest. may_leave :
    whether a factor may be among the first.
    """
    outside: Node = const(1.0)
    inside: Node = const(1.0)
    stack = [node]
    n_factors = 0
    while stack:
        n = stack.pop()
        n_factors += 1
        if axis not in n.axes and may_leave(n):
            outside = mul(outside, n)
        elif n.op is Op.NEG:
            outside = ir.make(Op.NEG, outside)
            stack.append(n.args[0])
        elif n.op is Op.MUL and n_factors < MAX_FACTORS and _has_outside(n, axis):
            stack.extend(reversed(n.args))
        else:
            inside = mul(inside, n)
    return outside, inside


def paired(root: Node, replaced: dict[Node, Node] | None = None) -> Node:
    """The node with products over all three axes reordered: the factors that share two axes are
    multiplied first, once per place along these two. replaced : the results for nodes of earlier
    expressions; it grows.
    """
    done: dict[Node, Node | None] = {}
    replaced = {} if replaced is None else replaced

    def find(node: Node) -> Node | None:
        if node.op is not Op.MUL or len(node.axes) < 3:
            return None
        if node not in done:
            done[node] = None
            parts = _factors(node)
            groups: list[Node] = []
            whole: list[Node] = []
            for factor in parts:
                k = next((k for k, g in enumerate(groups) if _pairs(g, factor)), None)
                if len(factor.axes) == 3:
                    whole.append(factor)
                elif k is None:
                    groups.append(factor)
                else:
                    groups[k] = mul(groups[k], factor)
            if len(groups) + len(whole) < len(parts):
                product = groups[0]
                for factor in groups[1:]:
                    product = mul(product, factor)
                for factor in whole:
                    product = mul(product, ir.replace(factor, find, replaced))
                done[node] = product
        return done[node]

    return ir.replace(root, find, replaced)


def _pairs(a: Node, b: Node) -> bool:
    return len(ir.union(a.axes, b.axes)) < 3


def _factors(node: Node) -> list[Node]:
    """The factors of a product over three axes; the node itself where they are too many."""
    found, stack = [], [node]
    while stack:
        n = stack.pop()
        if n.op is Op.MUL and len(n.axes) == 3:
            stack.extend(reversed(n.args))
        else:
            found.append(n)
        if len(found) + len(stack) > MAX_FACTORS:
            return [node]
    return found


def _has_outside(node: Node, axis: str) -> bool:
    """Whether a factor of a product does not vary along the axis, or is negative."""
    stack, seen = [node], 0
    while stack and seen < MAX_FACTORS:
        n = stack.pop()
        seen += 1
        if axis not in n.axes or n.op is Op.NEG:
            return True
        if n.op is Op.MUL:
            stack.extend(n.args)
    return False


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


def monomials(root: Node) -> list[Monomial] | None:
    """The expression as a sum of products of factors that do not vary along all three axes; None
    if it is not one.
    """
    done: dict[Node, list[Monomial] | None] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        missing = [x for x in _factored(node) if x not in done]
        if missing and node not in done:
            stack.extend(reversed(missing))
            continue
        if node not in done:
            done[node] = _monomials(node, done)
        stack.pop()
    return done[root]


def _factored(node: Node) -> tuple[Node, ...]:
    """The arguments whose monomials are needed for the monomials of the node."""
    if node.op in (Op.MUL, Op.NEG):
        return node.args
    if len(node.axes) < 3:
        return ()
    if node.op in (Op.ADD, Op.SUB):
        return node.args
    if _is_gated(node):
        return node.args[1:2]
    return node.args[:1] if node.op in (Op.DIV, Op.POW, *_SPLIT) else ()


def _is_gated(node: Node) -> bool:
    """Whether the node is 0 where a condition that is the same for all messages fails."""
    return node.op is Op.SELECT and ir.is_const(node.args[2], 0.0) and len(node.args[0].axes) < 3


def _gated(c: Node, monomial: Monomial) -> Monomial | None:
    """Apply the condition to a factor that has its axes: 0 there makes the product 0, unless
    another is infinite, as 1 / n on the condition n > 0. Those that may be come under it, too;
    None where one does not have its axes: weight / m.index on the condition m.input > 0.
    """
    coefficient, factors = monomial
    home = next((k for k, f in enumerate(factors) if _has_axes(f, c.axes)), len(factors))
    inside: Node = factors[home] if home < len(factors) else const(1.0)
    axes = ir.union(inside.axes, c.axes)
    before, after = list[Node](), list[Node]()
    for k, factor in enumerate(factors):
        others = before if k < home else after
        if k == home:
            continue
        if is_finite(factor):
            others.append(factor)
        elif ir.union(factor.axes, axes) == axes:
            inside = mul(inside, factor)
        elif _has_axes(factor, c.axes):
            others.append(select(c, factor, const(0.0)))
        elif is_finite(factor, unguarded=True):
            others.append(factor)
        else:
            return None
    return coefficient, (*before, select(c, inside, const(0.0)), *after)


def _has_axes(node: Node, axes: str) -> bool:
    return ir.union(node.axes, axes) == node.axes


def is_finite(node: Node, unguarded: bool = False) -> bool:
    """Whether a number is surely finite, if its leaves are and it does not overflow; so are shares
    of the number of samples or neurons, a scalar. unguarded : no condition keeps it from
    overflowing, which is the user's to see.
    """
    known = _FINITE | _UNLESS_GUARDED if unguarded else _FINITE
    stack, seen = [node], 0
    while stack:
        n = stack.pop()
        seen += 1
        below = n.args[1] if n.op is Op.DIV else None
        is_share = below is not None and (
            below.op is Op.SCALAR or (unguarded and ir.is_const(below) and below.value != 0.0)
        )
        if seen > MAX_FACTORS or (n.args and n.op not in known and not is_share):
            return False
        stack.extend(n.args)
    return True


def _monomials(node: Node, done: dict[Node, list[Monomial] | None]) -> list[Monomial] | None:
    """The monomials of a node from those of its arguments, in ``done``."""
    if node.op is Op.CONST:
        return [(float(node.value), ())]
    if node.op is Op.NEG:
        inner = done[node.args[0]]
        return None if inner is None else [(-c, f) for c, f in inner]
    full = len(node.axes) == 3
    if node.op is Op.MUL:
        a, b = (done[x] for x in node.args)
        product = None if not full and a and b and len(a) * len(b) > 1 else _product(a, b)
        return [(1.0, (node,))] if product is None and not full else product
    if not full:
        return [(1.0, (node,))]
    if node.op in (Op.ADD, Op.SUB):
        a, b = (done[x] for x in node.args)
        if a is None or b is None or len(a) + len(b) > MAX_TERMS:
            return None
        return _joined([*a, *((c if node.op is Op.ADD else -c, f) for c, f in b)])
    if _is_gated(node):
        gated = [_gated(node.args[0], each) for each in done[node.args[1]] or ()]
        return [each for each in gated if each is not None] if gated and all(gated) else None
    if node.op is Op.DIV and len(node.args[1].axes) < 3:
        a = done[node.args[0]]
        inverse = ir.make(Op.DIV, const(1.0), node.args[1])
        return None if a is None else [(c, (*f, inverse)) for c, f in a]
    if node.op is Op.POW and ir.is_const(node.args[1]) and node.args[1].value in (2.0, 3.0, 4.0):
        base = done[node.args[0]]
        result = base
        for _ in range(int(node.args[1].value) - 1):
            result = _product(result, base)
        return result
    if node.op in (Op.ABS, Op.SIGN):
        return _of_each(lambda x: ir.make(node.op, x), done[node.args[0]])
    if node.op is Op.POW and ir.is_const(node.args[1]) and node.args[1].value > 0.0:
        # Only of an absolute value: the power of a negative number is none, that of its factors is.
        if node.args[0].op is Op.ABS:
            return _of_each(lambda x: ir.make(Op.POW, x, node.args[1]), done[node.args[0]])
    if node.op in (Op.SIN, Op.COS):
        return _of_a_sum(node.op, done[node.args[0]])
    return None


def _joined(terms: list[Monomial]) -> list[Monomial]:
    """The terms, with equal products of factors added up."""
    found: dict[tuple[Node, ...], float] = {}
    for c, f in terms:
        found[f] = found.get(f, 0.0) + c
    return [(c, f) for f, c in found.items()]


def _of_each(f: Callable[[Node], Node], terms: list[Monomial] | None) -> list[Monomial] | None:
    """Apply a function to one product, where it is the product of the function of each factor."""
    if terms is None or len(terms) != 1:
        return None
    (coefficient, factors), number = terms[0], f(const(terms[0][0]))
    if number.op is not Op.CONST or coefficient == 0.0:
        return None
    inside = sorted((f(x) for x in factors), key=lambda n: n.place)
    return [(float(number.value), tuple(inside))]


def _of_a_sum(op: Op, terms: list[Monomial] | None) -> list[Monomial] | None:
    """sin(a + b) = sin a cos b + cos a sin b, and cos(a + b) = cos a cos b - sin a sin b, where a
    and b do not vary along all three axes: a sum over messages of the phases' differences is two
    matrix products.
    """
    parts: dict[str, Node] = {}
    for coefficient, factors in terms or ():
        term = const(coefficient)
        for factor in factors:
            term = mul(term, factor)
        home = next((axes for axes in parts if len(ir.union(axes, term.axes)) < 3), None)
        both = ir.add(parts.pop(home), term) if home is not None else term
        parts[both.axes] = ir.add(parts[both.axes], both) if both.axes in parts else both
    if len(parts) != 2 or any(len(axes) > 2 for axes in parts):
        return None
    a, b = parts.values()
    pairs = {
        Op.SIN: ((1.0, Op.SIN, Op.COS), (1.0, Op.COS, Op.SIN)),
        Op.COS: ((1.0, Op.COS, Op.COS), (-1.0, Op.SIN, Op.SIN)),
    }
    found: list[Monomial] = []
    for coefficient, f, g in pairs[op]:
        pair = sorted((ir.make(f, a), ir.make(g, b)), key=lambda n: n.place)
        found.append((coefficient, tuple(pair)))
    return found


def _without_signs(factors: list[Node]) -> tuple[Node, ...]:
    """|x| sign(x) = x and x sign(x) = |x|, exactly: what |x| ** 3 leaves of its derivative."""
    for sign in [f for f in factors if f.op is Op.SIGN]:
        (x,) = sign.args
        size = ir.make(Op.ABS, x)
        for other, product in ((size, x), (x, size)):
            if other in factors:
                factors.remove(sign)
                factors[factors.index(other)] = product
                break
    return tuple(sorted(factors, key=lambda n: n.place))


def _product(a: list[Monomial] | None, b: list[Monomial] | None) -> list[Monomial] | None:
    if a is None or b is None or len(a) * len(b) > 2 * MAX_TERMS:
        return None
    if (
        max((len(f) for _, f in a), default=0) + max((len(f) for _, f in b), default=0)
        > MAX_FACTORS
    ):
        return None
    merged = _joined([(c * d, _without_signs([*f, *g])) for c, f in a for d, g in b])
    if len(a) > 1 and len(b) > 1 and any(len(set(f)) < len(f) for _, f in merged):
        return None
    return merged if len(merged) <= MAX_TERMS else None
