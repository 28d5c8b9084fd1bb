"""Logs: when what was written, and what a full disk costs; what a killed agent leaves; packages."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horn.cluster import preparation, store
from horn.cluster.capacity import HostCapacity
from horn.cluster.master import RUN, Allocation, HostOrder, JobRecord
from horn.cluster.preparation import JobPreparer
from horn.cluster.store import MARK_S, HostStore, LogFile, line_start, written_since
from horn.cluster.submission import Submission
from horn.coordination import paths
from horn.errors import ClusterError, JobError, NotFound
from tests.cluster.helpers import a_package
from tests.support.room import no_room


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def time(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(store, "time", made)
    return made


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    writes=st.lists(st.tuples(st.floats(0, 5), st.text("ab\n", max_size=6)), max_size=30),
    age_s=st.floats(0, 100),
)
def test_what_is_not_older_is_there_and_little_more(
    tmp_path: Path, clock: Clock, writes: list[tuple[float, str]], age_s: float
):
    """Whole lines; of what is older at most what came within MARK_S, and the first line's begin."""
    path = tmp_path / "g0.t0.log"
    for old in tmp_path.iterdir():
        old.unlink()
    log, made = LogFile(path), []
    for pause_s, text in writes:
        clock.now_s += pause_s
        made += [(clock.now_s, byte) for byte in text.encode()]
        log.write(text.encode())
    log.close()
    data = path.read_bytes()
    start = written_since(path, age_s)
    assert start == 0 or data[start - 1 : start] == b"\n"
    since_s = clock.now_s - age_s
    young = [n for n, (made_s, _) in enumerate(made) if made_s >= since_s]
    first = young[0] if young else len(data)
    assert start <= first
    end = data.find(b"\n", start) + 1  # of the first line, which may have begun long ago
    assert all(made[n][0] >= since_s - MARK_S - 1e-6 for n in range(end or len(data), len(data)))


def test_a_log_without_times_is_read_from_its_beginning(tmp_path: Path):
    (tmp_path / "a.log").write_text("of an earlier horn\n")
    assert written_since(tmp_path / "a.log", 1.0) == 0


def test_a_clock_that_goes_back_hides_nothing(tmp_path: Path, clock: Clock):
    log = LogFile(tmp_path / "a.log")
    log.write(b"first\n")
    clock.now_s -= 3600
    log.write(b"second\n")
    log.close()
    assert written_since(tmp_path / "a.log", 10.0) == 0


@pytest.mark.parametrize("which", ["folder", "shared"])
def test_a_folder_whose_name_is_not_utf_8_is_refused_with_its_name(tmp_path: Path, which: str):
    """A job there ended as a bug in horn."""
    folders = {"folder": tmp_path / "own", "shared": tmp_path / "shared"}
    folders[which] = tmp_path / os.fsdecode(b"jo\xffb")
    with pytest.raises(JobError, match=r"/jo\\udcffb cannot be used: its name is not UTF-8; give"):
        HostStore(**folders)
    assert not list(tmp_path.iterdir())


def test_a_copy_on_a_full_disk_is_said_in_words(tmp_path: Path):
    """Two paths and a number of the system's were said besides."""
    made = HostStore(tmp_path / "w")
    files = tmp_path / "w" / "packages" / ("ab" * 32) / "files"
    files.mkdir(parents=True)
    (files / "job.py").write_text("import horn")
    with no_room(), pytest.raises(ClusterError) as told:
        made.work("job-1", 0, "ab" * 32)
    made.close()
    assert str(told.value).endswith("work-0/job.py cannot be written: File too large")


def test_a_folder_on_a_full_disk_is_named_and_can_be_used_once_there_is_room(tmp_path: Path):
    """It was: the output cannot be written; and then: id is empty."""
    with no_room(), pytest.raises(JobError, match=r"a/id cannot be written: File too large"):
        HostStore(tmp_path / "a")
    HostStore(tmp_path / "a").close()


def test_a_full_disk_costs_lines_of_a_log_and_not_who_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    log = LogFile(tmp_path / "a.log")
    log.write(b"first\n")
    write, ours = os.write, {log._fd, log._times}

    def on_a_full_disk(fd: int, data: bytes) -> int:
        if fd in ours:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    with monkeypatch.context() as full:
        full.setattr(os, "write", on_a_full_disk)
        log.write(b"second\n")
        log.write(b"third\n")
    log.write(b"fourth\n")
    log.close()
    said = (tmp_path / "a.log").read_text().splitlines()
    assert said == ["first", "", "horn: up to 13 bytes are missing here", "fourth"]
    assert len(caplog.records) == 1 and "No space left" in caplog.text


def test_a_log_that_ends_on_a_full_disk_says_what_is_missing_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = LogFile(tmp_path / "a.log")

    def on_a_full_disk(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", on_a_full_disk)
        log.write(b"first\n")
    log.close()
    said = (tmp_path / "a.log").read_text().splitlines()
    assert said == ["", "horn: up to 6 bytes are missing here"]


def test_a_package_that_cannot_be_copied_is_said_with_its_path(tmp_path: Path):
    """shutil.copytree raises an OSError without path and words: "a file: None"."""
    made = HostStore(tmp_path / "w")
    files = tmp_path / "w" / "packages" / ("ab" * 32) / "files"
    files.mkdir(parents=True)
    os.mkfifo(files / "job.py")  # what a full disk does to a copy, at once
    with pytest.raises(ClusterError, match=r"work-0/job\.py cannot be written: .*named pipe"):
        made.work("job-1", 0, "ab" * 32)
    made.close()


def test_what_a_disk_takes_in_part_is_in_the_log_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = LogFile(tmp_path / "a.log", limit=12)
    write, ours = os.write, log._fd
    with monkeypatch.context() as slow:
        slow.setattr(os, "write", lambda fd, data: write(fd, data[:3] if fd == ours else data))
        log.write(b"a whole line\n"[:12])
    log.write(b"more")
    log.close()
    assert (tmp_path / "a.log").read_bytes().startswith(b"a whole line\nhorn: 12 bytes are kept")


def test_a_log_keeps_its_beginning_and_its_end_and_says_what_is_between(tmp_path: Path):
    """It kept the beginning alone: how a process came to its end was not in it."""
    log = LogFile(tmp_path / "a.log", limit=12, end_limit=20)
    lines = [b"line %d\n" % n for n in range(10, 30)]
    for line in lines:
        log.write(line)
    log.close()
    said = (tmp_path / "a.log").read_text().splitlines()
    assert said[:2] == ["line 10", "line"]
    assert said[2] == (
        "horn: 12 bytes are kept as they come; of the rest the last 20 follow when the process ends"
    )
    assert said[3:] == [f"horn: {20 * 8 - 12 - 16} bytes are missing here", "line 28", "line 29"]


def test_a_long_log_that_goes_on_has_the_end_of_each_attempt(tmp_path: Path):
    for text in (b"beginning\n", b"first end\n", b"second end\n"):
        log = LogFile(tmp_path / "a.log", limit=10)
        log.write(text)
        log.close()
    said = (tmp_path / "a.log").read_text().splitlines()
    assert (said[0], *said[3:]) == ("beginning", "first end", "second end")


class Killed(BaseException):
    """The agent, while it copies a package."""


def test_a_copy_for_the_shared_folder_goes_when_its_agent_was_killed_and_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    digest, packages = "ab" * 32, tmp_path / "shared" / "packages" / "one"

    def share(folder: str, is_killed: bool) -> None:
        made = HostStore(tmp_path / folder, tmp_path / "shared")
        made.cluster = "one"
        (tmp_path / folder / "packages" / digest / "files").mkdir(parents=True, exist_ok=True)
        with monkeypatch.context() as patched:
            if is_killed:
                patched.setattr(shutil, "copytree", lambda source, target: die(target))
                patched.setattr(shutil, "rmtree", lambda *_, **__: None)
                with pytest.raises(Killed):
                    made.share(digest)
            else:
                made.share(digest)
        made.close()

    def die(target: Path) -> None:
        target.mkdir()
        raise Killed

    share("a", True)
    share("b", True)
    other = {path.name for path in packages.iterdir() if path.name.endswith(_id(tmp_path / "b"))}
    assert len(list(packages.iterdir())) == 2 and len(other) == 1
    HostStore(tmp_path / "a", tmp_path / "shared").close()
    assert {path.name for path in packages.iterdir()} == other  # which may be alive
    share("b", False)
    assert [path.name for path in packages.iterdir()] == [digest]


def hosts_of(tmp_path: Path, *names: str, cluster: str = "one") -> Iterator[HostStore]:
    for name in names:
        made = HostStore(tmp_path / name, tmp_path / "shared")
        made.cluster = cluster
        yield made


def test_a_package_that_came_before_there_was_a_shared_folder_is_there_once_it_comes_again(
    tmp_path: Path,
):
    """Where its only worker was lost the job was, too."""
    digest, manifest = a_package(b"x = 1\n")
    alone = HostStore(tmp_path / "a")
    alone.put(digest, manifest, iter([b"x = 1\n"]))
    assert alone.is_shared(digest), "there is nothing to share it in"
    alone.close()
    first, second = hosts_of(tmp_path, "a", "b")
    assert first.has(digest) and not first.is_shared(digest) and not second.has(digest)
    first.put(digest, manifest, iter([b"x = 1\n"]))
    assert first.is_shared(digest) and b"".join(second.get(digest)[1]) == b"x = 1\n"
    first.close()
    second.close()


def test_a_package_for_which_the_shared_folder_had_no_room_comes_there_with_the_next_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first submission was refused; the next one, of the same files, was not, and never shared
    them.
    """
    digest, manifest = a_package(b"x = 1\n")
    (made,) = hosts_of(tmp_path, "a")

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    for _ in range(2):
        with monkeypatch.context() as patched, pytest.raises(ClusterError, match="--shared is the"):
            patched.setattr(shutil, "copytree", full)
            made.put(digest, manifest, iter([b"x = 1\n"]))
        assert made.has(digest) and not made.is_shared(digest)
    made.put(digest, manifest, iter([b"x = 1\n"]))
    assert made.is_shared(digest)
    made.close()


def test_a_job_starts_though_the_shared_folder_has_no_room_for_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """As one that cannot save its checkpoints; the next attempt shares it."""
    digest, manifest = a_package(b"x = 1\n")
    (made,) = hosts_of(tmp_path, "a")
    made._put(digest, manifest, iter([b"x = 1\n"]))
    made.kept("one-1")
    preparer = JobPreparer(HostCapacity("127.0.0.1:1", slots=1), "a", made, 1)
    asked = Submission(job="one-1", target="job.py", package=digest)
    monkeypatch.setattr(preparer, "submission", lambda job, node: asked)
    monkeypatch.setattr(preparation, "node_of", lambda *_: None)
    coord: Any = SimpleNamespace(paths=paths.Paths())
    here = Allocation(1, "127.0.0.1", (0,))
    order, record = HostOrder(1, RUN, here), JobRecord(1, allocations={"a": here})
    monkeypatch.setattr(preparation, "record_of", lambda *_: record)

    def begin() -> None:
        given = preparer.assignment(coord, SimpleNamespace(), "one-1", order)  # type: ignore[arg-type]
        assert (Path(given.work) / "job.py").read_bytes() == b"x = 1\n"

    with monkeypatch.context() as full:
        full.setattr(Path, "mkdir", no_room_below(tmp_path / "shared"))
        begin()
    assert not made.is_shared(digest) and "--shared is there" in caplog.text
    begin()
    assert made.is_shared(digest)
    made.close()


def no_room_below(folder: Path) -> Callable[..., None]:
    mkdir = Path.mkdir

    def on_a_full_disk(path: Path, *arguments: Any, **more: Any) -> None:
        if path.is_relative_to(folder) and not path.exists():
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        mkdir(path, *arguments, **more)

    return on_a_full_disk


def test_clusters_with_one_shared_folder_remove_no_package_of_each_other(tmp_path: Path):
    digest, manifest = a_package(b"x = 1\n")
    (ours,) = hosts_of(tmp_path, "a")
    theirs, other = hosts_of(tmp_path, "b", "c", cluster="two")
    for made in (ours, theirs):
        made.put(digest, manifest, iter([b"x = 1\n"]))
    ours.forget("job-1", digest)
    assert not ours.has(digest) and other.has(digest)
    theirs.forget("job-2", digest)
    assert not list(tmp_path.glob("shared/packages/*/*"))
    for made in (ours, theirs, other):
        made.close()


def _cut_off(packed: Path) -> None:
    (packed / "files" / "job.py").unlink()


def _without_a_manifest(packed: Path) -> None:
    (packed / "manifest").unlink()


def _shortened(packed: Path) -> None:
    os.truncate(packed / "files" / "job.py", 2)


def _overwritten(packed: Path) -> None:
    (packed / "manifest").write_bytes(b"nonsense")


@pytest.mark.parametrize("tear", [_cut_off, _without_a_manifest, _shortened, _overwritten])
def test_a_torn_package_in_the_shared_folder_is_none_and_is_replaced(
    tear: Callable[[Path], None], tmp_path: Path
):
    """Whoever asked for it, or sent it again, was told of a file that has changed, for good."""
    digest, manifest = a_package(b"x = 1\n")
    first, second = hosts_of(tmp_path, "a", "b")
    first.put(digest, manifest, iter([b"x = 1\n"]))
    tear(tmp_path / "shared" / "packages" / "one" / digest)
    assert first.has(digest) and not first.is_shared(digest)
    assert not second.has(digest) and not second.take_shared(digest)
    with pytest.raises(NotFound):
        second.get(digest)
    first.put(digest, manifest, iter([b"x = 1\n"]))
    assert first.is_shared(digest) and b"".join(second.get(digest)[1]) == b"x = 1\n"
    assert [path.name for path in tmp_path.glob("shared/packages/one/*")] == [digest]
    first.close()
    second.close()


def test_a_shared_package_of_other_bytes_is_not_taken(tmp_path: Path):
    digest, manifest = a_package(b"x = 1\n")
    first, second = hosts_of(tmp_path, "a", "b")
    first.put(digest, manifest, iter([b"x = 1\n"]))
    (tmp_path / "shared" / "packages" / "one" / digest / "files" / "job.py").write_bytes(b"x = 2\n")
    assert not second.take_shared(digest)
    first.close()
    second.close()


def test_who_asks_for_a_package_copies_nothing(tmp_path: Path):
    """The question copied 64 MB while others waited with theirs."""
    digest, manifest = a_package(b"x = 1\n")
    first, second = hosts_of(tmp_path, "a", "b")
    first.put(digest, manifest, iter([b"x = 1\n"]))
    assert second.has(digest) and not list((tmp_path / "b" / "packages").iterdir())
    assert second.take_shared(digest) and second.take_shared(digest)
    assert (tmp_path / "b" / "packages" / digest / "files" / "job.py").is_file()
    first.close()
    second.close()


def test_a_removal_that_is_cut_off_leaves_no_part_of_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    digest, manifest = a_package(b"x = 1\n")
    (made,) = hosts_of(tmp_path, "a")
    made.put(digest, manifest, iter([b"x = 1\n"]))
    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", lambda *_, **__: None)
        made.forget("job-1", digest)
    assert not made.has(digest) and len(list(tmp_path.glob("*/packages/**/job.py"))) == 2
    made.close()
    (made,) = hosts_of(tmp_path, "a")
    assert not list(tmp_path.glob("*/packages/**/job.py")), "it starts again"
    made.close()


def test_a_package_in_a_shared_folder_of_before_is_used_and_stays(tmp_path: Path):
    digest, manifest = a_package(b"x = 1\n")
    before = HostStore(tmp_path / "a")
    before.put(digest, manifest, iter([b"x = 1\n"]))
    shutil.copytree(tmp_path / "a" / "packages", tmp_path / "shared" / "packages")
    (made,) = hosts_of(tmp_path, "b")
    assert b"".join(made.get(digest)[1]) == b"x = 1\n" and not made.is_shared(digest)
    made.share(digest)
    made.forget("job-1", digest)
    assert made.has(digest), "it may be another cluster's"
    made.close()
    before.close()


def _id(folder: Path) -> str:
    return (folder / "id").read_text().strip()


def test_a_package_for_a_folder_that_has_vanished_is_refused_with_what_to_do(tmp_path):
    """The submitter was told "put failed"."""
    store = HostStore(tmp_path / "host")
    try:
        (tmp_path / "host").rename(tmp_path / "elsewhere")
        with pytest.raises(ClusterError, match="No such file or directory; see that the folder"):
            store.put("ab" * 32, b"", iter(()))
    finally:
        store.close()


@pytest.mark.parametrize("line", [b"\n", b"x" * 99 + b"\n"])
def test_the_last_lines_of_a_long_log_begin_where_they_do(line: bytes, tmp_path: Path):
    """Of 2 MiB of blank lines they took a quarter of a minute."""
    path, n = tmp_path / "log", (2 << 20) // len(line)
    path.write_bytes(line * n)
    end = n * len(line) - 1
    for last in (1, 2, 65536 // len(line), 65537, n - 1, n, n + 1, 10**9):
        assert line_start(path, end, last) == max(n - last, 0) * len(line)
