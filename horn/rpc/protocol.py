"""The protocol of a client and a service: calls, answers, and bodies in chunks.

A frame is msgpack of one class below, at most 64 KiB; a ``BodyChunk`` is followed by one raw part.
Each end sends of a body only what it was granted: ``WINDOW_BYTES`` at first, then what
``WindowGrant`` adds. Pure: no socket, no clock.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec

from horn.errors import UNREADABLE, ProtocolError

VERSION = 2
FRAME_BYTES = 64 * 1024
CHUNK_BYTES = 256 * 1024
MESSAGE_BYTES = CHUNK_BYTES + 1024  # encrypted, a part is longer
WINDOW_BYTES = 1024 * 1024
MAX_TIMEOUT_S = 3600.0
UNKNOWN = -1  # the size of a body of unknown size

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Size = Annotated[int, msgspec.Meta(ge=UNKNOWN, le=2**62)]
_Word = Annotated[str, msgspec.Meta(max_length=100)]
_Text = Annotated[str, msgspec.Meta(max_length=16_000)]


class RpcFrame(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """One frame. ``call`` is the client's number of the call it belongs to."""

    call: _Number


class CallRequest(RpcFrame, frozen=True, tag=True, forbid_unknown_fields=True):
    """A call of ``op``. ``size`` bytes of body follow; the client waits ``timeout_s``."""

    version: _Number
    op: _Word
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_TIMEOUT_S)]
    request: msgspec.Raw
    size: _Size = 0


class CallResponse(RpcFrame, frozen=True, tag=True, forbid_unknown_fields=True):
    """The answer to a call. ``size`` bytes of body follow, then ``EndOfBody``."""

    reply: msgspec.Raw
    size: _Size = 0


class BodyChunk(RpcFrame, frozen=True, tag=True, forbid_unknown_fields=True):
    """The next bytes of a body: the part after this."""


class EndOfBody(RpcFrame, frozen=True, tag=True, forbid_unknown_fields=True):
    """All of a body has been sent."""


class WindowGrant(RpcFrame, frozen=True, tag=True, forbid_unknown_fields=True):
    """The peer may send ``n_bytes`` more bytes of its body."""

    n_bytes: Annotated[int, msgspec.Meta(ge=1, le=WINDOW_BYTES)]


class CallError(RpcFrame, frozen=True, tag=True, forbid_unknown_fields=True):
    """The call failed: ``kind`` is the class of the error."""

    kind: _Word
    text: _Text


class CancelCall(RpcFrame, frozen=True, tag=True, forbid_unknown_fields=True):
    """The client no longer waits for the answer."""


_ENCODE = msgspec.msgpack.Encoder()
# Decodes any of the classes above, by its tag.
_DECODE: msgspec.msgpack.Decoder[RpcFrame] = msgspec.msgpack.Decoder(
    functools.reduce(operator.or_, RpcFrame.__subclasses__())
)


def encode(frame: RpcFrame) -> bytes:
    """Encode a frame, as its first part."""
    packed = _ENCODE.encode(frame)
    if len(packed) > FRAME_BYTES:
        raise ProtocolError(
            f"{type(frame).__name__} of {len(packed)} bytes, but at most {FRAME_BYTES} are sent; "
            f"what is long goes into the body"
        )
    return packed


def chunks(body: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Join and cut the portions of a body into what a ``BodyChunk`` may have; all but the last are
    full. What is granted bounds the bytes under way, and so the messages too.
    """
    chunk = bytearray()
    for portion in body:
        left = memoryview(portion)
        while left:
            taken = left[: CHUNK_BYTES - len(chunk)]
            chunk += taken
            left = left[len(taken) :]
            if len(chunk) == CHUNK_BYTES:
                yield bytes(chunk)
                chunk.clear()
    if chunk:
        yield bytes(chunk)


def decode(parts: Sequence[bytes | memoryview]) -> tuple[RpcFrame, bytes | memoryview]:
    """Decode a frame; returns its raw part too if it is a chunk. Raises ProtocolError."""
    if not 1 <= len(parts) <= 2 or len(parts[0]) > FRAME_BYTES:
        sizes = [len(part) for part in parts[:4]]
        raise ProtocolError(f"{len(parts)} parts of {sizes} bytes: no frame")
    try:
        frame = _DECODE.decode(parts[0])
    except UNREADABLE as error:
        raise ProtocolError(f"no frame: {error}") from None
    if isinstance(frame, BodyChunk) != (len(parts) == 2):
        raise ProtocolError(f"{type(frame).__name__} with {len(parts) - 1} raw parts")
    if len(parts) == 1:
        return frame, b""
    if not 0 < len(parts[1]) <= CHUNK_BYTES:
        raise ProtocolError(f"a chunk of {len(parts[1])} bytes, not 1 to {CHUNK_BYTES}")
    return frame, parts[1]
