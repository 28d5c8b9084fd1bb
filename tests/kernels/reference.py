"""A reference for the engine's instructions, in plain NumPy, to compare with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from horn.ir.nodes import halfway

Array = np.ndarray[Any, Any]


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "copy": lambda x: x,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": _softplus,
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "sign": np.sign,
    "not": lambda x: x == 0,
    "relu": lambda x: np.maximum(x, 0),
    "erf": np.vectorize(math.erf, otypes=[float]),
    "erfc": np.vectorize(math.erfc, otypes=[float]),
    "atan": np.arctan,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "pow": np.power,
    "atan2": np.arctan2,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "halfway": halfway,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": lambda x, y: (x != 0) & (y != 0),
    "or": lambda x, y: (x != 0) | (y != 0),
    "select": lambda c, x, y: np.where(c != 0, x, y),
    "fma": lambda x, y, z: x * y + z,
}

FOLDS: dict[str, tuple[Callable[..., Any], float]] = {
    "sum": (np.sum, 0.0),
    "prod": (np.prod, 1.0),
    "max": (np.max, -np.inf),
    "min": (np.min, np.inf),
    "any": (lambda x, axis: np.any(x != 0, axis=axis), 0.0),
    "all": (lambda x, axis: np.all(x != 0, axis=axis), 1.0),
}


def evaluate(
    axes: Mapping[str, int],
    inputs: Sequence[tuple[Array, str]],
    ops: Sequence[tuple[Any, ...]],
    dtype: Any,
) -> list[Array]:
    """Every value of a loop's program as an array over all the axes, in the order of `axes`."""
    shape = tuple(axes.values())
    values = [np.broadcast_to(_spread(a, names, list(axes)), shape) for a, names in inputs]
    values = [v.astype(dtype) for v in values]
    for name, *args in ops:
        with np.errstate(all="ignore"):
            values.append(np.asarray(OPERATIONS[name](*(values[a] for a in args)), dtype=dtype))
    return values


def fold(monoid: str, value: Array, axis: int) -> Array:
    """A reduction over one axis, in double; of nothing, the monoid's unit (argmax: -1)."""
    if monoid == "argmax":
        if value.shape[axis] == 0:
            return np.full(np.delete(value.shape, axis), -1.0)
        return np.asarray(np.argmax(value, axis=axis))
    function, unit = FOLDS[monoid]
    if value.shape[axis] == 0:
        return np.full(np.delete(value.shape, axis), unit)
    return np.asarray(function(value.astype(np.float64), axis=axis))


def ranks(array: Array) -> Array:
    """Each number's place in its row (b, n): the largest is 0, of equal ones the first comes first,
    and what is no number comes last.
    """
    order = np.argsort(-array, axis=1, kind="stable")
    return np.argsort(order, axis=1, kind="stable")


def _spread(array: Array, names: str, order: list[str]) -> Array:
    kept = [n for n in order if n in names]
    moved = np.transpose(array, [names.index(n) for n in kept])
    return moved.reshape([array.shape[names.index(n)] if n in names else 1 for n in order])
