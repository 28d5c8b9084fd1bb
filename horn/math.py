"""The functions of the neuron language.

Each takes numbers, NumPy arrays, or the objects that the compiler and the interpreter put in their
place (those with a ``__horn_math__`` method), and is written in one place for all of them. ``OPS``
names every function: a backend that covers ``OPS`` covers the language.
"""

from __future__ import annotations

import math as _m
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any

pi, e = _m.pi, _m.e

OPS: dict[str, int] = {  # name -> number of arguments
    "exp": 1,
    "log": 1,
    "sqrt": 1,
    "tanh": 1,
    "sin": 1,
    "cos": 1,
    "abs": 1,
    "floor": 1,
    "sign": 1,
    "log1p": 1,
    "expm1": 1,
    "sigmoid": 1,
    "softplus": 1,
    "relu": 1,
    "erf": 1,
    "erfc": 1,
    "atan": 1,
    "stop_gradient": 1,
    "pow": 2,
    "atan2": 2,
    "floordiv": 2,
    "mod": 2,
    "maximum": 2,
    "minimum": 2,
    "where": 3,
}


def _sigmoid(z: float) -> float:
    if z >= 0:
        return 1.0 / (1.0 + _m.exp(-z))
    e = _m.exp(z)
    return e / (1.0 + e)


def _softplus(z: float) -> float:
    return max(z, 0.0) + _m.log1p(_m.exp(-abs(z)))


_SCALAR: dict[str, Callable[..., float]] = {
    "exp": _m.exp,
    "log": _m.log,
    "sqrt": _m.sqrt,
    "tanh": _m.tanh,
    "sin": _m.sin,
    "cos": _m.cos,
    "abs": abs,
    "floor": lambda z: float(_m.floor(z)),
    "sign": lambda z: z if z != z else float((z > 0) - (z < 0)),  # NaN has no sign
    "log1p": _m.log1p,
    "expm1": _m.expm1,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "relu": lambda z: 0.0 if z <= 0 else z,  # NaN stays NaN
    "erf": _m.erf,
    "erfc": _m.erfc,
    "atan": _m.atan,
    "stop_gradient": lambda z: z,
    "pow": lambda a, b: a**b,
    "atan2": _m.atan2,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "maximum": lambda a, b: b if b > a or b != b else a,  # NaN is not lost
    "minimum": lambda a, b: b if b < a or b != b else a,
    "where": lambda c, a, b: a if c else b,
}


_NUMPY_NAMES = {
    "pow": "power",
    "atan": "arctan",
    "atan2": "arctan2",
    "floordiv": "floor_divide",
    "mod": "remainder",
}


def _numpy(name: str, args: tuple[Any, ...]) -> Any:
    import numpy as np

    if name in ("sigmoid", "softplus"):
        z = np.asarray(args[0])
        z = z.astype(np.result_type(z, 0.0), copy=False)  # of whole numbers -z may not be there
        e = np.exp(-np.abs(z))
        if name == "softplus":
            return np.maximum(z, 0) + np.log1p(e)
        return np.where(z >= 0, 1.0 / (1.0 + e), e / (1.0 + e))
    if name == "relu":
        return np.maximum(args[0], 0)
    if name in ("maximum", "minimum"):  # the first wins a tie, as Python's max and min; NaN stays
        a, b = args
        wins = np.greater(b, a) if name == "maximum" else np.less(b, a)
        return np.where(wins | np.isnan(b), b, a)
    if name == "pow" and np.ndim(args[1]) == 0 and args[1] == 0.5:
        a = args[0]  # NumPy's root has other signs: (-inf) ** 0.5 is inf, (-0.0) ** 0.5 is 0.0
        return np.sqrt(np.where(np.equal(a, -np.inf), np.negative(a), a)) + 0.0
    if name == "stop_gradient":
        return args[0]
    if name in ("erf", "erfc"):  # NumPy has none
        z = np.asarray(args[0])
        return np.vectorize(_SCALAR[name], otypes=[float])(z).astype(np.result_type(z, 0.0))
    return getattr(np, _NUMPY_NAMES.get(name, name))(*args)


def apply(name: str, *args: Any) -> Any:
    """Apply function ``name`` of ``OPS`` to numbers, arrays, or objects with ``__horn_math__``."""
    arrays = False
    for a in args:
        if type(a) is not float:  # as most are
            hook = getattr(a, "__horn_math__", None)
            if hook is not None:
                return hook(name, args)
            arrays = arrays or hasattr(a, "__array__")
    return _numpy(name, args) if arrays else apply_to_numbers(name, *args)


def apply_to_numbers(name: str, *args: Any) -> Any:
    """Apply function ``name`` of ``OPS`` to plain numbers."""
    try:
        found = _SCALAR[name](*args)
    except (ArithmeticError, ValueError):
        return _beyond(name, args)
    return _beyond(name, args) if isinstance(found, complex) else found


def _beyond(name: str, args: tuple[Any, ...]) -> float:
    """NumPy's infinity or NaN where Python raises, or has a complex number as (-8) ** (1/3)."""
    import numpy as np

    with np.errstate(all="ignore"):
        return _observed(name, args, float(_numpy(name, tuple(np.float64(a) for a in args))))


# Called with the name, the arguments and the result of a function without a finite result, in the
# thread that observes (horn.autodiff.tape.observing).
observer: ContextVar[Callable[[str, Sequence[float], float], None] | None]
observer = ContextVar("observer", default=None)


def _observed(name: str, values: Sequence[float], found: float) -> float:
    if (observe := observer.get()) is not None:
        observe(name, values, found)
    return found


def exp(z: Any) -> Any:
    """e to the z."""
    return apply("exp", z)


def log(z: Any) -> Any:
    """Natural logarithm."""
    return apply("log", z)


def sqrt(z: Any) -> Any:
    """Square root."""
    return apply("sqrt", z)


def tanh(z: Any) -> Any:
    """Hyperbolic tangent."""
    return apply("tanh", z)


def sin(z: Any) -> Any:
    """Sine, radians."""
    return apply("sin", z)


def cos(z: Any) -> Any:
    """Cosine, radians."""
    return apply("cos", z)


def abs_(z: Any) -> Any:
    """Absolute value (the builtin ``abs`` works in neurons too)."""
    return apply("abs", z)


def floor(z: Any) -> Any:
    """The largest whole number not above z, as a float."""
    return apply("floor", z)


def sign(z: Any) -> Any:
    """-1, 0 or 1."""
    return apply("sign", z)


def log1p(z: Any) -> Any:
    """log(1 + z), exact for small z."""
    return apply("log1p", z)


def expm1(z: Any) -> Any:
    """exp(z) - 1, exact for small z."""
    return apply("expm1", z)


def sigmoid(z: Any) -> Any:
    """1 / (1 + exp(-z)), without overflow."""
    return apply("sigmoid", z)


def softplus(z: Any) -> Any:
    """log(1 + exp(z)), without overflow."""
    return apply("softplus", z)


def relu(z: Any) -> Any:
    """z where it is positive, else 0."""
    return apply("relu", z)


def erf(z: Any) -> Any:
    """The error function; GELU is ``0.5 * z * (1 + erf(z / sqrt(2)))``."""
    return apply("erf", z)


def erfc(z: Any) -> Any:
    """1 - erf(z), exact where that is small."""
    return apply("erfc", z)


def atan(z: Any) -> Any:
    """The angle whose tangent is z, in radians."""
    return apply("atan", z)


def atan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y), in radians, from -pi to pi."""
    return apply("atan2", y, x)


def stop_gradient(z: Any) -> Any:
    """z itself, as a constant to every gradient: nothing flows back through it."""
    return apply("stop_gradient", z)


def floordiv(a: Any, b: Any) -> Any:
    """a // b, the largest whole number not above a / b, as a float (the operator works too)."""
    return apply("floordiv", a, b)


def mod(a: Any, b: Any) -> Any:
    """a % b, with the sign of b (the operator works too)."""
    return apply("mod", a, b)


# The following functions are in the neuron language themselves: the compiler reads them as helpers.


def ceil(z: Any) -> Any:
    """The smallest whole number not below z, as a float."""
    return -floor(-z)


def tan(z: Any) -> Any:
    """Tangent, radians."""
    return sin(z) / cos(z)


def asin(z: Any) -> Any:
    """The angle whose sine is z, in radians; NaN beyond -1 and 1."""
    return atan2(z, sqrt((1.0 - z) * (1.0 + z)))


def acos(z: Any) -> Any:
    """The angle whose cosine is z, in radians; NaN beyond -1 and 1."""
    return atan2(sqrt((1.0 - z) * (1.0 + z)), z)


def isfinite(z: Any) -> Any:
    """Whether z is neither infinite nor NaN."""
    return abs_(z) < _m.inf


def isinf(z: Any) -> Any:
    """Whether z is infinite."""
    return abs_(z) == _m.inf


def isnan(z: Any) -> Any:
    """Whether z is no number."""
    return z != z


def prod(values: Iterable[Any], *, start: Any = 1.0) -> Any:
    """The product: ``prod(1.0 - m.input * m.weight for m in messages)``."""
    return _m.prod(values, start=start)


def _ordered(values: Iterable[Any]) -> tuple[list[Any], list[float], list[float]]:
    """The values, their numbers, and the numbers sorted. With a NaN all are NaN: it is not lost."""
    found = list(values)
    numbers = [float(getattr(v, "value", v)) for v in found]
    if lost := [v for v, number in zip(found, numbers, strict=True) if number != number]:
        found, numbers = lost[:1] * len(found), [_m.nan] * len(found)
    return found, numbers, sorted(numbers)


def _check_place(name: str, k: int) -> None:
    if k < 1:
        raise ValueError(f"{name} counts from 1, got {k}")


def smallest(k: int, values: Iterable[Any]) -> Any:
    """The k-th smallest, from 1; infinity where there are fewer. Its gradient goes to the first
    message that has it: ``smallest(2, (m.input * m.weight for m in messages))``.

    Raises
    ------
    ValueError : k is below 1; so do largest and top_sum.
    """
    _check_place("smallest", k)
    found, numbers, order = _ordered(values)
    if k > len(found):
        return _observed("smallest", (k, len(found)), _m.inf)
    return found[numbers.index(order[k - 1])]


def largest(k: int, values: Iterable[Any]) -> Any:
    """The k-th largest, likewise; minus infinity where there are fewer."""
    _check_place("largest", k)
    found, numbers, order = _ordered(values)
    if k > len(found):
        return _observed("largest", (k, len(found)), -_m.inf)
    return found[numbers.index(order[-k])]


def median(values: Iterable[Any]) -> Any:
    """The middle value, or the mean of the two middle ones: ``median(m.input for m in messages)``;
    NaN without values.
    """
    found, numbers, order = _ordered(values)
    n = len(found)
    if n == 0:
        return _observed("median", (), _m.nan)
    lower, upper = (found[numbers.index(order[place])] for place in ((n - 1) // 2, n // 2))
    return 0.5 * lower + 0.5 * upper


def top_sum(k: int, values: Iterable[Any]) -> Any:
    """The sum of the k largest, or of all where there are fewer."""
    _check_place("top_sum", k)
    found, numbers, order = _ordered(values)
    if k >= len(found):
        return sum(found, 0.0)
    last = order[-k]
    larger = [v for v, number in zip(found, numbers, strict=True) if number > last]
    return sum(larger, 0.0) + (k - len(larger)) * found[numbers.index(last)]


def pow_(a: Any, b: Any) -> Any:
    """a to the b (the operator ``**`` works too)."""
    return apply("pow", a, b)


def maximum(a: Any, b: Any) -> Any:
    """The larger of two, the first of equals, NaN where one is (the builtin ``max(a, b)`` works in
    neurons too)."""
    return apply("maximum", a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two, the first of equals, NaN where one is."""
    return apply("minimum", a, b)


def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b."""
    return apply("where", condition, a, b)


#: The names of all functions here that a neuron may call.
FUNCTIONS = tuple(
    name
    for name, f in globals().items()
    if getattr(f, "__module__", "") == __name__
    and name.strip("_") == name
    and not name.startswith("apply")
)

#: Functions of Python's ``math`` that a neuron may call, and the one here that each becomes.
OF_PYTHON: dict[Callable[..., Any], Callable[..., Any]] = {
    _m.fabs: abs_,
    _m.pow: pow_,
    **{getattr(_m, name): globals()[name] for name in FUNCTIONS if hasattr(_m, name)},
}


def __dir__() -> list[str]:  # what a prompt completes
    return ["e", "pi", *FUNCTIONS]
