"""Numbers that record their computation, and derivatives from the record: a scalar reverse-mode
tape.

``Traced`` is a double that behaves like a Python number: it prints, compares and formats as one.
It is not a ``float``, on purpose: a C function such as ``math.gamma`` would take a float and
silently drop its record; so ``float(x)`` of a number that depends on messages is refused, with the
line. Arithmetic is IEEE 754: 1 / 0 is infinity, log(-1) is NaN, nothing raises.

Source: Griewank & Walther, "Evaluating Derivatives", 2008, section 3.2 (reverse mode).
"""

from __future__ import annotations

import itertools
import math as python_math
import numbers
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

from horn import math
from horn.autodiff import user_text


class Observer(Protocol):
    """An observer of the tape: ``made`` gets an operation's arguments and result, ``placed`` each
    number that an operation made, ``flowed`` a derivative and the adjoint that flows through it.
    """

    def made(self, op: str, values: Sequence[float], result: float) -> None: ...
    def placed(self, made: Traced) -> None: ...
    def flowed(self, node: Traced, args: Sequence[float], slope: float, flow: float) -> None: ...


Rule = Callable[
    ..., Any
]  # (arguments..., result) -> d result / d argument, or None for "not at all"

_serial = itertools.count()
# Each of a thread's own: several may run networks at the same time.
# The listener to every comparison, which may overrule it: horn.interpreter.neuron_kinds walks all
# paths of a method this way.
_listener: ContextVar[Callable[[bool, tuple[Any, ...]], bool] | None]
_listener = ContextVar("listener", default=None)
# The observer of every operation and of every flow back: horn.interpreter.trouble finds the first
# number that is not finite.
_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
# The function that computes the reductions over a whole layer (horn.interpreter.layerwise).
_layer: ContextVar[Callable[[str, Traced], Any] | None] = ContextVar("layer", default=None)


def _infix(op: str) -> tuple[Callable[[Traced, Any], Any], Callable[[Traced, Any], Any]]:
    """The methods of an operator: with a number of the tape on its left, and on its right."""

    def left(a: Traced, b: Any) -> Any:
        return make(op, a, b) if isinstance(b, _NUMBERS) else NotImplemented

    def right(b: Traced, a: Any) -> Any:
        return make(op, a, b) if isinstance(a, _NUMBERS) else NotImplemented

    return left, right


def _asks(word: str) -> Callable[[Traced], Any]:
    def ask(value: Traced, *more: Any, **named: Any) -> Any:
        if more or named:  # as NumPy's mean(output) gives them
            raise user_text.error(f"write  x.{word}()  of the whole layer; it takes no arguments")
        return _of_layer(word, value)

    ask.__name__ = ask.__qualname__ = word
    return ask


OF_LAYER = ("sum", "mean", "prod", "max", "min")  # reductions over all neurons of a layer


class Traced:
    """A number on the tape.

    op, args : the operation and its arguments; leaves have no args. ``variable``: derivatives with
    respect to something it depends on may be needed.
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
            raise user_text.error(
                "a plain number is needed here, but this one depends on the messages; the "
                "functions of the neuron language are "
                f"{', '.join(sorted(math.FUNCTIONS))}: take them from horn.math, or from math"
            )
        return self.value

    def __setitem__(self, place: Any, value: Any) -> None:
        raise user_text.error("this is one number, of which no place can be assigned; take a name")

    def __int__(self) -> int:
        return int(float(self))

    def __round__(self, ndigits: int | None = None) -> float:
        return round(float(self), ndigits)

    __trunc__ = __int__

    def __horn_math__(self, name: str, args: tuple[Any, ...]) -> Any:
        return make(name, *args)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        name = _UFUNCS.get(ufunc.__name__)
        if name is None or method != "__call__" or kwargs or not all(map(is_number, args)):
            raise user_text.error(
                f"numpy.{ufunc.__name__} of this is not in the neuron language; use the functions "
                "of horn.math, on numbers"
            )
        plain = [a if isinstance(a, Traced) else float(a) for a in args]
        return getattr(operator, name)(*plain) if hasattr(operator, name) else make(name, *plain)

    def __bool__(self) -> bool:
        return bool(reported(self.value != 0.0, self))  # Python accepts only a bool here

    def __lt__(self, other: Any) -> bool:
        return reported(self.value < number(other), self, other)

    def __le__(self, other: Any) -> bool:
        return reported(self.value <= number(other), self, other)

    def __gt__(self, other: Any) -> bool:
        return reported(self.value > number(other), self, other)

    def __ge__(self, other: Any) -> bool:
        return reported(self.value >= number(other), self, other)

    def __eq__(self, other: object) -> bool:
        return is_number(other) and reported(self.value == number(other), self, other)

    def __ne__(self, other: object) -> bool:
        return not is_number(other) or reported(self.value != number(other), self, other)

    # Reductions of an interlayer or a loss over all neurons of the layer.

    def __iter__(self) -> Iterator[Any]:
        return iter(_of_layer("iter", self))

    def __len__(self) -> int:
        return len(_of_layer("len", self))

    sum, mean, prod, max, min = map(_asks, OF_LAYER)

    def __neg__(self) -> Any:
        return make("neg", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return make("abs", self)

    def __floor__(self) -> Any:
        return make("floor", self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    __add__, __radd__ = _infix("add")
    __sub__, __rsub__ = _infix("sub")
    __mul__, __rmul__ = _infix("mul")
    __truediv__, __rtruediv__ = _infix("div")
    __floordiv__, __rfloordiv__ = _infix("floordiv")
    __mod__, __rmod__ = _infix("mod")
    __pow__, __rpow__ = _infix("pow")


Traced.__name__ = "number"  # as Python calls it in its own refusals: users have no other


numbers.Number.register(Traced)


def _of_layer(word: str, value: Traced) -> Any:
    if (answer := _layer.get()) is None:
        what = {"iter": "cannot be looped over", "len": "has no len"}.get(word, f"has no {word!r}")
        raise user_text.error(
            f"a number {what}: a neuron has one number here; sum(), max(), len and the like over a "
            "whole layer are for interlayers and the losses of outputs (net.loss compares neuron "
            "by neuron)"
        )
    return answer(word, value)


class _Above:
    """A context in which a function is called instead of that of the context around it."""

    variable: ContextVar[Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __enter__(self) -> None:
        self.before = self.variable.set(self.function)

    def __exit__(self, *exception: object) -> None:
        self.variable.reset(self.before)


class answering(_Above):
    """The context ``with answering(f)``: f(word, number) computes reductions over the layer."""

    variable = _layer


class listening(_Above):
    """The context ``with listening(f)``: f(outcome, operands) is called at every comparison of
    Traced numbers and returns the outcome to use.
    """

    variable = _listener


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """The context ``with observing(o)``: o alone sees every operation, not earlier observers."""
    before, of_math = _observer.set(observer), math.observer.set(observer.made)
    try:
        yield
    finally:
        _observer.reset(before)
        math.observer.reset(of_math)


class Nobody:
    """The Observer of operations that are no part of what the others look at."""

    def made(self, op: str, values: Sequence[float], result: float) -> None: ...
    def placed(self, made: Traced) -> None: ...
    def flowed(self, node: Traced, args: Sequence[float], slope: float, flow: float) -> None: ...


_NUMBERS = Traced, int, float, np.number, np.bool_


def is_number(value: Any) -> bool:
    """Whether a value is a number of the neuron language: Traced, or a plain single number."""
    return isinstance(value, _NUMBERS)


def number(value: Any) -> float:
    """The value, as a float, of a number of the neuron language."""
    return value.value if isinstance(value, Traced) else float(value)


def extreme(of: Callable[..., Any], values: Sequence[Any]) -> Any:
    """The ``max`` or ``min`` of numbers; NaN if any is, which Python's loses unless it is first."""
    lost = (v for v in values if isinstance(v, (Traced, float)) and number(v) != number(v))
    found = of(values)
    return next(lost, found)


def foremost(of: Callable[..., Any], values: Sequence[Any]) -> int:
    """The place of the first ``max`` or ``min`` of some numbers; of the first NaN if any is."""
    lost = (k for k, v in enumerate(values) if is_number(v) and number(v) != number(v))
    found: int = of(range(len(values)), key=values.__getitem__)
    return next(lost, found)


def reported(outcome: bool, *operands: Any) -> bool:
    """Report a comparison to the listener, and return the outcome that it chooses."""
    listener = _listener.get()
    return outcome if listener is None else listener(outcome, operands)


def make(op: str, *args: Any) -> Any:
    """Apply an operation to numbers of the language and record it. ``where`` evaluates the
    condition and returns one of the two values.
    """
    if op == "where":
        return args[1] if args[0] else args[2]
    variable = varies = batch = False
    values = []
    for a in args:
        if isinstance(a, Traced):
            values.append(a.value)
            variable, varies, batch = variable or a.variable, varies or a.varies, batch or a.batch
        else:
            values.append(float(a))
    value = compute(op, *values)
    found = Traced(value, op, args, variable=variable, varies=varies, batch=batch)
    if (observer := _observer.get()) is not None:
        observer.made(op, values, value)
        observer.placed(found)
    return found


def _divided(a: float, b: float) -> float:
    try:
        return a / b
    except ZeroDivisionError:
        with np.errstate(all="ignore"):
            return float(np.divide(a, b))


_ARITHMETIC: dict[str, Callable[..., float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divided,
    "neg": operator.neg,
}
_UFUNCS = {
    **{name: name for name in math.OPS},
    "absolute": "abs",
    "fabs": "abs",
    "power": "pow",
    "arctan": "atan",
    "arctan2": "atan2",
    "floor_divide": "floordiv",
    "remainder": "mod",
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
    """The value of an operation by IEEE 754: infinite or NaN where Python raises."""
    of = _ARITHMETIC.get(op)
    return math.apply_to_numbers(op, *values) if of is None else of(*values)


def _f(op: str) -> Callable[..., Any]:
    """An operation on numbers or, for derivatives of derivatives, on Traced numbers."""
    return lambda *args: (make if any(isinstance(a, Traced) for a in args) else compute)(op, *args)


_div, _log, _cos, _sin, _sign, _pow, _sigmoid, _exp, _floordiv = map(
    _f, ("div", "log", "cos", "sin", "sign", "pow", "sigmoid", "exp", "floordiv")
)
_ERF = 2.0 / python_math.sqrt(python_math.pi)

# d result / d argument, for every operation and argument. None: the argument was not chosen, and
# nothing flows to it, not even NaN.
RULES: dict[str, tuple[Rule, ...]] = {
    "add": (lambda a, b, y: 1.0, lambda a, b, y: 1.0),
    "sub": (lambda a, b, y: 1.0, lambda a, b, y: -1.0),
    "mul": (lambda a, b, y: b, lambda a, b, y: a),
    "div": (lambda a, b, y: _div(1.0, b), lambda a, b, y: -_div(y, b)),
    "neg": (lambda z, y: -1.0,),
    "pow": (
        # At the edge of their domains as in horn.ir.derive.
        lambda a, b, y: b * _pow(a, b - 1.0) if number(a) != 0.0 or number(b) >= 1.0 else 0.0,
        lambda a, b, y: y * _log(a) if number(a) != 0.0 else 0.0,
    ),
    "exp": (lambda z, y: y,),
    "log": (lambda z, y: _div(1.0, z),),
    "sqrt": (lambda z, y: _div(0.5, y) if number(y) != 0.0 else 0.0,),
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
    "erf": (lambda z, y: _ERF * _exp(-(z * z)),),
    "erfc": (lambda z, y: -_ERF * _exp(-(z * z)),),
    "atan": (lambda z, y: _div(1.0, 1.0 + z * z),),
    "stop_gradient": (lambda z, y: None,),
    "atan2": (
        lambda a, b, y: _div(b, a * a + b * b) if number(a * a + b * b) != 0.0 else 0.0,
        lambda a, b, y: _div(-a, a * a + b * b) if number(a * a + b * b) != 0.0 else 0.0,
    ),
    "floordiv": (lambda a, b, y: None, lambda a, b, y: None),
    "mod": (lambda a, b, y: 1.0, lambda a, b, y: -_floordiv(a, b)),
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
    nothing below ``stop``.
    """
    ends = {leaf.serial for leaf in stop}
    found: dict[int, Traced] = {}
    pending = [root for root in roots if isinstance(root, Traced)]
    while pending:
        node = pending.pop()
        if node.serial not in found:
            found[node.serial] = node
            if node.args and node.serial not in ends:
                pending += [a for a in node.args if isinstance(a, Traced)]
    return [found[serial] for serial in sorted(found, reverse=True)]


def adjoints(
    seeds: Iterable[tuple[Any, Any]], stop: Iterable[Traced] = (), traced: bool = False
) -> dict[int, Any]:
    """The derivatives d (sum of root * seed) / d every number below, by serial; numbers that
    nothing flows to are left out.

    With ``traced`` the derivatives are Traced themselves, so that they can be differentiated again.
    """
    table: dict[int, Any] = {}
    roots, observer = [], _observer.get()
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
                    if observer is not None:
                        plain = [number(a) for a in args]
                        observer.flowed(node, plain, number(slope), number(flow))
                    table[arg.serial] = table.get(arg.serial, 0.0) + slope * flow
    return table


def derivative(f: Callable[[Any], Any], z: Any) -> Any:
    """The derivative d f / d z at z, as a number that can be differentiated again."""
    here = make("add", z, Traced(0.0))
    here.variable = True  # even where z is not: this derivative is needed
    return adjoints([(f(here), 1.0)], stop=[here], traced=True).get(here.serial, 0.0)
