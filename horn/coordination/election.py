"""Who leads: the candidate that came first and is still there.

Candidates are ephemeral sequential nodes; each watches only the one before it. The epoch of a
leader is the zxid of its candidacy: a later leader's is always higher, so receivers can refuse an
older one (``coord.Fence``), and a transaction that begins with ``Leadership.step`` is refused by
ZooKeeper itself once the candidacy is gone.
"""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass

from horn.coordination.records import Check, Create, Event, Node, Reply, Step
from horn.coordination.session import Coordinator
from horn.errors import Fenced, NotApplied, NotFound
from horn.errors import Timeout as HornTimeout


@dataclass(frozen=True)
class Leader:
    """Who leads now: its ``data`` and its epoch."""

    data: bytes
    epoch: int


@dataclass(frozen=True)
class Leadership:
    """The proof of having been elected. ``path`` is the candidacy."""

    path: str
    epoch: int

    @property
    def step(self) -> Step:
        """Put this first in a transaction: it fails when the leadership has ended."""
        return Check(self.path)


def commit_as(coord: Coordinator, leadership: Leadership, steps: list[Step]) -> None:
    """A transaction that only the leader can make; Fenced if it is not the leader any more."""
    try:
        coord.commit([leadership.step, *steps])
    except NotApplied as error:
        if error.index == 0:
            raise Fenced(
                f"the leader of epoch {leadership.epoch}", "its candidacy has ended"
            ) from None
        raise NotApplied(error.index - 1, error.path, error.reason) from None


class Candidate:
    """One process's candidacy in ``folder``; ``data`` tells others where it is.

    Raises
    ------
    Fenced : the candidacy was removed.
    SessionLost : the session is over.
    """

    def __init__(self, coord: Coordinator, folder: str, data: bytes = b"") -> None:
        self.coord, self.folder = coord, folder
        self._wake = threading.Event()
        coord.ensure(folder)
        prefix = f"c-{uuid.uuid4().hex}-"
        self._name = ""

        def landed() -> bool:
            self._name = next((n for n in coord.children(folder) if n.startswith(prefix)), "")
            return bool(self._name)

        made = coord.commit(
            [Create(f"{folder}/{prefix}", data, ephemeral=True, sequence=True)], landed
        )
        if made:
            self._name = made[0].rpartition("/")[2]
        self.path = f"{folder}/{self._name}"
        node = coord.get(self.path)
        if node is None:
            raise Fenced(self.path, "it was removed at once")
        self.epoch = node.created
        self._unsubscribe = coord.subscribe(self._on_event)

    def _on_event(self, event: Event) -> None:
        self._wake.set()

    def wait_elected(self, timeout_s: float) -> Leadership:
        """Until this candidate leads; Timeout, and still a candidate, if it does not by then."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._wake.clear()
            before = self._before()
            if before is None:
                return Leadership(self.path, self.epoch)
            left = deadline - time.monotonic()
            if left <= 0:
                raise HornTimeout(
                    f"{self.path} was not elected within {timeout_s:g} s: {before} is before it"
                )
            self.coord.send(self._looked, "exists", f"{self.folder}/{before}", watch=self._watched)
            self._wake.wait(left)

    def _looked(self, reply: Reply) -> None:
        if not reply.value:  # gone in between, or nobody knows
            self._wake.set()

    def _watched(self, word: str) -> None:
        if word == "deleted":
            self._wake.set()

    def _before(self) -> str | None:
        """The candidate next in front of this one; None if it leads."""
        self.coord.check()
        order = _in_order(self.coord.children(self.folder))
        if self._name not in order:
            raise Fenced(self.path, "the candidacy was removed")
        place = order.index(self._name)
        return order[place - 1] if place else None

    def check(self, leadership: Leadership) -> None:
        """Raise Fenced or SessionLost if the leadership has ended, asking ZooKeeper's leader."""
        self.coord.check()
        self.coord.sync(self.folder)
        if self.coord.get(leadership.path) is None:
            raise Fenced(f"the leader of epoch {leadership.epoch}", "its candidacy has ended")

    def resign(self) -> None:
        """Leave the election; the next one leads."""
        self._unsubscribe()
        self.coord.delete(self.path)


def leader_of(coord: Coordinator, folder: str) -> Leader:
    """Who leads now; NotFound if nobody does."""
    for name in _in_order(coord.children(folder)):
        node: Node | None = coord.get(f"{folder}/{name}")
        if node is not None:
            return Leader(node.data, node.created)
    raise NotFound(f"{folder}: nobody leads")


def _in_order(names: list[str]) -> list[str]:
    """Candidates by the number that ZooKeeper gave them."""
    return sorted((n for n in names if n.startswith("c-")), key=lambda n: n.rpartition("-")[2])
