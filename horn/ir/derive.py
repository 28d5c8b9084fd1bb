"""Backward from forward: reverse-mode differentiation of IR.

A value that a select does not choose contributes nothing, not even NaN: derivatives are multiplied
inside the select. At the edge of a domain a derivative is a finite limit: the derivative of
sqrt(x), and of x ** p, at x = 0 is 0 where its formula says infinity, as that of abs(x) is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from horn import ir
from horn.ir import Node, Op, const, leaf, make, mul, reduce, select
from horn.ir.contraction import is_finite
from horn.ir.neuron_ir import ForwardIR
from horn.neuron import WEIGHT

_MESSAGE = (
    Op.INPUT, Op.WEIGHT, Op.TRACE, Op.SYNAPSE_DRAW, Op.MESSAGE_DRAW, Op.PREVIOUS, Op.POSITION,
    Op.PLACE, Op.OF_INPUT,
)  # fmt: skip
_ERF = 2.0 / math.sqrt(math.pi)  # d erf / d z at 0


@dataclass(frozen=True)
class Derived:
    """The gradients of one neuron class, given UPSTREAM = d loss / d output.

    deltas : for a neuron of weighted sums, d loss / d each sum(input * weight) of a message (b, o),
    by the name of its input and by weight; else empty.
    input, weights : for other neurons, d loss / d input and d loss / d each weight of each synapse
    (b, o, i).
    parameters : d loss / d parameter (b, o) by name. states : for each State carried from step to
    step, d loss / d its previous value (b, o) by name, given d loss / d its new value, UPSTREAM of
    its name.
    """

    is_weighted_sum: bool
    deltas: dict[str, dict[str, Node]]
    input: Node
    weights: dict[str, Node]
    parameters: dict[str, Node]
    states: dict[str, Node] = field(default_factory=dict)

    @property
    def roots(self) -> list[Node]:
        """All gradients in one list."""
        deltas = [node for named in self.deltas.values() for node in named.values()]
        others = [self.weights, self.parameters, self.states]
        return [*deltas, self.input, *(node for named in others for node in named.values())]


def times(a: Node, d: Node) -> Node:
    """The product a * d, with d inside the selects of a that may be 0."""
    return _inside(lambda x: const(0.0) if ir.is_const(d, 0.0) else mul(x, d), a)


def over(a: Node, d: Node) -> Node:
    """The quotient a / d, with d inside the selects of a that may be 0."""
    return _inside(lambda x: make(Op.DIV, x, d), a)


def _inside(f: Callable[[Node], Node], a: Node) -> Node:
    """Apply f to a inside the selects that may be 0; f of 0 is 0."""
    if a.op is Op.SELECT:
        c, x, y = a.args
        if ir.is_const(y, 0.0):
            return select(c, _inside(f, x), y)
        if ir.is_const(x, 0.0):
            return select(c, x, _inside(f, y))
    return const(0.0) if ir.is_const(a, 0.0) else f(a)


def plus(a: Node, b: Node) -> Node:
    """The sum a + b; two halves of one select join again."""
    if a.op is Op.SELECT and b.op is Op.SELECT and a.args[0] is b.args[0]:
        c, x, y = a.args
        _, u, v = b.args
        return select(c, plus(x, u), plus(y, v))
    return make(Op.ADD, a, b)


def _rules(n: Node, a: Node, alive: dict[Node, Node | None]) -> list[Node | None]:
    """The adjoints of a node's arguments, from the node's adjoint a; None where there is none."""
    op, args = n.op, n.args
    x = args[0]
    if op in _INFINITE or (_is_factor(n) and not all(map(is_finite, args))):
        a = _inside(lambda part: _only_alive(part, alive), a)
    if op is Op.ADD:
        return [a, a]
    if op is Op.SUB:
        return [a, _neg(a)]
    if op is Op.NEG:
        return [_neg(a)]
    if op is Op.MUL:
        if args[0] is args[1]:
            return [times(a, 2.0 * x), None]
        return [times(a, args[1]), times(a, x)]
    if op is Op.DIV:
        return [over(a, args[1]), _neg(over(times(a, n), args[1]))]
    if op is Op.POW:
        power, inside = args[1], make(Op.NE, x, const(0.0))
        base = power * make(Op.POW, x, power - 1.0)
        if power.op is not Op.CONST or power.value < 1.0:
            base = select(make(Op.OR, inside, power >= 1.0), base, const(0.0))
        if power.op is Op.CONST:
            return [times(a, base), None]
        grown = select(inside, n * make(Op.LOG, x), const(0.0))
        return [times(a, base), times(a, grown)]
    if op is Op.EXP:
        return [times(a, n)]
    if op is Op.LOG:
        return [over(a, x)]
    if op is Op.SQRT:
        # A factor, not a select around a: the other operand may be matrix products.
        return [over(times(a, const(0.5)), select(make(Op.NE, n, const(0.0)), n, const(_INF)))]
    if op is Op.TANH:
        return [times(a, 1.0 - n * n)]
    if op is Op.SIN:
        return [times(a, make(Op.COS, x))]
    if op is Op.COS:
        return [_neg(times(a, make(Op.SIN, x)))]
    if op is Op.ABS:
        return [times(a, make(Op.SIGN, x))]
    if op is Op.LOG1P:
        return [over(a, 1.0 + x)]
    if op is Op.EXPM1:
        return [times(a, n + 1.0)]
    if op is Op.SIGMOID:
        return [times(a, n * (1.0 - n))]
    if op is Op.SOFTPLUS:
        return [times(a, make(Op.SIGMOID, x))]
    if op is Op.RELU:
        return [_where(n > 0.0, True, a)]
    if op in (Op.ERF, Op.ERFC):
        bell = (_ERF if op is Op.ERF else -_ERF) * make(Op.EXP, -(x * x))
        return [times(a, bell)]
    if op is Op.ATAN:
        return [over(a, 1.0 + x * x)]
    if op is Op.ATAN2:
        square = x * x + args[1] * args[1]
        square = select(make(Op.NE, square, const(0.0)), square, const(_INF))  # as of a sqrt at 0
        return [over(times(a, args[1]), square), _neg(over(times(a, x), square))]
    if op is Op.MOD:  # a - b (a // b), and // has no slope
        return [a, _neg(times(a, make(Op.FLOORDIV, x, args[1])))]
    if op in (Op.MAXIMUM, Op.MINIMUM):
        second = make(Op.GT if op is Op.MAXIMUM else Op.LT, args[1], x)
        return [_where(second, False, a), _where(second, True, a)]
    if op is Op.SELECT:
        return [None, _where(x, True, a), _where(x, False, a)]
    if op is Op.REDUCE:
        return [_reduction(n, a)]
    if op is Op.CHANNEL_SUM:
        return [ir.channel_sum(a)]
    return [None] * len(args)


def _where(c: Node, holds: bool, a: Node) -> Node:
    """The adjoint a on one side of a condition, 0 on the other. Three such conditions around a
    value become two: otherwise 100 returns would be 100 nested selects in each product.
    """
    outer = _gated(a)
    inner = None if outer is None else _gated(outer[1])
    if outer is not None and inner is not None:
        a = select(make(Op.AND, outer[0], inner[0]), inner[1], const(0.0))
    return select(c, a, const(0.0)) if holds else select(c, const(0.0), a)


def _gated(a: Node) -> tuple[Node, Node] | None:
    """The (condition, value) of a select that is 0 elsewhere, or None."""
    if a.op is not Op.SELECT:
        return None
    c, x, y = a.args
    if ir.is_const(y, 0.0):
        return c, x
    return (make(Op.NOT, c), y) if ir.is_const(x, 0.0) else None


_INF = float("inf")
# Operations that multiply an adjoint, also where nothing reaches: by infinity perhaps,
_INFINITE = frozenset({
    Op.DIV, Op.POW, Op.LOG, Op.LOG1P, Op.SQRT, Op.EXP, Op.EXPM1, Op.MOD,
})  # fmt: skip
# and by what is infinite or NaN only where an argument is.
_FACTORS = frozenset({
    Op.MUL, Op.TANH, Op.SIN, Op.COS, Op.ABS, Op.SIGMOID, Op.SOFTPLUS, Op.ERF, Op.ERFC, Op.ATAN,
    Op.ATAN2,
})  # fmt: skip


def _is_factor(n: Node) -> bool:
    return n.op in _FACTORS or (n.op is Op.REDUCE and n.value[0] == "prod")


_NOWHERE = const(0.0)


def _only_alive(a: Node, alive: dict[Node, Node | None]) -> Node:
    there = _alive(a, alive)
    return a if there is None else select(there, a, const(0.0))


def _alive(root: Node, alive: dict[Node, Node | None]) -> Node | None:
    """The condition on which an adjoint is not 0, from the selects that it is the sum of. None if
    that is everywhere. alive : what was found for other adjoints; it grows.
    """
    stack = [root]
    while stack:
        a = stack[-1]
        parts = _parts(a)
        if missing := [x for x in parts if x not in alive]:
            stack.extend(missing)
            continue
        sides = [alive[x] for x in parts]
        if a.op is Op.SELECT and sides != [None, None]:
            c = a.args[0]
            sides = [_both(c, sides[0]), _both(make(Op.NOT, c), sides[1])]
        found: Node | None = _NOWHERE if ir.is_const(a, 0.0) else None
        if sides and None not in sides:
            here = [x for x in sides if x is not None and x is not _NOWHERE] or [_NOWHERE]
            found = here[0] if len(here) == 1 else make(Op.OR, *here)
        if found is not None and a.op is Op.REDUCE and a.value[1] in found.axes:
            found = ir.truth(reduce("any", a.value[1], found))
        alive[a] = found
        stack.pop()
    return alive[root]


def _parts(a: Node) -> tuple[Node, ...]:
    """The adjoints of which an adjoint is 0 where all are."""
    if a.op is Op.SELECT:
        return a.args[1:]
    is_sum = a.op in (Op.ADD, Op.NEG) or (a.op is Op.REDUCE and a.value[0] == "sum")
    return a.args if is_sum else ()


def _both(c: Node, there: Node | None) -> Node:
    return c if there is None else there if there is _NOWHERE else make(Op.AND, c, there)


def _neg(a: Node) -> Node:
    return times(a, const(-1.0))


def _reduction(n: Node, a: Node) -> Node | None:
    monoid, axis = n.value
    x = n.args[0]
    if monoid == "sum":
        return a
    if monoid in ("max", "min"):
        here = leaf(Op.POSITION, "oi") if axis == "i" else leaf(Op.INDEX, "o")
        return select(make(Op.EQ, here, reduce(f"arg{monoid}", axis, x)), a, const(0.0))
    if monoid == "prod":
        return _others(n, a)
    return None


def _others(n: Node, a: Node) -> Node:
    """The adjoint of a product's factors: a * the product of all others, a n / x; at a 0, the
    product of the factors that are not 0.

    Zeros are looked for only where the product is 0 or NaN; elsewhere these reductions have no
    elements, and engines skip them.
    """
    (_, axis), x = n.value, n.args[0]
    some, zero = make(Op.GT, make(Op.ABS, n), const(0.0)), make(Op.EQ, x, const(0.0))
    one, none = const(1.0), const(0.0)
    rest = reduce("prod", axis, select(some, one, select(zero, one, x)))
    zeros = reduce("sum", axis, select(some, none, select(zero, one, none)))
    here = select(make(Op.EQ, zeros, one), rest, none)
    elsewhere = select(make(Op.EQ, zeros, none), n, none)
    return select(zero, times(a, here), over(times(a, elsewhere), x))


def gradient(
    root: Node, seed: Node, wanted: Iterable[Node], layerwide: bool = False
) -> dict[Node, Node]:
    """The gradients d (sum of root * seed) / d each wanted node, 0 where there is none.

    The gradient of one neuron's forward stays per synapse: axis o is not summed. ``layerwide``
    (interlayers, losses) sums over o the gradient of a value that all neurons of the layer share.
    """
    if layerwide and "o" in seed.axes and "o" not in root.axes:  # one number that all neurons send
        seed = reduce("sum", "o", seed)
    return gradients([(root, seed)], wanted, layerwide)


def gradients(
    seeds: Iterable[tuple[Node, Node]], wanted: Iterable[Node], layerwide: bool = False
) -> dict[Node, Node]:
    """The gradients of the sum of all root * seed, as ``gradient``."""
    wanted = list(wanted)
    adjoint: dict[Node, Node] = {}
    for root, seed in seeds:
        adjoint[root] = plus(adjoint[root], seed) if root in adjoint else seed
    stop, alive = set(wanted), dict[Node, Node | None]()
    for node in reversed([*ir.walk(*adjoint)]):
        a = adjoint.get(node)
        if a is None or not node.args or node in stop:
            continue
        if not layerwide and node.op is Op.REDUCE and node.value[1] in "ob":
            a = reduce("sum", node.value[1], a)  # of all neurons, or samples, that share it
        for arg, part in zip(node.args, _rules(node, a, alive), strict=True):
            if part is None or ir.is_const(part, 0.0) or arg.op is Op.CONST:
                continue
            # A value shared by many messages (or neurons) gets the sum of their adjoints.
            for axis in "io" if layerwide else "i":
                if axis in node.axes and axis not in arg.axes:
                    part = reduce("sum", axis, part)
            known = adjoint.get(arg)
            adjoint[arg] = part if known is None else plus(known, part)
    return {w: adjoint.get(w, const(0.0)) for w in wanted}


def weight(name: str = WEIGHT) -> Node:
    """The leaf of a message's weight of this name."""
    return leaf(Op.WEIGHT, "oi", None if name == WEIGHT else name)


Sums = dict[tuple[str, str], Node]  # by input ("": of all messages) and weight


def weighted_sum(
    output: Node,
    weights: Iterable[str] = (WEIGHT,),
    inputs: Iterable[str] = (),
    kept: Iterable[Node] = (),
) -> tuple[bool, Sums]:
    """Whether the output and the ``kept`` values of the next step depend on the messages only
    through sum(input * weight), of each of these weights, over all messages or those of one of
    these inputs; and the sums that occur.
    """
    x, own = leaf(Op.INPUT, "bi"), list(weights)
    sums = {("", name): reduce("sum", "i", mul(x, weight(name))) for name in own}
    for each in inputs:
        for name in own:
            term = select(ir.of_input(each), mul(x, weight(name)), const(0.0))
            sums[each, name] = reduce("sum", "i", term)
    # A name, not a number: a number might fold a condition on the messages away.
    names = {total: leaf(Op.CARRY, "bo", f"sum {key}") for key, total in sums.items()}
    roots = (output, *kept)
    if any(n.op in _MESSAGE for n in ir.walk(*roots, seen={*names})):  # before it is simplified
        if any(ir.contains(ir.replace(root, names), *_MESSAGE) for root in roots):
            return False, {}
    there = {node for node in ir.walk(*roots) if node in names}
    return True, {key: total for key, total in sums.items() if total in there}


def derive(
    forward: ForwardIR,
    parameters: Iterable[str],
    weights: Iterable[str] = (WEIGHT,),
    groups: Iterable[str] = ("",),
    carried: Iterable[str] = (),
) -> Derived:
    """The gradients of a neuron class from its forward. groups : the inputs of its messages, as
    ``Layer.groups``. carried : States through which gradients flow from step to step.
    """
    upstream, x = leaf(Op.UPSTREAM, "bo"), leaf(Op.INPUT, "bi")
    own = {name: weight(name) for name in weights}
    named = {name: leaf(Op.PARAM, "o", name) for name in parameters}
    groups = tuple(groups)
    kept = {name: forward.states[name] for name in carried if name in forward.states}
    before = {name: leaf(Op.STATE, "bo", name) for name in kept}
    ok, sums = weighted_sum(forward.output, own, [name for name in groups if name], kept.values())
    wanted = [*named.values(), *before.values(), *(sums.values() if ok else (x, *own.values()))]
    seeds = [(node, leaf(Op.UPSTREAM, "bo", name)) for name, node in kept.items()]
    found = gradients([(forward.output, upstream), *seeds], wanted)
    zero = const(0.0)

    def delta(group: str, name: str) -> Node:
        keys = {("", name): None, (group, name): None}
        parts = [found[sums[key]] for key in keys if key in sums]
        return zero if not parts else parts[0] if len(parts) == 1 else ir.add(*parts)

    return Derived(
        ok,
        {group: {name: delta(group, name) for name in own} for group in groups} if ok else {},
        zero if ok else found[x],
        {} if ok else {name: found[node] for name, node in own.items()},
        {name: found[node] for name, node in named.items()},
        {name: found[node] for name, node in before.items()},
    )
