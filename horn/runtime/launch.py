"""Start the tasks of a group on this host, hear them out, and leave nothing behind.

The parent of the task processes: it gives them their parcel, passes their progress on, puts the
arrays together at the end, and decides what depends on time. Tasks are fresh interpreters, never
forks. Whatever happens, when ``launch`` returns or raises they have ended, and with them their
sockets and memory; the nodes in ZooKeeper are removed.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import zk
from horn.cluster.coord import Coordinator
from horn.cluster.jobs import Jobs, State
from horn.compiler.placement import Placement
from horn.errors import ClusterError, Diverged, HornError, ProtocolError
from horn.job import Job
from horn.loop import Ending, Trouble, divergence, overdue
from horn.progress import Progress
from horn.runtime import control, trace
from horn.runtime.blame import Case, verdict
from horn.runtime.control import Failed, Finished, Ready, Row, Stepped
from horn.runtime.family import STOP_S, Child, Family
from horn.runtime.messages import Array
from horn.runtime.parcel import Draft, RunSpec, map_private, pack
from horn.strategies import Topology

logger = logging.getLogger(__name__)

GRACE_S = 2.0  # how long the true first failure may take to show after an echo of it
ECHO_S = 0.5  # how long an echo may take, which says where a task was that ended without a word
START_S = 120.0  # for all tasks to meet
URLS = {"shm": "shm://", "ipc": "ipc://", "tcp": "tcp://127.0.0.1:0"}


@dataclass(frozen=True)
class Settings:
    """How groups of ``n_tasks`` each run. barrier : "message" or "zookeeper". transport : a key of
    ``URLS``. threads : per task. hosts : a ZooKeeper to use instead of an embedded one. guests :
    servers are threads of the first tasks' processes.
    """

    n_tasks: int
    barrier: str = "message"
    transport: str = "shm"
    backend: str = "kernels"
    threads: int | None = None
    superstep_timeout_s: float = 60.0
    wants_trace: bool = False
    hosts: str | None = None
    n_groups: int = 1
    n_servers: int = 0
    guests: bool = False
    is_joined: bool = True

    @property
    def topology(self) -> Topology:
        return Topology(self.n_groups, self.n_tasks, self.n_servers)

    @property
    def n_processes(self) -> int:
        return self.topology.n_workers if self.guests else self.topology.n_ranks


@dataclass
class Outcome:
    """What came of it. ``counters`` and ``traces`` by task. ``staleness`` counts what was pushed to
    servers by how many updates it was late.
    """

    ending: Ending
    rows: list[dict[str, Any]]
    parameters: dict[str, Array]
    states: dict[str, Array]
    counters: list[dict[str, Any]]
    traces: list[control.Trace] = field(default_factory=list)
    staleness: dict[int, int] = field(default_factory=dict)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def launch(
    job: Job,
    draft: Draft,
    choose: Callable[[], Placement],
    settings: Settings,
    watcher: Progress,
    begun: float,
    timeout_s: float | None = None,
) -> Outcome:
    """Run a job in a group of task processes.

    choose : gives the placement; called while the processes start, which takes as long. begun :
    when the run began, on the monotonic clock. timeout_s : from then.

    Raises
    ------
    Timeout, Diverged : as with one task. BarrierTimeout : a task hangs; says which and where.
    TaskFailed : a task was killed, or met an exception of the user's code.
    """
    name = f"{re.sub('[^A-Za-z0-9_.-]', '-', job.name or 'job').strip('-.') or 'job'}"
    job_id = f"{name[:80]}-{secrets.token_hex(4)}"
    n_processes = settings.n_processes
    threads = settings.threads or max(cores() // settings.topology.n_workers, 1)
    with ExitStack() as stack:
        family = stack.enter_context(Family(n_processes, threads, job_id))
        hosts = settings.hosts
        if hosts is None:
            hosts = stack.enter_context(zk.EmbeddedServer(tick_ms=1000)).hosts
        placement = choose()
        entry = stack.enter_context(Entry(hosts, job_id, job, settings))
        stack.callback(family.stop)  # before its nodes are removed: nobody writes there any more
        run = RunSpec(
            n_tasks=settings.n_tasks,
            n_groups=settings.n_groups,
            n_servers=settings.n_servers,
            guests=settings.guests,
            hosts=hosts,
            job=job_id,
            url=URLS[settings.transport],
            backend=settings.backend,
            threads=threads,
            barrier=settings.barrier,
            begun=begun,
            interval_s=watcher.interval_s,
            superstep_timeout_s=settings.superstep_timeout_s,
            start_timeout_s=START_S,
            max_trace_events=trace.MAX_EVENTS // n_processes if settings.wants_trace else 0,
        )
        parcel = pack(draft, job, run, placement)
        try:
            for child in family.children:
                child.start(parcel.descriptors)
        finally:
            parcel.close()
        entry.change(State.RUNNING)
        deadline = None if timeout_s is None else begun + timeout_s
        hearing = Hearing(job, family, watcher, deadline, timeout_s, settings)
        try:
            hearing.listen()
        finally:
            hearing.end_progress()
        family.wait(STOP_S)
        outcome = hearing.outcome()
        entry.change(State.SUCCEEDED)
    return outcome


class Entry:
    """The job's place in ZooKeeper, while it runs; removed at the end."""

    def __init__(self, hosts: str, job_id: str, job: Job, settings: Settings) -> None:
        self.job_id, self.state = job_id, State.PENDING
        self.coord = Coordinator(hosts)
        try:
            self.jobs = Jobs(self.coord)
            spec = {"name": job.name, "groups": settings.n_groups, "tasks": settings.n_tasks,
                    "servers": settings.n_servers, "barrier": settings.barrier,
                    "transport": settings.transport,
                    "layers": [x.size for x in job.network.layers],
                    "parent": os.getpid()}  # fmt: skip
            self.jobs.create(job_id, json.dumps(spec).encode())
        except BaseException:
            self.coord.close()
            raise

    def change(self, state: State) -> None:
        self.jobs.change(self.job_id, self.state, state)
        self.state = state

    def __enter__(self) -> Entry:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.coord.remove(self.coord.paths.job(self.job_id))
        except ClusterError as error:
            logger.warning("job not removed job=%s reason=%s", self.job_id, error)
        finally:
            self.coord.close()


class Hearing:
    """What the tasks have said so far."""

    def __init__(
        self,
        job: Job,
        family: Family,
        watcher: Progress,
        deadline: float | None,
        timeout_s: float | None,
        settings: Settings,
    ) -> None:
        self.job, self.family, self.watcher = job, family, watcher
        self.topology, self.is_joined = settings.topology, settings.is_joined
        self.deadline, self.timeout_s = deadline, timeout_s
        n_tasks = len(family.children)
        self.case = Case(
            n_tasks,
            {c.task: c.process.pid for c in family.children},
            names={t: self.topology.name(t) for t in range(self.topology.n_workers, n_tasks)},
        )
        self.ready: set[int] = set()
        self.finished: dict[int, Finished] = {}
        self.rows: list[dict[str, Any]] = []
        self.heard: dict[int, dict[int, Row]] = {}  # epoch, group: rows that are not in ``rows``
        self.traces: dict[int, control.Trace] = {}
        self.epoch, self.iteration = 1, 0
        self.is_shown = False
        self.whole: dict[str, dict[str, Array]] = {"parameter": {}, "state": {}}
        self.n_covered: dict[tuple[str, str], int] = {}

    def listen(self) -> None:
        """Until all have finished; raises what went wrong first."""
        n_tasks = self.case.n_tasks
        verdict_at = trouble_at = None
        while len(self.finished) < n_tasks:
            now = time.monotonic()
            if self.case.has_trouble:
                trouble_at = now if trouble_at is None else trouble_at
                is_mute = bool(self.case.silent) and not self.case.failures
                verdict_at = trouble_at + (ECHO_S if is_mute else GRACE_S)
                if now >= verdict_at or (self._is_clear() and not is_mute):
                    raise self._verdict()
            elif self.deadline is not None and now > self.deadline:
                assert self.timeout_s is not None
                raise overdue(self.job, self.timeout_s, self.iteration, self.epoch)
            ends = [t for t in (verdict_at, self.deadline) if t is not None]
            wait_s = min([t - now for t in ends], default=1.0)
            for child, said, descriptors in self.family.events(min(max(wait_s, 0.001), 1.0)):
                self._hear(child, said, descriptors)

    def _hear(self, child: Child, said: Any, descriptors: list[int]) -> None:
        try:
            match said:
                case int(code):
                    self.case.exits[child.task] = code
                case Ready():
                    self.ready.add(child.task)
                    if len(self.ready) == self.case.n_tasks:
                        self.is_shown = True
                        self.watcher.begin(self.job)
                case Stepped(epoch, iteration, loss, samples_per_s):
                    self.epoch, self.iteration = epoch, iteration
                    self.watcher.step(epoch, iteration, loss, samples_per_s)
                case Row(values, group):
                    self.heard.setdefault(int(values["epoch"]), {})[group] = said  # type: ignore[arg-type]
                    self._put_rows(self.topology.n_groups)
                case control.Share(parts):
                    self._put(child.task, parts, descriptors)
                case control.Trace():
                    self.traces[child.task] = said
                case Finished():
                    self.finished[child.task] = said
                    self.case.finished.add(child.task)
                case Failed():
                    self.case.failures[child.task] = said
                case _:
                    raise ProtocolError(
                        f"task {child.task} says {type(said).__name__} to its parent"
                    )
        finally:
            for fd in descriptors:
                os.close(fd)

    def _put_rows(self, n_groups: int) -> None:
        """The next epochs that so many groups at least have told of."""
        while found := self.heard.get(len(self.rows) + 1):
            if len(found) < n_groups or 0 not in found:
                return
            del self.heard[len(self.rows) + 1]
            row = merged(found, self.is_joined)
            self.rows.append(row)
            self.epoch, self.iteration = int(row["epoch"]), int(row["iteration"])
            self.watcher.epoch(row)

    def end_progress(self) -> None:
        if self.is_shown:
            self.is_shown = False
            self.watcher.end()

    # trouble

    def _is_clear(self) -> bool:
        if not self.case.is_complete:
            return False
        # Every task may know something of a divergence: the shares tell which neurons it was.
        if any(f.trouble for f in self.case.failures.values()):
            spoke = self.case.failures.keys() | self.case.exits.keys() | self.case.finished
            return len(spoke) == self.case.n_tasks
        return True

    def _verdict(self) -> HornError:
        case = self.case
        for task in case.causes[:1]:
            failed = case.failures.get(task)
            if failed is not None and failed.trouble is not None:
                trouble = Trouble(*failed.trouble)
                return Diverged(divergence(self.job, self.whole["parameter"], trouble))
        stacks = {}
        if not case.causes:
            stacks = {c.task: c.where() for c in self.family.children if c.task in case.late}
        progress = f"after iteration {self.iteration}" if self.is_shown else "starting"
        return verdict(case, self.job.network, stacks, progress)

    # arrays

    def _put(self, task: int, parts: tuple[control.Part, ...], descriptors: list[int]) -> None:
        """A task's parts into their places of the whole arrays."""
        if len(descriptors) != 1:
            raise ProtocolError(f"task {task}: a share with {len(descriptors)} memories, not 1")
        memory = map_private(descriptors[0])
        shapes = self._shapes()
        for part in parts:
            key = (part.kind, part.name)
            if key not in shapes or part.dtype != np.dtype(self.job.dtype).str:
                raise ProtocolError(f"task {task}: a share of {part.name!r} as {part.dtype}")
            shape = shapes[key]
            try:
                places = tuple(_place(memory, at) for at in part.places)
                values = _values(memory, part)
                found = self.whole[part.kind]
                if part.name not in found:
                    found[part.name] = np.zeros(shape, self.job.dtype)
                found[part.name][_index(places)] = values
            except (ValueError, IndexError) as error:
                raise ProtocolError(
                    f"task {task}: its share of {part.name} {part.shape} does not fit {shape}: "
                    f"{error}"
                ) from error
            self.n_covered[key] = self.n_covered.get(key, 0) + values.size

    def _shapes(self) -> dict[tuple[str, str], tuple[int, ...]]:
        found: dict[tuple[str, str], tuple[int, ...]] = {}
        for layer in self.job.network.layers[1:]:
            for link in layer.links:
                found["parameter", link.weight] = link.shape(layer.size)
            if layer.bias is not None:
                found["parameter", layer.bias_name] = (layer.size,)
            found |= {("parameter", f"{layer.name}.{n}"): (layer.size,) for n in layer.parameters}
            found |= {("state", f"{layer.name}.{n}"): (layer.size,) for n in layer.states}
        return found

    def outcome(self) -> Outcome:
        """The whole, when all have finished."""
        for key, shape in self._shapes().items():
            if self.n_covered.get(key, 0) < int(np.prod(shape)):
                raise ProtocolError(f"the tasks' shares of {key[1]} do not make it whole")
        counters: list[dict[str, Any]] = []
        for task, finished in sorted(self.finished.items()):
            role = self.topology.name(task)
            counters.append(
                {"task": task, "role": role, "pid": self.case.pids[task], **finished.spent}
            )
        sent, received = (sum(row[k] for row in counters) for k in ("n_sent", "n_received"))
        if sent != received:
            raise ProtocolError(f"{sent} messages were sent, {received} received")
        self._put_rows(1)  # of an asynchronous run that ended early: some groups had fewer epochs
        first = self.finished[0]
        ending = Ending(
            first.iterations, first.iteration, first.stopped_early, first.best_epoch, first.test,
            first.metrics,
        )  # fmt: skip
        return Outcome(
            ending,
            self.rows,
            self.whole["parameter"],
            self.whole["state"],
            counters,
            [self.traces[task] for task in sorted(self.traces)],
            dict(sum((Counter(f.staleness) for f in self.finished.values()), Counter())),
        )


def merged(found: Mapping[int, Row], is_joined: bool) -> dict[str, Any]:
    """One row of what the groups say of an epoch. What group 0 measured counts; where groups are
    not joined, the loss is that of all groups' samples, and their speeds are added.
    """
    row: dict[str, Any] = dict(found[0].values)
    said = [found[group] for group in sorted(found)]
    known = [one.own for one in said if one.own is not None]
    if len(known) < 2 or row["loss"] is None:
        return row
    row["group_loss"] = [loss for loss, _ in known]
    if is_joined:
        return row
    n = sum(samples for _, samples in known) or 1
    row["loss"] = sum(loss * samples for loss, samples in known) / n
    speeds: list[Any] = [one.values["samples_per_s"] for one in said]
    shares = zip(speeds, known, strict=True)
    row["samples_per_s"] = sum(speed * samples / n for speed, (_, samples) in shares)
    return row


def _place(memory: mmap.mmap, at: tuple[int, ...]) -> slice | Array:
    if len(at) == 3:
        return slice(*at)
    offset, count = at
    if offset + 8 * count > len(memory):
        raise ValueError(f"indices end at byte {offset + 8 * count} of {len(memory)}")
    return np.frombuffer(memory, np.int64, count, offset)


def _values(memory: mmap.mmap, part: control.Part) -> Array:
    count = int(np.prod(part.shape))
    dtype = np.dtype(part.dtype)
    if part.offset + count * dtype.itemsize > len(memory):
        raise ValueError(f"it ends beyond the memory of {len(memory)} bytes")
    return np.frombuffer(memory, dtype, count, part.offset).reshape(part.shape)


def _index(places: tuple[slice | Array, ...]) -> Any:
    if sum(not isinstance(at, slice) for at in places) < 2:
        return places
    return np.ix_(*(np.r_[at] if isinstance(at, slice) else at for at in places))
