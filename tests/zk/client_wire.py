"""What a client sends: requests as ``zk.wire`` reads them."""

from __future__ import annotations

import struct
from typing import Any

from zk import wire
from zk.wire import KINDS, MULTI_HEADER, RECORDS, Connect

REPLY_HEADER = struct.Struct(">iqi")
XID_SET_WATCHES = -8


def encode_connect(c: Connect) -> bytes:
    head = struct.pack(">iqiq", c.version, c.last_zxid, c.timeout_ms, c.session_id)
    tail = b"" if c.read_only is None else wire.write_boolean(c.read_only)
    return head + wire.write_buffer(c.password) + tail


def encode_body(op: int, fields: tuple[Any, ...]) -> bytes:
    """The fields of a request, as ``wire.RECORDS`` has them."""
    kinds = zip(RECORDS[op], fields, strict=True)
    return b"".join([KINDS[kind][1](value) for kind, value in kinds])


def encode_multi(ops: list[tuple[int, tuple[Any, ...]]]) -> bytes:
    parts = [MULTI_HEADER.pack(op, False, -1) + encode_body(op, fields) for op, fields in ops]
    return b"".join(parts) + MULTI_HEADER.pack(-1, True, -1)
