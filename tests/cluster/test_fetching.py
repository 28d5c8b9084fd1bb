"""What a job has left is fetched from workers that come and go meanwhile."""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horn import terminal
from horn.cli._cluster import as_json
from horn.cli._remote import JobWatcher
from horn.cli.logs import _Reader
from horn.cli.status import _details
from horn.cluster import fetching, remote_files
from horn.cluster.client import ClusterClient
from horn.cluster.handles import SubmittedJob
from horn.cluster.job_status import JobStatus
from horn.cluster.master import Allocation, JobRecord
from horn.cluster.relay import ProgressWriter
from horn.cluster.remote_files import notes
from horn.cluster.store import PROGRESS, TRACE
from horn.cluster.written import WrittenFiles
from horn.coordination.jobs import JobState
from horn.errors import HornError, NotFound
from horn.rpc.client import RpcClient
from horn.training.progress import Progress


class Going(ClusterClient):
    """A cluster whose one worker is there when it is looked at first, and then no more."""

    def __init__(self, names: tuple[str, ...] = ("model.horn",)) -> None:
        self.looks: list[dict[str, Any]] = [{"a": None}]
        self.names = names

    def workers(self) -> dict[str, Any]:
        return self.looks.pop() if self.looks else {}

    def client(self, name: str, member: Any) -> RpcClient:
        raise AssertionError(f"{name} has gone")

    def files(self, job: str) -> dict[str, dict[str, int]]:
        return {"a": dict.fromkeys(self.names, 3)}

    def status(self, job: str) -> Any:
        record = JobRecord(hosts=("a",))
        return SimpleNamespace(result={"host": "a"}, state=JobState.FAILED, record=record)

    def down(self, job: str, answered: Container[str]) -> str:
        return ""


@pytest.fixture(autouse=True)
def own_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients here that have a ``read`` or ``read_all`` are read by it."""

    def own(name: str, there: Any) -> Any:
        return lambda client, *of, **more: getattr(client, name, partial(there, client))(
            *of, **more
        )

    for name in ("read", "read_all"):
        monkeypatch.setattr(remote_files, name, own(name, getattr(remote_files, name)))


def test_files_of_a_worker_that_has_just_gone_are_not_there(tmp_path: Path):
    fetching._fetch_written(Going(), "one-1", tmp_path, pytest.fail)
    assert not [*tmp_path.iterdir()]


def test_a_model_whose_worker_has_just_gone_is_not_found(tmp_path: Path):
    client = Going()
    client.workers()
    with pytest.raises(NotFound, match="worker a is not up"):
        remote_files.fetch_model(client, "one-1", tmp_path / "model.horn")


def test_no_name_of_a_log_leads_out_of_the_folder(tmp_path: Path):
    """Names are a worker's, and are written here."""
    client = Going(names=("../../told",))
    client.read_all = lambda *_: b"text"
    with pytest.raises(HornError, match="path '../../told'"):
        fetching.fetch_all(client, "one-1", tmp_path / "here", pytest.fail)
    assert not (tmp_path / "told.log").exists()


def test_logs_of_an_attempt_on_another_host_are_not_written_over(tmp_path: Path):
    """Which one came last was chance, and why the first attempt failed was in the other."""

    class Two(Going):
        def files(self, job: str) -> dict[str, dict[str, int]]:
            return {"b": {"g0.t0": 3, "trace.json": 3}, "a": {"g0.t0": 3, "a": 1, "trace.json": 3}}

    client = Two()
    client.read_all = lambda job, host, name: f"{name} of {host}".encode()
    fetching.fetch_all(client, "one-1", tmp_path, pytest.fail)
    found = {path.name: path.read_text() for path in [*tmp_path.glob("logs/*"), tmp_path / TRACE]}
    assert found == {
        "g0.t0.log": "g0.t0 of a",  # the last attempt's, as the result says
        "g0.t0.b.log": "g0.t0 of b",
        "a.log": "a of a",
        "trace.json": "trace.json of a",
    }


class Moved(Going):
    """A job that FAILED on b, in its last attempt; one before was on a."""

    def status(self, job: str) -> Any:
        result = {"state": "FAILED", "cause": "that of b"}  # which names no worker
        return SimpleNamespace(
            result=result, state=JobState.FAILED, record=JobRecord(hosts=("b",)), submission=None
        )

    def files(self, job: str) -> dict[str, dict[str, int]]:
        return {host: {"g0.t0": 9, host: 6, TRACE: 15} for host in ("a", "b")}

    def workers(self) -> dict[str, Any]:
        return dict.fromkeys(("a", "b"))

    def read(self, job: str, host: str, name: str, offset: int = 0, *_: Any, **__: Any) -> Any:
        return offset, f"{name} of {host}\n".encode()[offset:]


LAST_LOGS = {"g0.t0": "g0.t0 of b", "g0.t0.a": "g0.t0 of a", "a": "a of a", "b": "b of b"}


def test_of_a_job_that_failed_elsewhere_than_before_the_last_attempt_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its result names no worker, and the first by its name was taken for the last attempt's."""
    monkeypatch.setattr(fetching, "_listed", lambda *_: WrittenFiles({"best.txt": 1}))
    monkeypatch.setattr(
        fetching, "_fetch_one", lambda client, job, host, path, target: target.write_text(host)
    )
    fetching.fetch_all(Moved(), "one-1", tmp_path, pytest.fail)
    logs = {path.stem: path.read_text().strip() for path in tmp_path.glob("logs/*.log")}
    assert logs == LAST_LOGS
    assert (tmp_path / "files/best.txt").read_text() == "b"
    assert (tmp_path / TRACE).read_text() == "trace.json of b\n"


def test_a_handle_has_the_logs_of_all_attempts():
    """Of two with one name, on two workers, the last one read was left."""
    cluster: Any = SimpleNamespace(retry=lambda read: read(Moved()))
    logs = SubmittedJob(cluster, "one-1").logs()
    assert {name: text.strip() for name, text in logs.items()} == LAST_LOGS


def test_logs_end_with_those_of_the_last_attempt(capsys: pytest.CaptureFixture[str]):
    _Reader("one-1", "g0.t0", None, False, None).print_new(Moved())
    assert capsys.readouterr().out.splitlines() == ["g0.t0│ g0.t0 of a", "g0.t0│ g0.t0 of b"]


ROWS = b'{"row": {"epoch": 1}, "at": 1}\n'
CUTS = [b'{"row": {"epoch": 2}, "a', b"\0\0\0\0", b"7\n", b'{"row": \xff\xfe']


@pytest.mark.parametrize("cut", CUTS)
def test_a_line_of_progress_that_is_cut_ends_neither_a_history_nor_a_submit(cut: bytes):
    class One(Going):
        def files(self, job: str) -> dict[str, dict[str, int]]:
            return {"a": {PROGRESS: 1}}

        def read(self, job: str, host: str, name: str, offset: int = 0, *_: Any, **__: Any) -> Any:
            return offset, (ROWS + cut + b"\n" + ROWS.replace(b"1}, ", b"3}, "))[offset:]

    assert [row["epoch"] for row in remote_files.history(One(), "one-1")] == [1, 3]
    said: list[int] = []
    watch = JobWatcher("one-1", Progress(), quiet=True)
    watch.progress.epoch = lambda row: said.append(row["epoch"])  # type: ignore
    watch._read(One(), "a")
    assert said == [1, 3]


def test_a_history_is_read_in_time_that_grows_as_it_does(monkeypatch: pytest.MonkeyPatch):
    """Each row was compared with all before it: 16,000 epochs took 24 s."""
    n_asked = 0

    class Epoch(int):
        def __lt__(self, other: int) -> bool:
            nonlocal n_asked
            n_asked += 1
            return int(self) < other

        def __ge__(self, other: int) -> bool:
            return not self < other

    epochs = [*range(1, 301), *range(201, 401)]  # again from a checkpoint
    rows = [{"row": {"epoch": Epoch(n), "of": k}} for k, n in enumerate(epochs)]
    monkeypatch.setattr("horn.cluster.remote_files.notes", lambda _: rows)
    client = Going((PROGRESS,))
    client.read_all = lambda *_: b""
    found = remote_files.history(client, "one-1")
    assert [row["epoch"] for row in found] == [*range(1, 401)]
    assert [row["of"] for row in found] == [*range(200), *range(300, 500)]
    assert n_asked <= 3 * len(rows)


def test_the_columns_of_callbacks_are_in_the_history_and_their_numbers_in_a_status(tmp_path: Path):
    """The rows are written before the callbacks are called; with servers two may be, before."""
    said: list[Any] = []
    writer = ProgressWriter(said.append, 1, tmp_path / PROGRESS)
    for epoch in (1, 2):
        writer.epoch({"epoch": epoch, "loss": 0.5, "active": 3.0, "samples_per_s": 9.0})
    own = {"gap": 0.1, "nan": float("nan"), "name": "a", "list": [1.0], "n" * 20_000: 1}
    writer.added(1, own)

    class One(Going):
        def read(self, job: str, host: str, name: str, offset: int = 0, *_: Any, **__: Any) -> Any:
            return offset, (tmp_path / PROGRESS).read_bytes()[offset:]

    first, second = remote_files.history(One((PROGRESS,)), "one-1")
    assert first["gap"] == 0.1 and first["list"] == [1.0] and first["loss"] == 0.5
    assert second["epoch"] == 2 and "gap" not in second
    writer.note("noted")
    writer.waits("waits")

    def metrics() -> Any:
        status = JobStatus("one-1", JobState.RUNNING, None, JobRecord(), said[-1].progress, {},
                           0.0, 1, 0.0)  # fmt: skip
        return as_json(status)["metrics"]

    assert metrics() == {"loss": 0.5, "active": 3.0, "gap": 0.1}
    writer.added(2, {"other": True})
    assert metrics() == {"loss": 0.5, "active": 3.0, "other": True}


@pytest.mark.parametrize("quiet", [False, True])
def test_who_is_attached_hears_each_note_once(quiet: bool, capsys: pytest.CaptureFixture[str]):
    """That checkpoints were not saved was told nobody. Hosts that share a folder have one log."""
    lines = [
        b'{"note": "Group 3 comes.", "at": 1.0}', b'{"row": {"epoch": 1}, "at": 2.0}',
        b'{"note": "It is not saved.", "at": 3.0}', b'{"note": "Saved again.", "at": 4.0}',
        b'{"note": "It is not saved.", "at": 5.0}',
    ]  # fmt: skip
    log, allocations = b"", {"a": Allocation(1, "127.0.0.1", (0,))}

    class One(Going):
        def read(self, job: str, host: str, name: str, offset: int = 0, *_: Any, **__: Any) -> Any:
            return offset, log[offset:]

        def status(self, job: str) -> Any:
            return JobStatus(job, state, None, JobRecord(allocations=allocations),
                             {}, {}, 0.0, 1, 0.0)  # fmt: skip

    watch, client = JobWatcher("one-1", terminal.progress(quiet), quiet), One()
    watch.progress.epoch = lambda row: None  # type: ignore[method-assign]
    state = JobState.RUNNING
    for line in lines[:4]:
        log += line + b"\n"
        assert not watch.show_news(client)
    allocations = {"b": allocations["a"]}
    assert not watch.show_news(client)
    log, allocations, state = log + lines[4] + b"\n", {}, JobState.FAILED
    assert watch.show_news(client)
    said = ["Group 3 comes.", "It is not saved.", "Saved again.", "It is not saved."]
    assert capsys.readouterr().err.splitlines() == ([] if quiet else said)


def test_a_note_is_in_the_progress_that_a_status_has_while_the_job_goes_on(tmp_path: Path):
    said: list[Any] = []
    ProgressWriter(said.append, 1, tmp_path / PROGRESS).note("n" * 5000)
    at = said[0].progress
    assert at["note"] == "n" * 1000
    for state, attempt, note in (
        (JobState.RUNNING, 1, at["note"]), (JobState.STOPPING, 1, at["note"]),
        (JobState.SUCCEEDED, 1, ""), (JobState.PENDING, 1, ""), (JobState.RUNNING, 2, ""),
    ):  # fmt: skip
        record = JobRecord(attempt=attempt)
        status = JobStatus("one-1", state, None, record, {**at, "waits": "w"}, {}, 0.0, 1, 0.0)
        assert status.note == note and status.reason == "w" * bool(note)
        assert (f"Noted last: {note}" in _details(status, ())) == (note != "")


@pytest.mark.parametrize("is_begun", [False, True])
def test_the_quiet_hear_why_a_job_does_not_run_and_nothing_else(
    is_begun: bool, capsys: pytest.CaptureFixture[str]
):
    """What waits for slots may wait for ever, and showed nothing at all."""
    watch = JobWatcher("one-1", terminal.progress(quiet=True), quiet=True)
    watch.is_begun = is_begun

    def look(state: JobState, **record: Any) -> str:
        watch._say(JobStatus("one-1", state, None, JobRecord(**record), {}, {}, 0.0, 1, 0.0))
        return capsys.readouterr().err

    reason = "waits for 8 slots; no worker is up"
    assert look(JobState.PENDING) == ""
    assert look(JobState.PENDING, reason=reason) == f"PENDING: {reason}\n"
    assert look(JobState.PENDING, reason=reason) == "", "once"
    assert look(JobState.RUNNING, reason="waits for 4 slots for more groups") == ""
    assert look(JobState.RESTARTING, trouble="killed") == ""
    assert look(JobState.RESTARTING, trouble="killed", reason=reason).startswith("RESTARTING: ")


def test_what_is_written_after_a_cut_line_is_whole(tmp_path: Path):
    path = tmp_path / PROGRESS
    path.write_bytes(ROWS + CUTS[0])
    writer = ProgressWriter(lambda said: None, 1, path)
    writer.note("on")
    writer.note("and on")
    assert [said.get("note", 1) for said in notes(path.read_bytes().splitlines())] == [
        1, "on", "and on"
    ]  # fmt: skip


def test_what_a_full_disk_did_not_take_is_written_once_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The rows of a history were lost, though the job went on and had its model."""
    path = tmp_path / "gone" / PROGRESS
    writer = ProgressWriter(lambda said: None, 1, path)
    writer.note("one")
    writer.note("two")
    assert caplog.text.count("progress not written, make room") == 1
    path.parent.mkdir()
    writer.note("three")
    path.parent.rename(tmp_path / "away")
    writer.note("four")
    (tmp_path / "away").rename(path.parent)
    writer.end()
    writer.end()
    found = [said["note"] for said in notes(path.read_bytes().splitlines())]
    assert found == ["one", "two", "three", "four"]
