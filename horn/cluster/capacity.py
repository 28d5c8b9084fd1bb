"""What a host offers to a cluster, and which jobs it accepts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from horn.cluster import submission
from horn.cluster.job_controller import JobTerms
from horn.cluster.scheduler import ResourceRequest
from horn.cluster.submission import Origin, Submission
from horn.cluster.user import JobUser
from horn.coordination.records import Znode
from horn.errors import ProtocolError
from horn.process.limits import ProcessLimits
from horn.security.keys import Key

SESSION_S = 6.0  # after which a host that was cut off is given up


@dataclass(frozen=True)
class HostCapacity:
    """What a host offers.

    address : for others, and what is listened on. name : the host's. folder : its own, shared : one
    that all hosts see. key : the cluster's. is_insecure : may be reached from other hosts without
    one. user : whom jobs run as, if not as the agent, which is root then.
    """

    hosts: str
    slots: int
    address: str = "127.0.0.1"
    name: str = ""
    folder: Path | None = None
    shared: Path | None = None
    key: Key | None = None
    is_insecure: bool = False
    root: str = "/horn"
    session_s: float = SESSION_S
    limits: ProcessLimits = ProcessLimits()
    user: JobUser | None = None


def read_spec(key: Key | None, job: str, node: Znode) -> Submission:
    """A job's description, if this cluster may run it. Raises NotAllowed, ProtocolError."""
    if key is not None:
        origin = Origin.of(node)
        return submission.verify(key, node.data, job=job, origin=origin).submission
    try:
        found = msgspec.json.decode(node.data, type=Submission)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(
            f"job {job!r}: its description is not understood without a key ({error})"
        ) from None
    if found.job != job:
        raise ProtocolError(f"job {job!r}: its description is that of job {found.job!r}")
    return found


def terms(found: Submission) -> JobTerms:
    """What a submission asks of its master."""
    options = found.options
    need = ResourceRequest(
        found.groups, found.tasks, found.servers, bool(options.get("guests", False)),
        str(options.get("horn", "")), str(options.get("python", "")),
    )  # fmt: skip
    return JobTerms(need, found.max_restarts)


def default_folder(name: str) -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "horn" / name
