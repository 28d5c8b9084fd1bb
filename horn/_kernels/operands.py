"""The operands of a tape's instructions: table entries, views, axes and operations."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array = np.ndarray[Any, np.dtype[Any]]
Axis = Hashable

#: element type -> code, in the order of tape.h
DTYPES = {
    np.dtype(np.float32): 0,
    np.dtype(np.float64): 1,
    np.dtype(np.uint8): 2,
    np.dtype(np.bool_): 2,
    np.dtype(np.int32): 3,
    np.dtype(np.int64): 4,
}
#: Operations by their number of arguments, each in the order of tape.h.
UNARY = (
    "copy neg abs sqrt exp log log1p expm1 tanh sigmoid softplus sin cos floor sign not relu "
    "erf erfc atan"
).split()
BINARY = "add sub mul div min max pow atan2 floordiv mod halfway lt le gt ge eq ne and or".split()
TERNARY = "select fma".split()
#: operation -> (code, number of arguments)
OPS = {
    name: (code, 1 + (name in BINARY) + 2 * (name in TERNARY))
    for code, name in enumerate([*UNARY, *BINARY, *TERNARY])
}
#: monoid -> code, in the order of tape.h
MONOIDS = {name: code for code, name in enumerate("sum prod max min any all argmax".split(), 1)}


class Dim:
    """A whole number in `tape.dims`, at most `maximum`."""

    __slots__ = ("index", "maximum")

    def __init__(self, index: int, maximum: int) -> None:
        self.index, self.maximum = index, maximum

    def __repr__(self) -> str:
        return f"Dim({self.index}, at most {self.maximum})"


class Scalar:
    """A double in `tape.scalars`."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        return f"Scalar({self.index})"


class Coef:
    """factor * scalar / per, read when the instruction runs; `scalar` and `per` may be left out."""

    __slots__ = ("factor", "scalar", "per")

    def __init__(
        self, factor: float = 1.0, scalar: Scalar | None = None, per: Dim | None = None
    ) -> None:
        self.factor, self.scalar, self.per = float(factor), scalar, per


class View:
    """An array over some axes of a loop: one axis name per dimension, in the array's order.

    index : {axis: int32 list}; the coordinate on that axis is looked up in the list.
    ascending : the lists ascend without repeats, so one that is a range costs nothing.
    """

    __slots__ = ("array", "axes", "index", "ascending")

    def __init__(
        self,
        array: Array,
        axes: Sequence[Axis],
        index: Mapping[Any, NDArray[np.int32]] | None = None,
        ascending: bool = False,
    ) -> None:
        self.array, self.axes, self.index = array, tuple(axes), dict(index or {})
        self.ascending = ascending


class Iota:
    """The coordinate on one axis plus `offset`; on a ragged axis, the place among the messages."""

    __slots__ = ("axis", "offset")

    def __init__(self, axis: Axis, offset: int = 0) -> None:
        self.axis, self.offset = axis, int(offset)


class Drawn:
    """Random numbers drawn where a loop reads them: one per message (horn.random.of_messages).

    axes : the loop's, of a dense link "o" and perhaps "b", "i"; of a sparse one "e" and perhaps
    "b". keys : (places along "o" or "e", 2) uint32, of the receivers. sources : (places along "i"
    or "e",) int64, ascending by 1 along "i". samples : (places along "b",) uint64, or None:
    SHARED. iteration : a Dim. index : as in View.
    """

    __slots__ = ("kind", "site", "axes", "keys", "sources", "samples", "iteration", "index")

    def __init__(
        self,
        kind: str,
        site: int,
        axes: Sequence[Axis],
        keys: NDArray[np.uint32],
        sources: NDArray[np.int64],
        samples: NDArray[np.uint64] | None,
        iteration: Dim,
        index: Mapping[Any, NDArray[np.int32]] | None = None,
    ) -> None:
        self.kind, self.site, self.axes = kind, site, tuple(axes)
        self.keys, self.sources = np.ascontiguousarray(keys), np.ascontiguousarray(sources)
        self.samples, self.iteration, self.index = samples, iteration, dict(index or {})

    @property
    def strides(self) -> dict[Axis, int]:
        """The steps in the numbers of messages, from one place along each axis to the next."""
        row = len(self.keys) if "e" in self.axes else len(self.keys) * len(self.sources)
        of = {"b": max(row, 1), "o": max(len(self.sources), 1), "i": 1, "e": 1}
        return {axis: of[str(axis)] for axis in self.axes}


class Ragged:
    """The extent of an axis of edges: row r of axis `over` has indptr[r] to indptr[r + 1]."""

    __slots__ = ("indptr", "over")

    def __init__(self, indptr: NDArray[np.int64], over: Axis) -> None:
        self.indptr, self.over = indptr, over


Extent = int | Dim
Number = float | Scalar | Coef
Input = View | Iota | Drawn | Number
ARRAYS = (View, Iota, Drawn)  # operands that a loop reads place by place
Output = tuple[View, int]
Op = tuple[Any, ...]


def maximum_of(extent: Extent) -> int:
    """The largest number of places that an axis may have."""
    return extent.maximum if isinstance(extent, Dim) else int(extent)


def usable(array: Any, name: str, writes: bool = False) -> Array:
    """The array, if C can access it by strides; a ValueError says why not."""
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name} must be a NumPy array, got {type(array).__name__}")
    if writes and not array.flags.writeable:
        raise ValueError(f"{name} is read-only, but the instruction writes to it")
    if any(s % array.itemsize for s in array.strides):
        raise ValueError(
            f"{name} has strides {array.strides}, not multiples of its item size {array.itemsize}"
        )
    if not array.dtype.isnative:
        raise ValueError(f"{name} is {array.dtype.str}: convert it to this machine's order")
    return array


def known(dtype: np.dtype[Any], name: str) -> int:
    """The code of an element type, or a ValueError."""
    if dtype not in DTYPES:
        raise ValueError(
            f"{name} has dtype {dtype}; known: {', '.join(str(each) for each in DTYPES)}"
        )
    return DTYPES[dtype]


def strides(array: Array) -> tuple[int, ...]:
    """The strides of an array in elements."""
    return tuple(s // array.itemsize for s in array.strides)


def is_row(array: Array) -> bool:
    """Whether rows are contiguous, one after the other or further apart."""
    rows, cols = array.shape
    s0, s1 = strides(array)
    if array.size == 0:
        return True
    return bool((s1 == 1 or cols <= 1) and (rows <= 1 or s0 >= max(1, cols)))
