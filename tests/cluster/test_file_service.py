"""What an agent answers for its store."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horn.cluster import file_service, package, remote_files, written
from horn.cluster.client import ClusterClient
from horn.cluster.file_service import (
    HOLD_S,
    DoneReply,
    FileService,
    JobRequest,
    PackageHolds,
    PackageRequest,
    ReadRequest,
    WrittenRequest,
)
from horn.cluster.master import JobRecord
from horn.cluster.remote_files import save
from horn.cluster.store import MODEL, HostStore
from horn.errors import ClusterError, Conflict, HornError, JobError, NotFound
from tests.cluster.helpers import Call, a_package


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HostStore]:
    made = HostStore(tmp_path / "a", None)
    (tmp_path / "a" / "jobs" / "one-1").mkdir(parents=True, exist_ok=True)
    yield made
    made.close()


def test_holds_that_are_over_are_forgotten_and_a_later_one_keeps_its_package(
    monkeypatch: pytest.MonkeyPatch,
):
    now_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0])
    monkeypatch.setattr(file_service, "time", clock)
    holds = PackageHolds()
    holds.hold("a", "one")
    holds.hold("b", "one")
    assert (holds.last("a"), holds.last("b"), holds.last("c")) == (1, 2, 0)
    assert not holds.is_free("a", 1) and holds.is_free("c", 0)
    holds.release("a", "one")
    assert holds.is_free("a", 1)
    holds.hold("a", "two")  # by who enters a job that the first was asked too early to see
    holds.release("a", "two")
    assert not holds.is_free("a", 1) and holds.is_free("a", 3)
    for k in range(1, 1000):
        now_s[0] = k * HOLD_S
        holds.hold(f"package {k}", f"holder {k}")
    assert len(holds._until) == len(holds._last) == 1
    assert holds.is_free("b", 2) and holds.last("b") == 0


def test_who_sends_a_package_slowly_keeps_no_other_from_sending(store: HostStore):
    has_begun, may_end = threading.Event(), threading.Event()

    def slowly(text: bytes) -> Iterator[bytes]:
        has_begun.set()
        may_end.wait(60.0)
        yield text

    digest, manifest = a_package(b"slow = 1\n")
    slow = Call(store.put, digest, manifest, slowly(b"slow = 1\n"))
    assert has_begun.wait(20.0)
    other, its = a_package(b"fast = 1\n")
    fast = Call(store.put, other, its, iter([b"fast = 1\n"]))
    again = Call(store.put, digest, manifest, iter([b"slow = 1\n"]))  # a faster sender of the same
    try:
        fast.result(20)
        again.result(20)
    finally:
        may_end.set()
    slow.result(20)
    for name, text in ((other, b"fast = 1\n"), (digest, b"slow = 1\n")):
        assert b"".join(store.get(name)[1]) == text
        held = sorted(path.name for path in store._package(name).iterdir())
        assert held == ["files", "manifest"]


def test_who_submits_sends_a_package_that_is_not_in_the_shared_folder(tmp_path: Path):
    """It was on a worker from before, and a job with it ended where that worker was lost."""
    digest, manifest = a_package(b"x = 1\n")
    store = HostStore(tmp_path / "b", tmp_path / "shared")
    service: Any = SimpleNamespace(on=lambda *_, **__: None)
    file_service = FileService(store, service, lambda: ())

    def is_here(holder: str) -> bool:
        asked: Any = SimpleNamespace(request=PackageRequest(digest, holder=holder))
        return file_service.have(asked).is_here

    store.put(digest, manifest, iter([b"x = 1\n"]))
    assert is_here("me")
    store.cluster = "one"
    assert is_here("") and not is_here("me")
    store.put(digest, manifest, iter([b"x = 1\n"]))
    assert is_here("me")
    store.close()


def test_what_a_killed_agent_had_of_a_package_goes_when_the_next_one_starts(tmp_path: Path):
    digest, manifest = a_package(b"x = 1\n")
    folder = tmp_path / "b" / "packages" / digest
    folder.mkdir(parents=True)
    unpacker = package.Unpacker(folder / "files", manifest, digest)
    unpacker.feed(b"x =")
    (partial,) = folder.iterdir()
    assert partial.name.startswith(package.PARTIAL)
    HostStore(tmp_path / "b").close()
    left = list(folder.iterdir())
    unpacker.close()
    assert not left


def test_a_log_that_goes_while_it_is_asked_for_is_not_there(tmp_path: Path):
    """The job was removed between two looks: who asked was told of an error of the agent."""
    there = tmp_path / "there.log"
    there.write_bytes(b"one\n")
    found = {"there": there, "gone": tmp_path / "gone.log"}
    store: Any = SimpleNamespace(files=lambda job: found)
    service: Any = SimpleNamespace(on=lambda *_, **__: None)
    file_service = FileService(store, service, lambda: ())
    asked: Any = SimpleNamespace(request=JobRequest("j"))
    assert file_service.files(asked).sizes == {"there": 4}
    call: Any = SimpleNamespace(request=ReadRequest("j", "gone"), is_over=False)
    with pytest.raises(NotFound, match="there is no gone here"):
        file_service.read(call)


def test_the_last_lines_are_all_there_however_long_they_are(store: HostStore, tmp_path: Path):
    """They used to be cut, without a word, at 1 MiB."""
    logs = tmp_path / "a" / "jobs" / "one-1" / "logs"
    logs.mkdir()
    lines = [b"%d %s" % (n, b"x" * 20_000) for n in range(200)]
    (logs / "g0.t0.log").write_bytes(b"before\n" + b"\n".join(lines) + b"\n")
    service: Any = SimpleNamespace(on=lambda *_, **__: None)
    file_service = FileService(store, service, lambda: ())
    found, at, tail = b"", 0, 200
    while True:
        request = ReadRequest("one-1", "g0.t0", at, tail=tail)
        got, portions = file_service.read(SimpleNamespace(request=request, is_over=False))
        data = b"".join(portions)
        if not data:
            break
        found, at, tail = found + data, got.offset + got.size, None
    assert found.splitlines() == lines


def test_the_files_of_a_job_go_once_its_runs_have_been_put_away(
    store: HostStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("horn.cluster.file_service.GONE_S", 60.0)
    runs = {"one-1"}
    service: Any = SimpleNamespace(on=lambda *_, **__: None)
    file_service = FileService(store, service, lambda: runs)
    asked: Any = SimpleNamespace(request=JobRequest("one-1"))
    folder = tmp_path / "a" / "jobs" / "one-1"
    forgetting = Call(file_service.forget, asked)
    assert not forgetting.is_done() and folder.exists()
    runs.clear()
    assert forgetting.result() == DoneReply() and not folder.exists()
    # and it is said when that does not come
    runs.add("one-1")
    file_service.close()
    with pytest.raises(Conflict, match="one-1 still runs here"):
        file_service.forget(asked)


@pytest.fixture
def files(store: HostStore) -> Path:
    """What a job's callbacks write."""
    folder = store.kept("one-1") / "files"
    (folder / "runs" / "deep").mkdir(parents=True)
    (folder / "runs" / "deep" / "events").write_bytes(b"abc" * 200_000)
    (folder / "log.csv").write_text("epoch,loss\n")
    return folder


def read(store: HostStore, path: str) -> bytes:
    service: Any = SimpleNamespace(on=lambda *_, **__: None)
    file_service = FileService(store, service, lambda: ())
    call: Any = SimpleNamespace(request=WrittenRequest("one-1", path))
    got, portions = file_service.read_written(call)
    data = b"".join(portions)
    assert got.size == len(data)
    return data


def test_what_callbacks_wrote_is_listed_and_read(store: HostStore, files: Path):
    found = store.written("one-1")
    assert (found.sizes, found.n_left_out) == ({"log.csv": 11, "runs/deep/events": 600_000}, 0)
    assert read(store, "runs/deep/events") == b"abc" * 200_000
    assert store.written("one-2").sizes == {}


def test_no_link_of_a_job_leads_out_of_its_folder(store: HostStore, files: Path, tmp_path: Path):
    """The agent that reads holds the cluster's key, and the job may be another user's."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "secret").write_text("of the agent")
    (files / "link").symlink_to(tmp_path / "theirs" / "secret")
    (files / "folder").symlink_to(tmp_path / "theirs")
    (files / "hard").hardlink_to(tmp_path / "theirs" / "secret")
    (files / "od\nd").touch()
    found = store.written("one-1")
    assert set(found.sizes) == {"log.csv", "runs/deep/events"} and found.n_left_out == 4
    for path in ("link", "folder/secret", "hard", "../progress.jsonl", "/etc/hostname", "od\nd"):
        with pytest.raises(HornError, match="cannot be opened|link or no regular|got "):
            read(store, path)
    with pytest.raises(NotFound, match="there is no runs/none here"):
        read(store, "runs/none")
    files.rename(tmp_path / "moved")
    files.symlink_to(tmp_path / "theirs")
    assert store.written("one-1").sizes == {}
    with pytest.raises(HornError, match="cannot be opened"):
        read(store, "secret")


def test_so_many_files_and_folders_are_told_and_no_more(
    store: HostStore, files: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(written, "MAX_FILES", 3)
    for name in "abc":
        (files / name).touch()
    files.joinpath(*"0123456789012345").mkdir(parents=True)
    files.joinpath(*"0123456789012345", "deep").touch()
    found = store.written("one-1")
    assert (set(found.sizes), found.n_left_out) == ({"a", "b", "c"}, 3)
    assert found.why.startswith("there are more than 3 files")


def test_a_file_that_did_not_come_whole_is_not_there(tmp_path: Path):
    (tmp_path / "m.horn").write_bytes(b"before")
    with pytest.raises(ClusterError, match="3 of 5 bytes of m.horn came"):
        save(iter([b"ab", b"c"]), 5, tmp_path / "m.horn")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"m.horn": b"before"}
    save(iter([b"ab", b"c"]), 3, tmp_path / "m.horn")
    assert (tmp_path / "m.horn").read_bytes() == b"abc"


@pytest.mark.parametrize("place", ["gone/m.horn", "m" * 255], ids=["gone", "long"])
def test_a_model_that_cannot_be_written_is_said_to_be_on_the_cluster(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It ended in a traceback, as a bug in horn."""

    class Body(list[bytes], contextlib.AbstractContextManager[None]):
        def __exit__(self, *what: object) -> None:
            self.clear()

    service = SimpleNamespace(download=lambda *a, **k: (SimpleNamespace(size=3), Body([b"abc"])))
    client = object.__new__(ClusterClient)
    monkeypatch.setattr(client, "files", lambda job: {"one": {MODEL: 3}})
    monkeypatch.setattr(
        client, "status", lambda job: SimpleNamespace(result={}, record=JobRecord())
    )
    monkeypatch.setattr(client, "service", lambda host: service)
    (tmp_path / ("m" * 255)).mkdir()
    with pytest.raises(JobError, match=r"cannot be written .* model still:  horn fetch job-1 -o "):
        remote_files.fetch_model(client, "job-1", tmp_path / place)
