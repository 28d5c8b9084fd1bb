"""Frames over ZeroMQ: one ROUTER to receive on, one DEALER per peer to send by.

A DEALER of its own per peer makes a full peer visible (a ROUTER drops silently or blocks for all)
and its monitor tells when the connection breaks. Every option that matters is in ``LIMITS``, with
the default that it replaces. The only package that imports zmq.
Source: reference wire, item 8; docs/notes/0020.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from horn.errors import JobError
from horn.runtime.messages import Buffer
from horn.transport import Place
from horn.transport._framed import FramedTransport, always
from horn.transport._zap import ZAP_DOMAIN, Gate, Zap, pair_of

LIMITS = {
    zmq.MAXMSGSIZE: 8 * 1024 * 1024,  # [no limit]
    zmq.HANDSHAKE_IVL: 5_000,  # [30,000]
    zmq.LINGER: 2_000,  # [for ever]
    zmq.SNDHWM: 16,  # [1000]
    zmq.RCVHWM: 16,  # [1000]
    zmq.HEARTBEAT_IVL: 2_000,  # [off]
    zmq.HEARTBEAT_TIMEOUT: 6_000,
    zmq.HEARTBEAT_TTL: 6_000,
    zmq.IMMEDIATE: 1,  # [queue for a peer that was never there]
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 5_000,  # [no back-off]
    zmq.SNDTIMEO: 10_000,  # [for ever]
    zmq.RCVTIMEO: 10_000,
    zmq.TCP_KEEPALIVE: 1,
}
# libzmq (4.3.5) sends a heartbeat also to a connection that broke while it was not read from, and
# then aborts the process: "Assertion failed: !_io_error", its issue 4841. Somebody on the wire can
# bring that about (tests/faults/forgers). The kernel looks after silent connections instead, and
# every call of a service has a deadline anyway.
WITHOUT_HEARTBEATS = {
    zmq.HEARTBEAT_IVL: 0,
    zmq.HEARTBEAT_TIMEOUT: 0,
    zmq.HEARTBEAT_TTL: 0,
    zmq.TCP_KEEPALIVE_IDLE: 2,  # seconds
    zmq.TCP_KEEPALIVE_INTVL: 2,
    zmq.TCP_KEEPALIVE_CNT: 3,
}
# Below 64 KiB a copy costs less than a message that has to say when it is free (bench_superstep).
COPY_BYTES = 65_536
# A frame passes three threads, and each wake-up costs 5-50 us: looking for this long saves one.
YIELD_S = 0.0003
EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def has_curve() -> bool:
    """Whether libzmq can encrypt."""
    return bool(zmq.has("curve"))


def keypair(key: bytes, job: str) -> tuple[bytes, bytes]:
    """The CURVE pair (public, secret, both z85) of a job, by HKDF-SHA256 from the cluster's key."""
    if len(key) != 32:
        raise JobError(f"the cluster's key has {len(key)} bytes; make one of 32 with: horn keygen")
    extracted = hmac.digest(b"horn curve 1", key, hashlib.sha256)
    return pair_of(hmac.digest(extracted, job.encode() + b"\x01", hashlib.sha256))


def is_loopback(host: str) -> bool:
    """Whether only this host can reach what listens there."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class _Sockets:
    """The link."""

    def __init__(self, bind_to: str, place: Place) -> None:
        self.place = place
        self.needs_crc = place.key is None
        self.incarnation = b""
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.zap: Zap | None = None
        self.dealers: dict[int, zmq.Socket[bytes]] = {}
        self.monitors: dict[int, zmq.Socket[bytes]] = {}
        self.broken: dict[int, str] = {}
        self.shaken: set[int] = set()  # hands, with whom
        self.full: set[int] = set()
        self.pair = keypair(place.key, place.job) if place.key is not None else None
        try:
            if self.pair is not None:
                gate = Gate(where=f"task {place.task} of {place.job}")
                gate.admit(self.pair[0], "task")  # of this job, and nobody else
                self.zap = Zap(self.context, gate)
            self.router = self._socket(zmq.ROUTER)
            self.router.set(zmq.ROUTER_MANDATORY, 1)  # [drops what it cannot send]
            if self.pair is not None:
                self.router.set(zmq.CURVE_SERVER, 1)
                self.router.set(zmq.CURVE_SECRETKEY, self.pair[1])
                self.router.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
                self.router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
            self.router.set(zmq.IPV6, int("[" in bind_to))
            try:
                self.router.bind(bind_to)
            except zmq.ZMQError as error:
                raise JobError(f"cannot listen on {bind_to}: {error}") from error
            self.endpoint = bytes(self.router.get(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
        except BaseException:
            self.close(0.0)
            raise

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        made = self.context.socket(kind)
        for option, value in LIMITS.items():
            made.set(option, value)
        return made

    def connect(self, peers: Sequence[str], incarnation: bytes) -> None:
        self.incarnation = incarnation
        for task, endpoint in enumerate(peers):
            if task == self.place.task:
                continue
            dealer = self.dealers[task] = self._socket(zmq.DEALER)
            dealer.set(zmq.ROUTING_ID, incarnation)
            if self.pair is not None:
                dealer.set(zmq.CURVE_SERVERKEY, self.pair[0])
                dealer.set(zmq.CURVE_PUBLICKEY, self.pair[0])
                dealer.set(zmq.CURVE_SECRETKEY, self.pair[1])
            self.monitors[task] = dealer.get_monitor_socket(EVENTS)
            self.monitors[task].set(zmq.LINGER, 0)
            dealer.set(zmq.IPV6, int("[" in endpoint))
            try:
                dealer.connect(endpoint)
            except zmq.ZMQError as error:
                raise JobError(f"cannot connect to {endpoint!r}: {error}") from error

    def put(self, to: int, parts: Sequence[Buffer]) -> Callable[[], bool] | None:
        dealer = self.dealers[to]
        try:
            if sum(len(body) for body in parts[2:]) <= COPY_BYTES:
                dealer.send_multipart(parts, zmq.DONTWAIT, copy=True)
                return always
            tracker = dealer.send_multipart(parts, zmq.DONTWAIT, copy=False, track=True)
            return always if tracker is None else lambda: bool(tracker.done)
        except zmq.Again:
            self.full.add(to)
            return None

    def get(self, wait_s: float) -> tuple[bytes, Sequence[Buffer]] | None:
        router = self.router
        if not self._has_frame() and (wait_s <= 0 or not self._wait(wait_s)):
            return None
        sender = router.recv(zmq.DONTWAIT)
        parts: list[Buffer] = []
        while router.getsockopt(zmq.RCVMORE):
            if len(parts) < 2:
                parts.append(router.recv(zmq.DONTWAIT))
            else:
                parts.append(router.recv(zmq.DONTWAIT, copy=False).buffer)
        return sender, parts

    def _has_frame(self) -> bool:
        return bool(int(self.router.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _wait(self, wait_s: float) -> bool:
        """Until there is a frame; False after the time, or if something else is to be seen to."""
        router = self.router
        ends = time.monotonic() + min(wait_s, YIELD_S)
        while time.monotonic() < ends:
            os.sched_yield()
            if self._has_frame():
                return True
        for socket, event in zmq.zmq_poll(self._watched(), max(int(wait_s * 1000), 1)):
            if socket is not router and event & zmq.POLLOUT:
                self.full -= {task for task, dealer in self.dealers.items() if dealer is socket}
        return self._has_frame()

    def _watched(self) -> list[tuple[Any, int]]:
        found: list[tuple[Any, int]] = [(self.router, zmq.POLLIN)]
        for task, dealer in self.dealers.items():
            found.append((dealer, zmq.POLLIN | (zmq.POLLOUT if task in self.full else 0)))
            found.append((self.monitors[task], zmq.POLLIN))
        return found

    def answer(self, sender: bytes, parts: Sequence[Buffer]) -> None:
        try:
            self.router.send_multipart([sender, *parts], zmq.DONTWAIT)
        except (zmq.Again, zmq.ZMQError):
            pass  # a stranger that has gone, or does not read, gets no answer

    def answers(self) -> list[tuple[int, Sequence[Buffer]]]:
        found: list[tuple[int, Sequence[Buffer]]] = []
        for task, dealer in self.dealers.items():
            try:
                found.append((task, dealer.recv_multipart(zmq.DONTWAIT)))
            except zmq.Again:
                continue
        return found

    def gone(self) -> dict[int, str]:
        for task, monitor in self.monitors.items():
            while monitor.poll(0):
                event = recv_monitor_message(monitor)["event"]
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self.shaken.add(task)
                elif event == zmq.EVENT_DISCONNECTED and task in self.shaken:
                    self.broken[task] = "its connection broke: killed, crashed or cut off"
                else:
                    self.broken[task] = "the handshake failed: it has another key, or has gone"
        return self.broken

    def close(self, linger_s: float) -> None:
        linger = int(linger_s * 1000)
        for task, dealer in self.dealers.items():
            dealer.disable_monitor()
            self.monitors[task].close(0)
            dealer.close(0 if task in self.broken else linger)
        self.dealers, self.monitors = {}, {}
        if hasattr(self, "router"):
            self.router.close(0)
        if self.zap is not None:
            self.zap.close()
        self.context.term()


class ZeroMq(FramedTransport):
    """What ``ipc`` and ``tcp`` share; they say where to listen."""

    def __init__(self, url: str, place: Place, bind_to: str) -> None:
        super().__init__(url, place, b"\1" + secrets.token_bytes(15))  # 0 first is ZeroMQ's own
        self.link = self.sockets = _Sockets(bind_to, place)
        self.endpoint = self.sockets.endpoint
