"""How often each part of a loop runs: what tape.c and strips.h do with given extents, counted.

A model of time needs to know how many strips a loop is cut into, which of its arrays are copied
into strips first, and how often a reduction begins anew. This follows the C code step by step and
runs nothing; whoever changes how loops are cut changes it here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

STRIP_BYTES = 2048  # as in tape.h


@dataclass(slots=True)
class Lie:
    """How an array lies on the three axes of a loop, outermost first.

    strides : in elements; 0 where it does not vary. listed : its places are looked up in a list.
    """

    strides: list[int]
    listed: list[bool]

    def swap(self, a: int, b: int) -> None:
        self.strides[a], self.strides[b] = self.strides[b], self.strides[a]
        self.listed[a], self.listed[b] = self.listed[b], self.listed[a]


@dataclass(slots=True)
class Walk:
    """What running a loop once amounts to.

    strips : how many, each with all operations. elements : of all strips. left : of these, what is
    left over after the last whole vector of a strip. fetched : elements that are copied into
    strips, by how they lie: "copy" (side by side), "fill" (one for all), "list" (looked up),
    "step" (apart). fetches : of how many rows. folded : elements that are reduced along strips, in
    ``folds`` rows. crossed : elements that are reduced across strips. results : of a reduction.
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
    direct: Sequence[bool] = (),
    itemsize: int = 4,
    lanes: int = 16,
) -> Walk:
    """Of a loop over ``extents`` (of a ragged middle axis the mean). Changes ``lies``.

    lies : of the inputs, ``n_in`` of them, then of the outputs. axis : 1 or 2 is reduced; 0: none.
    direct : of each output, whether it may be written in place. lanes : numbers in a vector.
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
    rows = _rows_per_strip(n, lies, strip, is_ragged)
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
    found.results = n0 * (n1 if axis == 2 else n2) if axis else 0
    return found


def _walk_receivers(
    found: Walk, n0: int, edges: int, lies: Sequence[Lie], n_in: int, axis: int,
    direct: Sequence[bool], strip: int, lanes: int,
) -> None:  # fmt: skip
    """Of one sample and a ragged axis: a strip has the edges of as many rows as fit."""
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
    """How many pieces of which size n falls into."""
    if n >= size:
        yield n // size, size
    if n % size:
        yield 1, n % size


def _in_place(v: Lie, r: int, c: int) -> bool:
    """Whether a strip of r rows of c is used where it lies."""
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


def _rows_per_strip(n: Sequence[int], lies: Sequence[Lie], strip: int, is_ragged: bool) -> int:
    c = n[2]
    if c > strip // 2:
        return 1
    if c >= 64:
        for v in lies:
            if v.strides[2] == 1 and not v.listed[2] and (v.listed[1] or v.strides[1] != c):
                return 1
    return max(strip // c, 1)


def _simplify(n: list[int], lies: Sequence[Lie], axis: int) -> int:
    """Axes that all arrays walk as one become one; returns the axis that is reduced now."""
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
