"""The figures of this machine: measured with the engine's own instructions, kept on disk.

Computing is measured on small programs of one statement each, and the Python of a superstep with a
whole ``GroupEngine`` on a transport that carries nothing. The latency of a transport needs two
processes: it is ``Transport.latency_s``, scaled by the speed of the Python of a superstep here.

Figures decide placements, and placements decide rounding. So that two runs of a job get the same,
measurements are rounded and kept on disk by processor, library and versions. A damaged or foreign
file is replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from horn import ir
from horn import transport as transports
from horn._kernels import blas, engine
from horn._kernels.operands import MONOIDS, OPS, Iota, View
from horn._kernels.tiles import FUNCTIONS
from horn._kernels.walks import STRIP_BYTES
from horn.backends import Setup
from horn.backends.kernels import Runner
from horn.connections.convolution import Convolution
from horn.connections.sparse import Sparse
from horn.connections.window import Window
from horn.data import Dataset
from horn.ir import Op, load
from horn.network import Network
from horn.neuron import Neuron
from horn.optimizers import SGD
from horn.partition.placement import Placement
from horn.planner.cost_model import PRODUCTS, Machine
from horn.program import (
    Buffer,
    Convolve,
    Draw,
    Frame,
    Input,
    Loop,
    Matmul,
    Output,
    Post,
    Program,
    Statement,
    Update,
    each_of,
)
from horn.runtime.engine import GroupEngine
from horn.runtime.group import Group, TaskTimes
from horn.transport import Channel, Identity, Transport
from horn.wire.frames import Array

FORMAT = 11  # of the file; a file of another format is replaced by new measurements
SIDES = (192, 640, 2048)  # sides of the measured square weights
BATCHES = (20, 100)
# The measured products: receivers, sources, rows.
SIZES = [*((side, side, n) for side in SIDES for n in BATCHES), (10, 512, BATCHES[-1]), (4, 4, 4)]
FRAME = Frame(1, 0)
DIGITS = 2  # significant digits of a kept figure
WINDOWS = (8, 8, 32)  # shape of the layer that windows look at
SPARSE = (512, 16)  # measured neurons, and synapses of each
POSITIVE = frozenset({"sqrt", "log", "log1p", "pow", "div", "reciprocal"})
PASSES = 2  # of all measurements: a disturbance of one seldom repeats in the other
SEGMENT_S = 1.5e-6  # the Python of a segment
# The Python of a superstep on the 2-core Xeon, busy, where the transports' own figures
# (``Transport.latency_s``) were measured: of shm's latency 7 us are Python.
_TYPICAL_SUPERSTEP_S = 12e-6

_known: dict[str, Machine] = {}


def calibrate(dtype: str = "float32") -> Machine:
    """The figures of one thread of this machine: from this process, from the cache folder, or
    measured now (one to three seconds).
    """
    key = _key(dtype)
    if key not in _known:
        path = folder() / f"machine-{key}.json"
        try:
            found = Machine.from_dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, KeyError):  # the file is missing or damaged
            found = rounded(measure(dtype))
            _write(path, found)
        _known[key] = found
    return _known[key]


def folder() -> Path:
    """The folder of the kept figures: XDG_CACHE_HOME/horn, or ~/.cache/horn."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "horn"


def _key(dtype: str) -> str:
    library = blas.load()
    built = os.stat(engine.__file__)
    facts = [
        FORMAT, built.st_size, built.st_mtime_ns, np.__version__, platform.python_version(),
        _processor(), len(os.sched_getaffinity(0)), library.name, library.path,
        library.is_asked, engine.LEVEL, dtype,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _write(path: Path, machine: Machine) -> None:
    """Write the figures to disk; where that fails, only this process keeps them."""
    import tempfile

    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(dataclasses.asdict(machine), file, indent=1)
        os.replace(file.name, path)


def rounded(machine: Machine) -> Machine:
    """The machine's figures with ``DIGITS`` significant digits, as they are on disk."""

    def cut(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.{DIGITS - 1}e}")
        if isinstance(value, dict):
            return {key: cut(part) for key, part in value.items()}
        return tuple(map(cut, value)) if isinstance(value, tuple) else value

    return Machine(**{f.name: cut(getattr(machine, f.name)) for f in dataclasses.fields(machine)})


# --- measuring


def measure(dtype: str = "float32") -> Machine:
    """Measure this machine: the fastest of ``PASSES`` passes per figure. It takes seconds."""
    call_s = _call_s(dtype)
    strips = StripTimings(dtype, call_s)
    passes, synapses, draws, windows = [], [], [], []
    for _ in range(PASSES):
        passes.append({size: _products_s(*size, dtype) for size in SIZES})
        synapses.append(_synapses_s(dtype))
        draws.append(_draws_s(dtype))
        windows.append(_windows_s(dtype))
        figures = strips.figures()
    fastest = {
        key: {k: min(p[key][k] for p in passes) for k in times} for key, times in passes[0].items()
    }
    least = {n: np.min([s[n] for s in synapses], axis=0) for n in (1, *BATCHES)}
    each_s, once_s = _per_synapse(least)
    alone_s = (least[1] / (SPARSE[0] * SPARSE[1])).tolist()
    uniform_s, normal_s, input_s = (float(s) for s in np.min(draws, axis=0))
    thin, tiny = fastest[10, 512, BATCHES[-1]], fastest[4, 4, 4]
    thin_s = {kind: max(thin[kind] - tiny[kind], 0.0) for kind in PRODUCTS}
    row_s, weight_s, edge_s = {}, {}, {}
    few, many = BATCHES
    for kind in PRODUCTS:
        rows, weights = [], []
        for side in SIDES:
            low, high = (fastest[side, side, n][kind] - tiny[kind] for n in BATCHES)
            row = max((high - low) / (many - few), 0.2 * high / many) / side**2
            rows.append(row)
            weights.append(max(high / side**2 - many * row, 0.0))
        row_s[kind], weight_s[kind] = tuple(rows), tuple(weights)
        # the excess of a thin product over its share of a square one grows with its longer sides
        beyond = thin_s[kind] - 10 * 512 * (weights[1] + many * rows[1])
        edge_s[kind] = max(beyond, 0.0) / (many * 522)
    python: dict[str, Any] = _python_s(dtype)
    scale = python["superstep_s"] / _TYPICAL_SUPERSTEP_S
    kinds = {name: transports.load(name) for name in transports.names()}
    return Machine(
        n_cores=len(os.sched_getaffinity(0)),
        together=_together(dtype),
        products=engine.Tape(np.dtype(dtype), 1, blas.load()).products,
        call_s=call_s,
        product_s={kind: tiny[kind] for kind in PRODUCTS},
        sides=SIDES,
        row_s=row_s,
        weight_s=weight_s,
        edge_s=edge_s,
        stream_s=tuple(fastest[side, side, many]["stream"] / side**2 / 3 for side in SIDES),
        **figures,
        window_s=_least(window for window, _ in windows),
        pool_s=_least(pool for _, pool in windows),
        synapse_s=each_s,
        synapse_once_s=once_s,
        synapse_alone_s=dict(zip("iob", alone_s, strict=True)),
        draw_s={"uniform": uniform_s, "normal": normal_s},
        input_s=input_s,
        **python,
        latency_s={name: scale * kind.latency_s for name, kind in kinds.items()},
        bandwidth_bytes_per_s={name: kind.bytes_per_s / scale for name, kind in kinds.items()},
    )


def _together(dtype: str, n_runs: int = 40) -> float:
    """The slowdown of a product when all cores compute: median time over the fastest alone."""
    n_cores = len(os.sched_getaffinity(0))
    tapes = []
    for _ in range(n_cores):
        tape = engine.Tape(np.dtype(dtype), 1, blas.load())
        arrays = (np.ones(shape, dtype) for shape in ((512, 512), (512, 100), (512, 100)))
        tape.gemm(*arrays)
        tape.run()
        tapes.append(tape)
    start = threading.Barrier(n_cores)

    def run(tape: engine.Tape) -> list[float]:
        times = []
        for _ in range(n_runs):
            begun = time.thread_time()  # processor time: waiting for a core does not count
            tape.run()
            times.append(time.thread_time() - begun)
        return times

    def run_with_others(tape: engine.Tape) -> list[float]:
        start.wait(10.0)
        return run(tape)

    fastest = min(run(tapes[0]))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(n_cores) as threads:
        times = list(threads.map(run_with_others, tapes))
    return max(float(np.median(np.concatenate(times))) / fastest, 1.0)


def _pair(n_in: int, n_out: int, **settings: Any) -> Network:
    network = Network()
    network.input(n_in)
    network.output(n_out, **settings)
    return network


def _products_s(n_out: int, n_in: int, batch: int, dtype: str) -> dict[str, float]:
    """Seconds of each kind of product of these sizes, and of a loop over two arrays like w."""
    buffers = _buffers(x=("b", "n0"), y=("b", "n1"), w=("n1", "n0"), v=("n1", "n0"))
    statements = {
        "forward": Matmul(FRAME, "y", "bo", "x", "bi", "w", "oi", "i"),
        "backward": Matmul(FRAME, "x", "bi", "y", "bo", "w", "oi", "o"),
        "gradient": Matmul(FRAME, "w", "oi", "y", "bo", "x", "bi", "b"),
        "update": Update(FRAME, "w", None, 0.0, "y", "x"),
        "momentum": Update(FRAME, "w", "v", 0.5, "y", "x"),
        "stream": Loop(FRAME, (Output("v", ir.make(Op.NEG, load("w", "oi"))),)),
    }
    seconds = _seconds(_pair(n_in, n_out), buffers, list(statements.values()), batch, dtype)
    return dict(zip(statements, seconds, strict=True))


def _call_s(dtype: str, n: int = 50) -> float:
    network = _pair(4, 4)
    copy = Loop(FRAME, (Output("v", load("w", "oi")),))
    buffers = _buffers(w=("n1", "n0"), v=("n1", "n0"))
    program = Program(network, buffers, (), (copy,) * n, ("v",), None)
    runner = Runner(program, {}, Setup(network, SGD(), None, 4, dtype, 1), 4)
    return _best_s(lambda: runner.compute(0)) / n


class StripTimings:
    """Timings of loops over a few rows that stay in the nearest cache, one strip per row. A figure
    is the difference of the times of two loops, divided by the difference of their counts.

    Call ``figures`` several times: of each loop the fastest run of all calls counts.
    """

    ROWS = 16
    MORE = 4  # additional operations, or arrays, in the longer of two loops

    def __init__(self, dtype: str, call_s: float) -> None:
        self.dtype, self.call_s = np.dtype(dtype), call_s
        self.long = STRIP_BYTES // self.dtype.itemsize
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
        found = min(_best_s(tape.run, 0.15e-3), self.times.get(self.at, float("inf")))
        self.times[self.at] = found
        return found


def _median(values: Iterable[float]) -> float:
    return max(float(np.median(list(values))), 0.0)


def _synapses_s(dtype: str) -> dict[int, list[float]]:
    """Seconds of sparse sums of products, reduced along i, o and b, by the size of the batch."""
    network = _pair(SPARSE[0], SPARSE[0], connect=Sparse(fan_in=SPARSE[1]))
    buffers = _buffers(x=("b", "n0"), y=("b", "n1"), w=("e1.0",))
    x, y, w = load("x", "bi"), load("y", "bo"), load("w", "oi")
    loops = [
        Loop(FRAME, (Output("y", x * w, "i", "sum"),)),
        Loop(FRAME, (Output("x", y * w, "o", "sum"),)),
        Loop(FRAME, (Output("w", x * y, "b", "sum"),)),
    ]
    return {n: _seconds(network, buffers, loops, n, dtype) for n in (1, *BATCHES)}


def _least(times: Iterable[dict[str, float]]) -> dict[str, float]:
    every = list(times)
    return {name: min(each[name] for each in every) for name in every[0]}


def _windows_s(dtype: str) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds, per synapse and sample, of sums over windows, and of folds."""
    batch = 64  # a multiple of whole vectors
    network = Network()
    network.input(WINDOWS)
    seen = network.layer(connect=Convolution(32, 5, padding="same"))
    pooled = network.layer(connect=Window(3, stride=2), neuron=_Largest)
    buffers = _buffers(x=("b", "n0"), y=("b", "n1"), w=("w1.0",), z=("b", "n2"), at=("b", "n2"))
    buffers |= {
        "places": Buffer("places", ("e2.0",), "constant", True, ("edge", 2, 0)),
        "ones": Buffer("ones", ("n2",), "constant", True, ("ones", 2)),
    }
    weight = seen.links[0].weights["weight"]
    each = each_of(network, weight, FRAME)
    buffers |= {weight: Buffer(weight, ("w1.0",)), each: Buffer(each, ("e1.0",))}
    apart = load("x", "bi") - load(each, "oi")
    pool = Frame(2, 0)
    heard = load("y", "bi") * load("ones", "o")
    here = ir.make(Op.EQ, load("at", "bo"), load("places", "oi"))
    slope = ir.make(Op.SELECT, here, load("z", "bo"), ir.const(0.0))
    statements: list[Statement] = [
        Convolve(FRAME, "y", "x", "w", "i"),
        Convolve(FRAME, "x", "y", "w", "o"),
        Convolve(FRAME, "w", "y", "x", "b"),
        Loop(FRAME, (Output("y", apart * apart, "i", "sum"),)),
        Loop(pool, (Output("z", heard, "i", "max"),)),
        Loop(pool, (Output("y", slope, "o", "sum"),)),
    ]
    seconds = _seconds(network, buffers, statements, batch, dtype)
    edges = [layer.links[0].edges for layer in (seen, pooled)]
    n, n_pool = (len(each.indices) * batch for each in edges if each is not None)
    kinds = {name: s / n for name, s in zip((*PRODUCTS[:3], "squares"), seconds[:4], strict=True)}
    best, slope_s = seconds[4] / n_pool, seconds[5] / n_pool
    return kinds, {"sum": best, "both": 2 * best, "slope": slope_s}


class _Largest(Neuron):
    def forward(self, messages: Any) -> None:
        self.feedforward(max(m.input for m in messages))


def _per_synapse(times: Mapping[int, Sequence[float]]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds per synapse and sample, and per synapse once, by the letter that is reduced."""
    (few, many), synapses = BATCHES, SPARSE[0] * SPARSE[1]
    each, once = {}, {}
    for letter, a, b in zip("iob", times[few], times[many], strict=True):
        each[letter] = max((b - a) / (many - few), 0.2 * b / many) / synapses
        once[letter] = max(b / synapses - many * each[letter], 0.0)
    return each, once


def _draws_s(dtype: str) -> list[float]:
    """Seconds per uniform number, per normal number, and per feature of a sample."""
    n, batch = 512, BATCHES[-1]
    buffers = _buffers(z=("b", "n1"), d=("b", "n0"))
    statements: list[Statement] = [
        Draw("z", "uniform", "sample", 1, 0),
        Draw("z", "normal", "sample", 1, 1),
        Input("d"),
    ]
    data = Dataset(np.zeros((500, n), dtype), None, 1.0, "zeros")
    seconds = _seconds(_pair(n, n), buffers, statements, batch, dtype, data)
    return [s / (n * batch) for s in seconds]


def _buffers(**axes: tuple[str, ...]) -> dict[str, Buffer]:
    return {name: Buffer(name, its) for name, its in axes.items()}


def _seconds(
    network: Network,
    buffers: dict[str, Buffer],
    statements: Sequence[Statement],
    batch: int,
    dtype: str,
    data: Dataset | None = None,
) -> list[float]:
    """Seconds of each statement, on the kernels backend."""
    apart = [s for n, statement in enumerate(statements) for s in (Post(n, ()), statement)]
    program = Program(network, buffers, (), tuple(apart), ("y",), None)
    runner = Runner(program, {}, Setup(network, SGD(), None, batch, dtype, 1), batch)
    for array in runner.arrays.values():
        array[...] = 0.5
    given = dict.fromkeys(("learning_rate", "inv_rows"), 1e-9)
    rows = np.arange(batch, dtype=np.int64)
    if data is None:
        data = Dataset(np.zeros((batch, 1), dtype), None, 1.0, "nothing")
    runner.bind(data)
    runner.start(rows, {"iteration": 1, "updates": 1, "rows": batch, **given}, 0)
    empty_s = _best_s(lambda: runner.compute(0))  # the time of the call from Python
    found = [_best_s(lambda n=n: runner.compute(n + 1)) for n in range(len(statements))]  # type: ignore[misc]
    return [max(s - empty_s, 0.1 * s) for s in found]


def _best_s(call: Callable[[], Any], budget_s: float = 0.8e-3) -> float:
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


# --- the Python of a superstep


class NullTransport(Transport):
    """A transport whose blocks are always there and lead nowhere: only Python takes time."""

    scheme = "silent"

    def __init__(self) -> None:
        super().__init__("silent://", Identity(0, 2, "calibration"))
        self.endpoint = ""
        self.boxes: dict[int, Array] = {}

    def connect(self, peers: Sequence[str], timeout_s: float) -> None: ...

    def plan(self, channels: Sequence[Channel], timeout_s: float) -> None:
        self.boxes = {c.part: np.zeros(c.shape, c.dtype) for c in channels}

    def outbox(self, part: int, timeout_s: float) -> Array:
        return self.boxes[part]

    def post(self, superstep: int, parts: Sequence[int]) -> None: ...

    def collect(self, superstep: int, parts: Sequence[int], timeout_s: float) -> None: ...

    def inbox(self, part: int) -> Array:
        return self.boxes[part]

    def barrier(self, superstep: int, timeout_s: float) -> None: ...

    def send(
        self, to: int, meta: Any, arrays: Sequence[Array], timeout_s: float, wait: bool = True
    ) -> None: ...

    def receive(self, timeout_s: float) -> None: ...

    def close(self, reason: str = "finished") -> None: ...


def _python_s(dtype: str) -> dict[str, float]:
    """The time of a batch, a superstep and its copies besides computing."""
    small, small_s = _group_s((8, 8, 8, 8), dtype)
    wide, _ = _group_s((8, 1024, 1024, 8), dtype)
    n = small.n_supersteps
    python_s = small.pack_s + small.unpack_s + small.send_s + small.wait_s
    n_bytes = wide.sent_bytes - small.sent_bytes
    superstep_s = python_s / n + SEGMENT_S
    spent_s = python_s + small.compute_s
    return {
        "batch_s": max(small_s - spent_s, 1e-6),
        # two blocks in each superstep, one out and one in, and this task's own
        "superstep_s": 0.6 * superstep_s,
        "block_s": 0.15 * superstep_s,
        "pack_bytes_per_s": n_bytes / max(wide.pack_s - small.pack_s, 1e-9),
        "unpack_bytes_per_s": n_bytes / max(wide.unpack_s - small.unpack_s, 1e-9),
    }


def _group_s(sizes: Sequence[int], dtype: str, n: int = 40) -> tuple[TaskTimes, float]:
    """Run one of two tasks without the other; return a step's time by purpose, and in all."""
    batch = BATCHES[-1]
    network = Network()
    network.input(sizes[0])
    for size in sizes[1:-1]:
        network.layer(size)
    network.output(sizes[-1], loss="squared_error")
    group = Group(NullTransport())
    setup = Setup(network, SGD(), "labels", batch, dtype, 1)
    runs = GroupEngine(setup, Placement.default(network), group)
    runs.bind(Dataset(np.zeros((batch, sizes[0]), dtype), np.zeros((batch, sizes[-1]), dtype)))
    rows = np.arange(batch, dtype=np.int64)
    runs.step(rows, iteration=0, first_sample=0)
    rounds = []
    for _ in range(n):
        before, begun = group.spent, time.perf_counter()
        runs.step(rows, iteration=0, first_sample=0)
        seconds, after = time.perf_counter() - begun, group.spent
        spent = {name: value - getattr(before, name) for name, value in vars(after).items()}
        rounds.append((TaskTimes(**spent), seconds))
    return min(rounds, key=lambda item: item[1])
