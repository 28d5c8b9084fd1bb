"""Tasks of one host over shared memory: ``shm://``.

A task writes blocks into slots of its segment of a sealed memfd and counts them there; the others
wait for the count (horn/_kernels/mailbox.pyx). Memfds travel over abstract unix sockets, which stay
open (_shm_sockets.py). No file has a name, so none is left behind. docs/notes/0020.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence

from horn._kernels.mailbox import DONE, MISMATCH, REASON_BYTES, Mailboxes, Mapping, Step
from horn.errors import JobError
from horn.patience import Patience
from horn.transport import Channel, Identity, Transport, check_digest, checked, digest, overdue
from horn.transport._memfds import new_segment
from horn.transport._shm_sockets import ROOT, SLICE_S, SocketPeers
from horn.transport._slots import Slot, layout, stride
from horn.wire.frames import Array, BadFrame, WireMessage
from horn.wire.messages import ChannelDigest, Meta

AGREEING = 1 << 62  # and more: supersteps of the barriers at which all have the same channels


class Shm(Transport):
    """Mailboxes in shared memory."""

    scheme = "shm"
    default_url, link_url = "shm://", "ipc://"
    can_share = True
    fds_per_peer = 3  # of the first task, while it sends the common memory
    latency_s, bytes_per_s = 12e-6, 1e11

    def __init__(self, url: str, identity: Identity) -> None:
        super().__init__(url, identity)
        if url != "shm://":
            raise JobError(f"{url!r}: write shm://, it needs no more")
        self._peers = SocketPeers(identity)
        self.endpoint = self._peers.endpoint
        self._slots: dict[int, Slot] = {}
        self._by_index: list[Slot] = []
        self._steps: dict[tuple[int, ...], tuple[Step, list[Slot], list[Slot]]] = {}
        self._n_agreed, self._is_closed = 0, False

    # connecting

    def connect(self, peers: Sequence[str], timeout_s: float) -> None:
        self._check_endpoints(peers)
        patience = Patience(timeout_s)
        where, mine = "connecting", digest(())
        self._peers.connect(peers, patience, where)
        self._lay_out([], mine, patience, where)
        self._cross(AGREEING, timeout_s, where, "its arrival")
        self._peers.end_connecting()

    # channels

    def open_channels(self, channels: Sequence[Channel], timeout_s: float) -> None:
        patience = Patience(timeout_s)
        by_part = checked(channels, self.n_tasks)
        where, mine = "agreeing on channels", digest(channels)
        self._n_agreed += 1
        self._mail.say_digest(self._n_agreed, mine)
        self._cross(AGREEING + self._n_agreed, timeout_s, where, "its channels")
        for task in self._peers:
            check_digest(self.identity.name(task), self._mail.digest(self._n_agreed, task), mine)
        self._lay_out(list(by_part.values()), mine, patience, where)

    def _lay_out(
        self, channels: list[Channel], mine: bytes, patience: Patience, where: str
    ) -> None:
        """Lay channels out in common memory, which the root makes and sends to all."""
        offsets, sizes = layout(channels, self.n_tasks)
        size, is_root = sum(sizes), self.task == ROOT
        fd = new_segment(size) if is_root else self._peers.given(mine, size, patience, where)
        try:
            whole = memoryview(Mapping(fd, size))
            ends = list(itertools.accumulate(sizes))
            segments = [whole[end - n : end] for end, n in zip(ends, sizes, strict=True)]
            self._steps.clear()
            self._by_index = [
                Slot.of(index, channel, segments[channel.src], offsets[index], self.task)
                for index, channel in enumerate(channels)
            ]
            self._slots = {slot.channel.part: slot for slot in self._by_index}
            table = [(c.src, at, stride(c)) for c, at in zip(channels, offsets, strict=True)]
            may_spin = self.n_tasks <= len(os.sched_getaffinity(0))
            boxes = Mailboxes(self.task, segments, table, may_spin)
            if is_root:
                self._peers.give(boxes, ChannelDigest(digest=mine, size=size), fd, patience)
            self._peers.boxes = boxes
        finally:
            os.close(fd)

    def _step(self, parts: Sequence[int]) -> tuple[Step, list[Slot], list[Slot]]:
        key = tuple(parts)
        found = self._steps.get(key)
        if found is None:
            slots = [self._slot(part) for part in key]
            sending = [s for s in slots if s.channel.src == self.task]
            receiving = [s for s in slots if self.task in s.channel.dsts]
            ring = {dst for s in sending for dst in s.channel.dsts}
            ring |= {s.channel.src for s in receiving}
            step = Step([s.index for s in sending], [s.index for s in receiving], sorted(ring))
            found = self._steps[key] = (step, sending, receiving)
        return found

    def _slot(self, part: int) -> Slot:
        if part not in self._slots:
            raise BadFrame("part", part, f"one of the {len(self._slots)} channels")
        return self._slots[part]

    @property
    def _mail(self) -> Mailboxes:
        if self._peers.boxes is None:
            raise BadFrame("transport", "no connection", "connect() before, and no close()")
        return self._peers.boxes

    # blocks

    def outbox(self, part: int, timeout_s: float) -> Array:
        slot = self._slot(part)
        boxes = self._mail
        if slot.channel.src != self.task or slot.buffers is None:
            raise BadFrame(f"outbox of {slot.channel}", f"task {self.task}", slot.channel.src)
        dsts = slot.dsts
        code = boxes.wait_free(slot.index, dsts, min(timeout_s, SLICE_S))
        if code != DONE:
            self._wait(
                lambda wait_s: boxes.wait_free(slot.index, dsts, wait_s, False),
                timeout_s,
                f"writing {slot.channel}",
                lambda: [t for t in dsts if not boxes.has_released(slot.index, t)],
                lambda task: "room for it",
            )
        slot.is_open = True
        return slot.buffers[boxes.slot(slot.index, True)]

    def post(self, superstep: int, parts: Sequence[int]) -> None:
        step, sending, receiving = self._step(parts)
        self._prepare(superstep, sending, receiving)
        self._mail.post(step, superstep)

    def _prepare(self, superstep: int, sending: list[Slot], receiving: list[Slot]) -> None:
        for slot in sending:
            if not slot.is_open:
                where = f"superstep {superstep}: {slot.channel}"
                raise BadFrame(where, "no outbox", "a new block")
            slot.is_open = False
            self.counters.n_sent += slot.n_dsts
            self.counters.sent_bytes += slot.n_bytes * slot.n_dsts
        for slot in receiving:
            slot.is_full = False

    def collect(self, superstep: int, parts: Sequence[int], timeout_s: float) -> None:
        step, _, receiving = self._step(parts)
        began = time.monotonic()
        code = self._mail.collect(step, superstep, min(timeout_s, SLICE_S))
        self._collected(code, step, receiving, superstep, timeout_s, began)

    def exchange(self, superstep: int, parts: Sequence[int], timeout_s: float) -> None:
        step, sending, receiving = self._step(parts)
        self._prepare(superstep, sending, receiving)
        began = time.monotonic()
        code = self._mail.exchange(step, superstep, min(timeout_s, SLICE_S))
        self._collected(code, step, receiving, superstep, timeout_s, began)

    def _collected(
        self,
        code: int,
        step: Step,
        receiving: list[Slot],
        superstep: int,
        timeout_s: float,
        began: float,
    ) -> None:
        boxes = self._mail

        def missing() -> list[Slot]:
            return [slot for slot in receiving if not boxes.is_published(slot.index)]

        if code not in (DONE, MISMATCH):
            code = self._wait(
                lambda wait_s: boxes.collect(step, superstep, wait_s, False),
                timeout_s,
                f"superstep {superstep}, exchange",
                lambda: sorted({slot.channel.src for slot in missing()}),
                lambda task: ", ".join(str(s.channel) for s in missing() if s.channel.src == task),
            )
        self.counters.wait_s += time.monotonic() - began
        if code == MISMATCH:
            channel = self._by_index[boxes.bad].channel
            where = f"{channel} from {self.identity.name(channel.src)}"
            raise BadFrame(where, _named(boxes.bad_got), _named(boxes.bad_expected))
        for slot in receiving:
            slot.is_full = True
            self.counters.n_received += 1
            self.counters.received_bytes += slot.n_bytes

    def inbox(self, part: int) -> Array:
        slot = self._slot(part)
        if not slot.is_full or slot.buffers is None:
            raise BadFrame(f"inbox of {slot.channel}", "nothing", "a collected block")
        return slot.buffers[self._mail.slot(slot.index, False)]

    def common(self, part: int) -> Array:
        slot = self._slot(part)
        if not slot.channel.common or slot.buffers is None:
            raise BadFrame(f"memory of {slot.channel}", "no common one", "a common channel")
        return slot.buffers[0]

    def barrier(self, superstep: int, timeout_s: float) -> None:
        self._cross(superstep, timeout_s, f"superstep {superstep}, barrier", "its arrival")

    def _cross(self, superstep: int, timeout_s: float, where: str, what: str) -> None:
        boxes = self._mail
        began = time.monotonic()
        code = boxes.barrier(superstep, min(timeout_s, SLICE_S))
        if code not in (DONE, MISMATCH):
            code = self._wait(
                lambda wait_s: boxes.barrier(superstep, wait_s, False),
                timeout_s,
                where,
                lambda: [t for t in self._peers if not boxes.has_arrived(t)],
                lambda task: what,
            )
        self.counters.wait_s += time.monotonic() - began
        if code == MISMATCH:
            where = f"barrier with {self.identity.name(boxes.bad)}"
            raise BadFrame(where, _named(boxes.bad_got), _named(boxes.bad_expected))

    # waiting

    def _wait(
        self,
        again: Callable[[float], int],
        timeout_s: float,
        where: str,
        missing: Callable[[], list[int]],
        owes: Callable[[int], str],
    ) -> int:
        """Wait in slices; between them look for ended tasks."""
        patience = Patience(timeout_s)
        while True:
            left_s = patience.left_s()
            code = again(max(min(left_s, SLICE_S), 0.0))
            if code in (DONE, MISMATCH):
                return code
            self._peers.read_all()
            absent = missing()
            # Blocks that a peer published before its end count, so look at its counters last.
            if absent and self._peers.find_gone(absent):
                self._peers.raise_lost(where, missing(), owes)
            elif absent and left_s <= 0:
                raise overdue(self.identity, where, absent, owes, timeout_s)

    # messages beside the blocks

    def send(
        self, to: int, meta: Meta, arrays: Sequence[Array], timeout_s: float, wait: bool = True
    ) -> None:
        self._check_receiver(to)
        self._peers.send(to, meta, arrays, Patience(timeout_s))
        self._mail.call(to)

    def receive(self, timeout_s: float) -> WireMessage | None:
        return self._peers.receive(timeout_s)

    def absent(self) -> dict[int, str]:
        return self._peers.absent()

    def close(self, reason: str = "finished") -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._peers.boxes is not None:
            self._peers.boxes.leave(reason.encode(errors="replace")[:REASON_BYTES])
        self._peers.close(reason)
        self._slots, self._by_index = {}, []
        self._steps.clear()


def _named(superstep: int) -> str:
    return f"superstep {superstep}" if superstep < AGREEING else "its channels"


TRANSPORT = Shm
