"""The runs of each part of a loop with given extents, counted as tape.c and strips.h cut it.

A model of time needs the number of strips of a loop, its arrays that are copied into strips
first, and the number of times a reduction begins anew. This follows the C code step by step and
runs nothing; a change of how loops are cut there needs one here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from horn._kernels.engine import BEGIN_CYCLES, STRIP_BYTES


@dataclass(slots=True)
class Lie:
    """The layout of an array along the three axes of a loop, outermost first.

    strides : in elements; 0 where it does not vary. listed : its places are looked up in a list.
    """

    strides: list[int]
    listed: list[bool]

    def swap(self, a: int, b: int) -> None:
        self.strides[a], self.strides[b] = self.strides[b], self.strides[a]
        self.listed[a], self.listed[b] = self.listed[b], self.listed[a]


@dataclass(slots=True)
class Walk:
    """The counts of one run of a loop.

    strips : their number, each with all operations. elements : of all strips. left : of these, the
    elements after the last whole vector of a strip. fetched : elements that are copied into
    strips, by layout: "copy" (side by side), "fill" (one for all), "list" (looked up),
    "step" (apart). fetches : the number of copied rows. folded : elements that are reduced along
    strips, in ``folds`` rows. crossed : elements that are reduced across strips. results : of a
    reduction.
    """

    strips: float = 0.0
    elements: float = 0.0
    left: float = 0.0
    fetched: dict[str, float] = field(default_factory=dict)
    fetches: float = 0.0
    folded: float = 0.0
    folds: float = 0.0
    crossed: float = 0.0
    results: float = 0.0


def walk(
    extents: Sequence[int],
    lies: Sequence[Lie],
    n_in: int,
    axis: int,
    *,
    is_ragged: bool = False,
    n_ops: int,
    direct: Sequence[bool] = (),
    itemsize: int = 4,
    lanes: int = 16,
) -> Walk:
    """Count the runs of a loop over ``extents`` (for a ragged middle axis the mean). Changes
    ``lies``.

    lies : of the inputs, ``n_in`` of them, then of the outputs. axis : 1 or 2 is reduced; 0: none.
    n_ops : the operations on each element.
    direct : for each output, whether it may be written in place. lanes : numbers in a vector.
    """
    found = Walk()
    n = list(extents)
    if min(n) <= 0:
        return found
    strip = STRIP_BYTES // itemsize
    if not is_ragged:
        axis = _simplify(n, lies, axis)
    n0, n1, n2 = n
    if is_ragged and n2 == 1:
        _walk_receivers(found, n0, n0 * n1, lies, n_in, axis, direct, strip, lanes)
        return found
    rows = _rows_per_strip(n, lies, strip, axis, n_ops)
    results = n0 * (n1 if axis == 2 else n2) if axis else 0
    if is_ragged and axis == 1 and rows > 1:  # a strip has the edges of several rows
        together = min(max(rows // n1, 1), n0)
        n0, n1 = -(-n0 // together), n1 * together
    views = list(lies[:n_in])
    if not axis:
        views += [v for v, is_direct in zip(lies[n_in:], direct, strict=True) if is_direct]
        indirect = [v for v, is_direct in zip(lies[n_in:], direct, strict=True) if not is_direct]
    else:
        indirect = []
    for high, r in _cuts(n1, rows):
        for wide, c in _cuts(n2, strip):
            times = n0 * high * wide
            found.strips += times
            found.elements += times * r * c
            found.left += times * (r * c % lanes)
            for v in views:
                if not _in_place(v, r, c):
                    _fetch(found, v, times, r, c)
            for v in indirect:
                _fetch(found, v, times, r, c)
            if axis == 2 or (axis == 1 and n2 == 1):
                found.folds += times * (r if axis == 2 else 1)
                found.folded += times * r * c
            elif axis == 1:
                found.crossed += times * r * c
    found.results = results
    return found


def _walk_receivers(
    found: Walk, n0: int, edges: int, lies: Sequence[Lie], n_in: int, axis: int,
    direct: Sequence[bool], strip: int, lanes: int,
) -> None:  # fmt: skip
    """Count a loop over one sample and a ragged axis: a strip has the edges of several rows."""
    outputs = [] if axis else list(lies[n_in:])
    for high, r in _cuts(edges, strip):
        found.strips += high
        found.elements += high * r
        found.left += high * (r % lanes)
        for k, v in enumerate([*lies[:n_in], *outputs]):
            rows = v.strides[0] != 0 or v.listed[0]
            if k >= n_in and direct[k - n_in] and not rows and _in_place(v, r, 1):
                continue
            if rows:
                _fetch(found, v, high, max(n0 * r // edges, 1), 1)
                found.fetched["fill"] = found.fetched.get("fill", 0.0) + high * r
            elif not _in_place(v, r, 1):
                kind = "list" if v.listed[1] else {0: "fill", 1: "copy"}.get(v.strides[1], "step")
                found.fetched[kind] = found.fetched.get(kind, 0.0) + high * r
                found.fetches += high
    if axis:
        found.folds += n0 if axis == 1 else edges
        found.folded += edges
        found.results = n0 if axis == 1 else edges


def _cuts(n: int, size: int) -> Iterator[tuple[int, int]]:
    """The numbers and sizes of the pieces into which n is cut."""
    if n >= size:
        yield n // size, size
    if n % size:
        yield 1, n % size


def _in_place(v: Lie, r: int, c: int) -> bool:
    """Whether a strip of r rows of c is used in place."""
    return (
        not v.listed[2]
        and (v.strides[2] == 1 or c == 1)
        and (r == 1 or (v.strides[1] == c and not v.listed[1]))
    )


def _fetch(found: Walk, v: Lie, times: int, r: int, c: int) -> None:
    step = v.strides[2]
    kind = "list" if v.listed[2] else {0: "fill", 1: "copy"}.get(step, "step")
    found.fetched[kind] = found.fetched.get(kind, 0.0) + times * r * c
    found.fetches += times * r


def _rows_per_strip(
    n: Sequence[int], lies: Sequence[Lie], strip: int, axis: int, n_ops: int
) -> int:
    c, n_copied = n[2], 0
    if c > strip // 2:
        return 1
    rows = strip // c
    if c >= 64:
        for v in lies:
            is_one = v.strides[2] == 0 and axis != 1
            is_row = (v.strides[2] == 1 or is_one) and not v.listed[2]
            n_copied += is_row and (v.listed[1] or v.strides[1] != c)
    if axis == 1:
        return 1 if n_copied else rows
    copying = n_copied * (BEGIN_CYCLES // 2 + c * (STRIP_BYTES // strip) // 32)
    return 1 if n_ops * BEGIN_CYCLES * (rows - 1) // rows < copying else rows


def _simplify(n: list[int], lies: Sequence[Lie], axis: int) -> int:
    """Merge axes that all arrays step along as one; return the axis that is then reduced."""
    if axis == 0:
        _merge(n, lies, 1, 2)
        if n[1] == 1:
            _swap(n, lies, 0, 1)
            _merge(n, lies, 1, 2)
        else:
            _merge(n, lies, 0, 1)
    elif axis == 2:
        _merge(n, lies, 0, 1)
    elif n[2] == 1 and n[1] > 1:
        _swap(n, lies, 1, 2)
        _merge(n, lies, 0, 1)
        return 2
    elif n[0] > 1:
        _swap(n, lies, 0, 1)
        _merge(n, lies, 1, 2)
        _swap(n, lies, 0, 1)
    return axis


def _swap(n: list[int], lies: Sequence[Lie], a: int, b: int) -> None:
    n[a], n[b] = n[b], n[a]
    for v in lies:
        v.swap(a, b)


def _merge(n: list[int], lies: Sequence[Lie], outer: int, inner: int) -> None:
    if n[outer] == 1:
        return
    for v in lies:
        if v.listed[outer] or v.listed[inner]:
            return
        if n[inner] != 1 and v.strides[outer] != n[inner] * v.strides[inner]:
            return
    if n[inner] == 1:
        for v in lies:
            v.strides[inner] = v.strides[outer]
    n[inner], n[outer] = n[inner] * n[outer], 1
