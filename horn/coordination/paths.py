"""Every path that horn uses in ZooKeeper, in one table.

Pure: no I/O. Names of jobs, tasks and hosts are checked here, so no other file joins strings to
paths.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from horn.errors import JobError

LAYOUT = 2  # of the tree below; members write it beside their endpoint

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}")  # no "/", never "." or ".."


def checked(kind: str, name: str) -> str:
    """``name``, or a JobError if it cannot be part of a path."""
    if NAME.fullmatch(name) is None:
        raise JobError(
            f"{kind} name {name!r}: use 1 to 100 letters, digits, '_', '-', '.' or ':', "
            f"starting with a letter, a digit or '_'"
        )
    return name


def counted(kind: str, number: int) -> int:
    """``number``, or a JobError if it is below 0."""
    if number < 0:
        raise JobError(f"{kind} {number}: must be 0 or more")
    return number


def _of_job(name: str) -> Callable[[Paths, str], str]:
    """The method of Paths for a node of a job."""
    return lambda paths, job: f"{paths.job(job)}/{name}"


@dataclass(frozen=True)
class Paths:
    """The tree below ``root``: workers, jobs, and what each job has."""

    root: str = "/horn"

    def workers(self) -> str:
        return f"{self.root}/workers"

    def jobs(self) -> str:
        return f"{self.root}/jobs"

    def job(self, job: str) -> str:
        return f"{self.jobs()}/{checked('job', job)}"

    def all_active(self) -> str:
        return f"{self.root}/active"

    def active(self, job: str) -> str:
        """The node that exists until the job ends; masters watch it."""
        return f"{self.all_active()}/{checked('job', job)}"

    spec, state, result = map(_of_job, ("spec", "state", "result"))
    leader, groups, servers = map(_of_job, ("leader", "groups", "servers"))
    checkpoints, progress, reports = map(_of_job, ("checkpoints", "progress", "reports"))
    runners = _of_job("runners")  # where the hosts of a job meet
    wish = _of_job("wish")  # a request for a stop, or for a number of groups
    record = _of_job("record")  # the record of the job's master

    def group(self, job: str, group: int) -> str:
        return f"{self.groups(job)}/{counted('group', group)}"

    def members(self, job: str, group: int) -> str:
        return f"{self.group(job, group)}/members"

    def table(self, job: str, group: int, attempt: int) -> str:
        """The table of a group's members; in group 0 of all ranks, where all meet."""
        return f"{self.group(job, group)}/table-{counted('attempt', attempt):016x}"

    def barrier(self, job: str, group: int) -> str:
        return f"{self.group(job, group)}/barrier"

    def report(self, job: str, attempt: int, host: str) -> str:
        """A host's report of an attempt."""
        return f"{self.reports(job)}/{counted('attempt', attempt)}-{checked('host', host)}"

    def all_orders(self) -> str:
        return f"{self.root}/orders"

    def orders(self, host: str) -> str:
        """A host's orders; the node's data are the slots taken by job."""
        return f"{self.all_orders()}/{checked('host', host)}"

    def order(self, host: str, job: str) -> str:
        return f"{self.orders(host)}/{checked('job', job)}"


def attempt_folder(attempt: int, members: Iterable[str]) -> str:
    """The folder of a group's generations: its attempt, and a digest of its members."""
    names = "\n".join(sorted(members)).encode()
    return f"{counted('attempt', attempt):016x}-{hashlib.sha256(names).hexdigest()[:12]}"


def generation(number: int) -> str:
    """A generation's name; sorts as the number does."""
    return f"{counted('generation', number):010d}"
