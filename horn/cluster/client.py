"""A cluster's client, for commands: its session, its workers, jobs that are submitted, stopped and
removed, and their files on workers.

What ZooKeeper has of jobs is read by ``job_status``. Looking needs neither NumPy nor the engine.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import secrets
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horn.atomic_write import atomic_write
from horn.cluster import submission
from horn.cluster.job_controller import NOW, allocated, host_of
from horn.cluster.job_names import new_id, user
from horn.cluster.job_status import UNREADABLE, JobReader, JobStatus
from horn.cluster.master import JobRecord
from horn.cluster.scheduler import Host, check_files, scattered
from horn.cluster.submission import Submission
from horn.coordination import paths
from horn.coordination.jobs import Jobs, JobState
from horn.coordination.membership import Member, Membership
from horn.coordination.records import Put, Step, Znode
from horn.coordination.session import Session
from horn.errors import (
    ClusterError,
    Conflict,
    HornError,
    JobError,
    NotApplied,
    NotFound,
    ProtocolError,
)
from horn.security import tls
from horn.security.keys import Key
from horn.topology import Topology

if TYPE_CHECKING:
    from horn.cluster.packing import PackedJob
    from horn.rpc.client import RpcClient

logger = logging.getLogger(__name__)

UNANSWERED = (ClusterError, ProtocolError)  # of a worker that has gone, or has another horn
COPIES = 2  # agents that get a package, so that the loss of one loses no job
LAST_JOB = "@last"  # the word for the newest job of who asks
SHORT_S = 5.0  # for a command to reach ZooKeeper
FILE_S = 600.0  # for a file of a job to come
FILE_BYTES = 2**40  # of one at most


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

    def __enter__(self) -> ClusterClient:
        credential = tls.credential(self.key, self.hosts)
        self.use(
            self._stack.enter_context(
                Session(self.hosts, timeout_s=self.timeout_s, credential=credential)
            )
        )
        self._clients: dict[str, RpcClient] = {}
        self._held: list[tuple[RpcClient, str]] = []  # packages, until their jobs are entered
        self._membership: Membership | None = None
        self._not_understood: set[str] = set()  # workers of another horn
        self.left_out: dict[str, str] = {}
        return self

    def use(self, coord: Session) -> None:
        """Work in this session, which stays the caller's."""
        self.coord, self.paths = coord, coord.paths
        self.jobs, self.reader = Jobs(coord), JobReader(coord, self.key)

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

    def upload(self, package: PackedJob) -> None:
        """Give a package to agents, which hold it until the job is entered, or this client closed.
        Raises ClusterError if none takes it.
        """
        from horn.cluster.file_service import DoneReply, PackageKnown, PackageRequest

        members = self.workers()
        if not members:
            raise ClusterError(self.reader.no_worker)
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

    def status(self, job: str) -> JobStatus:
        """The status of a job, as ``reader`` has it."""
        return self.reader.status(job)

    def standstill(self) -> str:
        """Why jobs stand still, as ``reader`` has it."""
        return self.reader.standstill()

    def find(self, word: str) -> str:
        """The id of the job that a word means: its id, the beginning of one, or @last."""
        if not word:  # as of a variable of the shell that is not set
            raise JobError('JOB is "": write an id, the beginning of one, or @last')
        names = self.coord.children(self.paths.jobs())
        if word == LAST_JOB:
            mine = user()
            for listed in self.reader.listed():
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

    def remove(self, job: str) -> str:
        """Remove an ended job, its files, and its package if no other has it; in words, which of
        its workers are down and so keep their files, "" if none. Raises Conflict.
        """
        from horn.cluster.file_service import DoneReply, HoldCount, JobRequest, PackageRequest

        self.jobs.check_ended(job)
        [package] = self.reader.packages([job])
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
        # A job whose description is damaged may have the same package.
        if not {"", package}.isdisjoint(self.reader.packages(others)):
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
