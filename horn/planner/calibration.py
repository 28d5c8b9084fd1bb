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
import os
import platform
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from horn import ir
from horn import transport as transports
from horn._kernels import blas, engine
from horn.atomic_write import atomic_write
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
from horn.planner.machine import PRODUCTS, Machine
from horn.planner.strip_timings import StripTimings, best_s
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
        kept = folder()
        path = None if kept is None else kept / f"machine-{key}.json"
        found = None if path is None else _read(path)
        if found is None:
            found = rounded(measure(dtype))
            if path is not None:
                _write(path, found)
        _known[key] = found
    return _known[key]


def folder() -> Path | None:
    """The folder of the kept figures: XDG_CACHE_HOME/horn, or ~/.cache/horn; None where the user
    has no home, as one without an entry in passwd.
    """
    base = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return None if base.startswith("~") else Path(base) / "horn"


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
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _read(path: Path) -> Machine | None:
    """The figures of a file; None if it is missing or damaged."""
    try:
        return Machine.from_dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(path: Path, machine: Machine) -> None:
    """Write the figures to disk; where that fails, only this process keeps them."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(json.dumps(dataclasses.asdict(machine), indent=1).encode())


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
    return best_s(lambda: runner.compute(0)) / n


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
    n, n_pool = (each.n * batch for each in edges if each is not None)
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
    empty_s = best_s(lambda: runner.compute(0))  # the time of the call from Python
    found = [best_s(lambda n=n: runner.compute(n + 1)) for n in range(len(statements))]  # type: ignore[misc]
    return [max(s - empty_s, 0.1 * s) for s in found]


# --- the Python of a superstep


class NullTransport(Transport):
    """A transport whose blocks are always there and lead nowhere: only Python takes time."""

    scheme = "silent"

    def __init__(self) -> None:
        super().__init__("silent://", Identity(0, 2, "calibration"))
        self.endpoint = ""
        self.boxes: dict[int, Array] = {}

    def connect(self, peers: Sequence[str], timeout_s: float) -> None: ...

    def open_channels(self, channels: Sequence[Channel], timeout_s: float) -> None:
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
