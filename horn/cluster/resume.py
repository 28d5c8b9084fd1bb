"""horn resume: it restarts a job that failed or was stopped, from one of its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horn.cluster import submission
from horn.cluster.client import UNANSWERED, ClusterClient, JobStatus
from horn.cluster.file_service import CheckpointList, CheckpointsRequest
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
    beginning. changed : even if the job was changed. package : other files for it. Raises Conflict:
    it runs, or succeeded. NotFound: no such checkpoint. JobError: it has none to choose from.
    """
    state = cluster.jobs.state(job)
    if JobState.PENDING not in NEXT[state]:
        raise Conflict(f"job {job!r} is {state.value}; what FAILED or was STOPPED is resumed")
    at = cluster.paths
    nodes = [node_of(cluster.coord, path, job) for path in (at.state(job), at.record(job))]
    status = cluster.status(job)
    record = status.record
    if begin:
        iteration = _chosen(cluster, status, begin)
        of_order = -1 if begin == "last" else iteration
        record = msgspec.structs.replace(record, begin=of_order, checkpoint=iteration)
    record = msgspec.structs.replace(record, changed=changed)
    other = [] if package is None else [_with(cluster, job, package)]
    steps: list[Step] = [
        *other,
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


def _with(cluster: ClusterClient, job: str, package: PackedJob) -> Put:
    """The step that gives the job's description another package, which some worker has then."""
    path, key = cluster.paths.spec(job), cluster.key
    node = node_of(cluster.coord, path, job)
    found = submission.read(key, job, node)
    found = msgspec.structs.replace(found, package=package.digest, target=package.target)
    cluster.upload(package)
    if key is None:
        return Put(path, msgspec.json.encode(found), node.version)
    return Put(path, submission.sign(key, found, node), node.version)


def _chosen(cluster: ClusterClient, status: JobStatus, begin: str) -> int:
    """The iteration for "last", "best" or a number."""
    job = status.job
    if status.submission is not None and status.submission.servers:
        raise JobError(
            f"job {job} has parameter servers, and goes on from what they were told last; "
            f"leave out --from"
        )
    iterations, best = saved(cluster, job, wants_best=begin == "best")
    if not iterations:
        raise NotFound(
            f"no worker that is up has a checkpoint of job {job}; without --from it begins "
            f"anew if there is none"
        )
    there = "there are " + ", ".join(str(n) for n in sorted(set(iterations)))
    if begin == "last":
        return iterations[-1]
    if begin == "best" and best < 0:
        raise NotFound(
            f"job {job} keeps no best model: that takes validation data, and early_stopping or "
            f"keep_best in its Job. Give --from an iteration: {there}"
        )
    iteration = best if begin == "best" else int(begin)
    if iteration not in iterations:
        what = "its best model, " if begin == "best" else ""
        raise NotFound(f"job {job} has no checkpoint of {what}iteration {iteration}; {there}")
    return iteration


def saved(cluster: ClusterClient, job: str, wants_best: bool = False) -> tuple[list[int], int]:
    """The iterations of a job's checkpoints, the newest last, and that of its best model or -1."""
    found = CheckpointList([])
    for name, member in cluster.workers().items():
        request = CheckpointsRequest(job, wants_best)
        try:
            here = cluster.client(name, member).call("saved", request, CheckpointList)
        except UNANSWERED:
            continue  # it has just gone; with a shared folder others see the same
        if len(here.iterations) > len(found.iterations):
            found = here
    return found.iterations, found.best
