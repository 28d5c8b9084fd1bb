"""The nodes of expressions: how they are made, walked and replaced.

A node is an operation, its arguments, a value (a number, a name, ...) and the axes it varies along:
``b`` the batch, ``o`` this layer's neurons, ``i`` the neuron's synapses. Equal nodes are one
object, so that a shared subexpression is computed once.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from horn import math
from horn.errors import CompileError

AXES = "boi"
Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Op(enum.Enum):
    """The operations. The elementwise ones are those of ``horn.math.OPS`` and arithmetic below."""

    __hash__ = object.__hash__  # Enum's own is slow Python, and nodes are looked up by operation

    # leaves of one neuron
    CONST = "const"  # a number                                     ""
    SCALAR = "scalar"  # a number that the run sets: learning_rate, ... ""
    INPUT = "input"  # carried by each incoming synapse             "bi"
    WEIGHT = "weight"  # one number per synapse                       "oi"
    TRACE = "trace"  # a remembered number of the synapse           "oi"
    PREVIOUS = "previous"  # the last update of the weight                "oi"
    DELTA = "delta"  # d loss / d sum of the receiver (backward)      "bi"
    GRADIENT = "gradient"  # d loss / d input of the synapse (backward)   "boi"
    OUTPUT = "output"  # the neuron's output                         "bo"
    PARAM = "param"  # a learned number per neuron                  "o"
    STATE = "state"  # a remembered number                          "bo"
    INDEX = "index"  # the neuron's place in its layer              "o"
    COUNT = "count"  # how many messages it has, all or of one input  "o"
    POSITION = "position"  # the place of a message among all             "oi"
    PLACE = "place"  # its place among the neuron's own: m.index     "oi"
    OF_INPUT = "of_input"  # 1 if it came by the input of this name        "oi"
    DRAW = "draw"  # a random number                              "bo" or "o"
    SYNAPSE_DRAW = "synapse_draw"  # a random number of the synapse               "oi"
    MESSAGE_DRAW = "message_draw"  # a random number of the message      "boi", or "oi"
    UPSTREAM = "upstream"  # d loss / d output, while deriving              "bo"
    ERROR = "error"  # the delta of each output neuron (backward)   "bi"
    ERROR_DRAW = "error_draw"  # a random number of this neuron and that one  "oi"
    LOSS = "loss"  # of the sample (backward)                    "b"
    TARGET = "target"  # the wanted output                    "bo"
    RANK = "rank"  # the number of neurons of the layer with more      "bo"
    CHANNEL_SUM = "channel_sum"  # over all positions of each channel      "bo", "o"
    CARRY = "carry"  # a variable of the loop, only while parsing   any
    # a leaf of the lowered program
    LOAD = "load"  # the content of a buffer                      as stored
    # elementwise: axes are the union of the arguments'
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    NEG = "neg"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    EQ = "eq"
    NE = "ne"
    AND = "and"
    OR = "or"
    NOT = "not"
    SELECT = "select"  # args[1] where args[0], else args[2]
    EXP = "exp"
    LOG = "log"
    SQRT = "sqrt"
    TANH = "tanh"
    SIN = "sin"
    COS = "cos"
    ABS = "abs"
    FLOOR = "floor"
    SIGN = "sign"
    LOG1P = "log1p"
    EXPM1 = "expm1"
    SIGMOID = "sigmoid"
    SOFTPLUS = "softplus"
    RELU = "relu"
    ERF = "erf"
    ERFC = "erfc"
    ATAN = "atan"
    STOP_GRADIENT = "stop_gradient"  # the argument, as a constant to gradients
    POW = "pow"
    ATAN2 = "atan2"
    FLOORDIV = "floordiv"  # Python's // and %
    MOD = "mod"
    HALFWAY = "halfway"  # the number in the middle of two, in the order of floats
    MAXIMUM = "maximum"
    MINIMUM = "minimum"
    # over one axis
    REDUCE = "reduce"  # value (monoid, axis): removes the axis
    MATMUL = "matmul"  # value axis: sum over it of args[0] * args[1]; after lowering only


ELEMENTWISE: dict[Op, int] = {
    Op.ADD: 2, Op.SUB: 2, Op.MUL: 2, Op.DIV: 2, Op.NEG: 1,
    Op.LT: 2, Op.LE: 2, Op.GT: 2, Op.GE: 2, Op.EQ: 2, Op.NE: 2, Op.AND: 2, Op.OR: 2, Op.NOT: 1,
    Op.SELECT: 3, Op.HALFWAY: 2,
    **{Op(name): n for name, n in math.OPS.items() if name != "where"},
}  # fmt: skip
BOOLEAN = frozenset({Op.LT, Op.LE, Op.GT, Op.GE, Op.EQ, Op.NE, Op.AND, Op.OR, Op.NOT})
COMMUTATIVE = frozenset({Op.ADD, Op.MUL, Op.EQ, Op.NE, Op.AND, Op.OR})
MONOIDS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
#: The operations that every backend implements.
LOWERED = frozenset({
    *ELEMENTWISE, Op.CONST, Op.SCALAR, Op.LOAD, Op.MESSAGE_DRAW, Op.REDUCE, Op.MATMUL
})  # fmt: skip
_BIT = {op: 1 << k for k, op in enumerate(Op)}


def _infix(op: Op) -> tuple[Callable[[Node, Any], Node], Callable[[Node, Any], Node]]:
    """The methods of an operator: with a node on its left, and on its right."""
    return lambda a, b: make(op, a, lift(b)), lambda b, a: make(op, lift(a), b)


class Node:
    """One operation. Made by ``make`` and the functions below, never directly."""

    __slots__ = ("op", "args", "axes", "value", "place", "ops", "tests", "__weakref__")
    op: Op
    args: tuple[Node, ...]
    axes: str
    value: Any
    place: tuple[int, bytes]  # its height and a digest: one order of nodes in every process
    ops: int  # a bit per operation in it
    tests: int  # a bit per condition in it, several to a bit: shows quickly that one is absent

    def __repr__(self) -> str:
        inside = [repr(self.value)] if self.value is not None else []
        return f"{self.op.value}({', '.join([*inside, *map(repr, self.args)])}):{self.axes}"

    # A node works in ordinary formulas: built-in activations, optimizers and lambdas are traced
    # through these operators.
    __add__, __radd__ = _infix(Op.ADD)
    __sub__, __rsub__ = _infix(Op.SUB)
    __mul__, __rmul__ = _infix(Op.MUL)
    __truediv__, __rtruediv__ = _infix(Op.DIV)
    __pow__, __rpow__ = _infix(Op.POW)
    __floordiv__, __rfloordiv__ = _infix(Op.FLOORDIV)
    __mod__, __rmod__ = _infix(Op.MOD)
    __lt__, __gt__ = _infix(Op.LT)[0], _infix(Op.GT)[0]
    __le__, __ge__ = _infix(Op.LE)[0], _infix(Op.GE)[0]

    def __neg__(self) -> Node:
        return make(Op.NEG, self)

    def __pos__(self) -> Node:
        return self

    def __abs__(self) -> Node:
        return make(Op.ABS, self)

    def __bool__(self) -> bool:
        raise CompileError(
            "a true/false value is asked for while many values are computed at once; use "
            "horn.math.where(c, a, b), or write a def, whose if, max and min are read"
        )

    def __horn_math__(self, name: str, args: tuple[Any, ...]) -> Node:
        nodes = tuple(map(lift, args))
        if name == "where":
            return select(*nodes)
        return make(Op(name), *nodes)

    # reductions that an interlayer function may take over the whole layer's outputs
    def sum(self) -> Node:
        return reduce("sum", "o", self)

    def max(self) -> Node:
        return reduce("max", "o", self)

    def min(self) -> Node:
        return reduce("min", "o", self)

    def mean(self) -> Node:
        return reduce("sum", "o", self) / Scalar("layer_size")

    def prod(self) -> Node:
        return reduce("prod", "o", self)


_nodes: weakref.WeakValueDictionary[Any, Node] = weakref.WeakValueDictionary()
_making = threading.Lock()


def _intern(op: Op, args: tuple[Node, ...], axes: str, value: Any) -> Node:
    told_apart = repr(value) if isinstance(value, float) else value  # 0.0 is not -0.0
    key = (op, tuple(map(id, args)), axes, told_apart, type(value))
    node = _nodes.get(key)
    if node is None:
        node = Node.__new__(Node)
        node.op, node.args, node.axes, node.value = op, args, axes, value
        below = [a.place for a in args]
        text = f"{op.value} {axes} {value!r} ".encode() + b"".join(digest for _, digest in below)
        height = 1 + max((height for height, _ in below), default=0)
        node.place = height, hashlib.blake2b(text, digest_size=16).digest()
        node.ops = _BIT[op]
        node.tests = _bit(node) if op in BOOLEAN else 0
        for a in args:
            node.ops |= a.ops
            node.tests |= a.tests
        with _making:  # tasks may be threads: they share equal nodes, too
            node = _nodes.setdefault(key, node)
    return node


def _bit(condition: Node) -> int:
    """The condition's bit in ``tests``."""
    return 1 << int.from_bytes(condition.place[1][:2], "big") % 4096


@functools.lru_cache(maxsize=4096)
def union(*axes: str) -> str:
    """The axes that occur in any of these strings, in order."""
    return "".join(a for a in AXES if any(a in x for x in axes))


def lift(value: Any) -> Node:
    """The value as a node: itself, or the constant of a number."""
    if isinstance(value, Node):
        return value
    if isinstance(value, (bool, int, float)) or hasattr(value, "__float__"):
        return const(float(value))
    raise CompileError(f"a number is needed here, got {value!r}")


def const(value: float) -> Node:
    return _intern(Op.CONST, (), "", float(value))


class DrawnConstant(float):
    """The value of a constant that a draw gave, not the text: the 1 and the 0 of a bernoulli, and
    what is made of them. The language alone has them; to all else they are numbers.
    """


def drawn(value: float) -> Node:
    return _intern(Op.CONST, (), "", DrawnConstant(value))


def is_drawn(node: Node) -> bool:
    return type(node.value) is DrawnConstant


def Scalar(name: str) -> Node:
    """A leaf: a number that the run sets: learning_rate, iteration, updates, inv_rows, ..."""
    return _intern(Op.SCALAR, (), "", name)


def leaf(op: Op, axes: str, value: Any = None) -> Node:
    return _intern(op, (), axes, value)


def load(name: str, axes: str) -> Node:
    """A leaf with the content of a buffer, seen along these axes."""
    return _intern(Op.LOAD, (), axes, name)


OUTPUT = leaf(Op.OUTPUT, "bo")
UPSTREAM = leaf(Op.UPSTREAM, "bo")
TARGET = leaf(Op.TARGET, "bo")
ZERO = const(0.0)


def is_const(node: Node, value: float | None = None) -> bool:
    return node.op is Op.CONST and (value is None or node.value == value)


def make(op: Op, *args: Node) -> Node:
    """An elementwise node, folded where the arguments are constants or neutral."""
    if args[0].op is Op.CONST and all(a.op is Op.CONST for a in args):
        folded = _fold(op, [a.value for a in args])
        if folded is not None:
            from_draw = op not in BOOLEAN and any(map(is_drawn, args))
            return drawn(folded) if from_draw else const(folded)
    if op is Op.ADD:
        if is_const(args[0], 0.0):
            return args[1]
        if is_const(args[1], 0.0):
            return args[0]
    elif op is Op.SUB and is_const(args[1], 0.0):
        return args[0]
    elif op is Op.MUL:
        if is_const(args[0], 1.0):
            return args[1]
        if is_const(args[1], 1.0):
            return args[0]
        if is_const(args[0], -1.0):
            return make(Op.NEG, args[1])
        if is_const(args[1], -1.0):
            return make(Op.NEG, args[0])
        for a, b in (
            args,
            args[::-1],
        ):  # numbers first: they are multiplied once, not once per element
            if not a.axes and b.op is Op.MUL and b.axes:
                for c, d in (b.args, b.args[::-1]):
                    if not c.axes and _has_product(a, c):
                        return make(Op.MUL, make(Op.MUL, a, c), d)
    elif op is Op.DIV and is_const(args[1], 1.0):
        return args[0]
    elif op is Op.NEG and args[0].op is Op.NEG:
        return args[0].args[0]
    elif op is Op.STOP_GRADIENT and args[0].op is Op.STOP_GRADIENT:
        return args[0]
    elif op is Op.POW and args[1].op is Op.CONST and args[1].value in (1.0, 2.0, 3.0, 4.0):
        square = make(Op.MUL, args[0], args[0])  # a multiplication costs a tenth of a power
        powers = (args[0], square, make(Op.MUL, square, args[0]), make(Op.MUL, square, square))
        return powers[int(args[1].value) - 1]
    elif op is Op.NOT and args[0].op is Op.NOT and args[0].args[0].op in BOOLEAN:
        return args[0].args[0]
    elif op in (Op.AND, Op.OR):
        neutral = 1.0 if op is Op.AND else 0.0
        for a, other in (args, args[::-1]):
            if a.op is Op.CONST:
                return truth(other) if bool(a.value) == bool(neutral) else const(1.0 - neutral)
        if args[0] is args[1]:
            return args[0]
    elif op in _COMPARISONS:
        chosen = _compare_choice(op, args)
        if chosen is not None:
            return chosen
    if op in COMMUTATIVE and args[0].place > args[1].place:
        args = (args[1], args[0])
    return _intern(op, args, union(*(a.axes for a in args)), None)


def _has_product(a: Node, b: Node) -> bool:
    """Whether a float32 holds the product of two constants: 1e30 * (1e30 * 0) is not infinity."""
    if a.op is not Op.CONST or b.op is not Op.CONST:
        return True
    product: float = abs(a.value * b.value)
    return 1e-37 < product < 1e38


_COMPARISONS = frozenset({Op.LT, Op.LE, Op.GT, Op.GE, Op.EQ, Op.NE})


def _compare_choice(op: Op, args: tuple[Node, ...]) -> Node | None:
    """A comparison of (1 where c, else 0) with a number, as c, its opposite, or a constant. Each of
    the two may be one of two numbers that compare alike.
    """
    for k, (a, b) in enumerate((args, args[::-1])):
        if a.op is not Op.SELECT or b.op is not Op.CONST:
            continue
        sides = list[bool]()
        for x in a.args[1:]:
            numbers = x.args[1:] if x.op is Op.SELECT else (x,)
            if all(n.op is Op.CONST for n in numbers):
                pairs = [(n.value, b.value) if k == 0 else (b.value, n.value) for n in numbers]
                told = {bool(_FOLD[op](*pair)) for pair in pairs}
                sides += told if len(told) == 1 else ()
        if len(sides) == 2:
            yes, no = sides
            if yes == no:
                return const(float(yes))
            return a.args[0] if yes else make(Op.NOT, a.args[0])
    return None


def compute(op: Op, values: list[float]) -> float:
    """Apply an elementwise operation to numbers, as Python does."""
    if op.value in math.OPS:
        return float(math.apply(op.value, *values))
    return float(_FOLD[op](*values))


def _fold(op: Op, values: list[float]) -> float | None:
    try:
        found = compute(op, values)
    except ZeroDivisionError:
        return None  # left to the run, which gives inf or nan as for any other value
    return found if found == found else None  # and so is NaN


def halfway(x: Numbers, y: Numbers) -> Numbers:
    """The float in the middle of two, in the order of all floats, rounded down."""
    dtype = np.result_type(x, y)
    whole = np.dtype(f"i{dtype.itemsize}")
    least = np.iinfo(whole).min

    def turned(n: Numbers) -> Numbers:
        return np.where(n < 0, least - np.minimum(n, 0), n)  # of 0-d arrays NumPy tells an overflow

    a, b = (turned(np.asarray(v, dtype).view(whole)) for v in (x, y))
    found = turned((a & b) + ((a ^ b) >> 1)).view(dtype)
    return np.where(np.isnan(x) | np.isnan(y), x + y, found)


_FOLD: dict[Op, Callable[..., Any]] = {
    Op.ADD: lambda a, b: a + b,
    Op.SUB: lambda a, b: a - b,
    Op.MUL: lambda a, b: a * b,
    Op.DIV: lambda a, b: a / b,
    Op.NEG: lambda a: -a,
    Op.LT: lambda a, b: a < b,
    Op.LE: lambda a, b: a <= b,
    Op.GT: lambda a, b: a > b,
    Op.GE: lambda a, b: a >= b,
    Op.EQ: lambda a, b: a == b,
    Op.NE: lambda a, b: a != b,
    Op.AND: lambda a, b: bool(a) and bool(b),
    Op.OR: lambda a, b: bool(a) or bool(b),
    Op.NOT: lambda a: not a,
    Op.SELECT: lambda c, a, b: a if c else b,
    Op.HALFWAY: halfway,
}


def truth(node: Node) -> Node:
    """The node as a condition: itself if it is one, else whether it differs from 0."""
    return node if node.op in BOOLEAN else make(Op.NE, node, const(0.0))


def is_truth(node: Node) -> bool:
    """Whether the node is surely true or false: 1 or 0 as a number."""
    stack, seen = [node], set[Node]()
    while stack:
        n = stack.pop()
        is_reduced = n.op is Op.REDUCE and n.value[0] in ("any", "all")
        if n.op is Op.SELECT and n not in seen:
            seen.add(n)
            stack.extend(n.args[1:])
        elif n.op is not Op.SELECT and n.op not in BOOLEAN and not is_reduced:
            if n.op is not Op.CONST or n.value not in (0.0, 1.0):
                return False
    return True


def select(condition: Node, a: Node, b: Node) -> Node:
    """A select: a where the condition holds, else b."""
    if condition.op is Op.CONST:
        return a if condition.value else b
    if a is b:
        return a
    condition = truth(condition)
    if condition.op is Op.NOT:
        return select(condition.args[0], b, a)
    a = assume(a, condition, True, MOST_COPIED)
    return _chosen(condition, a, assume(b, condition, False, MOST_COPIED))


def _chosen(condition: Node, a: Node, b: Node) -> Node:
    """A ``select`` whose sides are simplified already."""
    if condition.op is Op.CONST:
        return a if condition.value else b
    condition = truth(condition)
    if condition.op is Op.NOT:
        return _chosen(condition.args[0], b, a)
    return a if a is b else make(Op.SELECT, condition, a, b)


# A side of a select is simplified by its condition where that is little work, as in
# act(total) * mask. With many ifs that build on one another it would copy all that follows, once
# per path: the nodes would double.
MOST_COPIED = 32


def assume(node: Node, condition: Node, holds: bool, most: int | None = None) -> Node:
    """The node where the condition is known: selects by the same condition choose their side.
    most : the largest number of new nodes, beyond which the node is returned unchanged; None : any.
    """
    if condition.op is Op.NOT:
        condition, holds = condition.args[0], not holds
    return _assumed(node, condition, holds, most) if node.tests & _bit(condition) else node


@functools.lru_cache(maxsize=1024)  # gradients are products of the same factors, again and again
def _assumed(node: Node, condition: Node, holds: bool, most: int | None) -> Node:
    bit = _bit(condition)
    above: dict[Node, None] = {}  # the nodes that contain the condition, arguments first
    seen: set[Node] = set()
    stack: list[Node | tuple[Node]] = [node]
    while stack:
        n = stack.pop()
        if isinstance(n, tuple):
            if any(a is condition or a in above for a in n[0].args):
                above[n[0]] = None
        elif n not in seen and n is not condition:
            seen.add(n)
            # Inside a reduction the same condition is about all places of the axis, not this one:
            # all messages, or all neurons and their inputs, which differ where links are sparse.
            over = _over(n)
            is_of_others = over in condition.axes or (
                over == "o" and contains(condition, Op.REDUCE)
            )
            if not is_of_others:
                stack.append((n,))
                stack.extend([a for a in reversed(n.args) if a.tests & bit])
        if most is not None and (len(above) > most or len(seen) > 4 * most):
            return node
    done = {condition: const(float(holds))}
    for n in above:
        done[n] = rebuild(n, tuple(done.get(a, a) for a in n.args), _chosen)
    return done.get(node, node)


def _over(node: Node) -> str:
    """The axis over all of whose places the node is computed; "-" for most nodes."""
    if node.op is Op.REDUCE:
        return str(node.value[1])
    return "o" if node.op in (Op.RANK, Op.CHANNEL_SUM) else "-"


def of_input(name: str) -> Node:
    """The condition that a message came by the input of this name."""
    return truth(leaf(Op.OF_INPUT, "oi", name))


def at_input(root: Node, name: str) -> Node:
    """The expression for the messages of one input only; "": for those without a name."""

    def find(node: Node) -> Node | None:
        return const(float(node.value == name)) if node.op is Op.OF_INPUT else None

    return replace(root, find)


def add(a: Any, b: Any) -> Node:
    return make(Op.ADD, lift(a), lift(b))


def mul(a: Any, b: Any) -> Node:
    return make(Op.MUL, lift(a), lift(b))


def reduce(monoid: str, axis: str, arg: Node) -> Node:
    """The reduction of the argument by ``monoid`` along one axis. An argument that does not vary
    along it is counted, not repeated; of equals the first is the largest, and the smallest.
    """
    if axis == "o" and contains(arg, *_HEARD):
        arg = _of_each_neuron(arg)
    if axis in arg.axes:
        return _intern(Op.REDUCE, (arg,), arg.axes.replace(axis, ""), (monoid, axis))
    is_place = monoid in ("argmax", "argmin")
    if axis == "i" and is_place:  # where connections are sparse the first has any POSITION
        return reduce(monoid, axis, add(arg, mul(ZERO, leaf(Op.PLACE, "oi"))))
    if is_place:
        return ZERO
    if axis == "i":
        count = leaf(Op.COUNT, "o")
        if monoid == "prod":
            return make(Op.POW, arg, count)
        is_none = make(Op.EQ, count, ZERO)
        if monoid == "any":
            return make(Op.AND, make(Op.NOT, is_none), arg)
        if monoid == "all":
            return make(Op.OR, is_none, arg)
        found = mul(arg, count) if monoid == "sum" else arg
        if monoid == "sum" and arg.op is Op.CONST and math.isfinite(arg.value):
            return found  # infinity * 0 would be NaN
        return select(is_none, const(IDENTITY[monoid]), found)
    size = Scalar("rows" if axis == "b" else "layer_size")
    if monoid == "sum":
        return mul(arg, size)
    return make(Op.POW, arg, size) if monoid == "prod" and axis == "o" else arg


def rank(arg: Node) -> Node:
    """The number of neurons of the layer with a larger value, or an equal one and a lower index."""
    return _intern(Op.RANK, (_of_each_neuron(arg),), union(arg.axes, "o"), None)


def channel_sum(arg: Node) -> Node:
    """The sum over all positions of each neuron's channel."""
    return _intern(Op.CHANNEL_SUM, (_of_each_neuron(arg),), union(arg.axes, "o"), None)


# What has no axis o, and yet differs between neurons where connections are sparse.
_HEARD = (Op.INPUT, Op.DELTA, Op.ERROR)


def _of_each_neuron(arg: Node) -> Node:
    """The argument, varying in name along the neurons."""
    return arg if "o" in arg.axes else add(arg, mul(ZERO, leaf(Op.INDEX, "o")))


IDENTITY = {
    "sum": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf"), "any": 0.0, "all": 1.0,
}  # fmt: skip
COMBINE = {
    "sum": Op.ADD, "prod": Op.MUL, "max": Op.MAXIMUM, "min": Op.MINIMUM,
    "any": Op.OR, "all": Op.AND,
}  # fmt: skip


def combine(monoid: str, a: Node, b: Node) -> Node:
    """Combine two partial results of a monoid; the first wins a tie."""
    for x, y in ((a, b), (b, a)):
        if is_const(x, IDENTITY[monoid]):
            return y
    return make(COMBINE[monoid], a, b)


def walk(*roots: Node, seen: set[Node] | None = None) -> Iterator[Node]:
    """Every node below the roots once, arguments first; not those in ``seen``, which grows."""
    seen = set() if seen is None else seen
    stack: list[Node | tuple[Node]] = [*reversed(roots)]  # in a tuple: its arguments are done
    while stack:
        node = stack.pop()
        if isinstance(node, tuple):
            yield node[0]
        elif node not in seen:
            seen.add(node)
            if node.args:
                stack.append((node,))
                stack.extend(reversed(node.args))
            else:
                yield node


def rebuild(
    node: Node, args: tuple[Node, ...], choose: Callable[[Node, Node, Node], Node] = select
) -> Node:
    """The node with other arguments, simplified again."""
    if args == node.args:  # by identity: equal nodes are one object
        return node
    if node.op is Op.SELECT:
        return choose(*args)
    if node.op in ELEMENTWISE:
        return make(node.op, *args)
    if node.op is Op.REDUCE:
        monoid, axis = node.value
        return reduce(monoid, axis, args[0])
    if not node.args:
        return node
    if node.op is Op.RANK:
        return rank(args[0])
    if node.op is Op.CHANNEL_SUM:
        return channel_sum(args[0])
    return _intern(
        node.op, args, union(*(a.axes for a in args)).replace(node.value, ""), node.value
    )


def replace(
    root: Node,
    known: Mapping[Node, Node] | Callable[[Node], Node | None],
    done: dict[Node, Node] | None = None,
) -> Node:
    """The expression with some nodes replaced; the new nodes are not searched.

    done : the results for nodes of earlier expressions with the same replacements; it grows.
    """
    find = known if callable(known) else known.get
    done = {} if done is None else done
    stack: list[Node | tuple[Node]] = [root]  # in a tuple: its arguments are done
    while stack:
        node = stack.pop()
        if isinstance(node, tuple):
            (node,) = node
            args = tuple([done[a] for a in node.args])
            done[node] = node if args == node.args else rebuild(node, args)
        elif node not in done:
            new = find(node)
            if new is None and node.args:
                stack.append((node,))
                stack.extend(reversed(node.args))
            else:
                done[node] = node if new is None else new
    return done[root]


def contains(root: Node, *ops: Op) -> bool:
    """Whether any node below the root has one of these operations."""
    return any(root.ops & _BIT[op] for op in ops)


def matmul(a: Node, b: Node, axis: str) -> Node:
    """The matrix product: the sum over ``axis`` of a * b."""
    return _intern(Op.MATMUL, (a, b), union(a.axes, b.axes).replace(axis, ""), axis)
