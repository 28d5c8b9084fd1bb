"""The messages between an agent and a job runner: a line of JSON each, over a socket pair.

A job's keys go this way only: others can read arguments and environments.
"""

from __future__ import annotations

import functools
import operator
import select
import socket
import threading
import time
from typing import Any

import msgspec

from horn.cluster.master import Allocation, HostFailure
from horn.errors import UNREADABLE, ProtocolError
from horn.process.limits import ProcessLimits
from horn.security.keys import Credential

MAX_BYTES = 4 * 1024 * 1024  # of one line
REPORT_BYTES = 800_000  # of one to an agent, which writes it into a node of ZooKeeper
CUT_OFF = 75  # exit code of a job runner whose agent's lease is over (EX_TEMPFAIL)


class RunnerMessage(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The base class of all messages, a line each."""


class StandbySize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The standby tasks of a waiting job runner, with so many threads each."""

    n_tasks: int
    threads: int
    limits: ProcessLimits


class Assignment(RunnerMessage, frozen=True, kw_only=True):
    """To a job runner: run this job, on this host, for this attempt.

    work : its folder, with the package. keep : for checkpoints and the model. submission : as
    builtins. zookeeper : hosts. key, credential : the job's. can_save : all hosts see the same
    ``keep``. threads : per task. begin, changed : as in HostOrder. groups, n_scaled : as in
    JobRecord.
    """

    job: str
    attempt: int
    host: str
    allocations: dict[str, Allocation]
    work: str
    keep: str
    logs: str
    submission: dict[str, Any]
    zookeeper: str
    key: bytes | None = None
    credential: Credential | None = None
    can_save: bool = False
    threads: int = 1
    begin: int = -1
    groups: tuple[int, ...] = ()
    changed: bool = False
    n_scaled: int = 0


class AddStandby(RunnerMessage, frozen=True):
    """To a job runner that waits: start so many standby tasks more, for slots that came free."""

    n_tasks: int


class StopJob(RunnerMessage, frozen=True):
    """To a job runner: save, then end."""


class AgentLease(RunnerMessage, frozen=True):
    """To a job runner: until when its agent is sure of its place, in s of the monotonic clock.
    Nobody else has the job's places before; after it, without a later one, others may.
    """

    until: float


class ChangeGroups(RunnerMessage, frozen=True):
    """To a job runner: change the groups. ``allocations`` : of all hosts."""

    groups: tuple[int, ...]
    allocations: dict[str, Allocation]


class GroupLeft(RunnerMessage, frozen=True):
    """From the job runner with rank 0: a group has left."""

    group: int


class EndJob(RunnerMessage, frozen=True):
    """To a job runner: end now."""


class RunnerReady(RunnerMessage, frozen=True):
    """From a job runner: ready for its assignment."""


class TasksRunning(RunnerMessage, frozen=True):
    """From a job runner: the tasks train."""


class JobProgress(RunnerMessage, frozen=True):
    """From the job runner with rank 0: the progress of the job."""

    progress: dict[str, Any]


class CheckpointComplete(RunnerMessage, frozen=True):
    """From a job runner: a checkpoint is complete."""

    iteration: int


class CheckpointFailed(RunnerMessage, frozen=True):
    """From a job runner: checkpoints are not saved, for this reason, until one is complete."""

    reason: str


class RunnerFinished(RunnerMessage, frozen=True):
    """The final message of a job runner. phase : one of master.ENDED_PHASES."""

    phase: str
    failure: HostFailure | None = None
    result: dict[str, Any] | None = None
    checkpoint: int = -1


_ENCODE = msgspec.json.Encoder()
# Decodes any of the classes above, by its tag.
_DECODE: msgspec.json.Decoder[RunnerMessage] = msgspec.json.Decoder(
    functools.reduce(operator.or_, RunnerMessage.__subclasses__())
)


class RunnerConnection:
    """One end. max_bytes : of a line that is read. Raises ProtocolError: no such message, or it is
    longer. OSError: the other end has gone.
    """

    def __init__(self, sock: socket.socket, max_bytes: int = MAX_BYTES) -> None:
        self.sock, self.max_bytes = sock, max_bytes
        self._buffer, self._unsent = bytearray(), bytearray()
        self._sending = threading.RLock()

    @classmethod
    def pair(cls) -> tuple[RunnerConnection, RunnerConnection]:
        """An agent's end, and that of its job runner."""
        ours, theirs = socket.socketpair()
        return cls(ours, REPORT_BYTES), cls(theirs)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, word: RunnerMessage) -> None:
        self.sock.sendall(_ENCODE.encode(word) + b"\n")

    def send_soon(self, word: RunnerMessage) -> None:
        """Send what the other end has room for; ``flush`` sends more, while it ``is_behind``. Both
        from any thread.
        """
        with self._sending:
            self._unsent += _ENCODE.encode(word) + b"\n"
            self.flush()

    @property
    def is_behind(self) -> bool:
        return bool(self._unsent)

    def flush(self) -> None:
        with self._sending:
            try:
                while self._unsent:
                    del self._unsent[: self.sock.send(self._unsent, socket.MSG_DONTWAIT)]
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()
                raise

    def wait(self, until: float | None) -> bool:
        """Wait for the other end; False if it has said nothing by a time of the monotonic clock."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        if until is None:
            return bool(poll.poll())
        while (left_s := until - time.monotonic()) > 0:
            if poll.poll(left_s * 1000):
                return True
        return bool(poll.poll(0))  # what came while this process stood still counts

    def read(self, *, waits: bool = True) -> list[RunnerMessage] | None:
        """Wait for messages; None when the other end has gone. With ``waits`` False return only
        messages that have come already; None when that is all.
        """
        try:
            data = self.sock.recv(65536, 0 if waits else socket.MSG_DONTWAIT)
        except (ConnectionResetError, BlockingIOError):
            data = b""
        if not data:
            return None
        self._buffer += data
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        if max(map(len, (*lines, rest))) > self.max_bytes:
            raise ProtocolError(
                f"more than {self.max_bytes:,} bytes in a line of agent and job runner"
            )
        try:
            return [_DECODE.decode(line) for line in lines]
        except UNREADABLE as error:
            raise ProtocolError(f"between agent and job runner: {error}") from error

    def close(self) -> None:
        self.sock.close()
