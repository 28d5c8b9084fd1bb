"""Transports, which carry the blocks of a superstep from task to task.

A file per transport, named as the scheme of its URLs, its last line ``TRANSPORT``; files with an
underscore are shared. A transport is used from one thread.
"""

from __future__ import annotations

import functools
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np

from horn import registry
from horn.errors import BarrierTimeout, JobError, MemberLost
from horn.wire.frames import Array, BadFrame, HandshakeRefused, WireMessage
from horn.wire.messages import DTYPES, Meta


def _task(number: int) -> tuple[str, tuple[int, ...]]:
    return f"task {number}", (number,)


@dataclass(frozen=True)
class Identity:
    """The identity of a peer, for its connections. rank : its number among ``world_size`` tasks of
    a group, ranks of a job, or hosts; on links of durable servers that of a server, or a task's
    rank, and ``world_size`` counts a group's tasks. attempt : lower ones are refused. key :
    encrypts what leaves a host. who : for errors, the name of a peer by its number, and the ranks
    of the run that are lost with it.
    """

    rank: int
    world_size: int
    job: str
    attempt: int = 0
    key: bytes | None = field(default=None, repr=False)
    who: Callable[[int], tuple[str, tuple[int, ...]]] = field(
        default=_task, repr=False, compare=False
    )

    def name(self, number: int) -> str:
        """The name of a peer in errors."""
        return self.who(number)[0]


@dataclass(frozen=True)
class Channel:
    """A block that ``src`` owes ``dsts`` in each superstep that names its ``part``. order :
    "turned" where its axes are the other way round. common : no block, but shared memory, which no
    superstep names.
    """

    part: int
    src: int
    dsts: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]
    label: str = ""  # for people: "layer 2 'hidden', forward"
    order: str = ""
    common: bool = False

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return (
            f"part {self.part} ({f'{self.label}, ' if self.label else ''}{self.dtype} {self.shape})"
        )


@dataclass
class TransportCounters:
    """Counters since the start. Frames: ``n_dropped`` of strangers, ``n_damaged`` of peers,
    ``n_repeated`` repeated or too early, ``n_resent`` sent again. ``n_mended`` : connections made
    anew. ``wait_s`` : time of waiting.
    """

    n_sent: int = 0
    sent_bytes: int = 0
    n_received: int = 0
    received_bytes: int = 0
    wait_s: float = 0.0
    n_dropped: int = 0
    n_damaged: int = 0
    n_repeated: int = 0
    n_resent: int = 0
    n_mended: int = 0

    def troubles(self) -> dict[str, int]:
        """What went wrong and was put right."""
        names = ("n_dropped", "n_damaged", "n_repeated", "n_resent", "n_mended")
        return {name: getattr(self, name) for name in names}


class PeerLost(MemberLost):
    """A peer's process has gone, or it left while it still owed blocks."""

    def __init__(
        self,
        where: str,
        lost: tuple[str, ...],
        reason: str,
        lost_ranks: tuple[int, ...] = (),
        by: int | None = None,
    ) -> None:
        super().__init__(where, lost, lost_ranks, by)
        self.reason = reason
        self.args = (where, lost, reason, lost_ranks, by)

    def __str__(self) -> str:
        return f"{self.where}: lost {', '.join(self.lost)} ({self.reason})"


class PeerUnreachable(PeerLost):
    """A registered peer that others reach cannot be reached from here: a start elsewhere helps."""


class Transport(ABC):
    """One task's connection to its group.

    ``connect`` and ``open_channels`` are called by all tasks together. Then, superstep by
    superstep: write into ``outbox(part)``, ``exchange``, read ``inbox(part)``. Every wait ends
    after ``timeout_s``.

    Raises
    ------
    PeerLost : a peer died or left. BarrierTimeout : it is late; says who, where and what it owes.
    ProtocolError : peers disagree, or a frame is what no accident makes of one.
    """

    scheme: ClassVar[str]
    default_url: ClassVar[str]  # where a task listens if given only the scheme
    link_url: ClassVar[str]  # where it listens for messages beside its blocks, over sockets
    crosses_processes: ClassVar[bool] = True
    crosses_hosts: ClassVar[bool] = False
    can_share: ClassVar[bool] = False  # whether there may be common channels
    fds_per_peer: ClassVar[int]  # open files of a task for each other, at most
    # What plans assume, scaled by the speed of the machine: seconds from a post to the other's
    # waking, with the Python of post and collect, and bytes per second of a task besides the copies
    # in and out. Measured with 2 tasks on 2 cores (horn/planner/calibration.py).
    latency_s: ClassVar[float]
    bytes_per_s: ClassVar[float]
    endpoint: str  # the address for the other tasks

    def __init__(self, url: str, identity: Identity) -> None:
        self.url, self.identity, self.counters = url, identity, TransportCounters()
        self.task, self.n_tasks = identity.rank, identity.world_size

    @abstractmethod
    def connect(self, peers: Sequence[str], timeout_s: float) -> None:
        """Connect to the others; ``peers`` are all endpoints by task, this one's own included."""

    @abstractmethod
    def open_channels(self, channels: Sequence[Channel], timeout_s: float) -> None:
        """Agree on the channels; a second call replaces them."""

    @abstractmethod
    def outbox(self, part: int, timeout_s: float) -> Array:
        """The array for the next block of this part. Waits until its readers make room."""

    @abstractmethod
    def post(self, superstep: int, parts: Sequence[int]) -> None:
        """Send this task's blocks of ``parts``; release the blocks collected before."""

    @abstractmethod
    def collect(self, superstep: int, parts: Sequence[int], timeout_s: float) -> None:
        """Wait for the blocks of ``parts`` that others owe this task, after ``post``, and until its
        own among them are sent: a transport sends only while it is called.
        """

    @abstractmethod
    def inbox(self, part: int) -> Array:
        """The block that was collected last, read-only, whole until the part is posted again."""

    def common(self, part: int) -> Array:
        """The memory of a common channel. Writers must know that nobody reads it then."""
        raise AssertionError(f"{self.scheme} shares no memory")

    def exchange(self, superstep: int, parts: Sequence[int], timeout_s: float) -> None:
        """Run one superstep: send this task's blocks, and collect those of the others."""
        self.post(superstep, parts)
        self.collect(superstep, parts, timeout_s)

    @abstractmethod
    def barrier(self, superstep: int, timeout_s: float) -> None:
        """Wait until all tasks have called it for this superstep."""

    @abstractmethod
    def send(
        self, to: int, meta: Meta, arrays: Sequence[Array], timeout_s: float, wait: bool = True
    ) -> None:
        """Send a message beside the blocks. Without ``wait`` it may go later: keep the arrays."""

    @abstractmethod
    def receive(self, timeout_s: float) -> WireMessage | None:
        """The next message beside the blocks, None if there is none in time."""

    def absent(self) -> dict[int, str]:
        """Departed peers, and why: for users that only receive. Messages may still arrive."""
        return {}

    @abstractmethod
    def close(self, reason: str = "finished") -> None:
        """Leave: notify the others, and leave nothing behind. May be called twice."""

    def _check_endpoints(self, peers: Sequence[str]) -> None:
        if len(peers) != self.n_tasks:
            raise HandshakeRefused("endpoints", len(peers), f"{self.n_tasks}, one per task")

    def _check_receiver(self, to: int) -> None:
        if to == self.task or not 0 <= to < self.n_tasks:
            raise BadFrame("receiver", f"task {to}", f"another task below {self.n_tasks}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close("finished" if error is None else f"{type(error).__name__}: {error}"[:1000])


def overdue(
    identity: Identity,
    where: str,
    absent: Sequence[int],
    owes: Callable[[int], str],
    timeout_s: float,
) -> BarrierTimeout:
    """The error that tasks ``absent`` have not sent in time what they owe."""
    name = identity.name
    arrived = tuple(name(task) for task in range(identity.world_size) if task not in absent)
    hint = "; ".join(f"{name(task)} owes {owes(task)}" for task in absent)
    ranks = tuple(rank for task in absent for rank in identity.who(task)[1])
    return BarrierTimeout(where, tuple(map(name, absent)), arrived, timeout_s, hint, ranks)


def peer_lost(identity: Identity, where: str, task: int, reason: str) -> PeerLost:
    """The error that a task has gone."""
    name, ranks = identity.who(task)
    return PeerLost(where, (name,), reason, ranks)


def names() -> list[str]:
    """The schemes of all transports."""
    return registry.names(__name__)


def load(scheme: str) -> type[Transport]:
    """The transport of a scheme."""
    found: type[Transport] = registry.load(__name__, "transport", scheme)
    return found


def between_processes(name: str) -> type[Transport]:
    """The transport of a scheme, for tasks that are processes. Raises JobError."""
    found = load(name)
    if not found.crosses_processes:
        raise JobError(f"transport {name} carries nothing between processes; choose another")
    return found


def across_hosts() -> str:
    """The scheme between hosts, the first that crosses them."""
    return next(name for name in names() if load(name).crosses_hosts)


def open_transport(url: str, identity: Identity) -> Transport:
    """A transport by its URL: ``shm://``, ``ipc:///folder``, ``tcp://host:port``, ``inproc://``."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise JobError(f"{url!r} is no transport: write one of {'://, '.join(names())}://")
    if not 0 <= identity.rank < identity.world_size:
        raise JobError(f"task {identity.rank} of {identity.world_size}: tasks count from 0")
    return load(scheme)(url, identity)


def checked(channels: Iterable[Channel], n_tasks: int) -> dict[int, Channel]:
    """Check channels, and return them by part. Raises BadFrame for one that no wire could carry."""
    found: dict[int, Channel] = {}
    for channel in channels:
        got, wanted = "", ""
        first, last = min(channel.dsts, default=-1), max(channel.dsts, default=-1)
        if channel.part in found or not 0 <= channel.part < 2**32:
            got, wanted = str(channel.part), "a part number used once, below 2**32"
        elif not channel.dsts or len(set(channel.dsts)) != len(channel.dsts):
            got, wanted = f"receivers {channel.dsts}", "at least one, each once"
        elif min(channel.src, first) < 0 or max(channel.src, last) >= n_tasks:
            ranks = (channel.src, first, last)
            task = next(rank for rank in ranks if not 0 <= rank < n_tasks)
            got, wanted = f"task {task}", f"0 to {n_tasks - 1}"
        elif channel.src in channel.dsts:
            got, wanted = f"task {channel.src} as its own receiver", "another"
        elif _code_of(channel.dtype) not in DTYPES.values():
            got, wanted = channel.dtype, f"one of {' '.join(DTYPES.values())}"
        if wanted:
            raise BadFrame(f"channels: {channel}", got, wanted)
        found[channel.part] = channel
    return found


@functools.cache
def _code_of(dtype: str) -> str:
    return np.dtype(dtype).str


def check_digest(peer: str, theirs: bytes, mine: bytes) -> None:
    """Check that a peer has the same channels. Raises HandshakeRefused."""
    if theirs != mine:
        raise HandshakeRefused(f"channels of {peer}", theirs.hex()[:12], mine.hex()[:12])


def digest(channels: Iterable[Channel]) -> bytes:
    """32 bytes that are equal when the channels are; labels do not count."""
    facts = [
        (c.part, c.src, c.dsts, _code_of(c.dtype), c.shape, c.order, c.common) for c in channels
    ]
    return hashlib.sha256(repr(facts).encode()).digest()
