"""Plans of the tape's loops, made when they are appended: checks, numbering, order, strips.

Pure: it allocates and runs nothing. `engine.Tape` copies a `TapePlan` into C as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn._kernels import tiles
from horn._kernels.operands import (
    ARRAYS,
    MONOIDS,
    OPS,
    Array,
    Axis,
    Dim,
    Drawn,
    Extent,
    Input,
    Iota,
    Number,
    Op,
    Output,
    Ragged,
    View,
    known,
    maximum_of,
    strides,
    usable,
)

#: The results of reductions of nothing.
IDENTITIES = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf, "any": 0.0, "all": 1.0}
# The fewest places along which a tile computes: with fewer, strips along another axis are as fast.
# The first place of a maximum is looked for result by result.
MIN_ALONG, MIN_SEARCHED = 16, 32
_NAMES = {code: name for name, (code, _) in OPS.items()}
Axes = Mapping[Any, int | Dim | Ragged]
Order = tuple[Axis | None, ...]


@dataclass(slots=True)
class TapePlan:
    """The plan of a loop, with the fields of tape.h.

    Values are numbered: views and iotas, then constants, then one per operation. `keep` has the
    arrays whose memory the loop points to.
    """

    order: Order  # the three axes, outermost first; None is an axis of one place
    extents: list[Extent]
    indptr: Array | None
    ragged: Sequence[Axis]
    views: list[View | Iota | Drawn]  # inputs, then outputs
    consts: list[Number]
    program: list[tuple[int, list[int]]]
    results: list[int]  # output -> value
    reduce: int
    axis: int
    fast: int
    term: int  # of a tile, and the roles of its values (tiles.py)
    roles: tuple[int, ...]
    gate: int  # loop_t.gate
    direct: list[bool]  # output -> its last operation may write it in place; none if it reduces
    slots: list[int]  # value -> strip
    n_slots: int
    keep: list[Array]


def plan(
    axes: Axes,
    inputs: Sequence[Input],
    ops: Sequence[Op],
    outputs: Sequence[Output],
    reduce: tuple[str, Axis] | None,
    accumulate: bool,
    order: Order | None,
) -> TapePlan:
    """The plan of `Tape.loop` with these arguments; a ValueError says which does not fit."""
    if not 1 <= len(axes) <= 3:
        raise ValueError(f"a loop has one to three axes, not {len(axes)}")
    if not outputs:
        raise ValueError("a loop without outputs does nothing")
    _check_reduction(axes, outputs, reduce, accumulate)
    monoid, folded = (None, None) if reduce is None else reduce
    ragged = [name for name, extent in axes.items() if isinstance(extent, Ragged)]
    if len(ragged) > 1:
        raise ValueError(f"only one axis can be ragged, got {ragged}")

    arrays = [v for v in inputs if isinstance(v, ARRAYS)]
    consts = [v for v in inputs if not isinstance(v, ARRAYS)]
    program, results = _number(inputs, ops, outputs, reduce is not None)
    views = arrays + [view for view, _ in outputs]
    keep: list[Array] = []
    for i, view in enumerate(views):
        keep += _check_view(view, axes, i >= len(arrays), folded)

    fast = _fast(arrays, consts, program, outputs, monoid)
    kind = tiles.Tile(fast)
    if monoid is not None and not fast:
        named = [(_NAMES[code], values) for code, values in program]
        iotas = [isinstance(view, Iota) for view in arrays]
        found = tiles.tile(iotas, consts, named, results[0], monoid, not accumulate)
        kind = found or kind
    order = order or _order(axes, views, folded, ragged, kind, monoid)
    extents: list[Extent] = []
    indptr = None
    for name in order:
        extent = 1 if name is None else axes[name]
        if isinstance(extent, Ragged):
            indptr = _check_indptr(extent, axes)
            keep.append(indptr)
            extent = 1
        extents.append(extent)
    slots, n_slots = _strips(len(arrays), len(consts), program, results)
    return TapePlan(
        order=order,
        extents=extents,
        indptr=indptr,
        ragged=ragged,
        views=views,
        consts=consts,
        program=program,
        results=results,
        reduce=0 if monoid is None else MONOIDS[monoid],
        axis=0 if reduce is None else order.index(folded),
        fast=kind.fast,
        term=kind.term,
        roles=kind.roles,
        gate=0 if reduce is None else _gate(arrays, consts, program, results[0], monoid, folded),
        direct=_direct(arrays, len(inputs), program, results, outputs) if reduce is None else [],
        slots=slots,
        n_slots=n_slots,
        keep=keep,
    )


def _check_reduction(
    axes: Axes, outputs: Sequence[Output], reduce: tuple[str, Axis] | None, accumulate: bool
) -> None:
    if reduce is None:
        if accumulate:
            raise ValueError("accumulate is for reductions; add the old value in ops")
        return
    monoid, folded = reduce
    if monoid not in MONOIDS:
        raise ValueError(f"no reduction is called {monoid!r}; there are {', '.join(MONOIDS)}")
    if folded not in axes:
        raise ValueError(f"the reduced axis {folded!r} is not one of {list(axes)}")
    allowed = 2 if monoid == "argmax" else 1
    if len(outputs) > allowed:
        raise ValueError(f"{monoid} has at most {allowed} outputs, got {len(outputs)}")
    if monoid == "argmax" and accumulate and len(outputs) == 1:
        raise ValueError("an argmax that accumulates needs the maximum as second output")


def _number(
    inputs: Sequence[Input], ops: Sequence[Op], outputs: Sequence[Output], reduces: bool
) -> tuple[list[tuple[int, list[int]]], list[int]]:
    """The operations over numbered values, and the value of each output.

    Every output of an elementwise loop is the result of an operation of its own, if need be a copy.
    """
    first = [i for i, v in enumerate(inputs) if isinstance(v, ARRAYS)]
    first += [i for i, v in enumerate(inputs) if not isinstance(v, ARRAYS)]
    number = {given: place for place, given in enumerate(first)}
    program = []
    for i, (name, *values) in enumerate(ops):
        if name not in OPS:
            raise ValueError(f"operation {i} is {name!r}; known: {', '.join(OPS)}")
        code, arity = OPS[name]
        if len(values) != arity:
            raise ValueError(f"operation {i} {name!r} takes {arity} values, got {len(values)}")
        for v in values:
            if v not in number:
                raise ValueError(
                    f"operation {i} {name!r} reads value {v!r}; it may read 0 to "
                    f"{len(inputs) + i - 1}"
                )
        program.append((code, [number[v] for v in values]))
        number[len(inputs) + i] = len(inputs) + i
    results: list[int] = []
    n_values = len(inputs) + len(ops)
    for _, value in outputs:
        if value not in number:
            raise ValueError(f"an output takes value {value!r}; there are 0 to {n_values - 1}")
        value = number[value]
        if not reduces and (value < len(inputs) or value in results):
            program.append((OPS["copy"][0], [value]))
            value = len(inputs) + len(program) - 1
        results.append(value)
    return program, results


def _fast(
    arrays: Sequence[View | Iota | Drawn],
    consts: Sequence[Number],
    program: Sequence[tuple[int, list[int]]],
    outputs: Sequence[Output],
    monoid: str | None,
) -> int:
    """The fast path of a loop that is the sum of a product of two views, or a copy in rows."""
    viewed = all(isinstance(view, View) for view in arrays)
    if monoid is None:
        if not (viewed and len(arrays) == len(outputs) == 1 and program == [(OPS["copy"][0], [0])]):
            return tiles.NONE
        source = arrays[0]
        assert isinstance(source, View)
        # a copy may not be done in rows where it would read what it has written
        shared = np.may_share_memory(source.array, outputs[0][0].array)
        return tiles.NONE if shared else tiles.COPY
    product = program == [(OPS["mul"][0], [0, 1])]
    is_dot = monoid == "sum" and viewed and len(arrays) == 2 and not consts and product
    return tiles.DOT if is_dot else tiles.NONE


def _gate(
    arrays: Sequence[View | Iota | Drawn],
    consts: Sequence[Number],
    program: Sequence[tuple[int, list[int]]],
    result: int,
    monoid: str | None,
    folded: Axis,
) -> int:
    """The gate: k + 1 where a nonzero element of array k, which does not vary along the reduced
    axis, means that there is nothing to reduce: select(array != 0, identity, value). Negative: a
    zero does.
    """
    first = len(arrays) + len(consts)
    if result < first or monoid not in IDENTITIES:
        return 0

    def named(value: int) -> tuple[str, list[int]]:
        code, values = program[value - first] if value >= first else (-1, [])
        return _NAMES.get(code, ""), values

    def number(value: int) -> Number | None:
        return consts[value - len(arrays)] if len(arrays) <= value < first else None

    name, values = named(result)
    if name != "select":
        return 0
    condition, *sides = values
    is_not_0, tested = named(condition)
    if is_not_0 == "ne":
        condition = next((v for v in tested if v < len(arrays)), first)
        if not any(number(v) == 0.0 for v in tested):
            return 0
    view = arrays[condition] if condition < len(arrays) else None
    if not isinstance(view, View) or folded in view.axes:
        return 0
    nothing = [number(side) == IDENTITIES[monoid] for side in sides]
    return (condition + 1) * (nothing[0] - nothing[1])


def _direct(
    arrays: Sequence[View | Iota | Drawn],
    n_inputs: int,
    program: Sequence[tuple[int, list[int]]],
    results: Sequence[int],
    outputs: Sequence[Output],
) -> list[bool]:
    """Whether each output may be written in place: nothing reads or writes its memory later."""
    last = _last_uses(n_inputs, program)
    free = []
    for i, (out, _) in enumerate(outputs):
        made = results[i] - n_inputs
        others = [
            view.array for j, view in enumerate(arrays) if isinstance(view, View) and last[j] > made
        ]
        others += [view.array for j, (view, _) in enumerate(outputs) if j != i]
        free.append(not any(np.may_share_memory(out.array, other) for other in others))
    return free


def _last_uses(n_inputs: int, program: Sequence[tuple[int, list[int]]]) -> list[int]:
    """The last operation that reads each value, or -1."""
    last = [-1] * (n_inputs + len(program))
    for i, (_, values) in enumerate(program):
        for v in values:
            last[v] = i
    return last


def _strips(
    n_arrays: int,
    n_consts: int,
    program: Sequence[tuple[int, list[int]]],
    results: Sequence[int],
) -> tuple[list[int], int]:
    """The strip of each value, and their number: constants keep theirs, others are reused."""
    first = n_arrays + n_consts
    last = _last_uses(first, program)
    for v in results:
        last[v] = len(program)
    slots = [n_consts + v if v < n_arrays else v - n_arrays for v in range(first)]
    spare: list[int] = []
    n_slots = first
    for i, (_, values) in enumerate(program):
        spare += [slots[v] for v in set(values) if last[v] == i and not n_arrays <= v < first]
        if spare:
            slots.append(spare.pop())
        else:
            slots.append(n_slots)
            n_slots += 1
        if last[first + i] < 0:
            spare.append(slots[first + i])
    return slots, n_slots


def _check_indptr(extent: Ragged, axes: Axes) -> Array:
    rows = axes[extent.over]
    assert not isinstance(rows, Ragged)  # `_order` has refused it
    indptr = usable(extent.indptr, "indptr")
    shape = (maximum_of(rows) + 1,)
    if indptr.dtype != np.int64 or not indptr.flags.c_contiguous or indptr.shape != shape:
        raise ValueError(
            f"indptr must be contiguous int64 of {shape[0]}, got {indptr.shape} of {indptr.dtype}"
        )
    return indptr


def _check_view(view: Any, axes: Axes, is_output: bool, folded: Axis) -> list[Array]:
    """The arrays of a view, checked against the loop's axes."""
    if isinstance(view, Iota):
        if view.axis not in axes:
            raise ValueError(f"the iota's axis {view.axis!r} is not one of {list(axes)}")
        return []
    if isinstance(view, Drawn):
        unknown = [name for name in view.axes if name not in axes]
        if unknown:
            raise ValueError(f"draws lie on the axes {unknown}, which the loop does not have")
        if view.keys.ndim != 2 or view.keys.shape[1] != 2 or view.keys.dtype != np.uint32:
            raise ValueError(
                f"keys are uint32 (places, 2), got {view.keys.shape} of {view.keys.dtype}"
            )
        numbers = (("sources", view.sources, np.int64), ("samples", view.samples, np.uint64))
        for what, given, dtype in numbers:
            if given is not None and (
                given.dtype != dtype or given.ndim != 1 or not given.flags.c_contiguous
            ):
                raise ValueError(
                    f"{what} are a contiguous vector of {np.dtype(dtype)}, got {given.shape} of "
                    f"{given.dtype}"
                )
        n_keys, n_sources = len(view.keys), len(view.sources)
        n_samples = 0 if view.samples is None else len(view.samples)
        lengths = {"b": n_samples, "o": n_keys, "i": n_sources, "e": min(n_keys, n_sources)}
        keep: list[Array] = [view.keys, view.sources]
        for name in view.axes:
            keep += _check_length(view, name, lengths[str(name)], axes)
        return keep
    if not isinstance(view, View):
        raise ValueError(f"an output is a View, got {type(view).__name__}")
    array = usable(view.array, f"the view over {view.axes}", writes=is_output)
    keep = [array]
    known(array.dtype, f"the view over {view.axes}")
    if array.ndim != len(view.axes) or len(set(view.axes)) != len(view.axes):
        raise ValueError(f"an array of {array.ndim} dimensions cannot lie on the axes {view.axes}")
    for name, length in zip(view.axes, array.shape, strict=True):
        if name not in axes:
            raise ValueError(f"the axis {name!r} of a view is not one of {list(axes)}")
        keep += _check_length(view, name, length, axes)
    unknown = [name for name in view.index if name not in view.axes]
    if unknown:
        raise ValueError(f"index lists for {unknown}, which the view {view.axes} does not have")
    if is_output:
        _check_output(view, axes, folded)
    return keep


def _check_length(view: View | Drawn, name: Axis, length: int, axes: Axes) -> list[Array]:
    """The index list of a view's axis, if it has one, which then has a place for each of the loop;
    otherwise the view itself, of so many, does.
    """
    keep: list[Array] = []
    if name in view.index:
        places = usable(view.index[name], f"the index list of {name!r}")
        if places.dtype != np.int32 or places.ndim != 1 or not places.flags.c_contiguous:
            raise ValueError(
                f"the index list of {name!r} must be a contiguous int32 vector, got "
                f"{places.shape} of {places.dtype}"
            )
        keep.append(places)
        length = len(places)
    extent = axes[name]
    need = int(extent.indptr[-1]) if isinstance(extent, Ragged) else maximum_of(extent)
    if length < need:
        raise ValueError(
            f"axis {name!r} may have {need} places, but the view over {view.axes} has {length}"
        )
    return keep


def _check_output(view: View, axes: Axes, folded: Axis) -> None:
    implied = [
        extent.over
        for name, extent in axes.items()
        if isinstance(extent, Ragged) and name in view.axes
    ]
    needed = [name for name in axes if name != folded]
    missing = [name for name in needed if name not in view.axes and name not in implied]
    if missing or folded in view.axes:
        raise ValueError(f"an output must lie on exactly the axes {needed}, not {view.axes}")


def _order(
    axes: Axes,
    views: Sequence[View | Iota | Drawn],
    folded: Axis,
    ragged: Sequence[Axis],
    kind: tiles.Tile,
    monoid: str | None,
) -> Order:
    """The three axes, outermost first, from the arrays' layouts."""
    lies = [
        {
            name: (step, name in view.index)
            for name, step in zip(view.axes, strides(view.array), strict=True)
        }
        for view in views
        if isinstance(view, View)
    ]
    lies += [
        {name: (step, name in view.index) for name, step in view.strides.items()}
        for view in views
        if isinstance(view, Drawn)
    ]
    over: Axis | None = None
    if ragged:
        extent = axes[ragged[0]]
        assert isinstance(extent, Ragged)
        over = extent.over
        if over not in axes or over == ragged[0] or isinstance(axes[over], Ragged):
            raise ValueError(
                f"the ragged axis {ragged[0]!r} is over {over!r}, which is not another axis of "
                f"this loop"
            )
        if folded == over:
            raise ValueError("the rows of a ragged axis cannot be reduced in the same loop")
        return ordered(dict.fromkeys(axes, 1), lies, folded, (over, ragged[0]))
    lengths = {name: max(1, maximum_of(extent)) for name, extent in axes.items()}  # type: ignore[arg-type]
    pair = tiles.pair(kind) if all(isinstance(view, View) for view in views) else None
    return ordered(lengths, lies, folded, near=pair and along(kind, monoid, lies, lengths, folded))


def along(
    kind: tiles.Tile,
    monoid: str | None,
    lies: Sequence[Mapping[Any, tuple[int, bool]]],
    lengths: Mapping[Any, int],
    folded: Axis,
) -> Axis | None:
    """The axis along which a tile's arrays are contiguous, if it is long enough for it; where few
    inputs meet many neurons most of the memory may be contiguous along another.
    """
    x, w = (lies[k] for k in tiles.pair(kind) or ())
    found = [name for name in lengths if x.get(name) == w.get(name) == (1, False)]
    least = MIN_SEARCHED if monoid == "argmax" else MIN_ALONG
    if len(lengths) < 3 or len(found) != 1 or lengths[found[0]] < least:
        return None
    is_by_rows = kind.fast in (tiles.ROWS, tiles.WAVES)
    return None if is_by_rows and found[0] != folded else found[0]


def ordered(
    lengths: Mapping[Any, int],
    lies: Sequence[Mapping[Any, tuple[int, bool]]],
    folded: Axis | None = None,
    ragged: tuple[Axis, Axis] | None = None,
    near: Axis | None = None,
) -> Order:
    """The three axes, outermost first: the strip runs where most of the memory is contiguous, or
    along ``near``.

    A ragged axis is the middle one and its rows the first; a reduced one is never the first.

    lies : of each array and axis its stride in elements, and whether places are looked up. ragged :
    the axis of the rows, and the ragged one.
    """
    if ragged is not None:
        rest = [name for name in lengths if name not in ragged]
        return (*ragged, rest[0] if rest else None)

    def score(name: Axis) -> float:
        """The numbers that are contiguous along an axis, less those that are not."""
        total = 0.0
        for lie in lies:
            if name in lie:
                size = math.prod(lengths[axis] for axis in lie)
                total += size if lie[name] == (1, False) else -size
        return total

    names = list(lengths)
    inner = near
    if inner is None:
        inner = max(names, key=lambda name: (lengths[name] > 1, score(name), names.index(name)))
    rest = [name for name in names if name != inner]
    if folded is not None and folded != inner:
        rest = [name for name in rest if name != folded] + [folded]
    return (*[None] * (2 - len(rest)), *rest, inner)
