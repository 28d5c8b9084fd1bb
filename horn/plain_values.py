"""Plain values as JSON, and back: numbers, strings, and lists, tuples, dicts, sets and arrays of
them. So they travel as they are at a moment, whatever a program does with them later.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Scalar = (bool, int, float, str, type(None))
MOST, DEEPEST = 100_000, 20  # numbers in all, and lists in lists: beyond it is no table but data
_SERIES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class NotPlain(Exception):
    """A value holds what is no number, string, or series or array of them, or too many."""


def encoded(value: Any) -> Any:
    """A value as JSON: a number or string as it is, others as {kind: elements}. Raises NotPlain."""
    return value if isinstance(value, Scalar) else _encoded(value, [MOST], DEEPEST)


def _encoded(value: Any, left: list[int], depth: int) -> Any:
    kind = type(value)
    left[0] -= value.size if kind is np.ndarray else 1
    if left[0] < 0 or depth < 0:
        raise NotPlain
    if kind in Scalar:
        return value
    if kind is np.ndarray or isinstance(value, np.generic):
        if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:  # no number of JSON
            raise NotPlain
        name = "array" if kind is np.ndarray else "number"
        return {name: value.tolist(), "dtype": value.dtype.str, "shape": list(value.shape)}
    if kind is dict:
        parts = [[_encoded(part, left, depth - 1) for part in pair] for pair in value.items()]
        return {"dict": parts}
    if kind in (list, tuple, set, frozenset):
        parts = [_encoded(part, left, depth - 1) for part in value]
        # The same set is the same text in every process.
        return {kind.__name__: sorted(parts, key=repr) if "set" in kind.__name__ else parts}
    raise NotPlain


def decoded(found: Any) -> Any:
    """The value that ``encoded`` wrote. Raises NotPlain if it did not write that."""
    try:
        return _decoded(found)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotPlain(str(error)) from None


def _decoded(found: Any) -> Any:
    if not isinstance(found, dict):
        return found
    if "dict" in found:
        return {_decoded(key): _decoded(value) for key, value in found["dict"]}
    if "dtype" in found:
        dtype = np.dtype(found["dtype"])
        if dtype.kind not in "biuf":
            raise ValueError(dtype)
        if "number" in found:
            return dtype.type(found["number"])
        return np.array(found["array"], dtype).reshape(found["shape"])
    ((name, parts),) = found.items()
    return _SERIES[name](map(_decoded, parts))


def is_plain(value: Any) -> bool:
    """Whether ``encoded`` can write a value."""
    try:
        encoded(value)
    except NotPlain:
        return False
    return True
