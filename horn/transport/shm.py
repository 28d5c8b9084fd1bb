"""Tasks of one host over shared memory: ``shm://``.

A task writes blocks into slots of its segment of a sealed memfd and counts them there; the others
wait for the count (horn/_kernels/mailbox.pyx). Memfds travel over abstract unix sockets, which stay
open for notes, goodbyes and hang-ups. No file has a name, so none is left behind. docs/notes/0020.
"""

from __future__ import annotations

import array
import errno
import itertools
import logging
import os
import secrets
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from horn._kernels.mailbox import (
    DONE,
    LEFT,
    MISMATCH,
    REASON_BYTES,
    Mailboxes,
    Mapping,
    Step,
)
from horn.errors import BarrierTimeout, JobError
from horn.patience import Patience
from horn.transport import (
    Channel,
    Identity,
    PeerLost,
    Transport,
    check_digest,
    checked,
    digest,
)
from horn.transport._handshake import refusal, refused
from horn.transport._memfds import (
    check_segment,
    message_of,
    new_segment,
    packet_of,
)
from horn.transport._slots import Slot, layout, stride
from horn.wire.frames import (
    HEADER_BYTES,
    Array,
    BadFrame,
    Bye,
    ChannelPlan,
    Expected,
    HandshakeRefused,
    Hello,
    Meta,
    ReceiveWindow,
    Refusal,
    WireMessage,
    decode,
    encode,
)

logger = logging.getLogger(__name__)

PACKET_BYTES = 76 * 1024  # a header, the largest meta, and bodies
SLICE_S = 0.02  # how often a waiting task looks for the dead
ACCEPT_S = 1.0  # how often who waits for connections looks at the clock
ROOT = 0
ENDED = "its process ended: killed or crashed"
PLANNING = 1 << 62  # and more: supersteps of the barriers at which all have a plan


@dataclass
class _Peer:
    """One other task and the socket to it."""

    name: str
    window: ReceiveWindow
    sock: socket.socket | None = None
    n_out: int = 0
    is_met: bool = False  # its hello has come
    plans: deque[tuple[ChannelPlan, int]] = field(default_factory=deque)  # with the memfd
    gone: str | None = None


class Shm(Transport):
    """Mailboxes in shared memory."""

    scheme = "shm"
    default_url, link_url = "shm://", "ipc://"
    can_share = True
    fds_per_peer = 3  # of the first task, while it gives out what all have in common
    latency_s, bytes_per_s = 12e-6, 1e11

    def __init__(self, url: str, place: Identity) -> None:
        super().__init__(url, place)
        if url != "shm://":
            raise JobError(f"{url!r}: write shm://, it needs no more")
        self.incarnation = secrets.token_bytes(16)
        self._peers = {
            task: _Peer(
                f"task {task}", ReceiveWindow(f"frames of task {task}, attempt {place.attempt}")
            )
            for task in range(place.world_size)
            if task != place.rank
        }
        self._loose: deque[WireMessage] = deque()
        self._slots: dict[int, Slot] = {}
        self._by_index: list[Slot] = []
        self._steps: dict[tuple[int, ...], tuple[Step, list[Slot], list[Slot]]] = {}
        self._boxes: Mailboxes | None = None
        # Each task holds the writing end of its own pipe and the reading end of the next task's. An
        # epoll that all have in common shows whose writing end is closed, as long as anybody holds
        # the other end.
        self._ends: select.epoll | None = None
        self._held: list[int] = []
        self._handles: list[int] = []
        self._n_plans = 0
        self._is_meeting = self._is_closed = False
        self._poll = select.poll()
        self._sockets: dict[int, tuple[socket.socket, int | None]] = {}  # by descriptor; its task
        name = f"horn-{secrets.token_hex(16)}"
        self.endpoint = f"shm://{name}"
        self._endpoints: Sequence[str] = ()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listener.bind(f"\0{name}")
        self._listener.listen(place.world_size)
        self._poll.register(self._listener, select.POLLIN)

    # meeting

    def connect(self, peers: Sequence[str], timeout_s: float) -> None:
        self._check_endpoints(peers)
        patience = Patience(timeout_s)
        self._endpoints = peers
        self._is_meeting = True
        where, mine = "connecting", digest(())
        if self.task == ROOT:
            while absent := [t for t, peer in self._peers.items() if not peer.is_met]:
                left_s = patience.left_s()
                if left_s <= 0:
                    here = tuple(f"task {t}" for t in range(self.n_tasks) if t not in absent)
                    names = tuple(f"task {t}" for t in absent)
                    raise BarrierTimeout(where, names, here, timeout_s)
                self._poll.poll(max(min(left_s, ACCEPT_S), 0.001) * 1000)
                self._read_all()
        else:
            self._dial(ROOT, patience, where)
            root = self._peers[ROOT]
            self._wait_for(ROOT, lambda: root.is_met, patience, where, "its hello")
        self._lay_out([], mine, patience, where)
        self._cross(PLANNING, timeout_s, where, "its arrival")
        self._is_meeting = False

    def _dial(self, task: int, patience: Patience, where: str) -> None:
        """Connect to a task, and send a hello."""
        peer, endpoint = self._peers[task], self._endpoints[task]
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            name = "\0" + endpoint.removeprefix("shm://")
            while code := sock.connect_ex(name):
                if code != errno.EAGAIN:
                    raise OSError(code, os.strerror(code))
                time.sleep(SLICE_S)  # many wait there already
                self._read_all()
                if peer.sock is not None:  # it has made one meanwhile
                    sock.close()
                    return
                if patience.left_s() <= 0:
                    raise self.overdue(where, [task], lambda task: "room", patience.timeout_s)
            _check_user(sock)
            sock.send(self._hello())
        except OSError as error:
            sock.close()
            raise PeerLost(where, (peer.name,), f"{endpoint}: {error.strerror}") from error
        except BaseException:
            sock.close()
            raise
        peer.sock, peer.n_out = sock, 1
        self._listen_to(sock, task)

    def _hello(self) -> bytes:
        hello = Hello(
            task=self.task, n_tasks=self.n_tasks, job=self.place.job, incarnation=self.incarnation
        )
        return self._first(hello)

    def _first(self, meta: Meta) -> bytes:
        """The first packet of a connection."""
        message = WireMessage(meta, src=self.task, attempt=self.place.attempt, seq=1)
        return b"".join(encode(message))

    def _listen_to(self, sock: socket.socket, task: int | None) -> None:
        self._sockets[sock.fileno()] = sock, task
        self._poll.register(sock, select.POLLIN)

    def _hang_up(self, sock: socket.socket, task: int | None = None) -> None:
        self._poll.unregister(sock)
        del self._sockets[sock.fileno()]
        if task is not None:
            peer = self._peers[task]
            if not self._find_gone([task]):
                peer.gone = ENDED
                if self._boxes is not None:
                    self._boxes.has_ended(task)
            if peer.sock is sock:
                peer.sock = None
        sock.close()

    def _accept(self) -> None:
        """Take a connection; who it is from will be in its hello."""
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        try:
            _check_user(sock)
        except HandshakeRefused as error:
            sock.close()
            self._tell_refused(error)
            return
        sock.setblocking(False)
        self._listen_to(sock, None)

    def _greet(self, sock: socket.socket, packet: bytes) -> None:
        """The first packet of a connection that somebody else has made."""
        try:
            hello = self._checked(packet)
        except BadFrame as error:
            self._refuse(sock, error)
            self._hang_up(sock)
            self._tell_refused(error)
            return
        peer = self._peers[hello.task]
        peer.is_met = True
        peer.window.admit(1)
        self._sockets[sock.fileno()] = sock, hello.task
        if peer.sock is None:  # else both have made one, and each sends on its own
            peer.sock, peer.n_out = sock, 1
            try:
                sock.send(self._hello())
            except OSError:
                pass  # it has gone again, which is seen at the other end of the queue

    def _tell_refused(self, error: BadFrame) -> None:
        """While tasks meet it ends this one; later a stranger is no more than a line in the log."""
        if self._is_meeting:
            raise error
        logger.warning("connection refused task=%d error=%s", self.task, error)

    def _checked(self, packet: bytes, task: int | None = None) -> Hello:
        """The hello in a packet, of a task that it fits."""
        message = decode((packet[:HEADER_BYTES], packet[HEADER_BYTES:]))
        hello = message.meta
        if isinstance(hello, Refusal):
            raise refused(f"task {task}", hello)
        if not isinstance(hello, Hello):
            raise BadFrame("first frame", type(hello).__name__, "Hello")
        where = f"hello of task {hello.task}"
        for what, got, wanted in [
            ("job", hello.job, self.place.job),
            ("tasks", hello.n_tasks, self.n_tasks),
            ("attempt", message.attempt, self.place.attempt),
            ("src", message.src, hello.task),
            ("task", hello.task, hello.task if task is None else task),
        ]:
            if got != wanted:
                raise HandshakeRefused(f"{where}: {what}", got, wanted)
        if hello.task not in self._peers or self._peers[hello.task].is_met:
            raise HandshakeRefused(where, "a place that is taken", "each task once")
        return hello

    def _refuse(self, sock: socket.socket, error: BadFrame) -> None:
        try:
            sock.send(self._first(refusal(error)))
        except OSError:
            pass  # it has gone already: then it needs no reason

    def _wait_for(
        self, task: int, is_there: Callable[[], bool], patience: Patience, where: str, what: str
    ) -> None:
        """Wait for what a task owes; what it gave before its end counts."""
        while not is_there():
            self._poll.poll(SLICE_S * 1000)
            self._read_all()
            if is_there():
                return
            self._look(where, [task], lambda task: what)
            if patience.left_s() <= 0:
                raise self.overdue(where, [task], lambda task: what, patience.timeout_s)

    # the plan

    def plan(self, channels: Sequence[Channel], timeout_s: float) -> None:
        patience = Patience(timeout_s)
        by_part = checked(channels, self.n_tasks)
        where, mine = "agreeing on the plan", digest(channels)
        self._n_plans += 1
        self._mail.say_digest(self._n_plans, mine)
        self._cross(PLANNING + self._n_plans, timeout_s, where, "its plan")
        for task, peer in self._peers.items():
            check_digest(peer.name, self._mail.digest(self._n_plans, task), mine)
        self._lay_out(list(by_part.values()), mine, patience, where)

    def _lay_out(
        self, channels: list[Channel], mine: bytes, patience: Patience, where: str
    ) -> None:
        """Channels in memory of all tasks, which the root makes and gives out."""
        offsets, sizes = layout(channels, self.n_tasks)
        size, is_root = sum(sizes), self.task == ROOT
        fd = new_segment(size) if is_root else self._given(mine, size, patience, where)
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
                self._give(boxes, ChannelPlan(digest=mine, size=size), fd, patience)
            self._boxes = boxes
        finally:
            os.close(fd)

    def _give(self, boxes: Mailboxes, plan: ChannelPlan, fd: int, patience: Patience) -> None:
        """Give the root's memory to all; the first time also what shows ended tasks."""
        n, given = self.n_tasks, list[tuple[int, int]]()
        try:
            if self._ends is None:
                self._ends = select.epoll()
                given = [os.pipe2(os.O_CLOEXEC) for _ in range(n)]
                self._handles = [read for read, _ in given]
                for read in self._handles:
                    self._ends.register(read, 0)  # a hang-up is always told
            for task, handle in enumerate(self._handles):
                boxes.enter(task, handle)
            for task in self._peers:
                more = [self._ends.fileno(), *_kept(given, task)] if given else []
                self._send(task, plan, (), patience, [fd, *more])
            if given:
                self._held = _kept(given, ROOT)
        finally:
            for end in itertools.chain(*given):
                if end not in self._held:
                    os.close(end)

    def _given(self, mine: bytes, size: int, patience: Patience, where: str) -> int:
        """The descriptor of the root's memory."""
        peer = self._peers[ROOT]
        self._wait_for(ROOT, lambda: bool(peer.plans), patience, where, "memory for all")
        plan, fd = peer.plans.popleft()
        try:
            check_digest(peer.name, plan.digest, mine)
            check_segment(fd, plan.size, size, f"segment of {peer.name}")
        except BaseException:
            os.close(fd)
            raise
        return fd

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
            where = f"barrier with task {boxes.bad}"
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
            self._read_all()
            absent = missing()
            # What a peer published before its end counts, so look at its counters last.
            if absent and self._find_gone(absent):
                self._look(where, missing(), owes)
            elif absent and left_s <= 0:
                raise self.overdue(where, absent, owes, timeout_s)

    def _look(self, where: str, absent: list[int], owes: Callable[[int], str]) -> None:
        for task in self._find_gone(absent):
            peer = self._peers[task]
            raise PeerLost(where, (peer.name,), f"{peer.gone}; it owes {owes(task)}")

    def _find_gone(self, tasks: Sequence[int]) -> list[int]:
        """Which of these have left or ended; ``gone`` says how."""
        boxes = self._boxes
        if boxes is not None:
            # Before their last words: these come first.
            ended = {fd for fd, _ in self._ends.poll(0)} if self._ends is not None else set()
            for task in tasks:
                peer = self._peers[task]
                if peer.gone is not None:
                    continue
                state = boxes.state(task)
                if state == LEFT:
                    peer.gone = f"it left: {boxes.reason(task).decode(errors='replace')}"
                elif state or (ended and boxes.handle(task) in ended):
                    peer.gone = ENDED
                    boxes.has_ended(task)  # who holds its pipe may end next
        return [task for task in tasks if self._peers[task].gone is not None]

    # messages outside the plan

    def send(
        self, to: int, meta: Meta, arrays: Sequence[Array], timeout_s: float, wait: bool = True
    ) -> None:
        self._check_receiver(to)
        self._send(to, meta, arrays, Patience(timeout_s))
        self._mail.call(to)

    def receive(self, timeout_s: float) -> WireMessage | None:
        ends = time.monotonic() + timeout_s
        while not self._loose:
            left_s = ends - time.monotonic()
            self._poll.poll(max(left_s, 0.0) * 1000)
            self._read_all()
            if not self._loose and left_s <= 0:
                return None
        return self._loose.popleft()

    def absent(self) -> dict[int, str]:
        return {task: str(self._peers[task].gone) for task in self._find_gone([*self._peers])}

    def _send(
        self,
        to: int,
        meta: Meta,
        arrays: Sequence[Array],
        patience: Patience,
        fds: Sequence[int] = (),
    ) -> None:
        peer = self._peers[to]
        where = f"sending {type(meta).__name__} to {peer.name}"
        if peer.sock is None and self._endpoints and not self._find_gone([to]):
            self._dial(to, patience, where)
        message = WireMessage(meta, tuple(arrays), self.task, self.place.attempt, peer.n_out + 1)
        packet, own_fd = packet_of(message)
        try:
            carried = array.array("i", fds if own_fd is None else [own_fd])
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, carried)] if carried else []
            while True:
                if peer.sock is None or peer.gone is not None:
                    raise PeerLost(where, (peer.name,), peer.gone or "it was never here")
                try:
                    peer.sock.sendmsg(packet, ancillary)
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
                    if not self._find_gone([to]):
                        peer.gone = f"its process ended: {error.strerror}"
        finally:
            if own_fd is not None:
                os.close(own_fd)
        peer.n_out += 1

    def _read_all(self) -> None:
        """Read all sockets, without waiting."""
        for fd, _ in self._poll.poll(0):
            if fd == self._listener.fileno():
                self._accept()
                continue
            while (found := self._sockets.get(fd)) is not None and self._read(*found):
                pass

    def _read(self, sock: socket.socket, task: int | None) -> bool:
        try:
            packet, fds, _, _ = socket.recv_fds(sock, PACKET_BYTES, 4)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True  # it left something unread, which is told once: what it said comes now
        except OSError:
            packet, fds = b"", []
        if not packet:
            self._hang_up(sock, task)
            return False
        if task is None:
            self._greet(sock, packet)
            return True
        peer = self._peers[task]
        if not peer.is_met:
            self._checked(packet, task)
            peer.is_met = True
            peer.window.admit(1)
            return True
        kept: list[int] = []
        try:
            try:
                message = message_of(packet, fds, Expected(task, self.place.attempt))
                peer.window.admit(message.seq)
            except BadFrame as error:
                where = f"frame from {peer.name}: {error.where}"
                raise BadFrame(where, error.got, error.expected) from error
            match message.meta:
                case ChannelPlan() as plan:
                    n_wanted = 4 if self._ends is None else 1
                    if len(fds) != n_wanted or task != ROOT:
                        got = f"{len(fds)} descriptors"
                        raise BadFrame(f"plan of {peer.name}", got, f"{n_wanted}, of task {ROOT}")
                    kept = fds
                    if self._ends is None:
                        self._ends, self._held = select.epoll.fromfd(fds[1]), fds[2:]
                    peer.plans.append((plan, fds[0]))
                case Bye(reason=reason):
                    peer.gone = f"it left: {reason}"
                case Hello():
                    raise BadFrame(f"frame from {peer.name}", "a second hello", "one")
                case _:
                    self._loose.append(message)
        finally:
            for fd in fds:
                if fd not in kept:
                    os.close(fd)
        return True

    def close(self, reason: str = "finished") -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._boxes is not None:
            self._boxes.leave(reason.encode(errors="replace")[:REASON_BYTES])
        for task, peer in self._peers.items():
            if peer.sock is not None:  # it may not have the memory in which that was said
                try:
                    self._send(task, Bye(reason=reason[:4000]), (), Patience(0.0))
                except (PeerLost, BarrierTimeout):
                    pass  # it has gone, or does not read: the hang-up tells it as well
        for peer in self._peers.values():
            peer.sock = None
            for _, fd in peer.plans:
                os.close(fd)
            peer.plans.clear()
        for sock in [self._listener, *(sock for sock, _ in self._sockets.values())]:
            sock.close()
        for fd in self._held:
            os.close(fd)
        self._sockets, self._held = {}, []
        if self._ends is not None:
            self._ends.close()
        self._boxes = None  # the memory goes with the last view of it
        self._slots, self._by_index = {}, []
        self._steps.clear()


def _check_user(sock: socket.socket) -> None:
    """Check that the other end is the same user's."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    uid = struct.unpack("3i", credentials)[1]
    if uid != os.getuid():
        raise HandshakeRefused("connection", f"user {uid}", f"user {os.getuid()}")


def _kept(pipes: Sequence[tuple[int, int]], task: int) -> list[int]:
    """Of a pipe for each task, the ends that a task holds."""
    return [pipes[task][1], pipes[(task + 1) % len(pipes)][0]]


def _named(superstep: int) -> str:
    return f"superstep {superstep}" if superstep < PLANNING else "a plan"


TRANSPORT = Shm
