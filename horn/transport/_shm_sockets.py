"""The sockets between tasks that share memory on one host, which show tasks that come and go.

Abstract unix sockets carry hellos, the descriptors of common memory, notes and goodbyes;
a hang-up on them, or on a pipe that ends with its process, shows that a task has ended.
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
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from horn._kernels.mailbox import LEFT, Mailboxes
from horn.errors import BarrierTimeout, HornError, JobError
from horn.patience import Patience
from horn.security.audit import AuditLog, log_word
from horn.transport import Identity, check_digest, overdue, peer_lost
from horn.transport._handshake import Check, check_hello, hello_of, refusal, refused
from horn.transport._memfds import check_segment, message_of, packet_of
from horn.wire import descriptors
from horn.wire.accepted import uid_of
from horn.wire.frames import (
    HEADER_BYTES,
    Array,
    BadFrame,
    Expected,
    HandshakeRefused,
    WireMessage,
    decode,
    encode,
    next_frame,
)
from horn.wire.messages import Bye, ChannelDigest, Hello, Meta, Refusal
from horn.wire.text import wire_text

logger = logging.getLogger(__name__)

PACKET_BYTES = 76 * 1024  # a header, the largest meta, and bodies
MOST_DESCRIPTORS = 4  # beside a packet
SLICE_S = 0.02  # how often a waiting task looks for ended ones
ACCEPT_S = 1.0  # between looks at the clock while waiting for connections
ROOT = 0
ENDED = "its process ended: killed or crashed"
HUNG_UP = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ECONNREFUSED)


@dataclass
class _Peer:
    """One other task and the socket to it."""

    task: int
    name: str
    sock: socket.socket | None = None
    n_out: int = 0
    n_in: int = 0
    has_hello: bool = False  # its hello has come
    digests: deque[tuple[ChannelDigest, int]] = field(default_factory=deque)  # with the memfd
    gone: str | None = None


class SocketPeers:
    """The other tasks, and a socket to each. boxes : the common counters, once they exist; ended
    tasks are marked there, and a task that leaves marks itself.
    """

    def __init__(self, identity: Identity) -> None:
        self.identity, self.task, self.n_tasks = identity, identity.rank, identity.world_size
        self.boxes: Mailboxes | None = None
        self._peers = {
            task: _Peer(task, identity.name(task))
            for task in range(identity.world_size)
            if task != identity.rank
        }
        self._loose: deque[WireMessage] = deque()
        # Each task holds the writing end of its own pipe and the reading end of the next task's. A
        # common epoll shows which writing ends are closed, while any process holds the other end.
        self._ends: select.epoll | None = None
        self._held: list[int] = []
        self._handles: list[int] = []
        self._is_connecting = False
        self._incarnation = secrets.token_bytes(16)
        self._audit = AuditLog()
        self._poll = select.poll()
        self._sockets: dict[int, tuple[socket.socket, int | None]] = {}  # by descriptor; its task
        name = f"horn-{secrets.token_hex(16)}"
        self.endpoint = f"shm://{name}"
        self._endpoints: Sequence[str] = ()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listener.bind(f"\0{name}")
        self._listener.listen(identity.world_size)
        self._poll.register(self._listener, select.POLLIN)

    def __iter__(self) -> Iterator[int]:
        return iter(self._peers)

    # connecting

    def connect(self, endpoints: Sequence[str], patience: Patience, where: str) -> None:
        """Wait for hellos: the root for those of all, the others for the root's. Another process of
        this user is an error until ``end_connecting``; those of other users are not heard.
        """
        self._endpoints = endpoints
        self._is_connecting = True
        if self.task == ROOT:
            while absent := [t for t, peer in self._peers.items() if not peer.has_hello]:
                left_s = patience.left_s()
                if left_s <= 0:
                    raise overdue(
                        self.identity, where, absent, lambda t: "a hello", patience.timeout_s
                    )
                self._poll.poll(max(min(left_s, ACCEPT_S), 0.001) * 1000)
                self.read_all()
        else:
            self._dial(ROOT, patience, where)
            root = self._peers[ROOT]
            self._wait_for(ROOT, lambda: root.has_hello, patience, where, "its hello")

    def end_connecting(self) -> None:
        self._is_connecting = False

    def _dial(self, task: int, patience: Patience, where: str) -> None:
        """Connect to a task, and send a hello."""
        peer, endpoint = self._peers[task], self._endpoints[task]
        with descriptors.opening(f"{where}: connecting to {peer.name}"):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            name = "\0" + endpoint.removeprefix("shm://")
            while code := sock.connect_ex(name):
                if code != errno.EAGAIN:
                    raise OSError(code, os.strerror(code))
                time.sleep(SLICE_S)  # its queue of connections is full
                self.read_all()
                if peer.sock is not None:  # it has connected to this task meanwhile
                    sock.close()
                    return
                if patience.left_s() <= 0:
                    raise overdue(
                        self.identity, where, [task], lambda task: "room", patience.timeout_s
                    )
            _check_user(sock)
            sock.send(self._hello())
        except OSError as error:
            sock.close()
            why = f"{endpoint}: {error.strerror}"
            raise peer_lost(self.identity, where, task, why) from error
        except BaseException:
            sock.close()
            raise
        peer.sock, peer.n_out = sock, 1
        self._listen_to(sock, task)

    def _hello(self) -> bytes:
        return self._first(hello_of(self.identity, self._incarnation))

    def _first(self, meta: Meta) -> bytes:
        """Make the first packet of a connection."""
        message = WireMessage(meta, src=self.task, attempt=self.identity.attempt, seq=1)
        return b"".join(encode(message))

    def _listen_to(self, sock: socket.socket, task: int | None) -> None:
        self._sockets[sock.fileno()] = sock, task
        self._poll.register(sock, select.POLLIN)

    def _hang_up(self, sock: socket.socket, task: int | None = None) -> None:
        self._poll.unregister(sock)
        del self._sockets[sock.fileno()]
        if task is not None:
            peer = self._peers[task]
            if not self.find_gone([task]):
                peer.gone = ENDED
                if self.boxes is not None:
                    self.boxes.set_ended(task)
            if peer.sock is sock:
                peer.sock = None
        sock.close()

    def _accept(self) -> None:
        """Accept a connection; its hello will say from which task it comes."""
        try:
            with descriptors.opening(f"{self.identity.name(self.task)}: a connection of another"):
                sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        try:
            _check_user(sock)
        except HandshakeRefused as error:  # it is of no task: those of a job are one user's
            sock.close()
            where = f"task {self.task} of {self.identity.job}"
            self._audit.line("refused", address=error.got, reason="another user", at=where)
            return
        sock.setblocking(False)
        self._listen_to(sock, None)

    def _greet(self, sock: socket.socket, packet: bytes) -> None:
        """Handle the first packet of a connection that another process has made."""
        try:
            hello = self._checked(packet)
        except BadFrame as error:
            self._refuse(sock, error)
            self._hang_up(sock)
            self._tell_refused(error)
            return
        peer = self._peers[hello.task]
        peer.has_hello = True
        self._count(peer, 1)
        self._sockets[sock.fileno()] = sock, hello.task
        if peer.sock is None:  # else both have made one, and each sends on its own
            peer.sock, peer.n_out = sock, 1
            try:
                sock.send(self._hello())
            except OSError:
                pass  # it has gone again, which is seen at the other end of the queue

    def _count(self, peer: _Peer, seq: int) -> None:
        where = f"frames of {peer.name}, attempt {self.identity.attempt}"
        peer.n_in = next_frame(seq, peer.n_in, where)

    def _tell_refused(self, error: BadFrame) -> None:
        """Raise a refusal while tasks connect; later only log it."""
        if self._is_connecting:
            raise error
        logger.warning("connection refused task=%d error=%s", self.task, log_word(str(error)))

    def _checked(self, packet: bytes, task: int | None = None) -> Hello:
        """Read the hello in a packet, and check that it fits."""
        message = decode((packet[:HEADER_BYTES], packet[HEADER_BYTES:]))
        hello = message.meta
        if isinstance(hello, Refusal):
            who = "a peer" if task is None else self.identity.name(task)
            raise refused(who, hello)
        if not isinstance(hello, Hello):
            raise BadFrame("first frame", type(hello).__name__, "Hello")
        more: list[Check] = [("attempt", message.attempt, self.identity.attempt)]
        if task is not None:
            more.append(("task", hello.task, task))
        peer = self._peers.get(hello.task)
        is_free = peer is not None and not peer.has_hello
        check_hello(self.identity, message, hello, more, is_free)
        return hello

    def _refuse(self, sock: socket.socket, error: BadFrame) -> None:
        try:
            sock.send(self._first(refusal(error)))
        except OSError:
            pass  # it has gone already: then it needs no reason

    def _wait_for(
        self, task: int, is_there: Callable[[], bool], patience: Patience, where: str, what: str
    ) -> None:
        """Wait until ``is_there``; messages that a task sent before its end count."""
        while not is_there():
            self._poll.poll(SLICE_S * 1000)
            self.read_all()
            if is_there():
                return
            self.raise_lost(where, [task], lambda task: what)
            if patience.left_s() <= 0:
                raise overdue(self.identity, where, [task], lambda task: what, patience.timeout_s)

    # common memory

    def give(self, boxes: Mailboxes, digest: ChannelDigest, fd: int, patience: Patience) -> None:
        """Send the root's memory to all; the first time also the pipes that show ended tasks."""
        n, given = self.n_tasks, list[tuple[int, int]]()
        try:
            if self._ends is None:
                with descriptors.opening(f"pipes to {n} tasks"):
                    self._ends = select.epoll()
                    for _ in range(n):
                        given.append(os.pipe2(os.O_CLOEXEC))
                self._handles = [read for read, _ in given]
                for read in self._handles:
                    self._ends.register(read, 0)  # a hang-up is always reported
            for task, handle in enumerate(self._handles):
                boxes.enter(task, handle)
            for task in self._peers:
                more = [self._ends.fileno(), *_kept(given, task)] if given else []
                self.send(task, digest, (), patience, [fd, *more])
            if given:
                self._held = _kept(given, ROOT)
        finally:
            for end in itertools.chain(*given):
                if end not in self._held:
                    os.close(end)

    def given(self, mine: bytes, size: int, patience: Patience, where: str) -> int:
        """Receive the descriptor of the root's memory."""
        peer = self._peers[ROOT]
        self._wait_for(ROOT, lambda: bool(peer.digests), patience, where, "memory for all")
        told, fd = peer.digests.popleft()
        try:
            check_digest(peer.name, told.digest, mine)
            check_segment(fd, told.size, size, f"segment of {peer.name}")
        except BaseException:
            os.close(fd)
            raise
        return fd

    # lost tasks

    def raise_lost(self, where: str, absent: list[int], owes: Callable[[int], str]) -> None:
        for task in self.find_gone(absent):
            why = f"{self._peers[task].gone}; it owes {owes(task)}"
            raise peer_lost(self.identity, where, task, why)

    def find_gone(self, tasks: Sequence[int]) -> list[int]:
        """The tasks among these that have left or ended; ``gone`` has the reason."""
        boxes = self.boxes
        if boxes is not None:
            # Before the states are read: a task marks that it leaves before it ends.
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
                    boxes.set_ended(task)  # the task that holds its pipe may end next
        return [task for task in tasks if self._peers[task].gone is not None]

    # messages

    def send(
        self,
        to: int,
        meta: Meta,
        arrays: Sequence[Array],
        patience: Patience,
        fds: Sequence[int] = (),
    ) -> None:
        peer = self._peers[to]
        where = f"sending {type(meta).__name__} to {peer.name}"
        if peer.sock is None and self._endpoints and not self.find_gone([to]):
            self._dial(to, patience, where)
        message = WireMessage(meta, tuple(arrays), self.task, self.identity.attempt, peer.n_out + 1)
        with descriptors.opening(where):
            packet, own_fd = packet_of(message)
        try:
            carried = array.array("i", fds if own_fd is None else [own_fd])
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, carried)] if carried else []
            while True:
                if peer.sock is None or peer.gone is not None:
                    why = peer.gone or "it was never here"
                    raise peer_lost(self.identity, where, to, why)
                try:
                    peer.sock.sendmsg(packet, ancillary)
                    break
                except OSError as error:
                    if error.errno in HUNG_UP:
                        self.read_all()
                        if not self.find_gone([to]):
                            peer.gone = f"its process ended: {error.strerror}"
                        continue
                    self._wait_for_room(peer, error, patience, where)
        finally:
            if own_fd is not None:
                os.close(own_fd)
        peer.n_out += 1

    def _wait_for_room(self, peer: _Peer, error: OSError, patience: Patience, where: str) -> None:
        """Wait a little after a send that failed, and read: all who wait make room for others."""
        has_many = descriptors.is_crowded(error)
        if not (has_many or isinstance(error, BlockingIOError)):
            raise JobError(f"{where}: {error.strerror}") from error
        left_s = patience.left_s()
        if left_s <= 0:
            here, hint = self.identity.name(self.task), descriptors.crowded() if has_many else ""
            name, ranks = self.identity.who(peer.task)
            timeout_s = patience.timeout_s
            raise BarrierTimeout(where, (name,), (here,), timeout_s, hint, ranks) from None
        if has_many:
            self._poll.poll(min(left_s, descriptors.CROWDED_S) * 1000)
        elif peer.sock is not None:
            writable = select.poll()
            writable.register(peer.sock, select.POLLOUT)
            writable.poll(min(left_s, SLICE_S) * 1000)
        self.read_all()

    def read_all(self) -> None:
        """Read all sockets, without waiting."""
        for fd, _ in self._poll.poll(0):
            if fd == self._listener.fileno():
                self._accept()
                continue
            while (found := self._sockets.get(fd)) is not None and self._read(*found):
                pass

    def _read(self, sock: socket.socket, task: int | None) -> bool:
        try:
            packet, fds, flags = descriptors.receive(sock, PACKET_BYTES, MOST_DESCRIPTORS)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True  # it left data unread, which is reported once; its messages come now
        except OSError:
            packet, fds, flags = b"", [], 0
        if not packet:
            self._hang_up(sock, task)
            return False
        kept: list[int] = []
        try:
            if task is None:
                self._greet(sock, packet)
                return True
            peer = self._peers[task]
            if not peer.has_hello:
                self._checked(packet, task)
                peer.has_hello = True
                self._count(peer, 1)
                return True
            # The kernel drops descriptors that find no place, here or in this process.
            if flags & socket.MSG_CTRUNC and len(fds) < MOST_DESCRIPTORS:
                mine = self.identity.name(self.task)
                raise JobError(f"{mine}: a message from {peer.name}: {descriptors.shortage()}")
            try:
                message = message_of(packet, fds, Expected(task, self.identity.attempt))
                self._count(peer, message.seq)
            except BadFrame as error:
                where = f"frame from {peer.name}: {error.where}"
                raise BadFrame(where, error.got, error.expected) from error
            match message.meta:
                case ChannelDigest() as told:
                    n_wanted = 4 if self._ends is None else 1
                    if len(fds) != n_wanted or task != ROOT:
                        got = f"{len(fds)} descriptors"
                        raise BadFrame(
                            f"channels of {peer.name}", got, f"{n_wanted}, of task {ROOT}"
                        )
                    kept = fds
                    if self._ends is None:
                        self._ends, self._held = select.epoll.fromfd(fds[1]), fds[2:]
                    peer.digests.append((told, fds[0]))
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

    def receive(self, timeout_s: float) -> WireMessage | None:
        ends = time.monotonic() + timeout_s
        while not self._loose:
            left_s = ends - time.monotonic()
            self._poll.poll(max(left_s, 0.0) * 1000)
            self.read_all()
            if not self._loose and left_s <= 0:
                return None
        return self._loose.popleft()

    def absent(self) -> dict[int, str]:
        return {task: str(self._peers[task].gone) for task in self.find_gone([*self._peers])}

    def close(self, reason: str) -> None:
        """Say goodbye to all, and close everything."""
        for task, peer in self._peers.items():
            if peer.sock is not None:  # it may not have the memory where the reason is
                try:
                    self.send(task, Bye(reason=wire_text(reason, 4000)), (), Patience(0.0))
                except HornError:
                    pass  # it cannot be told, or says what no longer counts: the hang-up shows it
        for peer in self._peers.values():
            peer.sock = None
            for _, fd in peer.digests:
                os.close(fd)
            peer.digests.clear()
        for sock in [self._listener, *(sock for sock, _ in self._sockets.values())]:
            sock.close()
        for fd in self._held:
            os.close(fd)
        self._sockets, self._held = {}, []
        if self._ends is not None:
            self._ends.close()
        self.boxes = None


def _check_user(sock: socket.socket) -> None:
    """Check that the process at the other end is the same user's."""
    uid = uid_of(sock)
    if uid != os.geteuid():
        raise HandshakeRefused("connection", f"user {uid}", f"user {os.geteuid()}")


def _kept(pipes: Sequence[tuple[int, int]], task: int) -> list[int]:
    """The ends of pipes that a task holds, of one pipe for each task."""
    return [pipes[task][1], pipes[(task + 1) % len(pipes)][0]]
