"""What a partitioned, scheduled program costs each task per batch: a model, and its figures.

Computing is a sum over statements, each a straight line in a few counts (multiplications, elements,
bytes). Exchanges are followed on a clock per task: a task that collects waits for the last of those
that owe it something, so that uneven shares count, and what is computed between a post and its
collect hides waiting, but no copying. See docs/notes/0021-one-network-over-many-tasks.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from horn.compiler import ir
from horn.compiler.ir import Node, Op
from horn.compiler.program import (
    Buffer,
    Collect,
    Draw,
    Input,
    Loop,
    Matmul,
    Move,
    Pick,
    Post,
    Program,
    Statement,
    Target,
    Update,
    base,
    letter_axes,
)
from horn.compiler.share import Places, Share
from horn.network import Network

Array = np.ndarray[Any, Any]

# Operations that take as long as many others.
_HARD = frozenset(
    Op(name)
    for name in ("exp", "log", "tanh", "sigmoid", "sin", "cos", "pow", "softplus", "sqrt", "div")
    if name in {op.value for op in ir.ELEMENTWISE}
)
_FREE = frozenset({Op.CONST, Op.SCALAR, Op.LOAD})


@dataclass(frozen=True)
class Machine:
    """What one task can do here, in seconds: all figures are for one dtype and one task's threads.

    call_s : an instruction of the engine, whatever it does. multiply_s : a multiplication and an
    addition of a large product. side_s : an entry of its three arrays (packing, thin shapes).
    element_s, operation_s, hard_s : of a loop, an element, and for each an operation that is cheap,
    or dear (exp, division). draw_s : a random number by kind. gather_s : an element at a place of
    its own.
    cache_bytes : what all tasks together keep near. cache_bytes_per_s, memory_bytes_per_s : how
    fast a task streams what fits and what does not.
    batch_s : the Python of a batch. superstep_s, block_s : the Python of an exchange, and of each
    block in it. copy_bytes_per_s : into and out of mailboxes.
    latency_s, bandwidth_bytes_per_s : by transport, from a post to the other's waking; of one task.
    """

    n_cores: int = 2
    call_s: float = 0.4e-6
    multiply_s: float = 2e-11
    side_s: float = 2e-10
    element_s: float = 1e-10
    operation_s: float = 5e-11
    hard_s: float = 1e-9
    gather_s: float = 2e-9
    draw_s: Mapping[str, float] = field(default_factory=lambda: {"uniform": 2e-9, "normal": 6e-9})
    cache_bytes: float = 32e6
    cache_bytes_per_s: float = 2e10
    memory_bytes_per_s: float = 8e9
    batch_s: float = 30e-6
    superstep_s: float = 25e-6
    block_s: float = 3e-6
    copy_bytes_per_s: float = 1e10
    latency_s: Mapping[str, float] = field(
        default_factory=lambda: {"inproc": 60e-6, "ipc": 80e-6, "shm": 5e-6, "tcp": 90e-6}
    )
    bandwidth_bytes_per_s: Mapping[str, float] = field(
        default_factory=lambda: {"inproc": 4e9, "ipc": 1.5e9, "shm": 1e11, "tcp": 1.2e9}
    )


@dataclass(frozen=True)
class Traffic:
    """What a move sends. elements (n_tasks, n_tasks): from row to column, 0 on the diagonal.

    packed, n_packed : elements and blocks that each task writes; a block for several is one.
    kept : elements that a task has itself of what it wants.
    """

    elements: Array
    packed: Array
    n_packed: Array
    kept: Array


@dataclass(frozen=True)
class Superstep:
    """One exchange of a batch. Seconds of the slowest task; messages and bytes of all together.

    layer : the place of the layer whose values travel, the first of them.
    """

    index: int
    arrays: tuple[str, ...]
    layer: int
    n_messages: int
    n_bytes: int
    seconds: float


@dataclass(frozen=True)
class StepCost:
    """A batch: its seconds, what each layer computes (the slowest task's seconds), supersteps."""

    seconds: float
    layers: dict[int, float]
    supersteps: tuple[Superstep, ...]


class Costs:
    """The model for one network on a machine, for as many programs as are tried."""

    def __init__(
        self,
        network: Network,
        machine: Machine,
        n_tasks: int,
        batch_size: int,
        dtype: str = "float32",
        transport: str = "shm",
        n_slots: int = 1,
    ) -> None:
        self.network, self.machine, self.n_tasks = network, machine, n_tasks
        self.batch_size, self.transport = batch_size, transport
        self.itemsize = np.dtype(dtype).itemsize
        self.shares = [Share(network, task, n_tasks) for task in range(n_tasks)]
        self.crowd = max(1.0, n_tasks / machine.n_cores)  # tasks that share a core
        self._lengths: dict[str, Array] = {}
        self._moves: dict[tuple[tuple[str, ...], tuple[str, ...]], Traffic] = {}
        learned = sum(
            count_of(link.edges, layer.size * link.source.size)
            for layer in network.layers
            for link in layer.links
        )
        # Every batch passes over all of it: if it does not fit, nothing of it is there any more.
        fits = learned * (1 + n_slots) * self.itemsize <= machine.cache_bytes
        self.bytes_per_s = machine.cache_bytes_per_s if fits else machine.memory_bytes_per_s

    # --- counts

    def length(self, axis: str) -> Array:
        """(n_tasks,) how many places of an axis each task has."""
        if axis not in self._lengths:
            found = [share.length(axis, self.batch_size) for share in self.shares]
            self._lengths[axis] = np.array(found, np.float64)
        return self._lengths[axis]

    def size(self, axes: tuple[str, ...]) -> Array:
        """(n_tasks,) the elements of an array with these axes."""
        found = np.ones(self.n_tasks)
        for axis in axes:
            found = found * self.length(axis)
        return found

    def traffic(self, have: tuple[str, ...], want: tuple[str, ...]) -> Traffic:
        """What a move sends, from an array's axes to those that are wanted."""
        if (have, want) not in self._moves:
            self._moves[have, want] = self._traffic(have, want)
        return self._moves[have, want]

    def _traffic(self, have: tuple[str, ...], want: tuple[str, ...]) -> Traffic:
        elements = np.ones((self.n_tasks, self.n_tasks))
        for a, b in zip(have, want, strict=True):
            elements = elements * self._overlap(a, b)
        kept = elements.diagonal().copy()
        np.fill_diagonal(elements, 0.0)
        if all(base(axis) == axis for axis in want):  # all want the same: one block
            packed, n_packed = elements.max(axis=1), (elements > 0).any(axis=1).astype(float)
        else:
            packed, n_packed = elements.sum(axis=1), (elements > 0).sum(axis=1).astype(float)
        return Traffic(elements, packed, n_packed, kept)

    def _overlap(self, have: str, want: str) -> Array:
        """(n_tasks, n_tasks) how many places of an axis the row has and the column wants."""
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
        """(n_tasks,) seconds of a statement that is no exchange."""
        machine = self.machine
        if isinstance(statement, (Matmul, Update)):
            return self._product_s(statement)
        if isinstance(statement, Loop):
            return self._loop_s(statement, buffers)
        size = self.size(buffers[statement.out].axes)  # type: ignore[attr-defined]
        if isinstance(statement, Draw):
            return machine.call_s + size * machine.draw_s[statement.kind]
        if isinstance(statement, (Input, Target, Pick)):
            each = machine.gather_s if isinstance(statement, Pick) else machine.element_s
            return machine.call_s + size * (each + 2 * self.itemsize / machine.cache_bytes_per_s)
        return np.full(self.n_tasks, machine.call_s)

    def _product_s(self, s: Matmul | Update) -> Array:
        machine = self.machine
        letters = letter_axes(self.network, s.frame, "o"), letter_axes(self.network, s.frame, "i")
        o, i = self.size(letters[0]), self.size(letters[1])
        b = self.size(letter_axes(self.network, s.frame, "b"))
        sides = o * i + b * i + b * o
        found = machine.call_s + o * i * b * machine.multiply_s + sides * machine.side_s
        passes = 1.0 if isinstance(s, Matmul) else 2.0 if s.velocity is None else 4.0
        streamed = np.asarray(passes * o * i * self.itemsize / self.bytes_per_s)
        return np.where(o * i * b > 0, found + streamed, machine.call_s)

    def _loop_s(self, s: Loop, buffers: Mapping[str, Buffer]) -> Array:
        machine = self.machine
        letters = ir.union(*(ir.union(o.node.axes, o.axis) for o in s.outputs))
        elements = self.size(letter_axes(self.network, s.frame, letters))
        cheap, hard = _operations(tuple(o.node for o in s.outputs))
        each = machine.element_s + cheap * machine.operation_s + hard * machine.hard_s
        names = {n.value for n in ir.walk(*(o.node for o in s.outputs)) if n.op is Op.LOAD}
        arrays = [*names, *(o.buffer for o in s.outputs)]
        large = sum((self.size(buffers[name].axes) for name in arrays), np.zeros(self.n_tasks))
        learned = any(buffers[o.buffer].role in ("learned", "slot") for o in s.outputs)
        rate = self.bytes_per_s if learned else machine.cache_bytes_per_s
        if "e" in "".join(letter_axes(self.network, s.frame, letters)):
            each += machine.gather_s
        return machine.call_s + elements * each + large * self.itemsize / rate

    # --- a batch

    def step(self, program: Program) -> StepCost:
        """A batch of a scheduled program."""
        clock = np.full(self.n_tasks, self.machine.batch_s * self.crowd)
        posted: dict[int, Array] = {}
        layers: dict[int, float] = {}
        owner: dict[str, int] = {}
        found: dict[int, Superstep] = {}
        for statement in program.statements:
            if isinstance(statement, Post):
                then = clock
                clock = clock + self._pack_s(statement, program.buffers) * self.crowd
                posted[statement.superstep] = clock
                found[statement.superstep] = self._described(statement, program.buffers, owner)
                spent = float((clock - then).max())
            elif isinstance(statement, Collect):
                then = clock
                clock = self._collected(statement, program.buffers, clock, posted)
                spent = float((clock - then).min())  # who comes last waits for nobody
            else:
                layer = _layer(statement)
                for name in _written(statement):
                    owner[name] = layer
                seconds = self.compute_s(statement, program.buffers) * self.crowd
                clock = clock + seconds
                layers[layer] = layers.get(layer, 0.0) + float(seconds.max())
                continue
            before = found[statement.superstep]
            found[statement.superstep] = _later(before, spent)
        return StepCost(float(clock.max()), layers, tuple(found[n] for n in sorted(found)))

    def _pack_s(self, post: Post, buffers: Mapping[str, Buffer]) -> Array:
        machine = self.machine
        seconds = np.full(self.n_tasks, machine.superstep_s / 2)
        for move in post.moves:
            t = self._traffic_of(move, buffers)
            seconds = seconds + t.n_packed * machine.block_s
            seconds = seconds + t.packed * self.itemsize / machine.copy_bytes_per_s
        return seconds

    def _collected(
        self, s: Collect, buffers: Mapping[str, Buffer], clock: Array, posted: dict[int, Array]
    ) -> Array:
        """The clocks after a collect: when the last block is here, and is unpacked."""
        machine = self.machine
        sent = np.zeros((self.n_tasks, self.n_tasks))
        unpack = np.full(self.n_tasks, machine.superstep_s / 2)
        for move in s.moves:
            t = self._traffic_of(move, buffers)
            sent += t.elements * self.itemsize
            came = t.elements.sum(axis=0) + t.kept
            copies = 1.5 if move.monoid else 1.0
            unpack = unpack + ((t.elements > 0).sum(axis=0) + 1) * machine.block_s
            unpack = unpack + copies * came * self.itemsize / machine.copy_bytes_per_s
        busiest = np.maximum(sent.sum(axis=1), sent.sum(axis=0))
        travel = (
            machine.latency_s[self.transport] * self.crowd
            + busiest / machine.bandwidth_bytes_per_s[self.transport]
        )
        departed = posted[s.superstep]
        arrival = np.where(sent > 0, departed[:, None] + travel[:, None], 0.0).max(axis=0)
        return np.asarray(np.maximum(clock, arrival) + unpack * self.crowd)

    def _traffic_of(self, move: Move, buffers: Mapping[str, Buffer]) -> Traffic:
        return self.traffic(buffers[move.array].axes, buffers[move.out].axes)

    def _described(
        self, post: Post, buffers: Mapping[str, Buffer], owner: Mapping[str, int]
    ) -> Superstep:
        moves = [self._traffic_of(move, buffers).elements for move in post.moves]
        return Superstep(
            post.superstep,
            tuple(move.array for move in post.moves),
            owner.get(post.moves[0].array, 0),
            sum(int((elements > 0).sum()) for elements in moves),
            sum(int(elements.sum()) for elements in moves) * self.itemsize,
            0.0,
        )


def count_of(edges: Any, dense: int) -> int:
    """The synapses of a link."""
    return dense if edges is None else len(edges.indices)


def _later(superstep: Superstep, seconds: float) -> Superstep:
    s = superstep
    return Superstep(s.index, s.arrays, s.layer, s.n_messages, s.n_bytes, s.seconds + seconds)


def _layer(statement: Statement) -> int:
    if isinstance(statement, (Loop, Matmul, Update)):
        return statement.frame.layer
    return statement.layer if isinstance(statement, Draw) else 0


def _written(statement: Statement) -> tuple[str, ...]:
    if isinstance(statement, Loop):
        return tuple(o.buffer for o in statement.outputs)
    return () if isinstance(statement, Update) else (statement.out,)  # type: ignore[attr-defined]


def _operations(roots: tuple[Node, ...]) -> tuple[int, int]:
    """How many operations an element of a loop takes: cheap ones, dear ones."""
    hard = cheap = 0
    for node in ir.walk(*roots):
        hard += node.op in _HARD
        cheap += node.op not in _HARD and node.op not in _FREE
    return cheap, hard


def _ends(places: list[Places]) -> Array:
    return np.array([(p.start, p.stop) for p in places if isinstance(p, slice)], np.float64)


def _n_common(a: Places, b: Places) -> int:
    if isinstance(a, slice) and isinstance(b, slice):
        return max(min(a.stop, b.stop) - max(a.start, b.start), 0)
    if isinstance(a, slice):
        first, end = np.searchsorted(np.asarray(b), [a.start, a.stop])
        return int(end - first)
    if isinstance(b, slice):
        return _n_common(b, a)
    return int(np.isin(a, b).sum())
