"""The cost model: the time of a partitioned, scheduled program per task and batch.

Computing is a sum over statements (``computing``). Exchanges are followed on a clock per task: a
collect waits for the last sender, so uneven shares count, and computing between a post and its
collect hides waiting, but no copying.
See docs/notes/0021-one-network-over-many-tasks.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from horn import defaults
from horn.network import Network
from horn.partition.share import Places, Share
from horn.planner.computing import Array, Computing
from horn.planner.machine import Machine
from horn.program import (
    AllSteps,
    Buffer,
    Collect,
    Convolve,
    Draw,
    Frame,
    Loop,
    Matmul,
    Move,
    Parts,
    Post,
    Program,
    Repeat,
    Statement,
    Update,
    base,
    exchanges,
)
from horn.scheduling.choices import choose_threads
from horn.scheduling.folds import joined_of

# The speed that each further thread of a task adds, measured with two (docs/notes/0002).
THREAD = 0.8
# A sum of seconds in another order differs by less than this part of it.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Traffic:
    """The traffic of a move. elements (n_tasks, n_tasks): from row to column, 0 on the diagonal.

    packed, n_packed : elements and blocks that each task writes; a block for several receivers
    counts once. came, n_came : elements and blocks that it takes, with those from itself.
    """

    elements: Array
    packed: Array
    n_packed: Array
    came: Array
    n_came: Array


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
        transport: str = defaults.TRANSPORT,
        threads: int = 1,
        n_groups: int = 1,
    ) -> None:
        self.network, self.machine, self.n_tasks = network, machine, n_tasks
        self.batch_size, self.transport = batch_size, transport
        self.is_dense = all(link.edges is None for x in network.layers for link in x.links)
        self.itemsize = np.dtype(dtype).itemsize
        self.computing = Computing(network, machine, n_tasks, batch_size, self.itemsize)
        self.crowd = max(1.0, n_groups * n_tasks / machine.n_cores)  # tasks that share a core
        others = min(n_groups * n_tasks, machine.n_cores) - 1
        if others > 0:
            self.crowd *= 1.0 + (machine.together - 1.0) * others / (machine.n_cores - 1)
        used = choose_threads(network, batch_size, threads, n_tasks)
        self.slower = self.crowd / (1.0 + THREAD * (used - 1))
        self._traffic: dict[tuple[tuple[str, ...], tuple[str, ...]], Traffic] = {}
        # by id, which they keep, and by how windows are run
        self._computed: dict[tuple[int, tuple[bool, ...]], tuple[Statement, Array]] = {}
        self._least: dict[int, tuple[Statement, Array]] = {}

    # --- exchanges

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
        found = self._traffic[have, want] = Traffic(
            elements, packed, n_packed,
            elements.sum(axis=0) + kept, (elements > 0).sum(axis=0) + 1,
        )  # fmt: skip
        return found

    def _overlap(self, have: str, want: str) -> Array:
        """The places of an axis that the row has and the column wants (n_tasks, n_tasks)."""
        sources = [self._places(share, have) for share in self.computing.shares]
        wanted = [self._places(share, want) for share in self.computing.shares]
        if all(isinstance(p, slice) for p in (*sources, *wanted)):
            a, b = _ends(sources), _ends(wanted)
            start = np.maximum(a[:, :1], b[:, 0])
            return np.asarray(np.maximum(np.minimum(a[:, 1:], b[:, 1]) - start, 0.0))
        return np.array([[_n_common(a, b) for b in wanted] for a in sources], np.float64)

    def _places(self, share: Share, axis: str) -> Places:
        if base(axis) == "b":
            return share.rows(axis, self.batch_size, self.batch_size)
        return share.places(axis)

    def compute_s(self, statement: Statement, buffers: Mapping[str, Buffer]) -> Array:
        """Seconds of a statement that is no exchange, per task (n_tasks,)."""
        key = id(statement), self.computing.in_patches(statement)
        found = self._computed.get(key)
        if found is None:
            seconds = self.computing.seconds(statement, buffers) * self.slower
            found = self._computed[key] = (statement, seconds)
        return found[1]

    # --- a batch

    def least_s(self, program: Program, limit: float) -> float:
        """Seconds that a program takes at least, before it is scheduled: what the slowest task
        computes, packs and unpacks in one superstep, however little it waits. Once they reach the
        limit, statements that no other program had are left out.
        """
        if not self._least:
            self.computing.begin(program)
        found, new = [np.full(self.n_tasks, self.machine.batch_s * self.crowd)], []
        has_moves = False
        for s in program.statements:
            known = self._least.get(id(s))
            if known is not None:
                found.append(known[1])
            elif isinstance(s, Move):
                found.append(self._least_of(s, program.buffers))
            else:
                new.append(s)
            has_moves |= isinstance(s, Move)
        once_s = self.machine.superstep_s * self.crowd * has_moves
        least_s = (once_s + float(np.sum(found, axis=0).max())) * (1 - ROUNDING)
        if not new or least_s >= limit:
            return least_s
        found += [self._least_of(s, program.buffers) for s in new]
        return (once_s + float(np.sum(found, axis=0).max())) * (1 - ROUNDING)

    def further_s(self, program: Program) -> float:
        """Seconds that the supersteps after the first add to what a program takes at least."""
        n_supersteps = sum(isinstance(s, Post) for s in program.statements)
        return max(n_supersteps - 1, 0) * self.machine.superstep_s * self.crowd

    def _least_of(self, s: Statement, buffers: Mapping[str, Buffer]) -> Array:
        if isinstance(s, Move):
            both_s = self._pack_s((s,), buffers) + self._unpack_s((s,), buffers)
            seconds = (both_s - self.machine.superstep_s) * self.crowd
        elif self.is_dense or isinstance(s, (Convolve, Matmul, Update)):
            seconds = self.compute_s(s, buffers)
        else:  # the statements around it decide where it is done, and how
            seconds = np.zeros(self.n_tasks)
        self._least[id(s)] = s, seconds
        return seconds

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
        self.computing.begin(program)
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
                    then, self.computing.n_steps = clock, n_steps
                    clock = clock + self.compute_s(each, program.buffers) * times
                    yield each, then, clock
                self.computing.n_steps = 1
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
        posted[s.superstep] = clock + self._pack_s(s.moves, buffers) * self.crowd
        return posted[s.superstep]

    def _done_elsewhere(self, program: Program) -> set[int]:
        """The loops, by their ``id``, whose work is part of sums or extremes over windows."""
        if program.steps or all(x.links[0].edges is None for x in self.network.layers[1:]):
            return set()
        joined = joined_of(program)
        places = set(joined.places.values())
        return set(joined.with_end) | {
            id(s)
            for s in program.statements
            if isinstance(s, Loop) and id(s) in joined.done and s.outputs[0].buffer in places
        }

    def _pack_s(self, moves: Sequence[Move], buffers: Mapping[str, Buffer]) -> Array:
        machine = self.machine
        seconds = np.full(self.n_tasks, machine.superstep_s / 2)
        for move in moves:
            t = self.traffic(move, buffers)
            seconds = seconds + t.n_packed * machine.block_s
            seconds = seconds + t.packed * self.itemsize / machine.pack_bytes_per_s
        return seconds

    def _unpack_s(self, moves: Sequence[Move], buffers: Mapping[str, Buffer]) -> Array:
        machine = self.machine
        seconds = np.full(self.n_tasks, machine.superstep_s / 2)
        for move in moves:
            t = self.traffic(move, buffers)
            copies = 1.5 if move.monoid else 1.0
            seconds = seconds + t.n_came * machine.block_s
            seconds = seconds + copies * t.came * self.itemsize / machine.unpack_bytes_per_s
        return seconds

    def _collected(
        self, s: Collect, buffers: Mapping[str, Buffer], clock: Array, posted: dict[int, Array]
    ) -> Array:
        """The clocks after a collect: once the last block has arrived and is unpacked."""
        machine = self.machine
        sent = np.zeros((self.n_tasks, self.n_tasks))
        for move in s.moves:
            sent += self.traffic(move, buffers).elements * self.itemsize
        busiest = np.maximum(sent.sum(axis=1), sent.sum(axis=0))
        travel = (
            machine.latency_s[self.transport] * self.crowd
            + busiest / machine.bandwidth_bytes_per_s[self.transport]
        )
        departed = posted[s.superstep]
        arrival = np.where(sent > 0, departed[:, None] + travel[:, None], 0.0).max(axis=0)
        unpack = self._unpack_s(s.moves, buffers)
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
