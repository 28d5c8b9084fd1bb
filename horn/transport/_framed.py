"""A transport made of frames over any link that keeps the order of each peer's frames.

The link moves lists of buffers and knows who is gone; this file is the protocol: hello and welcome,
sequence numbers, chunks under credit, blocks filed by part, barriers, and the sentence when
something is missing. ``inproc`` and ZeroMQ are links; faults are put into the former, so what
is proved there holds for both.
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
from horn.runtime import messages
from horn.runtime.messages import (
    BODY_BYTES,
    BODY_CRC,
    CHUNK_BYTES,
    Array,
    Arrived,
    BadFrame,
    Block,
    Buffer,
    Bye,
    Credit,
    Expected,
    Hello,
    Message,
    Meta,
    OutOfSequence,
    Plan,
    Refusal,
    Refused,
    Welcome,
    Window,
    crc_of,
    decode,
    encode,
)
from horn.transport import Channel, PeerLost, Place, Transport, checked, digest

logger = logging.getLogger(__name__)

# What may be under way to one peer before it says that it has used some: two chunks more than the
# receiver waits before it says so, so that a stream of chunks never stops for want of a word.
CREDIT_BYTES = 16 * 1024 * 1024
GRANT_BYTES = 4 * 1024 * 1024
AHEAD = 2  # blocks of a channel that may wait here; the bytes of more are not granted again
SLICE_S = 0.05  # how often a waiting task looks for the dead
UNFIT_S = 0.5  # how long a peer that does not fit may still turn out to be somebody else
LINGER_S = 2.0  # for what is still owed when a task leaves
STRIKES = 3


class Link(Protocol):
    """Moves frames; ``sender`` is what the other end calls itself: its incarnation."""

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
        """Peers whose connection broke, and how."""

    def close(self, linger_s: float) -> None:
        """Give everything back; what is not sent after ``linger_s`` is dropped."""


@dataclass
class _Outgoing:
    """A message on its way; ``slot.buffers[at]`` is busy until it has gone."""

    message: Message
    n_bytes: int = 0
    slot: _Slot | None = None
    at: int = 0
    crc: int | None = None  # of the body, once for all receivers


@dataclass
class _Peer:
    """One other task: what went to it, what came from it."""

    name: str
    window: Window
    incarnation: bytes = b""
    is_welcome: bool = False  # it has welcomed this task
    n_out: int = 0  # sequence number of the last frame to it
    urgent: deque[_Outgoing] = field(default_factory=deque)
    queue: deque[_Outgoing] = field(default_factory=deque)
    stuck: tuple[_Outgoing, list[Buffer]] | None = None  # numbered, but the link is full
    credit: int = CREDIT_BYTES  # body bytes it lets this task have sent in all
    sent: int = 0
    used: int = 0  # body bytes from it that were used here ...
    granted: int = 0  # ... and that it was told of
    barriers: deque[int] = field(default_factory=deque)
    digest: bytes = b""
    left: str | None = None


@dataclass
class _Slot:
    """One channel at one end: two buffers to send from, or the blocks that came."""

    channel: Channel
    buffers: list[Array] = field(default_factory=list)
    n_uses: int = 0
    is_open: bool = False  # the outbox was asked for
    n_unsent: list[int] = field(default_factory=lambda: [0, 0])
    busy: list[list[Callable[[], bool]]] = field(default_factory=lambda: [[], []])
    arrived: deque[tuple[int, Array, int]] = field(default_factory=deque)
    partial: Array | None = None
    filled: int = 0
    current: Array | None = None
    spare: list[Array] = field(default_factory=list)

    def is_free(self, at: int) -> bool:
        """Nothing of this buffer is still to be sent."""
        self.busy[at] = [is_free for is_free in self.busy[at] if not is_free()]
        return not self.n_unsent[at] and not self.busy[at]


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
            task: _Peer(f"task {task}", Window(f"frames of task {task}, epoch {place.epoch}"))
            for task in range(place.n_tasks)
            if task != place.task
        }
        self._by_incarnation: dict[bytes, int] = {}
        self._strikes: dict[bytes, int] = {}
        self._unfit: dict[int, tuple[float, Refused]] = {}  # hellos of peers that were refused
        self._slots: dict[int, _Slot] = {}
        self._expected: dict[int, Expected] = {}
        self._loose: deque[Message] = deque()
        self._backlog: deque[tuple[bytes, Sequence[Buffer]]] = deque()
        self._max_body = BODY_BYTES
        self._is_closed = False
        self._steps: dict[tuple[int, ...], tuple[list[_Slot], list[_Slot]]] = {}

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
        self._slots = {}
        for part, channel in by_part.items():
            slot = self._slots[part] = _Slot(channel)
            if channel.src == self.task:
                slot.buffers = [np.zeros(channel.shape, channel.dtype) for _ in range(2)]
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
        slot = self._slot(part)
        at = (slot.n_uses + 1) & 1
        if not slot.is_free(at):
            self._until(
                lambda: [] if slot.is_free(at) else list(slot.channel.dsts),
                timeout_s,
                f"writing {slot.channel}",
                lambda task: "room for it",
            )
        slot.is_open = True
        return slot.buffers[at]

    def post(self, superstep: int, parts: Sequence[int]) -> None:
        sending, receiving = self._step(parts)
        for slot in receiving:
            if slot.current is not None and slot.current.nbytes > CHUNK_BYTES:
                slot.spare.append(slot.current)  # it was put together here
            slot.current = None
        for slot in sending:
            channel = slot.channel
            if not slot.is_open:
                raise BadFrame(f"superstep {superstep}: {channel}", "no outbox", "a new block")
            slot.is_open = False
            slot.n_uses += 1
            at = slot.n_uses & 1
            for meta, array in _chunks(slot.buffers[at]):
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
            unsent = [s for s in sending if s.n_unsent[s.n_uses & 1]]
            slow = {task for s in unsent for task in s.channel.dsts if self._holds(task)}
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
        current = self._slot(part).current
        if current is None:
            raise BadFrame(f"inbox of {self._slot(part).channel}", "nothing", "a collected block")
        return current

    def barrier(self, superstep: int, timeout_s: float) -> None:
        for task in self._peers:
            self._say(task, Arrived(), step=superstep)

        # Who leaves before the link has taken its arrival would be waited for in vain.
        def missing() -> list[int]:
            peers = self._peers.items()
            return [t for t, p in peers if not p.barriers or p.urgent or p.stuck]

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

    def _slot(self, part: int) -> _Slot:
        if part not in self._slots:
            raise BadFrame("part", part, f"one of the {len(self._slots)} of the plan")
        return self._slots[part]

    def _step(self, parts: Sequence[int]) -> tuple[list[_Slot], list[_Slot]]:
        key = tuple(parts)
        found = self._steps.get(key)
        if found is None:
            slots = [self._slot(part) for part in key]
            found = self._steps[key] = (
                [s for s in slots if s.channel.src == self.task],
                [s for s in slots if self.task in s.channel.dsts],
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
            lambda: [to] if peer.queue or peer.stuck else [],
            timeout_s,
            f"sending {type(meta).__name__} to {peer.name}",
            lambda task: "room for it",
        )

    def receive(self, timeout_s: float) -> Message | None:
        ends = time.monotonic() + timeout_s
        while not self._loose:
            left_s = ends - time.monotonic()
            self._turn(max(min(left_s, SLICE_S), 0.0))
            if not self._loose and left_s <= 0:
                return None
        message = self._loose.popleft()
        self._use(message.src, sum(a.nbytes for a in message.arrays))
        return message

    def absent(self) -> dict[int, str]:
        """Who has left or gone, and why. For those who only receive: other waits say it."""
        found = dict(self.link.gone())
        found |= {task: peer.left for task, peer in self._peers.items() if peer.left is not None}
        return found

    def close(self, reason: str = "finished") -> None:
        if self._is_closed:
            return
        self._is_closed = True
        linger_s = LINGER_S if reason == "finished" else 0.2
        bye = Message(Bye(reason=reason[:4000]))
        for peer in self._peers.values():
            if peer.incarnation and peer.left is None:
                peer.queue.append(_Outgoing(bye))  # after all that is owed
        ends = time.monotonic() + linger_s
        try:
            while self._has_unsent() and time.monotonic() < ends:
                self._turn(0.01)
        except BadFrame as error:  # too late for anybody to act on it
            logger.warning("bad frame while leaving task=%d error=%s", self.task, error)
        finally:
            self.link.close(linger_s)

    def _has_unsent(self) -> bool:
        gone = self.link.gone()
        return any(
            (peer.queue or peer.urgent or peer.stuck) and peer.left is None and task not in gone
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
                left_s = began + timeout_s - time.monotonic()
                if progress:
                    if left_s <= -SLICE_S and (absent := missing()):  # busy, but not with this
                        raise self._overdue(where, absent, owes, timeout_s)
                    continue
                gone = self.link.gone()
                for task in absent:
                    peer = self._peers[task]
                    how = peer.left or gone.get(task)
                    unfit = self._unfit.get(task)
                    # The real one may still come, but not after its connection has gone.
                    if unfit and (how or left_s <= 0 or time.monotonic() - unfit[0] > UNFIT_S):
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
            if peer.stuck or peer.urgent or peer.queue:
                progress |= self._flush(task)
        frame = self._backlog.popleft() if self._backlog else None
        if frame is None:
            frame = self.link.get(0.0 if progress else wait_s)
        if frame is not None:
            self._take(*frame)
            return True
        if not progress:
            self._take_answers()
        return progress

    # sending

    def _say(self, task: int, meta: Meta, step: int = 0) -> None:
        """A short message that needs no credit and goes before blocks."""
        self._peers[task].urgent.append(_Outgoing(Message(meta, step=step)))
        self._flush(task)

    def _holds(self, task: int) -> bool:
        """Whether something to this task has not been given to the link."""
        peer = self._peers[task]
        return bool(peer.stuck or peer.urgent or peer.queue)

    def _next(self, peer: _Peer) -> _Outgoing | None:
        if peer.urgent:
            return peer.urgent.popleft()
        if peer.queue and peer.sent + peer.queue[0].n_bytes <= peer.credit:
            out = peer.queue.popleft()
            peer.sent += out.n_bytes
            return out
        return None

    def _flush(self, task: int) -> bool:
        """Give the link what it takes; a frame keeps the number it got with its first try."""
        peer = self._peers[task]
        progress = False
        while True:
            if peer.stuck is None:
                out = self._next(peer)
                if out is None:
                    return progress
                peer.n_out += 1
                m = out.message
                peer.stuck = (
                    out,
                    encode(
                        Message(
                            m.meta, m.arrays, self.task, self.place.epoch, peer.n_out, m.step,
                            m.part, BODY_CRC if self.link.needs_crc else 0,
                        ),
                        out.crc,
                    ),
                )  # fmt: skip
            out, parts = peer.stuck
            is_free = self.link.put(task, parts)
            if is_free is None:
                return progress
            peer.stuck = None
            progress = True
            self.counters.n_sent += 1
            self.counters.sent_bytes += out.n_bytes
            if out.slot is not None:
                out.slot.n_unsent[out.at] -= 1
                if is_free is not always:
                    out.slot.busy[out.at].append(is_free)

    def _use(self, src: int, n_bytes: int) -> None:
        """Bytes of a peer have been used: tell it now and then."""
        peer = self._peers[src]
        peer.used += n_bytes
        if peer.used - peer.granted >= GRANT_BYTES:
            peer.granted = peer.used
            self._say(src, Credit(used=peer.used, seq=peer.window.last))

    # taking

    def _take(self, sender: bytes, parts: Sequence[Buffer]) -> None:
        src = self._by_incarnation.get(sender)
        if src is None:
            self._meet(sender, parts)
            return
        peer = self._peers[src]
        try:
            message = decode(parts, self._expected[src])
        except BadFrame as error:
            where = f"frame {peer.window.last + 1} from {peer.name}: {error.where}"
            raise BadFrame(where, error.got, error.expected) from error
        if message.seq > peer.window.last + 1:
            raise self._out_of_turn(sender, peer, message.seq)
        peer.window.admit(message.seq)
        self.counters.n_received += 1
        self.counters.received_bytes += sum(a.nbytes for a in message.arrays)
        match message.meta:
            case Block():
                self._file(message, message.meta)
            case Arrived():
                peer.barriers.append(message.step)
                if len(peer.barriers) > AHEAD:
                    raise BadFrame(f"barrier with {peer.name}", "a third arrival", "two at most")
            case Credit(used=used):
                if not peer.credit - CREDIT_BYTES <= used <= peer.sent:
                    wanted = f"{peer.credit - CREDIT_BYTES} to {peer.sent}"
                    raise BadFrame(f"credit of {peer.name}", used, wanted)
                peer.credit = CREDIT_BYTES + used
            case Welcome(max_body=max_body):
                peer.is_welcome = True
                self._expect(src, max_body)
            case Plan(digest=theirs):
                peer.digest = theirs
            case Bye(reason=reason):
                peer.left = f"it left: {reason}"
            case Refusal() as refusal:
                raise _refused(peer.name, refusal)
            case Hello():
                raise BadFrame(f"frame from {peer.name}", "a second hello", "one")
            case _:
                self._loose.append(message)

    def _out_of_turn(self, sender: bytes, peer: _Peer, seq: int) -> OutOfSequence:
        """Lost, or only overtaken? What is missing may lie right behind."""
        wanted = peer.window.last + 1
        while len(self._backlog) < 64 and (frame := self.link.get(0.0)) is not None:
            self._backlog.append(frame)
        fault = "lost"
        for other, parts in self._backlog:
            if other == sender:
                try:
                    fault = "reordered" if decode(parts).seq == wanted else fault
                except BadFrame:
                    pass  # it has its own turn
        return OutOfSequence(fault, peer.window.where, f"frame {seq}", f"frame {wanted}")

    def _file(self, message: Message, meta: Block) -> None:
        """Put a block where ``collect`` finds it."""
        slot = self._slots.get(message.part)
        where = f"block from task {message.src}, superstep {message.step}"
        if slot is None:
            raise BadFrame(where, f"part {message.part}", "a part of the plan")
        channel = slot.channel
        if message.src != channel.src or self.task not in channel.dsts or len(message.arrays) != 1:
            got = f"{len(message.arrays)} arrays for part {message.part}"
            raise BadFrame(where, got, f"one from task {channel.src} to {channel.dsts}")
        array = message.arrays[0]
        if not meta.whole:
            if array.dtype.str != np.dtype(channel.dtype).str or array.shape != channel.shape:
                raise BadFrame(where, f"{array.dtype.str} {array.shape}", channel)
            whole = array
        else:
            fits = array.dtype == np.uint8 and array.ndim == 1 and meta.whole == channel.n_bytes
            if not fits or meta.at != slot.filled or meta.at + array.nbytes > meta.whole:
                got = f"{array.nbytes} bytes at {meta.at} of {meta.whole}"
                raise BadFrame(where, got, f"bytes at {slot.filled} of {channel}")
            if slot.partial is None:
                slot.partial = (
                    slot.spare.pop() if slot.spare else np.empty(channel.shape, channel.dtype)
                )
                slot.partial.flags.writeable = True
            flat = slot.partial.reshape(-1).view(np.uint8)
            flat[meta.at : meta.at + array.nbytes] = array
            slot.filled += array.nbytes
            if slot.filled < meta.whole:
                self._use(message.src, array.nbytes)
                return
            slot.partial.flags.writeable = False
            whole, slot.partial, slot.filled = slot.partial, None, 0
        held = array.nbytes if len(slot.arrived) >= AHEAD else 0
        self._use(message.src, array.nbytes - held)
        slot.arrived.append((message.step, whole, held))

    # strangers

    def _meet(self, sender: bytes, parts: Sequence[Buffer]) -> None:
        """A frame of somebody unknown: a hello that fits, or it is dropped and counted."""
        n_strikes = self._strikes.get(sender, 0)
        claimed = -1
        try:
            if n_strikes >= STRIKES:
                raise BadFrame("stranger", "one frame more", "silence")
            message = decode(parts, Expected(needs_crc=self.link.needs_crc))
            if not isinstance(message.meta, Hello) or message.seq != 1:
                name = type(message.meta).__name__
                raise BadFrame("first frame", f"{name} {message.seq}", "Hello 1")
            claimed = message.meta.task
            self._check_hello(sender, message, message.meta)
        except BadFrame as error:
            peer = self._peers.get(claimed)
            if isinstance(error, Refused) and peer is not None and not peer.incarnation:
                self._unfit.setdefault(claimed, (time.monotonic(), error))
            self.counters.n_dropped += 1
            if len(self._strikes) > 1000:
                self._strikes.clear()
            self._strikes[sender] = n_strikes + 1
            if n_strikes < STRIKES:
                logger.warning("stranger refused task=%d reason=%s", self.task, error)
                refusal = Refusal(
                    where=error.where[:256], got=error.got[:1000], expected=error.expected[:1000]
                )
                answer = Message(refusal, src=self.task, epoch=self.place.epoch)
                self.link.answer(sender, encode(answer))
            return
        task = message.meta.task
        peer = self._peers[task]
        peer.incarnation = sender
        peer.window.admit(1)
        self._by_incarnation[sender] = task
        self._expect(task, message.meta.max_body)
        self._say(task, Welcome(minor=min(messages.MINOR, message.meta.max_minor)))

    def _expect(self, task: int, max_body: int) -> None:
        self._max_body = min(self._max_body, max_body)
        self._expected[task] = Expected(task, self.place.epoch, self._max_body, self.link.needs_crc)

    def _check_hello(self, sender: bytes, message: Message, hello: Hello) -> None:
        place = self.place
        peer = self._peers.get(hello.task)
        where = f"hello of task {hello.task}"
        checks = [
            ("job", hello.job, place.job),
            ("tasks", hello.n_tasks, place.n_tasks),
            ("epoch", message.epoch, place.epoch),
            ("src", message.src, hello.task),
            ("incarnation", hello.incarnation.hex(), sender.hex()),
            ("byte order", hello.endian, "little"),
            ("dtypes", set(messages.DTYPES) - set(hello.dtypes), set()),
        ]
        for what, got, wanted in checks:
            if got != wanted:
                raise Refused(f"{where}: {what}", got, wanted)
        if hello.min_minor > messages.MINOR:
            raise Refused(f"{where}: minor version", hello.min_minor, messages.MINOR)
        if peer is None or peer.incarnation:
            raise Refused(where, "a place that is taken", "each task once")

    def _take_answers(self) -> None:
        """Refusals from endpoints that were given to ``connect``."""
        for task, parts in self.link.answers():
            peer = self._peers[task]
            try:
                message = decode(parts, Expected(needs_crc=self.link.needs_crc))
            except BadFrame as error:
                where = f"answer of {peer.name}: {error.where}"
                raise Refused(where, error.got, error.expected) from error
            if isinstance(message.meta, Refusal):
                raise _refused(peer.name, message.meta)


def _refused(name: str, refusal: Refusal) -> Refused:
    return Refused(f"refused by {name}: {refusal.where}", refusal.got, refusal.expected)


def _chunks(array: Array) -> list[tuple[Block, Array]]:
    """A block in pieces that fit a frame."""
    if array.nbytes <= CHUNK_BYTES:
        return [(Block(), array)]
    flat = array.reshape(-1).view(np.uint8)
    return [
        (Block(at=at, whole=array.nbytes), flat[at : at + CHUNK_BYTES])
        for at in range(0, array.nbytes, CHUNK_BYTES)
    ]
