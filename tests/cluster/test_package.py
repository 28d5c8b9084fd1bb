"""A job's files: what goes comes, and whatever else comes leaves nothing. Experiment 34."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tracemalloc
from pathlib import Path

import msgspec
import numpy as np
import pytest

import horn
from horn import quantities
from horn.cluster import handles, package, packing
from horn.cluster.package import (
    CHUNK_BYTES,
    FORMAT,
    MANIFEST_BYTES,
    MAX_BYTES,
    MAX_FILES,
    BadPackage,
    PackageFile,
    PackageManifest,
    Unpacker,
)
from horn.errors import ClusterError, JobError, NotFound
from horn.security.keys import generate
from horn.strategies.allreduce import AllReduce
from horn.target import load


def sha(content):
    return hashlib.sha256(content).digest()


def manifest_of(files):
    """The raw manifest of (path, content), however wrong."""
    return raw([(path, len(content), sha(content)) for path, content in files])


def raw(entries, form=FORMAT):
    return msgspec.msgpack.encode([form, [list(entry) for entry in entries]])


def everything(folder):
    """All names below, with what they hold, links not followed."""
    found = {}
    for at, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(at, name)
            is_file = stat.S_ISREG(os.lstat(path).st_mode)
            found[os.path.relpath(path, folder)] = Path(path).read_bytes() if is_file else None
    return found


def open_below(folder):
    """The files and folders in there that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # another thread has closed it
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [path for path in found if path.startswith(f"{folder}/")]


def n_calls(function):
    """How many functions it calls: what it takes, whatever else the machine does."""
    found = 0

    def count(frame, event, arg):
        nonlocal found
        found += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


def unpack(folder, packed, *portions, expected=None):
    with Unpacker(folder, packed, expected) as unpacker:
        for portion in portions:
            unpacker.feed(portion)
        return unpacker.finish()


@pytest.fixture
def source(tmp_path):
    """A folder with a job and what it imports."""
    at = tmp_path / "source"
    for path, text in {
        "job.py": "import numpy, helper\nfrom pkg.inner import deep\ndef job(): ...\n",
        "helper.py": "import os.path\n",
        "pkg/__init__.py": "",
        "pkg/inner/__init__.py": "from . import deep\nfrom .. import other\n",
        "pkg/inner/deep.py": "x = 1\n",
        "pkg/other.py": "from .inner import *\n",
        "pkg/unused.py": "",
        "data/rows.csv": "1,2\n" * 1000,
        "__pycache__/job.pyc": "x",
        ".git/config": "x",
        "runs/1/log": "x",
    }.items():
        (at / path).parent.mkdir(parents=True, exist_ok=True)
        (at / path).write_text(text)
    return at


NEEDED = ["helper.py", "job.py", "pkg/__init__.py", "pkg/inner/__init__.py", "pkg/inner/deep.py",
          "pkg/other.py"]  # fmt: skip


# packing


def test_a_target_is_sent_with_what_it_imports_from_beside_it(source, monkeypatch):
    packed = packing.pack(f"{source}/job.py:job")
    assert packed.target == "job.py:job" and [f.path for f in packed.manifest.files] == NEEDED
    monkeypatch.chdir(source)
    packed = packing.pack("pkg.inner.deep:make")
    assert packed.target == "pkg.inner.deep:make"
    assert [f.path for f in packed.manifest.files] == NEEDED[2:]


@pytest.mark.parametrize(
    "target, said",
    [
        ("jop.py", r"jop\.py: no such file in {0}; did you mean {0}/job\.py\?"),
        ("pgk/job.py", r"job\.py: no such file, since there is no folder {0}/pgk"),
        ("x" * 300 + ".py", r"x\.py: no such file in {0}"),
    ],
)
def test_a_target_that_is_not_there_is_told_where_it_was_looked_for(source, target, said):
    """Only that it is not there was said, and a name that is too long gave a traceback."""
    with pytest.raises(NotFound, match=said.format(source)):
        packing.pack(f"{source}/{target}")
    with pytest.raises(NotFound, match=said.format(source)):
        load(f"{source}/{target}")


def test_a_folder_is_sent_but_what_is_ignored(source):
    (source / ".gitignore").write_text("*.csv\n")
    (source / ".hornignore").write_text("# mine\nruns/\npkg/*\n!pkg/unused.py\n/helper.p?\n")
    packed = packing.pack("job.py:job", source)
    assert [f.path for f in packed.manifest.files] == ["data/rows.csv", "job.py", "pkg/unused.py"]
    (source / ".hornignore").unlink()
    assert "data/rows.csv" not in [f.path for f in packing.pack("job", source).manifest.files]
    (source / ".hornignore").write_text("**/job.py\n")
    with pytest.raises(
        JobError, match=r"job.py is ignored by .hornignore, so it would not be sent"
    ):
        packing.pack("job.py", source)


def test_a_target_in_the_folder_that_is_sent_is_named_from_there_or_from_here(source, monkeypatch):
    monkeypatch.chdir(source.parent)
    name = source.name
    for target in ("job.py:job", f"{name}/job.py:job", f"{source}/job.py:job"):
        assert packing.pack(target, name).target == "job.py:job"
    assert packing.pack("pkg.inner.deep", name).target == "pkg.inner.deep"
    (source / name).mkdir()
    (source / name / "job.py").write_text("")  # from the folder goes first
    assert packing.pack(f"{name}/job.py", name).target == f"{name}/job.py"
    monkeypatch.chdir(source / "pkg")
    assert packing.pack("../job.py", "..").target == "job.py"
    with pytest.raises(JobError, match=r"^\.\./job\.py is not in \., which is what is sent"):
        packing.pack("../job.py", ".")


@pytest.mark.parametrize("target, place", [("{0}/jop.py", "{0}"), ("jop.py", ".*/{0}")])
def test_a_target_that_is_not_in_the_folder_is_told_where_it_was_looked_for(
    source, monkeypatch, target, place
):
    """It was said that there is no folder wd/wd."""
    monkeypatch.chdir(source.parent)
    place = place.format(source.name)
    said = rf"^{place}/jop\.py: no such file in {source}; did you mean {place}/job\.py\?"
    with pytest.raises(NotFound, match=said):
        packing.pack(target.format(source.name), source.name)


def test_files_that_hold_secrets_are_not_sent_unless_it_is_said(source):
    for name in (".env", ".env.local", "pkg/.env", "server.pem", ".ssh/config"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("PASSWORD=x\n")
    sent = {f.path for f in packing.pack("job.py", source).manifest.files}
    assert not sent & {".env", ".env.local", "pkg/.env", "server.pem", ".ssh/config"}
    (source / ".hornignore").write_text("!.env\n")
    sent = {f.path for f in packing.pack("job.py", source).manifest.files}
    assert {".env", "pkg/.env"} <= sent and ".env.local" not in sent


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.log", ["a.log", "b/a.log"], ["a.logs"]),
        ("/a", ["a"], ["b/a"]),
        ("a/b", ["a/b"], ["c/a/b"]),
        ("**/a", ["a", "b/c/a"], ["ab"]),
        ("a/**", ["a/b", "a/b/c"], ["a"]),
        ("a/**/b", ["a/b", "a/c/d/b"], ["ab"]),
        ("[ab]?.py", ["ax.py", "c/bx.py"], ["cx.py", "a/.py"]),
        ("[!a].py", ["b.py"], ["a.py"]),
        ("a.b+c(", ["a.b+c("], ["aXb+c("]),
        ("\\#a", ["#a"], ["a"]),
    ],
)
def test_patterns_are_those_of_git(pattern, yes, no):
    ignored = packing.IgnoreFile((pattern,))
    assert all(ignored.has(path, is_folder=False) for path in yes)
    assert not any(ignored.has(path, is_folder=False) for path in no)
    assert not packing.IgnoreFile((f"{pattern}/",)).has(yes[0], is_folder=False)


def ignored_by_git(folder, paths):
    """The paths of those that git ignores in a repository; all need not be there."""
    asked = b"\0".join(os.fsencode(path) for path in paths)
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    found = subprocess.run(
        ["git", "-C", folder, "check-ignore", "--no-index", "-z", "--stdin"],
        input=asked, stdout=subprocess.PIPE, env=environment, check=False,
    )  # fmt: skip
    assert found.returncode in (0, 1)
    return {os.fsdecode(path) for path in found.stdout.split(b"\0") if path}


def is_ignored(ignored, path):
    *folders, name = path.split("/")
    above = ["/".join(folders[: k + 1]) for k in range(len(folders))]
    return any(ignored.has(at, is_folder=True) for at in above) or ignored.has(
        "/".join([*folders, name]), is_folder=False
    )


@pytest.fixture
def repository(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


ODD_PATTERNS = [
    "a\\*b", "s\\[1\\].txt", "a\\?", "foo/", "**/x", "a/**", "[!a]x", "[^a]x", "[]a]x", "[]-a]x",
    "*.tx[tz]", "\\!i", "a**b", "x/**/y", "[[:alpha:]]1", "[[:alpha:]1", "[[:alph:]]1", "[[:]]1",
    "t\\ ", "t\\   ", "t  ", "[a-]", "a[/]b", "[a\\]b]q", "[a-[:digit:]]", "**", "d*/f", "/", "!",
    "a\\", "a/x**/b", "a/x**", "a/*x**/b", "a?/**b", "**\\/b", "a/***/b", "[", "[a", "a//", "//a",
    "é", "?",
]  # fmt: skip
ODD_PATHS = [
    "axb", "a*b", "s[1].txt", "s1.txt", "ab", "a?", "foo", "foo/c", "x", "a/x", "a/b", "bx", "ax",
    "]x", "^x", "a.txz", "d/a.txt", "!i", "axxb", "x/y", "x/q/y", "a1", ":1", "[1", ":]1", "t ",
    "t", "-", "a", "]q", "aq", "z", "d/e/f", "dd/f", "a\\", "a/xc/b", "a/xb", "a/xc/d/b", "a/x/b",
    "a/xc", "a/b/b", "ac/d/b", "b", "[", "[a", "é", "a/é", "a\nb", "5]",
]  # fmt: skip


def test_what_git_ignores_is_not_sent(repository):
    """Some odd patterns were read otherwise, and what a folder below ignores was sent."""
    random_ = random.Random(7)
    words = ["a", "b", "*", "**", "?", "/", "/", "[ab]", "[!a]", "\\*", "!", "[a-b", "]", "\\", " "]
    files = [[pattern] for pattern in ODD_PATTERNS]
    files += [
        ["".join(random_.choices(words, k=random_.randint(1, 6))) for _ in range(n)]
        for n in (1, 2, 3) for _ in range(40)
    ]  # fmt: skip
    parts = ["a", "b", "ab", "ba", "*", "a]", "aab"]
    paths = [*ODD_PATHS]
    paths += ["/".join(random_.choices(parts, k=random_.randint(1, 4))) for _ in range(20)]
    for k, lines in enumerate(files):
        (repository / f"f{k}").mkdir()
        (repository / f"f{k}/.gitignore").write_bytes("\n".join(lines).encode())
    asked = [f"f{k}/{path}" for k in range(len(files)) for path in paths]
    ignored, theirs = packing.Ignored(repository), ignored_by_git(repository, asked)
    ours = {path for path in asked if is_ignored(ignored, path)}
    other = sorted(ours ^ theirs)
    assert not [(files[int(p[1 : p.index("/")])], p, p in theirs) for p in other][:9]
    assert len(theirs) > 500


def test_a_folder_of_a_repository_is_sent_without_what_git_ignores_there(repository):
    (repository / ".gitignore").write_text("*.csv\nkeep.txt\nsent/\n/only.py\n")
    sent = repository / "sent"  # named, so that it is not ignored itself
    (sent / "deep").mkdir(parents=True)
    (sent / "deep/.gitignore").write_text("token.json\r\n!keep.txt\r\n")
    names = ["job.py", "only.py", "a.csv", "token.json", "keep.txt"]
    for path in [*names, *(f"deep/{name}" for name in names)]:
        (sent / path).write_text("x")
    expected = {"job.py", "only.py", "token.json"} | {
        f"deep/{name}" for name in ("job.py", "only.py", "keep.txt")
    }
    assert {file.path for file in packing.pack("job.py", sent).manifest.files} == expected
    (sent / ".hornignore").write_text("*.py\n!job.py\n")  # it alone counts then
    found = {file.path for file in packing.pack("job.py", sent).manifest.files}
    assert found == {f"{at}{name}" for at in ("", "deep/") for name in names if name != "only.py"}


@pytest.mark.parametrize("names", [(b"caf\xe9",), (b"a\nb",), (b"Readme", b"README")])
def test_a_folder_with_a_name_that_cannot_travel_says_what_to_do(source, names):
    """The command ended with the code of a cluster that cannot be reached."""
    for name in names:
        with open(os.fsencode(source) + b"/" + name, "w"):
            pass
    with pytest.raises(JobError, match=r"expected .*; what .hornignore names is not sent") as told:
        packing.pack("job.py", source)
    assert str(source) in str(told.value) and told.value.exit_code == 2


def test_an_empty_text_names_no_target_and_no_folder(source):
    """As of a variable of the shell that is not set: the current folder was sent."""
    with pytest.raises(JobError, match='TARGET is "": write file.py, or package.module'):
        packing.pack("")
    with pytest.raises(JobError, match='working_dir is "": name a folder, as . for the current'):
        packing.pack("job.py", "")


@pytest.mark.parametrize("most, total", [(40_000, r"42\.0 kB"), (45_000, r"\d+\.\d kB")])
def test_a_job_with_too_much_in_memory_names_its_arrays(monkeypatch, most, total):
    """It was told to name files of its temporary folder in .hornignore. most : bytes; with the
    larger one the data alone are few enough.
    """
    monkeypatch.setattr(handles, "MAX_BYTES", most)
    net = horn.Network(seed=1)
    net.input(100)
    net.output(10, activation="softmax", loss="cross_entropy")
    x = np.zeros((100, 100), np.float32)
    job = horn.Job(net, (x, np.arange(100) % 10), test=(x[:3], np.arange(3)))
    with pytest.raises(JobError) as told:
        handles._packed(job, AllReduce(), None)
    said = str(told.value)
    assert re.match(f"this job is {total}, and at most 0 MiB are sent: ", said)
    for name, array in (("x of data", job.data.x), ("y of test", job.test.y)):
        assert f"{name} ({array.dtype}) {quantities.size(array.nbytes)}, " in said
    assert "the weights 4.0 kB. Give pictures as bytes: uint8" in said and ".hornignore" not in said


def test_what_is_no_file_of_ones_own_is_not_sent(source):
    (source / "link.py").symlink_to("/etc/passwd")
    with pytest.raises(JobError, match="link.py is a link, and links are not sent"):
        packing.pack("job.py", source)
    (source / "link.py").unlink()
    (source / "folder").symlink_to("/etc")
    with pytest.raises(JobError, match="folder is a link"):
        packing.pack("job.py", source)
    (source / "folder").unlink()
    os.mkfifo(source / "pipe")
    with pytest.raises(JobError, match="no regular file; name it in .hornignore"):
        packing.pack("job.py", source)
    (source / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(source):
        made.bind("pipe")  # a whole path may be too long for a socket
    with pytest.raises(JobError, match="pipe is no regular file; name it in .hornignore"):
        packing.pack("job.py", source)
    (source / "pipe").unlink()
    generate(source / "mykey")
    with pytest.raises(JobError, match="mykey is the key of a cluster, which no job may have"):
        packing.pack("job.py", source)
    (source / "mykey").unlink()
    with open(source / "big.bin", "wb") as file:
        file.truncate(MAX_BYTES)
    with pytest.raises(JobError, match="more than 64 MiB of files; name in .hornignore"):
        packing.pack("job.py", source)
    with pytest.raises(NotFound, match="no such file"):
        packing.pack("nothing.py", source)
    (source / "elsewhere.py").write_text("")
    with pytest.raises(JobError, match="is not in"):
        packing.pack("../elsewhere.py", source / "pkg")


# what goes comes


@pytest.mark.parametrize("portion", [1, 7, 100_000, 1 << 30])
def test_what_is_packed_is_what_is_unpacked(source, tmp_path, portion):
    (source / "empty").write_text("")
    packed = packing.pack("job.py:job", source)
    whole = b"".join(packed.chunks())
    portions = [whole[at : at + portion] for at in range(0, len(whole), portion)]
    to = tmp_path / "to" / "work"
    to.parent.mkdir()
    assert unpack(to, packed.packed, *portions, expected=packed.digest) == str(to)
    for file in packed.manifest.files:
        path = to / file.path
        assert path.read_bytes() == (source / file.path).read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(to.stat().st_mode) == 0o700 == stat.S_IMODE((to / "pkg").stat().st_mode)
    assert os.listdir(to.parent) == ["work"]
    assert b"".join(package.read(to, packed.manifest)) == whole
    (to / "job.py").write_text("changed")
    with pytest.raises(BadPackage, match=r"file 'job.py': got other bytes"):
        list(package.read(to, packed.manifest))


def test_the_manifest_is_one_form_and_its_digest_says_which(source):
    packed = packing.pack("job.py:job", source)
    assert packed.packed == package.encode(packed.manifest)
    assert package.decode(packed.packed) == packed.manifest
    assert packed.digest == hashlib.sha256(packed.packed).hexdigest()
    assert packing.pack("job.py:job", source).digest == packed.digest


def test_nothing_at_all_is_a_package_too(tmp_path):
    assert os.listdir(unpack(tmp_path / "work", raw([]))) == []


# what else comes: experiment 34

A, B = b"content of a", b"content of b"
GOOD = [("a.py", A), ("b/c.py", B)]
PATHS = {
    "parent": "../out", "parent inside": "a/../../out", "parent at the end": "a/..",
    "absolute": "/tmp/out", "double slash": "//out", "empty": "", "only slash": "/",
    "dot": ".", "dot inside": "a/./b", "dots": "...", "empty part": "a//b", "end": "a/",
    "backslash": "..\\out", "backslash inside": "a\\b", "drive": "C:/out", "its folder": "C:out",
    "NUL": "a\0b", "newline": "a\nb", "escape": "a\x1b[2Jb", "DEL": "a\x7f",
    "right to left": "a\u202eyp.exe", "zero width": "a\u200bb", "BOM": "\ufeffa",
    "line": "a\u2028b",
    "part of 256 bytes": "a" * 256, "part of 256 bytes in UTF-8": "ä" * 128,
    "path of 1,025 bytes": "/".join(["a" * 120] * 9)[:1025], "depth 17": "/".join("a" * 17),
    "depth 500": "/".join("a" * 500), "space": " ", "dots and space": ". .",
    "fullwidth dots": "\uff0e\uff0e/out", "one dot leader": "\u2024\u2024/out",
    "two dot leader": "\u2025/out", "horn's own": ".horn-partial-x/a",
}  # fmt: skip
MANIFESTS = {
    "twice": raw([("a", 1, sha(b"1")), ("a", 1, sha(b"1"))]),
    "unsorted": raw([("b", 1, sha(b"1")), ("a", 1, sha(b"1"))]),
    "letter case": raw([("A.py", 1, sha(b"1")), ("a.py", 1, sha(b"1"))]),
    "folders' case": raw([("A/x", 1, sha(b"1")), ("a/y", 1, sha(b"1"))]),
    "sharp s": raw([("strasse", 1, sha(b"1")), ("straße", 1, sha(b"1"))]),
    "NFC and NFD": raw([("cafe\u0301", 1, sha(b"1")), ("caf\u00e9", 1, sha(b"1"))]),
    "fullwidth": raw([("a", 1, sha(b"1")), ("\uff41", 1, sha(b"1"))]),
    "kelvin": raw([("k", 1, sha(b"1")), ("\u212a", 1, sha(b"1"))]),
    "file and folder": raw([("a", 1, sha(b"1")), ("a/b", 1, sha(b"1"))]),
    "file and folder by case": raw([("A", 1, sha(b"1")), ("a/b", 1, sha(b"1"))]),
    "10^5 files": raw([(f"f{n:06}", 0, sha(b"")) for n in range(100_000)]),
    "4,097 files": raw([(f"f{n:06}", 0, sha(b"")) for n in range(MAX_FILES + 1)]),
    "1 GB": raw([("a", 1 << 30, sha(b""))]),
    "2^63": raw([("a", 1 << 63, sha(b""))]),
    "64 MiB and a byte": raw([("a", MAX_BYTES, sha(b"")), ("b", 1, sha(b""))]),
    "negative": raw([("a", -1, sha(b""))]),
    "size as float": raw([("a", 1.0, sha(b"1"))]),
    "size as text": raw([("a", "1", sha(b"1"))]),
    "short hash": raw([("a", 1, sha(b"1")[:31])]),
    "hash as text": raw([("a", 1, "0" * 32)]),
    "path as bytes": raw([(b"a", 1, sha(b"1"))]),
    "a mode": raw([("a", 1, sha(b"1"), 0o4755)]),
    "a link's target": raw([("a", 1, sha(b"1"), "/etc/passwd")]),
    "too short": msgspec.msgpack.encode([FORMAT]),
    "other format": raw([], 2),
    "a map": msgspec.msgpack.encode({"format": 1, "files": []}),
    "empty": b"",
    "nothing": b"\xc0",
    "bomb": b"\x92\x01" + b"\x90" * (MANIFEST_BYTES - 2),
    "4 G entries": b"\x92\x01\xdd\xff\xff\xff\xff",
    "nested": b"\x91" * 500_000,
    "ext": b"\x92\x01\xc7\x05\x01hello",
    "half a character": b"\x92\x01\x91\x93\xa3\xed\xa0\x80\x01\xc4\x20" + sha(b"1"),
    "bad UTF-8": b"\x92\x01\x91\x93\xa2\xff\xfe\x01\xc4\x20" + sha(b"1"),
    "more behind": raw([]) + b"\x00",
    "longer form": raw([("a", 1, sha(b"1"))]).replace(b"\xa1a", b"\xd9\x01a"),
    "too long": b"\x92\x01\xc6\x7f\xff\xff\xff" + bytes(MANIFEST_BYTES),
}
STREAMS = {
    "other bytes": (A, B[::-1]),
    "swapped": (B, A),
    "one bit": (A, bytes([B[0] ^ 1]) + B[1:]),
    "a byte less": (A, B[:-1]),
    "nothing": (),
    "only the first": (A,),
    "a byte more": (A, B, b"x"),
    "much more": (A + B + bytes(10_000_000),),
}
HOSTILE = {
    **{f"path: {name}": manifest_of([(path, A)]) for name, path in PATHS.items()},
    **{f"manifest: {name}": packed for name, packed in MANIFESTS.items()},
}


@pytest.fixture
def nest(tmp_path):
    """A folder to unpack in, with neighbours that nothing may touch."""
    (tmp_path / "outside").write_text("outside")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "other").mkdir()
    before = everything(tmp_path)
    yield tmp_path / "jobs" / "work"
    assert everything(tmp_path) == before, "a file outside, or a part of a job, is left"
    assert open_below(tmp_path) == []


def test_there_are_enough_of_them():
    assert len(HOSTILE) + len(STREAMS) >= 60


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_refused_before_anything_is_written(nest, name, monkeypatch):
    def written(*_, **__):
        raise AssertionError("something was written")

    def refused():
        with pytest.raises(BadPackage):
            Unpacker(nest, HOSTILE[name])

    monkeypatch.setattr(os, "mkdir", written)
    tracemalloc.start()
    try:
        refused()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert n_calls(refused) < 1000 and peak < 8 << 20


@pytest.mark.parametrize("name", STREAMS)
def test_hostile_bytes_leave_nothing(nest, name):
    with pytest.raises(BadPackage):
        unpack(nest, manifest_of(GOOD), *STREAMS[name])


def test_another_manifest_than_the_submission_names_is_refused(nest):
    with pytest.raises(BadPackage, match="manifest: got digest"):
        unpack(nest, manifest_of(GOOD), A, B, expected="0" * 64)


@pytest.mark.parametrize("portion", [1, 7, 1000])
def test_a_forged_package_leaves_no_key_file(nest, tmp_path, portion):
    """``pack`` refuses one; whoever speaks the protocol himself must not be able to store it."""
    generate(tmp_path / "cluster.key")
    key = (tmp_path / "cluster.key").read_bytes()
    (tmp_path / "cluster.key").unlink()
    manifest = manifest_of([("a.py", A), ("b", key)])
    with pytest.raises(BadPackage, match="'b': got the key of a cluster"):
        with Unpacker(nest, manifest) as unpacker:
            whole = A + key
            for at in range(0, len(whole), portion):
                unpacker.feed(whole[at : at + portion])
            unpacker.finish()
    assert not nest.exists()


def test_leaving_early_and_errors_leave_nothing(nest):
    with Unpacker(nest, manifest_of(GOOD)) as unpacker:
        unpacker.feed(A[:3])
        assert len(os.listdir(nest.parent)) == 2
    with pytest.raises(KeyboardInterrupt), Unpacker(nest, manifest_of(GOOD)) as unpacker:
        unpacker.feed(A)
        raise KeyboardInterrupt
    with pytest.raises(JobError, match="was given up"):
        unpacker.feed(b"x")
    with pytest.raises(JobError, match="was given up"):
        unpacker.finish()


def test_what_is_there_is_not_touched(nest, tmp_path):
    for there in ("other", "link", "dangling"):
        path = nest.parent / there
        if there == "link":
            path.symlink_to(tmp_path)
        elif there == "dangling":
            path.symlink_to(tmp_path / "no")
        with pytest.raises(JobError, match="is there already"):
            unpack(path, manifest_of(GOOD), A, B)
        if path.is_symlink():
            path.unlink()
    with pytest.raises(ClusterError, match="cannot be written"):
        unpack(tmp_path / "no" / "work", manifest_of(GOOD), A, B)


@pytest.mark.parametrize("what", ["link", "hard link", "fifo", "socket", "file", "dangling link"])
def test_what_somebody_puts_in_the_way_is_not_followed(nest, what, tmp_path):
    """Another process of this user may write there: what is in the place of a file stays as it is,
    and the package is refused.
    """
    with Unpacker(nest, manifest_of([("a", A), ("b/c", B), ("d", b"d")])) as unpacker:
        partial = next(p for p in nest.parent.iterdir() if p.name.startswith(package.PARTIAL))
        path = partial / "d"
        if what == "link":
            path.symlink_to(tmp_path / "outside")
        elif what == "hard link":
            os.link(tmp_path / "outside", path)
        elif what == "fifo":
            os.mkfifo(path)
        elif what == "socket":
            with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(partial):
                made.bind(path.name)  # a whole path may be too long for a socket
        elif what == "file":
            path.write_text("here")
        else:
            path.symlink_to(tmp_path / "new")
        (partial / "b").symlink_to(tmp_path)
        with pytest.raises(ClusterError, match="cannot be written"):
            unpacker.feed(A + B + b"d")
    with Unpacker(nest, manifest_of([("d", b"d")])) as unpacker:
        partial = next(p for p in nest.parent.iterdir() if p.name.startswith(package.PARTIAL))
        assert (partial / "d").stat().st_size == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make devices")
def test_a_device_is_not_opened(nest):
    with Unpacker(nest, manifest_of([("a", A), ("b", B)])) as unpacker:
        partial = next(p for p in nest.parent.iterdir() if p.name.startswith(package.PARTIAL))
        try:
            os.mknod(partial / "b", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("this root may not make devices")
        with pytest.raises(ClusterError, match="File exists"):
            unpacker.feed(A + B)


def test_a_full_disk_leaves_nothing(nest):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # write: EFBIG
    try:
        with pytest.raises(ClusterError, match="the package cannot be written: File too large"):
            unpack(nest, manifest_of([("a", bytes(5000))]), bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_a_killed_agent_left_is_swept(tmp_path):
    (tmp_path / "kept").mkdir()
    left = Unpacker(tmp_path / "work", manifest_of(GOOD))
    left.feed(A)
    names = [n for n in os.listdir(tmp_path) if n.startswith(package.PARTIAL)]
    assert package.sweep(tmp_path) == names and os.listdir(tmp_path) == ["kept"]
    left.close()


def test_the_largest_package_takes_little_memory_and_time(tmp_path):
    """64 MiB in 4,096 files, 16 deep."""
    content = bytes(MAX_BYTES // MAX_FILES)
    folders = "/".join("d" * 14)
    files = tuple(
        PackageFile(f"{folders}/{n % 64:02}/f{n:04}", len(content), sha(content))
        for n in sorted(range(MAX_FILES), key=lambda n: (n % 64, n))
    )
    packed = package.encode(PackageManifest(FORMAT, files))

    def unpacked(name):
        with Unpacker(tmp_path / name, packed) as unpacker:
            chunk = bytes(CHUNK_BYTES)
            for _ in range(MAX_BYTES // CHUNK_BYTES):
                unpacker.feed(chunk)
            unpacker.finish()

    per_file = n_calls(lambda: unpacked("first")) / MAX_FILES
    tracemalloc.start()
    try:
        unpacked("second")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20, f"{peak >> 20} MiB"
    assert per_file < 500, f"{per_file:.0f} calls for each file"  # 160; 1.6 s for all


def test_a_package_that_ends_inside_its_manifest_is_refused():
    with pytest.raises(BadPackage, match="manifest.*5 bytes.*9"):
        package.split(iter([b"abc", b"", b"de"]), 9)
    packed, rest = package.split(iter([b"abc", b"", b"de"]), 4)
    assert packed == b"abcd" and b"".join(rest) == b"e"


def test_a_function_that_reports_is_found_without_running_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.py").write_text("1 / 0\ndef report(run): pass\n")
    (tmp_path / "in" / "b.py").write_text("from a import report\ndef job(): pass\n")
    assert packing.has_report("in/a.py:job") and packing.has_report("a.py", "in")
    assert not packing.has_report("in/b.py")
