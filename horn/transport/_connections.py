"""The connections of a listening socket by address, and which of them are too many.

libzmq tells of each connection by its descriptor, and has no way to end one: shutting its
descriptor down does, and libzmq sees a peer that hung up. Of failed handshakes it tells without a
descriptor, just before the end of their connection, or (what spoke another protocol) not at all:
who ends without having said anything has failed.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import OrderedDict

from horn.cluster.audit import Bucket

MAX_ADDRESSES = 4096
TOO_MANY_FAILED = "too many failed handshakes"


class Connections:
    """Open connections: descriptor -> address. Used from one thread."""

    def __init__(
        self, port: int, most: int, per_address: int, failures_per_s: float, burst: int
    ) -> None:
        self.port, self.most, self.per_address = port, most, per_address
        self.failures_per_s, self.burst = failures_per_s, burst
        self._open: dict[int, str] = {}
        self._n_of: dict[str, int] = {}
        self._failures: OrderedDict[str, Bucket] = OrderedDict()
        self._spoke: set[int] = set()
        self._n_failed = 0  # told of, but not yet whose they were

    def __len__(self) -> int:
        return len(self._open)

    def address(self, fd: int) -> str:
        return self._open.get(fd, "?")

    def accepted(self, fd: int, now: float) -> str:
        """One more. Gives "" or why it is to be cut."""
        address = self._peer_of(fd) or "?"
        self._open[fd] = address
        self._n_of[address] = self._n_of.get(address, 0) + 1
        if self._n_of[address] > self.per_address or len(self._open) > self.most:
            return "too many connections"
        bucket = self._failures.get(address)
        if bucket is not None and bucket.is_empty(now):
            return TOO_MANY_FAILED
        return ""

    def failed(self) -> None:
        """A handshake failed; the next that ends was its connection."""
        self._n_failed += 1

    def spoke(self, fd: int) -> None:
        """A message came, so its handshake went well."""
        if fd in self._open:
            self._spoke.add(fd)

    def ended(self, fd: int, now: float) -> str:
        """One less. Gives "" or how it failed."""
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
        self.count(address, now)
        return "no CURVE handshake" if has_failed else "hung up without a word"

    def count(self, address: str, now: float) -> None:
        """One failure of an address: a handshake, or a peer that broke the rules."""
        bucket = self._failures.pop(address, None)
        if bucket is None:
            bucket = Bucket(self.failures_per_s, self.burst, now)
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
        """The address at the other end; None if it is no connection of this port (any more)."""
        try:
            with socket.socket(fileno=os.dup(fd)) as duplicate:
                if duplicate.getsockname()[1] != self.port:
                    return None
                return str(duplicate.getpeername()[0])
        except (OSError, IndexError, TypeError):
            return None
