"""Tasks of one host over shared memory: ``shm://``.

A task writes its blocks into slots of its own segment, a sealed memfd, and counts them there; the
others have it mapped and wait for the count (horn/_kernels/mailbox.pyx). The memfds travel over
abstract unix sockets, which stay open for what is no block: notes, goodbyes, and the hang-up that
tells of a death. Nothing here has a name in a file system, so nothing can be left behind.
Layout and reasons: docs/notes/0020.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import secrets
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from horn._kernels.mailbox import (
    CONTROL_BYTES,
    DONE,
    LINE_BYTES,
    MISMATCH,
    Mailboxes,
    Mapping,
    Step,
)
from horn.errors import BarrierTimeout, JobError
from horn.patience import Patience
from horn.runtime.messages import (
    BODY_BYTES,
    HEADER_BYTES,
    MAX_BODIES,
    Array,
    BadFrame,
    Buffer,
    Bye,
    Expected,
    Hello,
    Message,
    Meta,
    Plan,
    Refusal,
    Refused,
    Window,
    decode,
    encode,
)
from horn.transport import Channel, PeerLost, Place, Transport, checked, digest

PAGE_BYTES = 4096
PACKET_BYTES = 76 * 1024  # a header, the largest meta, and bodies
# Bodies up to this go in the packet: a memfd costs ten system calls, and a mapping over there.
INLINE_BYTES = 8 * 1024
SLICE_S = 0.02  # how often a waiting task looks for the dead
ACCEPT_S = 1.0  # how often who waits for connections looks at the clock
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@dataclass
class _Peer:
    """One other task and the socket to it."""

    name: str
    window: Window
    sock: socket.socket | None = None
    n_out: int = 0
    plans: deque[tuple[Plan, int]] = field(default_factory=deque)  # with the memfd
    gone: str | None = None


@dataclass
class _Slot:
    """One channel: its two buffers, as this task may see them."""

    index: int
    channel: Channel
    buffers: tuple[Array, Array] | None = None
    is_open: bool = False
    is_full: bool = False

    def __post_init__(self) -> None:
        self.n_bytes, self.n_dsts = self.channel.n_bytes, len(self.channel.dsts)
        self.dsts = list(self.channel.dsts)


class Shm(Transport):
    """Mailboxes in shared memory."""

    scheme = "shm"
    can_share = True

    def __init__(self, url: str, place: Place) -> None:
        super().__init__(url, place)
        if url != "shm://":
            raise JobError(f"{url!r}: write shm://, it needs no more")
        self.incarnation = secrets.token_bytes(16)
        self._peers = {
            task: _Peer(f"task {task}", Window(f"frames of task {task}, epoch {place.epoch}"))
            for task in range(place.n_tasks)
            if task != place.task
        }
        self._loose: deque[Message] = deque()
        self._slots: dict[int, _Slot] = {}
        self._by_index: list[_Slot] = []
        self._steps: dict[tuple[int, ...], tuple[Step, list[_Slot], list[_Slot]]] = {}
        self._boxes: Mailboxes | None = None
        self._is_closed = False
        self._poll = select.poll()
        self._task_of: dict[int, int] = {}  # by file descriptor
        name = f"horn-{secrets.token_hex(16)}"
        self.endpoint = f"shm://{name}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"\0{name}")
        self._listener.listen(place.n_tasks)

    # meeting

    def connect(self, peers: Sequence[str], timeout_s: float) -> None:
        if len(peers) != self.n_tasks:
            raise Refused("endpoints", len(peers), f"{self.n_tasks}, one per task")
        patience = Patience(timeout_s)
        for task in range(self.task):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.settimeout(max(patience.left_s(), 0.001))
            try:
                sock.connect("\0" + peers[task].removeprefix("shm://"))
                self._hello(sock)
                hello = self._read_hello(sock, task)
            except (TimeoutError, BlockingIOError):
                sock.close()
                raise self._absent(timeout_s) from None
            except OSError as error:
                sock.close()
                reason = f"{peers[task]}: {error.strerror}"
                raise PeerLost("connecting", (f"task {task}",), reason) from error
            except BaseException:
                sock.close()
                raise
            self._join(hello.task, sock)
        while any(peer.sock is None for peer in self._peers.values()):
            left_s = patience.left_s()
            self._listener.settimeout(max(min(left_s, ACCEPT_S), 0.001))
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                if left_s > 0:
                    continue
                raise self._absent(timeout_s) from None
            sock.settimeout(max(left_s, 0.001))
            try:
                hello = self._read_hello(sock, None)
                self._hello(sock)
            except TimeoutError:
                sock.close()
                raise self._absent(timeout_s) from None
            except (BadFrame, OSError) as error:
                if isinstance(error, BadFrame):
                    self._refuse(sock, error)
                sock.close()
                raise
            self._join(hello.task, sock)
        self._listener.close()
        self.plan((), max(patience.left_s(), 0.001))

    def _hello(self, sock: socket.socket) -> None:
        hello = Hello(
            task=self.task, n_tasks=self.n_tasks, job=self.place.job, incarnation=self.incarnation
        )
        message = Message(hello, src=self.task, epoch=self.place.epoch, seq=1)
        sock.send(b"".join(encode(message)))

    def _read_hello(self, sock: socket.socket, task: int | None) -> Hello:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        uid = struct.unpack("3i", credentials)[1]
        if uid != os.getuid():
            raise Refused("connection", f"user {uid}", f"user {os.getuid()}")
        packet = sock.recv(PACKET_BYTES)
        if not packet:
            raise ConnectionResetError(104, "it hung up")
        message = decode((packet[:HEADER_BYTES], packet[HEADER_BYTES:]))
        hello = message.meta
        if isinstance(hello, Refusal):
            raise Refused(f"refused by task {task}: {hello.where}", hello.got, hello.expected)
        if not isinstance(hello, Hello):
            raise BadFrame("first frame", type(hello).__name__, "Hello")
        where = f"hello of task {hello.task}"
        free = {t for t, peer in self._peers.items() if peer.sock is None}
        for what, got, wanted in [
            ("job", hello.job, self.place.job),
            ("tasks", hello.n_tasks, self.n_tasks),
            ("epoch", message.epoch, self.place.epoch),
            ("src", message.src, hello.task),
            ("task", hello.task, hello.task if task is None else task),
        ]:
            if got != wanted:
                raise Refused(f"{where}: {what}", got, wanted)
        if hello.task not in free:
            raise Refused(where, "a place that is taken", "each task once")
        return hello

    def _refuse(self, sock: socket.socket, error: BadFrame) -> None:
        refusal = Refusal(
            where=error.where[:256], got=error.got[:1000], expected=error.expected[:1000]
        )
        packet = b"".join(encode(Message(refusal, src=self.task, epoch=self.place.epoch, seq=1)))
        try:
            sock.send(packet)
        except OSError:
            pass  # it has gone already: then it needs no reason

    def _join(self, task: int, sock: socket.socket) -> None:
        peer = self._peers[task]
        sock.setblocking(False)
        peer.sock, peer.n_out = sock, 1
        peer.window.admit(1)
        self._task_of[sock.fileno()] = task
        self._poll.register(sock, select.POLLIN)

    def _absent(self, timeout_s: float) -> BarrierTimeout:
        here = tuple(f"task {t}" for t in range(self.n_tasks)
                     if t == self.task or self._peers[t].sock is not None)  # fmt: skip
        absent = tuple(p.name for p in self._peers.values() if p.sock is None)
        return BarrierTimeout("connecting", absent, here, timeout_s)

    # the plan

    def plan(self, channels: Sequence[Channel], timeout_s: float) -> None:
        patience = Patience(timeout_s)
        by_part = checked(channels, self.n_tasks)
        mine = digest(channels)
        offsets, sizes = _layout(list(by_part.values()), self.n_tasks)
        size = sizes[self.task]
        segments: dict[int, Mapping] = {}
        fd = _segment(size)
        try:
            for task in self._peers:
                self._send(task, Plan(digest=mine, size=size), (), patience, fd)
            segments[self.task] = Mapping(fd, size)
        finally:
            os.close(fd)
        while waiting := [t for t, peer in self._peers.items() if not peer.plans]:
            self._look("agreeing on the plan", waiting, lambda task: "its plan")
            left_s = patience.left_s()
            if left_s <= 0:
                raise self._overdue(
                    "agreeing on the plan", waiting, lambda task: "its plan", timeout_s
                )
            self._poll.poll(min(left_s, SLICE_S) * 1000)
            self._read_all()
        for task, peer in self._peers.items():
            theirs, their_fd = peer.plans.popleft()
            try:
                if theirs.digest != mine:
                    got, wanted = theirs.digest.hex()[:12], mine.hex()[:12]
                    raise Refused(f"plan of {peer.name}", got, wanted)
                real = os.fstat(their_fd).st_size
                seals = fcntl.fcntl(their_fd, fcntl.F_GET_SEALS)
                if not theirs.size == real == sizes[task] or seals & SEALS != SEALS:
                    got = f"{real} bytes, seals {seals:#x}"
                    raise BadFrame(f"segment of {peer.name}", got, f"{sizes[task]}, sealed")
                segments[task] = Mapping(their_fd, real)
            finally:
                os.close(their_fd)
        self._steps.clear()
        self._slots = {}
        self._by_index = []
        table = []
        for index, channel in enumerate(by_part.values()):
            stride = _stride(channel)
            table.append((channel.src, offsets[index], stride))
            slot = _Slot(index, channel)
            if self.task == channel.src or self.task in channel.dsts:
                first, second = (
                    _view(segments[channel.src], channel, offsets[index] + at * stride + LINE_BYTES)
                    for at in ((0, 0) if channel.common else (0, 1))
                )
                for view in (first, second):
                    view.flags.writeable = channel.common or channel.src == self.task
                slot.buffers = (first, second)
            self._slots[channel.part] = slot
            self._by_index.append(slot)
        may_spin = self.n_tasks <= len(os.sched_getaffinity(0))
        in_order = [segments[task] for task in range(self.n_tasks)]
        self._boxes = Mailboxes(self.task, in_order, table, may_spin)

    def _step(self, parts: Sequence[int]) -> tuple[Step, list[_Slot], list[_Slot]]:
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

    def _slot(self, part: int) -> _Slot:
        if part not in self._slots:
            raise BadFrame("part", part, f"one of the {len(self._slots)} of the plan")
        return self._slots[part]

    @property
    def _mail(self) -> Mailboxes:
        if self._boxes is None:
            raise BadFrame("transport", "no connection", "connect() before, and no close()")
        return self._boxes

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

    def _prepare(self, superstep: int, sending: list[_Slot], receiving: list[_Slot]) -> None:
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
        receiving: list[_Slot],
        superstep: int,
        timeout_s: float,
        began: float,
    ) -> None:
        boxes = self._mail

        def missing() -> list[_Slot]:
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
            where = f"{channel} from task {channel.src}"
            got, wanted = f"superstep {boxes.bad_got}", f"superstep {boxes.bad_expected}"
            raise BadFrame(where, got, wanted)
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
        boxes = self._mail
        began = time.monotonic()
        code = boxes.barrier(superstep, min(timeout_s, SLICE_S))
        if code not in (DONE, MISMATCH):
            code = self._wait(
                lambda wait_s: boxes.barrier(superstep, wait_s, False),
                timeout_s,
                f"superstep {superstep}, barrier",
                lambda: [t for t in self._peers if not boxes.has_arrived(t)],
                lambda task: "its arrival",
            )
        self.counters.wait_s += time.monotonic() - began
        if code == MISMATCH:
            where = f"barrier with task {boxes.bad}"
            got, wanted = f"superstep {boxes.bad_got}", f"superstep {boxes.bad_expected}"
            raise BadFrame(where, got, wanted)

    # waiting

    def _wait(
        self,
        again: Callable[[float], int],
        timeout_s: float,
        where: str,
        missing: Callable[[], list[int]],
        owes: Callable[[int], str],
    ) -> int:
        """Go on waiting in slices until it is done; between them look for the dead."""
        patience = Patience(timeout_s)
        while True:
            left_s = patience.left_s()
            code = again(max(min(left_s, SLICE_S), 0.0))
            if code in (DONE, MISMATCH):
                return code
            self._read_all()
            absent = missing()
            # What a peer published before its end counts, so look at its counters last.
            if absent and any(self._peers[task].gone for task in absent):
                self._look(where, missing(), owes)
            elif absent and left_s <= 0:
                raise self._overdue(where, absent, owes, timeout_s)

    def _look(self, where: str, absent: list[int], owes: Callable[[int], str]) -> None:
        for task in absent:
            peer = self._peers[task]
            if peer.gone is not None:
                raise PeerLost(where, (peer.name,), f"{peer.gone}; it owes {owes(task)}")

    def _overdue(
        self, where: str, absent: list[int], owes: Callable[[int], str], timeout_s: float
    ) -> BarrierTimeout:
        arrived = tuple(f"task {t}" for t in range(self.n_tasks) if t not in absent)
        hint = "; ".join(f"task {task} owes {owes(task)}" for task in absent)
        return BarrierTimeout(where, tuple(f"task {t}" for t in absent), arrived, timeout_s, hint)

    # messages outside the plan

    def send(
        self, to: int, meta: Meta, arrays: Sequence[Array], timeout_s: float, wait: bool = True
    ) -> None:
        if to not in self._peers:
            raise BadFrame("receiver", f"task {to}", f"another task below {self.n_tasks}")
        self._send(to, meta, arrays, Patience(timeout_s), None)
        self._mail.call_all()

    def receive(self, timeout_s: float) -> Message | None:
        ends = time.monotonic() + timeout_s
        while not self._loose:
            left_s = ends - time.monotonic()
            self._poll.poll(max(left_s, 0.0) * 1000)
            self._read_all()
            if not self._loose and (left_s <= 0 or not self._task_of):
                return None
        return self._loose.popleft()

    def _send(
        self, to: int, meta: Meta, arrays: Sequence[Array], patience: Patience, fd: int | None
    ) -> None:
        peer = self._peers[to]
        where = f"sending {type(meta).__name__} to {peer.name}"
        parts = encode(Message(meta, tuple(arrays), self.task, self.place.epoch, peer.n_out + 1))
        bodies = parts[2:]
        own_fd, inline = None, []
        lengths = [len(body) for body in bodies]
        if bodies and fd is None and sum(lengths) <= INLINE_BYTES:
            inline = [struct.pack(f"<{len(lengths)}Q", *lengths), *bodies]
        elif bodies:
            own_fd = _bodies_to_memfd(bodies)
        try:
            carried = fd if own_fd is None else own_fd
            ancillary = (
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [carried]))]
                if carried is not None
                else []
            )
            while True:
                if peer.sock is None or peer.gone is not None:
                    raise PeerLost(where, (peer.name,), peer.gone or "it was never here")
                try:
                    peer.sock.sendmsg([*parts[:2], *inline], ancillary)
                    break
                except BlockingIOError:
                    left_s = patience.left_s()
                    if left_s <= 0:
                        here, most_s = (f"task {self.task}",), patience.timeout_s
                        raise BarrierTimeout(where, (peer.name,), here, most_s) from None
                    writable = select.poll()
                    writable.register(peer.sock, select.POLLOUT)
                    writable.poll(min(left_s, SLICE_S) * 1000)
                    self._read_all()
                except OSError as error:
                    self._read_all()
                    peer.gone = peer.gone or f"its process ended: {error.strerror}"
        finally:
            if own_fd is not None:
                os.close(own_fd)
        peer.n_out += 1

    def _read_all(self) -> None:
        """Take what the sockets have, without waiting."""
        for fd, _ in self._poll.poll(0):
            peer = self._peers[self._task_of[fd]]
            while peer.sock is not None and self._read(self._task_of[fd], peer, peer.sock):
                pass

    def _read(self, task: int, peer: _Peer, sock: socket.socket) -> bool:
        try:
            packet, fds, _, _ = socket.recv_fds(sock, PACKET_BYTES, 4)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True  # it left something unread, which is told once: what it said comes now
        except OSError:
            packet, fds = b"", []
        if not packet:
            peer.gone = peer.gone or "its process ended: killed or crashed"
            self._poll.unregister(sock)
            del self._task_of[sock.fileno()]
            sock.close()
            peer.sock = None
            return False
        kept = -1
        try:
            head, packed = packet[:HEADER_BYTES], packet[HEADER_BYTES:]
            is_plan = len(head) == HEADER_BYTES and head[6] == 4
            bodies: list[Buffer] = []
            if fds and not is_plan:
                bodies = _bodies_from_memfd(fds[0])
            elif not fds and len(head) == HEADER_BYTES:
                packed, bodies = _bodies_from_packet(head, packed)
            try:
                message = decode((head, packed, *bodies), Expected(task, self.place.epoch))
                peer.window.admit(message.seq)
            except BadFrame as error:
                where = f"frame from {peer.name}: {error.where}"
                raise BadFrame(where, error.got, error.expected) from error
            match message.meta:
                case Plan() as plan:
                    if len(fds) != 1:
                        raise BadFrame(f"plan of {peer.name}", f"{len(fds)} segments", 1)
                    kept = fds[0]
                    peer.plans.append((plan, kept))
                case Bye(reason=reason):
                    peer.gone = f"it left: {reason}"
                case Hello():
                    raise BadFrame(f"frame from {peer.name}", "a second hello", "one")
                case _:
                    self._loose.append(message)
        finally:
            for fd in fds:
                if fd != kept:
                    os.close(fd)
        return True

    def close(self, reason: str = "finished") -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for task, peer in self._peers.items():
            if peer.sock is not None:
                try:
                    self._send(task, Bye(reason=reason[:4000]), (), Patience(0.0), None)
                except (PeerLost, BarrierTimeout):
                    pass  # it has gone, or does not read: the hang-up tells it as well
        if self._boxes is not None:
            self._boxes.leave(1)
        for peer in self._peers.values():
            if peer.sock is not None:
                peer.sock.close()
                peer.sock = None
            for _, fd in peer.plans:
                os.close(fd)
            peer.plans.clear()
        self._listener.close()
        self._boxes = None  # the memory goes with the last view of it
        self._slots, self._by_index = {}, []
        self._steps.clear()


def _round_up(n_bytes: int, unit: int) -> int:
    return -(-n_bytes // unit) * unit


def _stride(channel: Channel) -> int:
    return LINE_BYTES + _round_up(channel.n_bytes, LINE_BYTES)


def _layout(channels: list[Channel], n_tasks: int) -> tuple[list[int], list[int]]:
    """Where each channel's first slot lies in its sender's segment, and the size of each one."""
    start = _round_up(CONTROL_BYTES + LINE_BYTES * len(channels), PAGE_BYTES)
    ends = [start] * n_tasks
    offsets = []
    for channel in channels:
        offsets.append(ends[channel.src])
        ends[channel.src] += (1 if channel.common else 2) * _stride(channel)
    return offsets, [_round_up(end, PAGE_BYTES) for end in ends]


def _segment(size: int) -> int:
    """A memfd of zeros that nobody can resize."""
    fd = os.memfd_create("horn-mailboxes", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)  # an error now, not SIGBUS later
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
    except OSError as error:
        os.close(fd)
        raise JobError(f"no room for mailboxes of {size} bytes: {error.strerror}") from error
    return fd


def _view(segment: Mapping, channel: Channel, offset: int) -> Array:
    if not channel.n_bytes:
        return np.empty(channel.shape, channel.dtype)
    count = channel.n_bytes // np.dtype(channel.dtype).itemsize
    return np.frombuffer(memoryview(segment), channel.dtype, count, offset).reshape(channel.shape)


def _bodies_to_memfd(bodies: Sequence[Buffer]) -> int:
    """Bodies of a message in a memfd: how many, their lengths, themselves."""
    fd = os.memfd_create("horn-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        lengths = [len(body) for body in bodies]
        head = struct.pack(f"<{len(bodies) + 1}Q", len(bodies), *lengths)
        for part in (head, *bodies):
            left = memoryview(part)
            while left:
                left = left[os.write(fd, left) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _bodies_from_packet(head: bytes, rest: bytes) -> tuple[bytes, list[Buffer]]:
    """The meta, and the bodies behind it after their lengths; ``decode`` looks closer."""
    n_bodies, meta_bytes = struct.unpack_from("<HI", head, 10)
    at = meta_bytes + 8 * n_bodies
    if not n_bodies or n_bodies > MAX_BODIES or at > len(rest):
        return rest, []
    whole = memoryview(rest)
    bodies: list[Buffer] = []
    for length in struct.unpack_from(f"<{n_bodies}Q", rest, meta_bytes):
        bodies.append(whole[at : at + length])
        at += length
    if at != len(rest):
        raise BadFrame("bodies in a packet", f"{len(rest)} bytes", at)
    return rest[:meta_bytes], bodies


def _bodies_from_memfd(fd: int) -> list[Buffer]:
    where = "bodies in shared memory"
    size = os.fstat(fd).st_size
    wanted = SEALS | fcntl.F_SEAL_WRITE
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & wanted != wanted:
        raise BadFrame(where, "a segment that may still change", "a sealed one")
    if not 8 <= size <= BODY_BYTES + 8 * (MAX_BODIES + 1):
        raise BadFrame(where, f"{size} bytes", f"8 to {BODY_BYTES}")
    whole = memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ))
    (n_bodies,) = struct.unpack_from("<Q", whole)
    at = 8 * (n_bodies + 1)
    if n_bodies > MAX_BODIES or at > size:
        raise BadFrame(where, f"{n_bodies} bodies", f"at most {MAX_BODIES}")
    lengths = struct.unpack_from(f"<{n_bodies}Q", whole, 8)
    if at + sum(lengths) != size:
        raise BadFrame(where, f"{size} bytes", at + sum(lengths))
    bodies: list[Buffer] = []
    for length in lengths:
        bodies.append(whole[at : at + length])
        at += length
    return bodies


TRANSPORT = Shm
