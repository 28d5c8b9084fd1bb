"""Links of a task to its servers that reconnect, over ZeroMQ.

A server has ``ServerLinks`` (a ROUTER), a task ``TaskLinks``: a DEALER per server. A link begins
with a hello and a welcome; its frames are numbered. A gap, a bad frame or a broken connection ends
it, and the task opens another as another incarnation, so that late frames of the old one are told
apart. Tasks resend unacknowledged pushes, and requests without an answer. See docs/notes/0061.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from horn.errors import Fenced, JobError
from horn.parameter_server.link import (
    ATTEMPT,
    FULL_S,
    LINGER_S,
    LinkEnd,
    drain,
    has_frame,
    received,
    spin,
)
from horn.runtime.context import ServerAddress
from horn.transport import Identity, TransportCounters
from horn.transport._handshake import HELLO, hello_of, refused
from horn.transport._zeromq import ZeroMqContext
from horn.wire.connection import EVENTS, HANDSHAKE_FAILED, event_of, monitor_of
from horn.wire.frames import VERSION, Array, BadFrame, Buffer, Expected, WireMessage
from horn.wire.messages import Bye, Meta, Refusal, Welcome
from horn.wire.probe import Probe, ProbeResult

logger = logging.getLogger(__name__)

SLICE_S = 0.05  # how often a wait looks for a restarted server
RETRY_S = 0.2  # between two links to a server that has not answered
WELCOME_S = 5.0  # for a server to answer a hello
# A cut connection is noticed after four seconds, busy or idle.
NOTICES = {
    zmq.TCP_MAXRT: 4_000,
    zmq.TCP_KEEPALIVE_IDLE: 1,
    zmq.TCP_KEEPALIVE_INTVL: 1,
    zmq.TCP_KEEPALIVE_CNT: 3,
}
NOT_YET = "it has not registered"

Again = Callable[[int], Iterable[tuple[Meta, Sequence[Array]]]]


@dataclass
class _Link:
    """A task's link to one server; while it has no socket, it is down."""

    found: ServerAddress | None = None
    socket: zmq.Socket[bytes] | None = None
    monitor: zmq.Socket[bytes] | None = None
    end: LinkEnd | None = None
    has_handshake: bool = False
    is_welcome: bool = False
    tried: float = 0.0
    why: str = NOT_YET
    probe: Probe | None = None  # after the connection broke, until an answer


class TaskLinks:
    """A task's links to all servers.

    identity : its world size counts the tasks of its group. find : where a server is now.

    Raises
    ------
    Fenced : a later attempt has this task's place. HandshakeRefused : a server has another job or
    version.
    """

    is_lossy = True

    def __init__(
        self, identity: Identity, n_servers: int, find: Callable[[int], ServerAddress | None]
    ) -> None:
        self.identity, self.find = identity, find
        self._again: Again = lambda server: ()
        self.counters = TransportCounters()
        self.n_links = 0  # number of links made
        self._links = [_Link() for _ in range(n_servers)]
        self._context = ZeroMqContext(identity)

    def open(self, again: Again) -> None:
        self._again = again

    def down(self) -> dict[int, str]:
        return {s: link.why for s, link in enumerate(self._links) if not link.is_welcome}

    def ended(self) -> dict[int, str]:
        return {}  # it will be started again

    def cut_off(self) -> dict[int, float]:
        now = time.monotonic()
        probes = ((s, link.probe) for s, link in enumerate(self._links))
        return {s: now - probe.began_s for s, probe in probes if probe is not None}

    def send(self, server: int, meta: Meta, values: Sequence[Array] = ()) -> None:
        """Send where there is a link; else the next link resends it. Leave the values unchanged."""
        link = self._links[server]
        if link.is_welcome and link.end is not None:
            link.end.queue.append((meta, values))
            self._flush(link)

    def receive(self, timeout_s: float) -> WireMessage | None:
        ends = time.monotonic() + timeout_s
        while True:
            is_full = self._mend()
            for server, link in enumerate(self._links):
                if link.socket is not None and has_frame(link.socket):
                    message = self._take(server, link, received(link.socket))
                    if message is not None:
                        return message
                    break
            else:
                left_s = ends - time.monotonic()
                if left_s <= 0:
                    return None
                self._wait(min(left_s, FULL_S if is_full else SLICE_S))

    def _wait(self, wait_s: float) -> None:
        sockets = [link.socket for link in self._links if link.socket is not None]
        if not spin(sockets, wait_s):
            monitors = [link.monitor for link in self._links if link.monitor is not None]
            watched: list[tuple[Any, int]] = [(s, zmq.POLLIN) for s in (*sockets, *monitors)]
            zmq.zmq_poll(watched, max(int(wait_s * 1000), 1))

    def _mend(self) -> bool:
        """Open the links that are down; whether a link has no room for its queue."""
        is_full, now = False, time.monotonic()
        for server, link in enumerate(self._links):
            self._read_events(link)
            found = self.find(server)
            if found != link.found:
                self._answered(link)
            elif link.probe is not None and link.probe.poll(now) is not ProbeResult.NONE:
                self._answered(link)  # the next link will show whether it runs or has gone
            if found is not None and found != link.found:
                self._cut(link, NOT_YET)
                link.why = NOT_YET
                self._open(server, link, found, now)
            elif link.socket is None and found is not None and now - link.tried > RETRY_S:
                self._open(server, link, found, now)
            elif link.socket is not None and not link.is_welcome and now - link.tried > WELCOME_S:
                self._cut(link, "it does not answer")
            is_full |= not self._flush(link)
        return is_full

    def _read_events(self, link: _Link) -> None:
        while link.monitor is not None and link.monitor.poll(0):
            event, _ = event_of(link.monitor)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                link.has_handshake = True
            elif event == zmq.EVENT_DISCONNECTED and link.has_handshake:
                if link.is_welcome and link.found is not None:
                    link.probe = Probe(link.found.endpoint, time.monotonic())
                self._cut(link, "its connection broke: killed, crashed or cut off")
            else:
                self._cut(link, HANDSHAKE_FAILED)

    @staticmethod
    def _answered(link: _Link) -> None:
        if link.probe is not None:
            link.probe.close()
            link.probe = None

    def _open(self, server: int, link: _Link, found: ServerAddress, now: float) -> None:
        incarnation = b"\1" + secrets.token_bytes(15)  # 0 first is ZeroMQ's own
        socket = self._context.dealer(found.endpoint, incarnation)
        for option, value in NOTICES.items():
            socket.set(option, value)
        link.found, link.socket, link.tried = found, socket, now
        try:
            link.monitor = monitor_of(socket, EVENTS)
            socket.connect(found.endpoint)
        except zmq.ZMQError as error:
            raise JobError(f"cannot connect to {found.endpoint!r}: {error}") from error
        self.n_links += 1
        expected = Expected(server, found.attempt, self._context.needs_sum)
        link.end = LinkEnd(f"server {server}", expected)
        link.end.queue.append((hello_of(self.identity, incarnation), ()))

    def _cut(self, link: _Link, why: str, linger_ms: int = 0) -> None:
        if link.socket is not None and link.monitor is not None:
            link.socket.disable_monitor()
            link.monitor.close(0)
        if link.socket is not None:
            link.socket.close(linger_ms)
        link.socket = link.monitor = link.end = None
        if link.is_welcome or link.why == NOT_YET:  # the reasons of later trials are vaguer
            link.why = why
        link.is_welcome = link.has_handshake = False

    def _flush(self, link: _Link) -> bool:
        if link.end is None or link.socket is None:
            return True
        return link.end.flush(self._context, link.socket)

    def _take(self, server: int, link: _Link, parts: Sequence[Buffer]) -> WireMessage | None:
        assert link.end is not None
        try:
            message = link.end.take(parts)
        except BadFrame as error:
            self.counters.n_dropped += 1
            logger.warning("link ended task=%d server=%d %s", self.identity.rank, server, error)
            self._cut(link, str(error))
            return None
        if isinstance(message.meta, Refusal):
            self._refused(server, link, message.meta)
            return None
        if isinstance(message.meta, Welcome):
            link.is_welcome = True
            self._answered(link)
            link.end.queue.extend(self._again(server))
            self._flush(link)
            return None
        return message

    def _refused(self, server: int, link: _Link, refusal: Refusal) -> None:
        where = refusal.where
        if where.rpartition(": ")[2] == ATTEMPT:
            raise Fenced(
                f"task {self.identity.rank}",
                f"server {server} has seen a later attempt than {self.identity.attempt}",
            )
        if where.startswith(HELLO) or where == VERSION:
            raise refused(f"server {server}", refusal)
        logger.warning("link refused task=%d server=%d %s", self.identity.rank, server, refusal.got)
        self._cut(link, refusal.got)

    def close(self) -> None:
        """Say goodbye to servers that have a link."""
        for link in self._links:
            if link.is_welcome and link.end is not None:
                link.end.queue.append((Bye(reason="finished"), ()))
            else:
                self._cut(link, "this task has left")
        # Each in every turn: a server that takes nothing holds back no other's goodbye.
        drain(lambda: all([*map(self._flush, self._links)]))
        for link in self._links:
            self._answered(link)
            self._cut(link, "this task has left", int(LINGER_S * 1000))
        self._context.end()
