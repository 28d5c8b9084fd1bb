"""Start again what ended, and nothing else: where servers last, a server alone, a group whole.

A group's tasks share a network, so they live and die together; other groups and servers go on. It
is told what tasks say, and keeps what is not for ``runtime/hearing.py``. See docs/notes/0061.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from horn.progress import Progress
from horn.runtime.blame import REPAIRABLE, is_echo, numbers
from horn.runtime.control import Failed, Row
from horn.runtime.crew import Crew
from horn.runtime.crews import Crews
from horn.runtime.hearing import Hearing
from horn.strategies import Topology

logger = logging.getLogger(__name__)

ECHO_S = 0.5  # how long a task whose peer has gone waits for word of how that one ended


class Repairs:
    """The restarts of a run.

    most : of a group or server, without an epoch between them that it, or any group, has finished.
    start : gives new processes of these ranks the job, in an epoch; ``epoch`` is the highest so
    far. keep : is given the history now and then. is_over : when it is set, nothing is started
    again. is_given_up : whether something ended more often than ``most``.
    """

    def __init__(
        self,
        topology: Topology,
        most: int,
        crew: Crew | Crews,
        hearing: Hearing,
        start: Callable[[Sequence[int], int], None],
        watcher: Progress,
        epoch: int,
        keep: Callable[[Sequence[Any], Sequence[Any]], None],
        is_over: threading.Event | None = None,
    ) -> None:
        self.topology, self.most, self.crew, self.hearing = topology, most, crew, hearing
        self.start, self.watcher, self.epoch, self.keep = start, watcher, epoch, keep
        self.is_over = is_over or threading.Event()
        self.n_restarts = 0
        self.is_given_up = False
        self._counts: Counter[str] = Counter()
        self._due: dict[str, tuple[float, str]] = {}  # by unit: when to start it again, and why
        self._held: dict[str, list[tuple[int, Any]]] = {}  # what was said of it

    def unit(self, rank: int) -> str:
        """What has to be started again with a rank."""
        t = self.topology
        return t.name(rank) if rank >= t.n_workers else f"group {rank // t.n_tasks}"

    def ranks(self, unit: str) -> list[int]:
        ranks = range(self.topology.n_ranks)
        return [rank for rank in ranks if self.unit(rank) == unit]

    def hear(self, rank: int, said: Any) -> bool:
        """Whether this is about a failure that is repaired here."""
        unit = self.unit(rank)
        if isinstance(said, Row):  # it works, and so do servers
            for counted in [*self._counts]:
                if counted == unit or counted.startswith("server"):
                    del self._counts[counted]
            return False
        is_end = isinstance(said, int)
        if not (is_end or isinstance(said, Failed)):
            return False
        if is_end and rank in self.hearing.finished:
            return False
        if is_end and rank in self.hearing.case.failures:
            return False  # it has said why, and that cannot be repaired
        if self.is_over.is_set():
            return False
        if self._counts[unit] >= self.most:
            self.is_given_up = True
            self._give_up(unit)
            return False
        now = time.monotonic()
        if is_end and any(who == rank for who, _ in self._held.get(unit, ())):
            self._note(unit, now, rank, said)  # it has said why
        elif is_end:
            self._note(unit, now, rank, said, f"{self.topology.name(rank)} ended: {_code(said)}")
        elif is_echo(said) and self._is_own(unit, said):
            self._note(unit, now + ECHO_S, rank, said, said.text)
        elif REPAIRABLE & set(said.kinds):
            self._note(unit, now, rank, said, said.text)
        else:
            self._give_up(unit)
            return False
        return True

    def _is_own(self, unit: str, failed: Failed) -> bool:
        """Whether who is missing belongs to it, or has only gone: then it is started again, too."""
        if "BarrierTimeout" not in failed.kinds:
            return True
        absent = numbers(failed.absent)
        return bool(absent) and all(self.unit(rank) == unit for rank in absent)

    def _note(self, unit: str, at: float, rank: int, said: Any, why: str = "") -> None:
        before = self._due.get(unit)
        if before is None:
            self._due[unit] = at, why
        else:
            self._due[unit] = min(at, before[0]), before[1] if at >= before[0] else why or before[1]
        self._held.setdefault(unit, []).append((rank, said))

    def _give_up(self, unit: str) -> None:
        """What was kept back of its failure is for the verdict."""
        self._due.pop(unit, None)
        for rank, said in self._held.pop(unit, []):
            self.hearing.hear(rank, said)

    @property
    def next_at(self) -> float | None:
        """When to look."""
        return min((at for at, _ in self._due.values()), default=None)

    def look(self, now: float) -> None:
        """Start again what is due."""
        record = self.hearing.record
        self.keep(record.rows, record.told)
        for unit, (at, why) in list(self._due.items()):
            if now < at:
                continue
            del self._due[unit]
            self._held.pop(unit, None)
            self._counts[unit] += 1
            self.n_restarts += 1
            self.epoch += 1
            ranks = self.ranks(unit)
            logger.warning("restarting %s epoch=%d reason=%s", unit, self.epoch, why)
            self.watcher.note(
                f"Restarting {unit} (attempt {self._counts[unit]} of {self.most}): {why}"
            )
            self.crew.renew(ranks)
            self.hearing.forget(ranks, self.crew.pids)
            self.start(ranks, self.epoch)


def _code(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
