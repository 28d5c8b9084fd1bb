"""The nodes of ZooKeeper as blocking calls: get, create, set, delete, commit and combinations.

Every call has a deadline. Reads are repeated over a broken connection; a write that may or may not
have landed is looked up before it is repeated. Written over one asynchronous ``send``, which
``session`` provides.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from horn.coordination.records import Create, Put, Reply, Step, Znode
from horn.errors import (
    AccessDenied,
    ClusterError,
    Conflict,
    JobError,
    NotApplied,
    NotFound,
    Unreachable,
)

MAX_DATA_BYTES = 1_000_000  # ZooKeeper's own limit is 1,048,575 for the whole frame
# Of a step beside its path and data: its header, and the access list of a node that it makes.
STEP_BYTES, CREATE_BYTES = 30, 250
ANSWER_S = 10.0  # how long a call waits for its answer unless told otherwise
REMOVAL_S = 60.0  # for a folder and all below it
BATCH = 500  # nodes that are removed in one round trip
MOST_FILLED = 1000  # times that others may fill a folder which is being removed


class Nodes(ABC):
    """Blocking calls over ``send``. All raise SessionLost, AccessDenied, or Unreachable."""

    hosts: str

    @abstractmethod
    def send(
        self, then: Callable[[Reply], None], request: str, path: str, *args: Any, **kwargs: Any
    ) -> None:
        """Send a request now, and call ``then`` with the reply, in the connection's thread."""

    @abstractmethod
    def check(self) -> None:
        """Raise SessionLost if the session is over."""

    @property
    @abstractmethod
    def session(self) -> int:
        """The session's id."""

    @abstractmethod
    def wait_connected(self, timeout_s: float) -> None:
        """Wait for a connection; Unreachable if there is none in time."""

    @abstractmethod
    def is_in_callback(self) -> bool:
        """Whether this is the connection's thread, which must not wait for itself."""

    # One question, one answer

    def _reply(self, request: str, path: str, *args: Any, deadline: float, **kwargs: Any) -> Reply:
        """The reply to one request; its reason is "" or something that the caller must judge."""
        reply = self._sent(request, [path], *args, deadline=deadline, **kwargs)[0]
        if reply.reason == "access":
            raise self.denied(path)
        return reply

    def _sent(
        self, request: str, paths: Sequence[str], *args: Any, deadline: float, **kwargs: Any
    ) -> list[Reply]:
        """Send the same request for several paths together, and return the reply to each."""
        assert not self.is_in_callback(), "a callback must not wait for ZooKeeper"
        self.check()
        replies: list[Reply] = []
        done = threading.Event()

        def then(reply: Reply) -> None:
            replies.append(reply)  # the connection answers in the order of the questions
            if len(replies) == len(paths):
                done.set()

        asked = time.monotonic()
        for path in paths:
            self.send(then, request, path, *args, **kwargs)
        if not done.wait(max(0.0, deadline - asked)):
            self.check()
            raise Unreachable(self.hosts, "no answer", time.monotonic() - asked)
        if any(reply.reason in ("lost", "broken") for reply in replies):
            self.check()
        return replies

    def denied(self, path: str, right: str = "") -> AccessDenied:
        """The error of a refused request. right : what was to be done with the node, a verb."""
        what = right and f"the right to {right} it is missing, since "
        hint = "give the cluster's, with --key FILE or HORN_KEY"
        return AccessDenied(self.hosts, path, f"{what}the key is another one, or missing; {hint}")

    def _query(self, request: str, path: str, *args: Any, timeout_s: float, **kwargs: Any) -> Reply:
        """The reply to an idempotent request, repeated over broken connections."""
        return self._repeated(request, path, *args, timeout_s=timeout_s, **kwargs)[0]

    def _each(
        self, request: str, paths: Sequence[str], deadline: float, expected: Sequence[str]
    ) -> list[Reply]:
        """The replies to an idempotent request for several paths, in one round trip, repeated over
        broken connections. expected : reasons of a refusal that the caller judges.
        """
        if not paths:
            return []
        replies = self._sent(request, paths, deadline=deadline)
        while any(reply.reason == "broken" for reply in replies):
            self.wait_connected(deadline - time.monotonic())
            replies = self._sent(request, paths, deadline=deadline)
        for path, reply in zip(paths, replies, strict=True):
            if reply.reason == "access":
                raise self.denied(path)
            if reply.reason and reply.reason not in expected:
                self._refuse(path, reply)
        return replies

    def _refuse(self, path: str, reply: Reply) -> NoReturn:
        what = f"answers {reply.reason!r}"
        if reply.reason == "UnimplementedError":
            what = "does not know what it is asked for, as one before 3.5; install a newer one"
        raise ClusterError(f"{path}: ZooKeeper at {self.hosts} {what}")

    # The calls

    def get(self, path: str, timeout_s: float = ANSWER_S) -> Znode | None:
        """The node, or None if it is not there."""
        return self.get_each([path], timeout_s)[0]

    def get_each(self, paths: Sequence[str], timeout_s: float = ANSWER_S) -> list[Znode | None]:
        """Several nodes in one round trip: ``get`` of each."""
        deadline = time.monotonic() + timeout_s
        return [reply.value for reply in self._each("get", paths, deadline, ("missing",))]

    def children(self, path: str, timeout_s: float = ANSWER_S) -> list[str]:
        """The names below ``path``, sorted; none if it is not there."""
        reply = self._query("get_children", path, timeout_s=timeout_s)
        if reply.reason not in ("", "missing"):
            self._refuse(path, reply)
        return sorted(reply.value or [])

    def sync(self, path: str, timeout_s: float = ANSWER_S) -> None:
        """Let this server catch up with its leader, so that later reads are no older than now."""
        reply = self._query("sync", path, timeout_s=timeout_s)
        if reply.reason:
            self._refuse(path, reply)

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> Znode:
        """Make a node; Conflict if the name is taken, NotFound if its folder is missing."""
        _check_size(path, data)
        reply, repeated = self._repeated("create", path, data, ephemeral=ephemeral)
        if reply.reason == "missing":
            raise NotFound(f"{path}: its folder is not there")
        if reply.reason == "exists":
            node = self.get(path)
            owner = self.session if ephemeral else 0
            if repeated and node and (node.data, node.owner) == (data, owner):
                return node  # it had landed
            raise Conflict(f"{path} is there already")
        if reply.reason:
            self._refuse(path, reply)
        made: Znode = reply.value
        return dataclasses.replace(made, data=data)

    def set(self, path: str, data: bytes, version: int = -1) -> int:
        """Replace the data and return the zxid of the change; NotFound, Conflict on a version."""
        _check_size(path, data)
        reply, repeated = self._repeated("set", path, data, version)
        if reply.reason == "missing":
            raise NotFound(f"{path} is not there")
        if reply.reason == "version":
            node = self.get(path)
            if repeated and node and (node.data, node.version) == (data, version + 1):
                return node.changed  # it had landed
            raise Conflict(f"{path} was changed by another since it was read")
        if reply.reason:
            self._refuse(path, reply)
        return int(reply.value)

    def delete(self, path: str) -> bool:
        """Remove a node without children; False if it was not there."""
        reply, repeated = self._repeated("delete", path)
        if reply.reason == "children":
            raise Conflict(f"{path} is not empty")
        if reply.reason not in ("", "missing"):
            self._refuse(path, reply)
        return not reply.reason or repeated

    def _repeated(
        self, request: str, path: str, *args: Any, timeout_s: float = ANSWER_S, **kwargs: Any
    ) -> tuple[Reply, bool]:
        """The reply, and whether the request was repeated: it may be about its own effect."""
        deadline = time.monotonic() + timeout_s
        repeated = False
        while (
            reply := self._reply(request, path, *args, deadline=deadline, **kwargs)
        ).reason == "broken":
            repeated = True
            self.wait_connected(deadline - time.monotonic())
        return reply, repeated

    def ensure(self, *paths: str) -> None:
        """Make missing folders and those above them, of any owner, in one round trip."""
        wanted: dict[str, None] = {}
        for path in paths:
            parts = path.strip("/").split("/")
            above = ("/" + "/".join(parts[:n]) for n in range(1, len(parts) + 1))
            wanted.update(dict.fromkeys(above))
        deadline = time.monotonic() + ANSWER_S
        while True:
            replies = self._sent("create", list(wanted), deadline=deadline)
            reasons = {reply.reason for reply in replies}
            if "broken" not in reasons:
                break
            self.wait_connected(deadline - time.monotonic())
        refused = dict(zip(wanted, replies, strict=True))
        for path in paths:
            reason = refused[path].reason
            # Without the right to write above it, the reply hides whether it exists.
            if reason == "access" and not self._query("exists", path, timeout_s=ANSWER_S).value:
                raise self.denied(path)
            if reason not in ("", "exists", "access"):
                self._refuse(path, refused[path])

    def commit(self, steps: Sequence[Step], landed: Callable[[], bool] | None = None) -> list[Any]:
        """Commit all steps or none; NotApplied names the refused one. If the connection breaks,
        ``landed`` looks for the change (the answer is empty then); without it: ClusterError.
        JobError: the steps are too large together.
        """
        _check_steps(steps)
        deadline = time.monotonic() + ANSWER_S
        while True:
            reply = self._sent("commit", [steps[0].path], steps, deadline=deadline)[0]
            if reply.reason == "access":
                raise self.denied(steps[reply.step].path)
            if reply.reason == "broken":
                self.wait_connected(deadline - time.monotonic())
                if landed is None:
                    raise ClusterError(
                        f"the connection to ZooKeeper at {self.hosts} broke during a change of "
                        f"{steps[0].path}; read it to see whether it was made"
                    )
                # It may be another server by now, and behind the one that took the change.
                self.sync(steps[0].path, deadline - time.monotonic())
                if landed():
                    return []
            elif reply.reason:
                raise NotApplied(reply.step, steps[reply.step].path, reply.reason)
            else:
                return list(reply.value)

    def remove(self, path: str, timeout_s: float = REMOVAL_S) -> bool:
        """Remove a node and all below it, many in a round trip; False if it was not there. Raises
        Conflict: others create nodes below it again and again.
        """
        deadline = time.monotonic() + timeout_s
        found, levels = False, [[path]]  # parents before children
        n_full = Counter[str]()
        while levels:
            level = levels[-1]
            batch, level[:] = level[:BATCH], level[BATCH:]
            replies = self._each("delete", batch, deadline, ("missing", "children"))
            found = found or any(reply.reason != "missing" for reply in replies)
            # Not empty, or another process has created below it in the meantime: again later.
            told = zip(batch, replies, strict=True)
            full = [at for at, reply in told if reply.reason == "children"]
            n_full.update(full)
            if (filled := next((at for at in full if n_full[at] > MOST_FILLED), None)) is not None:
                raise Conflict(
                    f"{path} is not removed: others have created nodes below {filled} "
                    f"{MOST_FILLED} times since; end them first"
                )
            level += full
            listed = self._each("get_children", full, deadline, ("missing",))
            below = [
                f"{folder}/{name}"
                for folder, reply in zip(full, listed, strict=True)
                for name in reply.value or ()
            ]
            if below:
                levels.append(below)
            while levels and not levels[-1]:
                levels.pop()
        return found


def _check_size(path: str, data: bytes) -> None:
    """Check the size of data: at more, ZooKeeper closes the connection without a word."""
    if len(data) > MAX_DATA_BYTES:
        raise JobError(f"{path}: {len(data):,} bytes, but at most {MAX_DATA_BYTES:,} fit")


def _check_steps(steps: Sequence[Step]) -> None:
    """Check the size of a transaction, which is one frame."""
    sizes = [
        len(step.path.encode())
        + (len(step.data) if isinstance(step, (Create, Put)) else 0)
        + (CREATE_BYTES if isinstance(step, Create) else STEP_BYTES)
        for step in steps
    ]
    if sum(sizes) > MAX_DATA_BYTES:
        most = steps[sizes.index(max(sizes))].path
        raise JobError(
            f"{len(steps)} nodes that change at once: {sum(sizes):,} bytes, most of them of "
            f"{most}, but at most {MAX_DATA_BYTES:,} fit into a transaction of ZooKeeper"
        )
