"""Run a job in task processes on this host, hear them out, and leave nothing behind.

All tasks are one crew (``runtime/crew.py``). Tasks are fresh interpreters, never
forks. Whatever happens, when ``launch`` returns or raises they have ended, and with them their
sockets and memory; the nodes in ZooKeeper are removed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import zk
from horn.cluster.coord import Coordinator
from horn.cluster.jobs import Jobs, State
from horn.compiler.placement import Placement
from horn.errors import ClusterError
from horn.job import Job
from horn.loop import overdue
from horn.progress import Progress
from horn.runtime import trace
from horn.runtime.crew import Crew
from horn.runtime.hearing import Hearing, Outcome, Record
from horn.runtime.parcel import Draft, RunSpec
from horn.strategies import Topology

logger = logging.getLogger(__name__)

LOOK_S = 1.0  # how often the clock is looked at
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
        # The first crew before everything else: its processes take long to start.
        crew = stack.enter_context(Crew(range(n_processes), threads, job_id))
        hosts = settings.hosts
        if hosts is None:
            hosts = stack.enter_context(zk.EmbeddedServer(tick_ms=1000)).hosts
        placement = choose()
        entry = stack.enter_context(Entry(hosts, job_id, job, settings))
        stack.callback(crew.stop)  # before its nodes are removed: nobody writes there any more
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
        crew.start(draft, job, run, placement)
        entry.change(State.RUNNING)
        record = Record(job, watcher)
        hearing = Hearing(record, settings.topology, crew.pids, is_joined=settings.is_joined)
        deadline = None if timeout_s is None else begun + timeout_s
        try:
            listen(hearing, crew, deadline, timeout_s)
        finally:
            record.end()
        crew.wait()
        outcome = hearing.outcome()
        entry.change(State.SUCCEEDED)
    return outcome


def listen(
    hearing: Hearing, crew: Crew, deadline: float | None = None, timeout_s: float | None = None
) -> None:
    """Hear a crew that has all tasks, until all have finished; raises what went wrong first."""
    while not hearing.is_over:
        now, record = time.monotonic(), hearing.record
        error = hearing.verdict(crew.stacks)
        if error is not None:
            raise error
        verdict_at = hearing.verdict_at
        if verdict_at is None and deadline is not None and now > deadline:
            assert timeout_s is not None
            raise overdue(hearing.job, timeout_s, record.iteration, record.epoch)
        ends = [t for t in (verdict_at, deadline) if t is not None]
        wait_s = min([t - now for t in ends], default=LOOK_S)
        for rank, said, descriptors in crew.events(min(max(wait_s, 0.001), LOOK_S)):
            hearing.hear(rank, said, descriptors)


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
