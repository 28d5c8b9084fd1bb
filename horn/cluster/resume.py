"""horn resume: it restarts a job that failed or was stopped, from one of its checkpoints."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from horn.cluster import submission
from horn.cluster.client import UNANSWERED, ClusterClient
from horn.cluster.file_service import (
    CheckpointList,
    CheckpointsRequest,
    PackageKnown,
    PackageRequest,
)
from horn.cluster.job_controller import host_of
from horn.cluster.job_status import JobStatus
from horn.cluster.master import seeing
from horn.cluster.submitting import held
from horn.cluster.versions import versions
from horn.coordination.jobs import NEXT, JobState, listing, node_of
from horn.coordination.records import Put, Step
from horn.errors import Conflict, JobError, NotApplied, NotFound

if TYPE_CHECKING:
    from horn.cluster.packing import PackedJob


def resume(
    cluster: ClusterClient,
    job: str,
    begin: str = "",
    changed: bool = False,
    package: PackedJob | None = None,
) -> int:
    """Resume a job, from "last", "best" or an iteration; returns the iteration, -1 for the
    beginning. It takes the versions of horn and Python here. changed : even if the job was changed.
    package : other files for it. Raises Conflict: it runs, or succeeded. NotFound: no such
    checkpoint, or what it needs is on workers that are down. JobError: it has none to choose from.
    NotAllowed, ProtocolError: it was submitted by another horn, or its description is damaged.
    """
    state = cluster.jobs.state(job)
    if JobState.PENDING not in NEXT[state]:
        first = f"; wait for its end:  horn status {job} --wait" * (state is JobState.STOPPING)
        raise Conflict(
            f"job {job!r} is {state.value}; what FAILED or was STOPPED is resumed{first}"
        )
    at = cluster.paths
    nodes = [node_of(cluster.coord, path, job) for path in (at.state(job), at.record(job))]
    status = cluster.status(job)
    record = status.record
    if begin and begin != "last":
        iteration, where = _chosen(cluster, status, begin)
        record = msgspec.structs.replace(record, begin=iteration, checkpoint=iteration, kept=where)
    else:
        _check_kept(cluster, status)
        if begin:
            iteration, where = _chosen(cluster, status, begin)
            record = msgspec.structs.replace(record, begin=-1, checkpoint=iteration, kept=where)
    record = msgspec.structs.replace(record, changed=changed)
    with ExitStack() as holds:
        steps: list[Step] = [
            _described(cluster, status, package, holds),
            Put(at.state(job), JobState.PENDING.value.encode(), nodes[0].version),
            Put(at.record(job), msgspec.json.encode(record), nodes[1].version),
            Put(at.result(job), b""),
            *listing(at, job, state, JobState.PENDING),
        ]
        try:
            cluster.coord.commit(steps)
        except NotApplied as error:
            raise Conflict(f"job {job!r} left {state.value} in the meantime") from error
    return record.checkpoint


def _check_kept(cluster: ClusterClient, status: JobStatus) -> None:
    """Raise NotFound if all workers that see the last checkpoint are down."""
    record = status.record
    up = {name: host_of(member, {}) for name, member in cluster.workers().items()}
    if record.kept and not seeing(record.kept, up):
        raise NotFound(
            f"the last checkpoint of job {status.job}, of iteration {record.checkpoint:,}, is on "
            f"worker {', '.join(sorted(record.kept))}, which is down or cut off: start it there "
            f"again, and then  horn resume {status.job}; to begin anew, submit the job again"
        )


def _check_package(cluster: ClusterClient, status: JobStatus, digest: str) -> None:
    """Raise NotFound if all workers that have the job's files are down."""
    workers = cluster.workers()
    for name, member in workers.items():
        try:
            request = PackageRequest(digest)
            if cluster.client(name, member).call("have", request, PackageKnown).is_here:
                return
        except UNANSWERED:
            continue
    down = cluster.down(status.job, workers)
    raise NotFound(
        f"no worker that is up has the files of job {status.job}"
        f"{f'; {down}' if down else ''}: start a worker that has them again, and then  horn resume "
        f"{status.job}, or send them again with --with TARGET"
    )


def _described(
    cluster: ClusterClient, status: JobStatus, package: PackedJob | None, holds: ExitStack
) -> Put:
    """The step that gives the job's description the versions here, and perhaps another package.
    Some worker has its package then, for as long as ``holds``.
    """
    job = status.job
    path, key = cluster.paths.spec(job), cluster.key
    node = node_of(cluster.coord, path, job)
    found = submission.read(key, job, node)
    now = {name: str(version) for name, version in versions().items() if name in found.options}
    found = msgspec.structs.replace(found, options={**found.options, **now})
    if package is None:
        _check_package(cluster, status, found.package)
    else:
        found = msgspec.structs.replace(found, package=package.digest, target=package.target)
        holds.enter_context(held(cluster, package))
    if key is None:
        return Put(path, submission.unsigned(found), node.version)
    return Put(path, submission.sign(key, found, node), node.version)


def _chosen(cluster: ClusterClient, status: JobStatus, begin: str) -> tuple[int, dict[str, str]]:
    """The iteration for "last", "best" or a number; and the worker that has it, with its folder."""
    job = status.job
    if status.submission is not None and status.submission.servers:
        raise JobError(
            f"job {job} has parameter servers, and goes on from what they were told last; "
            f"leave out --from"
        )
    where, iterations, best = _saved(cluster, status, wants_best=begin == "best")
    if not iterations:
        raise NotFound(
            f"no worker that is up has a checkpoint of job {job}; without --from it begins "
            f"anew if there is none"
        )
    there = "there are " + ", ".join(str(n) for n in sorted(set(iterations)))
    if begin == "last":
        return iterations[-1], where
    if begin == "best" and best < 0:
        raise NotFound(
            f"job {job} keeps no best model: that takes validation data, and early_stopping or "
            f"keep_best in its Job. Give --from an iteration: {there}"
        )
    iteration = best if begin == "best" else int(begin)
    if iteration not in iterations:
        what = "its best model, " if begin == "best" else ""
        raise NotFound(f"job {job} has no checkpoint of {what}iteration {iteration}; {there}")
    return iteration, where


def saved(cluster: ClusterClient, job: str, wants_best: bool = False) -> tuple[list[int], int]:
    """The iterations of a job's checkpoints, the newest last, and that of its best model or -1."""
    _, iterations, best = _saved(cluster, cluster.status(job), wants_best)
    return iterations, best


def _saved(
    cluster: ClusterClient, status: JobStatus, wants_best: bool
) -> tuple[dict[str, str], list[int], int]:
    """The same, and the worker that has them, with its shared folder: one that sees what the last
    attempt with a checkpoint has kept, if it is up; else the one with the most.
    """
    up = {name: host_of(member, {}) for name, member in cluster.workers().items()}
    near = seeing(status.record.kept, up)
    best_of: tuple[dict[str, str], CheckpointList] = ({}, CheckpointList([]))
    for name in near or up:
        request = CheckpointsRequest(status.job, wants_best)
        try:
            client = cluster.client(name, cluster.workers()[name])
            here = client.call("saved", request, CheckpointList)
        except (*UNANSWERED, KeyError):
            continue  # it has just gone; with a shared folder others see the same
        if len(here.iterations) > len(best_of[1].iterations):
            best_of = {name: up[name].shared}, here
    where, found = best_of
    return where, found.iterations, found.best
