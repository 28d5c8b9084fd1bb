"""Preparation of an Assignment for an order: check the job's description, fetch its package.

Runs in threads of the agent: it waits for ZooKeeper and other hosts.
"""

from __future__ import annotations

import logging
import threading

import msgspec

from horn.cluster import package, submission
from horn.cluster.capacity import HostCapacity
from horn.cluster.file_service import PackageKnown, PackageRequest
from horn.cluster.master import HostOrder, JobRecord, unkept
from horn.cluster.runner_protocol import Assignment
from horn.cluster.store import HostStore
from horn.cluster.submission import Submission
from horn.coordination.jobs import node_of
from horn.coordination.membership import Membership
from horn.coordination.records import Znode
from horn.coordination.session import Session
from horn.errors import UNREADABLE, ClusterError, HornError, NotFound, ProtocolError
from horn.rpc.client import ClientKeys, RpcClient
from horn.security import tls

logger = logging.getLogger(__name__)

FETCH_S = 120.0  # for a package to come from another host
MAX_READ = 1000  # checked submissions that are remembered, of a few KB as a rule; 256 KB at most


class PackageMissing(NotFound):
    """No worker that is up has a job's package. workers : their fencing tokens."""

    def __init__(self, text: str, workers: tuple[int, ...]) -> None:
        self.workers = workers
        super().__init__(text)


class JobPreparer:
    """Prepares the jobs of one agent. threads : per task. Raises NotAllowed, ProtocolError: the job
    may not run. NotFound: it is gone, or its package does not come here. PackageMissing.
    """

    def __init__(self, capacity: HostCapacity, name: str, store: HostStore, threads: int) -> None:
        self.capacity, self.name, self.store, self.threads = capacity, name, store, threads
        self._read: dict[str, tuple[int, Submission]] = {}  # by job: with the node's change
        self._lock = threading.Lock()

    def submission(self, job: str, node: Znode) -> Submission:
        """A job's checked submission."""
        with self._lock:
            changed, known = self._read.get(job, (-1, None))
        if known is None or changed != node.changed:
            known = submission.read(self.capacity.key, job, node)
            with self._lock:
                self._read.pop(job, None)
                self._read[job] = node.changed, known
                if len(self._read) > MAX_READ:
                    del self._read[next(iter(self._read))]
        return known

    def assignment(
        self, coord: Session, workers: Membership, job: str, order: HostOrder
    ) -> Assignment:
        """Make the Assignment for a job runner; fetches the package if it is not here."""
        key = self.capacity.key
        found = self.submission(job, node_of(coord, coord.paths.spec(job), job))
        record = record_of(coord, job, order.attempt)
        if not self.store.take_shared(found.package):
            self._fetch(workers, found.package)
        try:
            self.store.share(found.package)  # it may have come before there was a shared folder
        except ClusterError as error:  # as when a checkpoint cannot be saved: it runs all the same
            logger.warning("package not shared, make room job=%s reason=%s", job, error)
        return Assignment(
            job=job,
            attempt=order.attempt,
            host=self.name,
            allocations=record.allocations,
            work=str(self.store.work(job, order.attempt, found.package)),
            keep=str(self.store.kept(job)),
            logs=str(self.store.logs(job)),
            submission=msgspec.to_builtins(found),
            zookeeper=self.capacity.hosts,
            key=None if key is None else key.job(job),
            credential=tls.credential(key, self.capacity.hosts, job),
            threads=self.threads,
            can_save=not unkept(record.allocations, found.servers),
            begin=order.begin,
            groups=record.groups,
            changed=order.changed,
            n_scaled=record.n_scaled,
        )

    def _fetch(self, workers: Membership, digest: str) -> None:
        """Fetch a package from another host that has it."""
        reasons, key, members = [], self.capacity.key, workers.members({})
        for name, member in members.items():
            if name == self.name:
                continue
            access = None if key is None else ClientKeys.of(key, "worker", name)
            try:
                with RpcClient(member.endpoint, access) as client:
                    if not client.call("have", PackageRequest(digest), PackageKnown).is_here:
                        continue
                    got, portions = client.download(
                        "get", PackageRequest(digest), PackageKnown,
                        max_bytes=2**27, timeout_s=FETCH_S,
                    )  # fmt: skip
                    put = package.split(portions, got.n_manifest)
                    self.store.put(digest, *put, shares=False)  # a job needs it here alone
                    return
            except HornError as error:
                reasons.append(f"{name}: {error}")
        if reasons:
            raise NotFound(f"package {digest[:16]} does not come here: {'; '.join(reasons)}")
        tokens = tuple(sorted(member.token for member in members.values()))
        raise PackageMissing(f"package {digest[:16]} is on no worker that is up", tokens)


def record_of(coord: Session, job: str, attempt: int) -> JobRecord:
    """The record of a job's attempt, no older than an order that this session has seen: one
    transaction writes both. Raises NotFound: the job is gone, or the attempt over. ProtocolError.
    """
    node = node_of(coord, coord.paths.record(job), job)
    try:
        record = msgspec.json.decode(node.data, type=JobRecord)
    except UNREADABLE as error:
        raise ProtocolError(
            f"job {job!r}: its record is not understood ({error}); all workers are to have one "
            f"version of horn"
        ) from None
    if record.attempt != attempt or not record.allocations:
        raise NotFound(f"job {job!r}: attempt {attempt} is over")
    return record
