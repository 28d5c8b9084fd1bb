"""The barrier of one group: all tasks arrive, then all go on. docs/notes/0011 has the reasons.

A generation is a fresh folder. An arrival is one transaction that leaves ``in-<name>`` and a
sequential ``n-<2k-1>``; the n-th arrival makes ``n-<2n-1>``, which everybody watches from the
start.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from horn.coordination import paths
from horn.coordination.membership import MembershipChange
from horn.coordination.records import (
    ConnectionResumed,
    Create,
    Delete,
    Event,
    Reply,
    SessionExpired,
    Step,
    Znode,
)
from horn.coordination.session import Session
from horn.errors import (
    BarrierTimeout,
    Conflict,
    Fenced,
    JobError,
    MemberLost,
    ProtocolError,
    Unreachable,
)
from horn.patience import Patience

logger = logging.getLogger(__name__)

TURN_S = 1.0  # seconds between two looks at the clock while waiting
LOOK_S = 0.5  # for each request of the last check before an error
TIDY_S = 2.0  # for removing what earlier attempts have left; what stays is the next attempt's
KEPT = 2  # generations whose marks stay: the one that slow tasks may still read, and this one


class GroupMembers(Protocol):
    """A barrier's view of its group: a Membership, or a Roster."""

    def check(self) -> None: ...
    def departures(self) -> Counter[str]: ...
    def lost(self, names: Iterable[str], since: Counter[str]) -> tuple[str, ...]: ...
    def subscribe(self, callback: Callable[[MembershipChange], None]) -> Callable[[], None]: ...


@dataclass
class _Crossing:
    """One arrival under way. Written in the connection's thread, read in the caller's."""

    folder: str
    last_mark: str
    released: bool = False
    arrived: bool = False
    broken: bool = False  # the connection broke: it is unknown whether the arrival landed
    refused: Reply | None = None
    marks: list[str] = field(default_factory=list)
    extras: list[Step] = field(default_factory=list)  # tidying up that travels along


class GroupBarrier:
    """One member's crossings of its group's barrier.

    ``members`` : names of the group, ``name`` : this one's. ``attempt`` grows when the group is
    formed again, generations from call to call. A ``membership`` shows a member's end at once.
    Raises BarrierTimeout: names the absent. MemberLost. SessionLost, Fenced: this process has lost
    its place. Unreachable: ZooKeeper did not answer in time.
    """

    def __init__(
        self,
        coord: Session,
        folder: str,
        name: str,
        members: Iterable[str],
        *,
        attempt: int = 0,
        membership: GroupMembers | None = None,
    ) -> None:
        self.coord, self.name, self.membership = coord, name, membership
        self.members = frozenset(paths.checked("member", member) for member in members)
        if name not in self.members:
            raise JobError(f"{name!r} is not among the members {sorted(self.members)}")
        self.folder, self._attempt_folder = folder, paths.attempt_folder(attempt, self.members)
        self._last_number = 2 * len(self.members) - 1
        self._latest = -1
        self._past: deque[_Crossing] = deque(maxlen=KEPT)
        self._chores: list[Step] = []  # for the next arrival
        self._untidy = False  # tidying up failed: list the folders next time
        self._departed = membership.departures() if membership is not None else Counter()
        self._wake = threading.Event()
        self._crossing: _Crossing | None = None
        if self._attempt_folder not in coord.children(folder):
            coord.ensure(f"{folder}/{self._attempt_folder}")
        self._unsubscribe = [coord.subscribe(self._on_event)]
        if membership is not None:
            self._unsubscribe.append(membership.subscribe(self._on_change))

    def close(self) -> None:
        """Stop listening. The marks stay; they go with the job, or when a newer attempt starts."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = []

    def cross(self, generation: int, timeout_s: float) -> None:
        """Arrive at ``generation`` and wait for every member. May be repeated after a
        BarrierTimeout: the arrival counts once.
        """
        if generation <= self._latest:
            raise ProtocolError(
                f"{self.name} is to cross generation {generation} of {self.folder}, but has "
                f"crossed {self._latest} already; generations must grow"
            )
        patience = Patience(timeout_s)
        crossing = self._start(generation)
        while not (crossing.released and crossing.arrived):
            self._wake.clear()
            self.coord.check()
            if self.membership is not None:
                self.membership.check()
            if crossing.refused is not None:
                self._repair(crossing, generation)
            elif crossing.broken and self.coord.connected:
                crossing.broken = False
                self._arrive(crossing)
            elif not (crossing.released and crossing.arrived):
                members = self.membership
                lost = () if members is None else members.lost(self.members, self._departed)
                if self.coord.silence_s and not self.coord.connected:
                    patience.renew()  # the process with ZooKeeper stands still: no arrival shows
                left = patience.left_s()
                if (lost or left <= 0) and not self._is_released(crossing, timeout_s):
                    self._fail(crossing, generation, lost, timeout_s)
                if not crossing.released or not crossing.arrived:
                    self._wake.wait(max(0.001, min(left, TURN_S)))
        self._finish(crossing, generation)

    # Arriving

    def _start(self, generation: int) -> _Crossing:
        folder = self._folder(generation)
        known = self._crossing
        if known is not None and known.folder == folder:  # again, after a timeout
            self._arrive(known)
            return known
        crossing = _Crossing(folder, f"{folder}/n-{self._last_number:010d}")
        if len(self._past) == KEPT:
            crossing.extras += map(Delete, self._past[0].marks)
        if generation == self._latest + 1:
            crossing.extras += self._chores
        self._chores = []
        self._crossing = crossing
        self._arrive(crossing)
        return crossing

    def _arrive(self, crossing: _Crossing) -> None:
        """Watch for the last mark, then make ours: both requests travel together."""

        def watched(word: str) -> None:
            if word == "created":
                crossing.released = True
                self._wake.set()

        def looked(reply: Reply) -> None:
            if reply.value:
                crossing.released = True
            elif reply.reason == "broken":
                crossing.broken = True
            if reply.value or reply.reason:
                self._wake.set()

        def arrived(reply: Reply) -> None:
            if reply.reason == "broken":
                crossing.broken = True
            elif reply.reason and reply.reason != "lost":
                crossing.refused = reply
            elif not reply.reason:
                crossing.marks = reply.value[:2]
                crossing.arrived = True
                if not crossing.released:
                    return  # nobody waits for this
            self._wake.set()

        self.coord.send(looked, "exists", crossing.last_mark, watch=watched)
        if not crossing.arrived:
            steps: list[Step] = [
                Create(f"{crossing.folder}/in-{self.name}", self._token()),
                Create(f"{crossing.folder}/n-", self._token(), sequence=True),
                *crossing.extras,
            ]
            self.coord.send(arrived, "commit", steps[0].path, steps)

    def _token(self) -> bytes:
        return b"%016x" % (self.coord.session & 0xFFFF_FFFF_FFFF_FFFF)

    def _repair(self, crossing: _Crossing, generation: int) -> None:
        """Remove the cause of a refused arrival, and arrive again."""
        refused, crossing.refused = crossing.refused, None
        assert refused is not None
        if refused.step > 1:  # the folders are not as expected: arrive first, tidy up later
            crossing.extras, self._untidy = [], True
        elif refused.reason == "missing":
            self._make(crossing, generation)
        elif refused.reason == "exists":
            mark = self.coord.get(f"{crossing.folder}/in-{self.name}")
            if mark is not None and mark.data != self._token():
                raise Conflict(
                    f"{self.name} has arrived at generation {generation} of {self.folder} "
                    f"already, as another process; give the new one another attempt"
                )
            if mark is not None:  # ours, from before the connection broke
                crossing.marks, crossing.arrived = self._marks(crossing, mark), True
        else:
            raise ProtocolError(f"{crossing.folder}: ZooKeeper refuses to write: {refused.reason}")
        self._arrive(crossing)

    def _make(self, crossing: _Crossing, generation: int) -> None:
        """Make the missing folder of a crossing: the first one, or one after a jump. Raises Fenced:
        this crossing is too late.
        """
        names = self.coord.children(f"{self.folder}/{self._attempt_folder}")
        mine = paths.generation(generation)  # made before any later one: if it is here, it is early
        if mine not in names and any(name > mine for name in names):
            raise Fenced(
                f"{self.name} at generation {generation} of {self.folder}",
                f"the group is past it, with generations {', '.join(names)}",
            )
        self.coord.ensure(crossing.folder, self._folder(generation + 1))

    def _marks(self, crossing: _Crossing, mine: Znode) -> list[str]:
        """Find the two marks of an arrival whose answer was lost with the connection. One
        transaction made both; the zxids of numbered marks grow, so that few need to be read.
        """

        @cache
        def created(path: str) -> int:
            node = self.coord.get(path)
            return 0 if node is None else node.created

        names = self.coord.children(crossing.folder)
        numbered = [f"{crossing.folder}/{name}" for name in names if name.startswith("n-")]
        at = bisect_left(numbered, mine.created, key=created)
        found = [path for path in numbered[at : at + 1] if created(path) == mine.created]
        return [f"{crossing.folder}/in-{self.name}", *found]

    # Waiting

    def _on_event(self, event: Event) -> None:
        crossing = self._crossing
        if isinstance(event, ConnectionResumed) and crossing is not None:
            crossing.broken = True  # its watch went with the connection
        if isinstance(event, (SessionExpired, ConnectionResumed)):
            self._wake.set()

    def _on_change(self, change: MembershipChange) -> None:
        if change.left & self.members:
            self._wake.set()

    def _is_released(self, crossing: _Crossing, timeout_s: float) -> bool:
        """Check once more, so that a crossing that succeeded is never reported as failed."""
        if not self.coord.connected:
            raise Unreachable(self.coord.hosts, "the connection is broken", timeout_s)
        self.coord.sync(self.folder, timeout_s=LOOK_S)  # this server may be behind the others
        if self.coord.get(crossing.last_mark, timeout_s=LOOK_S) is not None:
            crossing.released = True
        return crossing.released

    def _fail(
        self, crossing: _Crossing, generation: int, lost: tuple[str, ...], timeout_s: float
    ) -> None:
        where = f"generation {generation} of {self.folder}"
        marks = self.coord.children(crossing.folder, timeout_s=LOOK_S)
        arrived = {mark[3:] for mark in marks if mark.startswith("in-")}
        gone = tuple(name for name in lost if name not in arrived)
        if gone:
            raise MemberLost(where, gone)
        if lost and len(arrived) == len(self.members):
            return  # the last arrival came this moment
        if lost:
            raise MemberLost(where, lost)
        absent = tuple(sorted(self.members - arrived))
        if not absent:
            return
        folders = self.coord.children(self.folder, timeout_s=LOOK_S)
        attempt = self._attempt_folder.partition("-")[0]
        others = [f for f in folders if f.startswith(attempt) and f != self._attempt_folder]
        hint = (
            "Another list of members waits in the same attempt: the tasks disagree about who "
            "belongs to the group"
        )
        raise BarrierTimeout(
            where, absent, tuple(sorted(arrived)), timeout_s, hint if others else ""
        )

    # Tidying up

    def _finish(self, crossing: _Crossing, generation: int) -> None:
        """Complete a crossing. The last to arrive makes a folder ahead and removes one behind."""
        is_next = generation == self._latest + 1 and len(self._past) > 0
        behind = self._past[0] if len(self._past) == KEPT else None
        self._past.append(crossing)
        self._latest, self._crossing = generation, None
        if crossing.last_mark not in crossing.marks:
            return
        if self._untidy or not is_next:  # the first crossing, or one after a jump
            self._tidy(generation)
            self._untidy = False
            return
        self._chores = [Create(self._folder(generation + KEPT))]
        if behind is not None:
            self._chores.append(Delete(behind.folder))

    def _folder(self, generation: int) -> str:
        return f"{self.folder}/{self._attempt_folder}/{paths.generation(generation)}"

    def _tidy(self, generation: int) -> None:
        """Tidy up by listing, after the first crossing, a jump, or trouble. All have arrived."""
        self.coord.ensure(*(self._folder(generation + n) for n in range(1, KEPT + 1)))
        kept = {crossing.folder for crossing in self._past}
        for name in self.coord.children(f"{self.folder}/{self._attempt_folder}"):
            folder = f"{self.folder}/{self._attempt_folder}/{name}"
            if folder not in kept and name < paths.generation(generation):
                self.coord.remove(folder)
        self._remove_earlier()

    def _remove_earlier(self) -> None:
        """Remove the folders of earlier attempts. They harm nobody, so there is a short deadline:
        the others are at work already, and wait for this member.
        """
        deadline = time.monotonic() + TIDY_S
        attempt = self._attempt_folder.partition("-")[0]
        for folder in self.coord.children(self.folder):
            if folder.partition("-")[0] < attempt:
                left_s = deadline - time.monotonic()
                try:
                    self.coord.remove(f"{self.folder}/{folder}", left_s)
                except (Conflict, Unreachable) as error:
                    logger.info("not tidy path=%s/%s reason=%s", self.folder, folder, error)
                    return
