"""The handshake: a stranger's first frame is a hello that fits, or it is dropped and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from horn.security.audit import log_word
from horn.transport import Identity, TransportCounters
from horn.wire.frames import (
    BadFrame,
    Buffer,
    Expected,
    HandshakeRefused,
    WireMessage,
    decode,
    encode,
)
from horn.wire.messages import DTYPES, MINOR, Hello, Refusal

logger = logging.getLogger(__name__)

STRIKES = 3
MOST_STRANGERS = 1000
# A sender's name begins with its incarnation; the number of a connection may follow.
INCARNATION_BYTES = 16
HELLO = "hello of task"  # prefix of its refusals


Check = tuple[str, object, object]  # what, as it is, as it must be


class Handshake:
    """Checks the first frames of strangers. ``checks`` : of a hello, besides those of the job.
    ``is_free`` : whether a task's place is free, None if there is no such place; by default all
    are.
    """

    def __init__(
        self,
        identity: Identity,
        counters: TransportCounters,
        checks: Callable[[WireMessage, Hello], Iterable[Check]],
        is_free: Callable[[int], bool | None] | None = None,
    ) -> None:
        self.identity, self.counters = identity, counters
        self.checks, self.is_free = checks, is_free
        self.unfit: dict[int, HandshakeRefused] = {}  # tasks' hellos that did not fit
        self._strikes: dict[bytes, int] = {}

    def accept(
        self,
        sender: bytes,
        parts: Sequence[Buffer],
        needs_sum: bool,
        answer: Callable[[bytes, Sequence[Buffer]], None],
    ) -> tuple[WireMessage, Hello] | None:
        """Check a stranger's first frame; return frame and hello of a peer that fits, else None."""
        n_strikes = self._strikes.get(sender, 0)
        claimed = -1
        try:
            if n_strikes >= STRIKES:
                raise BadFrame("stranger", "one frame more", "silence")
            message = decode(parts, Expected(needs_sum=needs_sum))
            if not isinstance(message.meta, Hello) or message.seq != 1:
                name = type(message.meta).__name__
                raise BadFrame("first frame", f"{name} {message.seq}", "Hello 1")
            claimed = message.meta.task
            self._check(sender, message, message.meta)
            return message, message.meta
        except BadFrame as error:
            is_expected = self.is_free is not None and self.is_free(claimed)
            if isinstance(error, HandshakeRefused) and is_expected:
                self.unfit.setdefault(claimed, error)
            self.counters.n_dropped += 1
            if len(self._strikes) > MOST_STRANGERS:
                self._strikes.clear()
            self._strikes[sender] = n_strikes + 1
            if n_strikes < STRIKES:
                reason = log_word(str(error))  # with what the stranger wrote
                logger.warning("stranger refused task=%d reason=%s", self.identity.rank, reason)
                answer(sender, self.refusal(error))
            return None

    def refusal(self, error: BadFrame) -> list[Buffer]:
        """The answer to a peer that gets no link, or loses it."""
        identity = self.identity
        return encode(WireMessage(refusal(error), src=identity.rank, attempt=identity.attempt))

    def _check(self, sender: bytes, message: WireMessage, hello: Hello) -> None:
        incarnation = ("incarnation", hello.incarnation.hex(), sender[:INCARNATION_BYTES].hex())
        is_free = self.is_free is None or bool(self.is_free(hello.task))
        check_hello(self.identity, message, hello, [incarnation, *self.checks(message, hello)],
                    is_free)  # fmt: skip


def check_hello(
    identity: Identity, message: WireMessage, hello: Hello, more: Iterable[Check], is_free: bool
) -> None:
    """Raise HandshakeRefused for a hello of another job, or for a place that is not free. more :
    further checks.
    """
    where = f"{HELLO} {hello.task}"
    for what, got, wanted in (
        ("job", hello.job, identity.job),
        ("tasks", hello.n_tasks, identity.world_size),
        ("src", message.src, hello.task),
        ("byte order", hello.endian, "little"),
        ("dtypes", set(DTYPES) - set(hello.dtypes), set()),
        *more,
    ):
        if got != wanted:
            raise HandshakeRefused(f"{where}: {what}", got, wanted)
    if hello.min_minor > MINOR:
        raise HandshakeRefused(f"{where}: minor version", hello.min_minor, MINOR)
    if not is_free:
        raise HandshakeRefused(where, "a place that is taken", "each task once")


def hello_of(identity: Identity, incarnation: bytes, features: int = 0) -> Hello:
    """The hello by which a peer is known."""
    return Hello(
        task=identity.rank, n_tasks=identity.world_size, job=identity.job,
        incarnation=incarnation, features=features,
    )  # fmt: skip


def refusal(error: BadFrame) -> Refusal:
    """The refusal for an error."""
    return Refusal(where=error.where[:256], got=error.got[:1000], expected=error.expected[:1000])


def refused(name: str, refusal: Refusal) -> HandshakeRefused:
    """The error for a peer's refusal."""
    return HandshakeRefused(f"refused by {name}: {refusal.where}", refusal.got, refusal.expected)
