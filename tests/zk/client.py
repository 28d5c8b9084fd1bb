"""A small, exact ZooKeeper client for tests: it shows every frame in the order in which it came.

Synchronous, one socket, no retries. ``call`` sends one request and returns everything up to its
answer, so a test sees which events came before it.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, NamedTuple

from tests.zk import client_wire
from zk import wire
from zk.acl import OPEN
from zk.wire import Connect, Event, Op, Reader

TIMEOUT_S = 60.0


class Reply(NamedTuple):
    xid: int
    zxid: int
    code: int
    body: bytes


class Notice(NamedTuple):
    """A watch event."""

    kind: int
    path: str


class Closed(Exception):
    """The server closed the connection."""


class RawClient:
    """One connection; ``session_id`` and ``password`` of an earlier one may be given. A new session
    may make an ``ephemeral`` node in the same breath: it cannot end before.
    """

    def __init__(
        self,
        hosts: str,
        *,
        timeout_ms: int = 60_000,
        session_id: int = 0,
        password: bytes = bytes(16),
        last_zxid: int = 0,
        read_only: bool | None = False,
        connect: bool = True,
        ephemeral: str = "",
    ) -> None:
        host, port = hosts.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.xid = 0
        if not connect:
            return
        try:
            hello = wire.frame(
                client_wire.encode_connect(
                    Connect(0, last_zxid, timeout_ms, session_id, password, read_only)
                )
            )
            if ephemeral:
                body = client_wire.encode_body(Op.CREATE, (ephemeral, b"", OPEN, 1))
                hello += wire.frame(struct.pack(">ii", 0, Op.CREATE) + body)
            self.socket.sendall(hello)
            frame = self.read_frame()
            _, self.timeout_ms, self.session_id = struct.unpack_from(">iiq", frame)
            self.password = frame[20:36]
            if ephemeral:
                assert self.read_until(0)[0].code == 0
        except BaseException:
            self.socket.close()
            raise

    def send_frame(self, payload: bytes) -> None:
        self.socket.sendall(wire.frame(payload))

    def read_frame(self) -> bytes:
        while True:
            if len(self._buffer) >= 4:
                size = int.from_bytes(self._buffer[:4], "big")
                if len(self._buffer) >= 4 + size:
                    frame = self._buffer[4 : 4 + size]
                    self._buffer = self._buffer[4 + size :]
                    return frame
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                raise Closed
            self._buffer += data

    def read(self) -> Reply | Notice:
        frame = self.read_frame()
        xid, zxid, code = client_wire.REPLY_HEADER.unpack_from(frame)
        if xid == wire.XID_EVENT:
            r = Reader(frame, 16)
            kind, _state, path = r.int32(), r.int32(), r.path()
            return Notice(kind, path)
        return Reply(xid, zxid, code, frame[16:])

    def send(self, op: int, body: bytes = b"", xid: int | None = None) -> int:
        if xid is None:
            self.xid += 1
            xid = self.xid
        self.send_frame(struct.pack(">ii", xid, op) + body)
        return xid

    def read_until(self, xid: int) -> tuple[Reply, list[Notice]]:
        notices: list[Notice] = []
        while True:
            got = self.read()
            if isinstance(got, Reply):
                assert got.xid == xid, f"answer {got.xid} came, {xid} was asked"
                return got, notices
            notices.append(got)

    def call(self, op: int, *fields: Any) -> tuple[Reply, list[Notice]]:
        """Send a request of ``wire.RECORDS``; the answer, and the events that came before it."""
        body = client_wire.encode_body(op, fields) if op in wire.RECORDS else b""
        return self.read_until(self.send(op, body))

    def raw(self, op: int, body: bytes, xid: int | None = None) -> tuple[Reply, list[Notice]]:
        return self.read_until(self.send(op, body, xid))

    def multi(self, ops: list[tuple[int, tuple[Any, ...]]]) -> tuple[Reply, list[Notice]]:
        return self.raw(Op.MULTI, client_wire.encode_multi(ops))

    def ping(self) -> list[Notice]:
        """The events that were on their way."""
        return self.read_until(self.send(Op.PING, xid=wire.XID_PING))[1]

    def gone(self) -> str:
        """The path of the next node that is deleted."""
        while True:
            got = self.read()
            if isinstance(got, Notice) and got.kind == Event.DELETED:
                return got.path

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Stat(NamedTuple):
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    data_length: int
    n_children: int
    pzxid: int


def read_stat(r: Reader) -> Stat:
    stat = Stat(*wire.STAT.unpack_from(r.data, r.pos))
    r.pos += wire.STAT.size
    return stat
