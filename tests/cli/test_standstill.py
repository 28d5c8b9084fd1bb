"""What commands say of jobs that nobody works on: all workers are gone, and masters with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import zk
from horn import terminal
from horn.cli import doctor
from horn.cli._remote import JobWatcher, StandstillNotice
from horn.cluster import handles, submission
from horn.cluster.client import ClusterClient
from horn.cluster.job_status import JobStatus
from horn.cluster.master import Allocation, JobRecord
from horn.cluster.submission import Submission
from horn.coordination.jobs import JobState
from horn.coordination.membership import Membership
from horn.coordination.paths import LAYOUT
from horn.errors import Conflict, ProtocolError, Timeout
from tests.cli.conftest import Result

Run = Callable[..., Result]
JOB = "one-1a2b"
RECORD = JobRecord(1, allocations={"w1": Allocation(1, "127.0.0.1", (0,))}, hosts=("w1",))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterClient]:
    """A cluster without a worker, and a job that ran on one."""
    with zk.EmbeddedServer() as server, ClusterClient(server.hosts, timeout_s=20.0) as client:
        monkeypatch.setenv("HORN_ZK", server.hosts)
        wanted = Submission(job=JOB, target="job.py", package="ab" * 32, user="u")
        client.jobs.create(JOB, submission.unsigned(wanted))
        client.coord.set(client.paths.state(JOB), b"RUNNING")
        client.coord.set(client.paths.record(JOB), msgspec.json.encode(RECORD))
        yield client


def still(client: ClusterClient) -> str:
    start = f"horn worker --zk {client.hosts} --slots N"
    return f"stands still, since no worker is up: start one with  {start}"


@pytest.mark.net
def test_a_job_without_workers_is_not_said_to_run_on_them(alone: ClusterClient, run: Run):
    """It was shown as RUNNING on a worker that had been killed, for ever."""
    done = run("status", JOB)
    assert f"\nIt {still(alone)}.\nOn w1, which is down or cut off: ranks 0\n" in done.out
    assert f"{JOB} {still(alone)}" in run("status").err
    found = run("status", JOB, "--json").json
    assert (found["state"], found["reason"]) == ("RUNNING", still(alone))
    alone.coord.create(f"{alone.paths.workers()}/w1", ephemeral=True)
    assert "\nOn w1: ranks 0\n" in (shown := run("status", JOB).out) and "still" not in shown
    alone.coord.delete(f"{alone.paths.workers()}/w1")
    alone.coord.set(alone.paths.state(JOB), b"FAILED")
    assert "still" not in run("status", JOB).out, "nothing is to go on"


@pytest.mark.net
def test_who_waits_for_a_job_without_workers_is_told_so(alone: ClusterClient, run: Run):
    """They waited without a word; a job that was stopped was said to save."""
    line = f"Job {JOB} {still(alone)}\n"
    done = run("status", JOB, "--wait", "--timeout", "0s")
    late = f"Error: job {JOB} is {{}} after 0 s: it {still(alone)}\n"
    assert (done.code, done.err) == (124, line + late.format("RUNNING"))
    done = run("stop", JOB, "--timeout", "0s")
    asked = f"Job {JOB} is to stop.\n"
    assert (done.code, done.err) == (124, asked + line + late.format("STOPPING"))
    assert run("stop", JOB, "--now", "--timeout", "0s").err == line + late.format("STOPPING")
    assert run("stop", JOB, "--no-wait").err == asked + line
    ends = f"wait for its end:  horn status {JOB} --wait\n"
    done = run("rm", JOB)
    assert (done.code, done.err) == (6, f"Error: job {JOB!r} is STOPPING; {ends}")
    done = run("resume", JOB)
    kind = "what FAILED or was STOPPED is resumed"
    assert (done.code, done.err) == (6, f"Error: job {JOB!r} is STOPPING; {kind}; {ends}")


@pytest.mark.net
def test_who_waits_for_other_groups_without_workers_is_told_so(alone: ClusterClient, run: Run):
    """It waited for ten minutes without a word."""
    wanted = Submission(job=JOB, target="job.py", package="ab" * 32, user="u", groups=2, servers=1,
                        strategy="downpour")  # fmt: skip
    alone.coord.set(alone.paths.spec(JOB), submission.unsigned(wanted))
    line = f"Job {JOB} {still(alone)}\n"
    done = run("scale", JOB, "--groups", "1", "--timeout", "0s")
    late = f"Error: job {JOB} has 2 groups after 0 s: it {still(alone)}\n"
    assert (done.code, done.err) == (124, line + late)
    done = run("scale", JOB, "--groups", "1", "--no-wait")
    assert (done.code, done.err) == (0, f"Job {JOB} is to have 1 group.\n{line}")


@pytest.mark.net
def test_who_waits_for_a_job_in_python_without_workers_is_told_so_once(
    alone: ClusterClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    told = f"job {JOB} {still(alone)}"
    with handles.Cluster(alone.hosts) as cluster:
        job, looks, standstill = cluster.job(JOB), list[str](), ClusterClient.standstill
        with pytest.raises(Timeout, match="is RUNNING after 0 s: it stands still"):
            job.wait(timeout=0)
        assert [record.getMessage() for record in caplog.records] == [told]

        def look(client: ClusterClient) -> str:
            looks.append(standstill(client))
            if len(looks) == 3:
                alone.coord.set(alone.paths.state(JOB), b"STOPPED")
            return looks[-1]

        monkeypatch.setattr(ClusterClient, "standstill", look)
        monkeypatch.setattr(handles, "LOOK_S", 0.0)
        assert job.wait() == "STOPPED"
    assert [record.getMessage() for record in caplog.records] == [told] * 2 and len(looks) == 3


@pytest.mark.net
def test_who_follows_logs_of_a_job_without_workers_is_told_so(alone: ClusterClient, run: Run):
    looks = []

    def look(self: object, cluster: ClusterClient) -> None:
        looks.append(cluster)
        if len(looks) == 3:
            cluster.coord.set(cluster.paths.state(JOB), b"STOPPED")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("horn.cli.logs._Reader.print_new", look)
        patch.setattr("horn.cli.logs.LOOK_S", 0.0)
        first, others = run("logs", JOB, "-f").err.split("\n", 1)
    assert first == f"Job {JOB} {still(alone)}" and "still" not in others and len(looks) == 4


def test_a_standstill_is_said_once_each_time_it_begins(capsys: pytest.CaptureFixture[str]):
    notice = StandstillNotice("Job one")
    for why in ("", "stands still", "stands still", "", "stands still"):
        cluster: Any = SimpleNamespace(standstill=lambda why=why: why)
        notice.look(cluster)
    assert capsys.readouterr().err == "Job one stands still\n" * 2


@pytest.mark.parametrize("quiet", [True, False])
def test_who_is_attached_hears_of_a_standstill_each_time_and_of_a_failure_once(
    quiet: bool, capsys: pytest.CaptureFixture[str]
):
    watch = JobWatcher("one", terminal.progress(quiet), quiet)
    for why in ("", "stands still", "stands still", "", "stands still"):
        for trouble in ("", "killed"):
            record = JobRecord(reason="waits for 4 slots for more groups" if why else "",
                               trouble=trouble, n_restarts=1)  # fmt: skip
            watch._say(JobStatus("one", JobState.RUNNING, None, record, {}, {}, 0.0, 1, 0.0, why))
    said = ["Job one stands still"] * 2
    if not quiet:
        said.insert(0, "Restarting (attempt 2): killed")
    assert capsys.readouterr().err.splitlines() == said


@pytest.mark.net
def test_a_worker_that_another_horn_registered_is_left_out_for_that_of_this_one(
    alone: ClusterClient,
    run: Run,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    """Its slots were no number, and no command that looks at the workers ended well."""
    workers = Membership(alone.coord, alone.paths.workers())
    versions_of = {"layout": LAYOUT}
    workers.join("newer", "tcp://127.0.0.1:1", versions=versions_of, info={"slots": "2"})
    alone.coord.create(f"{alone.paths.workers()}/odd", b"{", ephemeral=True)
    with ClusterClient(alone.hosts) as early, pytest.raises(ProtocolError, match="that horn wrote"):
        early.workers()  # there is no other
    own = Membership(alone.coord, alone.paths.workers())
    own.join("own", "tcp://127.0.0.1:1", versions=versions_of, info={"slots": 2, "files": 0})
    for _ in range(2):
        assert [*alone.free(alone.workers())] == ["own"]
    assert len([r for r in caplog.records if "is left out" in r.getMessage()]) == 2  # once each
    assert [worker["name"] for worker in run("status", "--json").json["workers"]] == ["own"]
    assert "worker newer is left out: workers/newer is not a worker" in caplog.text
    monkeypatch.setattr(doctor, "_call", lambda *_: "as if it answered")
    checks = {found.what: found.is_well for found in doctor._there(alone.hosts, None)}
    assert checks["Workers"] and not checks["Worker newer"] and not checks["Worker odd"]
    with pytest.raises(Conflict, match="worker newer is up"):
        alone.forget_worker("newer")
    own.close(), workers.close()
