"""The cost model: the time of a partitioned, scheduled program per task and batch.

Computing is a sum over statements, each a linear function of a few counts (multiplications,
elements, bytes). Exchanges are followed on a clock per task: a collect waits for the last sender,
so uneven shares count, and computing between a post and its collect hides waiting, but no copying.
See docs/notes/0021-one-network-over-many-tasks.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

import numpy as np

from horn._kernels.operands import OPS
from horn._kernels.tiles import (
    COLUMNS,
    FUNCTIONS,
    LESS,
    MORE,
    PLACES,
    QUOTIENTS,
    SLOPES,
    SQUARES,
    WAVES,
)
from horn._kernels.walks import STRIP_BYTES
from horn.network import Network
from horn.partition.share import Places, Share
from horn.program import (
    AllSteps,
    Buffer,
    Collect,
    Convolve,
    Draw,
    Expand,
    Frame,
    Input,
    Loop,
    Matmul,
    Move,
    Parts,
    Post,
    Program,
    Repeat,
    ScatterAdd,
    Statement,
    Target,
    Update,
    base,
    exchanges,
    letter_axes,
)
from horn.scheduling.choices import choose_layout, choose_threads
from horn.scheduling.folds import Fold, only_fold, only_squares, plan
from horn.scheduling.passes import Pass, Shape, passes
from horn.scheduling.patches import Patched, dense_shape, find_patched
from horn.transport import DEFAULT, load, names

Array = np.ndarray[Any, Any]
Figures: TypeAlias = Mapping[str, float]

# The speed that each further thread of a task adds, measured with two (docs/notes/0002).
THREAD = 0.8
# The kinds of products: forward, backward, gradient, and updates without and with momentum.
PRODUCTS = ("forward", "backward", "gradient", "update", "momentum")
# Results per tile of sums over windows: fewer than the least take as long as the least.
MIN_RESULTS, MAX_RESULTS = 4, 12
# Seconds per element, of many, of operations slower than an addition.
_SLOW = {
    "sqrt": 7e-11, "exp": 1.7e-10, "log": 2.8e-10, "log1p": 3.6e-10, "expm1": 2.3e-10,
    "tanh": 3.4e-10, "sigmoid": 1.8e-10, "softplus": 1e-9, "sin": 3.5e-10, "cos": 3.5e-10,
    "pow": 1.3e-9, "erf": 6e-10, "erfc": 1.1e-9, "atan": 2e-10, "atan2": 6e-10,
    "floordiv": 7e-10, "mod": 6e-10,
}  # fmt: skip
# The kinds of tiles other than rows, by their names in figures.
_TILES = {COLUMNS: "columns", PLACES: "places", QUOTIENTS: "quotients"}
# Shorter rows are reduced number by number (strips.h).
LANES = 32
# An array of at most so many bytes stays in the nearest cache between the passes of a loop: 2 ** 15
# is the smallest such cache of processors in twenty years.
NEAR_BYTES = 2**15
FOLDS = ("sum", "prod", "max", "min", "any", "all", "argmax")


def _by(names: Iterable[str], default: Any, **others: Any) -> Any:
    """A dataclass field with a figure for each name."""
    return field(default_factory=lambda: {**dict.fromkeys(names, default), **others})


@dataclass(frozen=True)
class Machine:
    """The speed of one thread: seconds, for one dtype. ``calibration`` measures them; the defaults
    are those of a 2-core Xeon.

    together : the slowdown of computing when every core computes: cores that share units with each
    other, or a host with others, are slower then. products : the library of products, as
    ``Tape.products``. call_s : an instruction of the engine, whatever it does. product_s : the same
    of a product, by kind. row_s, weight_s : a weight of a product, for every row of the batch and
    once; by kind, and for square weights of each of ``sides``. edge_s : an element of the other two
    arrays. stream_s : an element of a loop over an array as large as those weights, read or
    written. operation_s, left_s : an element of an operation, in a whole vector of ``lanes`` and
    left over after the last. apply_s, view_s : an operation, an array, for each strip. strip_s : a
    strip besides. fetch_s : an element that is copied into a strip, by its layout
    (``walks.Walk``). fetch_row_s : a row of these. fold_s, cross_s : an element that is reduced,
    along a strip and across, by monoid. fold_row_s : a row that is reduced along the strip.
    result_s : a result of a reduction. tile_s, tile_result_s : an element of a tile (tiles.h), and
    a result besides, by monoid or kind: "near" of a product of factors near 1; of "places" a sample
    and neuron.
    window_s : a synapse of a sum of products over windows, for a number of whole vectors of the
    batch (a gradient: of maps), by kind of product; "squares": of squared differences. pool_s : the
    same of a fold over windows: "sum", "both" (an extreme and its place), "slope" (its gradient).
    synapse_s, synapse_once_s : a synapse of a sparse sum of products, by the letter that is
    reduced, for every sample and once; synapse_alone_s : of one sample. draw_s : a random number,
    by kind. input_s : a feature of a sample. batch_s, superstep_s, block_s : the Python of a batch,
    of an exchange, of a block in it.
    pack_bytes_per_s, unpack_bytes_per_s : copies into and out of mailboxes. latency_s,
    bandwidth_bytes_per_s : of a transport, from a post to the wake-up of the other task; of one
    task.
    """

    n_cores: int = 2
    together: float = 1.0
    products: str = "horn"
    lanes: int = 16
    call_s: float = 2e-7
    product_s: Figures = _by(PRODUCTS, 5e-7)
    sides: tuple[float, ...] = (192, 640, 2048)
    row_s: Mapping[str, tuple[float, ...]] = _by(PRODUCTS, (1.5e-11, 1.5e-11, 1.7e-11))
    weight_s: Mapping[str, tuple[float, ...]] = _by(PRODUCTS, (2e-10, 3e-10, 5e-10))
    edge_s: Figures = _by(PRODUCTS, 1e-10)
    stream_s: tuple[float, ...] = (3e-11, 1e-10, 3e-10)
    operation_s: Figures = _by(OPS, 3e-11, **_SLOW)
    left_s: Figures = _by(OPS, 1e-10, **{name: 6 * seconds for name, seconds in _SLOW.items()})
    apply_s: float = 5e-9
    strip_s: float = 1e-8
    view_s: float = 3e-9
    fetch_s: Figures = _by(("copy", "fill", "list", "step"), 5e-10, copy=4e-11, fill=3e-11)
    fetch_row_s: float = 4e-9
    fold_s: Figures = _by(FOLDS, 5e-10, sum=5e-11, prod=1e-9, max=2e-10, min=2e-10, argmax=4e-10)
    fold_row_s: Figures = _by(FOLDS, 1e-8, max=4e-8, min=4e-8, argmax=6e-8)
    cross_s: Figures = _by(FOLDS, 1e-10, argmax=3e-10)
    result_s: float = 3e-9
    tile_s: Figures = _by(
        ("sum", "max", "min", "near", "squares", "square columns", "square"), 5e-11,
        argmax=1e-10, prod=1e-10, columns=7e-11, places=5e-9,
        quotients=8e-11, exp=1.6e-10, tanh=2.4e-10, sigmoid=2e-10,
        **{"exp slope": 2e-10, "tanh slope": 2.8e-10, "sigmoid slope": 2.4e-10},
    )  # fmt: skip
    tile_result_s: Figures = _by(
        ("sum", "max", "min", "near", "squares", "square", "exp", "tanh", "sigmoid"), 8e-9,
        argmax=3e-8, prod=2e-9, places=0.0,
        **dict.fromkeys(
            ("columns", "square columns", "quotients", "exp slope", "tanh slope", "sigmoid slope"),
            3e-10,
        ),
    )  # fmt: skip
    window_s: Figures = _by((*PRODUCTS[:3], "squares"), 1.1e-11, squares=1.8e-11)
    pool_s: Figures = _by(("sum", "both", "slope"), 1e-10)
    synapse_s: Figures = _by("iob", 4e-10)
    synapse_once_s: Figures = _by("iob", 2e-9, b=4e-9)
    synapse_alone_s: Figures = _by("iob", 1.5e-9)
    draw_s: Figures = _by(("uniform", "normal"), 2e-9, normal=6e-9)
    input_s: float = 3e-10
    batch_s: float = 30e-6
    superstep_s: float = 10e-6
    block_s: float = 3e-6
    pack_bytes_per_s: float = 5e9
    unpack_bytes_per_s: float = 5e9
    latency_s: Figures = field(default_factory=lambda: {n: load(n).latency_s for n in names()})
    bandwidth_bytes_per_s: Figures = field(
        default_factory=lambda: {name: load(name).bytes_per_s for name in names()}
    )

    @property
    def flops_per_s(self) -> float:
        """Floating-point operations per second of one task, in large products."""
        return 2.0 / self.row_s["forward"][1]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Machine:
        """A machine from the dictionary of ``dataclasses.asdict``, through JSON. Raises ValueError
        if figures are missing, unknown or no finite numbers from 0.
        """
        plain = cls()
        found = {f.name: _like(getattr(plain, f.name), values[f.name], f.name) for f in fields(cls)}
        if len(values) != len(found):
            raise ValueError("there are figures that no Machine has")
        return cls(**found)


def _like(model: Any, value: Any, name: str) -> Any:
    """Check that the value has the same structure as ``model``, with finite numbers from 0."""
    if isinstance(model, Mapping):
        if set(value) != set(model):
            raise ValueError(f"{name} has {sorted(value)}")
        part = next(iter(model.values()))
        return {str(key): _like(part, item, name) for key, item in value.items()}
    if isinstance(model, tuple):
        if len(value) != len(model):
            raise ValueError(f"{name} has {len(value)} figures")
        return tuple(_like(0.0, item, name) for item in value)
    if isinstance(model, str) and isinstance(value, str):
        return value
    if isinstance(model, str) or isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {value!r}")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} is {value!r}")
    return type(model)(value)


@dataclass(frozen=True)
class Traffic:
    """The traffic of a move. elements (n_tasks, n_tasks): from row to column, 0 on the diagonal.

    packed, n_packed : elements and blocks that each task writes; a block for several receivers
    counts once. kept : elements that a task takes from itself.
    """

    elements: Array
    packed: Array
    n_packed: Array
    kept: Array


@dataclass(frozen=True)
class Superstep:
    """One exchange of a batch. Seconds of the slowest task; messages and bytes of all together.

    layer : the index of the layer whose values travel, the first of them.
    """

    index: int
    arrays: tuple[str, ...]
    layer: int
    n_messages: int
    n_bytes: int
    seconds: float

    def later(self, seconds: float) -> Superstep:
        return replace(self, seconds=self.seconds + seconds)


@dataclass(frozen=True)
class StepCost:
    """The cost of a batch: seconds, each layer's computing (of the slowest task), supersteps."""

    seconds: float
    layers: dict[int, float]
    supersteps: tuple[Superstep, ...]


class Costs:
    """The cost model for a network's programs on a machine, shared by ``n_groups`` groups."""

    def __init__(
        self,
        network: Network,
        machine: Machine,
        n_tasks: int,
        batch_size: int,
        dtype: str = "float32",
        transport: str = DEFAULT,
        threads: int = 1,
        n_groups: int = 1,
    ) -> None:
        self.network, self.machine, self.n_tasks = network, machine, n_tasks
        self.batch_size, self.transport = batch_size, transport
        self.itemsize = np.dtype(dtype).itemsize
        self.shares = [Share(network, task, n_tasks) for task in range(n_tasks)]
        self.crowd = max(1.0, n_groups * n_tasks / machine.n_cores)  # tasks that share a core
        others = min(n_groups * n_tasks, machine.n_cores) - 1
        if others > 0:
            self.crowd *= 1.0 + (machine.together - 1.0) * others / (machine.n_cores - 1)
        used = choose_threads(network, batch_size, threads, n_tasks)
        self.slower = self.crowd / (1.0 + THREAD * (used - 1))
        self.layout = "batch"  # of arrays; ``_followed`` sets it, and what runs in patches
        self.patched = Patched()
        self.n_steps = 1  # of sequences: the number of steps whose rows are computed at once
        self._lengths: dict[str, Array] = {}
        self._traffic: dict[tuple[tuple[str, ...], tuple[str, ...]], Traffic] = {}
        self._computed: dict[int, tuple[Statement, Array]] = {}  # by id, which they keep

    # --- counts

    def length(self, axis: str) -> Array:
        """The number of places of an axis that each task has (n_tasks,)."""
        if axis not in self._lengths:
            found = [share.length(axis, self.batch_size) for share in self.shares]
            self._lengths[axis] = np.array(found, np.float64)
        return self._lengths[axis] * (self.n_steps if base(axis) == "b" else 1)

    def size(self, axes: tuple[str, ...]) -> Array:
        """The number of elements of an array with these axes, per task (n_tasks,)."""
        found = np.ones(self.n_tasks)
        for axis in axes:
            found = found * self.length(axis)
        return found

    def traffic(self, move: Move, buffers: Mapping[str, Buffer]) -> Traffic:
        have, want = buffers[move.array].axes, buffers[move.out].axes
        if (have, want) in self._traffic:
            return self._traffic[have, want]
        elements = np.ones((self.n_tasks, self.n_tasks))
        for a, b in zip(have, want, strict=True):
            elements = elements * self._overlap(a, b)
        kept = elements.diagonal().copy()
        np.fill_diagonal(elements, 0.0)
        if all(base(axis) == axis for axis in want):  # all receivers want the same: one block
            packed, n_packed = elements.max(axis=1), (elements > 0).any(axis=1).astype(float)
        else:
            packed, n_packed = elements.sum(axis=1), (elements > 0).sum(axis=1).astype(float)
        found = self._traffic[have, want] = Traffic(elements, packed, n_packed, kept)
        return found

    def _overlap(self, have: str, want: str) -> Array:
        """The places of an axis that the row has and the column wants (n_tasks, n_tasks)."""
        sources = [self._places(share, have) for share in self.shares]
        wanted = [self._places(share, want) for share in self.shares]
        if all(isinstance(p, slice) for p in (*sources, *wanted)):
            a, b = _ends(sources), _ends(wanted)
            start = np.maximum(a[:, :1], b[:, 0])
            return np.asarray(np.maximum(np.minimum(a[:, 1:], b[:, 1]) - start, 0.0))
        return np.array([[_n_common(a, b) for b in wanted] for a in sources], np.float64)

    def _places(self, share: Share, axis: str) -> Places:
        if base(axis) == "b":
            return share.rows(axis, self.batch_size, self.batch_size)
        return share.places(axis)

    # --- computing

    def compute_s(self, statement: Statement, buffers: Mapping[str, Buffer]) -> Array:
        """Seconds of a statement that is no exchange, per task (n_tasks,)."""
        found = self._computed.get(id(statement))
        if found is None:
            seconds = self._compute_s(statement, buffers) * self.slower
            found = self._computed[id(statement)] = (statement, seconds)
        return found[1]

    def _compute_s(self, statement: Statement, buffers: Mapping[str, Buffer]) -> Array:
        machine = self.machine
        if isinstance(statement, (Matmul, Update)):
            return self._product_s(statement)
        if isinstance(statement, Loop):
            program = Program(self.network, dict(buffers), (), (), (), None)
            if fold := only_fold(program, statement):
                return self._fold_s(statement, fold)
            if only_squares(program, statement):
                return self._windows_s(statement.frame, "i", "squares")
            found = np.zeros(self.n_tasks)
            if id(statement) in self.patched.multiplied:
                return found
            loops = passes(statement)
            patched = self.patched.loops.get(id(statement), [None] * len(loops))
            for each, in_patches in zip(loops, patched, strict=True):
                found = found + (
                    self._pass_s(statement.frame, each, buffers)
                    if in_patches is None
                    else self._patches_s(statement.frame, in_patches)
                )
            return found
        if isinstance(statement, Expand) and statement.out in self.patched.unread:
            return np.zeros(self.n_tasks)
        is_sum = isinstance(statement, ScatterAdd) and statement.array not in self.patched.sums
        if isinstance(statement, Convolve):
            kind = {"i": "forward", "o": "backward", "b": "gradient"}[statement.axis]
            return self._windows_s(statement.frame, statement.axis, kind)
        size = self.size(buffers[statement.array if is_sum else statement.out].axes)  # type: ignore[attr-defined]
        if isinstance(statement, Draw):
            return machine.call_s + size * machine.draw_s[statement.kind]
        is_given = isinstance(statement, (Input, Target))
        return machine.call_s + size * (machine.input_s if is_given else machine.fetch_s["copy"])

    def _windows_s(self, frame: Frame, axis: str, kind: str) -> Array:
        """Seconds of a sum along an axis of windows: per synapse of the task and sample, in whole
        vectors, and slower where few results are computed side by side.
        """
        machine, layer = self.machine, self.network.layers[frame.layer]
        link = layer.links[frame.link or 0]
        maps, channels = layer.shape[-1], link.source.shape[-1]
        if frame.split == "m":
            maps = max(maps // self.n_tasks, 1)
        elif frame.split == "c":
            channels = max(channels // self.n_tasks, 1)
        results = maps if axis == "i" else channels
        if link.is_turned:
            maps, channels = channels, maps
            kind = {"forward": "backward", "backward": "forward"}.get(kind, kind)
        synapses = self.size(letter_axes(self.network, frame, "oi"))
        rows = self.size(letter_axes(self.network, frame, "b"))
        if kind == "gradient":
            work = synapses * rows * (self._vectors(np.array(float(maps))) / maps)
        else:
            side = results / -(-results // MAX_RESULTS)
            work = synapses * self._vectors(rows) * max(MIN_RESULTS / side, 1.0)
        sides = self.size(letter_axes(self.network, frame, "o" if axis == "o" else "i"))
        return np.asarray(
            machine.call_s + work * machine.window_s[kind]
            + sides * rows * 2 * machine.operation_s["add"]
        )  # fmt: skip

    def _fold_s(self, s: Loop, fold: Fold) -> Array:
        synapses = self.size(letter_axes(self.network, s.frame, "oi"))
        rows = self._vectors(self.size(letter_axes(self.network, s.frame, "b")))
        kind = "slope" if fold.upper else "sum" if fold.kind == "sum" else "both"
        return np.asarray(self.machine.call_s + synapses * rows * self.machine.pool_s[kind])

    def _vectors(self, n: Array) -> Array:
        """The numbers rounded up to whole vectors."""
        lanes = self.machine.lanes
        return np.asarray(np.ceil(n / lanes) * lanes)

    def _product_s(self, s: Matmul | Update) -> Array:
        machine = self.machine
        o, i, b = (self.size(letter_axes(self.network, s.frame, letter)) for letter in "oib")
        kind = _kind(s)
        weights = o * i
        once = self._at_size(machine.weight_s[kind], weights)
        each = self._at_size(machine.row_s[kind], weights)
        found = machine.product_s[kind] + weights * (once + b * each)
        found = found + (o + i) * b * machine.edge_s[kind]
        return np.asarray(np.where(weights * b > 0, found, machine.call_s))

    def _at_size(self, figures: tuple[float, ...], elements: Array) -> Array:
        """The figure for a weight array of this many elements, interpolated between sizes."""
        sides = np.log(np.maximum(elements, 1.0)) / 2
        return np.asarray(np.interp(sides, np.log(self.machine.sides), figures))

    def _pass_s(self, frame: Frame, each: Pass, buffers: Mapping[str, Buffer]) -> Array:
        """Seconds of one loop of the engine; tasks with the same extents are computed once."""
        shape = Shape.of(each, self.network, frame, buffers, self.layout)
        one = np.ones(self.n_tasks)
        lengths = [self.length(axis) if axis else one for axis in shape.axes.values()]
        kinds, of = np.unique(np.array(lengths, np.int64).T, axis=0, return_inverse=True)
        seconds = [
            self._extents_s(shape, dict(zip(shape.axes, kind, strict=True)))
            for kind in kinds.tolist()
        ]
        return np.array(seconds)[of.reshape(-1)]

    def _patches_s(self, frame: Frame, each: Pass) -> Array:
        """Seconds of a pass along patches: what it reads is laid out, position by position, and
        what it makes is added, or put, where it belongs.
        """
        machine, layer = self.machine, self.network.layers[frame.layer]
        link = layer.links[frame.link or 0]
        edges, maps = link.edges, layer.extents[-1]
        assert edges is not None
        shape, n_positions = dense_shape(each), layer.n_positions
        places = max(round(len(edges.indices) / (n_positions * maps)), 1)
        found = []
        for rows in self.size(letter_axes(self.network, frame, "b")).tolist():
            lengths = {"b": int(rows) * n_positions, "o": maps, "i": places}
            seconds = self._loop_s(shape, lengths) if rows else machine.call_s
            for array in shape.seen:
                if "b" in array.axes:
                    n = math.prod(lengths[a] for a in array.axes)
                    of_layer = rows * (link.source.size if "i" in array.axes else layer.size)
                    seconds += n * machine.fetch_s["copy"] + of_layer * machine.fetch_s["step"]
            found.append(seconds)
        return np.array(found)

    def _extents_s(self, shape: Shape, lengths: Mapping[str, int]) -> float:
        machine = self.machine
        if not all(lengths.values()):
            return machine.call_s
        copied = [math.prod(lengths[a] for a in one.axes) for one in shape.seen if one.is_copied]
        copies_s = sum(machine.call_s + n * machine.fetch_s["step"] for n in copied)
        return copies_s + self._loop_s(shape, lengths)

    def _loop_s(self, shape: Shape, lengths: Mapping[str, int]) -> float:
        machine, each = self.machine, shape.each
        if shape.is_sparse and each.is_sum_of_products and "b" in lengths:
            letter = each.axis or "b"
            if lengths["b"] == 1:
                return machine.call_s + lengths["e"] * machine.synapse_alone_s[letter]
            row_s, once_s = machine.synapse_s[letter], machine.synapse_once_s[letter]
            return machine.call_s + lengths["e"] * (lengths["b"] * row_s + once_s)
        if tile := shape.tile(lengths, machine.lanes):
            kind = _TILES.get(tile.fast, each.monoid)
            if tile.fast in (WAVES, SLOPES):
                kind = FUNCTIONS[tile.term] + ("" if tile.fast == WAVES else " slope")
            if tile.fast == SQUARES:
                kind = "squares" if each.axis == "i" else "square columns"
            if kind == "prod" and tile.term in (LESS, MORE):
                kind = "near"
            over = [n for name, n in lengths.items() if tile.fast != PLACES or name in "bo"]
            results = math.prod(n for name, n in lengths.items() if name != each.axis)
            once_s = results * machine.tile_result_s[kind]
            return machine.call_s + math.prod(over) * machine.tile_s[kind] + once_s
        w = shape.walk(lengths, self.itemsize, machine.lanes)
        if each.is_gated and not shape.is_sparse:
            return machine.call_s + w.results * machine.result_s
        whole = w.elements - w.left
        n_views = len(shape.seen) - (len(each.outputs) if each.axis else 0)
        strip_s = machine.strip_s + n_views * machine.view_s + len(each.ops) * machine.apply_s
        found = w.strips * strip_s
        for name, *_ in each.ops:
            found += whole * machine.operation_s[name] + w.left * machine.left_s[name]
        found += w.fetches * machine.fetch_row_s
        found += sum(n * machine.fetch_s[kind] for kind, n in w.fetched.items())
        found += each.n_constants * STRIP_BYTES / self.itemsize * machine.fetch_s["fill"]
        if each.axis:
            found += w.folded * machine.fold_s[each.monoid]
            in_lanes = min(w.folded / (w.folds * LANES), 1.0) if w.folds else 0.0
            found += w.folds * machine.fold_row_s[each.monoid] * in_lanes
            found += w.crossed * machine.cross_s[each.monoid] + w.results * machine.result_s
        return machine.call_s + max(found, self._streamed_s(shape, lengths))

    def _streamed_s(self, shape: Shape, lengths: Mapping[str, int]) -> float:
        """Seconds of transfers into the nearest cache: arrays too large to stay there move once for
        every pass of the outermost axis over them; an array that is written is read before.
        """
        outermost = next((name for name in shape.order(lengths) if name is not None), "1")
        is_deep = bool(shape.each.axis) and len(shape.axes) == 3 and not shape.is_sparse
        found = 0.0
        for k, array in enumerate(shape.seen):
            size = math.prod(lengths[name] for name in array.axes)
            if size * self.itemsize <= NEAR_BYTES:
                continue
            # each place has edges of its own; a reduction over three axes goes by blocks
            once = shape.ragged or is_deep or outermost in array.axes
            times = 1 if once else lengths[outermost]
            if k >= len(shape.seen) - len(shape.each.outputs):
                times *= 2
            found += times * size * float(self._at_size(self.machine.stream_s, np.array(size)))
        return found

    # --- a batch

    def seconds(self, program: Program) -> float:
        *_, (_, _, clock) = self._followed(program)
        return float(clock.max())

    def _turns(
        self, s: Repeat, program: Program, begun: Array
    ) -> Iterator[tuple[Statement, Array, Array]]:
        """The clocks of a repeat in which tasks exchange: one step, multiplied by the steps."""
        posted: dict[int, Array] = {}
        clock = begun
        for each in s.body:
            then, clock = clock, self._after(each, program.buffers, clock, posted)
            before, after = (begun + (at - begun) * program.steps for at in (then, clock))
            yield each, before, after

    def step(self, program: Program) -> StepCost:
        layers: dict[int, float] = {}
        owner: dict[str, int] = {}
        turns = {
            each.superstep: program.steps
            for s in program.statements if isinstance(s, Repeat)
            for each in s.body if isinstance(each, Post)
        }  # fmt: skip
        found: dict[int, Superstep] = {}
        for statement, then, clock in self._followed(program):
            took = clock - then
            if isinstance(statement, Post):
                times = turns.get(statement.superstep, 1)
                described = self._described(statement, program.buffers, owner, times)
                found[statement.superstep] = described.later(float(took.max()))
            elif isinstance(statement, Collect):  # the last task waits for nobody
                begun = found[statement.superstep]
                found[statement.superstep] = begun.later(float(took.min()))
            elif statement is not None:
                layer = _layer(statement)
                owner.update(dict.fromkeys(_written(statement), layer))
                layers[layer] = layers.get(layer, 0.0) + float(took.max())
        return StepCost(float(clock.max()), layers, tuple(found[n] for n in sorted(found)))

    def _followed(self, program: Program) -> Iterator[tuple[Statement | None, Array, Array]]:
        """Each statement with the tasks' clocks before and after it; first the batch's Python."""
        # The layout of arrays is the same in every placement.
        self.layout = choose_layout(program, self.machine.products, self.batch_size)
        self.patched = find_patched(program, self.batch_size)
        clock = np.full(self.n_tasks, self.machine.batch_s * self.crowd)
        posted: dict[int, Array] = {}
        yield None, clock, clock
        elsewhere = self._done_elsewhere(program)
        for statement in program.statements:
            then = clock
            if id(statement) in elsewhere:
                continue
            if isinstance(statement, Repeat) and exchanges(statement):
                turns = list(self._turns(statement, program, clock))
                yield from turns
                *_, (_, _, clock) = turns
                continue
            elif isinstance(statement, (Repeat, AllSteps, Parts)):
                for each, times, n_steps in _in_time(statement, program.steps):
                    then, self.n_steps = clock, n_steps
                    clock = clock + self.compute_s(each, program.buffers) * times
                    yield each, then, clock
                self.n_steps = 1
                continue
            clock = self._after(statement, program.buffers, clock, posted)
            yield statement, then, clock

    def _after(
        self, s: Statement, buffers: Mapping[str, Buffer], clock: Array, posted: dict[int, Array]
    ) -> Array:
        """The clocks after a statement; after a post they are noted in ``posted``."""
        if isinstance(s, Collect):
            return self._collected(s, buffers, clock, posted)
        if not isinstance(s, Post):
            return clock + self.compute_s(s, buffers)
        posted[s.superstep] = clock + self._pack_s(s, buffers) * self.crowd
        return posted[s.superstep]

    def _done_elsewhere(self, program: Program) -> set[int]:
        """The loops, by their ``id``, whose work is part of sums or extremes over windows."""
        if program.steps or all(x.links[0].edges is None for x in self.network.layers[1:]):
            return set()
        joined = plan(program)
        places = set(joined.places.values())
        return set(joined.with_end) | {
            id(s)
            for s in program.statements
            if isinstance(s, Loop) and id(s) in joined.done and s.outputs[0].buffer in places
        }

    def _pack_s(self, post: Post, buffers: Mapping[str, Buffer]) -> Array:
        machine = self.machine
        seconds = np.full(self.n_tasks, machine.superstep_s / 2)
        for move in post.moves:
            t = self.traffic(move, buffers)
            seconds = seconds + t.n_packed * machine.block_s
            seconds = seconds + t.packed * self.itemsize / machine.pack_bytes_per_s
        return seconds

    def _collected(
        self, s: Collect, buffers: Mapping[str, Buffer], clock: Array, posted: dict[int, Array]
    ) -> Array:
        """The clocks after a collect: once the last block has arrived and is unpacked."""
        machine = self.machine
        sent = np.zeros((self.n_tasks, self.n_tasks))
        unpack = np.full(self.n_tasks, machine.superstep_s / 2)
        for move in s.moves:
            t = self.traffic(move, buffers)
            sent += t.elements * self.itemsize
            came = t.elements.sum(axis=0) + t.kept
            copies = 1.5 if move.monoid else 1.0
            unpack = unpack + ((t.elements > 0).sum(axis=0) + 1) * machine.block_s
            unpack = unpack + copies * came * self.itemsize / machine.unpack_bytes_per_s
        busiest = np.maximum(sent.sum(axis=1), sent.sum(axis=0))
        travel = (
            machine.latency_s[self.transport] * self.crowd
            + busiest / machine.bandwidth_bytes_per_s[self.transport]
        )
        departed = posted[s.superstep]
        arrival = np.where(sent > 0, departed[:, None] + travel[:, None], 0.0).max(axis=0)
        return np.asarray(np.maximum(clock, arrival) + unpack * self.crowd)

    def _described(
        self, post: Post, buffers: Mapping[str, Buffer], owner: Mapping[str, int], times: int = 1
    ) -> Superstep:
        """The description of an exchange. times : the number of steps at which it runs."""
        moves = [self.traffic(move, buffers).elements for move in post.moves]
        return Superstep(
            post.superstep,
            tuple(move.array for move in post.moves),
            owner.get(post.moves[0].array, 0),
            sum(int((elements > 0).sum()) for elements in moves) * times,
            sum(int(elements.sum()) for elements in moves) * self.itemsize * times,
            0.0,
        )


def _in_time(s: Repeat | AllSteps | Parts, steps: int) -> Iterator[tuple[Statement, float, int]]:
    """Each statement inside, with its number of runs, and the steps that one run computes."""
    if isinstance(s, Repeat):
        yield from ((each, steps, 1) for each in s.body)
    elif isinstance(s, AllSteps):
        yield from ((each, 1, steps) for each in s.body)
    else:
        n_parts = -(-steps // s.length)
        for each in s.forward * 2 + s.behind + s.judge + s.backward:
            if isinstance(each, (Repeat, AllSteps)):
                for inner, times, at_once in _in_time(each, s.length):
                    yield inner, times * steps / s.length, at_once
            else:
                yield each, n_parts, 1


def _layer(statement: Statement) -> int:
    frame: Frame | None = getattr(statement, "frame", None)
    if frame is not None:
        return frame.layer
    return statement.layer if isinstance(statement, Draw) else 0


def _written(statement: Statement) -> tuple[str, ...]:
    if isinstance(statement, Loop):
        return tuple(o.buffer for o in statement.outputs)
    return () if isinstance(statement, Update) else (statement.out,)  # type: ignore[attr-defined]


def _kind(s: Matmul | Update) -> str:
    if isinstance(s, Update):
        return "update" if s.velocity is None else "momentum"
    return {"i": "forward", "o": "backward", "b": "gradient"}[s.axis]


def _ends(places: list[Places]) -> Array:
    return np.array([(p.start, p.stop) for p in places if isinstance(p, slice)], np.float64)


def _n_common(a: Places, b: Places) -> int:
    if isinstance(a, slice) and isinstance(b, slice):
        return int(max(min(a.stop, b.stop) - max(a.start, b.start), 0))
    if isinstance(a, slice):
        first, end = np.searchsorted(np.asarray(b), [a.start, a.stop])
        return int(end - first)
    if isinstance(b, slice):
        return _n_common(b, a)
    return int(np.isin(a, b).sum())
