"""The monitor of a job's tasks: makes history, arrays and the root cause from their messages.

It knows no processes: its owner passes on each message with its rank. Its clock is for the verdict,
which waits for the first failure to show; what to wait for otherwise is a StallDetector's to say.
"""

from __future__ import annotations

import mmap
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from horn.checkpoint.places import cross
from horn.description import shapes
from horn.errors import Diverged, HornError, ProtocolError
from horn.executor.failures import FailureEvidence, is_repairable, verdict
from horn.executor.progress_record import ProgressRecord
from horn.executor.stalls import StallDetector
from horn.patience import Patience
from horn.process import control
from horn.process.control import (
    BatchDone,
    BatchProgress,
    EpochRow,
    FailureReport,
    GroupReady,
    Heartbeat,
    StartPhase,
    TaskFinished,
)
from horn.process.job_payload import map_private
from horn.strategies import Topology
from horn.training.divergence import NonFinite, diverged
from horn.training.loop import LoopResult
from horn.wire.descriptors import is_sealed
from horn.wire.frames import Array

NOBODY = -1  # the rank of reports that this process makes itself
GRACE_S = 2.0  # how long a root cause may take to show after a secondary failure
ECHO_S = 0.3  # wait for a secondary failure, which tells where a task was that just ended


@dataclass
class Outcome:
    """The result of a run. ``counters``, ``traces`` by task. ``staleness`` : of pushes."""

    ending: LoopResult
    rows: list[dict[str, Any]]
    parameters: dict[str, Array]
    states: dict[str, Array]
    counters: list[dict[str, Any]]
    traces: dict[int, control.TraceEvents] = field(default_factory=dict)
    staleness: dict[int, int] = field(default_factory=dict)


class TaskMonitor:
    """Collects the messages of the tasks of one attempt.

    pids : of the processes by rank, for error messages. record : receives the rows. on_ready :
    called when all tasks have met. watch : learns of started and dropped ranks from here, and of
    their messages from the owner.
    """

    def __init__(
        self,
        record: ProgressRecord,
        topology: Topology,
        pids: Mapping[int, int],
        *,
        is_joined: bool = True,
        on_ready: Callable[[], None] | None = None,
        watch: StallDetector | None = None,
    ) -> None:
        self.watch = watch
        self.record, self.job = record, record.job
        self.topology, self.is_joined, self.on_ready = topology, is_joined, on_ready
        n = len(pids)
        names = {rank: topology.name(rank) for rank in pids if rank >= topology.n_workers}
        names[NOBODY] = "the run"
        self.awaited = set(pids)  # all have finished when these have
        self.case = FailureEvidence(n, pids, names=names)
        self.ready: set[int] = set()
        self.finished: dict[int, TaskFinished] = {}
        self.traces: dict[int, control.TraceEvents] = {}
        self.whole: dict[str, dict[str, Array]] = {"parameter": {}, "state": {}}
        self.n_covered: dict[tuple[str, str], int] = {}
        self.shared: set[int] = set()  # ranks whose parts of the arrays have come
        # Deadlines of the verdict, by whether trouble is mute. Messages that came while this
        # process stood still are read first.
        self._patience: dict[bool, Patience] | None = None

    @property
    def is_over(self) -> bool:
        """Whether all awaited tasks have finished."""
        return self.awaited <= self.finished.keys()

    def hear(self, rank: int, said: Any, descriptors: Sequence[int] = ()) -> None:
        """Handle a task's message and descriptors, which are closed; an int is its exit code."""
        try:
            match said:
                case int(code):
                    self.case.exits[rank] = code
                case GroupReady():
                    self.ready.add(rank)
                    if self.awaited <= self.ready:
                        self.record.begin()
                        if self.on_ready is not None:
                            self.on_ready()
                case StartPhase() | Heartbeat():
                    pass  # for the watch
                case BatchProgress(epoch, iteration, loss, samples_per_s):
                    self.record.begin()  # another task's GroupReady may be read after this
                    self.record.step(epoch, iteration, loss, samples_per_s)
                case EpochRow():
                    self.record.begin()
                    self.record.hear(said, self.topology.n_groups, self.is_joined)
                case BatchDone():
                    self.record.begin()
                    if self.record.unseen is not None:
                        self.record.unseen.append(said)
                case control.ArrayShare(parts):
                    self._put(rank, parts, descriptors)
                    self.shared.add(rank)
                case control.TraceEvents():
                    self.traces[rank] = said
                case TaskFinished():
                    self.finished[rank] = said
                    self.case.finished.add(rank)
                case FailureReport():
                    self.case.failures[rank] = said
                case _:
                    raise ProtocolError(f"task {rank} says {type(said).__name__} to its parent")
        finally:
            for fd in descriptors:
                os.close(fd)

    def forget(self, ranks: Sequence[int], pids: Mapping[int, int]) -> None:
        """Forget ranks whose processes were replaced."""
        self.case.pids = pids
        if self.watch is not None:
            self.watch.begin(ranks)
        for rank in ranks:
            for known in (self.case.failures, self.case.exits, self.finished, self.traces):
                known.pop(rank, None)
            self.case.finished.discard(rank)

    def add(self, ranks: Sequence[int], pids: Mapping[int, int]) -> None:
        """Wait for new ranks, too."""
        self.forget(ranks, pids)
        self.case.names = {**self.case.names, **{r: self.topology.name(r) for r in ranks}}
        self._await(self.awaited | set(ranks))

    def leave(self, group: int) -> None:
        """Wait no longer for a group that has left; its reports stay."""
        self.record.without(group)
        if self.watch is not None:
            self.watch.drop(self.topology.ranks(group))
        self._await(self.awaited - set(self.topology.ranks(group)))
        self.record.put(self.topology.n_groups, self.is_joined)

    def _await(self, ranks: set[int]) -> None:
        self.awaited = ranks
        self.case.n_tasks = len(ranks)

    # trouble

    @property
    def verdict_at(self) -> float | None:
        """The time when the verdict is due, on the monotonic clock; None without trouble."""
        if not self.case.has_trouble:
            return None
        if self._patience is None:
            self._patience = {True: Patience(ECHO_S), False: Patience(GRACE_S)}
        left_s = {mute: patience.left_s() for mute, patience in self._patience.items()}
        return time.monotonic() + left_s[self._is_mute]

    @property
    def _is_mute(self) -> bool:
        return bool(self.case.silent) and not self.case.failures

    def verdict(self, stacks: Callable[[Sequence[int]], Mapping[int, str]]) -> HornError | None:
        """The error of the root cause, once it is certain. stacks : gives those of late tasks."""
        now, at = time.monotonic(), self.verdict_at
        if at is None or (now < at and (self._is_mute or not self._is_clear())):
            return None
        case = self.case
        for task in case.causes[:1]:
            failed = case.failures.get(task)
            if failed is not None and failed.trouble is not None:
                trouble = NonFinite(*failed.trouble)
                return diverged(self.job, self.whole["parameter"], trouble)
        late = {} if case.causes else stacks(case.late)
        shown = self.record.is_shown and self.awaited <= self.ready
        progress = f"after iteration {self.record.iteration}" if shown else "starting"
        return verdict(case, self.job.network, late, progress)

    def is_repairable(self, error: HornError) -> bool:
        """Whether another attempt may do better: a task was killed, hangs or lost touch."""
        if self.verdict_at is None or isinstance(error, Diverged):
            return False
        return is_repairable(self.case)

    def _is_clear(self) -> bool:
        if not self.case.is_complete:
            return False
        # Every task may know something of a divergence: the shares tell which neurons it was.
        if any(f.trouble for f in self.case.failures.values()):
            spoke = self.case.failures.keys() | self.case.exits.keys() | self.case.finished
            return len(spoke) >= self.case.n_tasks
        return True

    # arrays

    def take_arrays(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the whole arrays that have come so far (parameters, states), and forget them."""
        found = self.whole["parameter"], self.whole["state"]
        self.whole, self.shared = {"parameter": {}, "state": {}}, set()
        self.n_covered.clear()
        return found

    def _put(
        self, task: int, parts: tuple[control.ArrayPart, ...], descriptors: Sequence[int]
    ) -> None:
        """Put a task's parts into the whole arrays."""
        if len(descriptors) != 1:
            raise ProtocolError(f"task {task}: a share with {len(descriptors)} memories, not 1")
        if not is_sealed(descriptors[0]):  # to cut it short now would end this process
            raise ProtocolError(f"task {task}: the memory of its share may still change; seal it")
        memory = map_private(descriptors[0])
        known = shapes(self.job.network)
        for part in parts:
            key = (part.kind, part.name)
            if key not in known or part.dtype != np.dtype(self.job.dtype).str:
                raise ProtocolError(f"task {task}: a share of {part.name!r} as {part.dtype}")
            shape, found = known[key], self.whole[part.kind]
            try:
                places = tuple(_place(memory, at) for at in part.places)
                values = _values(memory, part)
                if part.name not in found:
                    found[part.name] = np.zeros(shape, self.job.dtype)
                found[part.name][cross(places)] = values
            except (ValueError, IndexError) as error:
                raise ProtocolError(
                    f"task {task}: its share of {part.name} {part.shape} does not fit {shape}: "
                    f"{error}"
                ) from error
            self.n_covered[key] = self.n_covered.get(key, 0) + values.size

    def outcome(self) -> Outcome:
        """The outcome, when all have finished."""
        for key, shape in shapes(self.job.network).items():
            if self.n_covered.get(key, 0) < int(np.prod(shape)):
                raise ProtocolError(f"the tasks' shares of {key[1]} do not make it whole")
        name, pids = self.topology.name, self.case.pids
        counters: list[dict[str, Any]] = [
            {"task": task, "role": name(task), "pid": pids.get(task, 0), **finished.spent}
            for task, finished in sorted(self.finished.items())
        ]
        sent, received = (sum(row[k] for row in counters) for k in ("n_sent", "n_received"))
        if sent != received:
            raise ProtocolError(f"{sent} messages were sent, {received} received")
        # If an asynchronous run ended early, some groups had fewer epochs.
        self.record.put(1, self.is_joined, is_over=True)
        first = self.finished[0]
        ending = LoopResult(
            first.iterations, first.iteration, first.stopped_early, first.best_epoch, first.test,
            first.metrics,
        )  # fmt: skip
        return Outcome(
            ending,
            self.record.rows,
            self.whole["parameter"],
            self.whole["state"],
            counters,
            self.traces,
            dict(sum((Counter(f.staleness) for f in self.finished.values()), Counter())),
        )


def _place(memory: mmap.mmap, at: tuple[int, ...]) -> slice | Array:
    if len(at) == 3:
        return slice(*at)
    offset, count = at
    if offset + 8 * count > len(memory):
        raise ValueError(f"indices end at byte {offset + 8 * count} of {len(memory)}")
    return np.frombuffer(memory, np.int64, count, offset)


def _values(memory: mmap.mmap, part: control.ArrayPart) -> Array:
    count = int(np.prod(part.shape))
    dtype = np.dtype(part.dtype)
    if part.offset + count * dtype.itemsize > len(memory):
        raise ValueError(f"it ends beyond the memory of {len(memory)} bytes")
    return np.frombuffer(memory, dtype, count, part.offset).reshape(part.shape)
