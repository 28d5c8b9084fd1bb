"""A task's engine under a strategy: the group's engine, and what the strategy asks for between
batches.

The strategy says what is to be sent and waited for; here it is done. Every wait has a deadline.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from horn.backends import Setup
from horn.compiler.placement import Placement
from horn.compiler.program import Post
from horn.data import Dataset
from horn.errors import BarrierTimeout, ProtocolError
from horn.job import Job
from horn.runtime.engine import GroupEngine
from horn.runtime.group import Group, Spent
from horn.runtime.messages import (
    Array,
    Ask,
    Gradients,
    Left,
    Message,
    Meta,
    Parameters,
    Values,
    Verdict,
    Wanted,
)
from horn.strategies import Leave, Mean, Pull, Push, Requests, Strategy, Topology, View
from horn.strategies._pieces import Piece, messages
from horn.strategies._pieces import pieces as all_pieces
from horn.transport import Transport

LOOK_S = 1.0  # how often who waits looks whether something has happened beside it

M = TypeVar("M", bound=Meta)


@dataclass
class Seat:
    """A task's place in the run: what a strategy makes its engine from.

    job : as the groups run it. group : the connection for supersteps, of all tasks if the strategy
    is joined, else of this group's. wire : the connection for messages between batches, of all
    ranks. initial : as in GroupEngine. spent : time and bytes of what goes between batches. check :
    called now and then by who waits; raises what has happened beside it.
    """

    job: Job
    topology: Topology
    rank: int
    placement: Placement
    group: Group
    wire: Transport | None = None
    backend: str = "kernels"
    threads: int | None = None
    initial: Mapping[str, Array] | None = None
    timeout_s: float = 60.0
    spent: Spent = field(default_factory=Spent)
    check: Callable[[], None] | None = None


class Replica(GroupEngine):
    """One task's engine. ``own_loss``, ``own_samples`` are of the last batch, in this group."""

    def __init__(self, strategy: Strategy, seat: Seat) -> None:
        job, topology = seat.job, seat.topology
        n_joined = topology.n_groups if strategy.is_joined else 1
        size = min(job.batch_size, len(job.data))
        if not strategy.is_joined:
            size = -(-size // topology.n_groups)
        setup = Setup(
            job.network, strategy.optimizer(job), job.target, size, job.dtype, seat.threads
        )
        super().__init__(
            setup,
            seat.placement,
            seat.group,
            backend=seat.backend,
            initial=seat.initial,
            owns_initial=True,
            n_groups=n_joined,
        )
        self.strategy, self.topology = strategy, topology
        self.own_group, self.own_task = divmod(seat.rank, topology.n_tasks)
        self.is_joined = strategy.is_joined
        self.wire: Wire | None = None
        if seat.wire is not None:
            cut = all_pieces(job.network, seat.placement, topology, job.dtype)
            self.wire = Wire(
                seat.wire, topology, cut, job.dtype, seat.timeout_s, seat.spent, seat.check
            )
        self.view = View(self.own_group, self.own_task, topology, {}, {})
        self.memory: Any = None
        self.own_loss, self.own_samples = 0.0, 0
        self._own_total: str | None = None

    def bind(self, data: Dataset) -> None:
        super().bind(data)
        self.view.parameters = {name: self.arrays[name] for name in self._learned}
        self.view.slots = {name: self.arrays[name] for name in self._slots}
        self.memory = self.strategy.begin(self.view)
        assert self._training is not None
        program = self._training[0].program
        totals = (
            move.array
            for s in program.statements
            if isinstance(s, Post)
            for move in s.moves
            if move.across and move.out == program.loss
        )
        self._own_total = next(totals, None)  # before it is added to that of other groups
        if self.wire is not None and self.topology.n_servers and self.own_group == 0:
            self.wire.begin(self.view.parameters)

    def step(self, rows: Array, *, iteration: int, first_sample: int) -> float:
        """One batch of all groups; the loss is that of all under a joined strategy, else this
        group's own.
        """
        self._do(self.strategy.before_batch(self.memory, self.view))
        n, groups = len(rows), self.topology.n_groups
        start, stop = (n * k // groups for k in (self.own_group, self.own_group + 1))
        self.own_samples = stop - start
        if self.is_joined:
            loss = super().step(rows, iteration=iteration, first_sample=first_sample)
        elif start == stop:
            loss = 0.0
        else:
            loss = super().step(
                rows[start:stop], iteration=iteration, first_sample=first_sample + start
            )
        self.own_loss = self._own_loss(loss)
        self.view.n_batches += 1
        self.view.n_samples = self.own_samples
        self._do(self.strategy.after_batch(self.memory, self.view))
        return loss

    def _own_loss(self, loss: float) -> float:
        """The mean loss of this group's own samples."""
        if not self.is_joined or self._own_total is None or not self.own_samples:
            return loss
        assert self._training is not None
        return float(self._training[0].value(self._own_total)) / self.own_samples

    def settle(self) -> None:
        """Before group 0 measures, at the end of an epoch."""
        self._do(self.strategy.at_epoch_end(self.memory, self.view))

    def conclude(self) -> None:
        """After the last batch."""
        self._do(self.strategy.at_end(self.memory, self.view))
        if self.wire is not None:
            self.wire.part()

    def agree(self, epoch: int, stop: bool) -> bool:
        """Whether training ends after this epoch: what group 0 says."""
        if self.is_joined or self.wire is None:
            return stop
        return self.wire.ask(epoch, stop)

    def _do(self, requests: Requests) -> None:
        for request in requests:
            assert self.wire is not None, f"{self.strategy.name} says that it sends no messages"
            match request:
                case Mean(arrays):
                    self.wire.mean(list(arrays))
                case Push():
                    self.wire.push(request)
                case Pull():
                    self.wire.pull(request, self.view.parameters)
                case Leave():
                    self.wire.leave()


class Wire:
    """A task's messages to servers and to its like in other groups.

    Raises
    ------
    BarrierTimeout : an answer is late. ProtocolError : it is not what was asked for.
    """

    def __init__(
        self,
        transport: Transport,
        topology: Topology,
        pieces: Sequence[Piece],
        dtype: str,
        timeout_s: float,
        spent: Spent,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.transport, self.topology, self.timeout_s = transport, topology, timeout_s
        self.check = check
        self.rank = transport.task
        self.group, self.task = divmod(self.rank, topology.n_tasks)
        size = np.dtype(dtype).itemsize
        servers = range(topology.n_servers)
        mine = [[p for p in pieces if p.server == s] for s in servers]
        # by server: what this task pushes, and what it gets
        self.owned = [messages([p for p in of if p.owner == self.task], size) for of in mine]
        self.held = [messages([p for p in of if self.task in p.holders], size) for of in mine]
        self.pieces = {p.index: p for p in pieces}
        self.spent = spent
        self._early: deque[Message] = deque()
        self._n_means = 0

    def begin(self, arrays: Mapping[str, Array]) -> None:
        """Tell servers what training begins with."""
        for server, batches in enumerate(self.owned):
            for some in batches:
                meta = Parameters(pieces=tuple(p.index for p in some))
                self._send(server, meta, [_part(arrays, p) for p in some])

    def push(self, push: Push) -> None:
        for server, batches in enumerate(self.owned):
            for some in batches:
                meta = Gradients(
                    pieces=tuple(p.index for p in some), clock=push.clock, samples=push.samples
                )
                self._send(server, meta, [_part(push.gradients, p) for p in some])

    def pull(self, pull: Pull, arrays: Mapping[str, Array]) -> None:
        """The group's first task asks; what comes goes into ``arrays``."""
        if self.task == 0:
            for server in range(len(self.held)):
                self._send(server, Wanted(clock=pull.clock, final=pull.final), ())
        awaited = {p.index for batches in self.held for some in batches for p in some}
        where = f"task {self.rank}, pull {pull.clock}"
        # Other groups may take much longer to end, and group 0 to warm up; that they still do
        # something is the servers' to watch.
        is_patient = pull.final or (self.group > 0 and pull.clock == 0)
        ends = None if is_patient else time.monotonic() + self.timeout_s
        while awaited:
            owing = sorted({self.pieces[index].server for index in awaited})
            message = self._next(Parameters, ends, where, owing)
            meta = message.meta
            assert isinstance(meta, Parameters)
            if meta.clock != pull.clock or not awaited.issuperset(meta.pieces):
                raise ProtocolError(
                    f"{where}: got pieces {meta.pieces} of pull {meta.clock} from "
                    f"{self.topology.name(message.src)}"
                )
            for index, array in zip(meta.pieces, message.arrays, strict=True):
                _part(arrays, self.pieces[index])[...] = array
            awaited.difference_update(meta.pieces)
        if pull.final:
            for server in range(len(self.held)):
                self._send(server, Left(is_thanks=True), ())

    def leave(self) -> None:
        """Tell servers, and wait until they have heard it. ZeroMQ drops what the other end has not
        read when it has no room for more and the connection ends.
        """
        for server in range(len(self.held)):
            self._send(server, Left(), ())
        self._await_left([self.topology.server(s) for s in range(len(self.held))])

    def part(self) -> None:
        """Where there are no servers: wait until the same task of every group has finished."""
        if not self.topology.n_servers:
            groups = range(self.topology.n_groups)
            others = [self.topology.rank(g, self.task) for g in groups if g != self.group]
            for rank in others:
                self.transport.send(rank, Left(), (), self.timeout_s)
            self._await_left(others)

    def _await_left(self, ranks: list[int]) -> None:
        ends = time.monotonic() + self.timeout_s
        while ranks:
            found = self._next(Left, ends, f"task {self.rank}, leaving", ranks, are_ranks=True)
            ranks.remove(found.src)

    def ask(self, epoch: int, stop: bool) -> bool:
        """What group 0 says of the end: by a server if there is one, else from its first task."""
        ends = time.monotonic() + self.timeout_s
        where = f"task {self.rank}, end of epoch {epoch}"
        if self.topology.n_servers:
            self._send(0, Ask(epoch=epoch, stop=stop), ())
            owing = [0]
        elif self.group == 0:
            if self.task == 0:
                for rank in range(self.topology.n_tasks, self.topology.n_workers):
                    self.transport.send(rank, Verdict(epoch=epoch, stop=stop), (), self.timeout_s)
            return stop
        else:
            owing = []
        message = self._next(Verdict, ends, where, owing)
        assert isinstance(message.meta, Verdict)
        if message.meta.epoch != epoch:
            raise ProtocolError(f"{where}: got the verdict of epoch {message.meta.epoch}")
        return message.meta.stop

    def mean(self, arrays: Sequence[Array]) -> None:
        """In place, over the same task of all groups; summed in their order."""
        number, n_groups = self._n_means, self.topology.n_groups
        self._n_means += 1
        others = [self.topology.rank(g, self.task) for g in range(n_groups) if g != self.group]
        flat = [array.reshape(-1) for array in arrays]
        if not all(array.flags.c_contiguous for array in arrays):
            raise ProtocolError("Mean: arrays must be contiguous, since they change in place")
        size = _values_at_once(flat)
        for rank in others:
            for at, array in enumerate(flat):
                for start in range(0, max(len(array), 1), size):
                    piece = array[start : start + size].copy()  # it may wait while that changes
                    self.transport.send(
                        rank, Values(number=number, at=at), (piece,), self.timeout_s, wait=False
                    )
        parts: dict[int, list[Array]] = {rank: [np.empty_like(f) for f in flat] for rank in others}
        filled = {rank: [0] * len(flat) for rank in others}
        where = f"task {self.rank}, mean {number}"
        ends = time.monotonic() + self.timeout_s
        lengths = [len(f) for f in flat]
        while late := [rank for rank in others if filled[rank] != lengths]:
            message = self._next(Values, ends, where, late, are_ranks=True, number=number)
            meta, [piece] = message.meta, message.arrays
            assert isinstance(meta, Values)
            start = filled[message.src][meta.at] if meta.at < len(flat) else 0
            wanted = flat[meta.at][start:] if meta.at < len(flat) else np.empty(0)
            if piece.dtype != wanted.dtype or len(piece) > len(wanted):
                raise ProtocolError(
                    f"{where}: task {message.src} has {len(piece)} {piece.dtype} of array "
                    f"{meta.at} from {start}, here are {[(len(f), f.dtype.str) for f in flat]}; "
                    f"every group must ask for the mean of the same arrays"
                )
            parts[message.src][meta.at][start : start + len(piece)] = piece
            filled[message.src][meta.at] += len(piece)
        for at, mine in enumerate(flat):
            total = np.zeros_like(mine)
            for group in range(n_groups):
                rank = self.topology.rank(group, self.task)
                total += mine if rank == self.rank else parts[rank][at]
            total /= n_groups
            mine[...] = total

    def _send(self, server: int, meta: Meta, arrays: Sequence[Array]) -> None:
        before = time.monotonic()
        self.transport.send(self.topology.server(server), meta, arrays, self.timeout_s)
        self.spent.send_s += time.monotonic() - before
        self.spent.sent_bytes += sum(a.nbytes for a in arrays)

    def _next(
        self,
        kind: type[M],
        ends: float | None,
        where: str,
        owing: Sequence[int],
        *,
        are_ranks: bool = False,
        number: int | None = None,
    ) -> Message:
        """The next message of a kind; others are kept. ``owing`` are servers, or ranks."""

        def fits(message: Message) -> bool:
            meta = message.meta
            return isinstance(meta, kind) and getattr(meta, "number", None) == number

        for at, message in enumerate(self._early):
            if fits(message):
                del self._early[at]
                return message
        while True:
            now = time.monotonic()
            left_s = LOOK_S if ends is None else min(ends - now, LOOK_S)
            found = self.transport.receive(max(left_s, 0.0))
            self.spent.wait_s += time.monotonic() - now
            if found is not None:
                self.spent.received_bytes += sum(a.nbytes for a in found.arrays)
                if fits(found):
                    return found
                self._early.append(found)
                continue
            if self.check is not None:
                self.check()
            if ends is not None and time.monotonic() >= ends:
                ranks = owing if are_ranks else [self.topology.server(s) for s in owing]
                names = ", ".join(self.topology.name(rank) for rank in ranks) or "group 0"
                raise BarrierTimeout(
                    where,
                    tuple(f"task {rank}" for rank in ranks),
                    (),
                    self.timeout_s,
                    f"{names} owes {kind.__name__}",
                )


def _part(arrays: Mapping[str, Array], piece: Piece) -> Array:
    """A piece of an array, flat, and a view."""
    return arrays[piece.name].reshape(-1)[piece.start : piece.stop]


def _values_at_once(arrays: Sequence[Array]) -> int:
    size = max((array.itemsize for array in arrays), default=8)
    return 4 * 1024 * 1024 // size
