"""The offer of a host to a cluster, and the jobs that it accepts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from horn.cluster.job_controller import JobTerms
from horn.cluster.scheduler import ResourceRequest
from horn.cluster.submission import Submission
from horn.cluster.user import JobUser
from horn.defaults import LONGEST_WAIT_S
from horn.errors import JobError
from horn.process.limits import ProcessLimits
from horn.security.keys import Key

SESSION_S = 6.0  # after which a host that was cut off is given up


@dataclass(frozen=True)
class HostCapacity:
    """A host's offer. address : to listen at, for others. folder : its own, shared : one that all
    hosts see. key : the cluster's. is_insecure : off loopback without a key. user : the account
    that jobs run as, where the agent is root. Raises JobError: no session has that time, or nobody
    could go to that address.
    """

    hosts: str
    slots: int
    address: str = "127.0.0.1"
    name: str = ""
    folder: Path | None = None
    shared: Path | None = None
    key: Key | None = None
    is_insecure: bool = False
    session_s: float = SESSION_S
    limits: ProcessLimits = ProcessLimits()
    user: JobUser | None = None

    def __post_init__(self) -> None:
        check_address(self.address)
        if not 0 < self.session_s <= LONGEST_WAIT_S:  # ZooKeeper counts ms in 32 bits
            raise JobError(
                f"--session {self.session_s:g} s: a time above 0, {LONGEST_WAIT_S:g} s at most, "
                f"such as {SESSION_S:g}s"
            )


def check_address(address: str) -> None:
    """Raise JobError for what can be listened on, and is no place to go to."""
    if address.strip("[]") in ("", "*", "0.0.0.0", "::"):
        raise JobError(
            f'--host "{address}" is all addresses of this machine, of which others are to be told '
            f"one: give that, as 10.0.0.3, or a name that they know"
        )


def terms(found: Submission) -> JobTerms:
    """The terms of a submission for its master."""
    options = found.options
    need = ResourceRequest(
        found.groups, found.tasks, found.servers, bool(options.get("guests", False)),
        str(options.get("horn", "")), str(options.get("python", "")),
    )  # fmt: skip
    return JobTerms(need, found.max_restarts)


def bracketed(address: str) -> str:
    """An address as part of a URL."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def default_folder(name: str) -> Path:
    """The folder of a worker that is given none. Raises JobError: there is no home."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    if base.startswith("~"):
        raise JobError("this user has no home folder, where a worker keeps its files; give --dir")
    return Path(base) / "horn" / name
