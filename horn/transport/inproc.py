"""Tasks as threads of one process: the same frames as ZeroMQ, over queues. Tests lose and alter
some of them (``tests/transport/faulty.py``).
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar

from horn.errors import JobError
from horn.transport import Identity
from horn.transport._framed import FramedTransport
from horn.transport._link import always
from horn.wire.frames import Buffer

HIGH_WATER = 16  # frames that one task may have under way to another, as in ZeroMQ
FULL_S = 0.001  # how often a sender looks whether there is room again
Frame = tuple[bytes, list[bytes]]


class _Mailbox:
    """The frames that wait for one task."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.frames: deque[Frame] = deque()
        self.answers: deque[tuple[bytes, int, list[bytes]]] = deque()
        self.n_under_way: dict[bytes, int] = {}
        self.is_closed = False


_lock = threading.Lock()
_boxes: dict[str, _Mailbox] = {}


class InProcQueues:
    """The link: one box per task."""

    needs_sum = True
    n_mended = 0  # a queue does not break

    def __init__(self, endpoint: str, task: int) -> None:
        self.endpoint, self.task = endpoint, task
        self.box = _Mailbox()
        self.peers: dict[int, _Mailbox] = {}
        self.names: dict[int, str] = {}
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
            now = self.arriving(to, [bytes(part) for part in parts])
            box.frames += ((self.incarnation, frame) for frame in now)
            box.n_under_way[self.incarnation] = box.n_under_way.get(self.incarnation, 0) + len(now)
            box.changed.notify()
        self.is_full = False
        return always

    def arriving(self, to: int, frame: list[bytes]) -> list[list[bytes]]:
        """The frames that arrive when this one is sent."""
        return [frame]

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
            found = list(self.box.answers)
            self.box.answers.clear()
        return [(t, parts) for to, t, parts in found if to == self.incarnation and t in self.names]

    def gone(self) -> dict[int, str]:
        return {task: "it has gone" for task, box in self.peers.items() if box.is_closed}

    def broke(self) -> set[int]:
        return set()

    def doubt(self, task: int) -> None:
        """Do nothing: ``gone`` knows."""

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
    queues: ClassVar[type[InProcQueues]] = InProcQueues

    def __init__(self, url: str, identity: Identity) -> None:
        super().__init__(url, identity, secrets.token_bytes(16))
        name = url.removeprefix("inproc://") or secrets.token_hex(8)
        self.endpoint = f"inproc://{name}"
        self.link = self.queues(self.endpoint, identity.rank)


TRANSPORT = InProc
