"""Stalled tasks: in a step of a start, each with a deadline, or in training where no other task
waits for them. Pure. docs/from-network-to-job.md lists the steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

from horn.errors import BarrierTimeout, ClusterError, HornError
from horn.patience import Patience
from horn.process.control import (
    CONNECTING,
    ENDING,
    IMPORTING,
    STEPS,
    WAITING,
    FailureReport,
    GroupReady,
    Heartbeat,
    StartPhase,
    TaskFinished,
)

LOOK_S = 0.2  # seconds between two checks; ``look`` may be called more often
# In a superstep the waiting task names the late one best: it has this much time to report first.
MARGIN_S = 3.0
LOADING = "start, loading the job's file on its host"
HINT = "If it only needs longer, raise start_timeout (--start-timeout)"


@dataclass(frozen=True)
class StalledRanks:
    """Ranks that have been in a step for longer than it may take; ``others`` are further."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    where: str
    timeout_s: float
    hint: str = ""

    def failed(self, now: float, name: Callable[[int], str]) -> FailureReport:
        """The report of a task that would have timed out; ``name`` gives the names of ranks."""
        absent, arrived = (tuple(map(name, who)) for who in (self.ranks, self.others))
        kinds = (BarrierTimeout, ClusterError, HornError, Exception)
        return FailureReport(
            kinds=tuple(kind.__name__ for kind in kinds),
            text=f"{self.where}: {', '.join(absent)} got no further for {self.timeout_s:g} s",
            when=now,
            where=self.where,
            absent=absent,
            absent_ranks=self.ranks,
            arrived=arrived,
            hint=self.hint,
            timeout_s=self.timeout_s,
        )


@dataclass(eq=False)
class StallDetector:
    """Finds the stalled ones among the ranks of a run. unit : gives the unit with which a rank
    starts. start_s : deadline of each step, since the last progress in its unit. silence_s :
    longest silence in training, None if others wait for it; who measures the model may be silent,
    unless it is stopped. is_stopped : gives the stopped
    processes among ranks. pids : by rank, 0 while a host loads the job's file. trains : whether a
    rank trains.
    """

    ranks: InitVar[Iterable[int]]
    unit: Callable[[int], str]
    start_s: float
    silence_s: float | None = None
    is_stopped: Callable[[Sequence[int]], Collection[int]] = lambda ranks: ()
    pids: Callable[[], Mapping[int, int]] = dict
    trains: Callable[[int], bool] = lambda rank: True
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self, ranks: Iterable[int]) -> None:
        self._steps: dict[int, int] = {}  # by starting rank: its step
        self._ready: dict[str, set[int]] = {}  # by unit: ready ranks, while others start
        self._fronts: dict[str, tuple[tuple[int, int, int], Patience]] = {}
        self._signs: dict[int, Patience] = {}  # by training rank,
        self._ends: dict[int, Patience] = {}  # and by rank that has trained
        self._measuring: set[int] = set()
        self._checked_s = self.clock()
        self.begin(ranks)

    def begin(self, ranks: Iterable[int]) -> None:
        """Watch newly started processes."""
        for rank in ranks:
            self.drop((rank,))
            self._steps[rank] = IMPORTING

    def drop(self, ranks: Iterable[int]) -> None:
        """Watch these ranks no longer."""
        for rank in ranks:
            self._steps.pop(rank, None)
            self._signs.pop(rank, None)
            self._ends.pop(rank, None)
            self._measuring.discard(rank)
            self._ready.get(self.unit(rank), set()).discard(rank)

    def hear(self, rank: int, said: Any) -> None:
        """Take note of a task's message; an int is its exit code."""
        if isinstance(said, (int, TaskFinished, FailureReport)):
            self.drop((rank,))
        elif isinstance(said, StartPhase) and said.step == ENDING:
            self._signs.pop(rank, None)
            self._ends[rank] = Patience(len(STEPS) * self.start_s, self.clock)
        elif isinstance(said, StartPhase):
            if rank in self._steps:
                self._steps[rank] = said.step
        elif isinstance(said, GroupReady):
            self._steps.pop(rank, None)
            self._ready.setdefault(self.unit(rank), set()).add(rank)
            if self.silence_s is not None and self.trains(rank):
                self._signs[rank] = Patience(self.silence_s, self.clock)
        elif isinstance(said, Heartbeat):
            (self._measuring.add if said.measures else self._measuring.discard)(rank)
        for known in (self._signs, self._ends):
            if rank in known:
                known[rank].renew()

    def take_stalled(self) -> list[StalledRanks]:
        """Return the newly stalled ranks, and watch them no longer."""
        now = self.clock()
        if now - self._checked_s < LOOK_S:
            return []
        self._checked_s = now
        found = [*self._late_starts(), *self._silent()]
        for late in found:
            self.drop(late.ranks)
        return found

    def _late_starts(self) -> Iterable[StalledRanks]:
        units: dict[str, list[int]] = {}
        for rank in self._steps:
            units.setdefault(self.unit(rank), []).append(rank)
        for unit in self._fronts.keys() - units.keys():
            del self._fronts[unit]
        pids = self.pids() if units else {}
        for unit, ranks in units.items():
            step = min(self._steps[rank] for rank in ranks)
            behind = sorted(rank for rank in ranks if self._steps[rank] == step)
            loading = [rank for rank in behind if not pids.get(rank, 1)]
            start_s = self.start_s * (len(STEPS) if loading else 1)
            margin_s = MARGIN_S if step >= CONNECTING else 0.0
            front, known = (step, len(behind), len(loading)), self._fronts.get(unit)
            if known is None or known[0] != front:
                self._fronts[unit] = front, Patience(start_s + margin_s, self.clock)
                continue
            if known[1].left_s() > 0 or (step == WAITING and len(units) > 1):
                continue  # it may wait for another unit, which has its own deadline
            stopped = set(self.is_stopped(behind))
            late = tuple(rank for rank in behind if rank in stopped) or tuple(loading or behind)
            others = tuple(sorted({*ranks, *self._ready.get(unit, ())} - {*late}))
            where = LOADING if set(late) <= set(loading) else f"start, {STEPS[step]}"
            yield StalledRanks(late, others, where, start_s, HINT)

    def _silent(self) -> Iterable[StalledRanks]:
        for rank, patience in self._signs.items():
            if patience.left_s() <= 0:
                assert self.silence_s is not None
                if rank in self._measuring and rank not in self.is_stopped((rank,)):
                    patience.renew()
                    continue
                others = tuple(sorted(self._signs.keys() - {rank}))
                yield StalledRanks((rank,), others, "training, without a heartbeat", self.silence_s)
        for rank, patience in self._ends.items():
            if patience.left_s() <= 0:
                yield StalledRanks((rank,), (), "ending", len(STEPS) * self.start_s, HINT)
