"""Formulas of one number, applied to arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from horn import math

Array = np.ndarray[Any, Any]


class _Numbers(Array):
    """Numbers of float64, as an array: a condition of them is 1.0 or 0.0, as Python counts, where
    NumPy has a logical or for the sum of two, no difference, and 16 bits for their functions.
    """

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *given: Any, **settings: Any) -> Any:
        settings.pop("out", None)  # w -= g gives the name another number, and changes no array
        found = getattr(ufunc, method)(*map(_plain, given), **settings)
        return tuple(map(_numbers, found)) if isinstance(found, tuple) else _numbers(found)

    def __horn_math__(self, name: str, given: tuple[Any, ...]) -> Any:
        return _numbers(math.apply(name, *map(_plain, given)))


_Numbers.__name__ = "number"  # as Python calls it in its own refusals: users have no other


def _numbers(x: Any) -> Any:
    return np.asarray(x, np.float64).view(_Numbers)


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, _Numbers) else x


def apply(formula: Callable[..., tuple[Any, ...]], *arrays: Array) -> list[Array]:
    """The arrays that a formula makes of arrays of one shape: of all numbers at once, or, where it
    asks whether a number is true, which an array cannot tell, of one after the other.
    """
    shape = arrays[0].shape
    arrays = tuple(map(_numbers, arrays))
    try:
        found = formula(*arrays)
    except ValueError:
        if arrays[0].size < 2:
            raise
        each = [formula(*ones) for ones in zip(*map(_ones, arrays), strict=True)]
        found = tuple(
            np.reshape([np.ravel(x)[0] for x in xs], shape) for xs in zip(*each, strict=True)
        )
    return [np.broadcast_to(np.asarray(x, np.float64), shape) for x in found]


def _ones(array: Array) -> Array:
    """Its numbers, each an array of one, for which horn.math computes as for the whole."""
    return array.reshape(-1, 1)
