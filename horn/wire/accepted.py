"""The accepted connections of a listening socket, counted and limited by address.

libzmq reports connections by descriptor and cannot end one; a shutdown of the descriptor can.
Failed handshakes it reports without a descriptor, just before the connection's end, or (another
protocol) not at all: a connection that ends without a message has failed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import OrderedDict

from horn.security.audit import RateLimiter

MAX_ADDRESSES = 4096
UCRED = struct.Struct("3i")  # pid, uid, gid
TOO_MANY_FAILED = "too many failed handshakes"
TOO_MANY_OF_ADDRESS = "too many connections of this address"
TOO_MANY = "too many connections"


def local_name(listener: socket.socket) -> int | str | bytes:
    """The port or path of a listener's connections."""
    name = listener.getsockname()
    return int(name[1]) if isinstance(name, tuple) else name


class AcceptedConnections:
    """Open connections: descriptor -> address, or uid on a path. local : the listener's name.
    counts_silent : ends without a message are failures. Used from one thread.
    """

    def __init__(
        self,
        local: int | str | bytes,
        most: int,
        per_address: int,
        failures_per_s: float,
        burst: int,
        *,
        counts_silent: bool = True,
    ) -> None:
        self.local, self.most, self.per_address = local, most, per_address
        self.failures_per_s, self.burst = failures_per_s, burst
        self.counts_silent = counts_silent
        self._open: dict[int, str] = {}
        self._n_of: dict[str, int] = {}
        self._failures: OrderedDict[str, RateLimiter] = OrderedDict()
        self._spoke: set[int] = set()
        self._n_failed = 0  # reported, but not yet known of which connection

    def __len__(self) -> int:
        return len(self._open)

    def address(self, fd: int) -> str:
        return self._open.get(fd, "?")

    def accepted(self, fd: int, now: float) -> str:
        """Count a new connection; return the reason to cut it, or ""."""
        address = self._peer_of(fd) or "?"
        self._open[fd] = address
        self._n_of[address] = self._n_of.get(address, 0) + 1
        if self._n_of[address] > self.per_address:
            return TOO_MANY_OF_ADDRESS
        if len(self._open) > self.most:
            return TOO_MANY
        bucket = self._failures.get(address)
        if bucket is not None and bucket.is_empty(now):
            return TOO_MANY_FAILED
        return ""

    def failed(self) -> None:
        """Record a failed handshake; the next connection that ends was its own."""
        self._n_failed += 1

    def spoke(self, fd: int) -> bool:
        """Record a message, so the connection's handshake succeeded. False: it is not known yet."""
        if fd in self._open:
            self._spoke.add(fd)
        return fd in self._open

    def ended(self, fd: int, now: float) -> str:
        """Count the end of a connection; return how it failed, or ""."""
        address = self._open.pop(fd, None)
        has_failed, self._n_failed = self._n_failed > 0, max(self._n_failed - 1, 0)
        if address is None:
            return ""
        self._n_of[address] -= 1
        if not self._n_of[address]:
            del self._n_of[address]
        if fd in self._spoke:
            self._spoke.discard(fd)
            return ""
        if not (has_failed or self.counts_silent):
            return ""
        self.count(address, now)
        return "no CURVE handshake" if has_failed else "hung up without a word"

    def count(self, address: str, now: float) -> None:
        """Count one failure of an address: a handshake, or a peer that broke the rules."""
        bucket = self._failures.pop(address, None)
        if bucket is None:
            bucket = RateLimiter(self.failures_per_s, self.burst, now)
            if len(self._failures) >= MAX_ADDRESSES:
                self._failures.popitem(last=False)
        self._failures[address] = bucket
        bucket.take(now)

    def cut(self, fd: int) -> bool:
        """Hang up, if ``fd`` still is a connection of this port."""
        if self._peer_of(fd) is None:
            return False
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)
            return True
        return False

    def _peer_of(self, fd: int) -> str | None:
        """The address at the other end; None if it is no connection of this listener (any more)."""
        try:
            with socket.socket(fileno=os.dup(fd)) as duplicate:
                if local_name(duplicate) != self.local:
                    return None
                peer = duplicate.getpeername()
                if isinstance(peer, tuple):
                    return str(peer[0])
                return f"uid {uid_of(duplicate)}"
        except (OSError, IndexError, TypeError):
            return None


def uid_of(sock: socket.socket) -> int:
    """The user whose process is at the other end of a unix socket."""
    uid: int = UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))[1]
    return uid
