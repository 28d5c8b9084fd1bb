"""A transport made of frames over any link that keeps the order of each peer's frames.

``_delivery`` takes each frame once and in order; here is the protocol: channels, chunks, blocks by
part, barriers, and errors that name what is missing. Links are ``inproc``, into which tests put
faults, and ZeroMQ. Source: docs/notes/0020 and 0063.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from horn.patience import Patience
from horn.transport import Channel, Identity, check_digest, checked, digest, overdue, peer_lost
from horn.transport._channel import AHEAD, Inlet, Outlet, chunks
from horn.transport._delivery import SLICE_S, Delivery, Peer, UnnumberedMessage
from horn.transport._handshake import hello_of
from horn.wire.frames import Array, BadFrame, WireMessage, sum_of
from horn.wire.messages import MENDS, Arrived, BlockData, Bye, ChannelDigest, Meta
from horn.wire.text import wire_text

logger = logging.getLogger(__name__)

LINGER_S = 2.0  # for frames still owed when a task leaves
ACK_LINGER_S = 0.5  # ... and for the peers' acknowledgements, if no failure is known
DOUBT_S = 2.0  # of waiting, before a check whether the peer's process lives


class FramedTransport(Delivery):
    """The protocol of blocks over a link, which a subclass makes in ``__init__``."""

    def __init__(self, url: str, identity: Identity, incarnation: bytes) -> None:
        super().__init__(url, identity, incarnation)
        self._channels: dict[int, Channel] = {}
        self._outlets: dict[int, Outlet] = {}
        self._inlets: dict[int, Inlet] = {}
        self._steps: dict[tuple[int, ...], tuple[list[Outlet], list[Inlet]]] = {}
        self._loose: deque[WireMessage] = deque()
        self._is_closed = False

    # meeting

    def connect(self, peers: Sequence[str], timeout_s: float) -> None:
        self._check_endpoints(peers)
        self.link.connect(peers, self.incarnation)
        hello = hello_of(self.identity, self.incarnation, MENDS)
        for task in self._peers:
            self._say(task, hello)
        self._until(
            lambda: [t for t, p in self._peers.items() if not (p.incarnation and p.is_welcome)],
            timeout_s,
            "connecting",
            lambda task: "a hello" if not self._peers[task].incarnation else "a welcome",
        )

    def open_channels(self, channels: Sequence[Channel], timeout_s: float) -> None:
        by_part = checked(channels, self.n_tasks)
        mine = digest(channels)
        self._steps.clear()
        self._channels = by_part
        self._outlets = {p: Outlet(c) for p, c in by_part.items() if c.src == self.task}
        self._inlets = {p: Inlet(c) for p, c in by_part.items() if self.task in c.dsts}
        for task in self._peers:
            self._say(task, ChannelDigest(digest=mine))
        self._until(
            lambda: [t for t, p in self._peers.items() if not p.digests],
            timeout_s,
            "agreeing on channels",
            lambda task: "its channels",
        )
        for peer in self._peers.values():
            check_digest(peer.name, peer.digests.popleft(), mine)

    # blocks

    def outbox(self, part: int, timeout_s: float) -> Array:
        outlet = self._outlets.get(part)
        if outlet is None:
            raise self._unknown(part)
        at = (outlet.n_uses + 1) & 1
        if outlet.n_unsent[at]:
            self._until(
                lambda: list(outlet.channel.dsts) if outlet.n_unsent[at] else [],
                timeout_s,
                f"writing {outlet.channel}",
                lambda task: "room for it",
            )
        return outlet.open()

    def post(self, superstep: int, parts: Sequence[int]) -> None:
        sending, receiving = self._step(parts)
        for inlet in receiving:
            inlet.release()
        for outlet in sending:
            channel = outlet.channel
            if not outlet.is_open:
                raise BadFrame(f"superstep {superstep}: {channel}", "no outbox", "a new block")
            outlet.is_open = False
            outlet.n_uses += 1
            at = outlet.n_uses & 1
            for meta, array in chunks(outlet.buffers[at]):
                message = WireMessage(meta, (array,), step=superstep, part=channel.part)
                known = None
                if len(channel.dsts) > 1 and self.link.needs_sum and array.nbytes:
                    known = sum_of([array.reshape(-1).view(np.uint8).data])
                for task in channel.dsts:
                    outlet.n_unsent[at] += 1
                    self._peers[task].queue.append(
                        UnnumberedMessage(message, array.nbytes, outlet, at, known)
                    )
        for outlet in sending:
            for task in outlet.channel.dsts:
                self._flush(task)

    def collect(self, superstep: int, parts: Sequence[int], timeout_s: float) -> None:
        sending, receiving = self._step(parts)

        # A task sends only while it is in here: it stays until the others have its blocks.
        def missing() -> list[int]:
            late = {s.channel.src for s in receiving if not s.arrived}
            slow = {
                task
                for s in sending
                for task in s.channel.dsts
                if self._peers[task].stream.is_repeating
                or (s.n_unsent[s.n_uses & 1] and self._peers[task].is_waiting)
            }
            return sorted(late | slow)

        def owes(task: int) -> str:
            owed = [str(s.channel) for s in receiving if s.channel.src == task and not s.arrived]
            return ", ".join(owed) or "room for what is sent to it"

        if missing():
            self._until(missing, timeout_s, f"superstep {superstep}, exchange", owes)
        for inlet in receiving:
            step, array, held = inlet.arrived.popleft()
            if held:
                self._use(inlet.channel.src, held)
            if step != superstep:
                where = f"{inlet.channel} from {self.identity.name(inlet.channel.src)}"
                raise BadFrame(where, f"superstep {step}", f"superstep {superstep}")
            inlet.current = array

    def inbox(self, part: int) -> Array:
        inlet = self._inlets.get(part)
        if inlet is None and part not in self._channels:
            raise self._unknown(part)
        if inlet is None or inlet.current is None:
            raise BadFrame(f"inbox of {self._channels[part]}", "nothing", "a collected block")
        return inlet.current

    def barrier(self, superstep: int, timeout_s: float) -> None:
        for task in self._peers:
            self._say(task, Arrived(), step=superstep)

        # If a task left before the link has taken its arrival, the others would wait in vain.
        def is_late(p: Peer) -> bool:
            return bool(not p.barriers or p.urgent or p.fresh or p.stream.is_repeating)

        def missing() -> list[int]:
            return [task for task, peer in self._peers.items() if is_late(peer)]

        if missing():
            where = f"superstep {superstep}, barrier"
            self._until(missing, timeout_s, where, lambda task: "its arrival")
        for peer in self._peers.values():
            step = peer.barriers.popleft()
            if step != superstep:
                where = f"barrier with {peer.name}"
                raise BadFrame(where, f"superstep {step}", f"superstep {superstep}")

    def _unknown(self, part: int) -> BadFrame:
        return BadFrame("part", part, f"one of the {len(self._channels)} channels")

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

    # messages beside the blocks

    def send(
        self, to: int, meta: Meta, arrays: Sequence[Array], timeout_s: float, wait: bool = True
    ) -> None:
        self._check_receiver(to)
        peer = self._peers[to]
        peer.queue.append(
            UnnumberedMessage(WireMessage(meta, tuple(arrays)), sum(a.nbytes for a in arrays))
        )
        self._flush(to)
        if not wait:
            return
        self._until(
            lambda: [to] if peer.queue or peer.fresh else [],
            timeout_s,
            f"sending {type(meta).__name__} to {peer.name}",
            lambda task: "room for it",
        )

    def receive(self, timeout_s: float) -> WireMessage | None:
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
        for task in self._peers:
            self.link.doubt(task)
        self._check_connections()
        left = {task: peer.left for task, peer in self._peers.items() if peer.left is not None}
        return self._gone | left

    def close(self, reason: str = "finished") -> None:
        if self._is_closed:
            return
        self._is_closed = True
        linger_s = LINGER_S if reason == "finished" else 0.2
        bye = WireMessage(Bye(reason=wire_text(reason, 4000)))
        for peer in self._peers.values():
            if peer.incarnation and peer.left is None:
                peer.queue.append(UnnumberedMessage(bye))  # after all that is owed
        now = began = time.monotonic()
        try:
            while now < began + linger_s and self._owes(now < began + ACK_LINGER_S):
                if not self._turn(0.01):
                    self._remind([])
                now = time.monotonic()
        except BadFrame as error:  # too late to act on it
            logger.warning("bad frame while leaving task=%d error=%s", self.task, error)
        finally:
            self.link.close(linger_s)

    def _owes(self, until_known: bool) -> bool:
        """Whether frames are unsent, or unacknowledged."""
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
        began, patience = time.monotonic(), Patience(timeout_s)
        slice_s, suspect = min(SLICE_S, timeout_s), -1
        try:
            while absent := missing():
                progress = self._turn(slice_s)
                now = time.monotonic()
                left_s = patience.left_s()
                if progress:
                    if left_s <= -SLICE_S and (absent := missing()):  # busy, but not with this
                        raise overdue(self.identity, where, absent, owes, timeout_s)
                    continue
                self._remind(absent)
                for task in absent:
                    if now - began > DOUBT_S:
                        self.link.doubt(task)
                    peer = self._peers[task]
                    how = peer.left or self._gone.get(task)
                    unfit = self._handshake.unfit.get(task)
                    # It may be a stranger's. A peer that does not fit says so at its address.
                    if unfit and (how or left_s <= 0):
                        raise unfit
                    # Its frames and the end of its connection come by two ways: one more look.
                    if how is not None and (suspect == task or peer.left):
                        why = f"{how}; it owes {owes(task)}"
                        raise peer_lost(self.identity, where, task, why)
                    if how is not None:
                        suspect = task
                if left_s <= 0:
                    raise overdue(self.identity, where, absent, owes, timeout_s)
                slice_s = max(min(SLICE_S, left_s), 0.0)
        finally:
            self.counters.wait_s += time.monotonic() - began

    # taking

    def _act(self, peer: Peer, message: WireMessage) -> None:
        match message.meta:
            case BlockData() as meta:
                self._file(message, meta)
            case Arrived():
                peer.barriers.append(message.step)
                if len(peer.barriers) > AHEAD:
                    raise BadFrame(f"barrier with {peer.name}", "a third arrival", "two at most")
            case ChannelDigest(digest=theirs):
                peer.digests.append(theirs)  # one that has this may be at the next
                if len(peer.digests) > AHEAD:
                    raise BadFrame(f"channels of {peer.name}", "a third one", "two at most")
            case _:
                self._loose.append(message)

    def _file(self, message: WireMessage, meta: BlockData) -> None:
        """Put a block where ``collect`` finds it."""
        channel = self._channels.get(message.part)
        where = f"block from {self.identity.name(message.src)}, superstep {message.step}"
        if channel is None:
            raise BadFrame(where, f"part {message.part}", "a part that has a channel")
        inlet = self._inlets.get(message.part)
        if message.src != channel.src or inlet is None or len(message.arrays) != 1:
            got = f"{len(message.arrays)} arrays for part {message.part}"
            raise BadFrame(where, got, f"one from task {channel.src} to {channel.dsts}")
        self._use(message.src, inlet.file(message, meta, where))
