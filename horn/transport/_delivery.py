"""Frames between a task and its peers over a link: each is taken once, in order, or the peer is
lost.

The handshake, numbers, acknowledgements, credit, retransmission, and lost peers; ``_framed`` has
the content of frames. Source: docs/notes/0020 and 0063.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from horn.transport import Identity, Transport
from horn.transport._channel import Outlet
from horn.transport._handshake import INCARNATION_BYTES, Check, Handshake, refused
from horn.transport._link import FrameLink, always
from horn.transport._stream import FrameStream, NumberedFrame
from horn.wire.frames import (
    BODY_SUM,
    BadFrame,
    Buffer,
    DamagedFrame,
    Expected,
    HandshakeRefused,
    WireMessage,
    decode,
    encode,
)
from horn.wire.messages import MENDS, MINOR, Acknowledgement, Bye, Hello, Meta, Refusal, Welcome

# Unacknowledged bytes to one peer: two chunks more than it uses before it acknowledges, so that a
# stream of chunks never stops.
CREDIT_BYTES = 16 * 1024 * 1024
GRANT_BYTES = 4 * 1024 * 1024
SLICE_S = 0.05  # how often a waiting task looks for ended ones
PAUSE_S = 2.0  # between acknowledgements to an absent peer, at most
# A peer is lost after so many damaged frames for so long, and none that could be taken.
MOST_DAMAGED, DAMAGED_S = 8, 5.0


@dataclass(slots=True)
class UnnumberedMessage:
    """A message without a number yet; it is sent from buffer ``at`` of ``outlet``."""

    message: WireMessage
    n_bytes: int = 0
    outlet: Outlet | None = None
    at: int = 0
    body_sum: int | None = None  # once for all receivers


@dataclass
class Peer:
    """One other task: frames to it, and frames from it."""

    name: str
    stream: FrameStream
    incarnation: bytes = b""
    is_welcome: bool = False  # it has welcomed this task
    urgent: deque[UnnumberedMessage] = field(default_factory=deque)
    queue: deque[UnnumberedMessage] = field(default_factory=deque)
    fresh: UnnumberedMessage | None = None  # in the last frame, until the link has taken it
    must_tell: bool = False  # an acknowledgement is due
    asks: bool = False  # ... and is to ask for one of the peer
    pause_s: float = SLICE_S  # until the next acknowledgement, while it is absent
    told_s: float = 0.0
    credit: int = CREDIT_BYTES  # body bytes it lets this task have sent in all
    sent: int = 0
    used: int = 0  # body bytes from it that were used here ...
    granted: int = 0  # ... and granted to it again
    n_damaged: int = 0  # frames since the last that was taken ...
    damaged_s: float = 0.0  # ... and when the first of them came
    barriers: deque[int] = field(default_factory=deque)
    digests: deque[bytes] = field(default_factory=deque)
    left: str | None = None

    @property
    def has_work(self) -> bool:
        """Whether there are frames to give to the link."""
        stream = self.stream
        return bool(stream.n_put < stream.n_out or self.urgent or self.queue or self.has_word)

    @property
    def is_waiting(self) -> bool:
        """Whether a message to the peer has not been given to the link."""
        return bool(self.fresh or self.urgent or self.queue)

    @property
    def has_word(self) -> bool:
        """Whether an acknowledgement is due, to a peer that has welcomed this task."""
        return self.must_tell and self.is_welcome


class Delivery(Transport):
    """Delivers a transport's frames over a link, which a subclass makes in ``__init__``."""

    link: FrameLink

    def __init__(self, url: str, identity: Identity, incarnation: bytes) -> None:
        super().__init__(url, identity)
        self.incarnation = incarnation
        self._peers = {
            task: Peer(
                (name := identity.name(task)),
                FrameStream(f"frames of {name}, attempt {identity.attempt}"),
            )
            for task in range(identity.world_size)
            if task != identity.rank
        }
        self._by_incarnation: dict[bytes, int] = {}
        self._handshake = Handshake(identity, self.counters, self._checks, self._is_free)
        self._expected: dict[int, Expected] = {}
        self._gone: dict[int, str] = {}
        self._checked_s = 0.0

    @abstractmethod
    def _act(self, peer: Peer, message: WireMessage) -> None:
        """Handle a peer's message."""

    def _turn(self, wait_s: float) -> bool:
        """Send the frames that can be sent, and take one; wait for it if none was sent."""
        progress = False
        for task, peer in self._peers.items():
            if peer.has_work:
                progress |= self._flush(task)
        frame = self.link.get(0.0 if progress else wait_s)
        if frame is not None:
            self._take(*frame)
            progress = True
        if not progress or time.monotonic() - self._checked_s > SLICE_S:
            self._check_connections()
        return progress

    def _check_connections(self) -> None:
        """Check connections; send unacknowledged frames again on new ones."""
        self._checked_s = time.monotonic()
        self._take_answers()
        self._gone = self.link.gone()
        for task in self.link.broke():
            peer = self._peers[task]
            peer.stream.go_back()
            peer.must_tell = peer.asks = True
        self.counters.n_mended = self.link.n_mended

    def _remind(self, absent: Sequence[int]) -> None:
        """Send acknowledgements to absent or unacknowledging peers, so that lost frames show."""
        now = time.monotonic()
        for task, peer in self._peers.items():
            if not peer.is_welcome or not (peer.stream.kept or task in absent):
                continue
            if now - peer.told_s >= peer.pause_s:
                peer.told_s, peer.pause_s = now, min(2 * peer.pause_s, PAUSE_S)
                peer.must_tell = peer.asks = True
                self._flush(task)

    # sending

    def _say(self, task: int, meta: Meta, step: int = 0) -> None:
        """Send a short message, which needs no credit and goes before blocks."""
        self._peers[task].urgent.append(UnnumberedMessage(WireMessage(meta, step=step)))
        self._flush(task)

    def _next(self, peer: Peer) -> UnnumberedMessage | None:
        if peer.urgent:
            return peer.urgent.popleft()
        if peer.queue and peer.sent + peer.queue[0].n_bytes <= peer.credit:
            out = peer.queue.popleft()
            peer.sent += out.n_bytes
            return out
        return None

    def _flush(self, task: int) -> bool:
        """Give the link all that it takes: acknowledgements, frames to be sent again, new ones."""
        peer = self._peers[task]
        stream = peer.stream
        progress = False
        while True:
            if peer.has_word and not self._tell(task, peer):
                return progress
            frame = stream.next()
            if frame is None:
                out = self._next(peer)
                if out is None:
                    return progress
                frame = self._number(peer, out)
            is_gone = self.link.put(task, frame.parts)
            if is_gone is None:
                return progress
            stream.put(frame, None if is_gone is always else is_gone)
            progress = True
            if frame.n_puts > 1:
                self.counters.n_resent += 1
                continue
            fresh, peer.fresh = peer.fresh, None
            assert fresh is not None
            self.counters.n_sent += 1
            self.counters.sent_bytes += fresh.n_bytes
            if fresh.outlet is not None:
                fresh.outlet.n_unsent[fresh.at] -= 1

    def _number(self, peer: Peer, out: UnnumberedMessage) -> NumberedFrame:
        """Make a frame; it keeps its number and its bytes, however often it is sent."""
        stream, m = peer.stream, out.message
        parts = encode(
            WireMessage(
                m.meta, m.arrays, self.task, self.identity.attempt, stream.n_out + 1, m.step,
                m.part, BODY_SUM if self.link.needs_sum else 0,
            ),
            out.body_sum,
            stream.n_in,
        )  # fmt: skip
        if out.outlet is None:  # its sender may write its arrays again
            parts = [bytes(part) for part in parts]
        stream.n_told = stream.n_in
        frame = stream.add(parts)
        if out.outlet is not None:
            out.outlet.frames[out.at].append(frame)
        peer.fresh = out
        return frame

    def _tell(self, task: int, peer: Peer) -> bool:
        """Acknowledge frames and used bytes; False if the link takes nothing now."""
        stream = peer.stream
        peer.granted = peer.used
        word = Acknowledgement(
            used=peer.used, seq=stream.n_in, sent=stream.n_put, again=stream.asks_again,
            ask=peer.asks,
        )  # fmt: skip
        message = WireMessage(word, (), self.task, self.identity.attempt)
        if self.link.put(task, encode(message)) is None:
            return False
        peer.must_tell = peer.asks = stream.asks_again = False
        stream.n_told = stream.n_in
        return True

    def _use(self, src: int, n_bytes: int) -> None:
        """Count used bytes of a peer, and grant them again."""
        peer = self._peers[src]
        peer.used += n_bytes
        if peer.used - peer.granted >= GRANT_BYTES:
            peer.must_tell = True
            self._flush(src)

    # taking

    def _take(self, sender: bytes, parts: Sequence[Buffer]) -> None:
        src = self._by_incarnation.get(sender[:INCARNATION_BYTES])
        if src is None:
            self._accept(sender, parts)
            return
        peer = self._peers[src]
        stream = peer.stream
        try:
            message = decode(parts, self._expected[src])
        except BadFrame as error:
            if isinstance(error, (DamagedFrame, HandshakeRefused)):  # on its way: it comes again
                now = time.monotonic()
                self.counters.n_damaged += 1
                peer.n_damaged += 1
                if peer.n_damaged == 1:
                    peer.damaged_s = now
                if peer.n_damaged < MOST_DAMAGED or now - peer.damaged_s < DAMAGED_S:
                    return
            where = f"frame {stream.n_in + 1} from {peer.name}: {error.where}"
            raise BadFrame(where, error.got, error.expected) from error
        meta = message.meta
        if isinstance(meta, Acknowledgement):
            self._heed(src, peer, meta)
            return
        if meta.ack > stream.n_known:
            stream.known(meta.ack)
        if not stream.admit(message.seq):
            self.counters.n_repeated += 1
            peer.must_tell |= stream.asks_again
            return
        peer.n_damaged = 0
        peer.pause_s = SLICE_S
        peer.must_tell |= stream.owes_word
        self.counters.n_received += 1
        self.counters.received_bytes += sum(a.nbytes for a in message.arrays)
        match meta:
            case Welcome():
                peer.is_welcome = True
            case Bye(reason=reason):
                peer.left = f"it left: {reason}"
                peer.must_tell = True
                self._flush(src)
            case Refusal() as refusal:
                raise refused(peer.name, refusal)
            case Hello():
                raise BadFrame(f"frame from {peer.name}", "a second hello", "one")
            case _:
                self._act(peer, message)

    def _heed(self, src: int, peer: Peer, word: Acknowledgement) -> None:
        """Process a peer's acknowledgement, for both directions. It may be an old one."""
        if word.used > peer.sent:
            raise BadFrame(f"credit of {peer.name}", word.used, f"at most {peer.sent}")
        peer.credit = max(peer.credit, CREDIT_BYTES + word.used)
        peer.must_tell |= peer.stream.heed(word.seq, word.sent, word.again) or word.ask
        self._flush(src)

    # strangers

    def _is_free(self, task: int) -> bool | None:
        return not self._peers[task].incarnation if task in self._peers else None

    def _checks(self, message: WireMessage, hello: Hello) -> list[Check]:
        return [
            ("attempt", message.attempt, self.identity.attempt),
            ("features", hello.features & MENDS, MENDS),
        ]

    def _accept(self, sender: bytes, parts: Sequence[Buffer]) -> None:
        """Take the first frame of a stranger: the handshake."""
        found = self._handshake.accept(sender, parts, self.link.needs_sum, self.link.answer)
        if found is None:
            return
        hello = found[1]
        peer = self._peers[hello.task]
        peer.incarnation = sender[:INCARNATION_BYTES]
        peer.stream.admit(1)
        self._by_incarnation[peer.incarnation] = hello.task
        self._expected[hello.task] = Expected(
            hello.task, self.identity.attempt, self.link.needs_sum
        )
        self._say(hello.task, Welcome(minor=min(MINOR, hello.max_minor)))

    def _take_answers(self) -> None:
        """Take refusals from endpoints that were given to ``connect``."""
        for task, parts in self.link.answers():
            peer = self._peers[task]
            try:
                message = decode(parts, Expected(needs_sum=self.link.needs_sum))
            except BadFrame as error:
                where = f"answer of {peer.name}: {error.where}"
                raise HandshakeRefused(where, error.got, error.expected) from error
            if isinstance(message.meta, Refusal) and peer.is_welcome:
                # It knew this task, so another process has come in its place.
                peer.left = peer.left or f"another process is at its address: {message.meta.where}"
            elif isinstance(message.meta, Refusal):
                raise refused(peer.name, message.meta)
