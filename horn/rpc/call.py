"""One call to a service, for its handler; quotas of peers; errors of calls."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from horn.errors import HornError, ProtocolError
from horn.rpc import protocol as calls
from horn.wire.admission import ConnectionLimits, room


class Quotas(ConnectionLimits, frozen=True, kw_only=True):
    """The limits of strangers and peers. At most ``calls_per_peer`` times ``WINDOW_BYTES`` are
    under way each way.
    """

    connections: int = msgspec.field(default_factory=room)
    calls: int = 64
    calls_per_peer: int = 8
    max_timeout_s: float = 600.0
    ban_s: float = 10.0  # for which a peer that broke the rules is blocked


class CallAbandoned(Exception):
    """The caller no longer waits; a handler lets this pass."""


class RpcCall:
    """A call, for its handler. ``role``: "client", "worker" or "open". ``deadline``: monotonic."""

    def __init__(
        self,
        put: Callable[[Sequence[bytes | memoryview]], None],
        quotas: Quotas,
        ask: calls.CallRequest,
        request: Any,
        role: str,
        address: str,
    ) -> None:
        self.request, self.role, self.address = request, role, address
        self.number, self.size = ask.call, ask.size
        self.deadline = time.monotonic() + min(ask.timeout_s, quotas.max_timeout_s)
        self._put = put  # from any thread
        self._changed = threading.Condition()
        self._chunks: deque[bytes | memoryview] = deque()
        self._n_to_come = ask.size  # bytes of the body that the peer has still to send
        self._n_granted = calls.WINDOW_BYTES  # of which it may send these
        self._n_credit = calls.WINDOW_BYTES  # that may be sent to it
        self._over = ""

    @property
    def is_over(self) -> bool:
        """Whether the caller has gone, or its time has passed: nothing more needs to be done."""
        return bool(self._over)

    def read(self) -> Iterator[bytes | memoryview]:
        """Yield the body, in portions as they come. Raises CallAbandoned."""
        n_left = self.size
        while n_left:
            with self._changed:
                while not self._chunks:
                    self._wait()
                data = self._chunks.popleft()
                n_left -= len(data)
                self._n_granted += len(data)
            if n_left:
                self.say(calls.WindowGrant(self.number, len(data)))
            yield data

    def say(self, frame: calls.RpcFrame, *raw: bytes | memoryview) -> None:
        """Send a frame. Raises CallAbandoned."""
        if self._over:
            raise CallAbandoned(self._over)
        self._put([calls.encode(frame), *raw])

    def send(self, body: Iterable[bytes | memoryview]) -> None:
        """Send a body, as fast as it is read."""
        for data in calls.chunks(body):
            with self._changed:
                while self._n_credit < len(data):
                    self._wait()
                self._n_credit -= len(data)
            self.say(calls.BodyChunk(self.number), data)
        self.say(calls.EndOfBody(self.number))

    def end(self, reason: str) -> None:
        """End the call, from any thread."""
        with self._changed:
            self._over = self._over or reason
            self._changed.notify_all()

    def take(self, frame: calls.RpcFrame, raw: bytes | memoryview) -> None:
        """Take a frame of the caller's. Raises ProtocolError."""
        with self._changed:
            if isinstance(frame, calls.BodyChunk):
                if len(raw) > min(self._n_granted, self._n_to_come):
                    raise ProtocolError("more of a body than was granted")
                self._n_granted -= len(raw)
                self._n_to_come -= len(raw)
                self._chunks.append(raw)
            elif isinstance(frame, calls.WindowGrant):
                self._n_credit += frame.n_bytes
                if self._n_credit > calls.WINDOW_BYTES:
                    raise ProtocolError("more granted than was sent")
            elif isinstance(frame, calls.CancelCall):
                self._over = self._over or "cancelled"
            elif not isinstance(frame, calls.EndOfBody) or self._n_to_come:
                raise ProtocolError(f"{type(frame).__name__} from a caller")
            self._changed.notify_all()

    def _wait(self) -> None:
        if self._over:
            raise CallAbandoned(self._over)
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise CallAbandoned("deadline")
        self._changed.wait(left)


@dataclass(frozen=True)
class Operation:
    """One operation of a service. ``handler`` returns a struct, or one and a body."""

    request: msgspec.msgpack.Decoder[Any]
    handler: Callable[
        [RpcCall], msgspec.Struct | tuple[msgspec.Struct, Iterable[bytes | memoryview]]
    ]
    roles: frozenset[str]
    max_body: int
    is_audited: bool


class ServiceBusy(HornError):
    """The service has too many calls; try again."""


class DeadlineExceeded(HornError):
    """The service has not finished in the time that the caller gave it."""


class ServiceFailed(HornError):
    """A bug in a handler, or in the service."""
