"""What files of samples have, names of array types in words, and the concatenation of parts of an
array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class SampleTable:
    """Samples of one file, or several: x (n, features) uint8 or float64 · y (n,) int64 or text,
    (n, 1) float64, or None · ids (n,) text or None. id_name : their header. names : the header of
    the columns of x. header : of all columns, () without one.
    """

    x: np.ndarray
    y: np.ndarray | None
    ids: np.ndarray | None
    id_name: str = "id"
    names: tuple[str, ...] = ()
    header: tuple[str, ...] = ()


def kind_name(dtype: np.dtype[Any]) -> str:
    """The name of a non-numeric type in a message."""
    known = {"O": "Python objects", "c": "complex numbers", "M": "dates", "m": "time differences"}
    known |= dict.fromkeys("UST", "text")
    return known.get(dtype.kind, f"records of type {dtype}")


def join(parts: list[np.ndarray]) -> np.ndarray:
    """All rows in one array; empties ``parts``, so that each is freed as soon as it is copied."""
    if len(parts) == 1:
        return parts[0]
    n_rows, dtype = sum(map(len, parts)), np.result_type(*{part.dtype for part in parts})
    joined: np.ndarray = np.empty((n_rows, *parts[0].shape[1:]), dtype)
    while parts:
        part = parts.pop()
        joined[n_rows - len(part) : n_rows] = part
        n_rows -= len(part)
    return joined
