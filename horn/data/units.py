"""What one unit of x is worth: bytes are intensities, all other numbers themselves."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from horn.errors import DataError
from horn.formats import tables

# Bytes are intensities 0..1 unless a scale is given; all other numbers keep their scale.
BYTE_SCALE = 1 / 255


class Unit(NamedTuple):
    """What one unit of x is worth, and why: ``Dataset.scale`` and ``Dataset.scale_is``."""

    scale: float
    why: str


ASSUMED, OF_TABLE, SAID = "assumed", "table", "said"
BYTES, NUMBERS = Unit(BYTE_SCALE, ASSUMED), Unit(1.0, SAID)


def unit_of(given: Any, array: np.ndarray, what: str) -> Unit:
    """The unit of x by what the user gave, whatever type it is stored in: bytes (uint8) of an array
    are worth 1/255, truth values and the numbers of a table are themselves. array : x as one.

    DataError : a list has arrays of bytes beside others.
    """
    kinds = _kinds(given)
    if len(kinds) > 1 and "bytes" in kinds:
        raise DataError(
            f"{what}: some arrays of the list x are bytes (uint8), which count 1/255 each, others "
            "are not, and count 1; give all of them one type, as one.astype(float)"
        )
    if array.dtype != np.uint8:
        return NUMBERS
    return Unit(1.0, OF_TABLE) if "table" in kinds else BYTES


def _kinds(x: Any) -> frozenset[str]:
    """Of what x is made: arrays of "bytes", a "table", other "numbers"; of a list, several."""
    if isinstance(x, (list, tuple)):
        is_plain = not x or isinstance(x[0], (int, float))
        return _kinds_of("") if is_plain else frozenset().union(*map(_kinds, x))
    if tables.is_table(x):
        return frozenset(("table",))
    dtype = getattr(x, "dtype", None)  # of NumPy, PyTorch and others; a picture has none
    return _kinds_of(np.asarray(x).dtype if dtype is None else dtype)


@lru_cache(64)  # to write a type as text takes microseconds, and a list may have a million arrays
def _kinds_of(dtype: Any) -> frozenset[str]:
    return frozenset(("bytes" if "uint8" in str(dtype) else "numbers",))


def unit_heard(unit: Unit, learned: float | None, knows_columns: bool) -> float:
    """What one of the bytes with this unit is worth to a model: what they say; if nobody said it,
    as much as the bytes that it learned from. learned : of these; None: it learned from none.
    knows_columns : the model knows the names of its columns.
    """
    if learned is None:
        return unit.scale
    # A model that learned from a table's bytes when these counted 1/255, as its file says.
    is_older = unit.why == OF_TABLE and knows_columns and learned == BYTE_SCALE
    return learned if unit.why == ASSUMED or is_older else unit.scale
