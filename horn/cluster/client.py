"""A cluster's client, for commands: submit, look, follow, stop, resume, remove.

State is read from ZooKeeper, files from agents' services. Looking needs neither NumPy nor
the engine.
"""

from __future__ import annotations

import contextlib
import getpass
import itertools
import json
import logging
import os
import re
import secrets
import time
import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horn.atomic_write import atomic_write
from horn.cluster import submission
from horn.cluster.job_controller import GROUPS, NOW, allocated, host_of
from horn.cluster.master import RUNNING, HostReport, JobRecord, sharing, unkept, unsaved
from horn.cluster.scheduler import Host, check_files, scattered
from horn.cluster.submission import Submission
from horn.coordination import paths
from horn.coordination.jobs import Jobs, JobState, node_of
from horn.coordination.membership import Member, Membership
from horn.coordination.records import Check, Put, Step, Znode
from horn.coordination.session import Session
from horn.errors import (
    ClusterError,
    Conflict,
    HornError,
    JobError,
    NotApplied,
    NotFound,
    ProtocolError,
    Timeout,
)
from horn.security import tls
from horn.security.keys import Key
from horn.topology import Topology

if TYPE_CHECKING:
    from horn.cluster.packing import PackedJob
    from horn.rpc.client import RpcClient

logger = logging.getLogger(__name__)

UNREADABLE = (ValueError, msgspec.MsgspecError)  # errors of a node that this horn did not write
UNANSWERED = (ClusterError, ProtocolError)  # of a worker that has gone, or has another horn
TOGETHER = 100  # jobs that are read in one round trip
COPIES = 2  # agents that get a package, so that the loss of one loses no job
LAST_JOB = "@last"  # the word for the newest job of who asks
SHORT_S = 5.0  # for a command to reach ZooKeeper
FILE_S = 600.0  # for a file of a job to come
FILE_BYTES = 2**40  # of one at most


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


class JobLog(NamedTuple):
    """A log of a job: file ``name`` of a worker, ``size`` bytes. title : its name, and of an
    attempt before, on another host, name.host.
    """

    title: str
    host: str
    name: str
    size: int


@dataclass
class ClusterClient:
    """A client's session with a cluster, a context. Raises Unreachable, AccessDenied."""

    hosts: str
    key: Key | None = None
    timeout_s: float = SHORT_S
    _stack: ExitStack = field(default_factory=ExitStack)
    _holder: str = field(default_factory=lambda: secrets.token_hex(8))  # of packages, on workers
    _clock_s: float | None = None  # ZooKeeper's clock, less the monotonic one here

    def __enter__(self) -> ClusterClient:
        credential = tls.credential(self.key, self.hosts)
        self.coord = self._stack.enter_context(
            Session(self.hosts, timeout_s=self.timeout_s, credential=credential)
        )
        self.paths = self.coord.paths
        self.jobs = Jobs(self.coord)
        self._clients: dict[str, RpcClient] = {}
        self._held: list[tuple[RpcClient, str]] = []  # packages, until their jobs are entered
        self._membership: Membership | None = None
        self._clock_s = None  # perhaps of another server
        self._not_understood: set[str] = set()  # workers of another horn
        self.left_out: dict[str, str] = {}
        return self

    def __exit__(self, *_: object) -> None:
        self._release()
        for client in self._clients.values():
            client.close()
        self._stack.close()

    # workers

    def workers(self) -> dict[str, Member]:
        """The workers that are up. One whose node is not as this horn writes it is in ``left_out``,
        with the reason, and warned of, as masters leave it out. Raises AccessDenied, ProtocolError:
        all of them are so.
        """
        unread = dict[str, HornError]()
        found = self._registered().members(unread)
        for name, member in list(found.items()):
            try:
                host_of(member, 0)
            except ProtocolError as error:
                unread[name] = error
                del found[name]
        if unread and not found:
            raise next(iter(unread.values()))
        left_out = {name: str(error) for name, error in unread.items()}
        for name, reason in left_out.items():
            if self.left_out.get(name) != reason:
                logger.warning("worker %s is left out: %s", name, reason)
        self.left_out = left_out
        return found

    def _registered(self) -> Membership:
        if self._membership is None:
            self._membership = Membership(self.coord, self.paths.workers())
            self._stack.callback(self._membership.close)
        return self._membership

    def standstill(self) -> str:
        """In words, that jobs stand still since no worker is up; "" if one is."""
        return self._standstill(self.coord.get(self.paths.workers()))

    def _standstill(self, workers: Znode | None) -> str:
        is_up = workers is not None and workers.n_children > 0
        return "" if is_up else f"stands still, since {self._no_worker}"

    @property
    def _no_worker(self) -> str:
        return f"no worker is up: start one with  horn worker --zk {self.hosts} --slots N"

    def free(self, members: Mapping[str, Member]) -> dict[str, Host]:
        """Workers with their free slots, by name."""
        found = {}
        for name, member in members.items():
            node = self.coord.get(self.paths.orders(name))
            found[name] = host_of(member, sum(allocated(name, node).values()))
        return found

    def forget_worker(self, name: str) -> None:
        """Forget a worker that is down. Raises NotFound: none has that name. Conflict: it is up, or
        jobs still have their places there.
        """
        orders = self.paths.orders(paths.checked("worker", name))
        if name in self.workers() or name in self.left_out:
            raise Conflict(f"worker {name} is up: end it first")
        if self.coord.get(orders) is None:
            raise NotFound(f"no worker {name!r} is known; horn doctor --cluster names them")
        try:
            self.coord.delete(orders)
        except Conflict as error:
            jobs = ", ".join(self.coord.children(orders))
            raise Conflict(
                f"worker {name} still has a place in {jobs}: its master gives it to another once a "
                f"worker is up; try again then"
            ) from error

    # submit

    def submit(self, wanted: Submission, package: PackedJob) -> str:
        """Submit a job and return its id. ``wanted.job`` is the id's first part if it is no id.
        Raises JobError: the workers that are up cannot run it, or not save what it asks for.
        """
        from horn.cluster.capacity import terms

        topology = Topology(wanted.groups, wanted.tasks, wanted.servers)
        hosts = {name: host_of(member, 0) for name, member in self.workers().items()}
        check_files(topology, list(hosts.values()))
        if why := scattered(terms(wanted).need, hosts):
            if wanted.checkpoint_every is not None or wanted.checkpoint_s is not None:
                raise JobError(
                    f"no checkpoint could be saved (--checkpoint-every): {why}. Give them a folder "
                    f"in common (horn worker --shared), or leave it out: after a failure the job "
                    f"then begins anew"
                )
            logger.warning("Nothing will be kept for a restart: %s", why)
        self.upload(package)
        try:
            return self._entered(wanted)
        finally:
            self._release()

    def _entered(self, wanted: Submission) -> str:
        for _ in range(10):
            job = new_id(wanted.name or wanted.job)
            try:
                self._enter(msgspec.structs.replace(wanted, job=job))
            except Conflict:
                continue
            return job
        raise Conflict(f"no free id for {wanted.name!r}; give another --name")

    def _enter(self, wanted: Submission) -> None:
        key = self.key
        if key is None:
            self.jobs.create(wanted.job, submission.unsigned(wanted))
            return

        def sign(node: Znode) -> bytes:
            return submission.sign(key, wanted, node)

        self.jobs.create_signed(wanted.job, sign, key.zookeeper_of(wanted.job).id)

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

    def upload(self, package: PackedJob) -> None:
        """Give a package to agents, which hold it until the job is entered, or this client closed.
        Raises ClusterError if none takes it.
        """
        from horn.cluster.file_service import DoneReply, PackageKnown, PackageRequest

        members = self.workers()
        if not members:
            raise ClusterError(self._no_worker)
        taken, reasons = 0, []
        order = sorted(members)
        secrets.SystemRandom().shuffle(order)
        for name in order:
            if taken == COPIES:
                break
            try:
                client = self.client(name, members[name])
                asked = PackageRequest(package.digest, holder=self._holder)
                self._held.append((client, package.digest))
                if not client.call("have", asked, PackageKnown).is_here:
                    sent = PackageRequest(package.digest, len(package.packed), self._holder)
                    client.call(
                        "put", sent, DoneReply,
                        body=itertools.chain([package.packed], package.chunks()),
                        size=len(package.packed) + package.manifest.n_bytes, timeout_s=120.0,
                    )  # fmt: skip
                taken += 1
            except UNANSWERED as error:
                reasons.append(f"{name}: {error}")
        if not taken:
            raise ClusterError(f"no worker takes the job's files: {'; '.join(reasons)}")

    def _release(self) -> None:
        """Let agents remove packages again: jobs name those that are needed."""
        if not self._held:
            return
        from horn.cluster.file_service import DoneReply, PackageRequest

        held, self._held = self._held, []
        for client, digest in held:
            with contextlib.suppress(*UNANSWERED):  # else it holds it for a while
                client.call("release", PackageRequest(digest, holder=self._holder), DoneReply)

    def client(self, name: str, member: Member) -> RpcClient:
        """A client of a worker's service."""
        from horn.rpc.client import ClientKeys, RpcClient

        known = f"{name} {member.endpoint}"
        if known not in self._clients:
            access = None if self.key is None else ClientKeys.of(self.key, "client", name)
            self._clients[known] = RpcClient(member.endpoint, access)
        return self._clients[known]

    def service(self, host: str) -> RpcClient:
        """A client of the service of a worker that is up now. Raises NotFound."""
        member = self.workers().get(host)
        if member is None:
            raise NotFound(f"worker {host} is not up")
        return self.client(host, member)

    # look

    def find(self, word: str) -> str:
        """The id of the job that a word means: its id, the beginning of one, or @last."""
        if not word:  # as of a variable of the shell that is not set
            raise JobError('JOB is "": write an id, the beginning of one, or @last')
        names = self.coord.children(self.paths.jobs())
        if word == LAST_JOB:
            mine = user()
            for listed in self.all_jobs():
                if listed.user == mine:
                    return listed.job
            raise NotFound("you have no job here")
        if word in names:
            return word
        found = [name for name in names if name.startswith(word)]
        if len(found) == 1:
            return found[0]
        if found:
            shown = ", ".join(found[:5]) + (" ..." if len(found) > 5 else "")
            raise JobError(f"{word!r} may be any of {shown}; write more of it")
        raise NotFound(f"no job {word!r}; horn list shows all")

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

    def _packages(self, jobs: Sequence[str]) -> Iterator[str]:
        """The package of each job, "" if its description cannot be read; other nodes may be bad."""
        for k in range(0, len(jobs), TOGETHER):
            some = jobs[k : k + TOGETHER]
            specs = self.coord.get_each([self.paths.spec(job) for job in some])
            for job, spec in zip(some, specs, strict=True):
                try:
                    yield "" if spec is None else submission.read(self.key, job, spec).package
                except HornError:
                    yield ""

    def all_jobs(self) -> list[ListedJob]:
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
        every = self.all_jobs()
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

    # change

    def stop(self, job: str, now: bool, why: str = "") -> None:
        """Ask a job to stop. why : the cause in its result. Raises Conflict if it has ended."""
        wish = NOW + why.encode() if now else b""
        for _ in range(20):
            state = self.jobs.state(job)
            if state.is_over:
                raise Conflict(f"job {job!r} is {state.value} already")
            steps: list[Step] = [Put(self.paths.wish(job), wish)]
            if state is not JobState.STOPPING:
                node = self.coord.get(self.paths.state(job))
                if node is None or node.data != state.value.encode():
                    continue
                stopping = JobState.STOPPING.value.encode()
                steps.append(Put(self.paths.state(job), stopping, node.version))
            try:
                self.coord.commit(steps)
                return
            except NotApplied:
                continue
        raise Conflict(f"job {job!r} keeps changing; try again")

    def scale(self, job: str, n_groups: int) -> None:
        """Ask for a number of groups of a job with servers, or of allreduce, which restarts from a
        checkpoint. Raises JobError: it is neither, slots are missing, or none can be saved now.
        Conflict: it has ended or is to stop.
        """
        if n_groups < 1:
            raise JobError(
                f"--groups {n_groups}: at least 1, since group 0 measures and decides when to end; "
                f"horn stop {job} ends them all"
            )
        status = self.status(job)
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
        self._check_room(found, status.record, n_groups)
        why = "" if found.servers else unsaved(self._reports(job, status.record))
        if why:
            raise JobError(
                f"job {job!r} keeps its groups: others go on from a checkpoint, and none can be "
                f"saved now: {why}. Mend that, and ask again once one is saved (horn logs {job})"
            )
        state = node_of(self.coord, self.paths.state(job), job)
        now = JobState(state.data.decode())
        if now.is_over or now is JobState.STOPPING:
            raise Conflict(f"job {job!r} is {now.value}; only one that runs can be scaled")
        wish = Put(self.paths.wish(job), GROUPS + str(n_groups).encode())
        try:
            self.coord.commit([Check(self.paths.state(job), state.version), wish])
        except NotApplied as error:
            raise Conflict(f"job {job!r} left {now.value} in the meantime") from error

    def _check_room(self, found: Submission, record: JobRecord, n_groups: int) -> None:
        """Check that the hosts where a job may run have slots for a number of groups."""
        here = len(record.groups) or found.groups
        n_more = (n_groups - here) * found.tasks
        hosts = self.free(self.workers())
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
        self,
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
            status = self.status(job)
            if hear is not None:
                hear(status)
            record = status.record
            here = len(record.groups) or (status.submission.groups if status.submission else 0)
            if status.state.is_over:
                raise Conflict(f"job {job!r} is {status.state.value}; it has {here} groups")
            if record.allocations and here == n_groups and not record.leaving:
                found = status.submission
                if (found is not None and found.servers) or self._all_run(job, record):
                    return status
            if record.n_refused == n_groups:
                raise Conflict(f"job {job!r} goes on with {here} groups: {record.trouble}")
            if ends is not None and time.monotonic() > ends:
                why = f": it {status.reason}" if status.reason else ""
                raise Timeout(f"job {job} has {here} groups after {timeout_s:g} s{why}")
            time.sleep(0.1)

    def _all_run(self, job: str, record: JobRecord) -> bool:
        """Whether all hosts of an attempt report that their tasks have met."""
        reports = self._reports(job, record)
        return [r.phase for r in reports] == [RUNNING] * len(record.allocations)

    def _reports(self, job: str, record: JobRecord) -> list[HostReport]:
        """What the hosts of an attempt report, those that have reported."""
        paths = [self.paths.report(job, record.attempt, host) for host in record.allocations]
        nodes = [self.coord.get(path) for path in paths]
        return [msgspec.json.decode(n.data, type=HostReport) for n in nodes if n is not None]

    def remove(self, job: str) -> str:
        """Remove an ended job, its files, and its package if no other has it; in words, which of
        its workers are down and so keep their files, "" if none. Raises Conflict.
        """
        from horn.cluster.file_service import DoneReply, HoldCount, JobRequest, PackageRequest

        self.jobs.check_ended(job)
        [package] = self._packages([job])
        workers, n_holds = self.workers(), dict[str, int]()
        if package:  # asked first: who holds it later enters a job that is not seen below
            for name, member in workers.items():
                with contextlib.suppress(*UNANSWERED):  # said below
                    found = self.client(name, member).call(
                        "holds", PackageRequest(package), HoldCount
                    )
                    n_holds[name] = found.n
        self.coord.sync(self.paths.jobs())
        others = [other for other in self.coord.children(self.paths.jobs()) if other != job]
        # A job that cannot be read, such as another version's, may have the same package.
        if not {"", package}.isdisjoint(self._packages(others)):
            package = ""
        for name, member in workers.items():
            try:
                self.client(name, member).call(
                    "forget", JobRequest(job, package, n_holds.get(name, 0)), DoneReply
                )
            except UNANSWERED as error:
                what = f"the files of {job} on {name} are not removed"
                raise ClusterError(f"{what}: {error}") from error
        down = self.down(job, workers)
        self.jobs.remove(job)
        return down

    # files

    def files(self, job: str) -> dict[str, dict[str, int]]:
        """The sizes of a job's files by worker."""
        from horn.cluster.file_service import FileList, JobRequest

        found = {}
        for name, member in self.workers().items():
            try:
                reply = self.client(name, member).call("files", JobRequest(job), FileList)
                found[name] = reply.sizes
            except ClusterError:
                continue  # it has just gone; others may have the file too
            except ProtocolError as error:
                if name not in self._not_understood:
                    logger.warning("what worker %s has of %s is left out: %s", name, job, error)
                self._not_understood.add(name)
        return found

    def last_first(self, job: str, hosts: Iterable[str]) -> list[str]:
        """The same workers, those of the job's last attempt before others: first its primary host,
        where its result says which that was.
        """
        status = self.status(job)
        first, last = status.result.get("host"), status.record.hosts
        return sorted(hosts, key=lambda name: (name != first, name not in last, name))

    def logs(self, job: str, files: Mapping[str, Mapping[str, int]]) -> list[JobLog]:
        """The logs among a job's files, those of its last attempt first."""
        from horn.cluster.store import NO_LOGS

        found, taken = [], set[str]()
        for host in self.last_first(job, files):
            for name in sorted(files[host].keys() - set(NO_LOGS)):
                title = f"{name}.{host}" if name in taken else name
                taken.add(name)
                found.append(JobLog(title, host, name, files[host][name]))
        return found

    def down(self, job: str, answered: Container[str]) -> str:
        """In words, which workers of a job's last attempt are not among those that answered, but
        for those that said why; "" if none are.
        """
        node = self.coord.get(self.paths.record(job))
        try:
            hosts = msgspec.json.decode(node.data, type=JobRecord).hosts if node else ()
        except UNREADABLE:
            return ""
        gone = [n for n in hosts if n not in answered and n not in self._not_understood]
        if not gone:
            return ""
        many = len(gone) > 1
        return (
            f"worker{'s' * many} {', '.join(gone)}, which ran job {job}, {'are' if many else 'is'} "
            f"down or cut off"
        )

    def read(
        self,
        job: str,
        host: str,
        name: str,
        offset: int = 0,
        wait_s: float = 0.0,
        tail: int | None = None,
        age_s: float | None = None,
        answer_s: float = 30.0,
    ) -> tuple[int, bytes]:
        """Bytes of a file from ``offset``, or its ``tail`` or ``age_s``; and their offset. wait_s :
        for more of it to be written; answer_s : for the worker to answer then.
        """
        from horn.cluster.file_service import READ_BYTES, ReadReply, ReadRequest

        got, portions = self.service(host).download(
            "read", ReadRequest(job, name, offset, wait_s, tail, age_s), ReadReply,
            max_bytes=READ_BYTES, timeout_s=wait_s + answer_s,
        )  # fmt: skip
        found = b"".join(portions)
        if len(found) != got.size:
            raise ClusterError(
                f"{len(found)} of {got.size} bytes of {name} of job {job} came from {host}; "
                f"ask again"
            )
        return got.offset, found

    def read_all(self, job: str, host: str, name: str) -> bytes:
        """The whole content of a file at present."""
        found = bytearray()
        while data := self.read(job, host, name, len(found))[1]:
            found += data
        return bytes(found)

    def history(self, job: str) -> list[dict[str, Any]]:
        """The rows of the history so far, of the worker of the last attempt that has the most, or
        of the result.
        """
        from horn.cluster.store import PROGRESS

        status = self.status(job)
        longest: list[dict[str, Any]] = []
        for host, sizes in self.files(job).items():
            if PROGRESS not in sizes or not self._sees(status.record.hosts, status.record, host):
                continue
            rows: dict[int, dict[str, Any]] = {}
            for said in notes(self.read_all(job, host, PROGRESS).splitlines()):
                if "row" in said:
                    row = said["row"]
                    while rows and next(reversed(rows)) >= row["epoch"]:  # of an attempt before
                        rows.popitem()
                    rows[row["epoch"]] = row
                elif "added" in said and said.get("epoch") in rows:
                    rows[said["epoch"]] |= said["added"]
            longest = max(longest, list(rows.values()), key=len)
        return longest or list(status.result.get("history") or [])

    def _sees(self, hosts: Sequence[str], record: JobRecord, name: str) -> bool:
        """Whether a worker sees the files that the job's last attempt has left on hosts; on others
        are those of attempts before. Of a job that nobody has placed yet, any.
        """
        if not hosts or name in hosts:
            return True
        folders = {n: a.shared for n, a in record.allocations.items()} or record.kept
        member = self.workers().get(name)
        shared = "" if member is None else str(member.info.get("shared", ""))
        return shared != "" and shared in {folders.get(host, "") for host in hosts}

    def holders(self, job: str, files: Mapping[str, Container[str]]) -> list[str]:
        """The workers of those with files that have the model of the job's last attempt, first the
        one that made it.
        """
        from horn.cluster.store import MODEL

        status = self.status(job)
        first = str(status.result.get("host", ""))
        hosts = [first] if first else status.record.hosts
        found = [
            name for name, names in files.items()
            if MODEL in names and self._sees(hosts, status.record, name)
        ]  # fmt: skip
        return sorted(found, key=lambda name: name != first)

    def no_model(self, job: str, answered: Container[str]) -> str:
        """The sentence about a model that none of the workers that answered has."""
        down = self.down(job, answered)
        more = f"; {down}: start it there again" if down else ""
        return f"job {job}: no worker that is up has its model{more}"

    def fetch_model(self, job: str, path: Path) -> None:
        """Write the model of a job that succeeded into a file. Raises JobError if it cannot be
        written: the disk may be full, or the folder have gone while the job ran.
        """
        from horn.cluster.file_service import ReadReply, ReadRequest
        from horn.cluster.store import MODEL

        files = self.files(job)
        holders = self.holders(job, files)
        if not holders:
            raise NotFound(self.no_model(job, files))
        got, portions = self.service(holders[0]).download(
            "read", ReadRequest(job, MODEL), ReadReply,
            max_bytes=FILE_BYTES, timeout_s=FILE_S,
        )  # fmt: skip
        try:
            with portions:
                save(portions, got.size, path)
        except OSError as error:
            raise JobError(
                f"{path} cannot be written ({error.strerror or error}); the cluster has the model "
                f"still:  horn fetch {job} -o FILE"
            ) from error


def _json(node: Znode | None) -> dict[str, Any]:
    if node is None or not node.data:
        return {}
    found = json.loads(node.data)
    return found if isinstance(found, dict) else {}


def notes(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records of lines of progress.jsonl. A line that is cut, by a host that lost its
    power or because it is being written, is left out.
    """
    for line in lines:
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict):
                yield said


def save(portions: Iterator[bytes], size: int, path: Path) -> None:
    """Write a body of ``size`` bytes into a file: whole, or not at all. Raises ClusterError."""
    with atomic_write(path) as file:
        for portion in portions:
            file.write(portion)
        if file.tell() != size:
            raise ClusterError(f"{file.tell()} of {size} bytes of {path.name} came")


def user() -> str:
    """The submitter's name, unproven; for people."""
    try:
        return getpass.getuser()[:100]
    except (KeyError, OSError):
        return str(os.getuid())


def plain_name(name: str) -> str:
    """A name in the letters of an id: Zähler/2 -> Zahler-2; "" if it has none of them."""
    bare = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    return re.sub("[^A-Za-z0-9_.-]+", "-", bare).strip("-.")


def new_id(name: str) -> str:
    """Make a job id: <name>-<4 hex>"""
    return f"{plain_name(name)[:80] or 'job'}-{secrets.token_hex(2)}"
