"""Frames over ZeroMQ: one ROUTER to receive on, one DEALER per peer to send by.

With a DEALER per peer a full peer shows (a ROUTER drops silently or blocks for all), and its
monitor tells of a broken connection, which is made anew while somebody listens there. Source:
reference wire, item 8; docs/notes/0020 and 0063.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import zmq
from zmq.backend.cython import _zmq

from horn._kernels import sockets
from horn.errors import JobError
from horn.transport import Identity
from horn.transport._framed import FramedTransport
from horn.transport._link import always
from horn.wire.admission import Admission, of_a_job
from horn.wire.connection import MENDING, PeerConnection
from horn.wire.frames import Buffer
from horn.wire.sockets import bind, limited, router
from horn.wire.zap import AllowedKeys, ZapHandler, pair_of

# A frame passes three threads, and each wake-up costs 5-50 us: looking for this long saves one.
YIELD_S = 0.0003


def has_curve() -> bool:
    """Whether libzmq can encrypt."""
    return bool(zmq.has("curve"))


def _addresses() -> dict[str, int]:
    """Addresses in pyzmq's own libzmq: a lookup through its module also searches its libraries."""
    library = ctypes.CDLL(_zmq.__file__)
    found = {}
    for name in sockets.FUNCTIONS:
        try:
            found[name] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            raise JobError(
                f"this pyzmq hides {name} of its libzmq: install one of PyPI's, or one that uses "
                f"the libzmq of the system"
            ) from None
    return found


def keypair(key: bytes, job: str) -> tuple[bytes, bytes]:
    """The CURVE pair (public, secret, both z85) of a job, by HKDF-SHA256 from the cluster's key."""
    if len(key) != 32:
        raise JobError(f"the cluster's key has {len(key)} bytes; make one of 32 with: horn keygen")
    extracted = hmac.digest(b"horn curve 1", key, hashlib.sha256)
    return pair_of(hmac.digest(extracted, job.encode() + b"\x01", hashlib.sha256))


class ZeroMqContext:
    """A ZeroMQ context with LIMITS, and CURVE keys where there is a secret; one ROUTER at most."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.needs_sum = identity.key is None
        self.pair = keypair(identity.key, identity.job) if identity.key is not None else None
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.zap: ZapHandler | None = None
        self._linger_ms = 0
        self._opened = ExitStack()  # what ``end`` closes, the newest first
        self._opened.callback(self.context.term)

    def listen(self, bind_to: str, name: str) -> None:
        """Make ``router`` and its ``endpoint``. A key, if there is one, is needed to come in."""
        audit = None
        if self.pair is not None:
            allowed = AllowedKeys(where=name)
            allowed.admit(self.pair[0], "task")  # of this job, and nobody else
            self.zap, audit = ZapHandler(self.context, allowed), allowed.audit
            self._opened.callback(self.zap.close)
        self.router = router(self.context, bind_to, None if self.pair is None else self.pair[1])
        self._opened.callback(lambda: self.router.close(self._linger_ms))
        self.admission = Admission(self.router, of_a_job(), audit, name)
        self._opened.callback(self.admission.close)
        self.endpoint = bind(self.router, self.admission, bind_to)
        self.admission.start()

    def answer(self, sender: bytes, parts: Sequence[Buffer]) -> None:
        """Answer a stranger, by the router."""
        try:
            self.router.send_multipart([sender, *parts], zmq.DONTWAIT)
        except (zmq.Again, zmq.ZMQError):
            pass  # a stranger that has gone, or does not read, gets no answer

    def dealer(self, endpoint: str, name: bytes) -> zmq.Socket[bytes]:
        """Make a DEALER to connect to an endpoint."""
        made = limited(self.context, zmq.DEALER, endpoint)
        made.set(zmq.ROUTING_ID, name)
        if self.pair is not None:
            made.set(zmq.CURVE_SERVERKEY, self.pair[0])
            made.set(zmq.CURVE_PUBLICKEY, self.pair[0])
            made.set(zmq.CURVE_SECRETKEY, self.pair[1])
        return made

    def end(self, linger_ms: int = 0) -> None:
        """Close the router and the context; all dealers are closed already."""
        self._linger_ms = linger_ms
        self._opened.close()


class _Sockets(ZeroMqContext):
    """The link: sockets of ZeroMQ."""

    def __init__(self, bind_to: str, identity: Identity) -> None:
        super().__init__(identity)
        self.incarnation = b""
        self.connections: dict[int, PeerConnection] = {}
        self.mending: set[int] = set()  # whose connection broke since ``broke`` was asked
        self.full: set[int] = set()
        try:
            sockets.use(_addresses())
            self.listen(bind_to, f"task {identity.rank} of {identity.job}")
            self.inlet = sockets.Socket(self.router.underlying)
        except BaseException:
            self.close(0.0)
            raise

    def connect(self, peers: Sequence[str], incarnation: bytes) -> None:
        self.incarnation = incarnation
        for task, endpoint in enumerate(peers):
            if task == self.identity.rank:
                continue
            try:
                self.connections[task] = PeerConnection(endpoint, partial(self._dial, endpoint))
            except zmq.ZMQError as error:
                raise JobError(f"cannot connect to {endpoint!r}: {error}") from error

    def _dial(self, endpoint: str, number: int) -> zmq.Socket[bytes]:
        """Make a DEALER with a name of its own, since the last one's may linger."""
        dealer = self.dealer(endpoint, self.incarnation + number.to_bytes(4, "little"))
        if number:
            for option, value in MENDING.items():
                dealer.set(option, value)
        return dealer

    def put(self, to: int, parts: Sequence[Buffer]) -> Callable[[], bool] | None:
        connection = self.connections[to]
        gone = connection.outlet.send(parts) if connection.is_open else None
        if gone is None and not connection.lost:
            self.full.add(to)
        return always if gone is True else gone

    def get(self, wait_s: float) -> tuple[bytes, Sequence[Buffer]] | None:
        parts = self.inlet.receive()
        if parts is None and wait_s > 0 and self._wait(wait_s):
            parts = self.inlet.receive()
        return None if parts is None else (bytes(parts[0]), parts[1:])

    def _wait(self, wait_s: float) -> bool:
        """Wait for a frame; False after the time, or for another event."""
        if self.inlet.wait(min(wait_s, YIELD_S)):
            return True
        for socket, event in zmq.zmq_poll(self._watched(), max(int(wait_s * 1000), 1)):
            if socket is not self.router and event & zmq.POLLOUT:
                self.full -= {task for task, c in self.connections.items() if c.dealer is socket}
        return self.inlet.wait(0.0)

    def _watched(self) -> list[tuple[Any, int]]:
        found: list[tuple[Any, int]] = [(self.router, zmq.POLLIN)]
        for task, connection in self.connections.items():
            waits_for = zmq.POLLIN | (zmq.POLLOUT if task in self.full else 0)
            found.append((connection.dealer, waits_for))
            found.append((connection.monitor, zmq.POLLIN))
            if (fd := connection.probe_fd) is not None:
                found.append((fd, zmq.POLLIN | zmq.POLLERR))
        return found

    def answers(self) -> list[tuple[int, Sequence[Buffer]]]:
        found: list[tuple[int, Sequence[Buffer]]] = []
        for task, connection in self.connections.items():
            try:
                found.append((task, connection.dealer.recv_multipart(zmq.DONTWAIT)))
            except zmq.Again:
                continue
        return found

    def gone(self) -> dict[int, str]:
        now_s = time.monotonic()
        self.mending |= {task for task, c in self.connections.items() if c.check(now_s)}
        return {task: c.lost for task, c in self.connections.items() if c.lost}

    def broke(self) -> set[int]:
        found, self.mending = self.mending, set()
        return found

    @property
    def n_mended(self) -> int:
        return sum(connection.n_mended for connection in self.connections.values())

    def doubt(self, task: int) -> None:
        self.connections[task].doubt(time.monotonic())

    def close(self, linger_s: float) -> None:
        for connection in self.connections.values():
            connection.close(int(linger_s * 1000))
        self.end()
        for connection in self.connections.values():
            connection.settle()
        self.connections = {}


class ZeroMq(FramedTransport):
    """The base of ``ipc`` and ``tcp``, which give the address to listen at."""

    def __init__(self, url: str, identity: Identity, bind_to: str) -> None:
        super().__init__(url, identity, b"\1" + secrets.token_bytes(15))  # 0 first is ZeroMQ's own
        self.link = self.sockets = _Sockets(bind_to, identity)
        self.endpoint = self.sockets.endpoint
