"""Limits of the connections to a listening ZeroMQ socket, in all and by address.

Each connection takes a descriptor, long before a handshake; without descriptors a process can
neither save nor start. So each address, and all together, may hold so many. Connections beyond are
cut, and their address not heard for a while (``blocklist``). Source: docs/notes/0072 and 0102.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec
import zmq

from horn.security.audit import AuditLog
from horn.wire.accepted import TOO_MANY, AcceptedConnections, local_name
from horn.wire.blocklist import Blocklist
from horn.wire.connection import event_of, monitor_of

RESERVED = 256  # descriptors that connections of others leave to a process
LISTENERS = 2  # ZeroMQ sockets that a process of a job listens on, at most
MOST, FEWEST = 1024, 16  # connections to one of them, however many descriptors there are
LOOK_S = 0.25  # between two checks whether a block is over
EVENTS = (
    zmq.EVENT_LISTENING
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one listening socket. counts_silent : ends without a message are failures; not
    where peers probe.
    """

    connections: int = MOST
    connections_per_address: int = 128
    failures_per_s: float = 5.0  # failed handshakes of an address
    failures_burst: int = 50
    block_s: float = 1.0  # for which an address with more of them is blocked
    counts_silent: bool = True


def room(n_listeners: int = 1) -> int:
    """The connections to each of ``n_listeners`` sockets for which there are descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST
    return max(min((soft - RESERVED) // n_listeners, MOST), FEWEST)


def of_a_job() -> ConnectionLimits:
    """Limits for a process of a job: its peers may all be on one host."""
    most = room(LISTENERS)
    return ConnectionLimits(
        connections=most, connections_per_address=most * 3 // 4, counts_silent=False
    )


class Admission:
    """The admission of connections to ``socket``, which is not bound yet. Used from one thread: the
    caller's, which calls ``look`` when ``monitor`` is readable, or its own after ``start``.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        limits: ConnectionLimits,
        audit: AuditLog | None = None,
        where: str = "",
        ended: Callable[[int], None] | None = None,
    ) -> None:
        """Begin to monitor. ended : called with the file descriptor of each ended connection."""
        self.limits, self.audit, self.where, self.ended = limits, audit or AuditLog(), where, ended
        self.n_cut = self.n_failed = 0
        self._socket = socket
        self._thread: threading.Thread | None = None
        self._wake = -1
        self._opened = ExitStack()  # what ``close`` closes
        events = EVENTS
        if limits.counts_silent:
            events |= zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        self.monitor = monitor_of(socket, events)

    def bound(self) -> None:
        """Begin to count connections, since ``socket`` listens now."""
        kind, fd = 0, -1
        while kind != zmq.EVENT_LISTENING:
            kind, fd = event_of(self.monitor, 0)  # it came before ``bind`` returned
        self.blocked = Blocklist(fd)
        self._opened.callback(self.blocked.close)
        limits = self.limits
        self.connections = AcceptedConnections(
            local_name(self.blocked.listener),
            limits.connections,
            limits.connections_per_address,
            limits.failures_per_s,
            limits.failures_burst,
            counts_silent=limits.counts_silent,
        )

    def start(self) -> None:
        """Call ``look`` in a thread from now on."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="horn-admission", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        watched: list[tuple[Any, int]] = [(self.monitor, zmq.POLLIN), (self._wake, zmq.POLLIN)]
        while True:
            wait_ms = int(LOOK_S * 1000) if self.blocked.is_any else -1
            ready = dict(zmq.zmq_poll(watched, wait_ms))
            if self._wake in ready:
                return
            self.read_events(time.monotonic())

    def read_events(self, now: float) -> None:
        """Read events of new and ended connections."""
        connections = self.connections
        while self.monitor.poll(0):
            kind, fd = event_of(self.monitor)
            if kind == zmq.EVENT_ACCEPTED:
                self._accepted(fd, now)
            elif kind == zmq.EVENT_DISCONNECTED:
                address = connections.address(fd)
                reason = connections.ended(fd, now)
                if reason:
                    self.n_failed += 1
                    self.audit.line("refused", address=address, reason=reason, at=self.where)
                if self.ended is not None:
                    self.ended(fd)
            else:
                connections.failed()
        self.blocked.unblock_due(now)

    def _accepted(self, fd: int, now: float) -> None:
        reason = self.connections.accepted(fd, now)
        if not reason:
            return
        address = self.connections.address(fd)
        self.cut(fd, reason)
        if reason != TOO_MANY and self.limits.block_s > 0:
            self.blocked.add(address, now + self.limits.block_s)

    def cut(self, fd: int, reason: str) -> None:
        """Hang up on a connection."""
        address = self.connections.address(fd)
        if self.connections.cut(fd):
            self.n_cut += 1
            self.audit.line("cut", address=address, reason=reason, at=self.where)

    def close(self) -> None:
        """Close before the socket. May be called twice."""
        if self._thread is not None:
            os.eventfd_write(self._wake, 1)
            self._thread.join()
            os.close(self._wake)
            self._thread = None
        self._opened.close()
        if not self.monitor.closed:
            if not self._socket.closed:
                self._socket.disable_monitor()
            self.monitor.close(0)
