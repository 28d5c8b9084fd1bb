"""One committed change to and from bytes: what the log keeps.

A record holds what was decided (final paths, stored ACLs, new versions), so that replaying it needs
no checks and gives the same tree. Pure: no I/O.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from zk import wire
from zk.errors import WireError
from zk.sessions import CloseSession, OpenSession
from zk.tree import Check, Create, Delete, SetAcl, SetData, Txn
from zk.wire import Reader

Change = Txn | OpenSession | CloseSession

_HEAD = struct.Struct(">qqqI")
_CREATE, _DELETE, _SET_DATA, _SET_ACL, _OPEN, _CLOSE = range(1, 7)


class Record(NamedTuple):
    """One change of the whole state: all of ``txns`` or nothing.

    Units: ``time_ms`` since 1970; ``session`` is who asked, 0 for the server itself.
    """

    zxid: int
    time_ms: int
    session: int
    txns: tuple[Change, ...]


def encode(record: Record) -> bytes:
    parts = [_encode_txn(txn) for txn in record.txns if not isinstance(txn, Check)]
    head = _HEAD.pack(record.zxid, record.time_ms, record.session, len(parts))
    return head + b"".join(parts)


def _encode_txn(txn: Change) -> bytes:
    if isinstance(txn, Create):
        return (
            bytes([_CREATE])
            + wire.write_string(txn.path)
            + wire.write_buffer(txn.data)
            + wire.write_acls(txn.acl)
            + wire.pack_int64(txn.owner)
        )
    if isinstance(txn, SetData):
        return (
            bytes([_SET_DATA])
            + wire.write_string(txn.path)
            + wire.write_buffer(txn.data)
            + wire.pack_int32(txn.version)
        )
    if isinstance(txn, Delete):
        return bytes([_DELETE]) + wire.write_string(txn.path)
    if isinstance(txn, SetAcl):
        return (
            bytes([_SET_ACL])
            + wire.write_string(txn.path)
            + wire.write_acls(txn.acl)
            + wire.pack_int32(txn.version)
        )
    if isinstance(txn, OpenSession):
        return (
            bytes([_OPEN])
            + wire.pack_int64(txn.id)
            + wire.pack_int32(txn.timeout_ms)
            + wire.write_buffer(txn.password)
        )
    assert isinstance(txn, CloseSession)
    return bytes([_CLOSE]) + wire.pack_int64(txn.id)


def decode(r: Reader) -> Record:
    """The record at the reader's place.

    Raises
    ------
    WireError : these bytes are not a record.
    """
    zxid, time_ms, session = r.int64(), r.int64(), r.int64()
    n_txns = r.int32()
    if not 0 <= n_txns <= r.end - r.pos:
        raise WireError(f"a record of {n_txns} changes in {r.end - r.pos} bytes")
    return Record(zxid, time_ms, session, tuple([_decode_txn(r) for _ in range(n_txns)]))


def _decode_txn(r: Reader) -> Change:
    tag = r.data[r.pos] if r.pos < r.end else 0
    r.pos += 1
    if tag == _CREATE:
        return Create(r.path(), r.buffer(), r.acls(), r.int64())
    if tag == _SET_DATA:
        return SetData(r.path(), r.buffer(), r.int32())
    if tag == _DELETE:
        return Delete(r.path())
    if tag == _SET_ACL:
        return SetAcl(r.path(), r.acls(), r.int32())
    if tag == _OPEN:
        return OpenSession(r.int64(), r.int32(), r.buffer() or b"")
    if tag == _CLOSE:
        return CloseSession(r.int64())
    raise WireError(f"a change of type {tag}")
