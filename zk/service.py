"""The server without its sockets: frames in, frames out. Pure: clocks and randomness are passed in.

``receive`` takes a client's frame and appends answers and events to clients' ``out``, changes to
``journal``. The owner of the sockets writes the journal to disk before it sends ``out``: nobody
sees what a crash could take back. Source: FinalRequestProcessor and ZooKeeperServer of Apache
3.8.0; what differs is in docs/zookeeper.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from zk import acl as acls
from zk import wire
from zk.acl import Ids
from zk.errors import Refused, WireError
from zk.record import Change, Record
from zk.sessions import CloseSession, OpenSession, Session, Sessions
from zk.tree import CONTAINER_OWNER, Create, Delete, Fired, SetAcl, SetData, Tree, Txn, Undo
from zk.watches import ANY, CHILDREN, Watches
from zk.wire import Code, Event, Op, Reader

VERSION = "3.8.0-horn, built on 2026-01-01 00:00 UTC"
NO_PASSWORD = bytes(16)
CONTAINER_CHECK_MS = 60_000
# The answer to a multi-read; Apache's own clients take packets of 1 MiB unless told otherwise.
MAX_MULTI_READ_BYTES = 4 << 20
NO_RESULTS = wire.MULTI_HEADER.pack(-1, True, -1)  # how the results of a multi end


class Client:
    """A connection. ``out`` : framed answers in order; ``is_closing`` : send them, then close."""

    __slots__ = (
        "address", "ids", "is_closing", "n_received", "n_sent", "n_unsent", "out", "session",
    )  # fmt: skip

    def __init__(self, address: str) -> None:
        self.address = address
        self.ids: Ids = (("ip", address),)
        self.session: Session | None = None
        self.out: list[bytes] = []
        self.is_closing = False
        self.n_received = self.n_sent = 0
        self.n_unsent = 0  # bytes in ``out``


class Request(NamedTuple):
    """One request of a session; ``fields`` as in ``wire.RECORDS``."""

    client: Client
    session: Session
    op: int
    fields: tuple[Any, ...]
    time_ms: int


Handler = Callable[[Request], bytes]


class Service:
    """Tree, sessions and watches behind one protocol. tick_ms : unit of session expiry.
    random_bytes : n -> n bytes. super_digest : "super:HASH" of a user above ACLs, or None.
    """

    def __init__(
        self, tick_ms: int, random_bytes: Callable[[int], bytes], super_digest: str | None = None
    ) -> None:
        self.tree = Tree()
        self.sessions = Sessions(tick_ms)
        self.watches = Watches()
        self.journal: list[Record] = []
        self.dirty: dict[Client, None] = {}
        self.clients: dict[int, Client] = {}
        self.n_connections = 0
        self.n_received = self.n_sent = 0
        self._random_bytes = random_bytes
        self._super_digest = super_digest
        self._next_container_check_ms = 0
        self._handlers: dict[int, Handler] = {
            Op.CREATE: self._on_change,
            Op.CREATE2: self._on_change,
            Op.CREATE_CONTAINER: self._on_change,
            Op.CREATE_TTL: self._on_create_ttl,
            Op.DELETE: self._on_change,
            Op.EXISTS: self._on_exists,
            Op.GET_DATA: self._on_get_data,
            Op.SET_DATA: self._on_change,
            Op.GET_ACL: self._on_get_acl,
            Op.SET_ACL: self._on_change,
            Op.GET_CHILDREN: self._on_get_children,
            Op.GET_CHILDREN2: self._on_get_children,
            Op.SYNC: self._on_sync,
            Op.MULTI: self._on_multi,
            Op.MULTI_READ: self._on_multi_read,
            Op.RECONFIG: self._on_reconfig,
            Op.CHECK_WATCHES: self._on_watches,
            Op.REMOVE_WATCHES: self._on_watches,
            Op.SET_WATCHES: self._on_set_watches,
            Op.SET_WATCHES2: self._on_set_watches,
            Op.GET_EPHEMERALS: self._on_get_ephemerals,
            Op.GET_ALL_CHILDREN_NUMBER: self._on_get_all_children_number,
            Op.ADD_WATCH: self._on_add_watch,
            Op.WHO_AM_I: self._on_who_am_i,
        }

    # Frames of one client.

    def receive(self, client: Client, payload: bytes, now_ms: int, time_ms: int) -> None:
        """Handle one frame (without its length)."""
        self.n_received += 1
        client.n_received += 1
        session = client.session
        if session is None:
            self._connect(client, payload, now_ms, time_ms)
            return
        if len(payload) < 8:
            self._hang_up(client)
            return
        self.sessions.touch(session, now_ms)
        reader = Reader(payload)
        xid, op = reader.int32(), reader.int32()
        handler = self._handlers.get(op)
        if handler is None:
            self._special(client, session, xid, op, reader, time_ms)
            return
        try:
            fields = wire.decode_body(op, reader)
            body = handler(Request(client, session, op, fields, time_ms))
        except Refused as refused:
            reply = wire.encode_reply(xid, self.tree.zxid, refused.code, refused.body)
        except WireError:
            reply = wire.encode_reply(xid, self.tree.zxid, Code.MARSHALLING)
        else:
            reply = wire.encode_reply(xid, self.tree.zxid, 0, body)
        self._send(client, reply)

    def _special(
        self, client: Client, session: Session, xid: int, op: int, reader: Reader, time_ms: int
    ) -> None:
        if op == Op.PING:
            self._send(client, wire.encode_reply(wire.XID_PING, self.tree.zxid, 0))
        elif op == Op.CLOSE:
            self._end_session(session.id, time_ms)
            self._send(client, wire.encode_reply(xid, self.tree.zxid, 0))
            self._hang_up(client)
        elif op == Op.AUTH:
            self._authenticate(client, reader)
        else:
            self._send(client, wire.encode_reply(xid, self.tree.zxid, Code.UNIMPLEMENTED))
            self._hang_up(client)

    def _send(self, client: Client, data: bytes) -> None:
        client.out.append(data)
        client.n_unsent += len(data)
        client.n_sent += 1
        self.n_sent += 1
        self.dirty[client] = None

    def _hang_up(self, client: Client) -> None:
        client.is_closing = True
        self.dirty[client] = None

    def disconnect(self, client: Client) -> None:
        """Forget a connection that is gone; its session lives on until its deadline."""
        self.watches.forget(client)
        session = client.session
        if session is not None and self.clients.get(session.id) is client:
            del self.clients[session.id]
        client.session = None

    # Sessions.

    def _connect(self, client: Client, payload: bytes, now_ms: int, time_ms: int) -> None:
        try:
            asked = wire.decode_connect(payload)
        except WireError:
            self._hang_up(client)
            return
        if asked.last_zxid > self.tree.zxid:
            # The client has seen a future that this server does not have: it must try another.
            self._hang_up(client)
            return
        timeout_ms = self.sessions.clamp(asked.timeout_ms)
        if asked.session_id == 0:
            session = self._open_session(timeout_ms, time_ms)
        else:
            found = self.sessions.find(asked.session_id, asked.password)
            if found is None:
                self._send(client, wire.encode_connected(0, 0, NO_PASSWORD, asked.read_only))
                self._hang_up(client)
                return
            session = found
            session.timeout_ms = timeout_ms
            earlier = self.clients.get(session.id)
            if earlier is not None:
                self.disconnect(earlier)
                self._hang_up(earlier)
        client.session = session
        self.clients[session.id] = client
        self.sessions.touch(session, now_ms)
        said = wire.encode_connected(timeout_ms, session.id, session.password, asked.read_only)
        self._send(client, said)

    def _open_session(self, timeout_ms: int, time_ms: int) -> Session:
        ident = 0
        while ident == 0 or ident in self.sessions.by_id:
            ident = int.from_bytes(self._random_bytes(8), "big") >> 1
        opened = OpenSession(ident, timeout_ms, self._random_bytes(16))
        self._commit((opened,), ident, time_ms)
        return self.sessions.open(*opened)

    def _end_session(self, ident: int, time_ms: int) -> None:
        zxid = self._commit((CloseSession(ident),), ident, time_ms)
        self._tell(self._remove_session(ident, zxid, time_ms))

    def _remove_session(self, ident: int, zxid: int, time_ms: int) -> list[Fired]:
        fired: list[Fired] = []
        for path in list(self.tree.ephemerals.get(ident, ())):
            fired += self.tree.apply(Delete(path), zxid, time_ms)[0]
        self.sessions.close(ident)
        return fired

    def tick(self, now_ms: int, time_ms: int) -> None:
        """End the sessions whose deadline is over; look after empty containers once a minute."""
        for ident in self.sessions.expired(now_ms):
            client = self.clients.get(ident)
            self._end_session(ident, time_ms)
            if client is not None:
                self._hang_up(client)
                self.disconnect(client)
        if now_ms >= self._next_container_check_ms:
            self._next_container_check_ms = now_ms + CONTAINER_CHECK_MS
            for path in self.tree.empty_containers():
                self._do((Delete(path),), 0, time_ms)

    def _authenticate(self, client: Client, reader: Reader) -> None:
        try:
            _, scheme, credential = wire.decode_body(Op.AUTH, reader)
        except WireError:
            self._hang_up(client)
            return
        ids = acls.authenticate(scheme, credential or b"", self._super_digest)
        if ids is None:
            self._send(client, wire.encode_reply(wire.XID_AUTH, 0, Code.AUTH_FAILED))
            self._hang_up(client)
            return
        client.ids = tuple(dict.fromkeys(client.ids + ids))
        self._send(client, wire.encode_reply(wire.XID_AUTH, 0, 0))

    # Changes.

    def _commit(self, txns: tuple[Change, ...], session: int, time_ms: int) -> int:
        self.tree.zxid += 1
        self.journal.append(Record(self.tree.zxid, time_ms, session, txns))
        return self.tree.zxid

    def _do(self, txns: tuple[Txn, ...], session: int, time_ms: int) -> None:
        """Apply changes that were checked, journal them as one, and send events to watchers."""
        zxid = self._commit(txns, session, time_ms)
        for txn in txns:
            self._tell(self.tree.apply(txn, zxid, time_ms)[0])

    def _tell(self, fired: list[Fired]) -> None:
        # A holder of a data and of a child watch gets one event of a deletion: fire() sees to it.
        for kind, path, acl in fired:
            holders = self.watches.fire(kind, path)
            if not holders:
                continue
            event = wire.encode_event(kind, path)
            for holder in holders:
                assert isinstance(holder, Client)
                # No events about nodes that a client may not read (CVE-2024-23944).
                if acls.allows(acl, acls.READ, holder.ids):
                    self._send(holder, event)

    def replay(self, record: Record) -> None:
        """Apply a change of the log."""
        zxid, time_ms, _, txns = record
        for txn in txns:
            if isinstance(txn, OpenSession):
                self.sessions.open(*txn)
            elif isinstance(txn, CloseSession):
                self._remove_session(txn.id, zxid, time_ms)
            else:
                self.tree.apply(txn, zxid, time_ms)
        self.tree.zxid = zxid

    # Requests that change the tree.

    def _on_change(self, r: Request) -> bytes:
        txn = self._checked(r.client, r.session, r.op, r.fields)
        self._do((txn,), r.session.id, r.time_ms)
        path = wire.write_string(txn.path) if isinstance(txn, Create) else b""
        if r.op in (Op.CREATE, Op.DELETE):
            return path
        return path + self.tree.nodes[txn.path].stat()

    def _on_create_ttl(self, r: Request) -> bytes:
        flags = r.fields[3]
        known = 0 <= flags <= 6
        raise Refused(Code.UNIMPLEMENTED if known and flags > 4 else Code.BAD_ARGUMENTS)

    def _checked(self, client: Client, session: Session, op: int, fields: tuple[Any, ...]) -> Txn:
        if op == Op.DELETE:
            return self.tree.check_delete(fields[0], fields[1], client.ids)
        if op == Op.SET_DATA:
            return self.tree.check_set_data(fields[0], fields[1], fields[2], client.ids)
        if op == Op.SET_ACL:
            return self.tree.check_set_acl(fields[0], fields[1], fields[2], client.ids)
        if op == Op.CHECK:
            return self.tree.check_version(fields[0], fields[1], client.ids)
        path, data, acl, flags = fields
        return self.tree.check_create(path, data, acl, flags, session.id, client.ids)

    def _on_multi(self, r: Request) -> bytes:
        (ops,) = r.fields
        if ops and ops[0][0] in wire.READ_OPS:
            raise WireError("a multi holds reads")
        zxid = self.tree.zxid + 1
        txns: list[Txn] = []
        fired: list[Fired] = []
        undos: list[Undo] = []
        bodies: list[bytes] = []
        try:
            for op, fields in ops:
                if op == Op.CREATE_TTL:
                    raise Refused(Code.UNIMPLEMENTED)
                if op in wire.CREATE_OPS and fields[3] in (5, 6):
                    raise WireError("a plain create with a time to live")  # as Apache's multi
                txn = self._checked(r.client, r.session, op, fields)
                events, undo = self.tree.apply(txn, zxid, r.time_ms)
                txns.append(txn)
                fired += events
                undos.append(undo)
                bodies.append(self._multi_result(op, txn))
        except (Refused, WireError) as error:
            for undo in reversed(undos):
                undo()
            if isinstance(error, WireError):
                raise
            return _multi_failed(len(ops), len(txns), error.code)
        self._commit(tuple(txns), r.session.id, r.time_ms)
        self._tell(fired)
        return b"".join(bodies) + wire.MULTI_HEADER.pack(-1, True, -1)

    def _multi_result(self, op: int, txn: Txn) -> bytes:
        if isinstance(txn, Create):
            # A container is answered as create2 and all else as create, whatever asked for it.
            has_stat = txn.owner == CONTAINER_OWNER
            head = wire.MULTI_HEADER.pack(Op.CREATE2 if has_stat else Op.CREATE, False, 0)
            body = head + wire.write_string(txn.path)
            return body + self.tree.nodes[txn.path].stat() if has_stat else body
        head = wire.MULTI_HEADER.pack(op, False, 0)
        if isinstance(txn, SetData | SetAcl):
            return head + self.tree.nodes[txn.path].stat()
        return head

    # Requests that read.

    def _on_exists(self, r: Request) -> bytes:
        path, wants_watch = r.fields
        if "\0" in path:
            raise Refused(Code.BAD_ARGUMENTS, path)
        if wants_watch:
            self.watches.add_data(path, r.client)
        return self.tree.get(path).stat()

    def _on_get_data(self, r: Request) -> bytes:
        path, wants_watch = r.fields
        node = self.tree.get_readable(path, r.client.ids)
        if wants_watch:
            self.watches.add_data(path, r.client)
        return wire.write_buffer(node.data) + node.stat()

    def _on_get_acl(self, r: Request) -> bytes:
        (path,) = r.fields
        node = self.tree.get(path)
        if not acls.allows(node.acl, acls.READ | acls.ADMIN, r.client.ids):
            raise Refused(Code.NO_AUTH, path)
        is_admin = acls.allows(node.acl, acls.ADMIN, r.client.ids)
        return wire.write_acls(node.acl if is_admin else acls.masked(node.acl)) + node.stat()

    def _on_get_children(self, r: Request) -> bytes:
        path, wants_watch = r.fields
        node = self.tree.get_readable(path, r.client.ids)
        if wants_watch:
            self.watches.add_child(path, r.client)
        names = wire.write_strings(list(node.children or ()))
        return names if r.op == Op.GET_CHILDREN else names + node.stat()

    def _on_sync(self, r: Request) -> bytes:
        (path,) = r.fields
        return wire.write_string(path)

    def _on_multi_read(self, r: Request) -> bytes:
        (ops,) = r.fields
        if not all(op in wire.READ_OPS for op, _ in ops):  # Apache ends what it has not begun
            raise Refused(Code.MARSHALLING, body=NO_RESULTS)
        parts: list[bytes] = []
        n_bytes = 0
        for op, (path, _) in ops:  # its watch flags set no watch, as in Apache
            try:
                node = self.tree.get_readable(path, r.client.ids)
            except Refused as refused:
                parts.append(wire.MULTI_HEADER.pack(-1, False, refused.code))
                parts.append(wire.pack_int32(refused.code))
                continue
            parts.append(wire.MULTI_HEADER.pack(op, False, 0))
            if op == Op.GET_DATA:
                parts.append(wire.write_buffer(node.data) + node.stat())
            else:
                parts.append(wire.write_strings(list(node.children or ())))
            # Many reads of one large node are a small request with an answer of gigabytes.
            n_bytes += len(parts[-1])
            if n_bytes > MAX_MULTI_READ_BYTES:
                raise WireError(f"a multi-read whose answer passes {MAX_MULTI_READ_BYTES} bytes")
        parts.append(NO_RESULTS)
        return b"".join(parts)

    def _on_reconfig(self, r: Request) -> bytes:
        raise Refused(Code.RECONFIG_DISABLED)

    def _on_get_ephemerals(self, r: Request) -> bytes:
        (prefix,) = r.fields
        mine = self.tree.ephemerals.get(r.session.id, {})
        wanted = "" if prefix is None or prefix.strip() in ("", "/") else prefix
        return wire.write_strings([path for path in mine if path.startswith(wanted)])

    def _on_get_all_children_number(self, r: Request) -> bytes:
        (path,) = r.fields
        self.tree.get_readable(path, r.client.ids)
        return wire.pack_int32(self.tree.count_below(path))

    def _on_who_am_i(self, r: Request) -> bytes:
        names = [(s, i.split(":", 1)[0] if s == "digest" else i) for s, i in r.client.ids]
        return wire.pack_int32(len(names)) + b"".join(
            [wire.write_string(s) + wire.write_string(name) for s, name in names]
        )

    # Watches.

    def _on_watches(self, r: Request) -> bytes:
        path, kind = r.fields
        if not CHILDREN <= kind <= ANY:
            raise WireError(f"a watch of kind {kind}")
        look = self.watches.has if r.op == Op.CHECK_WATCHES else self.watches.remove
        if not look(path, kind, r.client):
            raise Refused(Code.NO_WATCHER, path)
        return b""

    def _on_add_watch(self, r: Request) -> bytes:
        path, mode = r.fields
        if mode not in (0, 1):
            raise WireError(f"a watch of mode {mode}")
        self.watches.add_persistent(path, r.client, recursive=mode == 1)
        return wire.pack_int32(0)

    def _on_set_watches(self, r: Request) -> bytes:
        zxid, data, exist, child, *more = r.fields  # SetWatches2 has two more lists
        nodes, watches = self.tree.nodes, self.watches
        for paths, changed, kind, add in (
            (data, "mzxid", Event.CHANGED, watches.add_data),
            (exist, "", Event.CREATED, watches.add_data),
            (child, "pzxid", Event.CHILDREN, watches.add_child),
        ):
            for path in paths:
                node = nodes.get(path)
                if node is None and changed:
                    self._send(r.client, wire.encode_event(Event.DELETED, path))
                elif node is not None and (not changed or getattr(node, changed) > zxid):
                    self._send_readable(r.client, kind, path)
                else:
                    add(path, r.client)
        for mode, paths in enumerate(more):
            for path in paths:
                watches.add_persistent(path, r.client, recursive=mode == 1)
        return b""

    def _send_readable(self, client: Client, kind: int, path: str) -> None:
        if acls.allows(self.tree.nodes[path].acl, acls.READ, client.ids):
            self._send(client, wire.encode_event(kind, path))

    # Four-letter words.

    def four_letter_word(self, word: bytes) -> bytes:
        """The answer to an administrator's word; the connection closes after it."""
        text = word.decode("ascii", "replace")
        if text == "ruok":
            return b"imok"
        if text == "isro":
            return b"rw"
        if text in ("srvr", "stat"):
            return self._describe(with_clients=text == "stat").encode()
        if text == "envi":
            return f"Environment:\nzookeeper.version={VERSION}\n".encode()
        if text == "mntr":
            rows = {
                "zk_version": VERSION,
                "zk_server_state": "standalone",
                "zk_num_alive_connections": self.n_connections,
                "zk_packets_received": self.n_received,
                "zk_packets_sent": self.n_sent,
                "zk_znode_count": len(self.tree),
                "zk_watch_count": len(self.watches),
                "zk_ephemerals_count": sum(map(len, self.tree.ephemerals.values())),
                "zk_global_sessions": len(self.sessions),
            }
            return "".join(f"{key}\t{value}\n" for key, value in rows.items()).encode()
        return f"{text} is not executed because it is not in the whitelist.\n".encode()

    def _describe(self, *, with_clients: bool) -> str:
        lines = [f"Zookeeper version: {VERSION}"]
        if with_clients:
            lines.append("Clients:")
            lines += [
                f" /{c.address}[1](queued=0,recved={c.n_received},sent={c.n_sent})"
                for c in self.clients.values()
            ]
            lines.append("")
        lines += [
            "Latency min/avg/max: 0/0.0/0",
            f"Received: {self.n_received}",
            f"Sent: {self.n_sent}",
            f"Connections: {self.n_connections}",
            "Outstanding: 0",
            f"Zxid: {self.tree.zxid:#x}",
            "Mode: standalone",
            f"Node count: {len(self.tree)}",
        ]
        return "\n".join(lines) + "\n"


FOUR_LETTER_WORDS = frozenset(
    b"conf cons crst dirs dump envi gtmk hash isro lead mntr obsr orst ruok srst srvr stat stmk "
    b"sysp wchc wchp wchs".split()
)


def _multi_failed(n_ops: int, failed_at: int, code: int) -> bytes:
    """Encode a failed multi: all results are errors, 0 before the failed one, -2 after it."""
    codes = [0] * failed_at + [code] + [int(Code.RUNTIME_INCONSISTENCY)] * (n_ops - failed_at - 1)
    return b"".join(
        [wire.MULTI_HEADER.pack(-1, False, c) + wire.pack_int32(c) for c in codes]
    ) + wire.MULTI_HEADER.pack(-1, True, -1)
