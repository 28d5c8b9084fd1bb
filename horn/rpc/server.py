"""The server of calls to an agent: requests, answers and files, by roles of keys.

One thread owns the socket; each call has a thread, so that a slow one delays nobody. Limits hold
before and after admission: connections and failures per address, calls and bytes per peer, a
deadline per call. A peer that breaks the rules is cut off and counted. Source: docs/notes/0060;
reference faults, controls 3, 9, 13.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Self

import msgspec
import zmq

from horn.errors import UNREADABLE, HornError, NotAllowed, ProtocolError
from horn.rpc import protocol as calls
from horn.rpc.call import (
    CallAbandoned,
    DeadlineExceeded,
    Operation,
    Quotas,
    RpcCall,
    ServiceBusy,
    ServiceFailed,
)
from horn.security.audit import AuditLog
from horn.security.keys import SERVICE_ROLES, Key
from horn.security.tls import listening
from horn.wire.admission import Admission
from horn.wire.sockets import bind, router
from horn.wire.text import wire_text
from horn.wire.zap import AllowedKeys, ZapHandler, pair_of

__all__ = ["ROLES", "RpcCall", "CallAbandoned", "Quotas", "RpcServer"]

logger = logging.getLogger(__name__)

ROLES = (*SERVICE_ROLES, "open")  # "open": anybody, where there is no key
STOP_S = 5.0  # for handlers to end
LOOK_S = 0.5  # between two checks of deadlines
AT_ONCE = 64  # frames taken before other work is checked
# To one peer and not sent. Of who reads its answers there are never so many: the bytes of bodies
# are bounded by what is granted, and come in full chunks.
SEND_FRAMES = 1000


class RpcServer:
    """Answers calls at ``url`` (``tcp://host:port``, port 0 for any) once started.

    key : encrypts, and tells roles apart; without one it listens on loopback only and all are
    "open". name : with the key gives its CURVE pair, so that callers know it. on_failed : called
    in its thread if that ends by a bug, which ``check`` raises; the owner is to close it.
    ``endpoint``, ``public`` : for callers. Raises JobError: no key off loopback, or it cannot
    listen.
    """

    def __init__(
        self,
        url: str,
        name: str,
        key: Key | None,
        *,
        quotas: Quotas | None = None,
        audit: AuditLog | None = None,
        on_failed: Callable[[], None] = lambda: None,
    ) -> None:
        host, port = listening(url, key is not None)
        self.name, self.quotas = name, quotas or Quotas()
        self.audit, self.on_failed = audit or AuditLog(), on_failed
        self.n_refused = 0  # calls
        self.public = b""
        self._key, self._ops = key, dict[str, Operation]()
        self._calls: dict[tuple[bytes, int], RpcCall] = {}
        self._threads: set[threading.Thread] = set()
        self._peers: dict[int, bytes] = {}  # by the file descriptors of their connections
        self._banned: dict[bytes, float] = {}
        self._out: deque[tuple[bytes, Sequence[bytes | memoryview]]] = deque()
        self._is_closing = False
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._opened = ExitStack()  # what ``close`` closes at last, the newest first
        self._opened.callback(self._context.term)
        self.allowed = AllowedKeys(self.audit, f"service {name}")
        try:
            self._open(host, port)
        except BaseException:
            self.close()
            raise

    def _open(self, host: str, port: str) -> None:
        bind_to, secret = f"tcp://{host}:{port}", None
        if self._key is not None:
            self.public, secret = pair_of(self._key.service(self.name))
            for role in SERVICE_ROLES:
                self.allowed.admit(pair_of(self._key.role(role))[0], role)
            self._opened.callback(ZapHandler(self._context, self.allowed).close)
        self._router = router(self._context, bind_to, secret)
        self._opened.callback(self._router.close, 0)
        self._router.set(zmq.LINGER, 0)
        self._router.set(zmq.MAXMSGSIZE, calls.MESSAGE_BYTES)
        self._router.set(zmq.SNDHWM, SEND_FRAMES)
        self.admission = Admission(
            self._router, self.quotas, self.audit, self.allowed.where, self._hung_up
        )
        self._opened.callback(self.admission.close)
        self.endpoint = bind(self._router, self.admission, bind_to)

    def on(
        self,
        op: str,
        request: type[msgspec.Struct],
        handler: Callable[[RpcCall], Any],
        roles: Iterable[str],
        *,
        max_body: int = 0,
        is_audited: bool = False,
    ) -> None:
        """Register a handler for ``op`` and roles, before ``start``."""
        allowed = frozenset(roles)
        assert allowed and allowed <= set(ROLES), f"roles of {op}: {sorted(allowed)}"
        decoder = msgspec.msgpack.Decoder(request)
        self._ops[op] = Operation(decoder, handler, allowed, max_body, is_audited)

    def start(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="horn-service", daemon=True)
        self._thread.start()
        return self

    def check(self) -> None:
        """Raise ServiceFailed if its thread has ended by itself: no call is answered any more."""
        if self._failure is not None:
            raise ServiceFailed(
                f"the service of {self.name} at {self.endpoint} has ended by a bug "
                f"({self._failure!r}); its log has more. Start it again"
            ) from self._failure

    def close(self) -> None:
        """End all calls; return when no thread and no socket is left. May be called twice."""
        self._is_closing = True
        if self._wake < 0:
            return
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        ends = time.monotonic() + STOP_S
        for call in list(self._calls.values()):
            call.end("closing")
        for thread in list(self._threads):
            thread.join(max(ends - time.monotonic(), 0.0))
            if thread.is_alive():
                logger.warning("handler does not end name=%s", thread.name)
        self._opened.close()
        os.close(self._wake)
        self._wake = -1

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # the thread

    def _run(self) -> None:
        try:
            self._answer()
        except Exception as error:  # the top of the thread
            logger.exception("service failed name=%s", self.name)
            self._failure = error
            self.on_failed()

    def _answer(self) -> None:
        watched: list[tuple[Any, int]] = [
            (self._router, zmq.POLLIN),
            (self.admission.monitor, zmq.POLLIN),
            (self._wake, zmq.POLLIN),
        ]
        while not self._is_closing:
            ready = dict(zmq.zmq_poll(watched, int(LOOK_S * 1000)))
            if self._wake in ready:
                os.eventfd_read(self._wake)
            now = time.monotonic()
            self.admission.read_events(now)
            if self._router in ready:
                for _ in range(AT_ONCE):
                    if not self._receive(now):
                        break
            self._send()
            self._end_late(now)

    def _receive(self, now: float) -> bool:
        """Receive one message, if there is one."""
        try:
            frame = self._router.recv(zmq.DONTWAIT, copy=False)
        except zmq.Again:
            return False
        peer, parts = frame.bytes, list[bytes | memoryview]()
        while frame.more:
            frame = self._router.recv(zmq.DONTWAIT, copy=False)
            if len(parts) < 3:  # three are one too many already
                parts.append(frame.bytes)
        fd = int(frame.get(zmq.SRCFD))
        if self._peers.get(fd) != peer or not self.admission.connections.spoke(fd):
            self.admission.read_events(now)  # it was accepted since the last look
            self.admission.connections.spoke(fd)
            self._peers[fd] = peer
        if self._banned.get(peer, 0.0) > now:
            return True
        who = str(frame.get("User-Id")) if self._key is not None else "open"
        address = str(frame.get("Peer-Address"))
        try:
            self._hear(peer, who, address, *calls.decode(parts))
        except ProtocolError as error:
            self.audit.line("malformed", address=address, key=who, reason=str(error))
            self._banned = {other: ends for other, ends in self._banned.items() if ends > now}
            self._banned[peer] = now + self.quotas.ban_s
            self._end_of(peer, "broke the rules")
            self.admission.connections.count(address, now)
            self.admission.cut(fd, "malformed frame")
        return True

    def _hear(
        self, peer: bytes, who: str, address: str, frame: calls.RpcFrame, raw: bytes | memoryview
    ) -> None:
        call = self._calls.get((peer, frame.call))
        if isinstance(frame, calls.CallRequest):
            if call is not None:
                raise ProtocolError(f"call {frame.call} twice")
            try:
                self._begin(peer, who, address, frame)
            except HornError as error:
                self.n_refused += 1
                if isinstance(error, NotAllowed):
                    self.audit.line("refused", address=address, key=who, reason=str(error))
                self._problem(peer, frame.call, error)
        elif call is not None:  # else it ended meanwhile
            if call.role != who:
                raise ProtocolError("a call of somebody else")
            call.take(frame, raw)

    def _begin(self, peer: bytes, who: str, address: str, ask: calls.CallRequest) -> None:
        op = self._ops.get(ask.op)
        if ask.version != calls.VERSION:
            raise ProtocolError(
                f"{self.name} speaks version {calls.VERSION} of horn's calls, its caller version "
                f"{ask.version}; install the same horn on both"
            )
        if op is None or who not in op.roles:
            raise NotAllowed(f"{ask.op!r} is not for a {who}")
        if not 0 <= ask.size <= op.max_body:
            raise NotAllowed(f"{ask.op!r} takes at most {op.max_body} bytes, not {ask.size}")
        n_own = sum(1 for other, _ in list(self._calls) if other == peer)
        if n_own >= self.quotas.calls_per_peer or len(self._calls) >= self.quotas.calls:
            raise ServiceBusy(f"{self.name} is busy: {len(self._calls)} calls, {n_own} from here")
        try:
            request = op.request.decode(ask.request)
        except UNREADABLE as error:
            raise ProtocolError(f"{ask.op!r}: {error}") from None
        call = RpcCall(functools.partial(self.put, peer), self.quotas, ask, request, who, address)
        if op.is_audited:
            self.audit.line(ask.op, address=address, key=who, job=getattr(request, "job", ""))
        self._calls[peer, ask.call] = call
        thread = threading.Thread(
            target=self._serve,
            args=(peer, call, op, ask.op),
            name=f"horn-call-{ask.op}",
            daemon=True,
        )
        # Only ended threads are dropped: ``close`` waits for the ending ones too.
        self._threads = {other for other in self._threads if other.is_alive()}
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads for it
            del self._calls[peer, ask.call]
            raise ServiceBusy(f"{self.name} is busy: {error}") from error
        self._threads.add(thread)

    def _end_of(self, peer: bytes, reason: str) -> None:
        for (other, _), call in list(self._calls.items()):
            if other == peer:
                call.end(reason)

    def _hung_up(self, fd: int) -> None:
        """End the calls of a connection that has gone: answers go over no other."""
        peer = self._peers.pop(fd, None)
        if peer is not None:
            self._end_of(peer, "gone")

    def _send(self) -> None:
        """Send all frames. A peer to which one cannot be sent is cut off: later ones, an end of the
        body among them, would hide that it is missing.
        """
        lost = set[bytes]()
        while self._out:
            peer, parts = self._out.popleft()
            if peer in lost:
                continue
            try:
                self._router.send_multipart([peer, *parts], zmq.DONTWAIT)
            except zmq.ZMQError:  # it has gone, or does not read its answers
                lost.add(peer)
                self._end_of(peer, "gone")
                for fd in [fd for fd, other in self._peers.items() if other == peer]:
                    self.admission.cut(fd, "does not read its answers")

    def _end_late(self, now: float) -> None:
        for (peer, number), call in list(self._calls.items()):
            if now > call.deadline and not call.is_over:
                call.end("deadline")
                self._problem(peer, number, DeadlineExceeded(f"{self.name} did not answer in time"))

    def put(self, peer: bytes, parts: Sequence[bytes | memoryview]) -> None:
        self._out.append((peer, parts))
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _problem(self, peer: bytes, number: int, error: HornError) -> None:
        problem = calls.CallError(number, type(error).__name__, wire_text(str(error), 4000))
        self.put(peer, [calls.encode(problem)])

    # the thread of a call

    def _serve(self, peer: bytes, call: RpcCall, op: Operation, name: str) -> None:
        try:
            found = op.handler(call)
            reply, body = found if isinstance(found, tuple) else (found, None)
            raw = msgspec.Raw(msgspec.msgpack.encode(reply))
            size = 0 if body is None else calls.UNKNOWN
            call.say(calls.CallResponse(call.number, raw, size))
            if body is not None:
                call.send(body)
        except CallAbandoned:
            pass
        except HornError as error:
            self._fail(peer, call, error)
        except Exception:  # the top of this thread: the caller gets an error, the log has the rest
            logger.exception("handler failed op=%s", name)
            self._fail(peer, call, ServiceFailed(f"{self.name}: {name} failed; its log says why"))
        finally:
            self._calls.pop((peer, call.number), None)

    def _fail(self, peer: bytes, call: RpcCall, error: HornError) -> None:
        if not call.is_over:
            self._problem(peer, call.number, error)
