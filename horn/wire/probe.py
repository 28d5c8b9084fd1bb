"""A probe: whether a process listens at an endpoint, asked by a connection of its own.

A broken or silent connection tells nothing of the process. A new one does: refused, nobody listens;
greeted, which ZeroMQ's thread does however long the task computes, it runs; silent, it is stopped
or cut off. Never blocks. Source: docs/notes/0063.
"""

from __future__ import annotations

import enum
import errno
import os
import socket
from contextlib import suppress
from typing import Any

from horn.host_names import NameLookup

AGAIN_S = 0.02  # after a connection that was taken and then closed: a process that is just ending
ATTEMPT_S = 2.0  # an attempt may not notice that a network is whole again
GREETING = b"\xff"  # how ZMTP begins


class ProbeResult(enum.Enum):
    """The result so far."""

    NONE = enum.auto()
    REFUSED = enum.auto()
    GREETED = enum.auto()


class Probe:
    """Connects to a tcp:// or ipc:// endpoint until it is answered. Times are monotonic seconds."""

    def __init__(self, endpoint: str, now_s: float) -> None:
        self.endpoint, self.began_s = endpoint, now_s
        self._socket: socket.socket | None = None
        self._lookup: NameLookup | None = None
        self._tried_s = 0.0

    def poll(self, now_s: float) -> ProbeResult:
        """The result so far; call it now and then."""
        if self._socket is not None and now_s - self._tried_s > ATTEMPT_S:
            self.close()
        if self._socket is None:
            if now_s - self._tried_s < AGAIN_S:
                return ProbeResult.NONE
            self._tried_s = now_s
            try:
                self._open()
            except OSError as error:
                return self._failed(error.errno)
        return ProbeResult.NONE if self._socket is None else self._read()

    @property
    def fd(self) -> int | None:
        """The descriptor that becomes readable with an answer."""
        return None if self._socket is None else self._socket.fileno()

    def _open(self) -> None:
        """Connect, unless the address is not known yet."""
        scheme, _, rest = self.endpoint.partition("://")
        address: Any
        if scheme == "ipc":
            family, address = socket.AF_UNIX, "\0" + rest[1:] if rest.startswith("@") else rest
        else:
            host, _, port = rest.rpartition(":")
            lookup = self._lookup or NameLookup(host.strip("[]"), int(port))
            self._lookup = None
            found = lookup.answer()
            if found is None:
                self._lookup = lookup  # one at a time: each has a thread
                return
            family, address = found[0][0], found[0][4]
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        code = self._socket.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))

    def _read(self) -> ProbeResult:
        assert self._socket is not None
        try:
            data = self._socket.recv(1)  # also raises the error of connecting
        except BlockingIOError:
            return ProbeResult.NONE
        except OSError as error:
            return self._failed(error.errno)
        self.close()
        return ProbeResult.GREETED if data == GREETING else ProbeResult.NONE

    def _failed(self, code: int | None) -> ProbeResult:
        self.close()
        is_refused = code == errno.ECONNREFUSED or (
            code == errno.ENOENT and self.endpoint.startswith("ipc:")
        )
        return ProbeResult.REFUSED if is_refused else ProbeResult.NONE

    def close(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None
