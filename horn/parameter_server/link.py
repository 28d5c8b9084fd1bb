"""Either end of a link: numbered frames, sent and received. See ``task_links``."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq

from horn.transport._zeromq import YIELD_S, ZeroMqContext
from horn.wire.frames import (
    BODY_SUM,
    Array,
    Buffer,
    Expected,
    WireMessage,
    decode,
    encode,
    next_frame,
)
from horn.wire.messages import Meta, Refusal

LINGER_S = 2.0
FULL_S = 0.002  # between two tries of a full link
# Below 64 KiB a copy costs less than ZeroMQ's notice that the buffer is free.
COPY_BYTES = 65_536
ATTEMPT = "attempt"  # reason of a refusal: a later attempt has the place


@dataclass
class LinkEnd:
    """One end of a link: its frames out and in."""

    name: str
    expected: Expected
    n_out: int = 0
    n_in: int = 0
    queue: deque[tuple[Meta, Sequence[Array]]] = field(default_factory=deque)
    stuck: list[Buffer] | None = None  # numbered, but there is no room for it

    def flush(
        self, context: ZeroMqContext, socket: zmq.Socket[bytes], to: Sequence[bytes] = ()
    ) -> bool:
        """Send the queue, by a ROUTER ``to`` an address; whether nothing is left. Large bodies are
        not copied, and must not change. Raises zmq.ZMQError if the connection is gone.
        """
        identity = context.identity
        while self.stuck is not None or self.queue:
            if self.stuck is None:
                meta, values = self.queue.popleft()
                self.n_out += 1
                flags = BODY_SUM if context.needs_sum else 0
                message = WireMessage(
                    meta, tuple(values), identity.rank, identity.attempt, self.n_out, flags=flags
                )
                self.stuck = encode(message)
            is_small = sum(map(len, self.stuck[2:])) <= COPY_BYTES
            try:
                socket.send_multipart([*to, *self.stuck], zmq.DONTWAIT, copy=is_small)
            except zmq.Again:
                return False
            self.stuck = None
        return True

    def take(self, parts: Sequence[Buffer]) -> WireMessage:
        """Decode a frame's message. Raises BadFrame if it is damaged, lost or doubled."""
        message = decode(parts, self.expected)
        if isinstance(message.meta, Refusal):  # it is outside the link, so it has no number
            return message
        self.n_in = next_frame(message.seq, self.n_in, f"frames of {self.name}")
        return message


def received(socket: zmq.Socket[bytes]) -> list[Buffer]:
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
    """Look for a frame for the short time in which most arrive; whether there is one."""
    ends = time.monotonic() + min(wait_s, YIELD_S)
    while time.monotonic() < ends:
        os.sched_yield()
        if any(map(has_frame, sockets)):
            return True
    return False


def drain(flush: Callable[[], bool]) -> None:
    """Send the rest, if there is room for it in time. flush : whether nothing is left."""
    ends = time.monotonic() + LINGER_S
    while not flush() and time.monotonic() < ends:
        time.sleep(0.001)
