"""The encoding of one committed change, as in the log. Pure.

A record holds decisions (final paths, stored ACLs, new versions): its replay needs no checks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from zk import wire
from zk.errors import WireError
from zk.sessions import CloseSession, OpenSession
from zk.tree import Check, Create, Delete, SetAcl, SetData, Txn
from zk.wire import Reader

Change = Txn | OpenSession | CloseSession

_HEAD = struct.Struct(">qqqI")
# The byte that a change begins with: its class, and its fields in their order.
_FORMS: dict[int, tuple[Callable[..., Change], tuple[str, ...]]] = {
    1: (Create, ("path", "buffer", "acls", "int64")),
    2: (Delete, ("path",)),
    3: (SetData, ("path", "buffer", "int32")),
    4: (SetAcl, ("path", "acls", "int32")),
    5: (OpenSession, ("int64", "int32", "buffer")),
    6: (CloseSession, ("int64",)),
}
_READ = {
    tag: (made, [wire.KINDS[kind][0] for kind in kinds]) for tag, (made, kinds) in _FORMS.items()
}
_WRITE = {
    made: (bytes([tag]), [wire.KINDS[kind][1] for kind in kinds])
    for tag, (made, kinds) in _FORMS.items()
}


class Record(NamedTuple):
    """A change of the state: all of ``txns`` or none. ``time_ms`` since 1970; ``session`` or 0."""

    zxid: int
    time_ms: int
    session: int
    txns: tuple[Change, ...]


def encode(record: Record) -> bytes:
    parts = [_encode_txn(txn) for txn in record.txns if not isinstance(txn, Check)]
    head = _HEAD.pack(record.zxid, record.time_ms, record.session, len(parts))
    return head + b"".join(parts)


def _encode_txn(txn: Change) -> bytes:
    tag, writers = _WRITE[type(txn)]
    return tag + b"".join([write(value) for write, value in zip(writers, txn, strict=True)])


def decode(r: Reader) -> Record:
    """Decode the record at the reader's place. Raises WireError."""
    zxid, time_ms, session = r.int64(), r.int64(), r.int64()
    n_txns = r.int32()
    if not 0 <= n_txns <= r.end - r.pos:
        raise WireError(f"a record of {n_txns} changes in {r.end - r.pos} bytes")
    return Record(zxid, time_ms, session, tuple([_decode_txn(r) for _ in range(n_txns)]))


def _decode_txn(r: Reader) -> Change:
    tag = r.data[r.pos] if r.pos < r.end else 0
    r.pos += 1
    if tag not in _READ:
        raise WireError(f"a change of type {tag}")
    made, readers = _READ[tag]
    return made(*[read(r) for read in readers])
