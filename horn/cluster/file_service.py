"""The service of an agent: packages, logs, progress and models of jobs.

Each request is a struct below; long data is the body. A request with ``wait_s`` is answered when
the file has more.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from horn.cluster import package
from horn.cluster.package import MANIFEST_BYTES, MAX_BYTES, PATH_BYTES
from horn.cluster.store import HostStore, line_start, written_since
from horn.cluster.user import opened
from horn.errors import Conflict, NotFound
from horn.rpc.server import RpcCall, RpcServer

READ_BYTES = 1024 * 1024  # of a log at once
WAIT_S = 20.0  # at most so long for more of a file
LOOK_S = 0.05
HOLD_S = 600.0  # that a package is kept for who has asked for it and not yet named it in a job
GONE_S = 5.0  # for the runs of an ended job to be removed
CLIENTS = ("client", "worker", "open")

_Name = Annotated[str, msgspec.Meta(max_length=200)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class PackageRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests "have", "get", "holds": a package. "put": the same with a manifest of ``n_manifest``
    bytes, and its files as the body. holder : of "have" and "put", who is about to enter a job with
    it: it is not removed before "release", or for HOLD_S. To a holder a package is here once it is
    in the shared folder, too: else the worker's loss loses the job.
    """

    digest: _Name
    n_manifest: Annotated[int, msgspec.Meta(ge=0, le=MANIFEST_BYTES)] = 0
    holder: _Name = ""


class PackageKnown(msgspec.Struct, frozen=True):
    is_here: bool
    n_manifest: int = 0


class HoldCount(msgspec.Struct, frozen=True):
    """The number of a package's last hold, among all of the service; 0 : none in HOLD_S."""

    n: int


class JobRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests "files", "forget": a job. package : of that job, if no other has it. n_holds : the
    number of the package's last hold, asked for before the other jobs were looked at: after a later
    one the package stays.
    """

    job: _Name
    package: _Name = ""
    n_holds: _Count = 0


class FileList(msgspec.Struct, frozen=True):
    """The sizes of files in bytes, by name."""

    sizes: dict[str, int]


class CheckpointsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request "saved": a job's checkpoints. wants_best : also the best so far, from the newest."""

    job: _Name
    wants_best: bool = False


class CheckpointList(msgspec.Struct, frozen=True):
    """Iterations of checkpoints, the newest last. best : that of the best model, -1 for none."""

    iterations: list[int]
    best: int = -1


class ReadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request "read": a file of a job from an offset, a model whole; or its last ``tail`` lines, or
    those of the last ``age_s`` seconds, or the fewer of both.
    """

    job: _Name
    name: _Name
    offset: _Count = 0
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=WAIT_S)] = 0.0
    tail: _Count | None = None
    age_s: Annotated[float, msgspec.Meta(ge=0)] | None = None


class ReadReply(msgspec.Struct, frozen=True):
    """The offset and the size of the body, in bytes."""

    offset: int
    size: int


class WrittenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request "read written": a file that a callback of a job wrote, whole."""

    job: _Name
    path: Annotated[str, msgspec.Meta(max_length=PATH_BYTES)]


class SizeReply(msgspec.Struct, frozen=True):
    """The size of the body, in bytes."""

    size: int


class DoneReply(msgspec.Struct, frozen=True):
    """A reply without content."""


class PackageHolds:
    """Packages that are about to be named in a job. A client asks for a package before it enters
    its job, so that another one that removes a job cannot see in ZooKeeper that it is needed.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()  # around the methods, and what is done by their answers
        self._until: dict[tuple[str, str], float] = {}
        self._last: dict[str, tuple[int, float]] = {}  # the number of a package's last hold, and
        self._numbers = itertools.count(1)  # until when it is remembered, after a release too

    def hold(self, digest: str, holder: str) -> None:
        now = time.monotonic()
        self._until = {of: end for of, end in self._until.items() if now < end}
        self._last = {of: last for of, last in self._last.items() if now < last[1]}
        self._until[digest, holder] = now + HOLD_S
        self._last[digest] = next(self._numbers), now + HOLD_S

    def release(self, digest: str, holder: str) -> None:
        self._until.pop((digest, holder), None)

    def last(self, digest: str) -> int:
        """The number of a package's last hold, 0 for none."""
        return self._last.get(digest, (0, 0.0))[0]

    def is_free(self, digest: str, n: int) -> bool:
        """Whether nobody holds a package, or has held it after hold ``n``."""
        now = time.monotonic()
        is_held = any(of == digest and now < end for (of, _), end in self._until.items())
        return not is_held and self.last(digest) <= n


class FileService:
    """Answers requests about a store. runs : the jobs that run here now."""

    def __init__(
        self, store: HostStore, service: RpcServer, runs: Callable[[], Iterable[str]]
    ) -> None:
        self.store, self.runs = store, runs
        self.holds = PackageHolds()
        self._closing = threading.Event()
        service.on("have", PackageRequest, self.have, CLIENTS)
        service.on("put", PackageRequest, self.put, CLIENTS, max_body=MANIFEST_BYTES + MAX_BYTES,
                   is_audited=True)  # fmt: skip
        service.on("release", PackageRequest, self.release, CLIENTS)
        service.on("holds", PackageRequest, self.count_holds, CLIENTS)
        service.on("get", PackageRequest, self.get, CLIENTS)
        service.on("files", JobRequest, self.files, CLIENTS)
        service.on("read", ReadRequest, self.read, CLIENTS)
        service.on("written", JobRequest, self.written, CLIENTS)
        service.on("read written", WrittenRequest, self.read_written, CLIENTS)
        service.on("saved", CheckpointsRequest, self.saved, CLIENTS)
        service.on("forget", JobRequest, self.forget, CLIENTS, is_audited=True)

    def close(self) -> None:
        """Answer all waiting requests."""
        self._closing.set()

    def have(self, call: RpcCall) -> PackageKnown:
        request: PackageRequest = call.request
        with self.holds.lock:
            if request.holder:  # it stays, if it is here
                self.holds.hold(request.digest, request.holder)
        is_here = self.store.has(request.digest)
        if request.holder:
            is_here = is_here and self.store.is_shared(request.digest)
        return PackageKnown(is_here)

    def release(self, call: RpcCall) -> DoneReply:
        with self.holds.lock:
            self.holds.release(call.request.digest, call.request.holder)
        return DoneReply()

    def count_holds(self, call: RpcCall) -> HoldCount:
        with self.holds.lock:
            return HoldCount(self.holds.last(call.request.digest))

    def put(self, call: RpcCall) -> DoneReply:
        request: PackageRequest = call.request
        if request.holder:
            with self.holds.lock:
                self.holds.hold(request.digest, request.holder)
        self.store.put(request.digest, *package.split(call.read(), request.n_manifest))
        return DoneReply()

    def get(self, call: RpcCall) -> tuple[PackageKnown, Iterator[bytes]]:
        packed, portions = self.store.get(call.request.digest)
        return PackageKnown(True, len(packed)), itertools.chain([packed], portions)

    def files(self, call: RpcCall) -> FileList:
        found = self.store.files(call.request.job)
        sizes = {name: _size(path) for name, path in found.items()}
        return FileList({name: size for name, size in sizes.items() if size is not None})

    def read(self, call: RpcCall) -> tuple[ReadReply, Iterator[bytes]]:
        request: ReadRequest = call.request
        ends = time.monotonic() + request.wait_s
        while True:
            path = self.store.files(request.job).get(request.name)
            size = None if path is None else _size(path)
            if (size or 0) > request.offset or time.monotonic() >= ends or call.is_over:
                break
            if self._closing.wait(LOOK_S):
                break
        if path is None or size is None:
            raise NotFound(f"job {request.job}: there is no {request.name} here")
        start = request.offset
        if request.tail is not None:
            start = _tail(path, size, request.tail)
        if request.age_s is not None:
            since = written_since(path, request.age_s)
            start = since if request.tail is None else max(start, since)
        n = max(size - start, 0)
        if not request.name.endswith(".horn"):
            n = min(n, READ_BYTES)
        return ReadReply(start, n), _portions(path, start, n)

    def written(self, call: RpcCall) -> tuple[SizeReply, Iterator[bytes]]:
        """Send the list as a body: thousands of paths are more than a reply may be."""
        packed = msgspec.msgpack.encode(self.store.written(call.request.job))
        return SizeReply(len(packed)), iter([packed])

    def read_written(self, call: RpcCall) -> tuple[SizeReply, Iterator[bytes]]:
        request: WrittenRequest = call.request
        file = os.fdopen(self.store.open_written(request.job, request.path), "rb")
        size = os.fstat(file.fileno()).st_size
        return SizeReply(size), _whole(file, size)

    def saved(self, call: RpcCall) -> CheckpointList:
        from horn.checkpoint import Checkpoints  # here, for commands that only ask load this file
        from horn.training.checkpointing import cursor_of

        checkpoints = Checkpoints(self.store.checkpoints(call.request.job))
        iterations, best = checkpoints.iterations(), -1
        newest = checkpoints.latest() if call.request.wants_best else None
        if newest is not None and (kept := cursor_of(newest).best) is not None:
            best = kept[2]
        return CheckpointList(iterations, best)

    def forget(self, call: RpcCall) -> DoneReply:
        """Remove a job's files. An ended job is among the runs until its order is withdrawn."""
        job, ends = call.request.job, time.monotonic() + GONE_S
        while job in self.runs():
            if time.monotonic() >= ends or self._closing.wait(LOOK_S):
                raise Conflict(f"job {job} still runs here")
        package = call.request.package
        with self.holds.lock:
            is_free = self.holds.is_free(package, call.request.n_holds)
            self.store.forget(job, package if is_free else "")
        return DoneReply()


def _portions(path: Path, start: int, n: int) -> Iterator[bytes]:
    with open(path, "rb", opener=opened) as file:
        file.seek(start)
        yield from _whole(file, n)


def _whole(file: BinaryIO, n: int) -> Iterator[bytes]:
    """Yield at most ``n`` bytes of an open file, and close it."""
    with file:
        while n and (data := file.read(min(n, 256 * 1024))):
            n -= len(data)
            yield data


def _size(path: Path) -> int | None:
    """The size in bytes; None of a file that was removed since it was found."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return None


def _tail(path: Path, size: int, lines: int) -> int:
    """The offset of the last lines of a file of ``size`` bytes."""
    if not size or not lines:
        return size
    with open(path, "rb", opener=opened) as file:
        file.seek(size - 1)
        is_whole = file.read(1) == b"\n"
    return line_start(path, size - is_whole, lines)
