"""The files of an agent: packages, and for each job its work, its logs and its results.

    id, lock                       who has this folder; one agent at a time
    packages/<digest>/             as it came: ``manifest`` and ``files``
    jobs/<job>/work-<attempt>/     a copy of the package, the folder that the job's processes are in
    jobs/<job>/logs/               a file per process
    jobs/<job>/kept/               progress.jsonl, checkpoints, model.horn, trace.json, files of
                                   callbacks

In a folder that all hosts share what is kept is in jobs/<job>, and packages are once more, for
hosts that come later, in packages/<cluster>/<digest>: clusters may have one folder, and each
removes its own. They were in packages/<digest>, from where they are still read.

Where jobs run as another user, work-*, logs and kept are that user's: what is in them is opened
with ``opened``.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from horn.cluster import package, written
from horn.cluster.package import BadPackage, Unpacker
from horn.cluster.user import JobUser, is_plain, opened
from horn.cluster.written import WrittenFiles
from horn.coordination import paths
from horn.errors import ClusterError, Conflict, JobError, NotFound

logger = logging.getLogger(__name__)

MODEL, PROGRESS, CHECKPOINTS = "model.horn", "progress.jsonl", "checkpoints"
FILES = "files"  # written by callbacks
TRACE = "trace.json"
NO_LOGS = (PROGRESS, MODEL, TRACE)  # of the readable files of a job; the others are logs
TIMES = ".times"
MARK = struct.Struct("<qd")  # an offset, and when it was written: seconds since 1970
MARK_S = 1.0  # between two of them
LOG_BYTES = 8 * 1024 * 1024  # of one process, as they come;
LOG_END_BYTES = 1024 * 1024  # and of what comes later the last, written when it ends


class HostStore:
    """An agent's folder, made if missing, for its owner alone. user : the account that jobs run as,
    if another. ``cluster`` : the id of the agent's cluster, once it is known; without it nothing is
    shared. Raises Conflict: another agent has it. JobError: it cannot be used.
    """

    cluster = ""

    def __init__(
        self, folder: Path, shared: Path | None = None, user: JobUser | None = None
    ) -> None:
        self.folder, self.shared, self.user = folder, shared, user
        self._lock = threading.Lock()
        for base in (folder, shared or folder):
            _check_text(base)
        try:
            for base in (folder,) if shared is None else (folder, shared):
                for path in (base, base / "packages", base / "jobs"):
                    path.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._let_through(base)
                self._let_through(base / "jobs")
            self._fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JobError(f"{error.filename} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise Conflict(
                f"another horn worker uses {folder}; give this one another --dir"
            ) from None
        try:
            self.id = _id(folder)
            self.shared_id = "" if shared is None else _id(shared)
        except JobError:
            self.close()
            raise
        for packed in folder.glob("packages/*/"):
            package.sweep(packed)
        left = [*folder.glob("jobs/*/work-*")]  # leftovers of a killed agent
        left += folder.glob(f"packages/*-{self.id}")
        if shared is not None:
            for copies in ("packages", "packages/*"):
                left += shared.glob(f"{copies}/*-{self.id}")  # but not other hosts'
        for path in left:
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # packages

    def has(self, digest: str) -> bool:
        """Whether the package is here or, whole, in the shared folder."""
        return self._is_here(digest) or next(self._shared_copies(digest), None) is not None

    def take_shared(self, digest: str) -> bool:
        """Copy a package from the shared folder, unless it is here; whether it is here then. Raises
        ClusterError: it cannot be written.
        """
        if self._is_here(digest):
            return True
        for theirs, packed in self._shared_copies(digest):
            try:
                self._put(digest, packed, package.read(theirs / "files", package.decode(packed)))
                return True
            except (BadPackage, OSError) as error:  # other bytes, or just removed
                logger.warning("shared package not used path=%s reason=%s", theirs, error)
        return False

    def _is_here(self, digest: str) -> bool:
        return (self._package(digest) / "files").is_dir()

    def _shared_copies(self, digest: str) -> Iterator[tuple[Path, bytes]]:
        """The folders of a package that are whole in the shared folder, with its manifest."""
        if self.shared is None:
            return
        packages = self.shared / "packages"
        for theirs in (packages / self.cluster / digest, packages / digest):
            if (packed := _manifest(theirs, digest)) is not None:
                yield theirs, packed

    def put(
        self,
        digest: str,
        packed: bytes,
        portions: Iterator[bytes | memoryview],
        *,
        shares: bool = True,
    ) -> None:
        """Store a package, unless it is here already, and share it unless ``shares`` is False.
        Raises BadPackage. ClusterError: one of both folders cannot be written.
        """
        self._put(digest, packed, portions)
        if shares:
            self.share(digest)

    def _put(self, digest: str, packed: bytes, portions: Iterator[bytes | memoryview]) -> None:
        folder = self._package(digest)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ClusterError(
                f"{folder}: {error.strerror}; see that the folder of --dir is there, is the "
                f"worker's own to write, and has room"
            ) from error
        if self._is_here(digest):
            for _ in portions:
                pass
            return
        with Unpacker(folder / "files", packed, digest) as unpacker:
            for portion in portions:  # without the lock: a slow sender keeps nobody waiting
                unpacker.feed(portion)
            with self._lock:
                if self._is_here(digest):  # another sender was faster
                    return
                temporary = folder / f"manifest-{secrets.token_hex(4)}"
                _write(temporary, packed)
                temporary.rename(folder / "manifest")
                unpacker.finish()

    def is_shared(self, digest: str) -> bool:
        """Whether a package is whole in the shared folder, if there is one."""
        folder = self._shared_packages
        return folder is None or _manifest(folder / digest, digest) is not None

    def share(self, digest: str) -> None:
        """Copy a package that is here into the shared folder, unless it is there: the cluster's
        other hosts need it if this one is lost. Raises ClusterError: it cannot be written.
        """
        folder = self._shared_packages
        if folder is None:
            return
        temporary = folder / f"{digest[:16]}-{self.id}"
        with self._lock:
            if self.is_shared(digest):
                return
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
                _copy(self._package(digest), temporary)
                self._remove(folder / digest)  # it is not whole
                with contextlib.suppress(OSError):  # another host was faster
                    temporary.rename(folder / digest)
            except OSError as error:
                raise ClusterError(
                    f"{error.filename or folder} cannot be written: {error.strerror}; see that the "
                    f"folder of --shared is there, is the worker's own to write, and has room"
                ) from error
            finally:
                shutil.rmtree(temporary, ignore_errors=True)

    @property
    def _shared_packages(self) -> Path | None:
        if self.shared is None or not self.cluster:
            return None
        return self.shared / "packages" / self.cluster

    def get(self, digest: str) -> tuple[bytes, Iterator[bytes]]:
        """A package's manifest and its files' bytes. Raises NotFound."""
        if not self.take_shared(digest):
            raise NotFound(f"package {digest[:16]} is not here")
        packed = (self._package(digest) / "manifest").read_bytes()
        return packed, package.read(self._package(digest) / "files", package.decode(packed))

    def _package(self, digest: str) -> Path:
        return self.folder / "packages" / paths.checked("package", digest)

    # jobs

    def work(self, job: str, attempt: int, digest: str) -> Path:
        """Make a fresh copy of the package for an attempt."""
        folder = self._made(job) / f"work-{attempt}"
        shutil.rmtree(folder, ignore_errors=True)
        _copy(self._package(digest) / "files", folder)
        return self._given(folder)

    def drop_work(self, job: str, attempt: int) -> None:
        shutil.rmtree(self._job(job) / f"work-{attempt}", ignore_errors=True)

    def logs(self, job: str) -> Path:
        folder = self._made(job) / "logs"
        folder.mkdir(mode=0o700, exist_ok=True)
        return self._given(folder)

    def kept(self, job: str) -> Path:
        self._made(job)
        folder = self._kept(job)
        folder.mkdir(mode=0o700, exist_ok=True)
        return self._given(folder)

    def checkpoints(self, job: str) -> Path:
        return self._kept(job) / CHECKPOINTS

    def files(self, job: str) -> dict[str, Path]:
        """The readable files of a job, by their names in requests."""
        found = {p.name.removesuffix(".log"): p for p in sorted(self._job(job).glob("logs/*.log"))}
        found |= {name: self._kept(job) / name for name in NO_LOGS}
        return {name: path for name, path in found.items() if is_plain(path)}

    def written(self, job: str) -> WrittenFiles:
        """The files that callbacks wrote."""
        return written.find(self._kept(job), FILES)

    def open_written(self, job: str, path: str) -> int:
        """Open one of these files, to be read. Raises NotFound, JobError."""
        return written.open_file(self._kept(job), FILES, path)

    def forget(self, job: str, digest: str = "") -> None:
        """Remove all files of a job, and its package if one is named."""
        for folder in (self._job(job), self._kept(job)):
            shutil.rmtree(folder, ignore_errors=True)
        if digest:
            with self._lock:
                self._remove(self._package(digest))
                if (shared := self._shared_packages) is not None:
                    self._remove(shared / digest)

    def _remove(self, packed: Path) -> None:
        """Remove a package, if it is there: all of it at once, for who looks for it. What is left
        by an agent that is killed goes when it starts again.
        """
        aside = packed.with_name(f"{secrets.token_hex(8)}-{self.id}")
        with contextlib.suppress(FileNotFoundError):
            packed.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def _job(self, job: str) -> Path:
        return self.folder / "jobs" / paths.checked("job", job)

    def _kept(self, job: str) -> Path:
        if self.shared is None:
            return self._job(job) / "kept"
        return self.shared / "jobs" / paths.checked("job", job)

    def _made(self, job: str) -> Path:
        folder = self._job(job)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._let_through(folder)
        return folder

    def _let_through(self, folder: Path) -> None:
        """Let the jobs' user enter a folder, without listing it."""
        if self.user is not None:
            self.user.let_through(folder)

    def _given(self, folder: Path) -> Path:
        if self.user is not None:
            self.user.give(folder)
        return folder


def _manifest(folder: Path, digest: str) -> bytes | None:
    """The manifest of a package, whose files have their sizes; None if it is not whole, as where
    its removal was cut off.
    """
    try:
        packed = (folder / "manifest").read_bytes()
        manifest = package.decode(packed)
        sizes = [(folder / "files" / file.path).lstat().st_size for file in manifest.files]
    except (OSError, BadPackage):
        return None
    is_whole = package.digest(packed) == digest and (folder / "files").is_dir()
    return packed if is_whole and sizes == [file.size for file in manifest.files] else None


def _copy(folder: Path, target: Path) -> None:
    """All of a folder. Raises ClusterError, by the first file that cannot be copied."""
    try:
        shutil.copytree(folder, target)
    except shutil.Error as error:  # which is an OSError without a path
        _, path, reason = error.args[0][0]  # a text: [Errno 28] No space left on device: ...
        said = re.sub(r"^\[Errno \d+\] |: '.*$", "", str(reason))
        raise ClusterError(f"{path} cannot be written: {said}") from error


def _check_text(folder: Path) -> None:
    """Raise JobError for a folder whose name cannot be sent to processes, which is sent as text."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        shown = str(folder).encode("utf-8", "backslashreplace").decode()
        raise JobError(
            f"{shown} cannot be used: its name is not UTF-8; give --dir and --shared folders whose "
            f"names are or, if LC_ALL=C misreads it, set LC_ALL=C.UTF-8"
        ) from None


def _write(path: Path, data: bytes) -> None:
    """Write a new file, for its owner alone."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def _id(folder: Path) -> str:
    """The random name of a folder, made at the first use."""
    path, name = folder / "id", secrets.token_hex(8)
    try:
        _write(path, name.encode() + b"\n")
    except FileExistsError:
        for _ in range(100):  # its maker may be about to write it
            text = path.read_text("utf-8").strip()
            if text:
                return text
            threading.Event().wait(0.01)
        raise JobError(f"{path} is empty; remove it") from None
    except OSError as error:
        path.unlink(missing_ok=True)  # an empty one would be refused, once there is room
        raise JobError(f"{path} cannot be written: {error.strerror}") from error
    return name


class LogFile:
    """A bounded log of a process: its beginning, up to ``limit``, and ``end_limit`` bytes of its
    end, which ``close`` writes: who follows a log reads on from an offset, so that nothing in it
    may move. Beside it is a file of times, which ``written_since`` reads.
    """

    def __init__(self, path: Path, limit: int = LOG_BYTES, end_limit: int = LOG_END_BYTES) -> None:
        self.path, self.limit, self.end_limit = path, limit, end_limit
        self._end = bytearray()
        self._n_cut = 0  # bytes between the beginning and the end
        self._times = opened(path.with_suffix(TIMES), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._marked_s = 0.0
        self._fd = opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._n = os.fstat(self._fd).st_size
        self._is_full = self._n > limit  # and says so
        self._n_lost = 0  # bytes that came while nothing could be written

    def write(self, data: bytes) -> None:
        """Append data. A full disk loses some, and the log says so; it never ends the writer."""
        lost = b""
        if self._n_lost:
            lost = f"\nhorn: up to {self._n_lost:,} bytes are missing here\n".encode()
        try:
            self._append(lost + data)
        except OSError as error:
            if not self._n_lost:
                logger.warning("log not written, make room path=%s reason=%s", self.path, error)
            self._n_lost += len(data)
        else:
            self._n_lost = 0

    def _append(self, data: bytes) -> None:
        room = max(self.limit - self._n, 0)
        self._put(data[:room])
        if len(data) <= room:
            return
        if not self._is_full:
            self._put(
                f"\nhorn: {self.limit:,} bytes are kept as they come; of the rest the last "
                f"{self.end_limit:,} follow when the process ends\n".encode()
            )
            self._is_full = True
        self._end += data[room:]
        n_over = max(len(self._end) - self.end_limit, 0)
        del self._end[:n_over]
        self._n_cut += n_over

    def _put(self, left: bytes) -> None:
        now_s = time.time()
        if left and not 0 <= now_s - self._marked_s < MARK_S:
            os.write(self._times, MARK.pack(self._n, now_s))
            self._marked_s = now_s
        while left:  # a disk that fills up takes only a part
            n = os.write(self._fd, left)
            self._n, left = self._n + n, left[n:]

    def close(self) -> None:
        if self._fd >= 0:
            end = bytes(self._end)
            if self._n_cut:
                start = end.find(b"\n") + 1  # of a line
                missing = f"horn: {self._n_cut + start:,} bytes are missing here\n"
                end = missing.encode() + end[start:]
            if end or self._n_lost:
                self.limit = sys.maxsize  # the end is bounded already
                self.write(end)
            os.close(self._fd)
            os.close(self._times)
            self._fd = -1


def written_since(path: Path, age_s: float) -> int:
    """The offset of the lines of the last ``age_s`` seconds; at most MARK_S too early."""
    since_s = time.time() - age_s
    try:
        with open(path.with_suffix(TIMES), "rb", opener=opened) as file:
            marks = file.read()
    except NotFound:
        return 0
    whole = len(marks) - len(marks) % MARK.size
    at = path.lstat().st_size
    for offset, made_s in reversed(list(MARK.iter_unpack(marks[:whole]))):
        if made_s + MARK_S < since_s:
            break
        at = offset
    return line_start(path, at)


def line_start(path: Path, at: int, n: int = 1) -> int:
    """The offset of the first of ``n`` lines, the last of which contains ``at``."""
    with open(path, "rb", opener=opened) as file:
        while at > 0:
            step = min(65536, at)
            file.seek(at - step)
            block = file.read(step)
            n_lines = block.count(b"\n")
            if n_lines >= n:
                for _ in range(n):
                    step = block.rfind(b"\n", 0, step)
                return at - len(block) + step + 1
            n -= n_lines
            at -= step
    return 0
