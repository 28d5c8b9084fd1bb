"""Timings of loops, one tape each: what an operation costs per element, and what a row, a strip,
a reduction, a tile and a result cost besides.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from horn._kernels import blas, engine
from horn._kernels.operands import MONOIDS, OPS, Iota, View
from horn._kernels.tiles import FUNCTIONS

POSITIVE = frozenset({"sqrt", "log", "log1p", "pow", "div"})


class StripTimings:
    """Timings of loops over a few rows that stay in the nearest cache, one strip per row. A figure
    is the difference of the times of two loops, divided by the difference of their counts.

    Call ``figures`` several times: of each loop the fastest run of all calls counts.
    """

    ROWS = 16
    MORE = 4  # additional operations, or arrays, in the longer of two loops

    def __init__(self, dtype: str, call_s: float) -> None:
        self.dtype, self.call_s = np.dtype(dtype), call_s
        self.long = engine.STRIP_BYTES // self.dtype.itemsize
        self.short = 64  # the engine puts several shorter rows into one strip
        self.lanes = (16, 32, 64)[engine.LEVEL] // self.dtype.itemsize
        self.few = max(self.lanes // 4, 1)  # left over after the last whole vector, as 100 have
        # Like inputs times weights, in no order: some functions of the C library are slower for
        # larger numbers, and slower still for signs or sizes that cannot be predicted.
        rng = np.random.default_rng(0)
        shape = (self.ROWS, self.long + 16)  # rows that do not join are strips of their own
        self.given = [rng.uniform(-0.16, 0.16, shape).astype(dtype) for _ in range(2 + self.MORE)]
        self.positive = [np.abs(each) + self.dtype.type(0.01) for each in self.given[:2]]
        self.out = np.zeros(shape, dtype)
        self.times: dict[int, float] = {}
        self.at = 0

    def figures(self) -> dict[str, Any]:
        """The measured figures, by the names of fields of ``Machine``."""
        self.at = 0
        names = [name for name in OPS if name != "copy"]
        short, left, long = (
            {name: self.operation_s(name, n) for name in names}
            for n in (self.short, self.short + self.few, self.long)
        )
        operation_s = {k: self.slope(short[k], long[k]) for k in names}
        left_s = {k: max((left[k] - short[k]) / self.few, operation_s[k]) for k in names}
        for each in (operation_s, left_s):
            each["copy"] = each["neg"]
        view_s = self.view_s()
        fetches = {kind: self.fetch_s(kind, self.short, self.long) for kind in ("list", "step")}
        fetches["fill"] = self.fetch_s("fill", self.short, self.long)
        fetches["copy"] = self.fetch_s("copy", 16, 48)  # several rows to a strip
        crosses = {name: self.cross_s(name) for name in MONOIDS}
        row_s = _median(row for _, row, _ in crosses.values())
        result_s = _median(once for *_, once in crosses.values())
        apply_s = _median(short[k] - self.short * operation_s[k] for k in names)
        besides_s = row_s + view_s + 2 * apply_s + result_s
        tile_s, tile_result_s = self.tiles_s()
        folds = {name: self.fold_s(name, operation_s["add"], besides_s) for name in MONOIDS}
        return {
            "lanes": self.lanes,
            "operation_s": operation_s,
            "left_s": left_s,
            "apply_s": apply_s,
            "strip_s": max(row_s - view_s, 0.0),
            "view_s": view_s,
            "fetch_s": {kind: each for kind, (each, _) in fetches.items()},
            "fetch_row_s": max(_median(row for _, row in fetches.values()) - view_s, 0.0),
            "fold_s": {name: each for name, (each, _) in folds.items()},
            "fold_row_s": {name: row for name, (_, row) in folds.items()},
            "cross_s": {name: each for name, (each, *_) in crosses.items()},
            "result_s": result_s,
            "tile_s": tile_s,
            "tile_result_s": tile_result_s,
        }

    def slope(self, short_s: float, long_s: float) -> float:
        return max((long_s - short_s) / (self.long - self.short), 0.0)

    def operation_s(self, name: str, n: int) -> float:
        """Seconds of an operation on a strip of n elements."""
        given = self.positive if name in POSITIVE else self.given[:2]
        views = [View(each[:, :n], "rc") for each in given]
        op = (name, *(0, 1, 0)[: OPS[name][1]])
        one, several = (
            self.run_s(views, [op] * k, View(self.out[:, :n], "rc")) for k in (1, 1 + self.MORE)
        )
        return (several - one) / self.MORE / self.ROWS

    def view_s(self, n: int = 256) -> float:
        """Seconds per strip of an array that is read in place, in a loop over three axes."""
        k, rows = self.MORE, self.ROWS
        axes = {"x": rows, "y": rows, "c": n}
        views = [View(each[:, :n], "yc" if at % 2 else "xc") for at, each in enumerate(self.given)]
        out = View(np.zeros((rows, rows), self.dtype), "xy")
        one = [("gt", 0, 1), *(("add", 2 + at, at % 2) for at in range(k))]
        each = [("gt", 0, 1), *(("add", 2 + k + at, 2 + at) for at in range(k))]
        few, many = (
            self.run_s(given, ops, out, ("sum", "c"), axes)
            for given, ops in ((views[:2], one), (views, each))
        )
        return max(many - few, 0.0) / k / rows**2

    def fetch_s(self, kind: str, short: int, long: int) -> tuple[float, float]:
        """Seconds per element, and per row, of a copy from an array of this layout."""
        times = []
        for n in (short, long):
            places = np.random.default_rng(0).integers(0, n, n).astype(np.int32)
            x, *more = (each[:, :n] for each in self.given[1:])
            views = [View(x, "rc")]
            for each in more:
                if kind == "fill":
                    views.append(View(each[:, 0].copy(), "r"))
                elif kind == "list":
                    views.append(View(each, "rc", {"c": places}))
                elif kind == "step":
                    views.append(View(np.ascontiguousarray(each.T), "cr"))
                else:
                    views.append(View(each, "rc"))
            k = self.MORE
            own = [("add", 0, 0), *(("add", i + 1, 0) for i in range(k - 1))]
            with_all = [("add", 0, 1), *(("add", k + 1 + i, i + 2) for i in range(k - 1))]
            out = View(self.out[:, :n], "rc")
            seconds = self.run_s(views, with_all, out) - self.run_s(views[:1], own, out)
            times.append(seconds / k / self.ROWS)
        each_s = max((times[1] - times[0]) / (long - short), 0.0)
        return each_s, max(times[0] - short * each_s, 0.0)

    def fold_s(self, monoid: str, add_s: float, besides_s: float) -> tuple[float, float]:
        """Seconds per element reduced along the strip, and per row besides. Rows are sums of two,
        near 1, and many, so that the processor cannot learn which element is the largest.
        """
        times, n_y = [], 16
        n_x = 256 if monoid in ("max", "min", "argmax") else 16
        rng = np.random.default_rng(1)
        x, y = (rng.uniform(0.2, 0.8, (n, self.long)).astype(self.dtype) for n in (n_x, n_y))
        out = View(np.zeros((n_x, n_y), self.dtype), "xy")
        for n in (self.short, self.long):
            views = [View(x[:, :n], "xc"), View(y[:, :n], "yc")]
            axes = {"x": n_x, "y": n_y, "c": n}
            ops = [("add", 0, 1), ("add", 2, 0)]  # one alone would be a tile
            seconds = self.run_s(views, ops, out, (monoid, "c"), axes)
            times.append(seconds / (n_x * n_y) - 2 * n * add_s)
        each = self.slope(*times)
        return each, max(times[0] - self.short * each - besides_s, 0.0)

    def cross_s(self, monoid: str) -> tuple[float, float, float]:
        """Seconds per element reduced across strips, per strip besides, and per result."""
        rows_s, once_s, few = [], [], self.ROWS // 2
        for n in (self.short, self.long):
            low, high = (
                self.run_s([View(self.given[0][:rows, :n], "rc")], [], View(self.out[0, :n], "c"),
                           (monoid, "r"))
                for rows in (few, self.ROWS)
            )  # fmt: skip
            rows_s.append((high - low) / (self.ROWS - few))
            once_s.append(max(low - self.call_s - few * rows_s[-1], 0.0) / n)
        each = self.slope(*rows_s)
        return each, max(rows_s[0] - self.short * each, 0.0), once_s[1]

    def tiles_s(self) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds per element of each kind of tile, and per result besides: what a longer reduction
        adds, and the rest. "places": per place, and nothing besides.
        """
        each, once = {}, {}
        whole = {"b": 48, "o": 48, "i": 512}
        for axis, short in (("b", 16), ("i", 128)):
            long = whole[axis]
            results = math.prod(whole.values()) / long
            lows = self.tile_times({**whole, axis: short}, axis)
            for kind, high in self.tile_times(whole, axis).items():
                each[kind] = max((high - lows[kind]) / (long - short) / results, 0.0)
                once[kind] = max(high / results - long * each[kind], 0.0)
                if kind == "places":
                    each[kind], once[kind] = high / (whole["b"] * whole["o"]), 0.0
        return each, once

    def tile_times(self, axes: Mapping[str, int], reduced: str) -> dict[str, float]:
        """Seconds of a loop of each kind of tile that reduces this axis."""
        b, o, i = axes["b"], axes["o"], axes["i"]
        rng = np.random.default_rng(2)
        x, w, u = (rng.random(shape).astype(self.dtype) for shape in ((b, i), (o, i), (b, o)))
        pair = [View(x, "bi"), View(w, "oi")]
        near = [View(x / 8, "bi"), pair[1], 1.0]  # 1 - x w: no factor near 0
        # Two arrays of one content: an array that comes twice is one.
        ups = [View(u, "bo"), View(u.copy(), "bo")]
        out = View(np.zeros_like(u), "bo") if reduced == "i" else View(np.zeros_like(w), "oi")
        found: dict[str, float] = {}

        def time_of(kind: str, given: list[Any], *ops: tuple[Any, ...], axis: str) -> None:
            if axis == reduced:
                monoid = kind if kind in MONOIDS else "prod" if kind == "near" else "sum"
                found[kind] = self.run_s(given, ops, out, (monoid, axis), axes)

        time_of("sum", pair, ("sub", 0, 1), ("abs", 2), axis="i")
        for monoid in ("max", "min", "argmax", "prod"):
            time_of(monoid, pair, ("add" if monoid == "prod" else "mul", 0, 1), axis="i")
        time_of("near", near, ("mul", 0, 1), ("sub", 2, 3), axis="i")
        time_of("columns", [ups[0], *pair], ("sub", 1, 2), ("sign", 3), ("mul", 0, 4), axis="b")
        square = ("sub", 1, 2), ("mul", 3, 3), ("mul", 0, 4)
        time_of("squares", [pair[1], *pair], *square, axis="i")
        time_of("square columns", [ups[0], *pair], *square, axis="b")
        time_of("quotients", [*ups, *near[:2], pair[0], 0.0, 1.0],
                ("mul", 2, 3), ("sub", 6, 7), ("eq", 8, 5), ("div", 1, 8), ("select", 9, 0, 10),
                ("mul", 4, 11), axis="b")  # fmt: skip
        given = [ups[0], *pair, ups[1], 1.0]
        for name in FUNCTIONS:
            wave = [("mul", 1, 2), ("sub", 5, 3), ("mul", 6, 6) if name == "square" else (name, 6)]
            time_of(name, given, *wave, axis="i")
            if name == "square":  # its slope is a product
                continue
            last = {
                "exp": [("mul", 7, 0), ("mul", 8, 1)],
                "tanh": [("mul", 7, 7), ("sub", 4, 8), ("mul", 9, 0), ("mul", 10, 1)],
                "sigmoid": [("sub", 4, 7), ("mul", 7, 8), ("mul", 9, 0), ("mul", 10, 1)],
            }[name]
            time_of(f"{name} slope", given, *wave, *last, axis="b")
        at = [View(np.floor(u * i), "bo"), Iota("i"), ups[0], pair[0], 0.0]
        time_of("places", at, ("eq", 0, 1), ("mul", 2, 3), ("select", 5, 6, 4), axis="b")
        return found

    def run_s(
        self,
        inputs: Sequence[Any],
        ops: Sequence[tuple[Any, ...]],
        out: View,
        reduce: tuple[str, str] | None = None,
        axes: Mapping[str, int] | None = None,
    ) -> float:
        """Seconds of a whole loop, the fastest so far. axes : by default the first array's."""
        tape = engine.Tape(self.dtype, 1, blas.load())
        axes = axes or dict(zip("rc", inputs[0].array.shape, strict=True))
        value = len(inputs) + len(ops) - 1
        tape.loop(axes, inputs, ops, [(out, value)], reduce=reduce)
        self.at += 1
        found = min(best_s(tape.run, 0.15e-3), self.times.get(self.at, float("inf")))
        self.times[self.at] = found
        return found


def _median(values: Iterable[float]) -> float:
    return max(float(np.median(list(values))), 0.0)


def best_s(call: Callable[[], Any], budget_s: float = 0.8e-3) -> float:
    """The shortest time of several calls after the first: three, if they take less than 10 budgets.

    Processor time of this thread, which does all the work: another process that takes the core
    during a call would otherwise end the measurement, and be its result (docs/notes/0179).
    """
    call()
    best, spent = float("inf"), 0.0
    reading_s = min(-time.thread_time() + time.thread_time() for _ in range(5))
    for n in range(200):
        begun = time.thread_time()
        call()
        seconds = max(time.thread_time() - begun - reading_s, 0.0)
        best, spent = min(best, seconds), spent + seconds
        if spent > budget_s * (1 if n >= 2 else 10):
            break
    return best
