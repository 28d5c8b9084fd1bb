"""A task's talk with parameter servers: the loop around ``requests``, over any carrier."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from horn.errors import BarrierTimeout
from horn.parameter_server.pieces import ParameterBundle, ParameterPiece, bundles
from horn.parameter_server.requests import Requests
from horn.patience import Patience
from horn.runtime.group import TaskTimes
from horn.runtime.requests import Pull, Push
from horn.topology import Topology
from horn.transport import PeerUnreachable
from horn.wire.frames import WAITS, Array, Meta, Note, ParameterData, WireMessage

CUT_S = 2.0  # how long a server that has its place may be unreachable, once it is known to be
LOOK_S = 1.0  # how often who waits looks whether something has happened beside it


class ClientCarrier(Protocol):
    """What carries a task's messages to servers, which go by their numbers: a ``Mesh``, or
    ``TaskLinks``, which end and begin again.
    """

    is_lossy: bool  # whether what was sent may be lost

    def open(self, again: Callable[[int], Iterable[tuple[Meta, Sequence[Array]]]]) -> None:
        """again : what goes first over a new link to a server."""

    def send(self, server: int, meta: Meta, values: Sequence[Array] = ()) -> None:
        """To a server; nothing where there is no link."""

    def receive(self, timeout_s: float) -> WireMessage | None:
        """The next message, None if there is none in time. ``src`` is the server."""

    def down(self) -> Mapping[int, str]:
        """Servers without a link, and why."""

    def cut_off(self) -> Mapping[int, float]:
        """Servers that are there but do not answer, for how many seconds."""

    def close(self) -> None: ...


class ParameterClient:
    """A task's requests of all servers.

    check : called by who waits; raises what has happened beside it.

    Raises
    ------
    BarrierTimeout : an answer is late, or a server has gone and not come back. PeerUnreachable : a
    server is there, but not for this task. ProtocolError : an answer is not what was asked for.
    """

    goes_by_ranks = True  # in what it says of others

    def __init__(
        self,
        carrier: ClientCarrier,
        topology: Topology,
        rank: int,
        pieces: Sequence[ParameterPiece],
        dtype: str,
        timeout_s: float,
        spent: TaskTimes,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.carrier, self.topology, self.rank = carrier, topology, rank
        self.group, self.task = divmod(rank, topology.n_tasks)
        self.timeout_s, self.spent, self.check = timeout_s, spent, check
        every = bundles(pieces, topology, np.dtype(dtype).itemsize)
        self.requests = Requests(topology, rank, every, carrier.is_lossy)
        carrier.open(self.requests.again)
        self.pulls, self.pushes = self.requests.pulls, self.requests.pushes
        self._push: Push | None = None
        self._ungiven: dict[int, ParameterBundle] = {}
        self._pull = Pull(0)
        self._into: Mapping[str, Array] = {}
        self._early: list[
            WireMessage
        ] = []  # of pulls for which only others of the group have asked
        self._waits: dict[int, list[int]] = {}  # by server: the ranks it says that it waits for

    def join(self, timeout_s: float) -> int:
        """Tell durable servers that this task is there, and wait for all of its group; where the
        group goes on.
        """
        self._say(self.requests.join())
        n = self.topology.n_servers
        self._until(lambda: len(self.requests.welcomes) == n, "joining", timeout_s)
        return self.requests.clock

    def begin(self, arrays: Mapping[str, Array]) -> None:
        """Tell servers what training begins with."""
        for bundle in self.pushes:
            values = self._values(bundle, arrays)
            self._send(bundle.server, self.requests.begin(bundle, values), values)

    def push(self, push: Push) -> None:
        """Gradients may go now, each bundle with ``give``; ``give_all`` sends the rest."""
        self._push = push
        self._ungiven = {bundle.part: bundle for bundle in self.pushes}

    def give(self, part: int) -> None:
        """Send a bundle of the push under way, if it has not been. Waits while the server has not
        taken the last but one.
        """
        bundle, push = self._ungiven.pop(part, None), self._push
        if bundle is None or push is None:
            return
        where = f"push {push.clock}"
        self._until(lambda: not self.requests.is_full(bundle), where, self.timeout_s)
        before = time.monotonic()
        values = self._values(bundle, push.gradients)
        self._send(bundle.server, self.requests.push(bundle, push, values), values)
        self.spent.send_s += time.monotonic() - before

    def give_all(self) -> None:
        """What has not been sent of the push under way, the last layer first."""
        for part in sorted(self._ungiven, reverse=True):
            self.give(part)

    def pull(self, pull: Pull, arrays: Mapping[str, Array]) -> None:
        """Ask for parameters. What comes goes into ``arrays``, each bundle with ``take``;
        ``take_all`` waits for the rest.
        """
        self._pull, self._into = pull, arrays
        self._waits.clear()
        self._say(self.requests.pull(pull))
        early, self._early = self._early, []
        for message in early:
            self._hear(message)

    def take(self, part: int) -> None:
        """Wait for a bundle of the pull under way, unless it is here."""
        if part in self.requests.awaited:
            # Other groups may take much longer to end, and group 0 to warm up; that they still do
            # something is the servers' to watch.
            is_patient = self._pull.final or (self.group > 0 and self._pull.clock == 0)
            self._until(
                lambda: part not in self.requests.awaited,
                f"pull {self._pull.clock}",
                None if is_patient else self.timeout_s,
            )

    def take_all(self) -> None:
        """Wait for what is still to come of the pull under way."""
        for part in sorted(self.requests.awaited):
            self.take(part)

    def leave(self) -> None:
        """Tell servers that this group pushes no more; wait until all that was said is heard. Who
        ends its connection before that may take its last words with it.
        """
        self._say(self.requests.leave())
        self._until(lambda: self.requests.is_heard, "leaving", self.timeout_s)

    def thank(self) -> None:
        """Tell servers that the end is here."""
        self._say(self.requests.thank())
        self._until(lambda: self.requests.is_heard, "thanking", self.timeout_s)

    def ask(self, epoch: int, stop: bool) -> bool:
        """What group 0 says of the end."""
        self._say([self.requests.ask(epoch, stop)])
        where = f"end of epoch {epoch}"
        self._until(lambda: epoch in self.requests.verdicts, where, self.timeout_s)
        return self.requests.verdicts[epoch]

    def close(self) -> None:
        self.carrier.close()

    def _values(self, bundle: ParameterBundle, arrays: Mapping[str, Array]) -> list[Array]:
        """What may have to be sent again is a copy, which stays as it is."""
        values = [_part(arrays, piece) for piece in bundle.pieces]
        return [np.concatenate(values)] if self.requests.is_lossy else values

    def _say(self, said: Iterable[tuple[int, Meta]]) -> None:
        for server, meta in said:
            self._send(server, meta)

    def _send(self, server: int, meta: Meta, values: Sequence[Array] = ()) -> None:
        if self.check is not None:
            self.check()
        self.carrier.send(server, meta, values)
        self.spent.sent_bytes += sum(array.nbytes for array in values)

    def _hear(self, message: WireMessage) -> None:
        server, meta = message.src, message.meta
        if isinstance(meta, Note) and meta.topic == WAITS:
            self._waits[server] = [*map(int, str(meta.fields["ranks"]).split())]
            return
        if isinstance(meta, ParameterData) and self.requests.is_early(meta):
            copies = tuple(array.copy() for array in message.arrays)  # more may come to its place
            self._early.append(WireMessage(meta, copies, server))
            return
        block = message.arrays[0] if message.arrays else None
        bundle = self.requests.heard(server, meta, block)
        if bundle is not None and block is not None:
            for piece, values in zip(bundle.pieces, bundle.cut(block), strict=True):
                _part(self._into, piece)[...] = values
            self.spent.received_bytes += block.nbytes

    def _until(self, is_done: Callable[[], bool], what: str, timeout_s: float | None) -> None:
        """Hear servers until something is so. Without a deadline there is one for a server that
        has gone.
        """
        patience = None if timeout_s is None else Patience(timeout_s)
        while not is_done():
            now = time.monotonic()
            self._check_ways(what)
            if timeout_s is None and not self.carrier.down():
                patience = None
            elif patience is None:
                patience = Patience(self.timeout_s)
            left_s = LOOK_S if patience is None else patience.left_s()
            got = self.carrier.receive(max(min(left_s, LOOK_S), 0.0))
            self.spent.wait_s += time.monotonic() - now
            if got is not None:
                self._hear(got)
            if self.check is not None:
                self.check()
            if got is None and left_s <= 0:
                raise self._overdue(what, self.timeout_s if timeout_s is None else timeout_s)

    def _check_ways(self, what: str) -> None:
        for server, silent_s in self.carrier.cut_off().items():
            if silent_s > CUT_S:
                why = f"it has its place, but for {silent_s:.1f} s nothing has answered there"
                lost = f"task {self.topology.server(server)}"
                raise PeerUnreachable(f"task {self.rank}, {what}", (lost,), why)

    def _overdue(self, what: str, timeout_s: float) -> BarrierTimeout:
        """It is late; of servers that only wait for others, those are."""
        topology, down = self.topology, self.carrier.down()
        owing = {s: owes for s in range(topology.n_servers) if (owes := self.requests.owing(s))}
        said = [f"server {s} has not answered {owes}" +
                (f" (no link: {down[s]})" if s in down else "")
                for s, owes in owing.items()]  # fmt: skip
        late = {r for s in owing if s not in down for r in self._waits.get(s, [])} - {self.rank}
        if not late and self.requests.awaited and self.task and not self.requests.is_lossy:
            # The server knows of no pull, or says nothing to the task that asks, either.
            late = {topology.rank(self.group, 0)}
        ranks = [topology.server(s) for s in owing]
        if late:
            ranks = sorted(late)
            said.append(f"waits for {', '.join(map(topology.name, ranks))}")
        absent = tuple(f"task {rank}" for rank in ranks)
        where = f"task {self.rank}, {what}"
        return BarrierTimeout(where, absent, (), timeout_s, "; ".join(said))


def _part(arrays: Mapping[str, Array], piece: ParameterPiece) -> Array:
    """A piece of an array, flat, and a view."""
    return arrays[piece.name].reshape(-1)[piece.start : piece.stop]
