"""Loops after a product that thin.h computes in the same pass, found by their form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from horn._kernels.operands import (
    ARRAYS,
    Array,
    Axis,
    Input,
    Iota,
    Number,
    Op,
    Output,
    View,
    is_row,
)


def added_to(
    c: Array, inputs: Sequence[Input], ops: Sequence[Op], outputs: Sequence[Output]
) -> Array | None:
    """The array w of a fused loop that is just w += c, or None."""
    if [op[0] for op in ops] != ["add"] or len(inputs) != 2 or len(outputs) != 1:
        return None
    if sorted(ops[0][1:]) != [0, 1] or outputs[0][1] != 2:
        return None
    places = []
    for view in (outputs[0][0], *inputs):
        if not isinstance(view, View) or view.index or view.axes != ("m", "n"):
            return None
        if view.array.dtype != np.float32 or not is_row(view.array):
            return None
        places.append(_memory(view.array))
    w, *read = places
    if set(read) != {_memory(c), w} or _memory(c) == w:
        return None
    return outputs[0][0].array


def spread_over(
    c: Array, inputs: Sequence[Input], ops: Sequence[Op], outputs: Sequence[Output]
) -> tuple[View, View | None, Number | None] | None:
    """(w, None, None) or (w, v, decay) of a fused loop that adds c to the live places of w, at
    once or through a velocity v; or None.
    """
    names = [op[0] for op in ops]
    decay: Input | None = None
    v: Input | None = None
    pairs: list[tuple[Input, View]]
    if (
        names == ["add"]
        and len(inputs) == 2
        and [value for _, value in outputs] == [2]
        and tuple(ops[0][1:]) == (0, 1)
    ):
        w, product = inputs
        pairs = [(w, outputs[0][0])]
    elif (
        names == ["fma", "add"]
        and len(inputs) == 4
        and [value for _, value in outputs] == [4, 5]
        and tuple(ops[0][1:]) == (1, 3, 2)
        and tuple(ops[1][1:]) == (0, 4)
    ):
        w, v, product, decay = inputs
        pairs = [(v, outputs[0][0]), (w, outputs[1][0])]
    else:
        return None
    if isinstance(decay, ARRAYS):
        return None
    if not all(_is_live(view) for pair in pairs for view in pair):
        return None
    assert isinstance(w, View) and (v is None or isinstance(v, View))  # they are in pairs
    for old, new in pairs:
        assert isinstance(old, View)
        if _memory(old.array) != _memory(new.array) or not _lists(old) == _lists(new) == _lists(w):
            return None
    if not isinstance(product, View) or product.index or product.axes != ("m", "n"):
        return None
    if _memory(product.array) != _memory(c):
        return None
    if v is not None and np.may_share_memory(v.array, w.array):
        return None
    return w, v, decay


def renamed(view: Any, names: Mapping[Axis, Axis]) -> Any:
    """An input of a loop, with its axes renamed."""
    if isinstance(view, View):
        lists = {names.get(axis, axis): places for axis, places in view.index.items()}
        axes = [names.get(axis, axis) for axis in view.axes]
        return View(view.array, axes, lists, view.ascending)
    if isinstance(view, Iota):
        return Iota(names.get(view.axis, view.axis), view.offset)
    return view


def _is_live(view: Input) -> bool:
    """Whether a tile of sums can be spread over the view."""
    return (
        isinstance(view, View)
        and view.axes == ("m", "n")
        and view.ascending
        and view.array.dtype == np.float32
        and is_row(view.array)
        and min(view.array.shape) >= 2
    )


def _memory(array: Array) -> tuple[int, tuple[int, ...]]:
    return array.ctypes.data, array.strides


def _lists(view: View) -> dict[Axis, int]:
    return {axis: places.ctypes.data for axis, places in view.index.items()}
