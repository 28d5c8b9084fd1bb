"""The files that a job needs, and their package as it is sent.

Either a folder with all that is not ignored (``.hornignore``, else as git has it), or a target and
the modules beside it that it imports, found in their text: nothing is run.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import stat
import string
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from horn import texts
from horn.cluster import package
from horn.cluster.package import (
    CHUNK_BYTES,
    MAX_BYTES,
    MAX_FILES,
    BadPackage,
    PackageFile,
    PackageManifest,
)
from horn.errors import JobError, NotFound
from horn.formats.files import missing
from horn.security.keys import is_key_text
from horn.target import check_given, meant

IGNORED = (".git/", ".hg/", ".svn/", "__pycache__/", "*.pyc", ".venv/", "venv/", "node_modules/",
           ".mypy_cache/", ".ruff_cache/", ".pytest_cache/", ".ipynb_checkpoints/",
           ".hornignore", ".gitignore",
           # usual places of secrets; "!.env" in .hornignore sends it all the same
           ".env", ".env.*", ".netrc", "*.pem", "id_rsa", "id_ed25519",
           ".ssh/", ".aws/")  # fmt: skip
IGNORE_FILES = (".hornignore", ".gitignore")  # where the first is there, it alone counts


@dataclass(frozen=True)
class PackedJob:
    """Packed files. ``target``: below them. ``packed``: the manifest; ``digest``: its name."""

    target: str
    manifest: PackageManifest
    packed: bytes
    digest: str
    contents: tuple[bytes, ...]

    def chunks(self) -> Iterator[memoryview]:
        """The bytes of all files one after another, in portions."""
        for content in self.contents:
            view = memoryview(content)
            for at in range(0, len(view), CHUNK_BYTES):
                yield view[at : at + CHUNK_BYTES]


def stem(target: str) -> str:
    """The name of a target's job and model: file of dir/file.py:name, module of pkg.module:name."""
    place, _, name = target.rpartition(":")
    place = place if place and name.isidentifier() else target
    return Path(place).stem if place.endswith(".py") else place.split(".")[-1]


def pack(target: str, folder: str | os.PathLike[str] | None = None) -> PackedJob:
    """Pack the files of a target (file.py, file.py:job, pkg.mod or pkg.mod:job).

    folder : send all of it; the target's path is from there, else, if there is no such file, from
    the current folder to a file in it. Without one: send the target's file and what it imports from
    beside it (from the current folder, if it is a module).

    Raises
    ------
    NotFound : no such file, module or folder.
    JobError : a file is a link, no regular file or a key, or there is too much.
    """
    check_given(target)
    place, colon, name = _split(target)
    root, start = _start(place, folder)
    if folder is None:
        paths = _imported(root, start)
    else:
        paths = _all_files(root)
        if start.as_posix() not in paths:
            raise JobError(f"{place} is ignored by {Ignored(root).by}, so it would not be sent")
    packed_target = start.as_posix() if place.endswith(".py") else place
    return _package(packed_target + colon + name, root, sorted(paths))


def has_report(target: str, folder: str | os.PathLike[str] | None = None) -> bool:
    """Whether a target's file, which can be packed, defines report(run)."""
    root, start = _start(_split(target)[0], folder)
    tree = texts.parsed((root / start).read_bytes(), str(start))
    return any(isinstance(s, ast.FunctionDef) and s.name == "report" for s in tree.body)


def _split(target: str) -> tuple[str, str, str]:
    """The file or module of a target, a colon and the name of its job, or "" and ""."""
    place, colon, name = target.rpartition(":")
    return (place, colon, name) if colon and name.isidentifier() else (target, "", "")


def _start(place: str, folder: str | os.PathLike[str] | None) -> tuple[Path, Path]:
    """The folder that paths of a package are from, and the target's file relative to it."""
    if folder == "":
        raise JobError('working_dir is "": name a folder, as . for the current one')
    if folder is None:
        return _place(place, Path())
    root = Path(folder).resolve()
    if not root.is_dir():
        raise NotFound(f"{folder}: no such folder")
    at, start = _place(place, Path() if _is_from_here(place, root) else root)
    if not (at / start).is_relative_to(root):
        raise JobError(f"{place} is not in {folder}, which is what is sent")
    return root, (at / start).relative_to(root)


def _place(place: str, root: Path) -> tuple[Path, Path]:
    """The folder where imports begin, and the target's file relative to it."""
    if place.endswith(".py"):
        path = root / place
        if not os.path.isfile(path):  # False too of a name that is too long
            raise missing(path)
        return path.parent.resolve(), Path(path.name)
    for found in _module_files(root, place.split(".")):
        return root.resolve(), found
    where = root if root.parts else "the current folder"
    raise NotFound(f"{place}: no such file or module in {where}; {meant(place)}")


def _is_from_here(place: str, root: Path) -> bool:
    """Whether a path is from the current folder, and not from ``root``, which goes first: there is
    such a file, or at least a folder within ``root`` for it.
    """
    if not place.endswith(".py") or os.path.isfile(root / place):
        return False
    folder = Path(place).parent.resolve()
    return os.path.isfile(place) or (folder.is_dir() and folder.is_relative_to(root))


def _module_files(root: Path, parts: list[str]) -> list[Path]:
    """The file of a module below ``root``; none if it is not there."""
    if not all(part.isidentifier() for part in parts):
        return []
    stem = Path(*parts)
    for found in (stem / "__init__.py", stem.with_suffix(".py")):
        if (root / found).is_file():
            return [found]
    return []


def _imported(root: Path, start: Path) -> set[str]:
    """``start`` and all files below ``root`` that it needs, by the imports in their text."""
    found: set[str] = set()
    waiting = [start]
    for folder in start.parents:  # the packages around it run first
        waiting += [folder / "__init__.py"] if (root / folder / "__init__.py").is_file() else []
    while waiting:
        path = waiting.pop()
        if path.as_posix() in found:
            continue
        found.add(path.as_posix())
        if len(found) > MAX_FILES:
            raise BadPackage("files", f"more than {MAX_FILES}", f"at most {MAX_FILES}")
        for parts in _imports(root / path, path):
            for depth in range(1, len(parts) + 1):
                waiting += _module_files(root, parts[:depth])
    return found


def _imports(file: Path, path: Path) -> Iterator[list[str]]:
    try:
        tree = texts.parsed(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        raise JobError(f"{file}: {error}") from None
    here = list(path.parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level > len(here) + 1:
                continue  # it fails when it runs, and says so
            above = here[: len(here) - node.level + 1] if node.level else []
            base = above + (node.module.split(".") if node.module else [])
            if base:
                yield base
            yield from ([*base, alias.name] for alias in node.names if alias.name != "*")


def _all_files(root: Path) -> set[str]:
    ignored = Ignored(root)
    found: set[str] = set()
    for at, folders, files in os.walk(root, onerror=_unreadable):
        relative = Path(at).relative_to(root)
        kept = []
        for name in sorted(folders):
            path = (relative / name).as_posix()
            if ignored.has(path, is_folder=True):
                continue
            if os.path.islink(os.path.join(at, name)):
                raise _no_link(path, root)
            kept.append(name)
        folders[:] = kept
        for name in files:
            path = (relative / name).as_posix()
            if not ignored.has(path, is_folder=False):
                found.add(path)
        if len(found) > MAX_FILES:
            raise JobError(
                f"{root} has more than {MAX_FILES} files; name in .hornignore what the job does "
                f"not need"
            )
    return found


def _unreadable(error: OSError) -> None:
    raise JobError(f"{error.filename} cannot be read: {error.strerror}; name it in .hornignore")


def _package(target: str, root: Path, paths: list[str]) -> PackedJob:
    files, contents, total = [], [], 0
    for path in paths:
        content = _content(root, path, MAX_BYTES - total)
        total += len(content)
        files.append(PackageFile(path, len(content), hashlib.sha256(content).digest()))
        contents.append(content)
    manifest = PackageManifest(package.FORMAT, tuple(files))
    try:
        packed = package.encode(manifest)
    except BadPackage as error:
        raise JobError(f"{root}: {error}; what .hornignore names is not sent") from None
    return PackedJob(target, manifest, packed, package.digest(packed), tuple(contents))


def _content(root: Path, path: str, room: int) -> bytes:
    try:
        fd = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if (root / path).is_symlink():
            raise _no_link(path, root) from None
        if not (root / path).is_file():
            raise _no_file(path, root) from None
        raise JobError(
            f"{root / path} cannot be read: {error.strerror}; if the job does not need it, name it "
            f"in .hornignore"
        ) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _no_file(path, root)
    with os.fdopen(fd, "rb") as file:
        content = file.read(room + 1)
    if len(content) > room:
        raise JobError(
            f"{root}: more than {MAX_BYTES >> 20} MiB of files; name in .hornignore what the job "
            f"does not need, and let it read data from a folder that all hosts share"
        )
    if is_key_text(content):
        raise JobError(f"{root / path} is the key of a cluster, which no job may have; move it")
    return content


def _no_file(path: str, root: Path) -> JobError:
    return JobError(f"{root / path} is no regular file; name it in .hornignore")


def _no_link(path: str, root: Path) -> JobError:
    return JobError(
        f"{root / path} is a link, and links are not sent; put what it names in its place, or name "
        f"it in .hornignore"
    )


class Ignored:
    """What is ignored in a folder that is sent, as git has it: by the ``.gitignore`` of each of
    its folders and of those above it, up to the repository's; or, where the folder has one, by
    ``.hornignore`` instead. The deepest file with a match counts. The folder itself is never
    ignored, as it was named.
    """

    def __init__(self, root: Path) -> None:
        self.name, self.top = IGNORE_FILES[0], root
        if not (root / self.name).is_file():
            self.name = IGNORE_FILES[1]
            above = (folder for folder in (root, *root.parents) if (folder / ".git").exists())
            self.top = next(above, root)
        self._from_top = "".join(f"{name}/" for name in root.relative_to(self.top).parts)
        self._own = IgnoreFile(IGNORED)
        self._files: dict[str, IgnoreFile] = {}

    def has(self, path: str, *, is_folder: bool) -> bool:
        """Whether a path is ignored; the folders above it are not."""
        whole = self._from_top + path
        at = len(whole)
        while at:
            at = whole.rfind("/", 0, at - 1) + 1
            verdict = self._file(whole[:at]).verdict(whole[at:], is_folder=is_folder)
            if verdict is not None:
                return verdict
        return self._own.has(path, is_folder=is_folder)

    @property
    def by(self) -> str:
        """The name of the files that count, or of what counts without them."""
        return (
            self.name
            if self._file(self._from_top).rules or self._file("").rules
            else "horn's own list"
        )

    def _file(self, folder: str) -> IgnoreFile:
        if folder not in self._files:
            file, found = self.top / folder / self.name, b""
            try:
                found = file.read_bytes() if file.is_file() else b""
            except OSError as error:
                _unreadable(error)
            lines = found.removeprefix(BOM_UTF8).split(b"\n")
            self._files[folder] = IgnoreFile([line.removesuffix(b"\r") for line in lines])
        return self._files[folder]


class IgnoreFile:
    """Patterns of an ignore file, as git reads them: the last match counts."""

    def __init__(self, patterns: Iterable[str | bytes]) -> None:
        self.rules = [rule for rule in map(_rule, patterns) if rule is not None]

    def verdict(self, path: str, *, is_folder: bool) -> bool | None:
        """Whether a path is ignored; None if no pattern says so."""
        name = os.fsencode(path)
        for pattern, for_folders, wanted in reversed(self.rules):
            if (is_folder or not for_folders) and pattern.fullmatch(name):
                return wanted
        return None

    def has(self, path: str, *, is_folder: bool) -> bool:
        return bool(self.verdict(path, is_folder=is_folder))


def _rule(line: str | bytes) -> tuple[re.Pattern[bytes], bool, bool] | None:
    """Read a line as (pattern of the whole path, for folders only, ignored); None for a comment,
    and for what no path matches.
    """
    text = os.fsencode(line)
    bare = text.rstrip(b" ")
    is_escaped = (len(bare) - len(bare.rstrip(b"\\"))) % 2 == 1
    text = text[: len(bare) + is_escaped]  # with the space that is escaped
    if not text or text.startswith(b"#"):
        return None
    wanted = not text.startswith(b"!")
    text = text.removeprefix(b"!")
    for_folders = text.endswith(b"/")
    text = text.removesuffix(b"/")
    begins = b"(?:.*/)?"
    if b"/" in text:
        text = text.removeprefix(b"/")
        # git compares what is before the first wildcard by itself: in a/b**/c the stars begin it.
        plain = re.match(rb"[^*?\[\\]*", text)
        assert plain is not None
        begins, text = re.escape(plain[0]), text[plain.end() :]
    found = _regex(text)
    return None if found is None else (re.compile(begins + found, re.DOTALL), for_folders, wanted)


# Between slashes "**" is any folders, or none; at the end of a path all that is in one.
_TOKENS = re.compile(
    rb"""(?P<folders> (?:\A|(?<=/)) \*{2,}/ )
    | (?P<all> (?:\A|(?<=/)) \*{2,} (?: \Z | (?=\\/)) )
    | (?P<stars> \*+ )
    | (?P<one> \? )
    | (?P<set> \[ )
    | \\?(?P<literal> . )""",
    re.DOTALL | re.VERBOSE,
)
_WILD = {"folders": b"(?:.*/)?", "all": b".*", "stars": b"[^/]*", "one": b"[^/]"}


def _regex(text: bytes) -> bytes | None:
    """A pattern of git (wildmatch.c) as a regular expression; None if nothing matches it."""
    out, at = b"", 0
    while at < len(text):
        token = _TOKENS.match(text, at)
        assert token is not None and token.lastgroup is not None
        at = token.end()
        if token.lastgroup == "set":
            if (found := _set(text, at)) is None:
                return None
            chosen, at = found
            codes = b"".join(b"\\x%02x" % code for code in sorted(chosen - {ord("/")}))
            out += b"[%b]" % codes if codes else b"(?!)"
        elif token.lastgroup == "literal":
            if token[0] == b"\\":  # and nothing behind it
                return None
            out += re.escape(token["literal"])
        else:
            out += _WILD[token.lastgroup]
    return out


_ITEM = re.compile(
    rb"\[:(?P<kind>[^\]]*):\]|\\?(?P<first>.)(?:-(?!\]|\Z)\\?(?P<last>.))?", re.DOTALL
)


def _set(text: bytes, at: int) -> tuple[frozenset[int], int] | None:
    """The bytes of a set, [a-z[:digit:]], read from behind its first bracket, and where it ends;
    None if it does not, or names an unknown kind.
    """
    is_negated = text[at : at + 1] in (b"!", b"^")
    begins = at = at + is_negated
    found = set[int]()
    while item := _ITEM.match(text, at):
        if item[0].startswith(b"]") and at > begins:
            chosen = frozenset(range(256)) - found if is_negated else frozenset(found)
            return chosen, at + 1
        at = item.end()
        if item["kind"] is None:
            first = item["first"][0]
            found |= {first, *range(first, (item["last"] or b"\0")[0] + 1)}
        elif item["kind"] in _KINDS:
            found |= _KINDS[item["kind"]]
        else:
            return None
    return None


def _ascii(characters: str) -> frozenset[int]:
    return frozenset(characters.encode())


_KINDS = {
    b"alnum": _ascii(string.ascii_letters + string.digits), b"alpha": _ascii(string.ascii_letters),
    b"blank": _ascii(" \t"), b"cntrl": frozenset((*range(32), 127)),
    b"digit": _ascii(string.digits), b"graph": frozenset(range(33, 127)),
    b"lower": _ascii(string.ascii_lowercase), b"print": frozenset(range(32, 127)),
    b"punct": _ascii(string.punctuation), b"space": _ascii(" \t\n\r"),
    b"upper": _ascii(string.ascii_uppercase), b"xdigit": _ascii(string.hexdigits),
}  # fmt: skip
