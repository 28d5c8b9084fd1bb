"""Formulas of one number, applied to arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def apply(formula: Callable[..., tuple[Any, ...]], *arrays: Array) -> list[Array]:
    """The arrays that a formula makes of arrays of one shape: of all numbers at once, or, where it
    asks whether a number is true, which an array cannot tell, of one after the other.
    """
    shape = arrays[0].shape
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
