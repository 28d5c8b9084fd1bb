"""A cluster's client, for commands: its session, its workers, jobs that are stopped and removed.

Jobs are submitted by ``submitting``; their files on workers are read by ``remote_files``, what
ZooKeeper has of them by ``job_status``. Looking needs neither NumPy nor the engine.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Container, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from horn.cluster.job_controller import NOW, allocated, host_of
from horn.cluster.job_names import user
from horn.cluster.job_status import JobReader, JobStatus
from horn.cluster.master import JobRecord
from horn.cluster.scheduler import Host
from horn.coordination import paths
from horn.coordination.jobs import Jobs, JobState
from horn.coordination.membership import Member, Membership
from horn.coordination.records import Put, Step
from horn.coordination.session import Session
from horn.errors import (
    UNREADABLE,
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

if TYPE_CHECKING:
    from horn.rpc.client import RpcClient

logger = logging.getLogger(__name__)

UNANSWERED = (ClusterError, ProtocolError)  # of a worker that has gone, or has another horn
LAST_JOB = "@last"  # the word for the newest job of who asks
SHORT_S = 5.0  # for a command to reach ZooKeeper


@dataclass
class ClusterClient:
    """A client's session with a cluster, a context. Raises Unreachable, AccessDenied."""

    hosts: str
    key: Key | None = None
    timeout_s: float = SHORT_S
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> ClusterClient:
        credential = tls.credential(self.key, self.hosts)
        self.use(
            self._stack.enter_context(
                Session(self.hosts, timeout_s=self.timeout_s, credential=credential)
            )
        )
        self._clients: dict[str, RpcClient] = {}
        self._membership: Membership | None = None
        self._not_understood: set[str] = set()  # workers of another horn
        self.left_out: dict[str, str] = {}
        return self

    def use(self, coord: Session) -> None:
        """Work in this session, which stays the caller's."""
        self.coord, self.paths = coord, coord.paths
        self.jobs, self.reader = Jobs(coord), JobReader(coord, self.key)

    def __exit__(self, *_: object) -> None:
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
                host_of(member, {})
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
            found[name] = host_of(member, allocated(name, node))
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
