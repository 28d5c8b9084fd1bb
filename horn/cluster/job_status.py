"""What ZooKeeper has of a cluster's jobs: their states, progress, results, places in the queue.

Looking needs neither NumPy nor the engine.
"""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from horn.cluster import submission
from horn.cluster.master import JobRecord, unkept
from horn.cluster.submission import Submission
from horn.coordination.jobs import JobState
from horn.coordination.records import Znode
from horn.coordination.session import Session
from horn.errors import UNREADABLE, ClusterError, HornError, NotFound
from horn.security.keys import Key

logger = logging.getLogger(__name__)

TOGETHER = 100  # jobs that are read in one round trip


@dataclass(frozen=True)
class JobStatus:
    """A job, as far as ZooKeeper knows. ``age_s`` : since it was submitted, by its clock.
    standstill : why nothing of it goes on, where no worker is up, nor a master to say so. place :
    of a PENDING job in the queue, from 1, where it was asked for; else 0.
    """

    job: str
    state: JobState
    submission: Submission | None
    record: JobRecord
    progress: Mapping[str, Any]
    result: Mapping[str, Any]
    submitted_s: float
    created: int
    age_s: float
    standstill: str = ""
    place: int = 0

    @property
    def reason(self) -> str:
        """What the job waits for: a worker, or what its master says, or its primary host."""
        return self.standstill or self.record.reason or self._said("waits")

    @property
    def note(self) -> str:
        """What its primary host has noted last, while it goes on."""
        return self._said("note")

    @property
    def unkept(self) -> str:
        """Why nothing of it is kept for a restart, in words; "" if it is, or is meant not to be."""
        found = self.submission
        if found is None or found.options.get("guests"):
            return ""
        return unkept(self.record.allocations, found.servers)

    def _said(self, what: str) -> str:
        """What the primary host of the present attempt has said: of one before it is over."""
        goes_on = self.state in (JobState.RUNNING, JobState.STOPPING)
        is_present = goes_on and self.progress.get("attempt") == self.record.attempt
        return str(self.progress.get(what, "")) if is_present else ""

    @property
    def reached(self) -> Mapping[str, Any]:
        """The progress, or after a success the result, which has all of the last row."""
        at, result = self.progress, self.result
        if self.state is not JobState.SUCCEEDED:
            return at
        last = (result.get("history") or [{}])[-1]
        ends = {"iteration": result.get("iterations"), "epoch": result.get("epochs")}
        known = {**last, **{name: n for name, n in ends.items() if isinstance(n, int)}}
        return {**at, **{name: value for name, value in known.items() if value is not None}}


class ListedJob(NamedTuple):
    """A job of a list. user : its submitter's name, "" if its description cannot be read."""

    job: str
    state: JobState
    user: str
    created: int


class JobReader:
    """Reads the jobs of a cluster in a session. key : the cluster's, which signed their
    descriptions; None if it has none.
    """

    def __init__(self, coord: Session, key: Key | None) -> None:
        self.coord, self.paths, self.key = coord, coord.paths, key
        self._clock_s: float | None = None  # ZooKeeper's clock, less the monotonic one here

    def standstill(self) -> str:
        """In words, that jobs stand still since no worker is up; "" if one is."""
        return self._standstill(self.coord.get(self.paths.workers()))

    def _standstill(self, workers: Znode | None) -> str:
        is_up = workers is not None and workers.n_children > 0
        return "" if is_up else f"stands still, since {self.no_worker}"

    @property
    def no_worker(self) -> str:
        """In words, that no worker is up, and how to start one."""
        return f"no worker is up: start one with  horn worker --zk {self.coord.hosts} --slots N"

    def now_s(self) -> float:
        """The time by ZooKeeper's clock: that of a node, made once, and what has passed since."""
        if self._clock_s is not None:
            return self._clock_s + time.monotonic()
        self.coord.ensure(self.paths.jobs())
        path = f"{self.paths.root}/clock-{secrets.token_hex(8)}"
        made = self.coord.create(path, ephemeral=True)
        self._clock_s = made.made_s - time.monotonic()
        self.coord.delete(path)
        return made.made_s

    def status(self, job: str) -> JobStatus:
        """The status of a job. Raises NotFound. ClusterError: its nodes cannot be read."""
        try:
            nodes = self._read([job])
            return self._status(job, nodes, next(nodes))
        except UNREADABLE as error:
            raise ClusterError(self._unreadable(job, error)) from error

    def _unreadable(self, job: str, error: Exception) -> str:
        return (
            f"job {job}: what ZooKeeper at {self.coord.hosts} has of it below "
            f"{self.paths.job(job)} cannot be read ({error}); another version of horn may have "
            f"written it, and horn rm {job} removes it"
        )

    def _read(self, jobs: Sequence[str]) -> Iterator[Znode | None]:
        """The folder of workers, then what ``_status`` takes of jobs, read in one round trip."""
        at = self.paths
        parts = (at.spec, at.state, at.record, at.progress, at.result)
        wanted = [at.workers(), *(part(job) for job in jobs for part in parts)]
        return iter(self.coord.get_each(wanted))

    def _status(self, job: str, nodes: Iterator[Znode | None], workers: Znode | None) -> JobStatus:
        spec, state, record, progress, result = itertools.islice(nodes, 5)
        if spec is None or state is None:
            raise NotFound(f"no job {job!r}")
        found: Submission | None
        try:
            found = submission.read(self.key, job, spec)
        except HornError:
            found = None
        now, read = JobState(state.data.decode()), JobRecord()
        if record is not None and record.data:
            read = msgspec.json.decode(record.data, type=JobRecord)
        return JobStatus(
            job, now, found, read,
            _json(progress), _json(result), spec.made_s, spec.created,
            max(self.now_s() - spec.made_s, 0.0),
            "" if now.is_over else self._standstill(workers),
        )  # fmt: skip

    def packages(self, jobs: Sequence[str]) -> Iterator[str]:
        """The package that each job names, also another horn's; "" if none: nodes may be bad."""
        for k in range(0, len(jobs), TOGETHER):
            some = jobs[k : k + TOGETHER]
            specs = self.coord.get_each([self.paths.spec(job) for job in some])
            for spec in specs:
                yield "" if spec is None else submission.package_of(spec.data)

    def listed(self) -> list[ListedJob]:
        """All jobs, newest first, by their descriptions and states alone: a result may be large. A
        job without a state that can be read is left out, with a warning.
        """
        found = []
        names, at = self.coord.children(self.paths.jobs()), self.paths
        for k in range(0, len(names), TOGETHER):
            some = names[k : k + TOGETHER]
            nodes = iter(self.coord.get_each([f(job) for job in some for f in (at.spec, at.state)]))
            for job, spec, state in zip(some, nodes, nodes, strict=True):
                if spec is None or state is None:  # it is being removed
                    continue
                try:
                    now = JobState(state.data.decode())
                except UNREADABLE as error:
                    logger.warning("%s", self._unreadable(job, error))
                    continue
                try:
                    name = submission.read(self.key, job, spec).user
                except HornError:
                    name = ""
                found.append(ListedJob(job, now, name, spec.created))
        return sorted(found, key=lambda listed: -listed.created)

    def newest(
        self, limit: int, state: JobState | None = None, user: str | None = None
    ) -> tuple[list[JobStatus], int]:
        """The status of the newest jobs in a state and of a user, ``limit`` at most, and how many
        there are; those that are unreadable are left out, with a warning.
        """
        every = self.listed()
        found = [
            listed.job for listed in every
            if state in (None, listed.state) and user in (None, listed.user)
        ]  # fmt: skip
        statuses = self._statuses(found[:limit])
        pending = [listed.job for listed in every if listed.state is JobState.PENDING]
        return self._with_places(statuses, pending), len(found)

    def active(self) -> list[JobStatus]:
        """The status of all jobs that have not ended, as ``newest`` gives them."""
        found = self._statuses(self.coord.children(self.paths.all_active()))
        return self._with_places(found, [s.job for s in found if s.state is JobState.PENDING])

    def _statuses(self, names: Sequence[str]) -> list[JobStatus]:
        found = []
        for k in range(0, len(names), TOGETHER):
            jobs = names[k : k + TOGETHER]
            nodes = self._read(jobs)
            workers = next(nodes)
            for job in jobs:
                try:
                    found.append(self._status(job, nodes, workers))
                except NotFound:  # it is being removed
                    continue
                except UNREADABLE as error:
                    logger.warning("%s", self._unreadable(job, error))
        return found

    def _with_places(self, found: Iterable[JobStatus], pending: Sequence[str]) -> list[JobStatus]:
        """Statuses with their places among all PENDING jobs, newest first."""
        waiting = self._queue(pending)
        placed = [replace(s, place=waiting.get(s.job, 0)) for s in found]
        return sorted(placed, key=lambda status: -status.created)

    def placed(self, status: JobStatus) -> JobStatus:
        """The same status, with the place in the queue, for which all other jobs are read."""
        if status.state is not JobState.PENDING:
            return status
        waiting = self._queue(self.coord.children(self.paths.all_active()))
        return replace(status, place=waiting.get(status.job, 0))

    def _queue(self, jobs: Sequence[str]) -> dict[str, int]:
        """The places of those of some jobs that are PENDING, in the order in which they begin."""
        entered, at = {}, self.paths
        for k in range(0, len(jobs), TOGETHER):
            some = jobs[k : k + TOGETHER]
            paths = [path(job) for job in some for path in (at.active, at.state)]
            nodes = iter(self.coord.get_each(paths))
            for job, listed, state in zip(some, nodes, nodes, strict=True):
                is_pending = state is not None and state.data == JobState.PENDING.value.encode()
                if listed is not None and is_pending:
                    entered[job] = listed.created
        return {job: k + 1 for k, job in enumerate(sorted(entered, key=entered.__getitem__))}


def _json(node: Znode | None) -> dict[str, Any]:
    if node is None or not node.data:
        return {}
    found = json.loads(node.data)
    return found if isinstance(found, dict) else {}
