"""Both ends of the talk between tasks and servers that last: the loops around two pure machines,
``requests`` and ``durable_server``. See docs/notes/0061.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from horn.errors import BarrierTimeout, JobError, ProtocolError
from horn.patience import Patience
from horn.runtime.group import TaskTimes
from horn.strategies import Pull, Push, Topology
from horn.strategies._seat import Found
from horn.strategies.parameter_server.durable_server import LastingServer
from horn.strategies.parameter_server.journal import Journal
from horn.strategies.parameter_server.pieces import Bundle, Piece, bundles
from horn.strategies.parameter_server.requests import Asking
from horn.strategies.parameter_server.server_links import Hub
from horn.strategies.parameter_server.task_links import Links
from horn.transport import Identity, PeerUnreachable
from horn.wire.frames import WAITS, Array, Meta, Note, WireMessage

logger = logging.getLogger(__name__)

CUT_S = 2.0  # how long a server that has its place may be unreachable, once it is known to be
LOOK_S = 1.0  # how often who waits looks whether something has happened beside it
END_S = 10.0  # how long a server that is done stays for who has not heard it


class Eyes(Protocol):
    """What ``process/server_discovery.py`` sees in ZooKeeper."""

    def attempt(self, group: int) -> int: ...
    def is_anybody_there(self) -> bool: ...
    def check(self) -> None: ...


class LastingWire:
    """As ``strategies/parameter_server/client.py``'s Wire, to servers that may go and come back.

    place : as in Links. find : where a server is now. check : called by who waits; raises what has
    happened beside it.

    Raises
    ------
    BarrierTimeout : an answer is late, or a server has gone and not come back. PeerUnreachable : a
    server is there, but not for this task. ProtocolError : an answer is not what was asked for.
    Fenced : another has this task's place.
    """

    goes_by_ranks = True  # in what it says of others

    def __init__(
        self,
        topology: Topology,
        pieces: Sequence[Piece],
        dtype: str,
        timeout_s: float,
        spent: TaskTimes,
        place: Identity,
        find: Callable[[int], Found | None],
        check: Callable[[], None],
    ) -> None:
        self.topology, self.timeout_s, self.spent, self.check = topology, timeout_s, spent, check
        self.rank, self.dtype = place.task, np.dtype(dtype)
        self.group, self.task = divmod(self.rank, topology.n_tasks)
        every = bundles(pieces, topology, self.dtype.itemsize)
        self.asking = Asking(topology, self.rank, every)
        self.links = Links(place, topology.n_servers, find, self.asking.again)
        self.pulls, self.pushes = self.asking.pulls, self.asking.pushes
        self._push: Push | None = None
        self._ungiven: dict[int, Bundle] = {}
        self._pull = Pull(0)
        self._into: Mapping[str, Array] = {}
        self._waits: dict[int, list[int]] = {}  # by server: the ranks it says that it waits for

    def join(self, timeout_s: float) -> int:
        """Say that this task is there, and wait for all of its group; where the group goes on."""
        self._say(self.asking.join())
        n = self.topology.n_servers
        self._until(lambda: len(self.asking.welcomes) == n, "joining", timeout_s)
        return self.asking.clock

    def begin(self, arrays: Mapping[str, Array]) -> None:
        """Tell servers what training begins with; who knows it says so."""
        for bundle in self.pushes:
            block = self._block(bundle, arrays)
            self._send(bundle.server, *self.asking.begin(bundle, block))

    def push(self, push: Push) -> None:
        """Gradients may go now, each bundle with ``give``; ``give_all`` sends the rest."""
        self._push = push
        self._ungiven = {bundle.part: bundle for bundle in self.pushes}

    def give(self, part: int) -> None:
        """Send a bundle of the push under way, if it has not been. Waits while the server has not
        acknowledged the last but one.
        """
        bundle, push = self._ungiven.pop(part, None), self._push
        if bundle is None or push is None:
            return
        where = f"push {push.clock}"
        self._until(lambda: not self.asking.is_full(bundle), where, self.timeout_s)
        before = time.monotonic()
        block = self._block(bundle, push.gradients)
        self._send(bundle.server, *self.asking.push(bundle, push, block))
        self.spent.send_s += time.monotonic() - before

    def give_all(self) -> None:
        """What has not been sent of the push under way, the last layer first."""
        for part in sorted(self._ungiven, reverse=True):
            self.give(part)

    def pull(self, pull: Pull, arrays: Mapping[str, Array]) -> None:
        """Ask for parameters. What comes goes into ``arrays``, each bundle with ``take``;
        ``take_all`` waits for the rest.
        """
        self.check()
        self._pull, self._into = pull, arrays
        self._waits.clear()
        self._say(self.asking.pull(pull))

    def take(self, part: int) -> None:
        """Wait for a bundle of the pull under way, unless it is here."""
        if part in self.asking.awaited:
            # Other groups may take much longer to end, and group 0 to warm up.
            is_patient = self._pull.final or (self.group > 0 and self._pull.clock == 0)
            where = f"pull {self._pull.clock}"
            self._until(
                lambda: part not in self.asking.awaited,
                where,
                None if is_patient else self.timeout_s,
            )

    def take_all(self) -> None:
        """Wait for what is still to come of the pull under way."""
        for part in sorted(self.asking.awaited):
            self.take(part)

    def leave(self) -> None:
        """Tell servers that this group pushes no more; wait until all that was said is heard."""
        self._say(self.asking.leave())
        self._until(lambda: self.asking.is_heard, "leaving", self.timeout_s)

    def thank(self) -> None:
        """Tell servers that the end is here."""
        self._say(self.asking.leave(is_thanks=True))
        self._until(lambda: self.asking.is_heard, "thanking", self.timeout_s)

    def part(self) -> None:
        """Nothing: there are servers."""

    def ask(self, epoch: int, stop: bool) -> bool:
        """What group 0 says of the end."""
        self._say([self.asking.ask(epoch, stop)])
        where = f"end of epoch {epoch}"
        self._until(lambda: epoch in self.asking.verdicts, where, self.timeout_s)
        return self.asking.verdicts[epoch]

    def mean(self, arrays: Sequence[Array]) -> None:
        """Groups that survive each other do not meet."""
        raise JobError(
            "this strategy takes means over groups, which then cannot survive each other; leave "
            "checkpoints out, or let servers have what is to be shared"
        )

    def close(self) -> None:
        self.links.close()

    def _block(self, bundle: Bundle, arrays: Mapping[str, Array]) -> Array:
        """A copy, which stays as it is until it has been acknowledged."""
        block = np.empty(len(bundle), self.dtype)
        for piece, to in zip(bundle.pieces, bundle.cut(block), strict=True):
            to[...] = _part(arrays, piece)
        return block

    def _say(self, said: Iterable[tuple[int, Meta]]) -> None:
        for server, meta in said:
            self.links.send(server, meta)

    def _send(self, server: int, meta: Meta, block: Array | None) -> None:
        self.check()
        self.links.send(server, meta, block)
        self.spent.sent_bytes += 0 if block is None else block.nbytes

    def _hear(self, server: int, message: WireMessage) -> None:
        meta = message.meta
        if isinstance(meta, Note) and meta.topic == WAITS:
            self._waits[server] = [*map(int, str(meta.fields["ranks"]).split())]
            return
        block = message.arrays[0] if message.arrays else None
        bundle = self.asking.heard(server, meta, block)
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
            if timeout_s is None and not self.links.down():
                patience = None
            elif patience is None:
                patience = Patience(self.timeout_s)
            left_s = LOOK_S if patience is None else patience.left_s()
            if left_s <= 0:
                raise self._overdue(what, self.timeout_s if timeout_s is None else timeout_s)
            got = self.links.receive(min(left_s, LOOK_S))
            self.spent.wait_s += time.monotonic() - now
            if got is not None:
                self._hear(*got)
            self.check()

    def _check_ways(self, what: str) -> None:
        for server, silent_s in self.links.cut_off().items():
            if silent_s > CUT_S:
                why = f"it has its place, but for {silent_s:.1f} s nothing has answered there"
                lost = f"task {self.topology.server(server)}"
                raise PeerUnreachable(f"task {self.rank}, {what}", (lost,), why)

    def _overdue(self, what: str, timeout_s: float) -> BarrierTimeout:
        """It is late; of servers that only wait for others, those are."""
        topology, down = self.topology, self.links.down()
        owing = {s: self.asking.owing(s) for s in range(topology.n_servers) if self.asking.owing(s)}
        said = [f"server {s} has not answered {owes}" +
                (f" (no link: {down[s]})" if s in down else "")
                for s, owes in owing.items()]  # fmt: skip
        late = {r for s in owing if s not in down for r in self._waits.get(s, [])} - {self.rank}
        ranks = [topology.server(s) for s in owing]
        if late:
            ranks = sorted(late)
            said.append(f"waits for {', '.join(map(topology.name, ranks))}")
        absent = tuple(f"task {rank}" for rank in ranks)
        where = f"task {self.rank}, {what}"
        return BarrierTimeout(where, absent, (), timeout_s, "; ".join(said))


def _part(arrays: Mapping[str, Array], piece: Piece) -> Array:
    """A piece of an array, flat, and a view."""
    return arrays[piece.name].reshape(-1)[piece.start : piece.stop]


def serve(
    lasting: LastingServer, hub: Hub, journal: Journal | None, eyes: Eyes, idle_s: float
) -> TaskTimes:
    """Run a server until it is done, and everybody knows; where its time went.

    Raises
    ------
    BarrierTimeout : nobody has said anything for ``idle_s``. Fenced : another has its place.
    JournalError : what it was told cannot be written.
    """
    spent = TaskTimes()
    told, patience = time.monotonic(), Patience(idle_s)
    done_at: float | None = None
    while True:
        if lasting.is_done:
            done_at = done_at or time.monotonic()
            if not hub.ranks and not eyes.is_anybody_there():
                return spent
            if time.monotonic() - done_at > END_S:
                logger.warning("server ends server=%d ranks=%s", lasting.server.number, hub.ranks)
                return spent
        else:
            done_at = None
        before = time.monotonic()
        message = hub.receive(LOOK_S if done_at is None else 0.05)
        now = time.monotonic()
        spent.wait_s += now - before
        eyes.check()
        if now - told > LOOK_S:
            told = now
            for rank, ranks in lasting.server.waiting():
                hub.send(rank, Note(topic=WAITS, fields={"ranks": ranks}), None)
        if message is None:
            if patience.left_s() <= 0 and done_at is None:
                late = lasting.server.unfinished
                raise BarrierTimeout("serving", late, (), idle_s, "nobody pushes or pulls")
            continue
        patience.renew()
        if len(message.arrays) > 1:
            raise ProtocolError(f"task {message.src}: {len(message.arrays)} blocks in a message")
        block = message.arrays[0] if message.arrays else None
        n_changes = lasting.n_changes
        answers = lasting.on(message.src, message.meta, block, message.attempt)
        between = time.monotonic()
        spent.compute_s += between - now
        if journal is not None and lasting.n_changes > n_changes:
            journal.append(message, between - now)
        for rank, meta, values in answers:
            hub.send(rank, meta, values)
            spent.sent_bytes += 0 if values is None else values.nbytes
        spent.received_bytes += 0 if block is None else block.nbytes
        if journal is not None and journal.is_long:
            journal.save(*lasting.state())
        spent.send_s += time.monotonic() - between
