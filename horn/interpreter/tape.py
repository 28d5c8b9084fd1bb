"""Numbers that remember how they were made, and the derivatives that follow: a scalar reverse-mode
tape.

``Traced`` is a double that behaves like a Python number: it prints, compares and formats as one.
It is not a ``float``, on purpose: a C function such as ``math.gamma`` would take a float and
silently forget where it came from; so ``float(x)`` of a number that depends on messages is
refused, with the line. Arithmetic is IEEE 754: 1 / 0 is infinity, log(-1) is NaN, nothing raises.

Source: Griewank & Walther, "Evaluating Derivatives", 2008, section 3.2 (reverse mode).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from horn import math
from horn.interpreter import places

Rule = Callable[
    ..., Any
]  # (arguments..., result) -> d result / d argument, or None for "not at all"

_serial = itertools.count()
# Who is told of every comparison, and may overrule it: horn.interpreter.kinds walks all paths of a
# method this way.
_listeners: list[Callable[[bool, tuple[Any, ...]], bool]] = []


class Traced:
    """A number on the tape.

    op, args : how it was made; leaves have no args. ``variable``: a derivative may be asked with
    respect to something it depends on.
    varies : it may differ between the samples of a batch. ``batch``: it depends on a
    ``per="batch"`` draw.
    """

    __slots__ = ("value", "op", "args", "variable", "varies", "batch", "serial")
    __hash__ = object.__hash__

    def __init__(
        self,
        value: float,
        op: str = "number",
        args: tuple[Any, ...] = (),
        *,
        variable: bool = False,
        varies: bool = False,
        batch: bool = False,
    ) -> None:
        self.value, self.op, self.args = float(value), op, args
        self.variable, self.varies, self.batch = variable, varies, batch
        self.serial = next(_serial)

    def __repr__(self) -> str:
        return repr(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __float__(self) -> float:
        if self.variable:
            raise places.error(
                "a plain number is needed here, but this one depends on the messages; the "
                "functions of the neuron language are "
                f"{', '.join(sorted(math.OPS))}: take them from horn.math, or from math"
            )
        return self.value

    def __horn_math__(self, name: str, args: tuple[Any, ...]) -> Any:
        return make(name, *args)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        name = _UFUNCS.get(ufunc.__name__)
        if name is None or method != "__call__" or kwargs or not all(map(is_number, args)):
            raise places.error(
                f"numpy.{ufunc.__name__} of this is not in the neuron language; use the functions "
                "of horn.math, on numbers"
            )
        plain = [a if isinstance(a, Traced) else float(a) for a in args]
        return getattr(operator, name)(*plain) if hasattr(operator, name) else make(name, *plain)

    def __bool__(self) -> bool:
        return told(self.value != 0.0, self)

    def __lt__(self, other: Any) -> bool:
        return told(self.value < number(other), self, other)

    def __le__(self, other: Any) -> bool:
        return told(self.value <= number(other), self, other)

    def __gt__(self, other: Any) -> bool:
        return told(self.value > number(other), self, other)

    def __ge__(self, other: Any) -> bool:
        return told(self.value >= number(other), self, other)

    def __eq__(self, other: object) -> bool:
        return is_number(other) and told(self.value == number(other), self, other)

    def __ne__(self, other: object) -> bool:
        return not is_number(other) or told(self.value != number(other), self, other)

    def __neg__(self) -> Any:
        return make("neg", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return make("abs", self)

    def __floor__(self) -> Any:
        return make("floor", self)

    def __add__(self, other: Any) -> Any:
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _binary("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return _binary("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _binary("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _binary("div", other, self)

    def __pow__(self, other: Any) -> Any:
        return _binary("pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _binary("pow", other, self)


def is_number(value: Any) -> bool:
    """Whether a value is a number of the neuron language: Traced, or anything plain that is one
    number."""
    return isinstance(value, (Traced, int, float, np.number, np.bool_))


def number(value: Any) -> float:
    """The double that a number of the neuron language holds."""
    return value.value if isinstance(value, Traced) else float(value)


def told(outcome: bool, *operands: Any) -> bool:
    """Tell the listener of a comparison; what it answers is the outcome."""
    return _listeners[-1](outcome, operands) if _listeners else outcome


class listening:
    """``with listening(f)``: f(outcome, operands) hears of every comparison of Traced numbers and
    returns the outcome to use."""

    def __init__(self, listener: Callable[[bool, tuple[Any, ...]], bool]) -> None:
        self.listener = listener

    def __enter__(self) -> None:
        _listeners.append(self.listener)

    def __exit__(self, *exception: object) -> None:
        _listeners.pop()


def make(op: str, *args: Any) -> Any:
    """Apply an operation to numbers of the language and record it. ``where`` looks at the
    condition and gives one of the two."""
    variable = varies = batch = False
    values = []
    for a in args:
        if isinstance(a, Traced):
            values.append(a.value)
            variable, varies, batch = variable or a.variable, varies or a.varies, batch or a.batch
        elif isinstance(a, LayerOutput):
            return _each(lambda *xs: math.apply(op, *xs), *args)
        elif op != "where":
            values.append(float(a))
    if op == "where":
        return args[1] if args[0] else args[2]
    value = compute(op, *values)
    return Traced(value, op, args, variable=variable, varies=varies, batch=batch)


def _binary(op: str, a: Any, b: Any) -> Any:
    return make(op, a, b) if is_number(a) and is_number(b) else NotImplemented


_ARITHMETIC: dict[str, Callable[..., float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "neg": operator.neg,
}
_NUMPY = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "neg": "negative"}
_UFUNCS = {
    **{name: name for name in math.OPS},
    "absolute": "abs",
    "fabs": "abs",
    "power": "pow",
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "truediv",
    "negative": "neg",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "equal": "eq",
    "not_equal": "ne",
}


def compute(op: str, *values: float) -> float:
    """The value of an operation, by the rules of IEEE 754: where Python raises, NumPy's inf or
    NaN."""
    try:
        value = _ARITHMETIC[op](*values) if op in _ARITHMETIC else math.apply(op, *values)
    except (ArithmeticError, ValueError):
        value = complex(0, 1)
    if isinstance(value, complex):  # what Python makes of (-8) ** (1/3)
        with np.errstate(all="ignore"):
            arrays = [np.float64(v) for v in values]
            value = getattr(np, _NUMPY[op])(*arrays) if op in _NUMPY else math.apply(op, *arrays)
    return float(value)


def _f(op: str) -> Callable[..., Any]:
    """An operation on numbers or, for derivatives of derivatives, on Traced ones."""
    return lambda *args: (make if any(isinstance(a, Traced) for a in args) else compute)(op, *args)


_div, _log, _cos, _sin, _sign, _pow, _sigmoid = map(
    _f, ("div", "log", "cos", "sin", "sign", "pow", "sigmoid")
)

# d result / d argument, for every operation and argument. None: the argument was not chosen,
# nothing flows to it, not even NaN.
RULES: dict[str, tuple[Rule, ...]] = {
    "add": (lambda a, b, y: 1.0, lambda a, b, y: 1.0),
    "sub": (lambda a, b, y: 1.0, lambda a, b, y: -1.0),
    "mul": (lambda a, b, y: b, lambda a, b, y: a),
    "div": (lambda a, b, y: _div(1.0, b), lambda a, b, y: -_div(y, b)),
    "neg": (lambda z, y: -1.0,),
    "pow": (
        lambda a, b, y: b * _pow(a, b - 1.0) if number(b) != 0.0 else 0.0,
        lambda a, b, y: y * _log(a),
    ),
    "exp": (lambda z, y: y,),
    "log": (lambda z, y: _div(1.0, z),),
    "sqrt": (lambda z, y: _div(0.5, y),),
    "tanh": (lambda z, y: 1.0 - y * y,),
    "sin": (lambda z, y: _cos(z),),
    "cos": (lambda z, y: -_sin(z),),
    "abs": (lambda z, y: _sign(z),),
    "floor": (lambda z, y: None,),
    "sign": (lambda z, y: None,),
    "log1p": (lambda z, y: _div(1.0, 1.0 + z),),
    "expm1": (lambda z, y: y + 1.0,),
    "sigmoid": (lambda z, y: y * (1.0 - y),),
    "softplus": (lambda z, y: _sigmoid(z),),
    "relu": (lambda z, y: 1.0 if number(z) > 0.0 else None,),
    "maximum": (
        lambda a, b, y: None if number(b) > number(a) else 1.0,
        lambda a, b, y: 1.0 if number(b) > number(a) else None,
    ),
    "minimum": (
        lambda a, b, y: None if number(b) < number(a) else 1.0,
        lambda a, b, y: 1.0 if number(b) < number(a) else None,
    ),
}


def below(*roots: Any, stop: Iterable[Traced] = ()) -> list[Traced]:
    """Every traced number that the roots were made from, the roots included, the latest first;
    nothing below ``stop``."""
    ends = {leaf.serial for leaf in stop}
    found: dict[int, Traced] = {}
    pending = [root for root in roots if isinstance(root, Traced)]
    while pending:
        node = pending.pop()
        if node.serial not in found:
            found[node.serial] = node
            if node.serial not in ends:
                pending.extend(a for a in node.args if isinstance(a, Traced))
    return [found[serial] for serial in sorted(found, reverse=True)]


def adjoints(
    seeds: Iterable[tuple[Any, Any]], stop: Iterable[Traced] = (), traced: bool = False
) -> dict[int, Any]:
    """d (sum of root * seed) / d every number below, by serial; a number that nothing flows to is
    not in the answer.

    With ``traced`` the derivatives are Traced themselves, so that they can be differentiated again.
    """
    table: dict[int, Any] = {}
    roots = []
    for root, seed in seeds:
        if isinstance(root, Traced):
            roots.append(root)
            table[root.serial] = table.get(root.serial, 0.0) + seed
    ends = {leaf.serial for leaf in stop}
    for node in below(*roots, stop=stop):
        if node.serial not in table or not node.args or node.serial in ends or not node.variable:
            continue
        flow = table[node.serial]
        args = node.args if traced else tuple(map(number, node.args))
        result = node if traced else node.value
        for arg, rule in zip(node.args, RULES[node.op], strict=True):
            if isinstance(arg, Traced) and arg.variable:
                slope = rule(*args, result)
                if slope is not None:
                    table[arg.serial] = table.get(arg.serial, 0.0) + slope * flow
    return table


def derivative(f: Callable[[Any], Any], z: Any) -> Any:
    """d f / d z at z, as a number that can be differentiated again."""
    here = make("add", z, Traced(0.0))
    here.variable = True  # even where z is not: this derivative is asked for
    return adjoints([(f(here), 1.0)], stop=[here], traced=True).get(here.serial, 0.0)


class LayerOutput:
    """The outputs of a whole layer for one sample, as an ``interlayer`` function sees them:
    arithmetic works number by number, and ``sum()``, ``max()``, ``min()`` and ``mean()`` are over
    the layer."""

    __hash__ = object.__hash__

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = list(items)

    def __repr__(self) -> str:
        return repr(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __horn_math__(self, name: str, args: tuple[Any, ...]) -> Any:
        return make(name, *args)

    def sum(self) -> Any:
        return sum(self.items, 0.0)

    def mean(self) -> Any:
        return self.sum() / len(self.items)

    def max(self) -> Any:
        return max(self.items)

    def min(self) -> Any:
        return min(self.items)


def _each(function: Callable[..., Any], *args: Any) -> Any:
    n = max(len(a) for a in args if isinstance(a, LayerOutput))
    rows = ([a.items[i] if isinstance(a, LayerOutput) else a for a in args] for i in range(n))
    return LayerOutput([function(*row) for row in rows])


def _operators() -> None:
    for name in ("add", "sub", "mul", "truediv", "pow"):
        f = getattr(operator, name)
        setattr(LayerOutput, f"__{name}__", lambda a, b, f=f: _each(f, a, b))
        setattr(LayerOutput, f"__r{name}__", lambda a, b, f=f: _each(f, b, a))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        f = getattr(operator, name)
        setattr(LayerOutput, f"__{name}__", lambda a, b, f=f: _each(f, a, b))
    for name in ("neg", "abs"):
        f = getattr(operator, name)
        setattr(LayerOutput, f"__{name}__", lambda a, f=f: _each(f, a))


_operators()
