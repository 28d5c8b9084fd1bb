"""A server's end of its links: see ``task_links``."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence

import numpy as np
import zmq

from horn.parameter_server import link
from horn.parameter_server.link import ATTEMPT, FULL_S, LINGER_S, LinkEnd
from horn.transport import Identity, TransportCounters
from horn.transport._handshake import Check, Handshake
from horn.transport._zeromq import ZeroMqContext
from horn.wire.frames import Array, BadFrame, Buffer, Expected, HandshakeRefused, WireMessage
from horn.wire.messages import MINOR, Bye, Hello, Meta, Welcome

logger = logging.getLogger(__name__)

OLD_LINKS = 256  # ended links that are remembered, to tell late frames from strangers
LATER = "a later one: another has this place"


class ServerLinks:
    """A server's end of all its links.

    identity : its rank is the server's number, its world size the tasks of each group. is_stale :
    whether a rank's attempt is over. n_stale : frames refused for that.
    """

    def __init__(self, url: str, identity: Identity, is_stale: Callable[[int, int], bool]) -> None:
        self.identity, self.is_stale, self.counters = identity, is_stale, TransportCounters()
        self.n_stale = 0
        self._ends: dict[bytes, tuple[int, LinkEnd]] = {}  # by incarnation: rank, link
        self._of: dict[int, bytes] = {}  # by rank
        self._over: dict[bytes, tuple[int, int]] = {}  # by incarnation: rank, attempt
        self._handshake = Handshake(identity, self.counters, self._checks)
        self._context = ZeroMqContext(identity)
        try:
            bind_to = url if url != "ipc://" else f"ipc://@horn-{secrets.token_hex(16)}"
            self._context.listen(bind_to, f"server {identity.rank} of {identity.job}")
        except BaseException:
            self._context.end()
            raise
        self._router, self.endpoint = self._context.router, self._context.endpoint

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset(self._of)

    def send(self, rank: int, meta: Meta, values: Sequence[Array] = ()) -> None:
        """Send to a rank, if it has a link; else it asks again. Values are sent as one block."""
        incarnation = self._of.get(rank)
        if incarnation is not None:
            block = (np.concatenate(values),) if values else ()
            self._ends[incarnation][1].queue.append((meta, block))
            self._flush(incarnation)

    def receive(self, timeout_s: float) -> WireMessage | None:
        ends = time.monotonic() + timeout_s
        while True:
            is_sent = self._flush_all()
            if link.has_frame(self._router):
                sender, *parts = link.received(self._router)
                message = self._take(bytes(sender), parts)
                if message is not None:
                    return message
                continue
            left_s = ends - time.monotonic()
            if left_s <= 0:
                return None
            self._wait(left_s if is_sent else min(left_s, FULL_S))

    def _wait(self, wait_s: float) -> None:
        if not link.spin([self._router], wait_s):
            self._router.poll(max(int(wait_s * 1000), 1))

    def _flush_all(self) -> bool:
        """Send all queues; whether nothing is left."""
        return all([self._flush(incarnation) for incarnation in list(self._ends)])  # noqa: C419

    def _flush(self, incarnation: bytes) -> bool:
        found = self._ends.get(incarnation)
        if found is None:
            return True
        try:
            return found[1].flush(self._context, self._router, (incarnation,))
        except zmq.ZMQError as error:
            self._forget(incarnation, f"its connection is gone ({error})")
            return True

    def _take(self, sender: bytes, parts: Sequence[Buffer]) -> WireMessage | None:
        found = self._ends.get(sender)
        if found is None:
            self._accept(sender, parts)
            return None
        rank, end = found
        attempt = end.expected.attempt or 0
        if self.is_stale(rank, attempt):
            self._forget(sender, f"attempt {attempt} is over")
            self._accept(sender, parts)
            return None
        try:
            message = end.take(parts)
            if isinstance(message.meta, Hello):
                raise BadFrame(f"frame of {end.name}", "a second hello", "one")
        except BadFrame as error:
            self._forget(sender, str(error))
            broken = BadFrame("link", str(error), "frames in order, undamaged")
            self._context.answer(sender, self._handshake.refusal(broken))
            self.counters.n_dropped += 1
            return None
        if isinstance(message.meta, Bye):
            self._forget(sender, "")
            return None
        return message

    def _forget(self, incarnation: bytes, why: str) -> None:
        rank, end = self._ends.pop(incarnation)
        if self._of.get(rank) == incarnation:
            del self._of[rank]
        self._over[incarnation] = (rank, end.expected.attempt or 0)
        while len(self._over) > OLD_LINKS:
            self._over.pop(next(iter(self._over)))
        if why:
            logger.warning("link ended server=%d %s reason=%s", self.identity.rank, end.name, why)

    def _accept(self, sender: bytes, parts: Sequence[Buffer]) -> None:
        """Begin a link by a fitting hello; other frames without a link are dropped and counted."""
        over = self._over.get(sender)
        if over is not None and self.is_stale(*over):
            self.n_stale += 1
            refused = HandshakeRefused(ATTEMPT, over[1], LATER)
            self._context.answer(sender, self._handshake.refusal(refused))
            return
        found = self._handshake.accept(sender, parts, self._context.needs_sum, self._context.answer)
        if found is None:
            return
        message, hello = found
        rank = message.src
        if rank in self._of:
            self._forget(self._of[rank], "")
        expected = Expected(rank, message.attempt, self._context.needs_sum)
        end = LinkEnd(f"rank={rank} attempt={message.attempt}", expected, n_in=1)
        self._ends[sender], self._of[rank] = (rank, end), sender
        end.queue.append((Welcome(minor=min(MINOR, hello.max_minor)), ()))
        self._flush(sender)

    def _checks(self, message: WireMessage, hello: Hello) -> list[Check]:
        if not self.is_stale(message.src, message.attempt):
            return []
        self.n_stale += 1
        return [(ATTEMPT, message.attempt, LATER)]

    def close(self) -> None:
        link.drain(self._flush_all)
        self._context.end(int(LINGER_S * 1000))
