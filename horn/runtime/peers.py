"""A task's messages to the same task of other groups."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from horn.errors import BarrierTimeout, ProtocolError
from horn.patience import Patience
from horn.runtime.group import TaskTimes
from horn.topology import Topology, share
from horn.transport import PeerLost, Transport
from horn.wire.frames import Array, WireMessage
from horn.wire.messages import MEASURES, LeaveServers, MeanPart, Meta, Note, Verdict

LOOK_S = 1.0  # how often a wait calls ``check``
MESSAGE_BYTES = 4 * 1024 * 1024


class Peers:
    """The messages to the same task of all groups, over a transport of all ranks, which they share
    with the task's ``Mesh``.

    Raises
    ------
    BarrierTimeout : a message is late. PeerLost : a task that measures has ended. ProtocolError : a
    message does not fit.
    """

    def __init__(
        self,
        transport: Transport,
        topology: Topology,
        timeout_s: float,
        spent: TaskTimes,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.transport, self.topology, self.timeout_s = transport, topology, timeout_s
        self.spent, self.check = spent, check
        self.rank = transport.task
        self.group, self.task = divmod(self.rank, topology.n_tasks)
        self.ranks = [topology.rank(group, self.task) for group in range(topology.n_groups)]
        self.others = [rank for rank in self.ranks if rank != self.rank]
        self._early: deque[WireMessage] = deque()
        self._n_means = 0

    def from_servers(self, timeout_s: float) -> WireMessage | None:
        return self._receive(timeout_s, lambda message: message.src >= self.topology.n_workers)

    def _receive(self, timeout_s: float, fits: Callable[[WireMessage], bool]) -> WireMessage | None:
        """Receive the next message, if it fits; others are kept for later calls."""
        for at, message in enumerate(self._early):
            if fits(message):
                del self._early[at]
                return message
        found = self.transport.receive(timeout_s)
        if found is not None and not fits(found):
            self._early.append(found)
            return None
        return found

    def _next(
        self,
        where: str,
        owing: Sequence[int],
        patience: Patience | None,
        kind: type[Meta],
        **fields: object,
    ) -> WireMessage:
        """Wait for the next message of a kind with these fields, from one of ``owing``. patience :
        None to wait as long as these are there.
        """

        def fits(message: WireMessage) -> bool:
            meta = message.meta
            is_of = isinstance(meta, kind) and message.src in owing
            return is_of and all(getattr(meta, name) == value for name, value in fields.items())

        gone: Mapping[int, str] = {}
        while True:
            before, left_s = time.monotonic(), LOOK_S if patience is None else patience.left_s()
            found = self._receive(max(min(left_s, LOOK_S), 0.0), fits)
            self.spent.wait_s += time.monotonic() - before
            if found is not None:
                self.spent.received_bytes += sum(a.nbytes for a in found.arrays)
                return found
            if self.check is not None:
                self.check()
            if patience is None:
                gone = self._check_gone(where, owing, gone)
            elif left_s <= 0:
                names = tuple(map(self.topology.name, owing))
                hint = f"{', '.join(names)} owes {kind.__name__}"
                raise BarrierTimeout(where, names, (), self.timeout_s, hint, tuple(owing))

    def _check_gone(
        self, where: str, owing: Sequence[int], before: Mapping[int, str]
    ) -> Mapping[int, str]:
        """The tasks that have ended. A task's last messages and its end come by two ways: only one
        that had ended ``before`` is lost.
        """
        gone = self.transport.absent()
        for rank in owing:
            if rank in before and rank in gone:
                name = self.topology.name(rank)
                raise PeerLost(where, (name,), gone[rank], (rank,), self.rank)
        return gone

    def wait_finished(self) -> None:
        """Say that this task has finished, and wait until the others have, too."""
        for rank in self.others:
            self.transport.send(rank, LeaveServers(), (), self.timeout_s)
        patience, late = Patience(self.timeout_s), list(self.others)
        while late:
            found = self._next(f"task {self.rank}, leaving", late, patience, LeaveServers)
            late.remove(found.src)

    def begin_measuring(self) -> None:
        """In group 0: tell the others that it measures the model now, and decides after that."""
        self._tell_others(Note(topic=MEASURES))

    def _tell_others(self, meta: Meta) -> None:
        if self.rank == 0:
            for rank in range(self.topology.n_tasks, self.topology.n_workers):
                self.transport.send(rank, meta, (), self.timeout_s)

    def wait_verdict(self, epoch: int, stop: bool) -> bool:
        """The decision of group 0 about the end, from its first task. Nobody knows how long group 0
        measures: from when it says that it does, only its end ends the wait.
        """
        if self.group == 0:
            self._tell_others(Verdict(epoch=epoch, stop=stop))
            return stop
        where = f"task {self.rank}, end of epoch {epoch}"
        self._next(where, [0], Patience(self.timeout_s), Note, topic=MEASURES)
        verdict = self._next(where, [0], None, Verdict).meta
        assert isinstance(verdict, Verdict)
        if verdict.epoch != epoch:
            raise ProtocolError(f"{where}: got the verdict of epoch {verdict.epoch}")
        return verdict.stop

    def mean(self, arrays: Sequence[Array]) -> None:
        """Average arrays in place, over the same task of all groups, in their order. Each task sums
        its part of the numbers for the others: it sends at most twice the numbers, whatever the
        groups.
        """
        if not all(array.flags.c_contiguous for array in arrays):
            raise ProtocolError("Mean: arrays must be contiguous, since they change in place")
        for k, array in enumerate(arrays):
            if array.dtype.kind not in "fc":
                raise ProtocolError(
                    f"Mean: array {k} is of {array.dtype}, expected floating point numbers: a mean "
                    f"of whole numbers may be none; give a copy of it as float64"
                )
        at = 0  # counts exchanges: parts to be summed, sums, parts of the next dtype, ...
        for dtype in dict.fromkeys(array.dtype for array in arrays):
            mine = [array.reshape(-1) for array in arrays if array.dtype == dtype]
            found = self._mean(np.concatenate(mine), at)
            at += 2
            ends = np.cumsum([0, *map(len, mine)])
            for array, start, stop in zip(mine, ends, ends[1:], strict=False):
                array[...] = found[start:stop]
        self._n_means += 1

    def _mean(self, whole: Array, at: int) -> Array:
        """The mean of flat numbers. ``whole`` is not written: it may still be on its way."""
        ranks, others, rank = self.ranks, self.others, self.rank
        n = len(ranks)
        spans = {rank: slice(*share(len(whole), k, n)) for k, rank in enumerate(ranks)}
        mine = whole[spans[rank]]
        parts = {other: np.empty_like(mine) for other in others}
        self._swap({other: whole[spans[other]] for other in others}, parts, at)
        total = np.zeros_like(mine)
        for other in ranks:
            total += mine if other == rank else parts[other]
        total /= n
        found = np.empty_like(whole)
        found[spans[rank]] = total
        means = {other: found[spans[other]] for other in others}
        self._swap(dict.fromkeys(others, total), means, at + 1)
        return found

    def _swap(self, give: Mapping[int, Array], into: Mapping[int, Array], at: int) -> None:
        """Send each other rank an array, and receive one from it."""
        before, number = time.monotonic(), self._n_means
        for rank, array in give.items():
            self.spent.sent_bytes += array.nbytes
            at_once = MESSAGE_BYTES // array.itemsize
            for start in range(0, max(len(array), 1), at_once):
                piece = array[start : start + at_once]
                meta = MeanPart(number=number, at=at)
                self.transport.send(rank, meta, (piece,), self.timeout_s, wait=False)
        self.spent.send_s += time.monotonic() - before
        filled = dict.fromkeys(into, 0)
        is_begun = dict.fromkeys(into, False)  # an array without numbers is a message, too
        patience, where = Patience(self.timeout_s), f"task {self.rank}, mean {number}"
        while late := [r for r in into if not is_begun[r] or filled[r] < len(into[r])]:
            # A rank that is ahead may have sent its next exchange already.
            message = self._next(where, late, patience, MeanPart, number=number, at=at)
            patience.renew()  # large arrays come in pieces, and may take long on a slow link
            src, [piece] = message.src, message.arrays
            room = into[src][filled[src] :]
            if piece.dtype != room.dtype or len(piece) > len(room):
                raise ProtocolError(
                    f"{where}: task {src} has {len(piece)} "
                    f"{piece.dtype} from {filled[src]}, here are {len(into[src])} {room.dtype}; "
                    f"every group must ask for the mean of the same arrays"
                )
            room[: len(piece)] = piece
            filled[src] += len(piece)
            is_begun[src] = True
