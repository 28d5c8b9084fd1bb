"""Two servers asked the same: what one client sees, made comparable.

zxids, times and session ids differ between servers; they are replaced by the order in which they
were first seen, so that equal things stay equal and different things stay different.
"""

from __future__ import annotations

import time
from typing import Any

from tests.zk.client import Closed, Notice, RawClient, Reply, Stat, read_stat
from zk import wire
from zk.wire import Code, Op, Reader

# Apache's server ends sessions during which the machine, or its own disk, stood still; the embedded
# one does not. So none ends for that while the two are compared: these are the longest it grants.
TICK_MS = 30_000
TIMEOUT_MS = 20 * TICK_MS
LATE_S = 1.0  # servers hang up on who does not say hello, after seconds


class Side:
    """One server and its sessions."""

    def __init__(self, hosts: str, n_sessions: int) -> None:
        self.hosts = hosts
        self.zxids: dict[int, int] = {0: 0}
        self.owners: dict[int, int] = {0: 0}
        self.clients: list[RawClient] = []
        for _ in range(n_sessions):
            self.clients.append(self._new())

    def _new(self) -> RawClient:
        client = self._connected()
        self.owners.setdefault(client.session_id, len(self.owners))
        return client

    def _connected(self, **session: Any) -> RawClient:
        """Who was hung up on because the machine stood still between connection and hello is no
        worse a server for it; who hangs up at once is.
        """
        began = time.monotonic()
        try:
            return RawClient(self.hosts, timeout_ms=TIMEOUT_MS, **session)
        except Closed:
            if time.monotonic() - began < LATE_S:
                raise
        return RawClient(self.hosts, timeout_ms=TIMEOUT_MS, **session)

    def reopen(self, index: int) -> Any:
        """A new session in place of one that is gone."""
        self.clients[index].close()
        self.clients[index] = self._new()
        return None

    def resume(self, index: int) -> Any:
        """The same session on a new connection. One that was already gone has the number 0, and who
        asks for that gets a new one.
        """
        old = self.clients[index]
        old.close()
        self.clients[index] = self._connected(session_id=old.session_id, password=old.password)
        return self.owners.setdefault(self.clients[index].session_id, len(self.owners))

    def move(self, index: int) -> Any:
        """The same session on a second connection: the first one is closed by the server."""
        old = self.clients[index]
        self.clients[index] = self._connected(session_id=old.session_id, password=old.password)
        seen: list[Any] = []
        try:
            while True:
                seen.append(old.read())
        except Closed:
            seen.append("closed")
        old.close()
        return seen

    def call(self, index: int, op: int, body: bytes, xid: int | None = None) -> Any:
        """What the caller sees up to the answer: events, code, decoded body, or the end."""
        client = self.clients[index]
        seen: list[Any] = []
        try:
            wanted = client.send(op, body, xid)
            while True:
                got = client.read()
                if isinstance(got, Notice):
                    seen.append(got)
                    continue
                assert got.xid == wanted
                seen.append(self.decode(op, got))
                break
            unknown = op not in wire.RECORDS and got.code == Code.UNIMPLEMENTED
            if op == Op.CLOSE or unknown or got.code == Code.AUTH_FAILED:
                client.read()  # the server hangs up, a moment after its answer
        except (Closed, ConnectionError):
            seen.append("closed")
        return seen

    def settle(self) -> Any:
        """The events on their way to every session that is still connected."""
        seen: list[Any] = []
        for client in self.clients:
            try:
                client.send(Op.PING, xid=wire.XID_PING)
            except ConnectionError:
                continue
        for client in self.clients:
            try:
                seen.append(client.read_until(wire.XID_PING)[1])
            except (Closed, ConnectionError):
                seen.append("closed")
        return seen

    def close(self) -> None:
        for client in self.clients:
            client.close()

    # Making answers comparable.

    def _zxid(self, zxid: int) -> int:
        return self.zxids.setdefault(zxid, len(self.zxids))

    def stat(self, stat: Stat) -> Stat:
        return stat._replace(
            czxid=self._zxid(stat.czxid),
            mzxid=self._zxid(stat.mzxid),
            pzxid=self._zxid(stat.pzxid),
            ctime=0,
            mtime=0,
            owner=self.owners.setdefault(stat.owner, len(self.owners)),
        )

    def decode(self, op: int, reply: Reply) -> Any:
        if reply.code != 0:
            return (reply.code, reply.body)
        r = Reader(reply.body)
        body = self._body(op, r)
        assert r.pos == r.end, f"op {op}: {r.end - r.pos} bytes more than expected"
        return (0, body)

    def _body(self, op: int, r: Reader) -> Any:
        if op in (Op.CREATE, Op.SYNC):
            return r.string()
        if op in (Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL):
            return r.string(), self.stat(read_stat(r))
        if op in (Op.EXISTS, Op.SET_DATA, Op.SET_ACL):
            return self.stat(read_stat(r))
        if op == Op.GET_DATA:
            return r.buffer(), self.stat(read_stat(r))
        if op == Op.GET_ACL:
            return r.acls(), self.stat(read_stat(r))
        if op in (Op.GET_CHILDREN, Op.GET_EPHEMERALS):
            return sorted(r.strings())
        if op == Op.GET_CHILDREN2:
            return sorted(r.strings()), self.stat(read_stat(r))
        if op in (Op.GET_ALL_CHILDREN_NUMBER, Op.ADD_WATCH):
            return r.int32()
        if op == Op.WHO_AM_I:
            return sorted((r.string(), r.string()) for _ in range(r.int32()))
        if op in (Op.MULTI, Op.MULTI_READ):
            return self._multi(op, r)
        return r.data[r.pos :] if r.pos == r.end else self._rest(r)

    @staticmethod
    def _rest(r: Reader) -> bytes:
        rest = r.data[r.pos :]
        r.pos = r.end
        return rest

    def _multi(self, op: int, r: Reader) -> list[Any]:
        results: list[Any] = []
        while True:
            kind, done, code = r.int32(), r.boolean(), r.int32()
            if done:
                results.append((kind, code))
                return results
            if kind == -1:
                results.append((kind, code, r.int32()))
            elif kind == Op.GET_DATA:
                results.append((kind, code, r.buffer(), self.stat(read_stat(r))))
            elif kind in (Op.DELETE, Op.CHECK):
                results.append((kind, code))
            else:
                results.append((kind, code, self._body(kind, r)))
