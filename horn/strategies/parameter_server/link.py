"""What both ends of a link have: numbered frames, a ZeroMQ context, and words for refusals.

See ``task_links``.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import zmq

from horn.transport import Identity
from horn.transport._zeromq import LIMITS, YIELD_S, keypair
from horn.wire.frames import (
    BODY_SUM,
    Array,
    Buffer,
    Expected,
    Meta,
    OutOfSequence,
    Refusal,
    WireMessage,
    decode,
    encode,
)
from horn.wire.zap import ZAP_DOMAIN, AllowedKeys, ZapHandler

LINGER_S = 2.0
# Below 64 KiB a copy costs less than a message that has to say when it is free.
COPY_BYTES = 65_536
EPOCH, LINK = "epoch", "link"  # why a hello, or a frame, was refused


@dataclass
class End:
    """One end of a link: what went out and what came in."""

    name: str
    expected: Expected
    n_out: int = 0
    n_in: int = 0
    queue: deque[tuple[Meta, Array | None]] = field(default_factory=deque)
    stuck: list[Buffer] | None = None  # numbered, but there is no room for it

    def frame(self, src: int, epoch: int, needs_sum: bool) -> list[Buffer] | None:
        """The next frame to send; the same again until ``stuck`` is None."""
        if self.stuck is None and self.queue:
            meta, block = self.queue.popleft()
            self.n_out += 1
            arrays = () if block is None else (block,)
            flags = BODY_SUM if needs_sum else 0
            self.stuck = encode(WireMessage(meta, arrays, src, epoch, self.n_out, flags=flags))
        return self.stuck

    def take(self, parts: Sequence[Buffer]) -> WireMessage:
        """What came. Raises BadFrame for what is damaged, lost or doubled."""
        message = decode(parts, self.expected)
        if isinstance(message.meta, Refusal):  # of no link, so it has no number
            return message
        self.n_in += 1
        if message.seq != self.n_in:
            fault = "lost" if message.seq > self.n_in else "doubled"
            where = f"frames of {self.name}"
            raise OutOfSequence(fault, where, f"frame {message.seq}", f"frame {self.n_in}")
        return message


class Context:
    """A ZeroMQ context with the options that matter, and keys where there is a secret."""

    def __init__(self, place: Identity) -> None:
        self.place = place
        self.needs_sum = place.key is None
        self.pair = keypair(place.key, place.job) if place.key is not None else None
        self.zmq: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.zap: ZapHandler | None = None

    def socket(self, kind: int) -> zmq.Socket[bytes]:
        made = self.zmq.socket(kind)
        for option, value in LIMITS.items():
            made.set(option, value)
        return made

    def guard(self, router: zmq.Socket[bytes]) -> None:
        """Let in who has the key, if there is one."""
        if self.pair is None:
            return
        gate = AllowedKeys(where=f"task {self.place.task} of {self.place.job}")
        gate.admit(self.pair[0], "task")  # of this job, and nobody else
        self.zap = ZapHandler(self.zmq, gate)
        router.set(zmq.CURVE_SERVER, 1)
        router.set(zmq.CURVE_SECRETKEY, self.pair[1])
        router.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def introduce(self, dealer: zmq.Socket[bytes]) -> None:
        if self.pair is not None:
            dealer.set(zmq.CURVE_SERVERKEY, self.pair[0])
            dealer.set(zmq.CURVE_PUBLICKEY, self.pair[0])
            dealer.set(zmq.CURVE_SECRETKEY, self.pair[1])

    def send(self, socket: zmq.Socket[bytes], parts: Sequence[Buffer], n_first: int) -> bool:
        """Whether there was room. Bodies that are large are not copied, and must not change."""
        is_small = sum(len(body) for body in parts[n_first:]) <= COPY_BYTES
        try:
            socket.send_multipart(parts, zmq.DONTWAIT, copy=is_small)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        if self.zap is not None:
            self.zap.close()
        self.zmq.term()


def received(socket: zmq.Socket[bytes]) -> list[Buffer]:
    """One frame that is there."""
    parts: list[Buffer] = [socket.recv(zmq.DONTWAIT)]
    while socket.getsockopt(zmq.RCVMORE):
        if len(parts) < 3:
            parts.append(socket.recv(zmq.DONTWAIT))
        else:
            parts.append(socket.recv(zmq.DONTWAIT, copy=False).buffer)
    return parts


def has_frame(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def spin(sockets: Sequence[zmq.Socket[bytes]], wait_s: float) -> bool:
    """Look for a frame for the short time in which most come; whether there is one."""
    ends = time.monotonic() + min(wait_s, YIELD_S)
    while time.monotonic() < ends:
        os.sched_yield()
        if any(map(has_frame, sockets)):
            return True
    return False
