"""A task's messages to parameter servers, and to its like in other groups."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from horn.errors import BarrierTimeout, ProtocolError
from horn.patience import Patience
from horn.runtime.group import TaskTimes
from horn.strategies import Pull, Push, Topology
from horn.strategies.parameter_server.pieces import Bundle, Piece, bundles, channels
from horn.transport import Transport
from horn.wire.frames import (
    WAITS,
    Array,
    EndOfEpoch,
    LeaveServers,
    MeanPart,
    Meta,
    Note,
    ParameterData,
    PullParameters,
    PushGradients,
    Verdict,
    WireMessage,
)

LOOK_S = 1.0  # how often who waits looks whether something has happened beside it

M = TypeVar("M", bound=Meta)


class Wire:
    """A task's messages to servers and to its like in other groups. What it gives servers and gets
    from them goes through channels, so on one host through shared memory; a message says that it is
    there, since nobody waits for a certain superstep of another group.

    Raises
    ------
    BarrierTimeout : an answer is late. ProtocolError : it is not what was asked for.
    """

    goes_by_ranks = True  # in what it says of others

    def __init__(
        self,
        transport: Transport,
        topology: Topology,
        pieces: Sequence[Piece],
        dtype: str,
        timeout_s: float,
        spent: TaskTimes,
        check: Callable[[], None] | None = None,
        agree_timeout_s: float | None = None,
    ) -> None:
        self.transport, self.topology, self.timeout_s = transport, topology, timeout_s
        self.check = check
        self.rank = transport.task
        self.group, self.task = divmod(self.rank, topology.n_tasks)
        every = bundles(pieces, topology, np.dtype(dtype).itemsize)
        mine = [bundle for bundle in every if bundle.rank == self.rank]
        self.pushes = [bundle for bundle in mine if bundle.is_push]
        self.pulls = {bundle.part: bundle for bundle in mine if not bundle.is_push}
        self.n_posted = dict.fromkeys((bundle.part for bundle in mine), 0)
        if topology.n_servers:
            transport.plan(channels(every, topology, dtype), agree_timeout_s or timeout_s)
        self.spent = spent
        self._push: Push | None = None
        self._ungiven: dict[int, Bundle] = {}
        self._pull, self._awaited = Pull(0), set[int]()
        self._into: Mapping[str, Array] = {}
        self._waits: dict[int, list[int]] = {}  # what servers have said that they wait for
        self._early: deque[WireMessage] = deque()
        self._n_means = 0

    def begin(self, arrays: Mapping[str, Array]) -> None:
        """Tell servers what training begins with."""
        for bundle in self.pushes:
            meta = ParameterData(pieces=tuple(p.index for p in bundle.pieces), part=bundle.part)
            self._post(bundle, meta, arrays)

    def push(self, push: Push) -> None:
        """Gradients may go now, each bundle with ``give``; ``give_all`` sends the rest."""
        self._push = push
        self._ungiven = {bundle.part: bundle for bundle in self.pushes}

    def give(self, part: int) -> None:
        """Send a bundle of the push under way, if it has not been."""
        bundle = self._ungiven.pop(part, None)
        push = self._push
        if bundle is None or push is None:
            return
        meta = PushGradients(
            pieces=tuple(p.index for p in bundle.pieces),
            clock=push.clock,
            samples=push.samples,
            part=bundle.part,
        )
        self._post(bundle, meta, push.gradients)

    def give_all(self) -> None:
        """What has not been sent of the push under way, the last layer first."""
        for part in sorted(self._ungiven, reverse=True):
            self.give(part)

    def _post(self, bundle: Bundle, meta: Meta, arrays: Mapping[str, Array]) -> None:
        """A block, and word of it. The block waits until the server has used the last but one."""
        before = time.monotonic()
        block = self.transport.outbox(bundle.part, self.timeout_s)
        for piece, to in zip(bundle.pieces, bundle.cut(block), strict=True):
            to[...] = _part(arrays, piece)
        self.transport.post(self._next_use(bundle), (bundle.part,))
        self.spent.send_s += time.monotonic() - before
        self.spent.sent_bytes += block.nbytes
        self._send(bundle.server, meta)

    def _next_use(self, bundle: Bundle) -> int:
        self.n_posted[bundle.part] += 1
        return self.n_posted[bundle.part]

    def pull(self, pull: Pull, arrays: Mapping[str, Array]) -> None:
        """Ask for parameters: the group's first task does. What comes goes into ``arrays``, each
        bundle with ``take``; ``take_all`` waits for the rest.
        """
        if self.task == 0:
            for server in range(self.topology.n_servers):
                self._send(server, PullParameters(clock=pull.clock, final=pull.final))
        self._pull, self._into = pull, arrays
        self._waits.clear()
        self._awaited = set(self.pulls)

    def take(self, part: int) -> None:
        """Wait for a bundle of the pull under way, unless it is here."""
        if part not in self._awaited:
            return
        pull = self._pull
        where = f"task {self.rank}, pull {pull.clock}"
        # Other groups may take much longer to end, and group 0 to warm up; that they still do
        # something is the servers' to watch.
        is_patient = pull.final or (self.group > 0 and pull.clock == 0)
        patience = None if is_patient else Patience(self.timeout_s)
        while part in self._awaited:
            owing = sorted({self.pulls[part].server for part in self._awaited})
            message = self._next(ParameterData, patience, where, owing)
            meta = message.meta
            assert isinstance(meta, ParameterData)
            if meta.clock != pull.clock or meta.part not in self._awaited:
                raise ProtocolError(
                    f"{where}: got bundle {meta.part} of pull {meta.clock} from "
                    f"{self.topology.name(message.src)}"
                )
            self._put(self.pulls[meta.part])
            self._awaited.discard(meta.part)

    def _put(self, bundle: Bundle) -> None:
        use = self._next_use(bundle)
        self.transport.post(use, (bundle.part,))
        self.transport.collect(use, (bundle.part,), self.timeout_s)
        block = self.transport.inbox(bundle.part)
        for piece, values in zip(bundle.pieces, bundle.cut(block), strict=True):
            _part(self._into, piece)[...] = values
        self.spent.received_bytes += block.nbytes

    def take_all(self) -> None:
        """Wait for what is still to come of the pull under way."""
        for part in sorted(self._awaited):
            self.take(part)

    def thank(self) -> None:
        """Tell servers that the end is here."""
        for server in range(self.topology.n_servers):
            self._send(server, LeaveServers(is_thanks=True))

    def leave(self) -> None:
        """Tell servers, and wait until they have heard it. ZeroMQ drops what the other end has not
        read when it has no room for more and the connection ends.
        """
        for server in range(self.topology.n_servers):
            self._send(server, LeaveServers())
        self._await_left([self.topology.server(s) for s in range(self.topology.n_servers)])

    def part(self) -> None:
        """Where there are no servers: wait until the same task of every group has finished."""
        if not self.topology.n_servers:
            groups = range(self.topology.n_groups)
            others = [self.topology.rank(g, self.task) for g in groups if g != self.group]
            for rank in others:
                self.transport.send(rank, LeaveServers(), (), self.timeout_s)
            self._await_left(others)

    def _await_left(self, ranks: list[int]) -> None:
        patience = Patience(self.timeout_s)
        while ranks:
            found = self._next(
                LeaveServers, patience, f"task {self.rank}, leaving", ranks, are_ranks=True
            )
            ranks.remove(found.src)

    def ask(self, epoch: int, stop: bool) -> bool:
        """What group 0 says of the end: by a server if there is one, else from its first task."""
        where = f"task {self.rank}, end of epoch {epoch}"
        if self.topology.n_servers:
            self._send(0, EndOfEpoch(epoch=epoch, stop=stop))
            owing = [0]
        elif self.group == 0:
            if self.task == 0:
                for rank in range(self.topology.n_tasks, self.topology.n_workers):
                    self.transport.send(rank, Verdict(epoch=epoch, stop=stop), (), self.timeout_s)
            return stop
        else:
            owing = []
        message = self._next(Verdict, Patience(self.timeout_s), where, owing)
        assert isinstance(message.meta, Verdict)
        if message.meta.epoch != epoch:
            raise ProtocolError(f"{where}: got the verdict of epoch {message.meta.epoch}")
        return message.meta.stop

    def mean(self, arrays: Sequence[Array]) -> None:
        """In place, over the same task of all groups; summed in their order. Each group's task sums
        its part of the numbers and tells the others, so each sends what the arrays have twice, less
        its own part, however many groups there are.
        """
        number = self._n_means
        self._n_means += 1
        if not all(array.flags.c_contiguous for array in arrays):
            raise ProtocolError("Mean: arrays must be contiguous, since they change in place")
        means = _Means(self, number)
        for dtype in dict.fromkeys(array.dtype for array in arrays):
            mine = [array.reshape(-1) for array in arrays if array.dtype == dtype]
            found = means.of(np.concatenate(mine))
            ends = np.cumsum([0, *map(len, mine)])
            for array, start, stop in zip(mine, ends, ends[1:], strict=False):
                array[...] = found[start:stop]

    def _send(self, server: int, meta: Meta) -> None:
        self.transport.send(self.topology.server(server), meta, (), self.timeout_s)

    def _next(
        self,
        kind: type[M],
        patience: Patience | None,
        where: str,
        owing: Sequence[int],
        *,
        are_ranks: bool = False,
        number: int | None = None,
    ) -> WireMessage:
        """The next message of a kind; others are kept. ``owing`` are servers, or ranks."""

        def fits(message: WireMessage) -> bool:
            meta = message.meta
            return isinstance(meta, kind) and getattr(meta, "number", None) == number

        for at, message in enumerate(self._early):
            if fits(message):
                del self._early[at]
                return message
        while True:
            now = time.monotonic()
            left_s = LOOK_S if patience is None else patience.left_s()
            found = self.transport.receive(max(min(left_s, LOOK_S), 0.0))
            self.spent.wait_s += time.monotonic() - now
            if found is not None:
                self.spent.received_bytes += sum(a.nbytes for a in found.arrays)
                if fits(found):
                    return found
                if isinstance(found.meta, Note) and found.meta.topic == WAITS:
                    self._waits[found.src] = [*map(int, str(found.meta.fields["ranks"]).split())]
                    if self.check is not None:
                        self.check()
                else:
                    self._early.append(found)
                if left_s > 0:
                    continue
            if self.check is not None:
                self.check()
            if left_s <= 0:
                ranks = owing if are_ranks else [self.topology.server(s) for s in owing]
                raise self._overdue(kind, where, ranks)

    def _overdue(self, kind: type[Meta], where: str, ranks: Sequence[int]) -> BarrierTimeout:
        """It is late; of servers that only wait for others, those are."""
        names = ", ".join(map(self.topology.name, ranks)) or "group 0"
        hint = f"{names} owes {kind.__name__}"
        late = {r for server in ranks for r in self._waits.get(server, [])} - {self.rank}
        if kind is ParameterData and not late and self.task:
            # The server knows of no pull, or says nothing to the task that asks, either.
            late = {self.topology.rank(self.group, 0)}
        if kind is ParameterData and late:
            ranks = sorted(late)
            hint += f", and waits for {', '.join(map(self.topology.name, ranks))}"
        absent = tuple(f"task {rank}" for rank in ranks)
        return BarrierTimeout(where, absent, (), self.timeout_s, hint)


class _Means:
    """One mean of a Wire. Arrays of each dtype are one after the other; ``at`` of a message counts
    what is sent: parts to be summed, sums, parts of the next dtype, ...
    """

    def __init__(self, wire: Wire, number: int) -> None:
        self.wire, self.number = wire, number
        topology = wire.topology
        self.ranks = [topology.rank(group, wire.task) for group in range(topology.n_groups)]
        self.others = [rank for rank in self.ranks if rank != wire.rank]
        self.at = 0
        self._early: dict[tuple[int, int], list[Array]] = {}

    def of(self, whole: Array) -> Array:
        """The mean of flat numbers. ``whole`` is not written: it may still be on its way."""
        n = len(self.ranks)
        bounds = [len(whole) * k // n for k in range(n + 1)]
        spans = {rank: slice(*bounds[k : k + 2]) for k, rank in enumerate(self.ranks)}
        mine = whole[spans[self.wire.rank]]
        parts = self._swap({rank: whole[spans[rank]] for rank in self.others},
                           {rank: np.empty_like(mine) for rank in self.others})  # fmt: skip
        total = np.zeros_like(mine)
        for rank in self.ranks:
            total += mine if rank == self.wire.rank else parts[rank]
        total /= n
        found = np.empty_like(whole)
        found[spans[self.wire.rank]] = total
        self._swap(dict.fromkeys(self.others, total), {r: found[spans[r]] for r in self.others})
        return found

    def _swap(self, give: Mapping[int, Array], into: dict[int, Array]) -> dict[int, Array]:
        """Give each other rank something, and get what it gives."""
        wire, at = self.wire, self.at
        self.at += 1
        before = time.monotonic()
        for rank, array in give.items():
            wire.spent.sent_bytes += array.nbytes
            for start in range(0, max(len(array), 1), size := _values_at_once([array])):
                piece = array[start : start + size]
                meta = MeanPart(number=self.number, at=at)
                wire.transport.send(rank, meta, (piece,), wire.timeout_s, wait=False)
        wire.spent.send_s += time.monotonic() - before
        filled = dict.fromkeys(into, 0)
        is_begun = dict.fromkeys(into, False)  # also who has no numbers sends a message
        patience = Patience(wire.timeout_s)
        while late := [r for r in into if not is_begun[r] or filled[r] < len(into[r])]:
            src, piece = self._next(at, late, patience)
            room = into[src][filled[src] :]
            if piece.dtype != room.dtype or len(piece) > len(room):
                raise ProtocolError(
                    f"task {wire.rank}, mean {self.number}: task {src} has {len(piece)} "
                    f"{piece.dtype} from {filled[src]}, here are {len(into[src])} {room.dtype}; "
                    f"every group must ask for the mean of the same arrays"
                )
            room[: len(piece)] = piece
            filled[src] += len(piece)
            is_begun[src] = True
        return into

    def _next(self, at: int, late: Sequence[int], patience: Patience) -> tuple[int, Array]:
        """Who is ahead may send what comes next already."""
        for rank in late:
            if waiting := self._early.get((rank, at)):
                return rank, waiting.pop(0)
        where = f"task {self.wire.rank}, mean {self.number}"
        while True:
            message = self.wire._next(
                MeanPart, patience, where, late, are_ranks=True, number=self.number
            )
            meta, [piece] = message.meta, message.arrays
            assert isinstance(meta, MeanPart)
            if meta.at == at and message.src in late:
                return message.src, piece
            self._early.setdefault((message.src, meta.at), []).append(piece)


def _part(arrays: Mapping[str, Array], piece: Piece) -> Array:
    """A piece of an array, flat, and a view."""
    return arrays[piece.name].reshape(-1)[piece.start : piece.stop]


def _values_at_once(arrays: Sequence[Array]) -> int:
    size = max((array.itemsize for array in arrays), default=8)
    return 4 * 1024 * 1024 // size
