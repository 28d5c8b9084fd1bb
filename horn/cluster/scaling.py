"""More or fewer groups for a job that runs: whether they may come, and the wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from horn.cluster.client import ClusterClient
from horn.cluster.job_controller import GROUPS
from horn.cluster.job_status import JobStatus
from horn.cluster.master import RUNNING, HostReport, JobRecord, sharing, unkept, unsaved
from horn.cluster.submission import Submission
from horn.coordination.jobs import JobState, node_of
from horn.coordination.records import Check, Put
from horn.errors import UNREADABLE, Conflict, JobError, NotApplied, Timeout


def scale(client: ClusterClient, job: str, n_groups: int) -> None:
    """Ask for a number of groups of a job with servers, or of allreduce, which restarts from a
    checkpoint. Raises JobError: it is neither, slots are missing, or none can be saved now.
    Conflict: it has ended or is to stop.
    """
    if n_groups < 1:
        raise JobError(
            f"--groups {n_groups}: at least 1, since group 0 measures and decides when to end; "
            f"horn stop {job} ends them all"
        )
    status = client.status(job)
    found = status.submission
    is_shared = found is not None and found.strategy == "allreduce"
    if found is None or (not is_shared and not found.servers) or found.options.get("guests"):
        kind = "a job whose servers are in its tasks' processes (--servers 0)"
        if found is None or not found.servers:
            kind = f"{found.strategy if found else 'unknown'}, whose groups are part of it"
        raise JobError(
            f"job {job!r} is {kind}: only of allreduce, and of a job with servers (downpour, "
            f"easgd), can groups come and leave. Stop it, and submit it with --groups "
            f"{n_groups}"
        )
    if why := unkept(status.record.allocations, found.servers):
        raise JobError(
            f"nobody could join job {job!r}: {why}; start workers with --shared, and submit it "
            f"again"
        )
    _check_room(client, found, status.record, n_groups)
    why = "" if found.servers else unsaved(_reports(client, job, status.record))
    if why:
        raise JobError(
            f"job {job!r} keeps its groups: others go on from a checkpoint, and none can be "
            f"saved now: {why}. Mend that, and ask again once one is saved (horn logs {job})"
        )
    state = node_of(client.coord, client.paths.state(job), job)
    now = JobState(state.data.decode())
    if now.is_over or now is JobState.STOPPING:
        raise Conflict(f"job {job!r} is {now.value}; only one that runs can be scaled")
    wish = Put(client.paths.wish(job), GROUPS + str(n_groups).encode())
    try:
        client.coord.commit([Check(client.paths.state(job), state.version), wish])
    except NotApplied as error:
        raise Conflict(f"job {job!r} left {now.value} in the meantime") from error


def _check_room(client: ClusterClient, found: Submission, record: JobRecord, n_groups: int) -> None:
    """Check that the hosts where a job may run have slots for a number of groups."""
    here = len(record.groups) or found.groups
    n_more = (n_groups - here) * found.tasks
    hosts = client.free(client.workers())
    near = sharing(record, hosts)
    if found.servers:  # they know their hosts; of allreduce all begin anew
        near = {name: host for name, host in near.items() if name in record.allocations}
    where = {name: host.free for name, host in (near or hosts).items()}
    if n_more > sum(where.values()):
        free = ", ".join(f"{n} on {name}" for name, n in sorted(where.items())) or "none"
        elsewhere = sum(host.free for host in hosts.values()) - sum(where.values())
        grows = "grows where it runs" if found.servers else "grows where its checkpoints are"
        hint = f" ({elsewhere} elsewhere: a job {grows})" if elsewhere else ""
        raise JobError(
            f"{n_groups} groups need {n_more} slot{'s' * (n_more > 1)} more than the job has "
            f"for {here} group{'s' * (here > 1)}; free: {free}{hint}. Ask for fewer, or start "
            f"a worker there with more --slots"
        )


def wait_scaled(
    client: ClusterClient,
    job: str,
    n_groups: int,
    timeout_s: float | None,
    hear: Callable[[JobStatus], None] | None = None,
) -> JobStatus:
    """Wait until so many groups have allocations and leaving ones have left, or all have
    restarted. hear : called with each status that is looked at. Raises horn's Timeout.
    Conflict: the job ends, or goes on with its old number.
    """
    ends = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        status = client.status(job)
        if hear is not None:
            hear(status)
        record = status.record
        here = len(record.groups) or (status.submission.groups if status.submission else 0)
        if status.state.is_over:
            raise Conflict(f"job {job!r} is {status.state.value}; it has {here} groups")
        if record.allocations and here == n_groups and not record.leaving:
            found = status.submission
            if (found is not None and found.servers) or all_run(client, job, record):
                return status
        if record.n_refused == n_groups:
            raise Conflict(f"job {job!r} goes on with {here} groups: {record.trouble}")
        if ends is not None and time.monotonic() > ends:
            why = f": it {status.reason}" if status.reason else ""
            raise Timeout(f"job {job} has {here} groups after {timeout_s:g} s{why}")
        time.sleep(0.1)


def all_run(client: ClusterClient, job: str, record: JobRecord) -> bool:
    """Whether all hosts of an attempt report that their tasks have met."""
    reports = _reports(client, job, record)
    return [r.phase for r in reports] == [RUNNING] * len(record.allocations)


def _reports(client: ClusterClient, job: str, record: JobRecord) -> list[HostReport]:
    """What the hosts of an attempt report, those that have reported what can be read."""
    paths = [client.paths.report(job, record.attempt, host) for host in record.allocations]
    nodes = [client.coord.get(path) for path in paths]
    found = []
    for node in nodes:
        if node is not None:
            with suppress(*UNREADABLE):
                found.append(msgspec.json.decode(node.data, type=HostReport))
    return found
