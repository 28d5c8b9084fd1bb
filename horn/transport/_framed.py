"""A transport made of frames over any link that keeps the order of each peer's frames.

The link moves lists of buffers and knows who is gone; this file is the protocol: hello and welcome,
chunks under credit, blocks filed by part, barriers, what is sent again, and the sentence when
something is missing. ``inproc`` and ZeroMQ are links; faults are put into the former, so what
is proved there holds for both. Source: docs/notes/0020 and 0063.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from horn.errors import BarrierTimeout
from horn.runtime.messages import (
    BODY_BYTES,
    BODY_CRC,
    MENDS,
    MINOR,
    Array,
    Arrived,
    BadFrame,
    Block,
    Buffer,
    Bye,
    Credit,
    Damaged,
    Expected,
    Hello,
    Message,
    Meta,
    Plan,
    Refusal,
    Refused,
    Welcome,
    crc_of,
    decode,
    encode,
)
from horn.transport import Channel, PeerLost, Place, Transport, checked, digest
from horn.transport._door import INCARNATION_BYTES, Door, refused
from horn.transport._slots import AHEAD, Inlet, Outlet, chunks
from horn.transport._stream import Frame, Stream

logger = logging.getLogger(__name__)

# What may be under way to one peer before it says that it has used some: two chunks more than the
# receiver waits before it says so, so that a stream of chunks never stops for want of a word.
CREDIT_BYTES = 16 * 1024 * 1024
GRANT_BYTES = 4 * 1024 * 1024
SLICE_S = 0.05  # how often a waiting task looks for the dead
UNFIT_S = 0.5  # how long a peer that does not fit may still turn out to be somebody else
LINGER_S = 2.0  # for what is still owed when a task leaves
ACK_LINGER_S = 0.5  # ... and for the peers' word that they have all, where nothing is known to fail
PAUSE_S = 2.0  # between words to a peer that is waited for, at most
DOUBT_S = 2.0  # of waiting, until it is asked whether the peer's process lives
MOST_DAMAGED = 8  # frames of a peer in a row


class Link(Protocol):
    """Moves frames; ``sender`` is what the other end calls itself, its incarnation first."""

    needs_crc: bool

    def connect(self, peers: Sequence[str], incarnation: bytes) -> None:
        """Start connecting to every endpoint but this task's own; does not wait."""

    def put(self, to: int, parts: Sequence[Buffer]) -> Callable[[], bool] | None:
        """Send now, or None if the way to ``to`` is full. The result says: buffers are free."""

    def get(self, wait_s: float) -> tuple[bytes, Sequence[Buffer]] | None:
        """The next frame, or None after ``wait_s`` or when a full way may have room again."""

    def answer(self, sender: bytes, parts: Sequence[Buffer]) -> None:
        """To somebody who may be no peer, if it can be done at once."""

    def answers(self) -> list[tuple[int, Sequence[Buffer]]]:
        """What peers have answered so."""

    def gone(self) -> dict[int, str]:
        """See what has become of connections: peers that are lost, and how."""

    def broke(self) -> set[int]:
        """Peers whose connection broke since this was asked last, and is made anew: the next frame
        to one of them is the first on another connection.
        """

    def doubt(self, task: int) -> None:
        """Find out whether the peer's process is still there, if that is not known."""

    def close(self, linger_s: float) -> None:
        """Give everything back; what is not sent after ``linger_s`` is dropped."""


@dataclass(slots=True)
class _Outgoing:
    """A message that has no number yet; buffer ``at`` of ``slot`` is what it is sent from."""

    message: Message
    n_bytes: int = 0
    slot: Outlet | None = None
    at: int = 0
    crc: int | None = None  # of the body, once for all receivers


@dataclass
class _Peer:
    """One other task: what went to it, what came from it."""

    name: str
    stream: Stream
    incarnation: bytes = b""
    is_welcome: bool = False  # it has welcomed this task
    urgent: deque[_Outgoing] = field(default_factory=deque)
    queue: deque[_Outgoing] = field(default_factory=deque)
    fresh: _Outgoing | None = None  # what the last frame was made of, until the link has taken it
    must_tell: bool = False  # how far its frames have come
    asks: bool = False  # ... and wants to hear the same
    pause_s: float = SLICE_S  # until the next word, if it is waited for
    told_s: float = 0.0
    credit: int = CREDIT_BYTES  # body bytes it lets this task have sent in all
    sent: int = 0
    used: int = 0  # body bytes from it that were used here ...
    granted: int = 0  # ... and that it was told of
    n_damaged: int = 0  # frames in a row
    barriers: deque[int] = field(default_factory=deque)
    digest: bytes = b""
    left: str | None = None

    @property
    def has_work(self) -> bool:
        """Something is to be given to the link."""
        stream = self.stream
        return bool(stream.n_put < stream.n_out or self.urgent or self.queue or self.must_tell)


def always() -> bool:
    """The answer of a link that has copied what it was given."""
    return True


class FramedTransport(Transport):
    """The protocol over a link, which a subclass makes in ``__init__``."""

    link: Link

    def __init__(self, url: str, place: Place, incarnation: bytes) -> None:
        super().__init__(url, place)
        self.incarnation = incarnation
        self._peers = {
            task: _Peer(f"task {task}", Stream(f"frames of task {task}, epoch {place.epoch}"))
            for task in range(place.n_tasks)
            if task != place.task
        }
        self._by_incarnation: dict[bytes, int] = {}
        self._door = Door(place, self.counters, self._is_free)
        self._channels: dict[int, Channel] = {}
        self._outlets: dict[int, Outlet] = {}
        self._inlets: dict[int, Inlet] = {}
        self._expected: dict[int, Expected] = {}
        self._loose: deque[Message] = deque()
        self._max_body = BODY_BYTES
        self._is_closed = False
        self._gone: dict[int, str] = {}
        self._looked_s = 0.0
        self._steps: dict[tuple[int, ...], tuple[list[Outlet], list[Inlet]]] = {}

    # meeting

    def connect(self, peers: Sequence[str], timeout_s: float) -> None:
        if len(peers) != self.n_tasks:
            raise Refused("endpoints", len(peers), f"{self.n_tasks}, one per task")
        self.link.connect(peers, self.incarnation)
        hello = Hello(
            task=self.task,
            n_tasks=self.n_tasks,
            job=self.place.job,
            incarnation=self.incarnation,
            features=MENDS,
        )
        for task in self._peers:
            self._say(task, hello)
        self._until(
            lambda: [t for t, p in self._peers.items() if not (p.incarnation and p.is_welcome)],
            timeout_s,
            "connecting",
            lambda task: "a hello" if not self._peers[task].incarnation else "a welcome",
        )

    def plan(self, channels: Sequence[Channel], timeout_s: float) -> None:
        by_part = checked(channels, self.n_tasks)
        mine = digest(channels)
        self._steps.clear()
        self._channels = by_part
        mine_out = {p: c for p, c in by_part.items() if c.src == self.task}
        self._outlets = {part: Outlet(channel) for part, channel in mine_out.items()}
        mine_in = {p: c for p, c in by_part.items() if self.task in c.dsts}
        self._inlets = {part: Inlet(channel) for part, channel in mine_in.items()}
        for task in self._peers:
            self._say(task, Plan(digest=mine))
        self._until(
            lambda: [t for t, p in self._peers.items() if not p.digest],
            timeout_s,
            "agreeing on the plan",
            lambda task: "its plan",
        )
        for peer in self._peers.values():
            theirs, peer.digest = peer.digest, b""
            if theirs != mine:
                raise Refused(f"plan of {peer.name}", theirs.hex()[:12], mine.hex()[:12])

    # blocks

    def outbox(self, part: int, timeout_s: float) -> Array:
        slot = self._outlets.get(part)
        if slot is None:
            raise self._unknown(part)
        at = (slot.n_uses + 1) & 1
        if slot.n_unsent[at]:
            self._until(
                lambda: list(slot.channel.dsts) if slot.n_unsent[at] else [],
                timeout_s,
                f"writing {slot.channel}",
                lambda task: "room for it",
            )
        return slot.open()

    def post(self, superstep: int, parts: Sequence[int]) -> None:
        sending, receiving = self._step(parts)
        for inlet in receiving:
            inlet.release()
        for slot in sending:
            channel = slot.channel
            if not slot.is_open:
                raise BadFrame(f"superstep {superstep}: {channel}", "no outbox", "a new block")
            slot.is_open = False
            slot.n_uses += 1
            at = slot.n_uses & 1
            for meta, array in chunks(slot.buffers[at]):
                message = Message(meta, (array,), step=superstep, part=channel.part)
                crc = None
                if len(channel.dsts) > 1 and self.link.needs_crc and array.nbytes:
                    crc = crc_of([array.reshape(-1).view(np.uint8).data])
                for task in channel.dsts:
                    slot.n_unsent[at] += 1
                    self._peers[task].queue.append(_Outgoing(message, array.nbytes, slot, at, crc))
        for slot in sending:
            for task in slot.channel.dsts:
                self._flush(task)

    def collect(self, superstep: int, parts: Sequence[int], timeout_s: float) -> None:
        sending, receiving = self._step(parts)

        # Who leaves while the others still lack a block of this superstep would be waited for in
        # vain, since it sends only while it is in here.
        def missing() -> list[int]:
            late = {s.channel.src for s in receiving if not s.arrived}
            slow = {
                task
                for s in sending
                for task in s.channel.dsts
                if self._peers[task].stream.is_repeating
                or (s.n_unsent[s.n_uses & 1] and self._holds(task))
            }
            return sorted(late | slow)

        def owes(task: int) -> str:
            owed = [str(s.channel) for s in receiving if s.channel.src == task and not s.arrived]
            return ", ".join(owed) or "room for what is sent to it"

        if missing():
            self._until(missing, timeout_s, f"superstep {superstep}, exchange", owes)
        for slot in receiving:
            step, array, held = slot.arrived.popleft()
            if held:
                self._use(slot.channel.src, held)
            if step != superstep:
                where = f"{slot.channel} from task {slot.channel.src}"
                raise BadFrame(where, f"superstep {step}", f"superstep {superstep}")
            slot.current = array

    def inbox(self, part: int) -> Array:
        slot = self._inlets.get(part)
        if slot is None and part not in self._channels:
            raise self._unknown(part)
        if slot is None or slot.current is None:
            raise BadFrame(f"inbox of {self._channels[part]}", "nothing", "a collected block")
        return slot.current

    def barrier(self, superstep: int, timeout_s: float) -> None:
        for task in self._peers:
            self._say(task, Arrived(), step=superstep)

        # Who leaves before the link has taken its arrival would be waited for in vain.
        def missing() -> list[int]:
            peers = self._peers.items()
            return [
                t
                for t, p in peers
                if not p.barriers or p.urgent or p.fresh or p.stream.is_repeating
            ]

        if missing():
            self._until(
                missing,
                timeout_s,
                f"superstep {superstep}, barrier",
                lambda task: "its arrival",
            )
        for peer in self._peers.values():
            step = peer.barriers.popleft()
            if step != superstep:
                where = f"barrier with {peer.name}"
                raise BadFrame(where, f"superstep {step}", f"superstep {superstep}")

    def _unknown(self, part: int) -> BadFrame:
        return BadFrame("part", part, f"one of the {len(self._channels)} of the plan")

    def _step(self, parts: Sequence[int]) -> tuple[list[Outlet], list[Inlet]]:
        key = tuple(parts)
        found = self._steps.get(key)
        if found is None:
            for part in key:
                if part not in self._channels:
                    raise self._unknown(part)
            found = self._steps[key] = (
                [self._outlets[part] for part in key if part in self._outlets],
                [self._inlets[part] for part in key if part in self._inlets],
            )
        return found

    # messages outside the plan

    def send(
        self, to: int, meta: Meta, arrays: Sequence[Array], timeout_s: float, wait: bool = True
    ) -> None:
        if to not in self._peers:
            raise BadFrame("receiver", f"task {to}", f"another task below {self.n_tasks}")
        peer = self._peers[to]
        peer.queue.append(_Outgoing(Message(meta, tuple(arrays)), sum(a.nbytes for a in arrays)))
        self._flush(to)
        if not wait:
            return
        self._until(
            lambda: [to] if peer.queue or peer.fresh else [],
            timeout_s,
            f"sending {type(meta).__name__} to {peer.name}",
            lambda task: "room for it",
        )

    def receive(self, timeout_s: float) -> Message | None:
        ends = time.monotonic() + timeout_s
        while not self._loose:
            left_s = ends - time.monotonic()
            if not self._turn(max(min(left_s, SLICE_S), 0.0)):
                self._remind([])
            if not self._loose and left_s <= 0:
                return None
        message = self._loose.popleft()
        self._use(message.src, sum(a.nbytes for a in message.arrays))
        return message

    def absent(self) -> dict[int, str]:
        """Who has left or gone, and why. For those who only receive: other waits say it."""
        for task in self._peers:
            self.link.doubt(task)
        self._look()
        left = {task: peer.left for task, peer in self._peers.items() if peer.left is not None}
        return self._gone | left

    def close(self, reason: str = "finished") -> None:
        if self._is_closed:
            return
        self._is_closed = True
        linger_s = LINGER_S if reason == "finished" else 0.2
        bye = Message(Bye(reason=reason[:4000]))
        for peer in self._peers.values():
            if peer.incarnation and peer.left is None:
                peer.queue.append(_Outgoing(bye))  # after all that is owed
        now = began = time.monotonic()
        try:
            while now < began + linger_s and self._owes(now < began + ACK_LINGER_S):
                if not self._turn(0.01):
                    self._remind([])
                now = time.monotonic()
        except BadFrame as error:  # too late for anybody to act on it
            logger.warning("bad frame while leaving task=%d error=%s", self.task, error)
        finally:
            self.link.close(linger_s)

    def _owes(self, until_known: bool) -> bool:
        """Whether somebody has not got all, or not been given it."""
        return any(
            (peer.has_work or (until_known and peer.incarnation and peer.stream.kept))
            and peer.left is None
            and task not in self._gone
            for task, peer in self._peers.items()
        )

    # waiting

    def _until(
        self,
        missing: Callable[[], list[int]],
        timeout_s: float,
        where: str,
        owes: Callable[[int], str],
    ) -> None:
        """Take frames until ``missing`` names no task."""
        began = time.monotonic()
        slice_s = min(SLICE_S, timeout_s)
        suspect = -1
        try:
            while absent := missing():
                progress = self._turn(slice_s)
                now = time.monotonic()
                left_s = began + timeout_s - now
                if progress:
                    if left_s <= -SLICE_S and (absent := missing()):  # busy, but not with this
                        raise self._overdue(where, absent, owes, timeout_s)
                    continue
                self._remind(absent)
                for task in absent:
                    if now - began > DOUBT_S:
                        self.link.doubt(task)
                    peer = self._peers[task]
                    how = peer.left or self._gone.get(task)
                    unfit = self._door.unfit.get(task)
                    # The real one may still come, but not after its connection has gone.
                    if unfit and (how or left_s <= 0 or now - unfit[0] > UNFIT_S):
                        raise unfit[1]
                    # Its frames and the end of its connection come by two ways: one more look.
                    if how is not None and (suspect == task or peer.left):
                        raise PeerLost(where, (peer.name,), f"{how}; it owes {owes(task)}")
                    if how is not None:
                        suspect = task
                if left_s <= 0:
                    raise self._overdue(where, absent, owes, timeout_s)
                slice_s = max(min(SLICE_S, left_s), 0.0)
        finally:
            self.counters.wait_s += time.monotonic() - began

    def _overdue(
        self, where: str, absent: list[int], owes: Callable[[int], str], timeout_s: float
    ) -> BarrierTimeout:
        arrived = tuple(f"task {t}" for t in range(self.n_tasks) if t not in absent)
        hint = "; ".join(f"task {task} owes {owes(task)}" for task in absent)
        return BarrierTimeout(where, tuple(f"task {t}" for t in absent), arrived, timeout_s, hint)

    def _turn(self, wait_s: float) -> bool:
        """Send what can be sent, take what has come; wait for a frame if there is nothing."""
        progress = False
        for task, peer in self._peers.items():
            if peer.has_work:
                progress |= self._flush(task)
        frame = self.link.get(0.0 if progress else wait_s)
        if frame is not None:
            self._take(*frame)
            progress = True
        if not progress or time.monotonic() - self._looked_s > SLICE_S:
            self._look()
        return progress

    def _look(self) -> None:
        """See what has become of connections, and start anew on those that are new."""
        self._looked_s = time.monotonic()
        self._take_answers()
        self._gone = self.link.gone()
        for task in self.link.broke():
            peer = self._peers[task]
            logger.warning("connection broke task=%d peer=%d", self.task, task)
            self.counters.n_mended += 1
            peer.stream.go_back()
            peer.must_tell = peer.asks = peer.is_welcome

    def _remind(self, absent: Sequence[int]) -> None:
        """Tell those who are waited for, or may lack something, how far their frames have come.
        What got lost then shows at one end or the other.
        """
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
        """A short message that needs no credit and goes before blocks."""
        self._peers[task].urgent.append(_Outgoing(Message(meta, step=step)))
        self._flush(task)

    def _holds(self, task: int) -> bool:
        """Whether something to this task has not been given to the link."""
        peer = self._peers[task]
        return bool(peer.fresh or peer.urgent or peer.queue)

    def _next(self, peer: _Peer) -> _Outgoing | None:
        if peer.urgent:
            return peer.urgent.popleft()
        if peer.queue and peer.sent + peer.queue[0].n_bytes <= peer.credit:
            out = peer.queue.popleft()
            peer.sent += out.n_bytes
            return out
        return None

    def _flush(self, task: int) -> bool:
        """Give the link what it takes: a word on the peer's frames, what is to be sent again, and
        then what is new.
        """
        peer = self._peers[task]
        stream = peer.stream
        progress = False
        while True:
            if peer.must_tell and not self._tell(task, peer):
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
                self.counters.n_again += 1
                continue
            fresh, peer.fresh = peer.fresh, None
            assert fresh is not None
            self.counters.n_sent += 1
            self.counters.sent_bytes += fresh.n_bytes
            if fresh.slot is not None:
                fresh.slot.n_unsent[fresh.at] -= 1

    def _number(self, peer: _Peer, out: _Outgoing) -> Frame:
        """Make a frame; it keeps its number and its bytes, however often it is sent."""
        stream, m = peer.stream, out.message
        parts = encode(
            Message(
                m.meta, m.arrays, self.task, self.place.epoch, stream.n_out + 1, m.step, m.part,
                BODY_CRC if self.link.needs_crc else 0,
            ),
            out.crc,
            stream.n_in,
        )  # fmt: skip
        if out.slot is None:  # its sender may write its arrays again
            parts = [bytes(part) for part in parts]
        stream.n_told = stream.n_in
        frame = stream.add(parts)
        if out.slot is not None:
            out.slot.frames[out.at].append(frame)
        peer.fresh = out
        return frame

    def _tell(self, task: int, peer: _Peer) -> bool:
        """How far the peer's frames have come, and what was used of them; False: not now."""
        stream = peer.stream
        peer.granted = peer.used
        word = Credit(
            used=peer.used, seq=stream.n_in, sent=stream.n_put, again=stream.has_gap,
            ask=peer.asks,
        )  # fmt: skip
        if self.link.put(task, encode(Message(word, (), self.task, self.place.epoch))) is None:
            return False
        peer.must_tell = peer.asks = False
        stream.n_told = stream.n_in
        return True

    def _use(self, src: int, n_bytes: int) -> None:
        """Bytes of a peer have been used: tell it now and then."""
        peer = self._peers[src]
        peer.used += n_bytes
        if peer.used - peer.granted >= GRANT_BYTES:
            peer.must_tell = True
            self._flush(src)

    # taking

    def _take(self, sender: bytes, parts: Sequence[Buffer]) -> None:
        src = self._by_incarnation.get(sender[:INCARNATION_BYTES])
        if src is None:
            self._meet(sender, parts)
            return
        peer = self._peers[src]
        stream = peer.stream
        try:
            message = decode(parts, self._expected[src])
        except BadFrame as error:
            self.counters.n_damaged += 1
            peer.n_damaged += 1
            # What the way here did to a frame is mended by the next one, or by a word.
            if isinstance(error, (Damaged, Refused)) and peer.n_damaged < MOST_DAMAGED:
                return
            where = f"frame {stream.n_in + 1} from {peer.name}: {error.where}"
            raise BadFrame(where, error.got, error.expected) from error
        meta = message.meta
        if isinstance(meta, Credit):
            self._heed(src, peer, meta)
            return
        if meta.ack > stream.n_known:
            stream.known(meta.ack)
        if not stream.admit(message.seq):
            self.counters.n_had += 1
            peer.must_tell |= stream.is_missing(message.seq)
            return
        peer.n_damaged = 0
        peer.pause_s = SLICE_S
        peer.must_tell |= stream.owes_word
        self.counters.n_received += 1
        self.counters.received_bytes += sum(a.nbytes for a in message.arrays)
        match meta:
            case Block():
                self._file(message, meta)
            case Arrived():
                peer.barriers.append(message.step)
                if len(peer.barriers) > AHEAD:
                    raise BadFrame(f"barrier with {peer.name}", "a third arrival", "two at most")
            case Welcome(max_body=max_body):
                peer.is_welcome = True
                self._expect(src, max_body)
            case Plan(digest=theirs):
                peer.digest = theirs
            case Bye(reason=reason):
                peer.left = f"it left: {reason}"
                peer.must_tell = True
                self._flush(src)
            case Refusal() as refusal:
                raise refused(peer.name, refusal)
            case Hello():
                raise BadFrame(f"frame from {peer.name}", "a second hello", "one")
            case _:
                self._loose.append(message)

    def _heed(self, src: int, peer: _Peer, word: Credit) -> None:
        """A peer's word on how far frames have come, in both directions. It may be an old one."""
        if word.used > peer.sent:
            raise BadFrame(f"credit of {peer.name}", word.used, f"at most {peer.sent}")
        peer.credit = max(peer.credit, CREDIT_BYTES + word.used)
        peer.must_tell |= peer.stream.heed(word.seq, word.sent, word.again) or word.ask
        self._flush(src)

    def _file(self, message: Message, meta: Block) -> None:
        """Put a block where ``collect`` finds it."""
        channel = self._channels.get(message.part)
        where = f"block from task {message.src}, superstep {message.step}"
        if channel is None:
            raise BadFrame(where, f"part {message.part}", "a part of the plan")
        slot = self._inlets.get(message.part)
        if message.src != channel.src or slot is None or len(message.arrays) != 1:
            got = f"{len(message.arrays)} arrays for part {message.part}"
            raise BadFrame(where, got, f"one from task {channel.src} to {channel.dsts}")
        self._use(message.src, slot.file(message, meta, where))

    # strangers

    def _is_free(self, task: int) -> bool | None:
        return not self._peers[task].incarnation if task in self._peers else None

    def _meet(self, sender: bytes, parts: Sequence[Buffer]) -> None:
        """A frame of somebody unknown: if it belongs here, it is welcome."""
        hello = self._door.meet(sender, parts, self.link.needs_crc, self.link.answer)
        if hello is None:
            return
        peer = self._peers[hello.task]
        peer.incarnation = sender[:INCARNATION_BYTES]
        peer.stream.admit(1)
        self._by_incarnation[peer.incarnation] = hello.task
        self._expect(hello.task, hello.max_body)
        self._say(hello.task, Welcome(minor=min(MINOR, hello.max_minor)))

    def _expect(self, task: int, max_body: int) -> None:
        self._max_body = min(self._max_body, max_body)
        self._expected[task] = Expected(task, self.place.epoch, self._max_body, self.link.needs_crc)

    def _take_answers(self) -> None:
        """Refusals from endpoints that were given to ``connect``."""
        for task, parts in self.link.answers():
            peer = self._peers[task]
            try:
                message = decode(parts, Expected(needs_crc=self.link.needs_crc))
            except BadFrame as error:
                where = f"answer of {peer.name}: {error.where}"
                raise Refused(where, error.got, error.expected) from error
            if isinstance(message.meta, Refusal) and peer.is_welcome:
                # It knew this task, so another process has come in its place.
                peer.left = peer.left or f"another process is at its address: {message.meta.where}"
            elif isinstance(message.meta, Refusal):
                raise refused(peer.name, message.meta)
