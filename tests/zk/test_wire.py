"""Records to bytes and back; bytes that are no record are a WireError and nothing else."""

from __future__ import annotations

import random
import resource
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.zk import client_wire
from tests.zk.state import Talker, new_service
from zk import record, wire
from zk.acl import OPEN
from zk.errors import WireError
from zk.record import Record
from zk.sessions import CloseSession, OpenSession
from zk.tree import Create, Delete, SetAcl, SetData
from zk.wire import Acl, Connect, Op, Reader

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
acl = st.lists(st.builds(Acl, int32, st.none() | text, st.none() | text), max_size=4).map(tuple)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int32": int32,
    "int64": int64,
    "bool": st.booleans(),
    "buffer": st.none() | st.binary(max_size=40),
    "string": st.none() | text,
    "path": text,
    "strings": st.lists(text, max_size=4).map(tuple),
    "acls": acl,
}
bodies = st.sampled_from(sorted(wire.RECORDS)).flatmap(
    lambda op: st.tuples(st.just(op), st.tuples(*[VALUES[k] for k in wire.RECORDS[op]]))
)
multi_ops = st.sampled_from(sorted(wire.MULTI_OPS)).flatmap(
    lambda op: st.tuples(st.just(op), st.tuples(*[VALUES[k] for k in wire.RECORDS[op]]))
)
changes = st.one_of(
    st.builds(Create, text, VALUES["buffer"], acl, int64),
    st.builds(Delete, text),
    st.builds(SetData, text, VALUES["buffer"], int32),
    st.builds(SetAcl, text, acl, int32),
    st.builds(OpenSession, int64, int32, st.binary(min_size=16, max_size=16)),
    st.builds(CloseSession, int64),
)


@given(bodies)
def test_decode_of_encode_is_the_same(body: tuple[int, tuple[Any, ...]]) -> None:
    op, fields = body
    reader = Reader(client_wire.encode_body(op, fields))
    assert wire.decode_body(op, reader) == fields
    assert reader.pos == reader.end


@given(bodies, st.data())
def test_record_cut_short_is_a_wire_error(
    body: tuple[int, tuple[Any, ...]], data: st.DataObject
) -> None:
    op, fields = body
    whole = client_wire.encode_body(op, fields)
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(WireError):
        wire.decode_body(op, Reader(whole[:size]))


@given(st.lists(multi_ops, max_size=4))
def test_multi_round_trip(ops: list[tuple[int, tuple[Any, ...]]]) -> None:
    assert wire.decode_multi(Reader(client_wire.encode_multi(ops))) == ops


@given(st.builds(Connect, int32, int64, int32, int64, st.binary(), st.none() | st.booleans()))
def test_connect_round_trip(connect: Connect) -> None:
    assert wire.decode_connect(client_wire.encode_connect(connect)) == connect


@given(st.builds(Record, int64, int64, int64, st.lists(changes, max_size=4).map(tuple)))
def test_record_of_the_log_round_trip(entry: Record) -> None:
    assert record.decode(Reader(record.encode(entry))) == entry


@pytest.mark.parametrize("size", [-2, -(2**31), 2**31 - 1, 1_048_576, 5])
@pytest.mark.parametrize("read", [Reader.buffer, Reader.string, Reader.strings, Reader.acls])
def test_length_that_cannot_be_true_is_refused_before_anything_is_made(
    size: int, read: Any
) -> None:
    with pytest.raises(WireError):
        read(Reader(struct.pack(">i", size) + b"abcd"))


def test_null_and_empty_stay_different() -> None:
    assert wire.write_buffer(None) == b"\xff\xff\xff\xff"
    assert Reader(wire.write_buffer(None)).buffer() is None
    assert Reader(wire.write_buffer(b"")).buffer() == b""


def test_text_that_is_not_utf8_is_read_with_replacement_as_java_does() -> None:
    assert Reader(wire.write_buffer(b"/a\xff")).path() == "/a\ufffd"


def test_multi_may_not_mix_reads_and_writes() -> None:
    ops = [(Op.GET_DATA, ("/", False)), (Op.DELETE, ("/a", -1))]
    with pytest.raises(WireError, match="mixes"):
        wire.decode_multi(Reader(client_wire.encode_multi(ops)))


# Frames of all sorts, mutated; the service must answer or hang up, never raise.


def seeds() -> list[bytes]:
    """One whole frame of each operation."""
    frames = []
    for op, kinds in wire.RECORDS.items():
        values: dict[str, Any] = {
            "int32": 0,
            "int64": 1,
            "bool": True,
            "buffer": b"data",
            "string": "digest",
            "path": "/a",
            "strings": ("/a", "/b"),
            "acls": OPEN,
        }
        body = client_wire.encode_body(op, tuple(values[k] for k in kinds))
        frames.append(struct.pack(">ii", 1, op) + body)
    multi: list[tuple[int, tuple[Any, ...]]] = [
        (Op.CREATE, ("/m", b"", OPEN, 0)),
        (Op.SET_DATA, ("/m", b"x", -1)),
        (Op.DELETE, ("/m", -1)),
    ]
    frames.append(struct.pack(">ii", 2, Op.MULTI) + client_wire.encode_multi(multi))
    reads: list[tuple[int, tuple[Any, ...]]] = [(Op.GET_DATA, ("/", True))]
    frames.append(struct.pack(">ii", 3, Op.MULTI_READ) + client_wire.encode_multi(reads))
    frames.append(struct.pack(">ii", -2, Op.PING))
    frames.append(struct.pack(">ii", 4, Op.WHO_AM_I))
    frames.append(client_wire.encode_connect(Connect(0, 0, 1000, 0, bytes(16), False)))
    return frames


INTERESTING = [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\0\0\0\1"]


def mutate(rng: random.Random, frame: bytes) -> bytes:
    data = bytearray(frame)
    for _ in range(rng.randrange(1, 4)):
        kind = rng.randrange(5)
        at = rng.randrange(len(data) + 1)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at : at + 4] = rng.choice(INTERESTING)
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randrange(8))
        else:
            data[at : at + rng.randrange(6)] = b""
    return bytes(data)


def fuzz(n_inputs: int, seed: int) -> float:
    """Feed mutated frames; returns by how much memory grew after the first tenth, in MB."""
    rng = random.Random(seed)
    frames = seeds()
    start_kb = 0
    for number in range(n_inputs):
        if number % 2000 == 0:
            # A new tree now and then: what clients legally stored is not a leak.
            service = new_service()
            talker = Talker(service)
            talker.connect()
        if number == n_inputs // 10:
            start_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if talker.client.is_closing:
            service.disconnect(talker.client)
            talker = Talker(service)
            if rng.random() < 0.9:
                talker.connect()
        talker.send(mutate(rng, rng.choice(frames)))
        service.journal.clear()
        service.dirty.clear()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start_kb) / 1024


def test_no_frame_raises() -> None:
    fuzz(8_000, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_frame_raises_in_a_million() -> None:
    growth_mb = fuzz(1_000_000, seed=1)
    print(f"1,000,000 frames: memory grew by {growth_mb:.1f} MB")
    assert growth_mb <= 10


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    service = new_service()
    fresh = Talker(service)
    fresh.send(data)
    talker = Talker(service)
    talker.connect()
    talker.send(data)


@given(st.binary(max_size=200))
def test_record_reader_raises_wire_errors_only(data: bytes) -> None:
    try:
        record.decode(Reader(data))
    except WireError:
        pass
