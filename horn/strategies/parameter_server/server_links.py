"""A server's end of its links: see ``task_links``."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence

import zmq

from horn.errors import JobError
from horn.strategies.parameter_server.link import (
    EPOCH,
    LINGER_S,
    LINK,
    Context,
    End,
    has_frame,
    received,
    spin,
)
from horn.transport import Identity, TransportCounters
from horn.wire import frames
from horn.wire.admission import Admission, of_a_job
from horn.wire.frames import (
    BODY_SUM,
    Array,
    BadFrame,
    Buffer,
    Bye,
    Expected,
    HandshakeRefused,
    Hello,
    Meta,
    Refusal,
    Welcome,
    WireMessage,
    decode,
    encode,
)

logger = logging.getLogger(__name__)

FULL_S = 0.002  # how soon who had no room is looked at again
OLD_LINKS = 256  # names of links that are over, to tell the late from strangers
STRIKES = 3  # frames of one stranger that are answered


class Hub:
    """A server's end of all its links.

    place : ``task`` is the server's number, ``n_tasks`` the tasks of each group, ``epoch`` this
    life's. is_stale : whether a rank's epoch is over. n_stale : frames refused for that.
    """

    def __init__(self, url: str, place: Identity, is_stale: Callable[[int, int], bool]) -> None:
        self.place, self.is_stale, self.counters = place, is_stale, TransportCounters()
        self.n_stale = 0
        self._ends: dict[bytes, tuple[int, End]] = {}  # by incarnation: rank, link
        self._of: dict[int, bytes] = {}  # by rank
        self._over: dict[bytes, tuple[int, int]] = {}  # by incarnation: rank, epoch
        self._strikes: dict[bytes, int] = {}
        self._context = Context(place)
        try:
            self._router = self._context.socket(zmq.ROUTER)
            self._router.set(zmq.ROUTER_MANDATORY, 1)  # [drops what it cannot send]
            self._context.guard(self._router)
            bind_to = url if url != "ipc://" else f"ipc://@horn-{secrets.token_hex(16)}"
            self._router.set(zmq.IPV6, int("[" in bind_to))
            zap, where = self._context.zap, f"server {place.task} of {place.job}"
            audit = None if zap is None else zap.gate.audit
            self._admission = Admission(self._context.zmq, self._router, of_a_job(), audit, where)
            try:
                self._router.bind(bind_to)
            except zmq.ZMQError as error:
                raise JobError(f"cannot listen on {bind_to}: {error}") from error
            self._admission.bound()
            self._admission.start()
        except BaseException:
            self._close_sockets(0)
            raise
        self.endpoint = bytes(self._router.get(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

    @property
    def ranks(self) -> frozenset[int]:
        """Who has a link."""
        return frozenset(self._of)

    def send(self, rank: int, meta: Meta, block: Array | None) -> None:
        """To a rank, if it has a link; who has none asks again. The block must not change."""
        incarnation = self._of.get(rank)
        if incarnation is not None:
            self._ends[incarnation][1].queue.append((meta, block))
            self._flush(incarnation)

    def receive(self, timeout_s: float) -> WireMessage | None:
        """The next message of a link, None if there is none in time; ``src`` is the rank."""
        ends = time.monotonic() + timeout_s
        while True:
            is_full = self._flush_all()
            if has_frame(self._router):
                sender, *parts = received(self._router)
                message = self._take(bytes(sender), parts)
                if message is not None:
                    return message
                continue
            left_s = ends - time.monotonic()
            if left_s <= 0:
                return None
            self._wait(min(left_s, FULL_S if is_full else left_s))

    def _wait(self, wait_s: float) -> None:
        before = time.monotonic()
        if not spin([self._router], wait_s):
            self._router.poll(max(int(wait_s * 1000), 1))
        self.counters.wait_s += time.monotonic() - before

    def _flush_all(self) -> bool:
        """Whether something is left for which there is no room."""
        return not all([self._flush(incarnation) for incarnation in list(self._ends)])  # noqa: C419

    def _flush(self, incarnation: bytes) -> bool:
        """Whether nothing is left to send."""
        place = self.place
        found = self._ends.get(incarnation)
        if found is None:
            return True
        end = found[1]
        try:
            while parts := end.frame(place.task, place.attempt, self._context.needs_sum):
                if not self._context.send(self._router, [incarnation, *parts], 3):
                    return False
                self.counters.n_sent += 1
                self.counters.sent_bytes += sum(map(len, parts[2:]))
                end.stuck = None
        except zmq.ZMQError as error:
            self._forget(incarnation, f"its connection is gone ({error})")
        return True

    def _take(self, sender: bytes, parts: Sequence[Buffer]) -> WireMessage | None:
        found = self._ends.get(sender)
        if found is None:
            self._meet(sender, parts)
            return None
        rank, end = found
        epoch = end.expected.attempt or 0
        if self.is_stale(rank, epoch):
            self._forget(sender, f"epoch {epoch} is over")
            self._meet(sender, parts)
            return None
        try:
            message = end.take(parts)
            if isinstance(message.meta, Hello):
                raise BadFrame(f"frame of {end.name}", "a second hello", "one")
        except BadFrame as error:
            self._forget(sender, str(error))
            self._refuse(
                sender, HandshakeRefused(LINK, str(error)[:4000], "frames in order, undamaged")
            )
            self.counters.n_dropped += 1
            return None
        self.counters.n_received += 1
        self.counters.received_bytes += sum(array.nbytes for array in message.arrays)
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
            logger.warning("link ended server=%d %s reason=%s", self.place.task, end.name, why)

    def _meet(self, sender: bytes, parts: Sequence[Buffer]) -> None:
        """A hello that fits begins a link; what else comes of no link is dropped and counted."""
        over = self._over.get(sender)
        if over is not None and self.is_stale(*over):
            self.n_stale += 1
            self._refuse(
                sender, HandshakeRefused(EPOCH, over[1], "a later one: another has this place")
            )
            return
        try:
            message = decode(parts, Expected(needs_sum=self._context.needs_sum))
            hello = message.meta
            if not isinstance(hello, Hello) or message.seq != 1:
                raise HandshakeRefused(LINK, type(hello).__name__, "a hello")
            self._check(sender, message, hello)
        except BadFrame as error:
            self.counters.n_dropped += 1
            strikes = self._strikes[sender] = self._strikes.get(sender, 0) + 1
            while len(self._strikes) > OLD_LINKS:
                self._strikes.pop(next(iter(self._strikes)))
            if strikes <= STRIKES:
                self._refuse(sender, error if isinstance(error, HandshakeRefused) else
                             HandshakeRefused(LINK, str(error)[:4000], "a hello"))  # fmt: skip
            return
        rank = message.src
        if rank in self._of:
            self._forget(self._of[rank], "")
        name = f"rank={rank} epoch={message.attempt}"
        max_body = min(frames.BODY_BYTES, hello.max_body)
        expected = Expected(rank, message.attempt, max_body, self._context.needs_sum)
        end = End(name, expected, n_in=1)
        self._ends[sender], self._of[rank] = (rank, end), sender
        end.queue.append((Welcome(minor=min(frames.MINOR, hello.max_minor)), None))
        self._flush(sender)

    def _check(self, sender: bytes, message: WireMessage, hello: Hello) -> None:
        place = self.place
        for what, got, wanted in (
            ("job", hello.job, place.job),
            ("tasks", hello.n_tasks, place.n_tasks),
            ("src", message.src, hello.task),
            (LINK, hello.incarnation.hex(), sender.hex()),
            ("byte order", hello.endian, "little"),
            ("dtypes", set(frames.DTYPES) - set(hello.dtypes), set()),
        ):
            if got != wanted:
                raise HandshakeRefused(what, got, wanted)
        if hello.min_minor > frames.MINOR:
            raise HandshakeRefused("minor version", hello.min_minor, frames.MINOR)
        if self.is_stale(message.src, message.attempt):
            self.n_stale += 1
            raise HandshakeRefused(EPOCH, message.attempt, "a later one: another has this place")

    def _refuse(self, sender: bytes, error: HandshakeRefused) -> None:
        refusal = Refusal(where=error.where[:256], got=error.got, expected=error.expected)
        flags = BODY_SUM if self._context.needs_sum else 0
        message = WireMessage(refusal, (), self.place.task, self.place.attempt, flags=flags)
        try:
            self._router.send_multipart([sender, *encode(message)], zmq.DONTWAIT)
        except zmq.ZMQError:
            pass  # who has gone, or does not read, gets no answer

    def close(self) -> None:
        """What is still to be sent goes, if there is room for it in time."""
        ends = time.monotonic() + LINGER_S
        while self._flush_all() and time.monotonic() < ends:
            time.sleep(0.001)
        self._close_sockets(int(LINGER_S * 1000))

    def _close_sockets(self, linger_ms: int) -> None:
        if hasattr(self, "_admission"):
            self._admission.close()
        if hasattr(self, "_router"):
            self._router.close(linger_ms)
        self._context.close()
