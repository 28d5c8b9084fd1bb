"""The attempts of a run on task pools: where each begins, what its tasks say, whether another
follows. How a run is started and ended is in ``executor/launch.py``.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import msgspec

from horn.checkpoint import Checkpoints
from horn.errors import HornError, Timeout
from horn.executor import trace
from horn.executor.checkpoint_coordinator import CheckpointCoordinator
from horn.executor.monitor import NOBODY, Outcome, TaskMonitor
from horn.executor.progress_record import ProgressRecord
from horn.executor.remote_pool import RemoteTaskPool
from horn.executor.restarts import Restarts, RestartUnit
from horn.executor.stalls import MARGIN_S, StallDetector, StalledRanks
from horn.executor.task_pool import TaskPool
from horn.job import Job
from horn.partition.placement import Placement
from horn.patience import Patience
from horn.process.control import (
    STEPS,
    BatchDone,
    CallbackDecision,
    ModelRequest,
    PartSaved,
    SaveReply,
)
from horn.process.decisions import BY_BATCH, BY_EPOCH
from horn.process.job_payload import JobDraft
from horn.process.job_spec import RunSpec
from horn.process.reporting import heartbeat_s
from horn.training.checkpointing import (
    RecoverySettings,
    SaveNotes,
    cursor_of,
    manifest_facts,
    rows_of,
    stopped,
    stopped_at,
)
from horn.training.deadline import GRACE_S, Deadline
from horn.training.history import History
from horn.training.hooks import Hooks
from horn.training.loop import overdue
from horn.training.progress import Progress
from horn.training.run_settings import RunSettings
from horn.wire.frames import Array

LOOK_S = 1.0  # seconds between two looks at the clock,
CHECKPOINT_LOOK_S = 0.05  # and where checkpoints may be due
ASKED = "sending the model to a callback"
STOPPING = "Stopping at the next iteration"


@dataclass(frozen=True)
class ScaleRequest:
    """A request for other groups. groups : the wanted ones. hosts : host names by rank."""

    groups: tuple[int, ...]
    hosts: Mapping[int, str]


@dataclass
class JobAttempt:
    """An attempt of a job on a cluster, where the job has its entry in ZooKeeper already.

    hosts, job, attempt : of that entry. pool : of all its tasks, started. url : of the transport on
    this host. stop_requested : set to stop at a boundary. is_over : set when the tasks are ended,
    and none is to be started again. on_checkpoint : called with the iteration of each checkpoint.
    on_unsaved : called with the reason when they begin to fail. is_repairable : whether the failure
    need not happen again. silence_s : as in RunSpec.

    groups : the present ones, by number; None: all of the job's description. changes : requests for
    other groups, during the run. on_left : called with a group that has left. remedy : what to do
    where a stop takes too long.
    """

    hosts: str
    job: str
    attempt: int
    pool: TaskPool | RemoteTaskPool
    url: str
    threads: int
    stop_requested: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)
    on_checkpoint: Callable[[int], None] | None = None
    on_unsaved: Callable[[str], None] | None = None
    is_repairable: bool = False
    groups: tuple[int, ...] | None = None
    changes: queue.SimpleQueue[ScaleRequest] = field(default_factory=queue.SimpleQueue)
    on_left: Callable[[int], None] | None = None
    silence_s: float = 0.0
    remedy: str = "horn stop --now stops at once"


class Attempts:
    """The attempts of a run: where each begins, and whether another follows."""

    def __init__(
        self,
        job: Job,
        draft: JobDraft,
        settings: RunSettings,
        watcher: Progress,
        begun: float,
        recovery: RecoverySettings,
        here: JobAttempt,
        hooks: Hooks | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self.deadline = deadline or Deadline(settings.timeout, begun)
        self.job, self.draft, self.settings, self.watcher = job, draft, settings, watcher
        self.begun, self.recovery, self.here = begun, recovery, here
        self.start, journals = recovery.start, recovery.journals
        schedule = recovery.schedule
        self.record = ProgressRecord(job, watcher, rows_of(self.start) if self.start else ())
        self.checkpoints = None if schedule is None else Checkpoints(schedule.folder, schedule.keep)
        self.attempt, self.earlier_s = 0, 0.0
        if journals is not None:
            journals.drop_partial(job)
            self.record = ProgressRecord(job, watcher, journals.rows, journals.incomplete)
            self.attempt = journals.first_attempt
        if self.start is not None:
            self.record.iteration = self.start.iteration
            self.record.resumed = f"Going on from iteration {self.start.iteration:,}."
            self.earlier_s = cursor_of(self.start).seconds
            self.attempt = self.start.attempt + 1
        if self.checkpoints is not None:
            self.attempt = max(self.attempt, self.checkpoints.next_attempt())
            self.checkpoints.sweep()
        self.coordinator: CheckpointCoordinator | None = None
        self.notes = SaveNotes(watcher.note, here.on_unsaved)  # of all attempts
        self.hooks = hooks
        if hooks is not None:
            hooks.leave_to_tasks()
            self._recall(hooks)
            hooks.begin(History(self.record.rows), self.record.iteration)
        self._is_overdue = False
        self._n_failed = 0  # since the last new checkpoint
        self._first: HornError | None = None

    def _recall(self, hooks: Hooks) -> None:
        """Set callbacks back to the point where the next attempt begins."""
        memory = {} if self.start is None else cursor_of(self.start).callbacks
        hooks.recall(memory, History(self.record.rows))
        self.record.unseen = deque()

    @property
    def has_lost_start(self) -> bool:
        """Whether the checkpoint that it begins from has gone: an earlier attempt that stood still
        may have removed it. Another attempt begins from the newest.
        """
        return self.start is not None and not self.start.path.is_dir()

    def run(self) -> RunSpec:
        """The RunSpec for the tasks of the next attempt."""
        settings, here, start = self.settings, self.here, self.start
        schedule, journals = self.recovery.schedule, self.recovery.journals
        is_traced = settings.trace is not None
        return RunSpec(
            n_tasks=settings.tasks,
            n_groups=settings.groups,
            n_servers=settings.n_servers,
            guests=settings.has_guests,
            hosts=here.hosts,
            job=here.job,
            url=here.url,
            backend=settings.backend,
            threads=here.threads,
            barrier=settings.barrier,
            begun=self.begun,
            interval_s=self.watcher.interval_s,
            superstep_timeout_s=settings.superstep_timeout,
            start_timeout_s=settings.start_timeout,
            max_trace_events=trace.MAX_EVENTS // settings.n_processes if is_traced else 0,
            attempt=self.attempt,
            checkpoints="" if schedule is None else str(schedule.folder.absolute()),
            checkpoint_every=0 if schedule is None else schedule.every or 0,
            resume="" if start is None else str(start.path.absolute()),
            earlier_s=self.earlier_s,
            journals="" if journals is None else str(journals.path.absolute()),
            is_told=journals is not None and bool(journals.rows),
            groups=here.groups or (),
            silence_s=here.silence_s,
            callbacks=self._kind_of_callbacks(),
        )

    def _kind_of_callbacks(self) -> int:
        if self.hooks is None or not self.hooks.callbacks:
            return 0
        return BY_BATCH if self.hooks.is_by_batch else BY_EPOCH

    def monitor(self, on_ready: Callable[[], None] | None = None) -> TaskMonitor:
        """Make the monitor of the present pool, which is started; sets ``coordinator``. on_ready :
        called when all tasks and servers are ready.
        """
        settings, record, schedule = self.settings, self.record, self.recovery.schedule
        pool, topology = self.here.pool, self.settings.topology
        if self.checkpoints is not None and schedule is not None:

            def facts(n_rows: int) -> Mapping[str, Any]:
                n = settings.groups, settings.tasks
                return manifest_facts(self.recovery.mine, record.rows[:n_rows], *n)

            self.coordinator = CheckpointCoordinator(
                self.checkpoints, self.attempt, topology.n_workers, facts, pool.tell,
                schedule.seconds, self.notes, self.here.on_checkpoint,
            )  # fmt: skip
        timeout_s = settings.superstep_timeout
        is_joined = settings.made_strategy.is_joined
        watch = StallDetector(
            pool.pids,
            lambda rank: (
                "run" if self.recovery.journals is None else RestartUnit.of(topology, rank).name
            ),
            settings.start_timeout,
            None if is_joined else timeout_s + heartbeat_s(timeout_s) + MARGIN_S,
            pool.stopped,
            lambda: pool.pids,
            lambda rank: not topology.is_server(rank),
        )

        def ready() -> None:
            if self.recovery.journals is not None:
                self.recovery.journals.take_over()
            if on_ready is not None:
                on_ready()

        return TaskMonitor(
            record, topology, pool.pids, is_joined=is_joined, on_ready=ready, watch=watch
        )

    def failed(self, monitor: TaskMonitor, error: HornError) -> None:
        """Prepare the next attempt after an error; raises it if there is none."""
        is_repairable = monitor.is_repairable(error)
        self.close()
        if self.checkpoints is not None:
            self.checkpoints.check_attempt(self.attempt)  # whose tasks run now, elsewhere
        if self.coordinator is not None and self.coordinator.last is not None:
            assert self.checkpoints is not None
            self._n_failed, self._first = 0, None
            self.start = self.checkpoints.latest() or self.start
        self._first = self._first or error
        most = self.recovery.max_restarts
        if not is_repairable:
            raise error
        if self._n_failed >= most:
            if most:
                times = f"{most} restart{'s' * (most > 1)}"
                self.watcher.note(f"Given up: {times} without a new checkpoint between them.")
            raise self._first
        self._n_failed += 1
        self.attempt += 1
        if self.checkpoints is not None:
            self.checkpoints.sweep(self.attempt)
        start = self.start
        rows = rows_of(start) if start is not None else ()
        self.record.back_to(0 if start is None else start.iteration, rows)
        if self.hooks is not None:
            self._recall(self.hooks)
        self.watcher.note(
            f"Restarting from iteration {self.record.iteration} (attempt {self._n_failed} of "
            f"{most}): {error}"
        )

    def repairs(self, monitor: TaskMonitor, placement: Placement) -> Restarts | None:
        """Make the restarts of the attempt; None unless servers are durable."""
        journals, here, topology = self.recovery.journals, self.here, self.settings.topology
        if journals is None:
            return None

        def start(ranks: Sequence[int], attempt: int) -> None:
            run = self.run()
            is_told = run.is_told or ranks[0] in monitor.ready
            run = msgspec.structs.replace(run, attempt=attempt, is_told=is_told)
            if ranks[0] >= topology.n_ranks:  # it came later
                n_groups, n_first = topology.group(ranks[0]) + 1, topology.n_groups
                run = msgspec.structs.replace(run, n_groups=n_groups, n_first=n_first)
            here.pool.start(self.draft, self.job, run, placement, ranks)

        return Restarts(
            topology, self.recovery.max_restarts, here.pool, monitor, start, self.watcher,
            self.attempt, journals.keep, here.is_over, here.groups, here.on_left,
        )  # fmt: skip

    def outcome(self, monitor: TaskMonitor) -> Outcome:
        """The outcome of tasks that have all finished. Raises Stopped if they were stopped;
        Timeout, with that for its cause, if it was time.
        """
        if any(finished.is_halted for finished in monitor.finished.values()):
            last = None if self.coordinator is None else self.coordinator.last
            at, reason = monitor.finished[0].iteration, self.notes.reason
            halted = stopped(last, at, reason, self.start)
            if self._is_overdue:
                raise self._overdue(halted.iteration) from halted
            raise halted
        outcome = monitor.outcome()
        self._call_back(monitor, None)  # in an asynchronous run group 0 does not wait for others
        if self.recovery.journals is not None:
            self.recovery.journals.keep(outcome.rows)
        return outcome

    def close(self) -> None:
        """Close the checkpoints of an attempt whose tasks have ended."""
        if self.coordinator is not None:
            self.coordinator.close()

    def listen(
        self, monitor: TaskMonitor, repairs: Restarts | None, look: Callable[[], None] | None = None
    ) -> None:
        """Handle the messages of all tasks of the pool until they have finished. Raises the root
        cause of a failure, or Stopped if all tasks, on this host, were still starting. look :
        called now and then.
        """
        record, pool, stop_requested = monitor.record, self.here.pool, self.recovery.stop_requested
        coordinator, deadline = self.coordinator, self.deadline.at
        look_s = LOOK_S if coordinator is None else CHECKPOINT_LOOK_S
        while not monitor.is_over:
            now = time.monotonic()
            self._look_after(monitor, repairs, now)
            if deadline is not None and monitor.verdict_at is None:
                stops = coordinator is not None and bool(monitor.ready)
                if now > deadline + (GRACE_S if stops else 0.0):
                    raise self._overdue(record.iteration)
            if look is not None:
                look()
            if coordinator is not None:
                if stop_requested.is_set() and not coordinator.is_stopping:
                    if isinstance(pool, TaskPool) and not monitor.ready:
                        raise stopped_at(self.start)
                    record.watcher.note(f"{STOPPING}; {self.here.remedy}.")
                    coordinator.stop()
                if deadline is not None and now > deadline and not coordinator.is_stopping:
                    self._is_overdue = True
                    coordinator.stop()
                coordinator.advance(now, record.iteration)
            repair_at = None if repairs is None else repairs.next_at
            ends_at = deadline if coordinator is None else None  # else it looks often
            ends = [t for t in (monitor.verdict_at, ends_at, repair_at) if t is not None]
            wait_s = min([t - now for t in ends], default=look_s)
            self._hear(monitor, repairs, min(max(wait_s, 0.001), look_s))
            self._call_back(monitor, repairs)

    def _overdue(self, iteration: int) -> Timeout:
        return overdue(self.job, self.deadline, iteration, self.record.epoch)

    def _look_after(self, monitor: TaskMonitor, repairs: Restarts | None, now: float) -> None:
        """Raise the root cause of a failure; restart what is due."""
        error = monitor.verdict(self.here.pool.stacks)
        if error is not None:
            raise error
        if repairs is not None:
            while not self.here.changes.empty():
                change = self.here.changes.get()
                repairs.change(change.groups, change.hosts)
            repairs.restart_due(now)
        for late in () if monitor.watch is None else monitor.watch.take_stalled():
            failed = late.failed(now, self.settings.topology.name)
            if repairs is None or not repairs.hear(late.ranks[0], failed):
                monitor.hear(NOBODY, failed)

    def _hear(self, monitor: TaskMonitor, repairs: Restarts | None, wait_s: float) -> None:
        for rank, said, descriptors in self.here.pool.events(wait_s):
            if monitor.watch is not None:
                monitor.watch.hear(rank, said)
            if isinstance(said, (PartSaved, SaveReply)):
                if self.coordinator is not None:
                    self.coordinator.hear(rank, said)
            elif repairs is None or not repairs.hear(rank, said):
                monitor.hear(rank, said, descriptors)

    def _call_back(self, monitor: TaskMonitor, repairs: Restarts | None) -> None:
        """Call the callbacks for new epochs and updates, and send their decisions to the tasks."""
        hooks, topology = self.hooks, self.settings.topology
        while hooks is not None and self.record.unseen:
            said = self.record.unseen.popleft()
            is_epoch = not isinstance(said, BatchDone)
            hooks.arrays = partial(self._arrays, monitor, repairs)
            if isinstance(said, BatchDone):
                at = said.iteration
                hooks.batch(said.epoch, at, said.loss)
            else:
                at = int(said["iteration"])
                history = History()
                history.rows = self.record.rows
                hooks.epoch(cast(dict[str, Any], said), history, self.watcher)
            is_for_all = not topology.n_servers and (
                is_epoch or self.settings.made_strategy.is_joined
            )
            n_ranks = topology.n_workers if is_for_all else topology.n_tasks
            rate, memory = hooks.rate.number, hooks.memory()
            self.here.pool.tell(CallbackDecision(at, is_epoch, hooks.stop, rate, n_ranks, memory))

    def _arrays(
        self, monitor: TaskMonitor, repairs: Restarts | None
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Collect the whole model from tasks that wait for a decision. Raises the root cause."""
        pool, n_tasks, unseen = self.here.pool, self.settings.tasks, self.record.unseen
        assert unseen is not None
        if monitor.is_over:
            return monitor.whole["parameter"], monitor.whole["state"]
        n_waiting, patience = -1, Patience(self._answer_s(0))
        while len(monitor.shared) < n_tasks or n_waiting < len(unseen):
            n_shared = len(monitor.shared)
            if n_waiting < len(unseen):  # group 0 waits, again after a restart: it is asked
                n_waiting = len(unseen)
                monitor.take_arrays()
                pool.tell(ModelRequest(n_tasks))
            self._look_after(monitor, repairs, time.monotonic())
            self._hear(monitor, repairs, CHECKPOINT_LOOK_S)
            if len(monitor.shared) != n_shared:
                patience = Patience(self._answer_s(len(monitor.shared)))
            elif patience.left_s() <= 0 and self.settings.made_strategy.is_joined:
                # Tasks of others send heartbeats while they wait: their silence is noticed above.
                late, there = set(range(n_tasks)) - monitor.shared, sorted(monitor.shared)
                stalled = StalledRanks(tuple(sorted(late)), tuple(there), ASKED, patience.timeout_s)
                failed = stalled.failed(time.monotonic(), self.settings.topology.name)
                monitor.hear(NOBODY, failed)
                patience.renew()
        return monitor.take_arrays()

    def _answer_s(self, n_shared: int) -> float:
        """How long the next task may take to send its part of the model. The first may still be in
        a callback that runs in every task, which is bounded only by when another task waits for it.
        """
        timeout_s, start_s = self.settings.superstep_timeout, self.settings.start_timeout
        if not n_shared and any(getattr(one, "everywhere", False) for one in self.job.callbacks):
            return len(STEPS) * start_s
        return timeout_s + MARGIN_S
