"""Tasks as threads of one process, and the test fake: the same frames as ZeroMQ, over queues.

``faults`` says what happens to the n-th frame from one task to another: for tests, which need no
clock for it, since a delay is counted in frames. Words on how far frames have come are not counted:
how many there are is a matter of time.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from horn.errors import JobError
from horn.transport import Identity
from horn.transport._framed import FramedTransport
from horn.transport._link import always
from horn.wire.frames import HEADER, Buffer

HIGH_WATER = 16  # frames that one task may have under way to another, as in ZeroMQ
FULL_S = 0.001  # how often a sender looks whether there is room again
_SEQ = 9  # of a header's fields; words have none
Frame = tuple[bytes, list[bytes]]


@dataclass(frozen=True)
class DropFault:
    """The frame never arrives."""


@dataclass(frozen=True)
class DuplicateFault:
    """It arrives twice."""


@dataclass(frozen=True)
class DelayFault:
    """It arrives after ``n_frames`` later ones of the same sender: 1 swaps it with the next."""

    n_frames: int = 1


@dataclass(frozen=True)
class CorruptFault:
    """One bit of it is another: ``bit`` of part ``part`` (0 header, 1 meta, 2.. bodies)."""

    part: int = 0
    bit: int = 0


Fault = DropFault | DuplicateFault | DelayFault | CorruptFault
# (from, to, number of the frame from 1; 0 for any word)
Faults = Mapping[tuple[int, int, int], Fault]


class _Mailbox:
    """What lies before one task."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.frames: deque[Frame] = deque()
        self.answers: deque[tuple[bytes, int, list[bytes]]] = deque()
        self.n_under_way: dict[bytes, int] = {}
        self.is_closed = False


_lock = threading.Lock()
_boxes: dict[str, _Mailbox] = {}


class _Queues:
    """The link: one box per task."""

    needs_sum = True
    n_mended = 0  # a queue does not break

    def __init__(self, endpoint: str, task: int, faults: Faults) -> None:
        self.endpoint, self.task, self.faults = endpoint, task, dict(faults)
        self.box = _Mailbox()
        self.peers: dict[int, _Mailbox] = {}
        self.names: dict[int, str] = {}
        self.n_put: dict[int, int] = {}
        self.late: dict[int, list[tuple[int, list[bytes]]]] = {}
        self.incarnation = b""
        self.is_full = False
        with _lock:
            if endpoint in _boxes:
                raise JobError(f"{endpoint} is taken by another task of this process")
            _boxes[endpoint] = self.box

    def connect(self, peers: Sequence[str], incarnation: bytes) -> None:
        self.incarnation = incarnation
        self.names = {t: name for t, name in enumerate(peers) if t != self.task}

    def _find(self, to: int) -> _Mailbox | None:
        if to not in self.peers:
            with _lock:
                found = _boxes.get(self.names[to])
            if found is None:
                return None
            self.peers[to] = found
        return self.peers[to]

    def put(self, to: int, parts: Sequence[Buffer]) -> Callable[[], bool] | None:
        box = self._find(to)
        self.is_full = True  # until it is sent
        if box is None:
            return None
        with box.changed:
            if box.is_closed or box.n_under_way.get(self.incarnation, 0) >= HIGH_WATER:
                return None
            is_word = not HEADER.unpack_from(parts[0])[_SEQ]
            number = self.n_put[to] = self.n_put.get(to, 0) + (not is_word)
            late = self.late.setdefault(to, [])
            copies = [bytes(part) for part in parts]
            match self.faults.get((self.task, to, 0 if is_word else number)):
                case DropFault():
                    now = []
                case DuplicateFault():
                    now = [copies, copies]
                case DelayFault(n_frames=n_frames):
                    late.append((number + n_frames, copies))
                    now = []
                case CorruptFault(part=part, bit=bit):
                    bad = bytearray(copies[part])
                    bad[bit // 8 % len(bad)] ^= 1 << bit % 8
                    now = [[*copies[:part], bytes(bad), *copies[part + 1 :]]]
                case _:
                    now = [copies]
            now += [frame for due, frame in late if due <= number]
            self.late[to] = [(due, frame) for due, frame in late if due > number]
            for frame in now:
                box.frames.append((self.incarnation, frame))
            box.n_under_way[self.incarnation] = box.n_under_way.get(self.incarnation, 0) + len(now)
            box.changed.notify()
        self.is_full = False
        return always

    def get(self, wait_s: float) -> tuple[bytes, Sequence[Buffer]] | None:
        with self.box.changed:
            if not self.box.frames and wait_s > 0:
                self.box.changed.wait(min(wait_s, FULL_S) if self.is_full else wait_s)
            if not self.box.frames:
                return None
            sender, frame = self.box.frames.popleft()
            self.box.n_under_way[sender] -= 1
            return sender, frame

    def answer(self, sender: bytes, parts: Sequence[Buffer]) -> None:
        with _lock:
            boxes = list(_boxes.values())
        answer = (sender, self.task, [bytes(part) for part in parts])
        for box in boxes:  # the right one looks for its own incarnation
            with box.changed:
                box.answers.append(answer)
                box.changed.notify()

    def answers(self) -> list[tuple[int, Sequence[Buffer]]]:
        with self.box.changed:
            found = [
                (task, parts) for to, task, parts in self.box.answers if to == self.incarnation
            ]
            self.box.answers.clear()
        return [(task, parts) for task, parts in found if task in self.names]

    def gone(self) -> dict[int, str]:
        return {task: "it has gone" for task, box in self.peers.items() if box.is_closed}

    def broke(self) -> set[int]:
        return set()

    def doubt(self, task: int) -> None:
        """``gone`` knows."""

    def close(self, linger_s: float) -> None:
        with _lock:
            _boxes.pop(self.endpoint, None)
        with self.box.changed:
            self.box.is_closed = True
            self.box.frames.clear()
            self.box.changed.notify_all()


class InProc(FramedTransport):
    """``inproc://`` or ``inproc://name``; every task of the group lives in this process."""

    scheme = "inproc"
    default_url = link_url = "inproc://"
    crosses_processes = False
    fds_per_peer = 0
    latency_s, bytes_per_s = 60e-6, 4e9

    def __init__(self, url: str, place: Identity, faults: Faults | None = None) -> None:
        super().__init__(url, place, secrets.token_bytes(16))
        name = url.removeprefix("inproc://") or secrets.token_hex(8)
        self.endpoint = f"inproc://{name}"
        self.link = _Queues(self.endpoint, place.rank, faults or {})


TRANSPORT = InProc
