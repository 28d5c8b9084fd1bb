"""A job's files: a manifest, and the raw bytes of all files one after another.

Not an archive: the receiver checks the manifest and writes only the files that it names.
``check`` has the rules of names, for packing (``packing``) and unpacking.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import os
import re
import secrets
import shutil
import stat
import unicodedata
from collections.abc import Iterator
from typing import Annotated, NoReturn, Self

import msgspec

from horn.errors import UNREADABLE, ClusterError, JobError, NotAllowed
from horn.security.keys import is_key_text

FORMAT = 1
MAX_FILES = 4096
MAX_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 16
PART_BYTES = 255
PATH_BYTES = 1024
MANIFEST_BYTES = 1024 * 1024  # decoded it is at most some 8 MB
CHUNK_BYTES = 256 * 1024
HEAD_BYTES = 64  # of a file, enough to recognise a key
PARTIAL = ".horn-partial-"  # folders that are being written begin with this
_DRIVE = re.compile(r"[A-Za-z]:")


class BadPackage(NotAllowed):
    """A manifest or its files break a rule. Nothing of the package is kept."""

    def __init__(self, where: str, got: object, expected: object) -> None:
        self.where, self.got, self.expected = where, str(got)[:200], str(expected)
        super().__init__(where, self.got, self.expected)

    def __str__(self) -> str:
        return f"package: {self.where}: got {self.got}, expected {self.expected}"


class PackageFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One regular file. ``path`` is relative, with "/"."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=PATH_BYTES)]
    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
    sha256: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class PackageManifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All files, sorted by path."""

    format: Annotated[int, msgspec.Meta(ge=FORMAT, le=FORMAT)]
    files: Annotated[tuple[PackageFile, ...], msgspec.Meta(max_length=MAX_FILES)]

    @property
    def n_bytes(self) -> int:
        """The size of all files together."""
        return sum(file.size for file in self.files)


_ENCODE = msgspec.msgpack.Encoder()
_DECODE = msgspec.msgpack.Decoder(PackageManifest)


def encode(manifest: PackageManifest) -> bytes:
    """Encode a manifest in its canonical form."""
    check(manifest)
    packed = _ENCODE.encode(manifest)
    if len(packed) > MANIFEST_BYTES:
        raise BadPackage("manifest", f"{len(packed)} bytes", f"at most {MANIFEST_BYTES}")
    return packed


def decode(packed: bytes) -> PackageManifest:
    """Decode and check a manifest. Raises BadPackage."""
    if len(packed) > MANIFEST_BYTES:
        raise BadPackage("manifest", f"{len(packed)} bytes", f"at most {MANIFEST_BYTES}")
    try:
        manifest = _DECODE.decode(packed)
    except UNREADABLE as error:
        raise BadPackage("manifest", str(error) or type(error).__name__, "a manifest") from None
    check(manifest)
    if _ENCODE.encode(manifest) != packed:
        raise BadPackage("manifest", "another form of the same", "its shortest form")
    return manifest


def digest(packed: bytes) -> str:
    """A package's name in submissions: hex SHA-256 of the manifest."""
    return hashlib.sha256(packed).hexdigest()


def check(manifest: PackageManifest) -> None:
    """Check names, order and total size. Raises BadPackage, also for two names that a file system
    or an eye may confuse (letter case, Unicode forms).
    """
    spelled: dict[str, str] = {}  # folded name: name as written, of files and folders
    kinds: dict[str, str] = {}
    folders: set[str] = set()  # names as written, already checked
    last = ""
    for file in manifest.files:
        check_path(file.path)
        if file.path <= last:
            raise BadPackage(f"file {file.path!r}", f"it after {last!r}", "sorted, each once")
        last = file.path
        parts = file.path.split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            kind = "file" if depth == len(parts) else "folder"
            if kind == "folder" and name in folders:
                continue
            folded = unicodedata.normalize("NFKC", name).casefold()
            other = spelled.setdefault(folded, name)
            if other != name or kinds.setdefault(folded, kind) != kind:
                raise BadPackage(f"file {file.path!r}", f"{other!r} beside it", "unlike names")
            if kind == "folder":
                folders.add(name)
    if manifest.n_bytes > MAX_BYTES:
        raise BadPackage("files", f"{manifest.n_bytes} bytes in all", f"at most {MAX_BYTES}")


def check_path(path: str) -> None:
    """Check that a path stays below its folder. Raises BadPackage."""

    def wrong(got: str, expected: str) -> NoReturn:
        raise BadPackage(f"path {path!r}", got, expected)

    try:
        n_bytes = len(path.encode())
    except UnicodeEncodeError:
        wrong(
            "half a character (a surrogate)",
            "a name in UTF-8; rename the file or, if LC_ALL=C misreads it, set LC_ALL=C.UTF-8",
        )
    if not path:
        wrong("an empty path", "a name")
    if n_bytes > PATH_BYTES:
        wrong(f"{n_bytes} bytes", f"at most {PATH_BYTES}")
    if path.startswith("/"):
        wrong("an absolute path", "a relative one")
    if "\\" in path:
        wrong("a backslash", "parts separated by /")
    if _DRIVE.match(path):
        wrong("a drive", "a relative path")
    if not path.isprintable():
        wrong("a control or invisible character", "printable characters")
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        wrong(f"{len(parts)} parts", f"at most {MAX_DEPTH}")
    for part in parts:
        if unicodedata.normalize("NFKC", part).strip(". ") in ("", "/"):
            wrong(f"the part {part!r}", "a name that is not only dots or spaces")
        if len(part.encode()) > PART_BYTES:
            wrong(f"a part of {len(part.encode())} bytes", f"at most {PART_BYTES}")
        if part.startswith(PARTIAL):
            wrong(f"the part {part!r}", "a name that horn does not use itself")


class Unpacker:
    """Writes a package to a new ``folder``, which appears at once, when all is well.

    ``feed`` takes the files' bytes in any portions; leaving without ``finish`` removes everything.
    ``expected`` : the digest in the submission. Raises BadPackage: the manifest, a size or a hash
    is wrong. ClusterError: the disk is full or fails.
    """

    def __init__(
        self, folder: str | os.PathLike[str], packed: bytes, expected: str | None = None
    ) -> None:
        self.folder = os.path.abspath(os.fspath(folder))
        if expected is not None and not hmac.compare_digest(digest(packed), expected):
            raise BadPackage("manifest", f"digest {digest(packed)}", expected)
        self.manifest = decode(packed)
        self.n_left = self.manifest.n_bytes  # bytes that must still come
        self._waiting = iter(self.manifest.files)
        self._file: PackageFile | None = None
        self._fd = -1
        self._hash = hashlib.sha256()
        self._n = 0  # bytes that the open file still lacks
        self._begins = b""  # the first bytes of the open file
        parent, name = os.path.split(self.folder)
        self._parent = -1
        self._root = -1
        self._at, self._at_name = -1, ""  # the folder of the last file: most are beside it
        self._partial = f"{PARTIAL}{name[:100]}-{secrets.token_hex(8)}"
        with self._disk():
            self._parent = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if os.path.lexists(self.folder):
                    raise JobError(f"{self.folder} is there already")
                os.mkdir(self._partial, 0o700, dir_fd=self._parent)
                self._root = _open_folder(self._partial, self._parent)
                self._next()
            except BaseException:
                self.close()
                raise

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes of the files."""
        if self._root < 0:
            raise JobError(f"{self.folder}: the package was given up")
        view = memoryview(data)
        if len(view) > self.n_left:
            self._wrong("files", f"more than {self.manifest.n_bytes} bytes", "no more")
        with self._disk():
            while len(view):
                part, view = view[: self._n], view[self._n :]
                self._hash.update(part)
                if len(self._begins) < HEAD_BYTES:
                    self._begins += bytes(part[: HEAD_BYTES - len(self._begins)])
                self._n -= len(part)
                self.n_left -= len(part)
                while part:
                    part = part[os.write(self._fd, part) :]
                if not self._n:
                    self._end_file()
                    self._next()

    def finish(self) -> str:
        """Give the complete folder its name; returns its path."""
        if self._root < 0:
            raise JobError(f"{self.folder}: the package was given up")
        if self.n_left or self._file is not None:
            self._wrong("files", f"{self.n_left} bytes too few", self.manifest.n_bytes)
        with self._disk():
            try:
                if os.path.lexists(self.folder):
                    raise JobError(f"{self.folder} is there already")
                at, name = self._parent, os.path.basename(self.folder)
                os.rename(self._partial, name, src_dir_fd=at, dst_dir_fd=at)
                self._partial = ""
            finally:
                self.close()
        return self.folder

    def close(self) -> None:
        """Remove the folder unless it is finished. May be called twice."""
        for name in ("_fd", "_at", "_root"):
            fd = getattr(self, name)
            if fd >= 0:
                setattr(self, name, -1)
                os.close(fd)
        if self._parent >= 0:
            if self._partial:
                shutil.rmtree(self._partial, ignore_errors=True, dir_fd=self._parent)
                self._partial = ""
            os.close(self._parent)
            self._parent = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> None:
        """Open the next file that has bytes; files before it are empty."""
        for file in self._waiting:
            self._file, self._n, self._hash = file, file.size, hashlib.sha256()
            self._fd = self._create(file.path)
            if self._n:
                return
            self._end_file()

    def _end_file(self) -> None:
        file, fd = self._file, self._fd
        assert file is not None
        begins, self._begins = self._begins, b""
        if is_key_text(begins):  # horn would have refused to pack it
            self._wrong(f"file {file.path!r}", "the key of a cluster", "what a job may have")
        if not hmac.compare_digest(self._hash.digest(), file.sha256):
            self._wrong(f"file {file.path!r}", "other bytes", "those of its SHA-256")
        self._file, self._fd = None, -1  # not synced: after a crash of the host all is fetched anew
        os.close(fd)

    def _create(self, path: str) -> int:
        """Make a new file below the root; no part of its path is ever followed as a link."""
        folder, _, name = path.rpartition("/")
        if self._at < 0 or folder != self._at_name:
            at = os.dup(self._root)
            for part in folder.split("/") if folder else ():
                try:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=at)
                    inner = _open_folder(part, at)
                finally:
                    os.close(at)
                at = inner
            if self._at >= 0:
                os.close(self._at)
            self._at, self._at_name = at, folder
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._at)

    def _wrong(self, where: str, got: object, expected: object) -> NoReturn:
        self.close()
        raise BadPackage(where, got, expected)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise ClusterError(
                f"{self.folder}: the package cannot be written: {error.strerror}"
            ) from error


def split(
    portions: Iterator[bytes | memoryview], n_manifest: int
) -> tuple[bytes, Iterator[bytes | memoryview]]:
    """Split a package into manifest and bytes of files. Raises BadPackage: it ends before."""
    packed = b""
    while len(packed) < n_manifest:
        portion = next(portions, None)
        if portion is None:
            raise BadPackage("manifest", f"{len(packed)} bytes", f"{n_manifest}, as was said")
        packed += portion
    return packed[:n_manifest], itertools.chain([packed[n_manifest:]], portions)


def sweep(parent: str | os.PathLike[str]) -> list[str]:
    """Remove what killed unpackers left in ``parent``, which nobody else uses; the names."""
    found = sorted(n for n in os.listdir(parent) if n.startswith(PARTIAL))
    for name in found:
        shutil.rmtree(os.path.join(parent, name))
    return found


def read(folder: str | os.PathLike[str], manifest: PackageManifest) -> Iterator[bytes]:
    """Yield an unpacked package for another Unpacker. Raises BadPackage: a file has changed."""
    root = _open_folder(os.fspath(folder), None)
    try:
        for file in manifest.files:
            hashed, n = hashlib.sha256(), 0
            with open(_open_file(file.path, root), "rb", buffering=0) as opened:
                while n < file.size and (data := opened.read(min(CHUNK_BYTES, file.size - n))):
                    hashed.update(data)
                    n += len(data)
                    yield data
            if n != file.size or hashed.digest() != file.sha256:
                raise BadPackage(f"file {file.path!r}", "other bytes", "those of its SHA-256")
    finally:
        os.close(root)


def _open_folder(name: str, at: int | None) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)


def _open_file(path: str, root: int) -> int:
    *folders, name = path.split("/")
    at = os.dup(root)
    try:
        for folder in folders:
            inner = _open_folder(folder, at)
            os.close(at)
            at = inner
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=at)
    except OSError as error:
        raise BadPackage(f"file {path!r}", error.strerror, "the file that was unpacked") from None
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BadPackage(f"file {path!r}", "no regular file", "the file that was unpacked")
    return fd
