"""Jobs are submitted: agents hold their files, until ZooKeeper has the job."""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from horn.cluster import submission
from horn.cluster.capacity import terms
from horn.cluster.client import UNANSWERED, ClusterClient
from horn.cluster.file_service import DoneReply, PackageKnown, PackageRequest
from horn.cluster.job_controller import host_of
from horn.cluster.job_names import new_id
from horn.cluster.scheduler import check_files, scattered
from horn.cluster.submission import Submission
from horn.coordination.records import Znode
from horn.errors import ClusterError, Conflict, JobError
from horn.topology import Topology

if TYPE_CHECKING:
    from horn.cluster.packing import PackedJob
    from horn.rpc.client import RpcClient

logger = logging.getLogger(__name__)

COPIES = 2  # agents that get a package, so that the loss of one loses no job


def submit(client: ClusterClient, wanted: Submission, package: PackedJob) -> str:
    """Submit a job and return its id. ``wanted.job`` is the id's first part if it is no id.
    Raises JobError: the workers that are up cannot run it, or not save what it asks for.
    """
    topology = Topology(wanted.groups, wanted.tasks, wanted.servers)
    hosts = {name: host_of(member, {}) for name, member in client.workers().items()}
    check_files(topology, list(hosts.values()))
    if why := scattered(terms(wanted).need, hosts):
        if wanted.checkpoint_every is not None or wanted.checkpoint_s is not None:
            raise JobError(
                f"no checkpoint could be saved (--checkpoint-every): {why}. Give them a folder "
                f"in common (horn worker --shared), or leave it out: after a failure the job "
                f"then begins anew"
            )
        logger.warning("Nothing will be kept for a restart: %s", why)
    with held(client, package):
        return _entered(client, wanted)


def _entered(client: ClusterClient, wanted: Submission) -> str:
    for _ in range(10):
        job = new_id(wanted.name or wanted.job)
        try:
            _enter(client, msgspec.structs.replace(wanted, job=job))
        except Conflict:
            continue
        return job
    raise Conflict(f"no free id for {wanted.name!r}; give another --name")


def _enter(client: ClusterClient, wanted: Submission) -> None:
    key = client.key
    if key is None:
        client.jobs.create(wanted.job, submission.unsigned(wanted))
        return

    def sign(node: Znode) -> bytes:
        return submission.sign(key, wanted, node)

    client.jobs.create_signed(wanted.job, sign, key.zookeeper_of(wanted.job).id)


@contextlib.contextmanager
def held(client: ClusterClient, package: PackedJob) -> Iterator[None]:
    """Give a package to agents, which hold it for as long as the context; then jobs name those
    that are needed. Raises ClusterError if none takes it.
    """
    holder = secrets.token_hex(8)
    holds: list[RpcClient] = []
    try:
        _upload(client, package, holder, holds)
        yield
    finally:
        for agent in holds:
            with contextlib.suppress(*UNANSWERED):  # else it holds it for a while
                agent.call("release", PackageRequest(package.digest, holder=holder), DoneReply)


def _upload(client: ClusterClient, package: PackedJob, holder: str, holds: list[RpcClient]) -> None:
    """Give a package to COPIES agents. holds : grows by those that may hold it now."""
    members = client.workers()
    if not members:
        raise ClusterError(client.reader.no_worker)
    taken, reasons = 0, []
    order = sorted(members)
    secrets.SystemRandom().shuffle(order)
    for name in order:
        if taken == COPIES:
            break
        try:
            agent = client.client(name, members[name])
            asked = PackageRequest(package.digest, holder=holder)
            holds.append(agent)
            if not agent.call("have", asked, PackageKnown).is_here:
                sent = PackageRequest(package.digest, len(package.packed), holder)
                agent.call(
                    "put", sent, DoneReply,
                    body=itertools.chain([package.packed], package.chunks()),
                    size=len(package.packed) + package.manifest.n_bytes, timeout_s=120.0,
                )  # fmt: skip
            taken += 1
        except UNANSWERED as error:
            reasons.append(f"{name}: {error}")
    if not taken:
        raise ClusterError(f"no worker takes the job's files: {'; '.join(reasons)}")
