"""The tree of jobs: description, state and result of each. See docs/notes/0060.

A change of state names the old state, and may be fenced by the master's leadership: two masters, or
a master and a stop, cannot overwrite each other. The same transactions keep ``/active``, the jobs
that have not ended; nobody watches the others (docs/notes/0098).
"""

from __future__ import annotations

import contextlib
import enum
import secrets
from collections.abc import Callable

from horn.coordination.paths import Paths
from horn.coordination.records import Create, Delete, Put, Step, Znode
from horn.coordination.session import Session
from horn.errors import Conflict, JobError, NotApplied, NotFound, ProtocolError

MAX_SPEC_BYTES = 900_000  # one transaction carries it, and ZooKeeper's frame is 1,048,575


class JobState(enum.Enum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, until horn resume."""
        return self in ENDED


# The states to which each may change; horn resume leads back to PENDING.
_CHANGES = {
    "PENDING": "RUNNING STOPPING STOPPED FAILED",
    "RUNNING": "RESTARTING STOPPING SUCCEEDED FAILED STOPPED",
    "RESTARTING": "RUNNING STOPPING FAILED STOPPED",
    "STOPPING": "STOPPED SUCCEEDED FAILED",
    "SUCCEEDED": "",
    "FAILED": "PENDING",
    "STOPPED": "PENDING",
}
NEXT = {JobState(old): frozenset(map(JobState, new.split())) for old, new in _CHANGES.items()}
ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED})


def listing(at: Paths, job: str, old: JobState, new: JobState) -> list[Step]:
    """The steps that keep ``/active`` up to date with a change of state."""
    if old.is_over == new.is_over:
        return []
    return [Delete(at.active(job)) if new.is_over else Create(at.active(job))]


def node_of(coord: Session, path: str, job: str) -> Znode:
    """Read a node of a job. Raises NotFound: there is no such job."""
    node = coord.get(path)
    if node is None:
        raise NotFound(f"no job {job!r}")
    return node


class Jobs:
    """Create, read, change and remove jobs. Raises NotFound: no such job. Conflict: the name is
    taken, or the job is in another state.
    """

    def __init__(self, coord: Session) -> None:
        self.coord, self.paths = coord, coord.paths
        coord.ensure(self.paths.jobs(), self.paths.workers(), self.paths.all_active())

    def create(self, job: str, spec: bytes, guest: str = "") -> None:
        """Enter a job as PENDING, whole or not at all. guest : the id of its tasks' credential."""
        if len(spec) > MAX_SPEC_BYTES:
            raise JobError(
                f"job {job!r}: its description has {len(spec)} bytes, but at most "
                f"{MAX_SPEC_BYTES} fit into ZooKeeper"
            )
        state = Create(self.paths.state(job), JobState.PENDING.value.encode())
        self._enter(job, [*self._folders(job, spec, guest), state], spec)

    def create_signed(self, job: str, sign: Callable[[Znode], bytes], guest: str = "") -> None:
        """Create a job whose description ``sign`` makes for its node. Without a state there is no
        job yet; if this process ends in between, masters remove the rest.
        """
        draft = secrets.token_bytes(16)
        self._enter(job, self._folders(job, draft, guest), draft)
        path = self.paths.spec(job)
        node = self.coord.get(path)
        if node is None or node.data != draft:
            raise Conflict(f"job {job!r} was removed while it was submitted; submit it again")
        try:
            spec = sign(node)
        except BaseException:
            self.forget(job)
            raise
        state = Create(self.paths.state(job), JobState.PENDING.value.encode())
        try:
            self._enter(job, [Put(path, spec, node.version), state], spec)
        except NotApplied as error:
            raise Conflict(
                f"job {job!r} was changed while it was submitted ({error}); submit it again"
            ) from error

    def _folders(self, job: str, spec: bytes, guest: str) -> list[Step]:
        """The nodes of a job, without its state."""
        at = self.paths
        folders = (
            at.result(job), at.leader(job), at.checkpoints(job), at.wish(job), at.record(job),
            at.progress(job), at.reports(job),
        )  # fmt: skip
        places = (at.groups(job), at.servers(job), at.runners(job))
        return [
            Create(at.job(job)),
            Create(at.active(job)),
            Create(at.spec(job), spec),
            *map(Create, folders),
            *(Create(path, guest=guest) for path in places),
        ]

    def _enter(self, job: str, steps: list[Step], spec: bytes) -> None:
        """Commit the steps that create a job, whose description is ``spec`` then."""

        def landed() -> bool:
            node = self.coord.get(self.paths.spec(job))
            return node is not None and node.data == spec

        try:
            self.coord.commit(steps, landed)
        except NotApplied as error:
            if error.reason == "exists":
                raise Conflict(f"there is a job {job!r} already; choose another name") from None
            raise

    def state(self, job: str) -> JobState:
        return self._parse(job, node_of(self.coord, self.paths.state(job), job).data)

    def change(self, job: str, old: JobState, new: JobState) -> None:
        """Change the state of a job; Conflict if it is not in ``old``."""
        if new not in NEXT[old]:
            raise Conflict(f"job {job!r}: {old.value} does not lead to {new.value}")
        path = self.paths.state(job)
        node = node_of(self.coord, path, job)
        if node.data != old.value.encode():
            raise Conflict(f"job {job!r} is {self._parse(job, node.data).value}, not {old.value}")
        steps: list[Step] = [Put(path, new.value.encode(), node.version)]
        steps += listing(self.paths, job, old, new)
        try:
            self.coord.commit(steps)
        except NotApplied as error:
            if error.reason == "version":
                raise Conflict(f"job {job!r} left {old.value} in the meantime") from None
            raise

    def check_ended(self, job: str) -> None:
        """Check that a job has ended; Conflict if it has not. A job whose state cannot be read
        counts as ended: no master runs it, nor can it be stopped.
        """
        with contextlib.suppress(ProtocolError):
            state = self.state(job)
            if not state.is_over:
                first = "stop it first"
                if state is JobState.STOPPING:
                    first = f"wait for its end:  horn status {job} --wait"
                raise Conflict(f"job {job!r} is {state.value}; {first}")

    def remove(self, job: str) -> None:
        """Remove an ended job; Conflict if it has not ended."""
        self.check_ended(job)
        with contextlib.suppress(Conflict):  # an earlier removal was broken off
            self.coord.create(self.paths.active(job))  # for masters to see what is left of it
        self.forget(job)

    def forget(self, job: str) -> bool:
        """Remove all of a job, whatever its state; False if there was nothing."""
        found = self.coord.remove(self.paths.job(job))
        return self.coord.delete(self.paths.active(job)) or found

    def remove_unfinished(self, job: str) -> bool:
        """Remove a job without a state; against a slow submitter, one of the two fails."""
        path = self.paths.spec(job)
        node = self.coord.get(path)
        if self.coord.get(self.paths.state(job)) is not None:
            return False
        if node is not None and node.version == 0:  # it never had a state
            try:
                self.coord.commit([Delete(path, node.version)])
            except NotApplied:
                return False
        return self.forget(job)

    def _parse(self, job: str, data: bytes) -> JobState:
        try:
            return JobState(data.decode())
        except ValueError:
            raise ProtocolError(f"job {job!r} has the unknown state {data[:40]!r}") from None
