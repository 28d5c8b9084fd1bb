"""The encoding of ZooKeeper's records, by one table, ``RECORDS``. Pure: no I/O.

Big-endian: strings and buffers are an int32 length (-1 is null) and bytes, vectors an int32 count.
Lengths are checked against the rest of the frame before anything is allocated. Source:
zookeeper.jute of Apache ZooKeeper 3.8.0.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from zk.errors import WireError

# Apache's jute.maxbuffer: a longer frame closes the connection without an answer.
MAX_FRAME_BYTES = 0xFFFFF

INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")
FRAMED_REPLY_HEADER = struct.Struct(">iiqi")
STAT = struct.Struct(">qqqqiiiqiiq")
MULTI_HEADER = struct.Struct(">i?i")

pack_int32 = INT32.pack
pack_int64 = INT64.pack


class Op(enum.IntEnum):
    """Request types."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CLOSE = -11


class Code(enum.IntEnum):
    """The codes of a reply's header."""

    OK = 0
    RUNTIME_INCONSISTENCY = -2
    MARSHALLING = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NO_WATCHER = -121
    RECONFIG_DISABLED = -123


class Event(enum.IntEnum):
    """The kinds of watch events."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILDREN = 4


XID_EVENT, XID_PING, XID_AUTH = -1, -2, -4


class Acl(NamedTuple):
    """An ACL's entry: ``perms`` is a sum of READ 1, WRITE 2, CREATE 4, DELETE 8, ADMIN 16."""

    perms: int
    scheme: str | None
    id: str | None


class Reader:
    """Reads one frame. Raises WireError: it ends early, or a length or count cannot be true."""

    __slots__ = ("data", "end", "pos")

    def __init__(self, data: bytes, pos: int = 0) -> None:
        self.data, self.pos, self.end = data, pos, len(data)

    def int32(self) -> int:
        pos = self.pos
        if pos + 4 > self.end:
            raise WireError("the frame ends inside an int32")
        self.pos = pos + 4
        value: int = INT32.unpack_from(self.data, pos)[0]
        return value

    def int64(self) -> int:
        pos = self.pos
        if pos + 8 > self.end:
            raise WireError("the frame ends inside an int64")
        self.pos = pos + 8
        value: int = INT64.unpack_from(self.data, pos)[0]
        return value

    def boolean(self) -> bool:
        pos = self.pos
        if pos >= self.end:
            raise WireError("the frame ends before a bool")
        self.pos = pos + 1
        # Java reads a byte and asks whether it is not 0.
        return self.data[pos] != 0

    def buffer(self) -> bytes | None:
        size = self.int32()
        if size == -1:
            return None
        pos = self.pos
        if size < 0 or size > self.end - pos:
            raise WireError(f"a length of {size} bytes, but {self.end - pos} are left")
        self.pos = pos + size
        return self.data[pos : pos + size]

    def string(self) -> str | None:
        raw = self.buffer()
        return None if raw is None else raw.decode("utf-8", "replace")

    def path(self) -> str:
        """Read a string that may not be null."""
        raw = self.buffer()
        if raw is None:
            raise WireError("a path is null")
        return raw.decode("utf-8", "replace")

    def count(self) -> int:
        """Read a vector's count; every element takes at least 4 bytes, so more cannot be true."""
        count = self.int32()
        if count == -1:
            return 0
        if count < 0 or count > (self.end - self.pos) // 4:
            raise WireError(f"a vector of {count}, but {self.end - self.pos} bytes are left")
        return count

    def strings(self) -> tuple[str, ...]:
        return tuple([self.path() for _ in range(self.count())])

    def acls(self) -> tuple[Acl, ...]:
        if self.data.startswith(OPEN_ACL_BYTES, self.pos):
            # Nearly every list: one compare instead of four reads.
            self.pos += len(OPEN_ACL_BYTES)
            return OPEN_ACL
        return tuple([Acl(self.int32(), self.string(), self.string()) for _ in range(self.count())])


def write_boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def write_buffer(value: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else INT32.pack(len(value)) + value


def write_string(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff\xff\xff"
    raw = value.encode("utf-8", "replace")
    return INT32.pack(len(raw)) + raw


def write_strings(values: tuple[str, ...] | list[str]) -> bytes:
    return INT32.pack(len(values)) + b"".join([write_string(v) for v in values])


def write_acls(values: tuple[Acl, ...]) -> bytes:
    return INT32.pack(len(values)) + b"".join(
        [INT32.pack(a.perms) + write_string(a.scheme) + write_string(a.id) for a in values]
    )


OPEN_ACL = (Acl(31, "world", "anyone"),)
OPEN_ACL_BYTES = write_acls(OPEN_ACL)

# kind of field: (how to read it, how to write it)
KINDS: dict[str, tuple[Callable[[Reader], Any], Callable[[Any], bytes]]] = {
    "int32": (Reader.int32, pack_int32),
    "int64": (Reader.int64, pack_int64),
    "bool": (Reader.boolean, write_boolean),
    "buffer": (Reader.buffer, write_buffer),
    "string": (Reader.string, write_string),
    "path": (Reader.path, write_string),
    "strings": (Reader.strings, write_strings),
    "acls": (Reader.acls, write_acls),
}

CREATE_FIELDS = ("path", "buffer", "acls", "int32")

# The body of each request, field by field. Ops without an entry have no body that is read, or are a
# multi.
RECORDS: dict[int, tuple[str, ...]] = {
    Op.CREATE: CREATE_FIELDS,  # path, data, acl, flags
    Op.CREATE2: CREATE_FIELDS,
    Op.CREATE_CONTAINER: CREATE_FIELDS,
    Op.CREATE_TTL: (*CREATE_FIELDS, "int64"),  # ... ttl
    Op.DELETE: ("path", "int32"),  # path, version
    Op.EXISTS: ("path", "bool"),  # path, watch
    Op.GET_DATA: ("path", "bool"),
    Op.SET_DATA: ("path", "buffer", "int32"),  # path, data, version
    Op.GET_ACL: ("path",),
    Op.SET_ACL: ("path", "acls", "int32"),  # path, acl, aversion
    Op.GET_CHILDREN: ("path", "bool"),
    Op.GET_CHILDREN2: ("path", "bool"),
    Op.SYNC: ("string",),
    Op.CHECK: ("path", "int32"),  # path, version
    Op.CHECK_WATCHES: ("path", "int32"),  # path, kind
    Op.REMOVE_WATCHES: ("path", "int32"),
    Op.AUTH: ("int32", "string", "buffer"),  # 0, scheme, credential
    Op.SET_WATCHES: ("int64", "strings", "strings", "strings"),  # zxid, data, exist, child
    Op.SET_WATCHES2: ("int64", "strings", "strings", "strings", "strings", "strings"),
    Op.GET_EPHEMERALS: ("string",),
    Op.GET_ALL_CHILDREN_NUMBER: ("path",),
    Op.ADD_WATCH: ("path", "int32"),  # path, mode
}

READERS: dict[int, tuple[Callable[[Reader], Any], ...]] = {
    op: tuple([KINDS[kind][0] for kind in kinds]) for op, kinds in RECORDS.items()
}

# The operations in a multi and in a multi-read.
CREATE_OPS = frozenset({Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER})
MULTI_OPS = CREATE_OPS | {Op.CREATE_TTL, Op.DELETE, Op.SET_DATA, Op.CHECK}
READ_OPS = frozenset({Op.GET_DATA, Op.GET_CHILDREN})


class Connect(NamedTuple):
    """A ConnectRequest; ``read_only`` is None when an old client leaves it out."""

    version: int
    last_zxid: int
    timeout_ms: int
    session_id: int
    password: bytes
    read_only: bool | None


def decode_connect(frame: bytes) -> Connect:
    r = Reader(frame)
    version, last_zxid, timeout_ms, session_id = r.int32(), r.int64(), r.int32(), r.int64()
    password = r.buffer() or b""
    read_only = r.boolean() if r.pos < r.end else None
    return Connect(version, last_zxid, timeout_ms, session_id, password, read_only)


def encode_connected(
    timeout_ms: int, session_id: int, password: bytes, read_only: bool | None
) -> bytes:
    """Encode a framed ConnectResponse; without the read-only flag for a client that left it out."""
    tail = b"" if read_only is None else b"\x00"
    return frame(struct.pack(">iiq", 0, timeout_ms, session_id) + write_buffer(password) + tail)


def frame(payload: bytes) -> bytes:
    return INT32.pack(len(payload)) + payload


def decode_body(op: int, r: Reader) -> tuple[Any, ...]:
    """Decode the fields of one request's body, in the order of ``RECORDS``."""
    return tuple([read(r) for read in READERS.get(op, ())])


def decode_multi(r: Reader) -> list[tuple[int, tuple[Any, ...]]]:
    """Decode the operations of a multi or a multi-read: all of one sort, or it is no record."""
    ops: list[tuple[int, tuple[Any, ...]]] = []
    while True:
        op, done, _ = r.int32(), r.boolean(), r.int32()
        if done:
            break
        if op not in MULTI_OPS and op not in READ_OPS:
            raise WireError(f"a multi holds an operation of type {op}")
        ops.append((op, decode_body(op, r)))
    if len({op in READ_OPS for op, _ in ops}) > 1:
        raise WireError("a multi mixes reads and writes")
    return ops


READERS[Op.MULTI] = READERS[Op.MULTI_READ] = (decode_multi,)


def encode_reply(xid: int, zxid: int, code: int, body: bytes = b"") -> bytes:
    """Encode a framed reply; the body is sent only with code 0."""
    return FRAMED_REPLY_HEADER.pack(16 + len(body), xid, zxid, code) + body


def encode_event(kind: int, path: str) -> bytes:
    """Encode a framed watch event (state 3: connected)."""
    raw = path.encode("utf-8", "replace")
    head = struct.pack(">iiqiiii", 28 + len(raw), XID_EVENT, -1, 0, kind, 3, len(raw))
    return head + raw
