"""The memfds of ``shm``: segments that all tasks of a group map, and bodies of messages."""

from __future__ import annotations

import fcntl
import itertools
import os
import struct
from collections.abc import Sequence

from horn._kernels.mailbox import Mapping
from horn.errors import JobError
from horn.wire import descriptors
from horn.wire.frames import (
    BODY_BYTES,
    HEADER_BYTES,
    BadFrame,
    Buffer,
    Expected,
    WireMessage,
    decode,
    encode,
)
from horn.wire.messages import MAX_BODIES

# Bodies up to this go in the packet: a memfd costs ten system calls, and a mapping over there.
INLINE_BYTES = 8 * 1024
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def new_segment(size: int) -> int:
    """Make a memfd of zeros that nobody can resize."""
    with descriptors.opening("memory for all tasks of a group"):
        fd = os.memfd_create("horn-mailboxes", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)  # an error now, not SIGBUS later
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
    except OSError as error:
        os.close(fd)
        raise JobError(f"no room for mailboxes of {size} bytes: {error.strerror}") from error
    return fd


def check_segment(fd: int, announced: int, size: int, where: str) -> None:
    """Check that a segment has this size, as announced, and that it is sealed."""
    real, seals = os.fstat(fd).st_size, fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    if not announced == real == size or seals & SEALS != SEALS:
        raise BadFrame(where, f"{real} bytes, seals {seals:#x}", f"{size}, sealed")


def packet_of(message: WireMessage) -> tuple[list[Buffer], int | None]:
    """Make a packet of a message; larger bodies are in a memfd that goes along."""
    parts = encode(message)
    lengths = [len(body) for body in parts[2:]]
    if sum(lengths) > INLINE_BYTES:
        return parts[:2], bodies_to_memfd(parts[2:])
    if lengths:
        parts.insert(2, struct.pack(f"<{len(lengths)}Q", *lengths))
    return parts, None


def bodies_to_memfd(bodies: Sequence[Buffer]) -> int:
    """Write the bodies of a message into a memfd: their number, their lengths, themselves."""
    fd = os.memfd_create("horn-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        lengths = [len(body) for body in bodies]
        head = struct.pack(f"<{len(bodies) + 1}Q", len(bodies), *lengths)
        for part in (head, *bodies):
            left = memoryview(part)
            while left:
                left = left[os.write(fd, left) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def message_of(packet: bytes, fds: Sequence[int], expected: Expected) -> WireMessage:
    """Read the message in a packet, whose bodies are behind its meta or in the memfd beside it."""
    head, packed = packet[:HEADER_BYTES], packet[HEADER_BYTES:]
    is_digest = len(head) == HEADER_BYTES and head[6] == 4
    bodies: list[Buffer] = []
    if fds and not is_digest:
        bodies = bodies_from_memfd(fds[0])
    elif not fds and len(head) == HEADER_BYTES:
        packed, bodies = bodies_from_packet(head, packed)
    return decode((head, packed, *bodies), expected)


def bodies_from_packet(head: bytes, rest: bytes) -> tuple[bytes, list[Buffer]]:
    """Split a packet into the meta and the bodies behind it; ``decode`` checks them further."""
    n_bodies, meta_bytes = struct.unpack_from("<HI", head, 10)
    at = meta_bytes + 8 * n_bodies
    if not n_bodies or n_bodies > MAX_BODIES or at > len(rest):
        return rest, []
    lengths = struct.unpack_from(f"<{n_bodies}Q", rest, meta_bytes)
    return rest[:meta_bytes], _cut(memoryview(rest), at, lengths, "bodies in a packet")


def bodies_from_memfd(fd: int) -> list[Buffer]:
    where = "bodies in shared memory"
    size = os.fstat(fd).st_size
    wanted = SEALS | fcntl.F_SEAL_WRITE
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & wanted != wanted:
        raise BadFrame(where, "a segment that may still change", "a sealed one")
    if not 8 <= size <= BODY_BYTES + 8 * (MAX_BODIES + 1):
        raise BadFrame(where, f"{size} bytes", f"8 to {BODY_BYTES}")
    whole = memoryview(Mapping(fd, size, is_read_only=True))
    (n_bodies,) = struct.unpack_from("<Q", whole)
    at = 8 * (n_bodies + 1)
    if n_bodies > MAX_BODIES or at > size:
        raise BadFrame(where, f"{n_bodies} bodies", f"at most {MAX_BODIES}")
    return _cut(whole, at, struct.unpack_from(f"<{n_bodies}Q", whole, 8), where)


def _cut(whole: memoryview, at: int, lengths: Sequence[int], where: str) -> list[Buffer]:
    """Cut the bodies that fill the rest of ``whole``."""
    ends = list(itertools.accumulate(lengths, initial=at))
    if ends[-1] != len(whole):
        raise BadFrame(where, f"{len(whole)} bytes", ends[-1])
    return [whole[start:end] for start, end in itertools.pairwise(ends)]
