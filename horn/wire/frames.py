"""Frames between tasks: a header of 64 bytes, a small typed map, raw arrays.

H | M | B0 .. Bn : struct, msgpack of one class of ``messages``, array bytes.

``encode`` copies no array; ``decode`` checks all in one order, cheapest first, and raises
ProtocolError: where, got, expected. Pure: no socket, no clock. Source: docs/notes/0020.
"""

from __future__ import annotations

import functools
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from horn._kernels.checksum import sum64
from horn.errors import UNREADABLE, ProtocolError
from horn.wire.messages import DTYPES, MAJOR, MAX_BODIES, MINOR, TYPES, Meta

MAGIC = b"HRN" + bytes([MAJOR])
HEADER = struct.Struct("<4sBBHHHIIQQQIIQ")  # all but the last field, which guards the others
HEADER_BYTES = 64
VERSION = "header: protocol version"  # the place named when another version is refused
META_BYTES = 64 * 1024  # msgpack grows 64 times in memory: 4 MB at worst
BODY_BYTES = 8 * 1024 * 1024 - HEADER_BYTES - META_BYTES  # what MAXMSGSIZE lets through
CHUNK_BYTES = 4 * 1024 * 1024
MAX_DEPTH, MAX_ITEMS, MAX_KEYS = 8, 4096, 256

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Buffer: TypeAlias = bytes | bytearray | memoryview
Spec: TypeAlias = tuple[int, tuple[int, ...]]

_DTYPE = {code: np.dtype(name) for code, name in DTYPES.items()}
_CODE = {dtype: code for code, dtype in _DTYPE.items()}


class BadFrame(ProtocolError):
    """A frame is not what its place in the protocol demands."""

    def __init__(self, where: str, got: object, expected: object) -> None:
        self.where, self.got, self.expected = where, str(got), str(expected)
        super().__init__(where, self.got, self.expected)

    def __str__(self) -> str:
        return f"{self.where}: got {self.got}, expected {self.expected}"


class DamagedFrame(BadFrame):
    """A frame is not as it was sent: parts, lengths or checksums do not fit."""


class OutOfSequence(BadFrame):
    """Frames of one peer were lost, doubled or reordered; ``fault`` is that word."""

    def __init__(self, fault: str, where: str, got: object, expected: object) -> None:
        super().__init__(where, got, expected)
        self.fault = fault
        self.args = (fault, where, self.got, self.expected)

    def __str__(self) -> str:
        return f"{self.where}: a frame was {self.fault}: got {self.got}, expected {self.expected}"


class HandshakeRefused(BadFrame):
    """The two ends have different versions, jobs, channels or keys."""


# Bits of the header's flags; an unknown one is refused.
BODY_SUM = 1  # body_sum is set: always, unless the connection is encrypted
FINITE = 2  # the receiver checks that no float is NaN or infinite

_TYPE = {cls: number for number, cls in TYPES.items()}
_ENCODE = msgspec.msgpack.Encoder()


@functools.cache
def _decoder(number: int) -> msgspec.msgpack.Decoder[Meta]:
    """The decoder of a type, made with its first frame: a process meets few types."""
    return msgspec.msgpack.Decoder(TYPES[number])


def _no_extension(code: int, data: memoryview) -> Any:
    raise ValueError(f"extension type {code}")


_ANY = msgspec.msgpack.Decoder(ext_hook=_no_extension)


class WireMessage(msgspec.Struct, frozen=True):
    """One message. ``meta.arrays`` is filled in by ``encode``; ``seq`` counts from 1."""

    meta: Meta
    arrays: tuple[Array, ...] = ()
    src: int = 0
    attempt: int = 0
    seq: int = 0
    step: int = 0
    part: int = 0
    flags: int = BODY_SUM


class Expected(msgspec.Struct, frozen=True):
    """The facts that the receiver knows of the sender from elsewhere; None: not yet."""

    src: int | None = None
    attempt: int | None = None
    needs_sum: bool = True


def sum_of(bodies: Sequence[Buffer]) -> int:
    """The checksum of all bodies, one after the other (docs/notes/0092)."""
    found = 0
    for body in bodies:
        found = sum64(body, found)
    return found


def encode(message: WireMessage, body_sum: int | None = None, ack: int = 0) -> list[Buffer]:
    """Encode a message in parts; bodies are views of its arrays, so do not write these until sent.

    ``body_sum``: of the bodies, if it is known. ``ack``: instead of the meta's.
    """
    arrays = message.arrays
    meta = message.meta
    if arrays or meta.arrays or ack:
        specs: list[Spec] = []
        for index, array in enumerate(arrays):
            code = _CODE.get(array.dtype)
            if code is None or not array.flags.c_contiguous:
                what = f"{array.dtype.str} with strides {array.strides}"
                wanted = f"C-contiguous, one of {' '.join(DTYPES.values())}"
                raise BadFrame(f"array {index} to send", what, wanted)
            specs.append((code, array.shape))
        meta = msgspec.structs.replace(meta, arrays=tuple(specs), ack=ack or meta.ack)
    # an empty or 0-dimensional array has no byte view of its own
    bodies: list[Buffer] = [a.reshape(-1).view(np.uint8).data if a.size else b"" for a in arrays]
    packed = _ENCODE.encode(meta)
    size = sum(len(body) for body in bodies)
    if len(packed) > META_BYTES or len(bodies) > MAX_BODIES or size > BODY_BYTES:
        raise BadFrame(
            "message to send",
            f"{len(packed)} bytes of meta, {len(bodies)} bodies of {size} bytes",
            f"at most {META_BYTES}, {MAX_BODIES} and {BODY_BYTES}",
        )
    if not message.flags & BODY_SUM:
        body_sum = 0
    elif body_sum is None:
        body_sum = sum_of(bodies)
    number = _TYPE[type(meta)]
    head = HEADER.pack(
        MAGIC, MINOR, meta.kind, number, message.flags, len(bodies), len(packed), size,
        message.attempt, message.seq, message.step, message.src, message.part, body_sum,
    )  # fmt: skip
    guard = zlib.crc32(packed, zlib.crc32(head))
    return [head + guard.to_bytes(4, "little"), packed, *bodies]


NOTHING_KNOWN = Expected()


def decode(parts: Sequence[Buffer], expected: Expected = NOTHING_KNOWN) -> WireMessage:
    """Decode a message; arrays are views. Raises BadFrame, DamagedFrame for damage on the way."""
    n_bodies = len(parts) - 2
    if not 0 <= n_bodies <= MAX_BODIES:
        raise DamagedFrame("frame", f"{len(parts)} parts", f"2 to {MAX_BODIES + 2}")
    head, packed = parts[0], parts[1]
    if len(head) != HEADER_BYTES:
        raise DamagedFrame("header", f"{len(head)} bytes", HEADER_BYTES)
    (magic, minor, kind, number, flags, nbody, meta_len, body_len, attempt, seq, step, src, part,
     body_sum) = HEADER.unpack_from(head)  # fmt: skip
    if magic != MAGIC:
        if magic[:3] == MAGIC[:3]:
            raise HandshakeRefused(VERSION, f"major {magic[3]}", f"major {MAJOR}")
        raise DamagedFrame("header: magic", magic, MAGIC)
    guard = int.from_bytes(head[60:64], "little")
    if len(packed) <= META_BYTES and zlib.crc32(packed, zlib.crc32(head[:60])) != guard:
        raise DamagedFrame("header: checksum", f"{guard:#010x}", "that of header and meta")
    if meta_len != len(packed) or len(packed) > META_BYTES:
        wanted = f"{meta_len}, at most {META_BYTES}"
        raise DamagedFrame("meta", f"{len(packed)} bytes", wanted)
    bodies = parts[2:]
    size = sum(len(body) for body in bodies)
    if nbody != n_bodies or body_len != size:
        wanted = f"{nbody} of {body_len}"
        raise DamagedFrame("bodies", f"{n_bodies} parts of {size} bytes", wanted)
    if size > BODY_BYTES:
        raise BadFrame("bodies", f"{size} bytes", f"at most {BODY_BYTES}")
    if expected.src is not None and src != expected.src:
        raise BadFrame("header: src", f"task {src}", f"task {expected.src}")
    if expected.attempt is not None and attempt != expected.attempt:
        raise BadFrame(f"header: attempt of task {src}", attempt, expected.attempt)
    if flags > BODY_SUM | FINITE or (expected.needs_sum and not flags & BODY_SUM):
        raise BadFrame("header: flags", f"{flags:#x}", "a body checksum and no unknown bit")
    if flags & BODY_SUM:
        found = sum_of(bodies)
        if found != body_sum:
            wanted = f"{body_sum:#018x}"
            raise DamagedFrame(f"bodies of task {src}: checksum", f"{found:#018x}", wanted)
    elif body_sum:
        raise BadFrame("header: body checksum", f"{body_sum:#010x}", "0, as its flag is off")
    cls = TYPES.get(number)
    if cls is None:
        raise BadFrame("header: type", number, f"one of {sorted(TYPES)}")
    if kind != cls.kind:
        raise BadFrame(f"header: kind of {cls.__name__}", kind, int(cls.kind))
    meta = _decode_meta(number, bytes(packed), minor)
    arrays = _arrays(meta, bodies, bool(flags & FINITE))
    return WireMessage(meta, arrays, src, attempt, seq, step, part, flags)


def _decode_meta(number: int, packed: bytes, minor: int) -> Meta:
    """Decode a meta in its one canonical form. Unknown keys are for later minors of this major."""
    name = TYPES[number].__name__
    try:
        meta = _decoder(number).decode(packed)
        if _ENCODE.encode(meta) == packed:
            return meta
        # Unknown keys, or another form of the same: only plain values, each key once, shortest.
        plain = _ANY.decode(packed)
        _check_plain(plain)
        if _ENCODE.encode(plain) != packed:
            raise ValueError("a key that comes twice, or a value not in its shortest form")
        if not plain.keys() - set(TYPES[number].__struct_fields__) or minor <= MINOR:
            # the same keys must have had the same bytes, and this minor knows all of its own
            raise ValueError("unknown, misplaced or needless keys")
    except UNREADABLE as error:
        raise BadFrame(f"meta of {name}", str(error) or type(error).__name__, name) from None
    return meta


def _check_plain(value: object) -> None:
    """Check that a value has no timestamp, nothing deep or wide: a walk without recursion."""
    todo = [(value, 1)]
    while todo:
        item, depth = todo.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        if isinstance(item, (dict, list)) and len(item) > (
            limit := MAX_KEYS if isinstance(item, dict) else MAX_ITEMS
        ):
            raise ValueError(f"{len(item)} entries, more than {limit}")
        if isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):
                raise ValueError("a key that is no text")
            todo += [(inner, depth + 1) for inner in item.values()]
        elif isinstance(item, list):
            todo += [(inner, depth + 1) for inner in item]
        elif not (item is None or isinstance(item, (bool, int, float, str, bytes))):
            raise ValueError(f"a {type(item).__name__}")


def _arrays(meta: Meta, bodies: Sequence[Buffer], needs_finite: bool) -> tuple[Array, ...]:
    if len(meta.arrays) != len(bodies):
        raise BadFrame("meta: arrays", len(meta.arrays), f"{len(bodies)}, the number of bodies")
    arrays = []
    for index, ((code, shape), body) in enumerate(zip(meta.arrays, bodies, strict=True)):
        dtype = _DTYPE.get(code)
        if dtype is None:
            raise BadFrame(f"meta: dtype of array {index}", code, f"one of {sorted(DTYPES)}")
        n_bytes = math.prod(shape) * dtype.itemsize  # Python's integers do not overflow
        if n_bytes != len(body):
            wanted = f"{n_bytes} for {dtype} {shape}"
            raise BadFrame(f"array {index}", f"{len(body)} bytes", wanted)
        try:
            array = np.frombuffer(body, dtype).reshape(shape)
        except ValueError as error:  # an empty array with absurd other dimensions
            raise BadFrame(f"array {index}: shape", shape, str(error)) from None
        array.flags.writeable = False
        if dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
            raise BadFrame(f"array {index}: bool", array.view(np.uint8).max(), "0 or 1")
        if needs_finite and dtype.kind == "f" and not np.isfinite(array).all():
            raise BadFrame(f"array {index}", "NaN or infinity", "finite numbers")
        arrays.append(array)
    return tuple(arrays)


def next_frame(seq: int, last: int, where: str) -> int:
    """The number of a frame that follows the frame ``last`` of a connection that keeps the order.
    Raises OutOfSequence: frames between them were lost, or this one came before.
    """
    if seq != last + 1:
        fault = "lost" if seq > last else "doubled"
        raise OutOfSequence(fault, where, f"frame {seq}", f"frame {last + 1}")
    return seq
