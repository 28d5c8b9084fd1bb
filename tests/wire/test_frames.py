"""Frames: what is sent is what comes, and whatever else comes is refused with its place named."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import re
import struct
import sys
import tracemalloc
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from horn._kernels.checksum import sum64
from horn.errors import HornError, ProtocolError
from horn.wire import frames
from horn.wire.frames import (
    BODY_BYTES,
    BODY_SUM,
    FINITE,
    HEADER_BYTES,
    META_BYTES,
    BadFrame,
    Expected,
    HandshakeRefused,
    OutOfSequence,
    WireMessage,
    decode,
    encode,
    next_frame,
)
from horn.wire.messages import (
    DTYPES,
    TYPES,
    Acknowledgement,
    Arrived,
    BlockData,
    Bye,
    ChannelDigest,
    EndOfEpoch,
    Hello,
    JoinServers,
    LeaveServers,
    MeanPart,
    Note,
    ParameterData,
    PullParameters,
    PushAcknowledged,
    PushGradients,
    Refusal,
    ServersReady,
    Verdict,
    Welcome,
)

SEED = int(os.environ.get("HORN_SEED", "0"))
GOLDEN = Path(__file__).with_name("golden-2.0.txt")

# One of each type, with everything in it: what the golden vectors were made of.
EXAMPLES = {
    "hello": WireMessage(
        Hello(task=1, n_tasks=3, job="mnist/0", incarnation=bytes(range(16))), src=1
    ),
    "welcome": WireMessage(Welcome(minor=5), src=2, attempt=9, seq=1),
    "refusal": WireMessage(Refusal(where="job", got="'a'", expected="'b'"), seq=2),
    "plan": WireMessage(ChannelDigest(digest=bytes(range(32)), size=4096), src=3, seq=3),
    "bye": WireMessage(Bye(reason="finished"), src=3, seq=4, attempt=2**63),
    "block": WireMessage(
        BlockData(), (np.arange(6, dtype="<f4").reshape(2, 3),), 1, 7, 6, 42, 11, BODY_SUM | FINITE
    ),
    "chunk": WireMessage(BlockData(at=8, whole=16), (np.arange(8, dtype="u1"),), 1, 7, 7, 42, 11),
    "encrypted": WireMessage(
        BlockData(), (np.float64([[1.5]]), np.array(True)), 1, 7, 8, 43, 12, 0
    ),
    "arrived": WireMessage(Arrived(), src=2, attempt=7, seq=9, step=44),
    "credit": WireMessage(Acknowledgement(used=1 << 40, seq=9), src=2, attempt=7, seq=10),
    "note": WireMessage(
        Note(topic="loss", fields={"step": 3, "loss": 0.25, "done": False, "why": None}),
        (np.zeros((0, 5), "<i8"),),
        src=1,
        attempt=7,
        seq=11,
    ),
    "parameters": WireMessage(
        ParameterData(pieces=(0, 300), clock=5, part=70_000),
        src=4,
        attempt=7,
        seq=12,
    ),
    "gradients": WireMessage(
        PushGradients(pieces=(2,), clock=1 << 33, samples=100, part=3),
        src=1,
        attempt=7,
        seq=13,
    ),
    "wanted": WireMessage(PullParameters(clock=6, final=True), src=2, attempt=7, seq=14),
    "left": WireMessage(LeaveServers(is_thanks=True), src=2, attempt=7, seq=15),
    "ask": WireMessage(EndOfEpoch(epoch=3, stop=True), src=0, attempt=7, seq=16),
    "verdict": WireMessage(Verdict(epoch=3, stop=True), src=4, attempt=7, seq=17),
    "joined": WireMessage(JoinServers(), src=3, attempt=8, seq=1),
    "welcomed": WireMessage(ServersReady(clock=7, is_new=True), src=4, attempt=8, seq=2),
    "applied": WireMessage(PushAcknowledged(part=3, clock=1 << 33), src=4, attempt=8, seq=3),
    "values": WireMessage(
        MeanPart(number=9, at=2), (np.array([0.25], "<f4"),), src=1, attempt=7, seq=18
    ),
}


def raw(message):
    return [bytes(part) for part in encode(message)]


def assert_same(got, sent):
    for name in ("src", "attempt", "seq", "step", "part", "flags"):
        assert getattr(got, name) == getattr(sent, name)
    assert msgspec.structs.replace(got.meta, arrays=()) == sent.meta
    assert len(got.arrays) == len(sent.arrays)
    for a, b in zip(got.arrays, sent.arrays, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        assert not a.flags.writeable


def test_every_type_has_an_example():
    assert {type(m.meta) for m in EXAMPLES.values()} == set(TYPES.values())


def test_the_page_of_the_wire_has_every_message_by_its_number():
    page = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
    found = re.findall(r"^\| (\d+) \| `(\w+)`", page, re.MULTILINE)
    assert {int(number): name for number, name in found} == {
        number: cls.__name__ for number, cls in TYPES.items()
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_vectors_stay_what_they_are(name):
    stored = dict(line.split(" ", 1) for line in GOLDEN.read_text().splitlines())
    parts = [bytes.fromhex(part) for part in stored[name].split("|")]
    assert raw(EXAMPLES[name]) == parts
    assert_same(decode(parts, Expected(needs_sum=name != "encrypted")), EXAMPLES[name])


def test_the_header_is_the_one_of_the_reference():
    head = raw(EXAMPLES["block"])[0]
    fields = struct.unpack("<4sBBHHHIIQQQIIQI", head)
    assert len(head) == 64 and fields[:6] == (b"HRN\x02", 0, 2, 16, 3, 1)
    assert fields[7:13] == (24, 7, 6, 42, 1, 11)
    assert fields[13] == sum64(np.arange(6, dtype="<f4").tobytes())


u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
arrays = npst.arrays(
    st.sampled_from([np.dtype(name) for name in DTYPES.values()]),
    npst.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=3),
)
text = st.text(max_size=30)
fields = st.dictionaries(
    text,
    st.none()
    | st.booleans()
    | text
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False),
    max_size=5,
)
metas = st.one_of(
    st.builds(BlockData, at=u32, whole=u32),
    st.builds(Note, topic=text, fields=fields),
    st.builds(Acknowledgement, used=u32, seq=u32),
    st.builds(Bye, reason=text),
    st.builds(PushGradients, pieces=st.lists(u32, max_size=4).map(tuple), clock=u32, samples=u32),
    st.builds(PullParameters, clock=u32, final=st.booleans()),
)
made = st.builds(
    WireMessage, metas, st.lists(arrays, max_size=3).map(tuple), u32, u64, u64, u64, u32,
    st.sampled_from([0, BODY_SUM]),
)  # fmt: skip


@settings(deadline=None)
@given(made)
def test_what_is_decoded_is_what_was_encoded(message):
    parts = encode(message)
    assert_same(decode(parts, Expected(needs_sum=False)), message)


@settings(deadline=None)
@given(made, st.data())
def test_any_changed_byte_is_refused(message, data):
    message = WireMessage(
        message.meta, message.arrays, message.src, message.attempt, message.seq, message.step
    )
    parts = [bytearray(part) for part in encode(message)]
    part = data.draw(st.sampled_from([p for p in parts if p]))
    part[data.draw(st.integers(0, len(part) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadFrame):
        decode(parts)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_changed_bit_of_every_type_is_refused(name):
    expected = Expected(needs_sum=name != "encrypted")
    parts = raw(EXAMPLES[name])
    n_guarded = 2 if name == "encrypted" else len(parts)  # encryption guards the bodies
    for index in range(n_guarded):
        for bit in range(8 * len(parts[index])):
            bad = [bytearray(part) for part in parts]
            bad[index][bit // 8] ^= 1 << bit % 8
            with pytest.raises(ProtocolError):
                decode(bad, expected)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_truncated_or_lengthened_frame_is_refused(name):
    expected = Expected(needs_sum=name != "encrypted")
    parts = raw(EXAMPLES[name])
    for index, part in enumerate(parts):
        for bad in [part[:n] for n in range(len(part))] + [part + b"\0"]:
            with pytest.raises(BadFrame):
                decode([*parts[:index], bad, *parts[index + 1 :]], expected)
    for bad in [parts[:n] for n in range(len(parts))] + [[*parts, b""], [b"", *parts]]:
        with pytest.raises(BadFrame):
            decode(bad, expected)


def fuzzed(rng, n_inputs):
    """Frames broken at random; those with a correct checksum reach the later checks."""
    good = [raw(message) for message in EXAMPLES.values()]
    for _ in range(n_inputs):
        parts = [bytearray(part) for part in rng.choice(good)]
        for _ in range(rng.randint(1, 4)):
            part = rng.choice(parts)
            how = rng.randrange(5)
            if how == 0 and part:
                part[rng.randrange(len(part))] ^= 1 << rng.randrange(8)
            elif how == 1 and part:
                at = rng.randrange(len(part))
                part[at : at + rng.randrange(9)] = rng.randbytes(rng.randrange(9))
            elif how == 2:
                del part[rng.randrange(len(part) + 1) :]
            elif how == 3:
                parts.insert(rng.randrange(len(parts) + 1), bytearray(rng.randbytes(8)))
            elif len(parts) > 1:
                del parts[rng.randrange(len(parts))]
            if not parts:
                break
        if len(parts) > 1 and len(parts[0]) == HEADER_BYTES and rng.random() < 0.7:
            if rng.random() < 0.5:
                sizes = len(parts) - 2, len(parts[1]), sum(map(len, parts[2:]))
                struct.pack_into("<HII", parts[0], 10, *sizes)
            crc = zlib.crc32(parts[1], zlib.crc32(parts[0][:60]))
            struct.pack_into("<I", parts[0], 60, crc)
        yield parts


def fuzz(n_inputs):
    rng = random.Random(SEED)
    n_refused = 0
    for parts in fuzzed(rng, n_inputs):
        try:
            message = decode(parts)
        except BadFrame as error:
            assert error.where and error.expected
            n_refused += 1
        else:  # by chance it is a frame: then it is one entirely
            assert_same(decode(encode(message)), WireMessage(
                msgspec.structs.replace(message.meta, arrays=()), message.arrays, message.src,
                message.attempt, message.seq, message.step, message.part, message.flags,
            ))  # fmt: skip
    assert n_refused > 0.8 * n_inputs


def test_100_000_broken_frames_raise_nothing_else():
    fuzz(100_000)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_1_000_000_broken_frames_raise_nothing_else():
    fuzz(1_000_000)


def sealed(packed, bodies=(), *, number=32, kind=1, minor=0, flags=1, **fields):
    """A frame whose checksums are right, whatever is in it."""
    head = frames.HEADER.pack(
        frames.MAGIC, minor, kind, number, flags, len(bodies), len(packed),
        sum(len(b) for b in bodies), fields.get("attempt", 0), 1, 0, fields.get("src", 0), 0,
        frames.sum_of(bodies) if flags & 1 else 0,
    )  # fmt: skip
    return [head + struct.pack("<I", zlib.crc32(packed, zlib.crc32(head))), packed, *bodies]


pack = msgspec.msgpack.encode
DEEP = b"\x91" * 60_000 + b"\xc0"
BOMBS = {
    "nested arrays under an unknown key": b"\x82\xa5topic\xa1x\xa1z" + DEEP,
    "nested arrays as the whole": DEEP,
    "an array of 4 G": b"\x82\xa5topic\xa1x\xa1z\xdd\xff\xff\xff\xff",
    "a map of 4 G": b"\xdf\xff\xff\xff\xff",
    "60 KB of empty arrays": b"\x82\xa5topic\xa1x\xa1z\xdc\xea\x60" + b"\x90" * 60_000,
    "an extension": b"\x82\xa5topic\xa1x\xa1z\xd4\x05\x00",
    "a timestamp": b"\x82\xa5topic\xa1x\xa1z\xd6\xff\x00\x00\x00\x01",
    "bad UTF-8": b"\x81\xa5topic\xa2\xff\xfe",
    "a key twice": b"\x82\xa5topic\xa1x\xa5topic\xa1y",
    "an unknown key twice": b"\x83\xa5topic\xa1x\xa1z\x01\xa1z\x02",
    "a long form of a short number": b"\x82\xa5topic\xa1x\xa1z\xcd\x00\x01",
    "a number as key": b"\x82\xa5topic\xa1x\x01\x01",
    "a wrong type": pack({"topic": 3}),
    "nothing where something must be": pack({}),
    "text after the end": pack({"topic": "x"}) + b"\xc0",
    "no bytes": b"",
    "too many fields": pack({"topic": "x", "fields": {str(i): i for i in range(257)}}),
    "a word too long": pack({"topic": "x" * 257}),
    "an unknown key of this minor": pack({"topic": "x", "new": 1}),
}


@contextlib.contextmanager
def lines_counted():
    """Yields a list whose one item is how many lines of the reader have run inside. Garbage of
    other tests, which may be collected meanwhile, has lines as well.
    """
    n = [0]

    def count(frame, event, arg):
        if frame.f_code.co_filename != frames.__file__:
            return None
        n[0] += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield n
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_quickly_and_in_little_memory(name):
    minor = 0 if name == "an unknown key of this minor" else 1
    parts = sealed(BOMBS[name], minor=minor)
    tracemalloc.start()
    with lines_counted() as n_lines, pytest.raises(BadFrame, match="^meta of Note: "):
        decode(parts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20 and n_lines[0] < 1000, n_lines


def test_unknown_keys_of_a_later_minor_are_ignored():
    got = decode(sealed(pack({"topic": "x", "new": [1, {"a": 2.5}]}), minor=1))
    assert got.meta == Note(topic="x")


def test_another_major_is_named():
    parts = raw(EXAMPLES["hello"])
    parts[0] = b"HRN\x01" + parts[0][4:]
    with pytest.raises(HandshakeRefused) as caught:
        decode(parts)
    assert (caught.value.got, caught.value.expected) == ("major 1", "major 2")


WRONG = {
    "dtype": (pack({"arrays": [[99, [1]]]}), [b"\0" * 4], r"dtype of array 0: got 99"),
    "length": (pack({"arrays": [[1, [3]]]}), [b"\0" * 8], "8 bytes, expected 12 for float32"),
    "overflow": (pack({"arrays": [[2, [2**31] * 8]]}), [b"\0" * 8], "array 0: got 8 bytes"),
    "too wide": (pack({"arrays": [[1, [2**31 + 1]]]}), [b""], "meta of Block"),
    "negative": (pack({"arrays": [[1, [-1]]]}), [b""], "meta of Block"),
    "9 axes": (pack({"arrays": [[1, [1] * 9]]}), [b"\0" * 4], "meta of Block"),
    "absurd but empty": (pack({"arrays": [[1, [0] + [2**31] * 7]]}), [b""], "array 0: shape"),
    "too few bodies": (pack({"arrays": [[1, [1]]]}), [], "meta: arrays: got 1, expected 0"),
    "no bool": (pack({"arrays": [[6, [1]]]}), [b"\2"], "array 0: bool: got 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arrays_that_do_not_fit_their_bytes_are_refused(name):
    packed, bodies, sentence = WRONG[name]
    with pytest.raises(BadFrame, match=sentence):
        decode(sealed(packed, bodies, number=16, kind=2))


def test_what_is_known_of_the_sender_is_checked():
    parts = raw(EXAMPLES["block"])
    assert decode(parts, Expected(src=1, attempt=7)).part == 11
    for expected, sentence in [
        (Expected(src=2), "src: got task 1, expected task 2"),
        (Expected(attempt=8), "attempt of task 1: got 7, expected 8"),
    ]:
        with pytest.raises(BadFrame, match=sentence):
            decode(parts, expected)


def test_more_bytes_of_bodies_than_there_may_be_are_refused(monkeypatch):
    parts = raw(EXAMPLES["block"])
    monkeypatch.setattr(frames, "BODY_BYTES", 23)
    with pytest.raises(BadFrame, match="24 bytes, expected at most 23"):
        decode(parts)


def test_not_finite_is_refused_where_asked():
    array = np.array([1.0, np.nan])
    decode(encode(WireMessage(BlockData(), (array,))))
    with pytest.raises(BadFrame, match="NaN or infinity"):
        decode(encode(WireMessage(BlockData(), (array,), flags=BODY_SUM | FINITE)))


def test_kinds_flags_and_types_are_checked():
    packed = pack({"topic": "x"})
    for change, sentence in [
        ({"kind": 2}, "kind of Note: got 2, expected 1"),
        ({"number": 77}, "type: got 77"),
        ({"flags": 5}, "flags: got 0x5"),
        ({"flags": 0}, "flags: got 0x0"),
    ]:
        with pytest.raises(BadFrame, match=sentence):
            decode(sealed(packed, **change))


def test_arrays_are_sent_as_views():
    array = np.arange(10.0)
    body = encode(WireMessage(BlockData(), (array,)))[2]
    array[0] = 99.0
    assert np.frombuffer(body)[0] == 99.0


@pytest.mark.parametrize(
    "packed, number, kind",
    [
        (pack({"clock": 1, "samples": 1}), 49, 1),
        (pack({"pieces": [0] * 65, "clock": 1, "samples": 1}), 49, 1),
        (pack({"pieces": [-1], "clock": 1, "samples": 1}), 49, 1),
        (pack({"pieces": [0], "clock": -1, "samples": 1}), 49, 1),
        (pack({"final": True}), 50, 1),
        (pack({"is_thanks": 1}), 51, 1),
        (pack({"stop": True}), 53, 1),
        (pack({"number": 1.5}), 54, 2),
    ],
)
def test_what_goes_to_servers_is_checked(packed, number, kind):
    with pytest.raises(BadFrame, match=f"^meta of {TYPES[number].__name__}: "):
        decode(sealed(packed, number=number, kind=kind))


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4))[:, :2], np.zeros(3, ">f8"), np.array(["a"]), np.zeros(2, complex)]
)
def test_what_the_wire_does_not_know_is_refused_by_the_sender(array):
    with pytest.raises(BadFrame, match="array 0 to send: got "):
        encode(WireMessage(BlockData(), (array,)))


def test_too_much_for_a_frame_is_refused_by_the_sender():
    for message in [
        WireMessage(BlockData(), (np.zeros(BODY_BYTES + 1, "u1"),)),
        WireMessage(BlockData(), (np.zeros(1),) * 65),
        WireMessage(Note(topic="x", fields={str(i): "x" * META_BYTES for i in range(2)})),
    ]:
        with pytest.raises(BadFrame, match="message to send"):
            encode(message)


@given(st.integers(0, 5), st.integers(0, 12))
def test_a_connection_that_keeps_the_order_lets_in_only_the_next_frame(last, seq):
    if seq == last + 1:
        assert next_frame(seq, last, "task 1") == seq
        return
    with pytest.raises(OutOfSequence) as caught:
        next_frame(seq, last, "task 1")
    found = caught.value
    assert found.fault == ("lost" if seq > last else "doubled")
    assert (found.got, found.expected) == (f"frame {seq}", f"frame {last + 1}")


def test_errors_carry_their_data_and_travel():
    for error in [
        BadFrame("header", 3, 64), HandshakeRefused("job", "'a'", "'b'"),
        OutOfSequence("lost", "task 1", 3, 2),
    ]:  # fmt: skip
        copy = pickle.loads(pickle.dumps(error))
        assert isinstance(copy, HornError) and str(copy) == str(error)
        assert copy.__dict__ == error.__dict__
