"""The client of a service: one call at a time, each with a deadline."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Self, TypeVar

import msgspec
import zmq

from horn import errors
from horn.errors import (
    UNREADABLE,
    ClusterError,
    HornError,
    JobError,
    NotAllowed,
    ProtocolError,
    Timeout,
)
from horn.rpc import protocol as calls
from horn.security.keys import Key
from horn.wire.connection import EVENTS, event_of, monitor_of
from horn.wire.sockets import limited
from horn.wire.zap import pair_of

TIMEOUT_S = 10.0
TURN_S = calls.MAX_TIMEOUT_S  # for another thread's call, or the body of its answer, to end
MAX_FAILED = 3  # handshakes without a reason, after which one is looked for
KEPT_S = 0.5  # a busy service hangs up sooner
MAX_READS = 16  # of what a service says first, a greeting of 64 bytes: another may talk for ever
_RAISED = ("JobError", "NotFound", "Conflict", "NotAllowed", "ProtocolError", "ClusterError",
           "Timeout")  # fmt: skip

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True)
class ClientKeys:
    """The keys of a caller: its own pair, which proves its role, and the expected service's."""

    public: bytes
    secret: bytes = field(repr=False)
    service: bytes

    @classmethod
    def of(cls, key: Key, role: str, service: str) -> ClientKeys:
        """Derive the keys of a "client" or "worker", for calls to the service of this name."""
        return cls(*pair_of(key.role(role)), pair_of(key.service(service))[0])


class RpcClient:
    """Calls the service at ``endpoint``. access : None without a key. Raises NotAllowed: this key
    or role is refused. ClusterError: no answer in time, the connection broke, or the call failed.
    JobError: a time that no call may take. ProtocolError: a body of another size than was said.
    Others as the handler raised them.
    """

    def __init__(self, endpoint: str, access: ClientKeys | None = None) -> None:
        self.endpoint = endpoint
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._credit = 0
        self._access = access
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._dial()
        except BaseException:
            self._context.term()
            raise

    def _dial(self) -> None:
        """Connect anew: messages sent over the connection before are not sent again."""
        try:
            with ExitStack() as stack:
                dealer = stack.enter_context(limited(self._context, zmq.DEALER, self.endpoint))
                dealer.set(zmq.LINGER, 0)
                dealer.set(zmq.MAXMSGSIZE, calls.MESSAGE_BYTES)
                if self._access is not None:
                    dealer.set(zmq.CURVE_PUBLICKEY, self._access.public)
                    dealer.set(zmq.CURVE_SECRETKEY, self._access.secret)
                    dealer.set(zmq.CURVE_SERVERKEY, self._access.service)
                monitor = stack.enter_context(monitor_of(dealer, EVENTS))
                stack.callback(dealer.disable_monitor)
                dealer.connect(self.endpoint)
                self._stack = stack.pop_all()
        except zmq.ZMQError as error:
            raise ClusterError(f"cannot connect to {self.endpoint!r}: {error}") from error
        self._socket, self._monitor = dealer, monitor
        self._n_failed = 0  # failed handshakes in a row
        self._is_refused = False  # the last of them, for the key
        self._is_up = False  # the handshake is done
        self._broke = False  # it is down again, or was refused: the next call has another

    def call(
        self,
        op: str,
        request: msgspec.Struct,
        reply: type[S],
        *,
        body: Iterable[bytes | memoryview] = (),
        size: int = 0,
        timeout_s: float = TIMEOUT_S,
    ) -> S:
        """Make a call, and wait for the answer. ``body``: ``size`` bytes that go with it.
        ``timeout_s``: from when other threads' calls have ended, which take as long as their files;
        at most MAX_TIMEOUT_S.
        """
        self._wait_turn(op)
        try:
            ends = time.monotonic() + timeout_s
            number = self._ask(op, request, size, timeout_s)
            try:
                answer = self._send_body(number, op, body, size, ends)
            except BaseException:
                self._give_up(number)
                raise
            return self._parsed(op, answer or self._answer(number, op, ends), reply)
        finally:
            self._lock.release()

    def download(
        self,
        op: str,
        request: msgspec.Struct,
        reply: type[S],
        *,
        max_bytes: int,
        timeout_s: float = TIMEOUT_S,
    ) -> tuple[S, BodyStream]:
        """Make a call whose answer has a body, to be read or closed before the next call. Raises
        ProtocolError: over ``max_bytes``.
        """
        self._wait_turn(op)
        try:
            ends = time.monotonic() + timeout_s
            number = self._ask(op, request, 0, timeout_s)
            answer = self._answer(number, op, ends)
            parsed = self._parsed(op, answer, reply)
        except BaseException:
            self._lock.release()
            raise
        if not answer.size:
            return parsed, BodyStream(self, 0, iter(()))
        return parsed, BodyStream(self, number, self._body(number, op, ends, max_bytes))

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self._stack.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_turn(self, op: str) -> None:
        """Wait for the end of another call, and of its body."""
        if not self._lock.acquire(timeout=TURN_S):
            raise ClusterError(
                f"{op!r} was not sent to {self.endpoint}: for {TURN_S:g} s another call has had "
                f"the connection; read the body of its answer to the end, or close it"
            )

    def _ask(self, op: str, request: msgspec.Struct, size: int, timeout_s: float) -> int:
        if not 0 < timeout_s <= calls.MAX_TIMEOUT_S:  # the service would cut the connection
            raise JobError(
                f"{op!r} is given {timeout_s:g} s, but a call may take more than 0 and at most "
                f"{calls.MAX_TIMEOUT_S:g} s; give it such a time"
            )
        number = next(self._numbers)
        raw = msgspec.Raw(msgspec.msgpack.encode(request))
        ask = calls.CallRequest(number, calls.VERSION, op, timeout_s, raw, size)
        self._credit = calls.WINDOW_BYTES
        if not self._broke:
            self._drain()
        if self._broke:
            self._stack.close()
            self._dial()
        self._n_failed = 0  # earlier failures are over, or will recur
        self._put(op, [calls.encode(ask)], time.monotonic() + timeout_s)
        return number

    def _answer(self, number: int, op: str, ends: float) -> calls.CallResponse:
        while True:
            frame, _ = self._receive(number, op, ends)
            if isinstance(frame, calls.CallResponse):
                return frame

    def _send_body(
        self,
        number: int,
        op: str,
        body: Iterable[bytes | memoryview],
        size: int,
        ends: float,
    ) -> calls.CallResponse | None:
        """Send a body; return the answer if it came before all was sent."""
        n_left = size
        for data in calls.chunks(body):
            n_left -= len(data)
            if n_left < 0:
                break  # the service would cut the connection
            while self._credit < len(data):
                frame, _ = self._receive(number, op, ends)
                if isinstance(frame, calls.CallResponse):
                    return frame
            self._credit -= len(data)
            self._put(op, [calls.encode(calls.BodyChunk(number)), data], ends)
        if n_left:
            n = f"{size - n_left}" if n_left > 0 else f"at least {size - n_left}"
            raise ProtocolError(
                f"{op!r} at {self.endpoint}: its body has {n} bytes, but {size} were announced; "
                f"give the size of the whole body"
            )
        return None

    def _body(self, number: int, op: str, ends: float, n_left: int) -> Iterator[bytes]:
        while True:
            frame, raw = self._receive(number, op, ends)
            if isinstance(frame, calls.EndOfBody):
                return
            if isinstance(frame, calls.BodyChunk):
                n_left -= len(raw)
                if n_left < 0:
                    raise ProtocolError(f"{op} at {self.endpoint}: more bytes than expected")
                self._put(op, [calls.encode(calls.WindowGrant(number, len(raw)))], ends)
                yield bytes(raw)

    def _give_up(self, number: int) -> None:
        """Cancel a call whose body does not go on; if nothing can be sent, it has ended."""
        if number and not self._broke:
            with suppress(zmq.ZMQError):
                self._socket.send_multipart([calls.encode(calls.CancelCall(number))], zmq.DONTWAIT)

    def _put(self, op: str, parts: list[bytes], ends: float) -> None:
        while True:
            try:
                self._socket.send_multipart(parts, zmq.DONTWAIT)
                return
            except zmq.Again:
                self._wait(zmq.POLLOUT, op, ends)

    def _receive(
        self, number: int, op: str, ends: float
    ) -> tuple[calls.RpcFrame, bytes | memoryview]:
        """Receive the next frame of a call; raise the error if it is one."""
        while True:
            try:
                parts = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                self._wait(zmq.POLLIN, op, ends)
                continue
            frame, raw = calls.decode(parts)
            if frame.call != number:
                continue  # of a call that was given up
            if isinstance(frame, calls.CallError):
                raise self._error(frame, op)
            if isinstance(frame, calls.WindowGrant):
                self._credit += frame.n_bytes
            return frame, raw

    def _wait(self, event: int, op: str, ends: float) -> None:
        if self._broke:
            raise ClusterError(
                f"the connection to {self.endpoint} broke before {op!r} was answered; it may have "
                f"been done"
            )
        left = ends - time.monotonic()
        if left <= 0:
            raise ClusterError(f"no answer to {op!r} from {self.endpoint} in time")
        zmq.zmq_poll([(self._socket, event), (self._monitor, zmq.POLLIN)], int(left * 1000) + 1)
        self._check_connection()

    def _check_connection(self) -> None:
        """Check the connection. Raises NotAllowed; ClusterError: the service is busy."""
        self._drain()
        if self._n_failed >= MAX_FAILED and not self._broke:
            self._broke = True
            self._stack.close()  # it would try again and again
            if not (self._is_refused or _is_kept(self.endpoint)):
                raise ClusterError(
                    f"{self.endpoint} hangs up on every connection: it is busy, with as many "
                    f"connections as it takes; try again later"
                )
            raise NotAllowed(
                f"{self.endpoint} refuses this key (or is another service than expected); "
                f"use the key file of its cluster"
            )

    def _drain(self) -> None:
        while self._monitor.poll(0):
            kind, _ = event_of(self._monitor)
            if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._is_up, self._n_failed = True, 0
            elif kind == zmq.EVENT_DISCONNECTED:
                self._broke = self._broke or self._is_up
                self._is_up = False
            else:
                self._is_refused = kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH
                self._n_failed += MAX_FAILED if self._is_refused else 1

    def _error(self, problem: calls.CallError, op: str) -> HornError:
        if problem.kind in _RAISED:
            kind: type[HornError] = getattr(errors, problem.kind)
            return kind(problem.text)
        if problem.kind == "DeadlineExceeded":
            return Timeout(problem.text)
        return ClusterError(problem.text or f"{op} failed at {self.endpoint}")

    def _parsed(self, op: str, answer: calls.CallResponse, reply: type[S]) -> S:
        try:
            return msgspec.msgpack.decode(answer.reply, type=reply)
        except UNREADABLE as error:
            raise ProtocolError(f"answer to {op!r} from {self.endpoint}: {error}") from None


class BodyStream(Iterator[bytes]):
    """The body of an answer; lets the next call in when it ends, or is closed."""

    def __init__(self, client: RpcClient, number: int, portions: Iterator[bytes]) -> None:
        self._client, self._number, self._portions = client, number, portions
        self._is_open = True

    def __next__(self) -> bytes:
        try:
            return next(self._portions)
        except StopIteration:
            self._number = 0
            self.close()
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the call. May be called twice."""
        if self._is_open:
            self._is_open = False
            try:
                self._client._give_up(self._number)
            finally:
                self._client._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _is_kept(endpoint: str) -> bool:
    """Whether the service at an endpoint keeps a connection on which nothing is said. It ends a
    handshake with another key without a reason, as it does any connection that it has no room for.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        plain = socket.create_connection((host.strip("[]"), int(port)), KEPT_S)
    except OSError:  # it drops what comes from an address with too many
        return False
    with plain:
        try:
            return all(plain.recv(64) for _ in range(MAX_READS))
        except OSError as error:
            return isinstance(error, TimeoutError)
