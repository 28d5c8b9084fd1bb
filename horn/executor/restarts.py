"""Restart a server, or all tasks of a group, of a run with durable servers; add and remove groups.

A group's tasks share a network, so they restart together, while other groups and servers go on.
Messages that are not about restarts are for ``executor/monitor.py``. docs/notes/0061.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horn.executor.failures import REPAIRABLE, is_secondary
from horn.executor.monitor import TaskMonitor
from horn.executor.remote_pool import RemoteTaskPool
from horn.executor.task_pool import TaskPool
from horn.process.control import EpochRow, FailureReport, LeaveRun
from horn.strategies import Topology
from horn.training.progress import Progress

logger = logging.getLogger(__name__)

ECHO_S = 0.5  # after the report of a lost peer: wait for how that one ended


@dataclass(frozen=True)
class RestartUnit:
    """What restarts together: a server, or the tasks of a group. group : None of a server."""

    name: str
    ranks: tuple[int, ...]
    group: int | None

    @classmethod
    def of(cls, topology: Topology, rank: int) -> RestartUnit:
        """The unit of a rank."""
        if topology.is_server(rank):
            return cls(topology.name(rank), (rank,), None)
        group = topology.group(rank)
        return cls(f"group {group}", tuple(topology.ranks(group)), group)


@dataclass(eq=False)
class Restarts:
    """The restarts of a run. most : restarts of a unit, with no epoch finished in between. start :
    gives the job to new processes of ranks in an attempt; ``attempt`` is the highest so far. keep :
    saves the history. is_over : when set, nothing restarts. is_given_up : whether a unit ended more
    than ``most`` times. first_groups : at the beginning, None for all. on_left : called with a
    group that has left.
    """

    topology: Topology
    most: int
    pool: TaskPool | RemoteTaskPool
    monitor: TaskMonitor
    start: Callable[[Sequence[int], int], None]
    watcher: Progress
    attempt: int
    keep: Callable[[Sequence[Any], Sequence[Any]], None]
    is_over: threading.Event
    first_groups: Collection[int] | None = None
    on_left: Callable[[int], None] | None = None
    is_given_up: bool = False

    def __post_init__(self) -> None:
        every, first = range(self.topology.n_groups), self.first_groups
        self.groups = set(every if first is None else first)
        self.leaving: set[int] = set()
        self._counts: Counter[RestartUnit] = Counter()
        self._due: dict[RestartUnit, tuple[float, str]] = {}  # when to start it again, and why
        self._held: dict[RestartUnit, list[tuple[int, Any]]] = {}  # its withheld reports

    def begin(self) -> None:
        """Start all servers and groups."""
        t = self.topology
        first = [r for g in sorted(self.groups) if g < t.n_groups for r in t.ranks(g)]
        self.start([*first, *(t.server(n) for n in range(t.n_servers))], self.attempt)
        for group in self.monitor.record.known(t.n_groups) - self.groups:
            self.monitor.record.without(group)
        for group in sorted(g for g in self.groups if g >= t.n_groups):
            self.start(t.ranks(group), self.attempt)

    def change(self, groups: Collection[int], hosts: Mapping[int, str] | None = None) -> None:
        """Start new groups; let others leave after an epoch. hosts : of ranks; None: here."""
        if hosts is not None and isinstance(self.pool, RemoteTaskPool):
            self.pool.place(hosts)
        for group in sorted(set(groups) - self.groups):
            self.groups.add(group)
            ranks = self.topology.ranks(group)
            self.attempt += 1
            self.watcher.note(f"Group {group} comes.")
            self.pool.renew(ranks)
            self.monitor.add(ranks, self.pool.pids)
            self.start(ranks, self.attempt)
        for group in sorted(self.groups - self.leaving - set(groups)):
            self.leaving.add(group)
            self.watcher.note(f"Group {group} is to leave at the end of its epoch.")
            self.pool.tell(LeaveRun(group))

    def _let_go(self) -> None:
        """Let go of groups that have left."""
        for group in sorted(self.leaving):
            ranks = self.topology.ranks(group)
            if not all(rank in self.monitor.finished for rank in ranks):
                continue
            self.leaving.discard(group)
            self.groups.discard(group)
            self.pool.drop(ranks)
            self.monitor.leave(group)
            self.watcher.note(f"Group {group} has left.")
            if self.on_left is not None:
                self.on_left(group)

    def hear(self, rank: int, said: Any) -> bool:
        """Whether a message is about a failure that a restart repairs."""
        unit = RestartUnit.of(self.topology, rank)
        if isinstance(said, EpochRow):  # it works, and so do servers
            for counted in [*self._counts]:
                if counted == unit or counted.group is None:
                    del self._counts[counted]
            return False
        is_end, monitor = isinstance(said, int), self.monitor
        if not (is_end or isinstance(said, FailureReport)) or self.is_over.is_set():
            return False
        if is_end and (rank in monitor.finished or rank in monitor.case.failures):
            return False  # it was done, or has reported what cannot be repaired
        if self._counts[unit] >= self.most:
            self.is_given_up = True
            self._give_up(unit)
            return False
        now = time.monotonic()
        if is_end and any(who == rank for who, _ in self._held.get(unit, ())):
            self._note(unit, now, rank, said)  # it has reported why
        elif is_end:
            self._note(unit, now, rank, said, f"{self.topology.name(rank)} ended: {_code(said)}")
        elif is_secondary(said) and self._is_own(unit, said):
            self._note(unit, now + ECHO_S, rank, said, said.text)
        elif REPAIRABLE & set(said.kinds):
            self._note(unit, now, rank, said, said.text)
        else:
            self._give_up(unit)
            return False
        return True

    def _is_own(self, unit: RestartUnit, failed: FailureReport) -> bool:
        """Whether all missing ranks are of this unit, or a peer was lost and none was late."""
        if "BarrierTimeout" not in failed.kinds:
            return True
        absent = failed.absent_ranks
        return bool(absent) and set(absent) <= set(unit.ranks)

    def _note(self, unit: RestartUnit, at: float, rank: int, said: Any, why: str = "") -> None:
        before = self._due.get(unit)
        if before is None:
            self._due[unit] = at, why
        else:
            self._due[unit] = min(at, before[0]), before[1] if at >= before[0] else why or before[1]
        self._held.setdefault(unit, []).append((rank, said))

    def _give_up(self, unit: RestartUnit) -> None:
        """Pass the withheld reports of a unit to the monitor."""
        self._due.pop(unit, None)
        for rank, said in self._held.pop(unit, []):
            self.monitor.hear(rank, said)

    @property
    def next_at(self) -> float | None:
        """The time of the next restart."""
        return min((at for at, _ in self._due.values()), default=None)

    def restart_due(self, now: float) -> None:
        """Restart units that are due."""
        record = self.monitor.record
        self.keep(record.rows, record.incomplete)
        for unit, (at, why) in list(self._due.items()):
            if now < at:
                continue
            ranks = unit.ranks
            del self._due[unit]
            self._held.pop(unit, None)
            self._counts[unit] += 1
            self.attempt += 1
            again = self._counts[unit]
            logger.warning("restarting %s attempt=%d reason=%s", unit.name, again, why)
            self.watcher.note(f"Restarting {unit.name} (attempt {again} of {self.most}): {why}")
            self.pool.renew(ranks)
            self.monitor.forget(ranks, self.pool.pids)
            self.start(ranks, self.attempt)
            if unit.group is not None and unit.group in self.leaving:
                self.pool.tell(LeaveRun(unit.group))
        self._let_go()


def _code(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
