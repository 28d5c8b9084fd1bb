"""Programs on the engine of ``horn/_kernels``: compiled to a tape once, run without Python.

Learned arrays, states and slots are used where they are, in the user's shapes. Everything with a
batch axis is neuron-major (each neuron's values for the batch side by side) or batch-major, as
``choose_layout`` says. See docs/notes/0002-engine.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from horn import random
from horn._kernels import blas
from horn._kernels.engine import Coef, Dim, Ragged, Scalar, Tape, View
from horn.backends import Array, Setup
from horn.backends.compiled import CompiledEngine, constant
from horn.compiler import ir
from horn.compiler.ir import Node, Op
from horn.compiler.program import (
    Buffer,
    Draw,
    Frame,
    Input,
    Live,
    Loop,
    Matmul,
    Output,
    Program,
    Statement,
    Take,
    Target,
    Update,
)
from horn.compiler.share import Share
from horn.data import Dataset
from horn.network import Link, Network

ONCE = 2**32 - 1  # the iteration number of what is drawn once
SCALARS = ("learning_rate", "iteration", "updates", "rows", "inv_rows")
# Bytes of a cache line and of a vector register. NumPy aligns to 16: then every vector access of a
# weight update straddles two lines, and the fused update takes 20 % longer (docs/notes/0002).
LINE = 64
# Below 4 million multiplications a batch takes tens of microseconds: barriers would cost more.
MIN_WORK_PER_THREAD = 2_000_000

_OPS: dict[Op, str] = {
    op: {"maximum": "max", "minimum": "min"}.get(op.value, op.value) for op in ir.ELEMENTWISE
}


@dataclass(frozen=True)
class Edges:
    """A sparse link's synapses as index lists, seen from the receivers and from the sources."""

    indptr: Array  # (n_receivers + 1,) int64
    sources: Array  # (n_edges,) int32, in edge order
    receivers: Array  # (n_edges,) int32
    back_indptr: Array  # (n_sources + 1,)
    back_edges: Array  # edge numbers by source
    back_receivers: Array

    @classmethod
    def of(cls, link: Link) -> Edges:
        edges = link.edges
        assert edges is not None
        sources = np.ascontiguousarray(edges.indices, np.int32)
        counts = np.diff(edges.indptr)
        receivers = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        by_source = np.argsort(sources, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(sources, minlength=link.source.size))
        return cls(
            np.ascontiguousarray(edges.indptr, np.int64),
            sources,
            receivers,
            np.concatenate([[0], ends]).astype(np.int64),
            by_source,
            np.ascontiguousarray(receivers[by_source]),
        )


def choose_layout(program: Program, library: str, batch_size: int) -> str:
    """How arrays of (batch, neurons) lie: "neuron"-major (its batch together) or "batch"-major.

    A rule, not a measurement at start-up: a different layout rounds differently, and two runs of a
    job must agree to the last bit. Measured with weights (fan_out, fan_in) on three nets at
    batches of 20, 100 and 1000 (docs/notes/0002): OpenBLAS wants neuron-major up to some hundred
    rows (beyond, loading turns the batch for nothing); MKL wants it for thin batches only. Loops
    over (b, o, i) want one sample's inputs side by side; sparse links want the batch side by side.
    """
    links = [link for layer in program.network.layers for link in layer.links]
    if any(link.edges is not None for link in links):
        return "neuron"
    for statement in program.statements:
        if isinstance(statement, Loop) and any(
            len(ir.union(o.node.axes, o.axis)) == 3 for o in statement.outputs
        ):
            return "batch"
    if library == "mkl":
        return "neuron" if batch_size < 64 else "batch"
    return "neuron" if batch_size < 500 else "batch"


def choose_threads(network: Network, batch_size: int, limit: int | None) -> int:
    """Threads for one batch: at most the limit, or the cores, and not more than the work feeds."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    synapses = 0
    for layer in network.layers:
        for link in layer.links:
            synapses += (
                layer.size * link.source.size if link.edges is None else len(link.edges.indices)
            )
    return max(1, min(limit or cores or 1, synapses * batch_size // MIN_WORK_PER_THREAD))


class Runner:
    """One program as a tape."""

    def __init__(
        self, program: Program, arrays: dict[str, Array], setup: Setup, batch_size: int
    ) -> None:
        self.program, self.setup = program, setup
        self.network = program.network
        self.dtype = np.dtype(setup.dtype)
        self.batch_size = batch_size
        n_threads = choose_threads(self.network, batch_size, setup.threads)
        library = blas.load()
        self.layout = choose_layout(program, library.name, batch_size)
        self.tape = Tape(self.dtype, n_threads, library)
        self.rows: Dim = self.tape.dim(batch_size)
        self.iteration: Dim = self.tape.dim(ONCE)
        self.scalars: dict[str, Scalar] = {name: self.tape.scalar() for name in SCALARS}
        self.picks = np.zeros(batch_size, np.int64)
        self.unsigned_picks = self.picks.view(np.uint64)
        self.samples = np.zeros(batch_size, np.uint64)
        self.offsets = np.arange(batch_size, dtype=np.uint64)
        self.reads_samples = False
        self.n_rows = 0
        self.edges: dict[tuple[int, int], Edges] = {}
        self.taken: dict[str, str] = {}  # full buffer -> its live part, as long as both agree
        self.alive: dict[int, tuple[Array, Dim]] = {}  # layer -> its live neurons, how many
        self.loads: list[tuple[int, str]] = []  # instructions that read the data: x or y
        self.arrays: dict[str, Array] = {}
        for name, buffer in program.buffers.items():
            self.arrays[name] = self._array(name, buffer, arrays)

        for statement in program.prologue:
            self._lower(statement)
        n_prologue = len(self.tape)
        self.tape.dims[self.iteration.index] = ONCE
        self.tape.run()
        self.first = n_prologue
        for statement in program.statements:
            self._lower(statement)

    def _array(self, name: str, buffer: Buffer, arrays: dict[str, Array]) -> Array:
        """A buffer's array, its axes in the program's order, whatever its layout."""
        if buffer.role in ("learned", "state", "slot"):
            if not _is_aligned(arrays[name]):
                arrays[name] = _aligned(arrays[name].shape, arrays[name].dtype, arrays[name])
            return arrays[name]
        if buffer.role == "constant":
            if (
                buffer.value[0] == "edge"
            ):  # compared with an argmax: the place in the receiver's row
                edges = self._edges(buffer.value[1], buffer.value[2])
                places = np.arange(len(edges.sources)) - edges.indptr[edges.receivers]
                return places.astype(self.dtype)
            whole = Share(self.network)
            return constant(buffer.value, self.network, self.dtype, whole, buffer.axes)
        shape = [self._length(axis) for axis in buffer.axes]
        if self.layout == "neuron" and len(shape) == 2 and buffer.axes[0] == "b":
            return _aligned(shape[::-1], self.dtype).T
        return _aligned(shape, self.dtype)

    def _length(self, axis: str) -> int:
        if axis == "b":
            return self.batch_size
        if axis.startswith("n"):
            return int(self.network.layers[int(axis[1:])].size)
        layer, link = axis[1:].split(".")
        return len(self._edges(int(layer), int(link)).sources)

    def _edges(self, layer: int, link: int) -> Edges:
        key = (layer, link)
        if key not in self.edges:
            self.edges[key] = Edges.of(self.network.layers[layer].links[link])
        return self.edges[key]

    # --- Runner

    def bind(self, data: Dataset) -> None:
        x = data.x
        if x.dtype not in (np.uint8, np.float32, np.float64, np.int32, np.int64):
            x = x.astype(self.dtype)
        y = data.y
        if y is not None and y.dtype not in (np.float32, np.float64, np.int32, np.int64):
            y = y.astype(np.int64 if y.dtype.kind in "iub" else self.dtype)
        self.n_samples = len(data)
        for number, what in self.loads:
            if what == "x":
                self.tape.rebind(number, x)
                self.tape.scalars[self.scale.index] = data.scale
            elif y is not None:
                self.tape.rebind(number, y)

    def run(self, rows: Array, scalars: Mapping[str, float], first_sample: int) -> None:
        n = self.n_rows = len(rows)
        self.picks[:n] = rows
        # one pass finds rows that are too large, and negative ones, which are larger still
        if n and np.maximum.reduce(self.unsigned_picks[:n]) >= self.n_samples:
            raise IndexError(f"rows must be in 0 to {self.n_samples - 1}, got {rows!r}")
        if self.reads_samples:
            np.add(self.offsets[:n], np.uint64(first_sample), out=self.samples[:n])
        tape = self.tape
        dims, numbers = tape.dims, tape.scalars
        dims[self.rows.index] = n
        dims[self.iteration.index] = int(scalars["iteration"])
        for name, scalar in self.scalars.items():
            numbers[scalar.index] = scalars[name]
        tape.run(self.first)

    def value(self, name: str) -> Array:
        buffer, array = self.program.buffers[name], self.arrays[name]
        if buffer.axes[:1] == ("b",):
            array = array[: self.n_rows]
        if buffer.full or not self.alive:
            return array
        for axis, label in enumerate(buffer.axes):
            k = int(label[1:]) if label.startswith("n") else -1
            if k in self.alive:
                kept, count = self.alive[k]
                live = kept[: self.tape.dims[count.index]]
                whole = np.zeros(array.shape, array.dtype)
                place: tuple[Any, ...] = (slice(None),) * axis
                whole[(*place, live)] = array[(*place, slice(0, len(live)))]
                array = whole
        return array

    def push(self) -> None:
        """Nothing to do: the tape works on the persistent arrays themselves."""

    def pull(self) -> None:
        """Nothing to do: the tape works on the persistent arrays themselves."""

    # --- statements

    def _lower(self, s: Statement) -> None:
        if isinstance(s, Input):
            self._data(s.out, "x")
        elif isinstance(s, Target):
            self._data(s.out, "x" if s.kind == "input" else "y")
        elif isinstance(s, Draw):
            self._draw(s)
        elif isinstance(s, Live):
            size = self.network.layers[s.layer].size
            kept = np.zeros(size + 1, np.int32)
            count = self.tape.dim(size)
            self.tape.live(self.arrays[s.mask], kept, count, label=s.mask)
            self.alive[s.layer] = (kept, count)
        elif isinstance(s, Take):
            self._take(s)
        elif isinstance(s, Matmul):
            self._matmul(s)
        elif isinstance(s, Update):
            self._update(s)
        else:
            assert isinstance(s, Loop), s
            self._loop(s)
            for output in s.outputs:
                self.taken.pop(output.buffer, None)

    def _data(self, out: str, what: str) -> None:
        array = self.arrays[out]
        source = np.zeros((1, *array.shape[1:]), self.dtype)
        if what == "x":
            if not hasattr(self, "scale"):
                self.scale: Scalar = self.tape.scalar(1.0)
            number = self.tape.load(
                source, self.picks, array, rows=self.rows, scale=self.scale, label=out
            )
        else:
            number = self.tape.load(source, self.picks, array, rows=self.rows, label=out)
        self.loads.append((number, what))

    def _draw(self, s: Draw) -> None:
        layer = self.network.layers[s.layer]
        key = random.key(self.network.seed, s.layer)
        out = self.arrays[s.out]
        kind: Literal["normal", "uniform"] = "normal" if s.kind == "normal" else "uniform"
        draw: dict[str, Any] = {"key": key, "site": s.site, "iteration": self.iteration}
        draw["label"] = s.out
        if s.per == "sample":
            self.reads_samples = True
            self.tape.draw(out, kind, rows=self.rows, samples=self.samples, **draw)
        elif s.per == "synapse" and s.link < len(layer.links):
            link = layer.links[s.link]
            if link.edges is not None:
                edges = self._edges(s.layer, s.link)
                out[...] = _edge_draws(kind, key, s.site, edges, s.link)
                return
            sources = np.arange(link.source.size, dtype=np.uint64) + np.uint64(s.link << 32)
            self.tape.draw(out.T, kind, samples=sources, **draw)
        elif s.per == "synapse":
            self.tape.draw(out[None, :], kind, samples=np.array([s.link << 32], np.uint64), **draw)
        else:
            self.tape.draw(out[None, :], kind, **draw)

    def _take(self, s: Take) -> None:
        axes = self.program.buffers[s.out].axes
        names = [f"a{k}" for k in range(len(axes))]
        extents = {name: self._extent(axis) for name, axis in zip(names, axes, strict=True)}
        view = self._live_view(s.array, names)
        self.tape.loop(extents, [view], [], [(View(self.arrays[s.out], names), 0)], label=s.out)
        self.taken[s.array] = s.out

    def _extent(self, axis: str) -> int | Dim:
        if axis == "b":
            return self.rows
        if axis.startswith("n") and int(axis[1:]) in self.alive:
            return self.alive[int(axis[1:])][1]
        return self._length(axis)

    def _live_view(self, name: str, names: Sequence[str]) -> View:
        """A full buffer at its live places."""
        index = {}
        for label, axis in zip(names, self.program.buffers[name].axes, strict=True):
            if axis.startswith("n") and int(axis[1:]) in self.alive:
                index[label] = self.alive[int(axis[1:])][0]
        return View(self.arrays[name], names, index, ascending=True)

    def _matmul(self, s: Matmul) -> None:
        left, right = s.a_axes.replace(s.axis, ""), s.b_axes.replace(s.axis, "")
        a = _as(self.arrays[s.a], s.a_axes, left + s.axis)
        b = _as(self.arrays[s.b], s.b_axes, s.axis + right)
        c = _as(self.arrays[s.out], s.out_axes, left + right)
        extent = self._extents(s.frame)
        self.tape.gemm(a, b, c, beta=1.0 if s.accumulate else 0.0, m=extent[left], n=extent[right],
                       k=extent[s.axis], label=s.out)  # fmt: skip

    def _update(self, s: Update) -> None:
        delta, x, w = self.arrays[s.a].T, self.arrays[s.b], self.arrays[s.weight]
        step = Coef(-1.0, self.scalars["learning_rate"], per=self.rows)
        live = any(int(axis[1:]) in self.alive for axis in self.program.buffers[s.weight].axes)
        for name in (s.weight, s.velocity):
            self.taken.pop(name or "", None)
        if live:
            self._update_live(s, delta, x, step)
            return
        if s.velocity is None:
            self.tape.gemm(delta, x, w, alpha=step, beta=1.0, k=self.rows, label=s.weight)
            return
        v = self.arrays[s.velocity]
        self.tape.gemm_loop(
            delta, x, v, alpha=step, beta=s.momentum, k=self.rows, label=s.weight,
            inputs=[View(w, "mn"), View(v, "mn")], ops=[("add", 0, 1)],
            outputs=[(View(w, "mn"), 2)],
        )  # fmt: skip

    def _update_live(self, s: Update, delta: Array, x: Array, step: Coef) -> None:
        """The update at the live places. The product itself is seldom written (Tape.gemm_loop)."""
        extent = self._extents(s.frame)
        product = np.empty(self.arrays[s.weight].shape, self.dtype)
        w = self._live_view(s.weight, "mn")
        inputs: list[Any] = [w, View(product, "mn")]
        ops: list[tuple[Any, ...]] = [("add", 0, 1)]
        outputs = [(w, 2)]
        if s.velocity is not None:
            v = self._live_view(s.velocity, "mn")
            inputs = [w, v, View(product, "mn"), s.momentum]
            ops = [("fma", 1, 3, 2), ("add", 0, 4)]
            outputs = [(v, 4), (w, 5)]
        self.tape.gemm_loop(
            delta, x, product, alpha=step, m=extent["o"], n=extent["i"], k=self.rows,
            inputs=inputs, ops=ops, outputs=outputs, label=s.weight,
        )  # fmt: skip

    def _extents(self, frame: Frame) -> dict[str, int | Dim]:
        """What the letters of a frame run over; "1" is for what has no axes."""
        extent: dict[str, int | Dim] = {
            "b": self.rows,
            "1": 1,
            "o": self._extent(f"n{frame.layer}"),
        }
        if frame.link is not None:
            source = self.network.layers[frame.layer].links[frame.link].source.index
            extent["i"] = self._extent(f"n{source}")
        return extent

    # --- loops

    def _loop(self, s: Loop) -> None:
        plain = [o for o in s.outputs if not o.axis]
        groups = [[o] for o in s.outputs if o.axis]
        if plain:
            groups.append(plain)
        assert len(groups) == 1 or not plain, "a loop either reduces or stores"
        for outputs in groups:
            self._pass(s, outputs)

    def _pass(self, s: Loop, outputs: list[Output]) -> None:
        """One engine loop: elementwise with all its outputs, or one reduction."""
        frame, first = s.frame, outputs[0]
        axis, monoid = first.axis, first.monoid
        domain = ""
        for o in outputs:
            domain = ir.union(domain, o.node.axes, o.axis, *self._letters(o.buffer, frame))
        edges = None
        if frame.link is not None and "o" in domain and "i" in domain:
            link = self.network.layers[frame.layer].links[frame.link]
            edges = None if link.edges is None else self._edges(frame.layer, frame.link)
        place = _Places(self, s, domain, edges, axis)

        inputs: list[Any] = []
        ops: list[tuple[Any, ...]] = []
        known: dict[Node, tuple[str, int]] = {}  # a node is an input or an operation

        def lower(root: Node) -> tuple[str, int]:
            for node in ir.walk(root):
                if node in known:
                    continue
                if node.op is Op.LOAD:
                    known[node] = ("in", len(inputs))
                    inputs.append(place.view(node.value, node.axes))
                elif node.op is Op.CONST:
                    known[node] = ("in", len(inputs))
                    inputs.append(float(node.value))
                elif node.op is Op.SCALAR:
                    known[node] = ("in", len(inputs))
                    inputs.append(self.scalars[node.value])
                elif _is_truth(node):
                    known[node] = known[node.args[0]]
                else:
                    known[node] = ("op", len(ops))
                    ops.append((_OPS[node.op], *(known[a] for a in node.args)))
            return known[root]

        results = []
        for o in outputs:
            value = lower(o.node)
            if monoid == "argmin":
                ops.append(("neg", value))
                value = ("op", len(ops) - 1)
            if o.accumulate and not axis:
                inputs.append(place.out(o.buffer))
                ops.append(("add", ("in", len(inputs) - 1), value))
                value = ("op", len(ops) - 1)
            results.append((place.out(o.buffer), value))

        def number(value: tuple[str, int]) -> int:
            return value[1] + (len(inputs) if value[0] == "op" else 0)

        self.tape.loop(
            place.axes, inputs, [(name, *map(number, args)) for name, *args in ops],
            [(view, number(value)) for view, value in results],
            reduce=("argmax" if monoid == "argmin" else monoid, place.folded) if axis else None,
            accumulate=bool(axis) and first.accumulate, label=first.buffer,
        )  # fmt: skip

    def _letters(self, name: str, frame: Frame) -> list[str]:
        names = {"b": "b", f"n{frame.layer}": "o"}
        if frame.link is not None:
            source = self.network.layers[frame.layer].links[frame.link].source.index
            names[f"n{source}"] = "i"
        axes = self.program.buffers[name].axes
        return ["oi" if a.startswith("e") else names[a] for a in axes]


class _Places:
    """Where the letters of one loop lie: as themselves, or on the edges of a sparse link.

    On edges everything is taken along one axis "e" of all edges; a reduction over the sources of a
    receiver (i) or the receivers of a source (o) makes that axis ragged.
    """

    def __init__(
        self, runner: Runner, s: Loop, domain: str, edges: Edges | None, axis: str
    ) -> None:
        self.runner, self.s, self.edges, self.axis = runner, s, edges, axis
        extent = runner._extents(s.frame)
        self.axes: dict[str, Any]
        self.folded = axis
        if edges is None:
            self.axes = {letter: extent[letter] for letter in domain or "1"}
            return
        self.axes = {"e": len(edges.sources)}
        if axis == "i":
            self.axes = {"o": extent["o"], "e": Ragged(edges.indptr, "o")}
        elif axis == "o":
            self.axes = {"i": extent["i"], "e": Ragged(edges.back_indptr, "i")}
        if "b" in domain:
            self.axes["b"] = extent["b"]
        if axis in ("o", "i"):
            self.folded = "e"

    def view(self, name: str, letters: str) -> View:
        """A loaded buffer, seen along letters."""
        runner, edges = self.runner, self.edges
        array = runner.arrays[name]
        if not letters:
            return View(array.reshape(()), ())
        buffer = runner.program.buffers[name]
        if edges is None:
            if self.s.scatter and buffer.full:
                if name in runner.taken:  # gathered for the forward pass, and not changed since
                    return View(runner.arrays[runner.taken[name]], letters)
                return runner._live_view(name, letters)
            return View(array, letters)
        names, index = [], {}
        backwards = self.axis == "o"
        for letter in letters.replace("oi", "e"):
            if letter in self.axes and letter != "e":
                names.append(letter)
                continue
            names.append("e")
            if letter == "e" and backwards:
                index["e"] = edges.back_edges
            elif letter == "o":
                index["e"] = edges.back_receivers if backwards else edges.receivers
            elif letter == "i":
                index["e"] = edges.sources
        return View(array, names, index)

    def out(self, name: str) -> View:
        """An output buffer."""
        runner = self.runner
        array = runner.arrays[name]
        letters = "".join(runner._letters(name, self.s.frame))
        if self.edges is not None:
            return View(array, letters.replace("oi", "e"))
        if not letters:
            return View(array.reshape(1), "1") if "1" in self.axes else View(array.reshape(()), ())
        if self.s.scatter and runner.program.buffers[name].full:
            return runner._live_view(name, letters)
        return View(array, letters)


def _is_truth(node: Node) -> bool:
    """select(condition, 1, 0): the engine's conditions are 1 and 0 already."""
    if node.op is not Op.SELECT or node.args[0].op not in ir.BOOLEAN:
        return False
    return ir.is_const(node.args[1], 1.0) and ir.is_const(node.args[2], 0.0)


def _is_aligned(array: Array) -> bool:
    flags = array.flags
    return bool(flags.c_contiguous and flags.writeable and array.ctypes.data % LINE == 0)


def _aligned(shape: Sequence[int], dtype: Any, content: Any = 0) -> Array:
    """A C-ordered array that starts at a cache line, holding `content`."""
    n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    room = np.empty(n_bytes + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    array: Array = room[start : start + n_bytes].view(dtype).reshape(shape)
    array[...] = content
    return array


def _as(array: Array, have: str, want: str) -> Array:
    return array.transpose([have.index(letter) for letter in want])


def _edge_draws(kind: str, key: random.Key, site: int, edges: Edges, link: int) -> Array:
    """A sparse link's synapse draws: neuron = receiver, sample = (link << 32) + source."""
    draw = random.normal if kind == "normal" else random.uniform
    result = np.empty(len(edges.sources))
    for receiver in range(len(edges.indptr) - 1):
        row = slice(edges.indptr[receiver], edges.indptr[receiver + 1])
        samples = edges.sources[row].astype(np.uint64) + np.uint64(link << 32)
        result[row] = draw(key, site, [receiver], samples, ONCE)[:, 0]
    return result


class Engine(CompiledEngine):
    """The kernels backend."""

    runner = Runner
