"""Run a job in task processes on this host, to the end, and leave nothing behind.

All tasks are one task pool (``executor/task_pool.py``); what they say, and which attempt follows,
is in ``executor/attempts.py``. Tasks are fresh interpreters, never forks. Whatever happens, when
``launch`` returns or raises they have ended, and with them their sockets and memory; the nodes in
ZooKeeper are removed.
"""

from __future__ import annotations

import os
import re
import resource
import secrets
from collections.abc import Callable
from contextlib import ExitStack

from horn import transport as transports
from horn.coordination.jobs import JobState
from horn.errors import HornError, JobError, MemberLost, Stopped
from horn.executor.attempts import Attempts, JobAttempt
from horn.executor.job_entry import JobEntry
from horn.executor.monitor import Outcome
from horn.executor.task_pool import TaskPool
from horn.job import Job
from horn.partition.placement import Placement
from horn.process.job_payload import JobDraft
from horn.topology import SPARE_FDS
from horn.training.checkpointing import RecoverySettings
from horn.training.deadline import Deadline
from horn.training.hooks import Hooks
from horn.training.progress import Progress
from horn.training.run_settings import RunSettings

TICK_MS = 1000  # of the embedded ZooKeeper
# How long a task waits for a ZooKeeper in its parent: only the parent can give the task's place
# to another, and it ends the process first.
SILENCE_S = 86_400.0
# Open files of the parent for each task: its line, its stack, its pidfd, its session with an
# embedded ZooKeeper.
FDS_PER_TASK = 5
# And for itself while it runs: ZooKeeper's, a session, the payload's, a module being imported.
OWN_FDS = 32


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def check_room(settings: RunSettings) -> None:
    """Check that this process and its tasks may open enough files. Raises JobError."""
    n, topology = settings.n_processes, settings.topology
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    each = topology.descriptors(transports.load(settings.transport).fds_per_peer)
    n_open = len(os.listdir("/proc/self/fd"))  # a notebook's data and connections, too
    spare = max(SPARE_FDS, n_open + OWN_FDS)
    mine = n * FDS_PER_TASK + spare
    already = f" ({n_open} of them are open already)" if spare > SPARE_FDS else ""
    for who, need, has in (("this process", mine, already), ("each of them", each, "")):
        if need > allowed:
            raise JobError(
                f"{n} tasks over {settings.transport}: {who} needs {need} open files{has}, but "
                f"{allowed} are allowed; say ulimit -n {max(mine, each)} before, or ask for fewer "
                f"groups or tasks"
            )


def launch(
    job: Job,
    draft: JobDraft,
    find_placement: Callable[[], Placement],
    settings: RunSettings,
    watcher: Progress,
    begun: float,
    recovery: RecoverySettings | None = None,
    hooks: Hooks | None = None,
    deadline: Deadline | None = None,
) -> Outcome:
    """Run a job in a group of task processes.

    find_placement : gives the placement; called while the processes start, which takes as long.
    begun : when the run began, on the monotonic clock; the timeout is from then, or has a deadline.

    Raises
    ------
    Timeout, Diverged : as with one task. BarrierTimeout : a task hangs; says which and where.
    TaskFailed : a task was killed, or met an exception of the user's code. Stopped : somebody
    asked for it.
    """
    name = re.sub("[^A-Za-z0-9_.-]", "-", job.name or "job").strip("-.") or "job"
    job_id = f"{name[:80]}-{secrets.token_hex(4)}"
    check_room(settings)
    n_processes = settings.n_processes
    threads = settings.threads or max(cores() // settings.topology.n_workers, 1)
    recovery = recovery or RecoverySettings()
    with ExitStack() as stack:
        # The first task pool before everything else: its processes take long to start.
        pools = [TaskPool(range(n_processes), threads, job_id)]
        stack.callback(lambda: pools[-1].stop())
        server = None
        hosts = settings.hosts
        if hosts is None:
            import zk  # and asyncio: a job runner has its cluster's

            server = stack.enter_context(zk.EmbeddedServer(tick_ms=TICK_MS))
            hosts = server.hosts
        placement = find_placement()
        entry = stack.enter_context(JobEntry(hosts, job_id, job, settings, server))
        # Before its nodes are removed, so that nobody writes there any more.
        stack.callback(lambda: pools[-1].stop())
        url = transports.load(settings.transport).default_url
        here = JobAttempt(hosts, job_id, 0, pools[0], url, threads)
        here.silence_s = SILENCE_S if server is not None else 0.0
        here.remedy = "Ctrl-C again stops at once"
        attempts = Attempts(job, draft, settings, watcher, begun, recovery, here, hooks, deadline)
        stack.callback(attempts.record.end)
        entry.change(JobState.RUNNING)
        while True:
            here.pool.start(draft, job, attempts.run(), placement)
            monitor = attempts.monitor(entry.mark_running)
            repairs = attempts.repairs(monitor, placement)
            try:
                attempts.listen(monitor, repairs, entry.restart_ended_server)
                here.pool.wait()
                attempts.close()
                attempts.record.end()
                outcome = attempts.outcome(monitor)
                break
            except Stopped:
                here.pool.stop()
                attempts.close()
                entry.mark_running()
                entry.change(JobState.STOPPED)
                raise
            except HornError as error:
                here.pool.stop()
                if repairs is not None or monitor.is_over:
                    attempts.close()
                    raise
                attempts.failed(monitor, error)  # raises it, if that is all
                entry.mark_restarting()
                here.pool = TaskPool(range(n_processes), threads, job_id)
                pools.append(here.pool)
        entry.change(JobState.SUCCEEDED)
    return outcome


def launch_at(
    on_cluster: JobAttempt,
    job: Job,
    draft: JobDraft,
    find_placement: Callable[[], Placement],
    settings: RunSettings,
    watcher: Progress,
    begun: float,
    recovery: RecoverySettings,
    hooks: Hooks | None = None,
    deadline: Deadline | None = None,
) -> Outcome:
    """Run one attempt of a job on a cluster; arguments and errors are those of ``launch``."""
    pool, journals = on_cluster.pool, recovery.journals
    attempts = Attempts(job, draft, settings, watcher, begun, recovery, on_cluster, hooks, deadline)
    if journals is None:  # else each start has a higher one than the last
        attempts.attempt = on_cluster.attempt
    try:
        placement = find_placement()
        monitor = attempts.monitor()
        repairs = attempts.repairs(monitor, placement)
        if repairs is None:
            pool.start(draft, job, attempts.run(), placement)
        else:
            repairs.begin()
        try:
            attempts.listen(monitor, repairs)
        except HornError as error:
            may_be = monitor.is_repairable(error) or isinstance(error, MemberLost)
            may_be |= attempts.has_lost_start
            on_cluster.is_repairable = may_be and (repairs is None or not repairs.is_given_up)
            if journals is not None:
                journals.keep(attempts.record.rows, attempts.record.incomplete)
            raise
        pool.wait()
        attempts.close()
    finally:
        try:
            attempts.record.end()
        finally:
            pool.stop()
            attempts.close()
    return attempts.outcome(monitor)
