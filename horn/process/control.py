"""The messages between a task process and the process that started it.

Each message is msgpack of one class below, over a unix socket that keeps messages apart; arrays go
as descriptors of shared memory beside it. A message too long for a packet goes in one as well. Both
ends check every message: its length, its class, every field.
"""

from __future__ import annotations

import array
import fcntl
import functools
import operator
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from horn.errors import UNREADABLE, ProtocolError
from horn.security.keys import Credential
from horn.wire import descriptors

PACKET_BYTES = 32 * 1024
MESSAGE_BYTES = 64 * 1024 * 1024
MAX_DESCRIPTORS = 64
TEXT_CHARACTERS = 64_000
INLINE, IN_MEMORY = b"\0", b"\1"
# A task's wait for its parent to read, which may be stopped (Ctrl-Z), or in a long callback.
UNREAD_S = 86_400.0
RECEIVED = (PACKET_BYTES + 1, MAX_DESCRIPTORS)

# The steps of a task's start, in their order, each with a deadline of its own; and its end.
STEPS = (
    "importing horn",
    "reading its payload",
    "joining its group",
    "waiting for the others to join",
    "connecting",
    "compiling the network",
    "going on from what was saved",
    "at the first barrier",
    "ending",
)
(
    IMPORTING, READING, JOINING, WAITING, CONNECTING, COMPILING, RESUMING, MEETING, ENDING,
) = range(len(STEPS))  # fmt: skip

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS)]


class ControlMessage(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The base class of all messages."""


class StartTask(ControlMessage, frozen=True):
    """To a process: become this task. The descriptors are a payload. key : the job's, encrypts what
    leaves the host; credential : for ZooKeeper; both are here because others can read arguments and
    environments. folder : the working directory.
    """

    task: _Count
    key: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)] | None = None
    credential: Credential | None = None
    folder: str = ""


class StartPhase(ControlMessage, frozen=True):
    """A task has reached a step of its start, or its end: ``step`` is an index of STEPS."""

    step: Annotated[int, msgspec.Meta(ge=0, lt=len(STEPS))]


class Heartbeat(ControlMessage, frozen=True):
    """A task trains: sent every few seconds where no other task waits for it. ``measures``: it
    measures the model, and may be silent until a heartbeat that does not say so.
    """

    measures: bool = False


class GroupReady(ControlMessage, frozen=True):
    """The group has met and agreed; training begins. ``seconds`` since the process began."""

    seconds: float


class BatchProgress(ControlMessage, frozen=True):
    """Progress inside an epoch."""

    epoch: int
    iteration: int
    loss: float
    samples_per_s: float


class BatchDone(ControlMessage, frozen=True):
    """The job's first task has made an update; sent where a callback asks for every update. loss :
    None where its group had no sample.
    """

    epoch: _Count
    iteration: _Count
    loss: float | None


class CallbackDecision(ControlMessage, frozen=True):
    """To tasks of ranks below ``n_ranks``: the callbacks' decision after ``at`` updates, at the end
    of an epoch or within it. rate : of SettableRate. memory : the callbacks' state.
    """

    at: _Count
    is_epoch: bool
    stop: bool
    rate: float | None
    n_ranks: _Count
    memory: dict[str, Any] = {}


class ModelRequest(ControlMessage, frozen=True):
    """To tasks of ranks below ``n_ranks``, which wait for a CallbackDecision: send your share."""

    n_ranks: _Count


class EpochRow(ControlMessage, frozen=True):
    """An epoch is over in a group. ``own`` : the group's own loss, and its number of samples."""

    values: dict[str, float | int | list[float] | None]
    group: _Count = 0
    own: tuple[float, _Count] | None = None


class ArrayPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of an array, at ``offset`` of the memory. ``places`` : by axis (start, stop, step), or
    (offset, count) of int64 indices.
    """

    kind: str  # "parameter" or "state"
    name: str
    dtype: str
    shape: tuple[_Count, ...]
    offset: _Count
    places: tuple[Annotated[tuple[_Count, ...], msgspec.Meta(min_length=2, max_length=3)], ...]


class ArrayShare(ControlMessage, frozen=True):
    """A task's part of all arrays; the descriptor is their memory."""

    parts: tuple[ArrayPart, ...]


class TraceEvents(ControlMessage, frozen=True):
    """A task's trace: (phase, label, superstep, begin, end), monotonic seconds; ``n_left_out``
    counts events over the limit.
    """

    events: tuple[tuple[str, str, int, float, float], ...]
    n_left_out: int


class TaskFinished(ControlMessage, frozen=True):
    """The final message of a task: a LoopResult and TaskTimes. staleness : a server's number of
    pieces by lateness. is_halted : it stopped at a boundary.
    """

    iterations: int = 0
    iteration: int = 0
    stopped_early: bool = False
    best_epoch: int | None = None
    test: dict[str, float] | None = None
    metrics: dict[str, dict[str, float]] = {}
    spent: dict[str, int | float] = {}
    staleness: dict[int, int] = {}
    is_halted: bool = False


class FailureReport(ControlMessage, frozen=True, kw_only=True):
    """A task's failure. kinds : class and bases of the exception. label : of the instruction. when
    : monotonic seconds. line : (file, number, text) of the user's code. The rest are fields of
    exceptions: ranks, and the names that the error has for them.
    """

    kinds: tuple[str, ...]
    text: _Text
    when: float
    where: _Text = ""
    label: _Text = ""
    line: tuple[str, int, str] | None = None
    traceback: _Text = ""
    absent: tuple[str, ...] = ()
    absent_ranks: tuple[_Count, ...] = ()
    arrived: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    lost_ranks: tuple[_Count, ...] = ()
    hint: _Text = ""
    reason: _Text = ""
    timeout_s: float = 0.0
    trouble: tuple[str, int, int] | None = None


class LeaveRun(ControlMessage, frozen=True):
    """To the tasks of a group with durable servers: leave at the end of this epoch."""

    group: _Count


class SaveRequest(ControlMessage, frozen=True):
    """To tasks: save after so many updates; to ``stop``, wait there for StopDecision."""

    at: _Count
    stop: bool = False


class StopDecision(ControlMessage, frozen=True):
    """To tasks: stop ``at`` this boundary, as all do; or ``go_on``, since one has passed it."""

    at: _Count
    go_on: bool


class SaveReply(ControlMessage, frozen=True):
    """The reply to a SaveRequest: ``at`` is past, or the task is there and waits to stop."""

    at: _Count
    iteration: _Count
    is_late: bool = False
    is_waiting: bool = False


class PartSaved(ControlMessage, frozen=True):
    """A part of a checkpoint is on disk, or ``error``. n_rows : of the history, ended epochs."""

    iteration: _Count
    n_rows: _Count
    n_bytes: _Count = 0
    sha256: _Text = ""
    error: _Text = ""


_ENCODE = msgspec.msgpack.Encoder()
# Decodes any of the classes above, by its tag.
_DECODE: msgspec.msgpack.Decoder[ControlMessage] = msgspec.msgpack.Decoder(
    functools.reduce(operator.or_, ControlMessage.__subclasses__())
)


def packed(message: ControlMessage) -> bytes:
    """A message as bytes, for a connection other than a ControlChannel."""
    return _ENCODE.encode(message)


def parsed(data: bytes) -> ControlMessage:
    """The message of ``packed`` bytes. Raises ProtocolError."""
    try:
        return _DECODE.decode(data)
    except UNREADABLE as error:
        raise ProtocolError(f"control message: {error}") from error


class ControlChannel:
    """One end. Raises ProtocolError: no message. BrokenPipeError: the other end has gone."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._lock = threading.Lock()  # a receive's deadline would be that of a send beside it
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    @classmethod
    def pair(cls) -> tuple[ControlChannel, ControlChannel]:
        """Make both ends; the second is for a child process to inherit."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(
        self, message: ControlMessage, descriptors: Sequence[int] = (), timeout_s: float = UNREAD_S
    ) -> None:
        """Send a message; wait while the other end has too much unread. Raises TimeoutError."""
        packed = _ENCODE.encode(message)
        if len(packed) <= PACKET_BYTES:
            self._put([INLINE, packed], descriptors, timeout_s)
            return
        fd = in_memory("horn-control", packed)
        try:
            self._put([IN_MEMORY], [fd, *descriptors], timeout_s)
        finally:
            os.close(fd)

    def _put(self, packet: list[bytes], fds: Sequence[int], timeout_s: float) -> None:
        ends = time.monotonic() + timeout_s
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        while True:
            try:
                with self._lock:  # not while it waits: another thread may receive
                    self.sock.sendmsg(packet, [rights], socket.MSG_DONTWAIT)
                return  # socket.send_fds takes flags, and drops them
            except OSError as error:
                is_crowded = descriptors.is_crowded(error)
                if not (is_crowded or isinstance(error, BlockingIOError)):
                    raise
                left_s = max(ends - time.monotonic(), 0.0)
                wait_s = min(left_s, descriptors.CROWDED_S) if is_crowded else left_s
                poll = select.poll()
                poll.register(self.sock, 0 if is_crowded else select.POLLOUT)
                if not poll.poll(wait_s * 1000) and wait_s == left_s:
                    why = f"the other end has read nothing for {timeout_s:g} s"
                    why = descriptors.crowded() if is_crowded else why
                    raise TimeoutError(f"control message: {why}") from None

    def wait(self, timeout_s: float) -> bool:
        """Whether a message comes within a time; 0 costs a microsecond."""
        return bool(self._poll.poll(timeout_s * 1000))

    def receive(self, timeout_s: float | None) -> tuple[ControlMessage, list[int]] | None:
        """The next message and its descriptors, the caller's to close; None: the other end has
        gone. Raises TimeoutError. With threads that send, ``wait`` first.
        """
        with self._lock:
            self.sock.settimeout(timeout_s)
            try:
                packet, fds, flags = self._packet()
            except ConnectionResetError:
                return None
            finally:
                self.sock.settimeout(None)
        if not packet:
            return None
        try:
            if flags & socket.MSG_TRUNC:
                raise ProtocolError("longer than a packet")
            if flags & socket.MSG_CTRUNC:  # the kernel drops descriptors that find no place
                raise ProtocolError(f"its memory cannot be opened: {descriptors.shortage()}")
            if packet[:1] == IN_MEMORY:
                if not fds:
                    raise ProtocolError("its memory is missing")
                packed = _read(fds[0])
                os.close(fds.pop(0))
            else:
                packed = packet[1:]
            return _DECODE.decode(packed), fds
        except (ProtocolError, OSError, *UNREADABLE) as error:
            for fd in fds:
                os.close(fd)
            raise ProtocolError(f"control message: {error}") from error

    def next_message(self) -> ControlMessage:
        """The next message to a task, after ``wait``. Raises SystemExit: the parent has gone."""
        found = self.receive(1.0)
        if found is None:
            raise SystemExit(0)
        return found[0]

    def _packet(self) -> tuple[bytes, list[int], int]:
        try:
            return descriptors.receive(self.sock, *RECEIVED)
        except ConnectionResetError:
            # The other end has gone and left messages unread: this error comes first, and once.
            # Messages that it sent before can still be received.
            return descriptors.receive(self.sock, *RECEIVED)

    def close(self) -> None:
        self.sock.close()


def _read(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    if not 0 < size <= MESSAGE_BYTES:
        raise ProtocolError(f"{size} bytes, but 1 to {MESSAGE_BYTES} are allowed")
    return _content(fd, size)


def in_memory(name: str, data: bytes) -> int:
    """Make a sealed memfd with these bytes; the descriptor is the caller's."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, descriptors.SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def content(fd: int) -> bytes:
    """The bytes in a memfd. Raises ProtocolError: it is cut short meanwhile."""
    return _content(fd, os.fstat(fd).st_size)


def _content(fd: int, size: int) -> bytes:
    """Not mapped: where who sent it cuts it short, the end of a mapping is SIGBUS."""
    at, parts = 0, list[bytes]()
    while at < size:
        parts.append(os.pread(fd, size - at, at))  # at most 2 GiB at once
        if not parts[-1]:
            raise ProtocolError(f"its memory was cut short, from {size} bytes to {at}")
        at += len(parts[-1])
    return b"".join(parts)
