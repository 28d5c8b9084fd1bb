"""Members of a group as threads and as processes, for the tests of this folder."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import multiprocessing
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, BinaryIO

from horn.cluster import package
from horn.cluster.package import PackageFile, PackageManifest
from horn.coordination.barrier import GroupBarrier
from horn.coordination.membership import Membership
from horn.coordination.session import Session
from horn.patience import Patience

DEADLINE_S = 30.0


class Call:
    """A function running in a thread: its result or exception, within a deadline."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._error: BaseException | None = None
        self._result: Any = None
        self._function, self._args = function, args
        self._thread = threading.Thread(target=self._run, name="member-call", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function(*self._args)
        except BaseException as error:
            self._error = error

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, timeout_s: float = DEADLINE_S) -> Any:
        self._thread.join(timeout_s)
        assert self.is_done(), "the call has not come back"
        if self._error is not None:
            raise self._error
        return self._result


def wait_until(condition: Callable[[], Any], timeout_s: float = DEADLINE_S) -> Any:
    """What ``condition`` gives as soon as it is true. For what sends no event."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not become true"
        pause.wait(0.01)
    return value


def wait_arrived(coord: Session, folder: str, generation: int, name: str) -> None:
    """Until ``name``'s mark is in the generation, whatever the region."""

    def is_there() -> bool:
        return any(
            coord.get(f"{folder}/{region}/{generation:010d}/in-{name}")
            for region in coord.children(folder)
        )

    wait_until(is_there)


class Member:
    """A process that joins ``folder``/members and crosses its barrier when told to."""

    def __init__(
        self, hosts: str, root: str, name: str, names: list[str], session_s: float
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_member, args=(theirs, hosts, root, name, names, session_s), daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def tell(self, order: str, *args: Any) -> None:
        self._pipe.send((order, *args))

    def answer(self, timeout_s: float = DEADLINE_S) -> Any:
        """What the order came to; its exception is raised here."""
        assert self._pipe.poll(timeout_s), f"{self.name} does not answer"
        answer = self._pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def ask(self, order: str, *args: Any) -> Any:
        self.tell(order, *args)
        return self.answer()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()


def _member(
    pipe: Connection, hosts: str, root: str, name: str, names: list[str], session_s: float
) -> None:
    with Session(hosts, root=root, session_s=session_s, timeout_s=20) as coord:
        membership = Membership(coord, f"{root}/members")
        membership.join(name, f"tcp://127.0.0.1:{os.getpid()}")
        barrier = GroupBarrier(coord, f"{root}/barrier", name, names, membership=membership)
        pipe.send("ready")
        while True:
            order, *args = pipe.recv()
            assert order == "cross"
            try:
                pipe.send(barrier.cross(*args))
            except Exception as error:
                pipe.send(error)


@contextlib.contextmanager
def members(
    hosts: str, root: str, names: list[str], everybody: list[str], session_s: float = 12.0
) -> Iterator[list[Member]]:
    """Processes for ``names`` out of the group ``everybody``, ready."""
    made: list[Member] = []
    try:
        for name in names:
            made.append(Member(hosts, root, name, everybody, session_s))
        for member in made:
            assert member.answer() == "ready"
        yield made
    finally:
        for member in made:
            member.stop()


def end_session(coord: Session) -> None:
    """Close the session on the server over another connection: its client sees it expire. The
    client comes back at once and may take the session along: then it is taken from it again.
    """
    session, password = coord._client.kazoo.client_id
    host, _, port = coord.hosts.split(",")[0].rpartition(":")
    wait_until(lambda: _is_closed((host, int(port)), session, password))


def _is_closed(address: tuple[str, int], session: int, password: bytes) -> bool:
    """Whether the server has said that it has closed a session, or knows of none."""
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=10) as s:
        body = struct.pack(">iqiqi", 0, 0, 12_000, session, len(password)) + password + b"\0"
        close = struct.pack(">ii", 1, -11)
        s.sendall(b"".join(struct.pack(">i", len(part)) + part for part in (body, close)))
        with s.makefile("rb") as answers:
            granted = _frame(answers)
            if granted[4:8] == bytes(4):  # no time: there is no such session
                return True
            return _frame(answers)[:4] == struct.pack(">i", 1)
    return False


def _frame(answers: BinaryIO) -> bytes:
    size = answers.read(4)
    found = answers.read(struct.unpack(">i", size)[0]) if len(size) == 4 else b""
    if not found:
        raise ConnectionError("it was closed")
    return found


def a_package(text: bytes) -> tuple[str, bytes]:
    """One of a single file: its digest and manifest."""
    file = PackageFile("job.py", len(text), hashlib.sha256(text).digest())
    manifest = package.encode(PackageManifest(package.FORMAT, (file,)))
    return package.digest(manifest), manifest


def stood_still(timeout_s: float) -> Patience:
    """A countdown in a process that has been stopped for a year between its first two looks."""
    looks = itertools.chain([0.0], itertools.repeat(365 * 24 * 3600.0))
    return Patience(timeout_s, lambda: next(looks))
