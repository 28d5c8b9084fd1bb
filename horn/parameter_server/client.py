"""A client of parameter servers: the loop around ``Unacknowledged``, over any message carrier."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from horn.errors import BarrierTimeout
from horn.parameter_server.pieces import ParameterBundle, ParameterPiece, bundles
from horn.parameter_server.unacknowledged import Unacknowledged
from horn.patience import Patience
from horn.runtime.group import TaskTimes
from horn.runtime.requests import Pull, Push
from horn.topology import Topology
from horn.transport import PeerLost, PeerUnreachable
from horn.wire.frames import Array, WireMessage
from horn.wire.messages import WAITS, Meta, Note, ParameterData

CUT_S = 2.0  # how long a registered server may be unreachable
LOOK_S = 1.0  # how often a wait calls ``check``


class ClientCarrier(Protocol):
    """A task's messages to servers, by number: a ``Mesh``, or ``TaskLinks``, which reconnect."""

    is_lossy: bool  # whether messages may be lost

    def open(self, again: Callable[[int], Iterable[tuple[Meta, Sequence[Array]]]]) -> None:
        """Begin. again : gives the messages to resend first over a new link to a server."""

    def send(self, server: int, meta: Meta, values: Sequence[Array] = ()) -> None:
        """Send to a server; nothing is sent where there is no link."""

    def receive(self, timeout_s: float) -> WireMessage | None:
        """The next message, None if there is none in time. ``src`` is the server."""

    def down(self) -> Mapping[int, str]:
        """The servers without a link, and the reasons."""

    def ended(self) -> Mapping[int, str]:
        """The servers that have ended for good, and how."""

    def cut_off(self) -> Mapping[int, float]:
        """Registered servers that are silent since the connection broke: for how long, in s."""

    def close(self) -> None: ...


class ParameterClient:
    """A task's requests to all servers.

    check : called in every wait; raises failures from elsewhere in the process. at_first : the
    topology at the beginning of the run, whose ranks errors name; None for ``topology``.

    Raises
    ------
    BarrierTimeout : an answer is late, or a server did not restart in time. PeerLost : a server has
    ended that still owes an answer. PeerUnreachable : a server runs, but this task cannot reach it.
    ProtocolError : an answer does not fit.
    """

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
        at_first: Topology | None = None,
    ) -> None:
        self.at_first = topology if at_first is None else at_first
        self.own_rank = self.at_first.of_link(rank)
        self.name = self.at_first.name(self.own_rank)
        self.carrier, self.topology, self.rank = carrier, topology, rank
        self.group, self.task = divmod(rank, topology.n_tasks)
        self.timeout_s, self.spent, self.check = timeout_s, spent, check
        mine = bundles(pieces, topology, np.dtype(dtype).itemsize, ranks=(rank,))
        self.unacknowledged = Unacknowledged(topology, rank, mine, carrier.is_lossy)
        carrier.open(self.unacknowledged.again)
        self.pulls, self.pushes = self.unacknowledged.pulls, self.unacknowledged.pushes
        self._push: Push | None = None
        self._ungiven: dict[int, ParameterBundle] = {}
        self._pull = Pull(0)
        self._into: Mapping[str, Array] = {}
        self._early: list[WireMessage] = []  # answers to pulls that this task has not made yet
        # by server: the tasks that it waits for, by ``link``, and whether these measure
        self._waits: dict[int, tuple[list[int], bool]] = {}

    def join(self, timeout_s: float) -> tuple[int, int | None]:
        """Join durable servers, and wait for the whole group; the clock at which it resumes, and
        after how many batches, where servers were told.
        """
        self._say(self.unacknowledged.join())
        n = self.topology.n_servers
        self._until(lambda: len(self.unacknowledged.welcomes) == n, "joining", timeout_s)
        return self.unacknowledged.clock, self.unacknowledged.batches

    def begin(self, arrays: Mapping[str, Array]) -> None:
        for bundle in self.pushes:
            values = self._values(bundle, arrays)
            self._send(bundle.server, self.unacknowledged.begin(bundle, values), values)

    def push(self, push: Push) -> None:
        """Begin a push: ``give`` sends a bundle, ``give_all`` the rest."""
        self._push = push
        self._ungiven = {bundle.part: bundle for bundle in self.pushes}

    def give(self, part: int) -> None:
        """Send a bundle of the push under way, once; waits while too many are unacknowledged."""
        bundle, push = self._ungiven.pop(part, None), self._push
        if bundle is None or push is None:
            return
        where = f"push {push.clock}"
        self._until(lambda: not self.unacknowledged.is_full(bundle), where, self.timeout_s)
        before = time.monotonic()
        values = self._values(bundle, push.gradients)
        self._send(bundle.server, self.unacknowledged.push(bundle, push, values), values)
        self.spent.send_s += time.monotonic() - before

    def give_all(self) -> None:
        for part in sorted(self._ungiven, reverse=True):
            self.give(part)

    def pull(self, pull: Pull, arrays: Mapping[str, Array], measures: bool = False) -> None:
        """Ask for parameters into ``arrays``: ``take`` waits for a bundle, ``take_all`` for all.
        measures : this group measures what it gets before it goes on.
        """
        self._pull, self._into = pull, arrays
        self._waits.clear()
        self._say(self.unacknowledged.pull(pull, measures))
        early, self._early = self._early, []
        for message in early:
            self._hear(message)

    def take(self, part: int) -> None:
        """Wait for a bundle of the pull under way, unless it is here."""
        # Other groups may take much longer to end, and group 0 to warm up; servers watch them.
        is_patient = self._pull.final or (self.group > 0 and self._pull.clock == 0)
        where, timeout_s = f"pull {self._pull.clock}", None if is_patient else self.timeout_s
        if part in self.unacknowledged.awaited:
            self._until(lambda: part not in self.unacknowledged.awaited, where, timeout_s)

    def take_all(self) -> None:
        for part in sorted(self.unacknowledged.awaited):
            self.take(part)

    def leave(self) -> None:
        """Tell servers that this group pushes no more. Waits until everything is acknowledged: a
        connection that ends before that may lose its last frames.
        """
        self._say(self.unacknowledged.leave())
        self._until(lambda: self.unacknowledged.is_heard, "leaving", self.timeout_s)

    def thank(self) -> None:
        self._say(self.unacknowledged.thank())
        self._until(lambda: self.unacknowledged.is_heard, "thanking", self.timeout_s)

    def wait_verdict(self, epoch: int, stop: bool) -> bool:
        """Whether training ends after an epoch, by the decision of group 0."""
        self._say([self.unacknowledged.ask(epoch, stop)])
        where = f"end of epoch {epoch}"
        self._until(lambda: epoch in self.unacknowledged.verdicts, where, self.timeout_s)
        return self.unacknowledged.verdicts[epoch]

    def close(self) -> None:
        self.carrier.close()

    def _values(self, bundle: ParameterBundle, arrays: Mapping[str, Array]) -> list[Array]:
        """The values of a bundle; a copy if they may have to be sent again."""
        values = [_part(arrays, piece) for piece in bundle.pieces]
        return [np.concatenate(values)] if self.unacknowledged.is_lossy else values

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
            ranks = [*map(int, str(meta.fields["ranks"]).split())]
            self._waits[server] = ranks, bool(meta.fields.get("measure"))
            return
        if isinstance(meta, ParameterData) and self.unacknowledged.is_early(meta):
            copies = tuple(array.copy() for array in message.arrays)  # the next may overwrite it
            self._early.append(WireMessage(meta, copies, server))
            return
        block = message.arrays[0] if message.arrays else None
        bundle = self.unacknowledged.heard(server, meta, block)
        if bundle is not None and block is not None:
            for piece, values in zip(bundle.pieces, bundle.cut(block), strict=True):
                _part(self._into, piece)[...] = values
            self.spent.received_bytes += block.nbytes

    def _until(self, is_done: Callable[[], bool], what: str, timeout_s: float | None) -> None:
        """Handle messages until a condition holds. timeout_s : None for down servers only."""
        patience = None if timeout_s is None else Patience(timeout_s)
        ended: Mapping[int, str] = {}
        while not is_done():
            now = time.monotonic()
            look_s = self._check_ways(what)
            if timeout_s is None and not self.carrier.down():
                patience = None
            elif patience is None:
                patience = Patience(self.timeout_s)
            left_s = LOOK_S if patience is None else patience.left_s()
            got = self.carrier.receive(max(min(left_s, look_s), 0.0))
            self.spent.wait_s += time.monotonic() - now
            if got is not None:
                self._hear(got)
                if patience is not None and isinstance(got.meta, Note) and self._others_measure():
                    patience.renew()
            else:
                ended = self._check_ended(what, ended)
            if self.check is not None:
                self.check()
            if got is None and left_s <= 0:
                raise self._overdue(what, self.timeout_s if timeout_s is None else timeout_s)

    def _others_measure(self) -> bool:
        """Whether every server that owes an answer waits for groups that measure the model."""
        owing = [s for s in range(self.topology.n_servers) if self.unacknowledged.owing(s)]
        said = [self._waits.get(server, ([], False))[1] for server in owing]
        return all(said) and not self.carrier.down()

    def _check_ways(self, what: str) -> float:
        """Check for servers that cannot be reached; return the seconds until the next check."""
        look_s = LOOK_S
        for server, silent_s in self.carrier.cut_off().items():
            look_s = min(look_s, CUT_S - silent_s)
            if silent_s >= CUT_S:
                why = f"it has its place, but for {silent_s:.1f} s nothing has answered there"
                raise PeerUnreachable(*self._lost(server, what, why))
        return look_s

    def _check_ended(self, what: str, before: Mapping[int, str]) -> Mapping[int, str]:
        """The servers that have ended. A server's last messages and its end come by two ways: only
        one that had ended ``before`` and still owes an answer is lost.
        """
        ended = self.carrier.ended()
        for server in before.keys() & ended.keys():
            if owes := self.unacknowledged.owing(server):
                why = f"{ended[server]}; server {server} has not answered {owes}"
                raise PeerLost(*self._lost(server, what, why))
        return ended

    def _lost(
        self, server: int, what: str, why: str
    ) -> tuple[str, tuple[str], str, tuple[int], int]:
        """What a PeerLost says of a server."""
        rank = self.at_first.server(server)
        return f"{self.name}, {what}", (self.at_first.name(rank),), why, (rank,), self.own_rank

    def _overdue(self, what: str, timeout_s: float) -> BarrierTimeout:
        """Make the error of a late answer: of the servers, or of the ranks that these wait for."""
        known, down = self.at_first, self.carrier.down()
        owing = {s: owes for s in range(known.n_servers) if (owes := self.unacknowledged.owing(s))}
        said = [f"server {s} has not answered {owes}" +
                (f" (no link: {down[s]})" if s in down else "")
                for s, owes in owing.items()]  # fmt: skip
        late = {r for s in owing if s not in down for r in self._waits.get(s, ([], False))[0]}
        late.discard(self.rank)
        if (
            not late
            and self.unacknowledged.awaited
            and self.task
            and not self.unacknowledged.is_lossy
        ):
            late = {self.group * known.n_tasks}  # the server has no pull from it
        ranks = tuple(map(known.server, owing))
        if late:
            ranks = tuple(known.of_link(number) for number in sorted(late))
        absent = tuple(map(known.name, ranks))
        if late:
            said.append(f"waits for {', '.join(absent)}")
        where = f"{self.name}, {what}"
        return BarrierTimeout(where, absent, (), timeout_s, "; ".join(said), ranks)


def _part(arrays: Mapping[str, Array], piece: ParameterPiece) -> Array:
    """The flat view of a piece of an array."""
    return arrays[piece.name].reshape(-1)[piece.start : piece.stop]
