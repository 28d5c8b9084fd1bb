"""What a server knows, as plain values that two servers can be compared by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.zk import client_wire
from zk import wire
from zk.log import Log
from zk.service import Client, Service


def new_service(tick_ms: int = 500) -> Service:
    """A service whose randomness counts up, so that runs are equal."""
    counter = iter(range(1, 1 << 30))
    return Service(tick_ms, lambda n: next(counter).to_bytes(n, "big"))


def facts(service: Service) -> Any:
    """Everything that must survive a restart."""
    tree = service.tree
    nodes = {
        path: (node.data, node.acl, node.stat(), node.cversion, sorted(node.children or ()))
        for path, node in tree.items()
    }
    ephemerals = {owner: set(paths) for owner, paths in tree.ephemerals.items()}
    sessions = {s.id: (s.timeout_ms, s.password) for s in service.sessions.by_id.values()}
    return tree.zxid, nodes, ephemerals, set(tree.containers), sessions


def recover(folder: Path) -> Service:
    """What a server that starts on this folder would know."""
    service = new_service()
    log = Log(folder)
    try:
        log.recover(service.tree, service.sessions, service.replay)
    finally:
        log.close()
    return service


class Talker:
    """A client of a service without sockets; ``now_ms`` is the clock of both kinds."""

    def __init__(self, service: Service, address: str = "127.0.0.1") -> None:
        self.service = service
        self.client = Client(address)
        self.xid = 0

    def send(self, payload: bytes, now_ms: int = 1000) -> list[bytes]:
        """Frames that this client is sent because of one frame, without their lengths."""
        self.service.receive(self.client, payload, now_ms, now_ms)
        return self.take()

    def take(self) -> list[bytes]:
        data = b"".join(self.client.out)
        self.client.out.clear()
        frames = []
        while data:
            size = int.from_bytes(data[:4], "big")
            frames.append(data[4 : 4 + size])
            data = data[4 + size :]
        return frames

    def connect(self, now_ms: int = 1000, timeout_ms: int = 10_000) -> bytes:
        asked = wire.Connect(0, 0, timeout_ms, 0, bytes(16), False)
        return self.send(client_wire.encode_connect(asked), now_ms)[0]

    def call(self, op: int, *fields: Any, now_ms: int = 1000) -> list[Any]:
        """Events as (kind, path), then (code, body) of the answer."""
        body = client_wire.encode_body(op, fields) if op in wire.RECORDS else b""
        return self.raw(op, body, now_ms=now_ms)

    def raw(self, op: int, body: bytes, now_ms: int = 1000) -> list[Any]:
        self.xid += 1
        frames = self.send(wire.pack_int32(self.xid) + wire.pack_int32(op) + body, now_ms)
        return [seen(frame) for frame in frames]

    def events(self) -> list[Any]:
        return [seen(frame) for frame in self.take()]


def seen(frame: bytes) -> Any:
    xid, _zxid, code = client_wire.REPLY_HEADER.unpack_from(frame)
    if xid == wire.XID_EVENT:
        r = wire.Reader(frame, 16)
        kind, _state, path = r.int32(), r.int32(), r.path()
        return kind, path
    return code, frame[16:]
