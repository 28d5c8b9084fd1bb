"""Formulas of numbers that are Python, as lambdas and those of optimizers, traced: called with
nodes in place of the numbers.

An optimizer's formula that asks whether a condition holds, by ``if``, ``and``, ``max`` or any other
word of Python, is called once for each way through it; a select chooses between the results. A
lambda may ask none.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from horn import texts
from horn.errors import CompileError
from horn.ir.nodes import Node, Op, lift, make, select, truth
from horn.sources import is_user_file

MOST_WAYS = 256  # each is a copy of what follows the condition
REMEDY = "write it with + - * / // % **, comparisons, if, max, min, abs and horn.math"
OF_ONE = (
    "an optimizer's formula is of one weight, and asks here for what several weights have "
    "together; write it of w, g and the slots of one, and take clip_norm= for the length of the "
    "whole gradient"
)


class Wrong(CompileError):
    """The cause of an error about a formula that no backend can run, the interpreter neither."""


def is_wrong(error: CompileError) -> bool:
    """Whether an error, as of a user's line, has a Wrong as its cause."""
    return isinstance(error, Wrong) or isinstance(error.__cause__, Wrong)


class Way:
    """One way through a formula. answers : whether each condition holds on it, in the order in
    which they are asked.
    """

    def __init__(self, answers: Mapping[Node, bool]) -> None:
        self.answers = dict(answers)

    def holds(self, condition: Node) -> bool:
        if condition.op is Op.CONST:
            return bool(condition.value)
        if len(self.answers) > MOST_WAYS:
            raise _too_many()
        return self.answers.setdefault(condition, True)

    def over_layer(self, name: str, node: Node) -> Node:
        raise Wrong(OF_ONE)


class OnlyWay(Way):
    """The way through a formula that may ask no condition, and may be of a layer."""

    def holds(self, condition: Node) -> bool:
        return bool(condition)  # which a node refuses

    def over_layer(self, name: str, node: Node) -> Node:
        found: Node = getattr(node, name)()
        return found


def _too_many() -> CompileError:
    return CompileError(
        f"this has more than {MOST_WAYS} ways through its conditions; choose between numbers with "
        "horn.math.where(c, a, b)"
    )


def _infix(op: Op) -> Callable[[TracedNumber, Any], TracedNumber]:
    return lambda a, b: TracedNumber(make(op, a.node, lift(_node(b))), a.way)


def _mirrored(op: Op) -> Callable[[TracedNumber, Any], TracedNumber]:
    return lambda b, a: TracedNumber(make(op, lift(_node(a)), b.node), b.way)


def _over_layer(name: str) -> Callable[..., TracedNumber]:
    def over(a: TracedNumber, *axes: Any, **how: Any) -> TracedNumber:
        found = a.way.over_layer(name, a.node)
        if axes or how:
            raise CompileError(f"{name}() is of all neurons of the layer: it takes no arguments")
        return TracedNumber(found, a.way)

    return over


class TracedNumber:
    """A node on one way through a formula, where it is true or false as the way says."""

    __slots__ = ("node", "way")
    __array_ufunc__ = None  # a number of NumPy on the left leaves the operation to this one
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: Node, way: Way) -> None:
        self.node, self.way = node, way

    __add__, __radd__ = _infix(Op.ADD), _mirrored(Op.ADD)
    __sub__, __rsub__ = _infix(Op.SUB), _mirrored(Op.SUB)
    __mul__, __rmul__ = _infix(Op.MUL), _mirrored(Op.MUL)
    __truediv__, __rtruediv__ = _infix(Op.DIV), _mirrored(Op.DIV)
    __pow__, __rpow__ = _infix(Op.POW), _mirrored(Op.POW)
    __floordiv__, __rfloordiv__ = _infix(Op.FLOORDIV), _mirrored(Op.FLOORDIV)
    __mod__, __rmod__ = _infix(Op.MOD), _mirrored(Op.MOD)
    __lt__, __gt__, __le__, __ge__ = _infix(Op.LT), _infix(Op.GT), _infix(Op.LE), _infix(Op.GE)
    __eq__, __ne__ = _infix(Op.EQ), _infix(Op.NE)  # type: ignore[assignment]

    def __neg__(self) -> TracedNumber:
        return TracedNumber(make(Op.NEG, self.node), self.way)

    def __pos__(self) -> TracedNumber:
        return self

    def __abs__(self) -> TracedNumber:
        return TracedNumber(make(Op.ABS, self.node), self.way)

    sum, mean, prod, max, min = map(_over_layer, ("sum", "mean", "prod", "max", "min"))

    def __bool__(self) -> bool:
        return self.way.holds(truth(self.node))

    def __horn_math__(self, name: str, args: tuple[Any, ...]) -> TracedNumber:
        nodes = [lift(_node(a)) for a in args]
        made = select(*nodes) if name == "where" else make(Op(name), *nodes)
        return TracedNumber(made, self.way)


TracedNumber.__name__ = "number"  # as Python calls it in its own refusals: users have no other


def trace(formula: Callable[..., Any], *args: Any) -> Any:
    """The value of a formula of nodes: a node for each number that it returns, in tuples and dicts
    as it returns them. args : nodes, dicts of nodes, and what else it takes, as None.

    Raises
    ------
    CompileError : it leaves the language, asks for what several numbers have together, or has more
    than MOST_WAYS ways; at the user's line.
    """
    n_ways = 0

    def after(answers: dict[Node, bool]) -> Any:
        """The value where conditions are answered so."""
        nonlocal n_ways
        n_ways += 1
        if n_ways > MOST_WAYS:
            raise _too_many()
        way = Way(answers)
        found = _nodes(formula(*(_traced(a, way) for a in args)))
        asked = [*way.answers]
        for n in range(len(asked) - 1, len(answers) - 1, -1):
            before = {condition: way.answers[condition] for condition in asked[:n]}
            found = _chosen(asked[n], found, after(before | {asked[n]: False}))
        return found

    try:
        return after({})
    except CompileError as error:
        if error.file:
            raise
        fail(formula, error, error.problem)
    except (TypeError, AttributeError, ValueError) as error:  # the arguments are nodes
        fail(formula, error, f"{error}; {REMEDY}")


def is_same(a: Any, b: Any) -> bool:
    """Whether two values of a formula of the same nodes are the same: it has no memory of its own,
    and no chance. What is no number is not compared.
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(is_same(value, b[name]) for name, value in a.items())
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    numbers = (Node, int, float)
    return not (isinstance(a, numbers) and isinstance(b, numbers)) or lift(a) is lift(b)


def call(function: Callable[..., Any], *args: Any) -> Any:
    """The value of a function of nodes that asks no condition. Raises CompileError where it does,
    and what the function raises.
    """
    return _untraced(function(*(_traced(a, OnlyWay({})) for a in args)))


def _untraced(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_untraced, value))
    return _node(value)


def _traced(value: Any, way: Way) -> Any:
    if isinstance(value, Mapping):
        return {name: _traced(each, way) for name, each in value.items()}
    return TracedNumber(value, way) if isinstance(value, Node) else value


def _node(value: Any) -> Any:
    return value.node if isinstance(value, TracedNumber) else value


def _nodes(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _nodes(each) for name, each in value.items()}
    return tuple(map(_nodes, value)) if isinstance(value, tuple) else lift(_node(value))


def _chosen(condition: Node, a: Any, b: Any) -> Any:
    """``a`` where the condition holds, else ``b``, number by number."""
    if isinstance(a, Node) and isinstance(b, Node):
        return select(condition, a, b)
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(_chosen(condition, x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return {name: _chosen(condition, x, b[name]) for name, x in a.items()}
    raise CompileError("this returns other values where a condition holds than where it does not")


def fail(formula: Callable[..., Any], error: Exception, problem: str) -> NoReturn:
    """Raise the error as one of the user's line. An error of horn's own formulas stays as it is."""
    formula = inspect.unwrap(formula)
    frames = [
        (frame.f_code, frame.f_globals, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if is_user_file(frame.f_code.co_filename)
    ]
    name = getattr(formula, "__qualname__", repr(formula)).rpartition("<locals>.")[2]
    code = getattr(formula, "__code__", None)
    if frames:
        code, namespace, line = frames[-1]
    elif code is not None and is_user_file(code.co_filename):
        namespace, line = formula.__globals__, code.co_firstlineno
    else:
        raise error
    text = texts.line_of(code, namespace, line)
    start = len(text) - len(text.lstrip())
    raise CompileError(
        problem, file=code.co_filename, line=line, column=start, end_column=len(text), text=text,
        where=name,
    ) from error  # fmt: skip
