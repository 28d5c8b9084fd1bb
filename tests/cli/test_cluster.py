"""The commands that speak to a cluster, with a real one on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from horn import terminal
from horn.cli import stop, worker
from horn.cli._remote import JobWatcher
from horn.cli.logs import _Reader
from horn.cluster import remote_files
from horn.cluster.agent import Agent
from horn.cluster.client import ClusterClient
from horn.cluster.job_status import JobStatus
from horn.cluster.master import JobRecord
from horn.cluster.resume import saved
from horn.cluster.store import MARK
from horn.coordination.jobs import JobState
from horn.rpc import protocol as calls
from tests.cli.conftest import Result
from tests.cli.processes import ended, started
from tests.cluster.agents import FOREVER, ROOT, Agents, alive, own_port
from tests.cluster.helpers import end_session

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
Run = Callable[..., Result]


def test_submit_shows_the_progress_fetches_the_model_and_prints_how_good_it_is(
    cluster: Agents, run: Run, folder: Path
):
    with open(folder / "job.py", "a") as file:
        file.write("\ndef report(run):\n    print('never')\n")
    done = run("submit", "job.py", "-n", "2")
    assert done.code == 0, done.err + cluster.said()
    assert done.files == {"job.horn"}
    assert done.out.startswith("training ")
    assert "report(run) is not called: the file runs on the workers. In Python" in done.err
    for text in ("Job        job-", "Epoch 3/3", "Saved job.horn", "SUCCEEDED in"):
        assert text in done.err
    assert run("show", "job.horn").code == 0


def test_a_trace_that_cannot_be_written_is_refused_before_the_job(cluster: Agents, run: Run):
    """It was said after the job, and the trace was lost."""
    done = run("submit", "job.py", "--trace", "no/where.json")
    assert done.code == 2 and "no/where.json: the folder no does not exist" in done.err
    assert run("list", "--json").json["jobs"] == []


def test_json_of_submit_is_one_object(cluster: Agents, run: Run):
    done = run("submit", "job.py", "--json", "-q")
    assert done.code == 0, done.err
    assert done.json["schema"] == "horn.run/1" and done.json["state"] == "SUCCEEDED"
    assert done.json["iterations"] == 12 and done.json["model"] == "job.horn"
    done = run("submit", "job.py", "--json", "--detach", "--set", f"epochs={FOREVER}")
    assert done.json["schema"] == "horn.run/1" and done.json["model"] is None
    assert done.json["state"] in ("PENDING", "RUNNING")
    assert run("status", done.json["job"], "--json").json["id"] == done.json["job"]


def test_a_detached_job_is_named_listed_shown_logged_and_forgotten(cluster: Agents, run: Run):
    done = run("submit", "job.py", "--detach", "--name", "first")
    assert done.code == 0, done.err
    job = done.out.strip()
    assert job.startswith("first-") and len(job) == len("first-") + 4
    assert run("status", job, "--wait", "--timeout", "60s").code == 0
    assert run("status", "fir", "--json").json["state"] == "SUCCEEDED"
    assert run("status", "@last", "--json").json["id"] == job
    listed = run("list", "--json").json
    assert listed["schema"] == "horn.list/1" and [j["id"] for j in listed["jobs"]] == [job]
    assert job in run("list", "--state", "succeeded").out
    assert job not in run("list", "--state", "failed").out
    assert run("logs", job).code == 0
    assert run("fetch", job).out.strip() == f"{job}.horn"
    assert run("fetch", job, "-o", "mine.horn").files == {"mine.horn"}
    assert run("show", "mine.horn").code == 0
    packages = cluster.folder / "a" / "packages"
    other = run("submit", "job.py", "--detach").out.strip()
    assert run("status", other, "--wait", "--timeout", "60s").code == 0
    assert len(list(packages.iterdir())) == 1  # both have the same
    assert run("rm", job).out.strip() == job
    assert run("status", job).code == 4
    assert len(list(packages.iterdir())) == 1
    assert run("rm", other).code == 0
    assert list(packages.iterdir()) == []


def test_who_has_ended_is_shown_at_its_end(cluster: Agents, run: Run):
    """The last note of progress is of a moment before."""
    job = run("submit", "job.py", "--detach").out.strip()
    assert run("status", job, "--wait", "--timeout", "60s").code == 0
    with cluster.client() as client:
        told = client.status(job)
        at = {**told.progress, "iteration": 7, "epoch": 2, "n_epochs": 3, "loss": 99.0}
        client.coord.set(client.paths.progress(job), json.dumps(at).encode())
    found = run("status", job, "--json").json
    assert (found["iteration"], found["epoch"]) == (12, 3)
    assert found["metrics"]["loss"] == told.result["history"][-1]["loss"]
    assert "3/3" in run("status", job).out and " 12 " in run("list").out


def loud(run: Run, folder: Path) -> str:
    """A job whose file prints."""
    text = (folder / "job.py").read_text()
    said = "    print('made it')\n    import os\n    print('I am', os.environ['HORN_JOB_ID'])"
    (folder / "job.py").write_text(text.replace("def job():", f"def job():\n{said}"))
    return run("submit", "job.py", "-d").out.strip()


def test_logs_are_prefixed_with_the_process_and_can_be_followed(
    cluster: Agents, run: Run, folder: Path
):
    job = loud(run, folder)
    done = run("logs", job, "-f")
    assert done.code == 0 and f"a│ made it\na│ I am {job}\n" in done.out
    epochs = [line for line in done.out.splitlines() if line.startswith("a│ Epoch ")]
    assert [line.split()[2] for line in epochs] == ["1/3", "2/3", "3/3"] and "loss" in epochs[0]
    assert run("logs", job, "--task", "a", "--tail", "1").out == epochs[-1] + "\n"
    assert json.loads(run("logs", job, "--json").out.splitlines()[0])["text"] == "made it"
    assert run("logs", job, "--task", "g7.t7").code == 4


def test_status_of_the_cluster_says_what_is_free_and_why_a_job_waits(own_cluster: Agents, run: Run):
    job = run("submit", "job.py", "-n", "8", "-d").out.strip()
    with own_cluster.client() as client:
        own_cluster.wait(lambda: client.status(job).record.reason)
    done = run("status")
    assert "PENDING" in done.out and "1×8" in done.out
    assert "Workers 1 of 1 up · 2 of 2 slots free" in done.err
    assert f"{job} waits for 8 slots" in done.err
    found = run("status", "--json").json
    assert found["slots"] == 2 and found["workers"][0]["name"] == "a"
    assert run("rm", job).code == 6 and run("fetch", job).code == 6
    own_cluster.start("b", slots=3)
    assert "Free slots: a 2 of 2, b 3 of 3" in run("status").err
    assert run("stop", job, "--timeout", "soon").code == 2
    assert run("status", job, "--json").json["state"] == "PENDING"
    done = run("stop", job)
    assert done.code == 0 and f"Job {job} is to stop.\n" in done.err  # nothing runs that saves
    other = run("submit", "job.py", "-n", "8", "-d", "--name", "other").out.strip()
    done = run("stop", job, other)
    assert done.code == 6 and f"job {job!r} is STOPPED already" in done.err
    assert f"Job {other} STOPPED" in done.err, "it went on running"
    assert run("status", job, "--json").json["exit_code"] == 5
    done = run("list", "--limit", "1")
    assert other in done.out and job not in done.out
    assert "1 of 2 jobs; more with  --limit 2" in done.err
    assert run("list").err == "" and len(run("list", "--limit", "1", "--json").json["jobs"]) == 1


def test_a_job_that_cannot_begin_within_its_timeout_ends_with_124(cluster: Agents, run: Run):
    """It waited for good."""
    done = run("submit", "job.py", "-n", "8", "--timeout", "0.5s")
    assert done.code == 124 and "did not begin within --timeout, and is stopped" in done.err
    assert run("status", "@last", "--wait", "stopped", "--timeout", "60s").code == 0
    cause = "it did not begin within --timeout"
    assert cause in run("status", "@last").out
    assert run("status", "@last", "--json").json["cause"].startswith(cause)


@pytest.mark.parametrize("every", ["0", "0.01s", "often"])
def test_a_watch_without_a_pause_is_refused(run: Run, every: str):
    """It asked ZooKeeper without end, and a wrong time came after the first table."""
    done = run("status", "--zk", "127.0.0.1:1", "--watch", every)
    assert done.code == 2 and done.out == ""
    assert f"--watch {every}: at least 0.1 s" in done.err or "is no length of time" in done.err


def test_stop_saves_and_resume_goes_on(cluster: Agents, run: Run):
    job = run("submit", "job.py", "-d", "--set", f"epochs={FOREVER}", "-n", "2").out.strip()
    with cluster.client() as client:
        cluster.wait_running(client, job, 10)
        done = run("stop", job)
        assert done.code == 0 and "STOPPED · last checkpoint: iteration" in done.err
        assert f"Job {job} is to stop. It ends its iteration and saves; --now does" in done.err
        assert "at the next iteration; horn stop --now stops at once." in run("logs", job).out
        done = run("resume", job)
        assert done.code == 0 and "goes on from iteration" in done.err
        before = client.status(job).record.checkpoint
        cluster.wait_running(client, job, before + 1)
    assert run("resume", job).code == 6
    assert run("stop", "--now", job).code == 0


def test_stop_says_that_nothing_is_saved(cluster: Agents, run: Run):
    job = run("submit", "job.py", "-d", "--set", f"epochs={FOREVER}", "-n", "2").out.strip()
    with cluster.client() as client:
        cluster.wait_running(client, job, 10)
    done = run("stop", "--now", job)
    assert "is to stop" not in done.err
    assert "STOPPED · no checkpoint: horn resume would begin anew" in done.err
    assert "goes on from the beginning" in run("resume", job).err
    assert run("stop", "--now", job).code == 0


@pytest.mark.parametrize(
    ("state", "cause", "now", "is_lost"),
    [
        (JobState.STOPPED, "", False, False),
        (JobState.STOPPED, "it ended before it had saved", False, True),
        (JobState.FAILED, "training diverged", False, True),
        (JobState.FAILED, "training diverged", True, False),
        (JobState.SUCCEEDED, "", False, False),
    ],
)
def test_a_stop_that_could_not_save_is_told_by_its_exit_code(
    state: JobState, cause: str, now: bool, is_lost: bool
):
    """It was 0 where the job had FAILED instead of stopping."""
    status = JobStatus("one", state, None, JobRecord(), {}, {"cause": cause}, 0.0, 1, 0.0)
    assert stop._tell(status, "", now) is is_lost


def test_resume_goes_on_from_the_checkpoint_that_it_is_told(cluster: Agents, run: Run):
    job = run(
        "submit", "job.py", "-d", "--set", f"epochs={FOREVER}", "--checkpoint-every", "10"
    ).out.strip()
    with cluster.client() as client:
        cluster.wait_running(client, job, 60)
        cluster.wait(lambda: len(saved(client, job)[0]) >= 3)
        assert run("stop", job).code == 0
        iterations = saved(client, job)[0]
        assert len(iterations) == 3 and iterations == sorted(iterations)  # so many are kept
        earlier, _, last = iterations
        there = ", ".join(map(str, iterations))
        done = run("resume", job, "--from", "7")
        assert done.code == 4
        assert f"job {job} has no checkpoint of iteration 7; there are {there}" in done.err
        done = run("resume", job, "--from", "best")
        assert done.code == 4 and f"job {job} keeps no best model" in done.err
        assert run("resume", job, "--from", "first").code == 2
        assert client.jobs.state(job) is JobState.STOPPED, "what is refused changes nothing"
        done = run("resume", job, "--from", str(earlier))
        assert done.code == 0 and f"goes on from iteration {earlier:,}." in done.err
        cluster.wait(lambda: client.status(job).record.checkpoint > earlier)
        assert client.status(job).record.begin == -1, "there is a newer one of this start"
        assert run("stop", job, "--now").code == 0
        newest = saved(client, job)[0][-1]
        done = run("resume", job, "--from", "last")
        assert done.code == 0 and f"goes on from iteration {newest:,}." in done.err
        assert run("stop", job, "--now").code == 0
        # it is that one which is read, and no other in its place; several starts may have saved it
        chosen = saved(client, job)[0][0]
        folders = [*cluster.folder.glob(f"a/jobs/{job}/kept/checkpoints/ckpt-{chosen:09d}-*")]
        for folder in folders:
            (folder / "MANIFEST.json").write_text("{}")
        assert run("resume", job, "--from", str(chosen)).code == 0
        status = cluster.wait_ended(client, job)
        assert status.state is JobState.FAILED
        assert any(folder.name in status.result["cause"] for folder in folders), status.result
    assert last > earlier


TABLE = """
import numpy as np
import horn

def job(table):
    net = horn.Network(seed=3)
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    x = np.load(table)
    return horn.Job(net, (x, (x[:, 0] > 0).astype(int)), batch_size=10, epochs=%s)
"""


def test_resume_refuses_data_that_changed_unless_that_is_meant(
    cluster: Agents, run: Run, folder: Path
):
    """The files of a job go with it; data that it reads from elsewhere may be others by then."""
    table = folder / "table.npy"
    np.save(table, np.random.default_rng(0).standard_normal((40, 2)))
    (folder / "job.py").write_text(TABLE % FOREVER)
    job = run("submit", "job.py", "-d", "--checkpoint-every", "10", "--", "--table", str(table))
    job = job.out.strip()
    with cluster.client() as client:
        cluster.wait_running(client, job, 10)
        cluster.wait(lambda: client.status(job).record.checkpoint > 0)
        assert run("stop", job).code == 0
        np.save(table, np.random.default_rng(1).standard_normal((40, 2)))
        assert run("resume", job).code == 0
        status = cluster.wait_ended(client, job)
        assert status.state is JobState.FAILED and status.result["code"] == 2
        assert "is of another job: its data.x is float64 (40, 2)" in status.result["cause"]
        assert "--changed" in status.result["cause"] and status.record.n_restarts == 0
        before = status.record.checkpoint
        assert run("resume", job, "--changed").code == 0
        cluster.wait(lambda: client.status(job).record.checkpoint > before)
        assert client.status(job).record.changed is False, "what it saved is of the job as it is"
        assert run("stop", job).code == 0
        assert run("resume", job).code == 0
        before = client.status(job).record.checkpoint
        cluster.wait(lambda: client.status(job).record.checkpoint > before)
        assert run("stop", job, "--now").code == 0
    done = run("submit", "job.py", "--changed", "--", "--table", str(table))
    assert done.code == 2 and "horn resume JOB --changed" in done.err


def test_a_job_with_servers_goes_on_from_what_they_were_told(own_cluster: Agents, run: Run):
    job = run("submit", "job.py", "-d", "--set", f"epochs={FOREVER}", "--strategy", "downpour",
              "--servers", "1").out.strip()  # fmt: skip
    with own_cluster.client() as client:
        own_cluster.wait_running(client, job, 10)
        done = run("stop", job)
        assert done.code == 0 and "saves" not in done.err
        assert "STOPPED · horn resume goes on from what its servers were told last" in done.err
        assert "job runner killed" not in own_cluster.said(), (
            "nothing is saved, so nothing is waited for"
        )
    done = run("resume", job, "--from", "10")
    assert done.code == 2 and "goes on from what they were told last" in done.err
    said = run("resume", job).err
    assert f"Job {job} goes on from what its servers were told last." in said
    assert run("stop", "--now", job).code == 0


KEEPS_BEST = """
import horn
def job():
    data = horn.data.digits()
    net = horn.Network(seed=3)
    net.input(64)
    net.layer(16, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(net, data=data, optimizer=horn.SGD(0.1), batch_size=100, epochs=10_000_000,
                    keep_best=True, validation=0.2)
"""


def test_resume_from_best_is_the_checkpoint_of_the_best_epoch_if_it_is_kept(
    cluster: Agents, run: Run, folder: Path
):
    (folder / "job.py").write_text(KEEPS_BEST)
    job = run("submit", "job.py", "-d", "--checkpoint-every", "5").out.strip()
    with cluster.client() as client:
        cluster.wait_running(client, job, 100)
        assert run("stop", job).code == 0
        iterations, best = saved(client, job, wants_best=True)
        assert best > 0
        done = run("resume", job, "--from", "best")
        if best in iterations:
            assert done.code == 0 and f"goes on from iteration {best:,}." in done.err
            assert run("stop", job, "--now").code == 0
        else:
            assert done.code == 4
            assert f"no checkpoint of its best model, iteration {best}; there are" in done.err


def sessions_of(monkeypatch: pytest.MonkeyPatch, whom: type, name: str) -> list[int]:
    """Those in which a look is taken; ZooKeeper ends the first after one look."""
    sessions: list[int] = []
    look = getattr(whom, name)

    def looked(self: object, found: ClusterClient) -> bool:
        sessions.append(found.coord.session)
        is_over: bool = look(self, found)
        if len(sessions) > 1:
            return is_over
        end_session(found.coord)
        return False

    monkeypatch.setattr(whom, name, looked)
    return sessions


def test_who_follows_logs_goes_on_in_a_new_session(
    cluster: Agents, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is printed twice, and nothing is left out."""
    job = loud(run, folder)
    sessions = sessions_of(monkeypatch, _Reader, "follow")
    done = run("logs", job, "-f")
    assert done.code == 0 and done.out.count("a│ made it\n") == 1, done
    assert len(set(sessions)) == 2 and run("logs", job).out == done.out


def test_who_is_attached_goes_on_in_a_new_session(
    cluster: Agents, run: Run, monkeypatch: pytest.MonkeyPatch
):
    sessions = sessions_of(monkeypatch, JobWatcher, "show_news")
    done = run("submit", "job.py")
    assert done.code == 0 and done.files == {"job.horn"}, done.err + cluster.said()
    assert done.err.count("Epoch 3/3") == 1 and len(set(sessions)) == 2


def test_logs_since_leaves_out_what_is_older(cluster: Agents, run: Run, folder: Path):
    job = loud(run, folder)
    assert run("status", job, "--wait", "--timeout", "60s").code == 0
    assert "a│ made it\n" in run("logs", job, "--since", "1h").out
    assert "a│ made it\n" in run("logs", job, "--since", "2026-01-02T03:04Z").out
    assert run("logs", job, "--since", "1h", "--task", "a", "--tail", "0").out == ""
    with cluster.client() as client:
        path = cluster.folder / "a" / "jobs" / job / "logs" / "a.times"
        old = [(at, made_s - 7200.0) for at, made_s in MARK.iter_unpack(path.read_bytes())]
        path.write_bytes(b"".join(MARK.pack(*mark) for mark in old))  # as if it were old
        assert remote_files.read(client, job, "a", "a", age_s=3600.0)[1] == b""
    assert "made it" not in run("logs", job, "--since", "1h").out
    assert "made it" in run("logs", job, "--since", "3h").out
    for wrong in ("yesterday", "2999-01-01"):
        done = run("logs", job, "--since", wrong)
        assert done.code == 2 and wrong in done.err


def test_a_job_that_fails_ends_with_its_cause_and_exit_code(
    cluster: Agents, run: Run, folder: Path
):
    (folder / "bad.py").write_text("def job():\n    return nonsense\n")
    done = run("submit", "bad.py")
    assert done.code == 1 and done.files == set()
    assert "bad.py:2  return nonsense\nNameError" in done.err
    text = (folder / "job.py").read_text()
    (folder / "word.py").write_text(text.replace("activation=", "activatoin=", 1))
    done = run("submit", "word.py")  # with horn's lines, and code 70
    assert done.code == 1 and "word.py:8  net.layer(4, activatoin=" in done.err
    assert "did you mean activation?" in done.err and "Traceback" not in done.err
    (folder / "size.py").write_text(text.replace("net.layer(4", "net.layer(0"))
    done = run("submit", "size.py")
    assert done.code == 2 and "size.py:8  net.layer(0" in done.err
    load = 'horn.data.load("data/rows.csv")'
    (folder / "beside.py").write_text(f"import horn\n\ndef job():\n    return {load}\n")
    done = run("submit", "beside.py")
    assert done.code == 4 and "data/rows.csv: no such file" in done.err
    assert "send its folder with --working-dir DIR" in done.err
    (folder / "opened.py").write_text("def job():\n    return open('rows.csv')\n")
    done = run("submit", "opened.py")
    assert done.code == 1 and "opened.py:2" in done.err and "--working-dir DIR" in done.err
    (folder / "wild.py").write_text(
        text.replace('"softmax", loss="cross_entropy"', '"identity", loss="squared_error"')
    )
    done = run("submit", "wild.py", "--set", "optimizer.learning_rate=1e30", "--set", "epochs=50")
    assert done.code == 7, done.err
    assert "with mended ones: horn resume" in done.err
    assert run("status", "@last", "--wait").code == 7
    with started("status", "@last", "--wait", folder=folder, zk=cluster.hosts) as process:
        assert process.stdout is not None
        process.stdout.close()  # as of head: the code was 0
        assert process.wait(60) == 7
    assert run("status", "@last", "--wait", "failed").code == 0  # what was waited for is there
    assert run("status", "@last", "--wait", "succeeded", "--timeout", "60s").code == 7
    assert run("status", "@last").code == 0
    done = run("submit", "job.py", "--set", "nothing=1")
    assert done.code == 2 and "Submit it again with what is refused mended" in done.err
    assert "Continue with the files it has" not in done.err, "they would be refused again"
    assert run("submit", "none.py").code == 4


def test_ctrl_c_detaches_and_the_job_goes_on(cluster: Agents, run: Run, folder: Path):
    words = ["submit", "job.py", "--set", f"epochs={FOREVER}"]
    with started(*words, folder=folder, zk=cluster.hosts) as process, cluster.client() as client:

        def entered() -> list[str]:
            found = client.coord.children(client.paths.jobs())
            if not found and process.poll() is not None:  # as when ZooKeeper answers late
                raise AssertionError(
                    f"submit ended with {process.returncode}: {process.communicate()}"
                )
            return found

        job = cluster.wait(entered)[0]
        cluster.wait_running(client, job)
        assert process.stderr is not None
        before: list[str] = []
        for line in process.stderr:
            before.append(line)
            if line.startswith("Epoch"):
                break
        else:
            raise AssertionError(f"it is not attached: {''.join(before)}")
        process.send_signal(signal.SIGINT)
        err = ended(process)
        assert process.returncode == 130, err
        assert f"Detached; the job goes on. horn logs -f {job} · horn stop {job}" in err, err
        status = client.status(job)
        assert status.state is JobState.RUNNING, (status, cluster.said())
        client.stop(job, now=True)
        assert cluster.wait_ended(client, job).state is JobState.STOPPED, cluster.said()


def test_a_client_that_is_killed_changes_nothing(cluster: Agents):
    words = ["submit", "job.py", "--", "--epochs", "12", *cluster.held(1)]
    with (
        started(*words, folder=cluster.folder, zk=cluster.hosts) as process,
        cluster.client() as client,
    ):
        job = cluster.wait(lambda: client.coord.children(client.paths.jobs()))[0]
        cluster.wait_running(client, job)
        process.kill()
        ended(process)
        cluster.let_go()
        assert cluster.wait_ended(client, job).state is JobState.SUCCEEDED, cluster.said()


def test_a_client_that_is_stopped_by_another_ends_with_5(cluster: Agents, folder: Path):
    words = ["submit", "job.py", "--set", f"epochs={FOREVER}"]
    with started(*words, folder=folder, zk=cluster.hosts) as process, cluster.client() as client:
        job = cluster.wait(lambda: client.coord.children(client.paths.jobs()))[0]
        cluster.wait_running(client, job)
        client.stop(job, now=False)
        err = ended(process)
    assert process.returncode == 5 and "was STOPPED" in err


def test_a_worker_of_another_horn_costs_no_answer_of_others_and_is_named(
    cluster: Agents, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """One such worker ended logs, fetch, rm and, by chance, submit: version 2 is spoken there."""
    job = run("submit", "job.py", "-d").out.strip()
    assert run("status", job, "--wait").code == 0
    words = "a speaks version 2 of horn's calls, its caller version 99; install the same horn on"
    with monkeypatch.context() as patch, cluster.client() as client:
        patch.setattr(calls, "VERSION", 99)
        assert client.files(job) == client.files(job) == {}
        (told,) = caplog.messages
        assert f"worker a has of {job} is left out: {words}" in told
        assert run("logs", job).code == 0
        done = run("submit", "job.py")
        assert done.code == 3 and f"no worker takes the job's files: a: {words}" in done.err
        done = run("rm", job)
        assert done.code == 3 and f"the files of {job} on a are not removed: {words}" in done.err


def test_without_a_cluster_the_commands_say_what_to_do(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HORN_ZK", raising=False)
    done = run("status")
    assert done.code == 2 and "HORN_ZK" in done.err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        done = run("list", "--zk", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.code == 3 and "Cannot reach ZooKeeper" in done.err


def test_a_worker_that_is_refused_does_not_say_that_it_offers_slots(cluster: Agents, run: Run):
    done = run("worker", "--name", "a b", "--dir", "w", "--slots", "1")
    assert done.code == 2 and "worker name 'a b'" in done.err and "offers" not in done.err


def test_a_worker_says_that_it_offers_slots_once_it_is_admitted(
    cluster: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
):
    """It said so first, and ended since its name was taken."""
    made, said = list[Agent](), list[str]()

    def say(text: str) -> None:
        said.append(text)
        made[-1].stop()

    monkeypatch.setattr(worker, "_end_on_signals", lambda agent, save_s: made.append(agent))
    monkeypatch.setattr(terminal, "say", say)
    options = ("--dir", str(tmp_path / "w"), "--slots", "1", "--session", "1s")
    assert run("worker", "--name", "a", *options).code == 6 and said == []
    assert run("worker", "--name", "b", *options).code == 0
    assert said == [f"Worker b offers 1 slot to {cluster.hosts}. Ctrl-C ends it."]


def test_scale_says_in_what_state_a_job_is_now(
    cluster: Agents, run: Run, monkeypatch: pytest.MonkeyPatch
):
    """It said: job is RUNNING; only one that runs can be scaled."""
    job = run("submit", "job.py", "-n", "8", "--detach", "-q").out.strip()
    stop = lambda client, *_: client.stop(job, now=False)  # noqa: E731
    monkeypatch.setattr("horn.cluster.scaling._check_room", stop)
    done = run("scale", job, "--groups", "2")
    assert done.code == 6
    assert re.search(rf"job '{job}' is STOPP(ING|ED); only one that runs can be scaled", done.err)


def test_a_worker_off_loopback_without_a_key_does_not_start(run: Run):
    done = run("worker", "--zk", "127.0.0.1:1", "--host", "192.0.2.1", "--dir", "w", "--slots", "1")
    assert done.code == 2 and "horn keygen" in done.err and not done.files


def test_doctor_looks_at_the_cluster_too(
    cluster: Agents, run: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HORN_BLAS", "numpy")
    done = run("doctor", "--cluster", "--json")
    found = {check["what"]: check for check in done.json["checks"]}
    assert done.code == 0 and done.json["ok"], done.out
    assert {"Two tasks train", "Worker a, versions", "Worker a, service"} <= set(found)
    assert found["BLAS"]["found"].endswith(" cores · products by numpy")


@pytest.mark.parametrize("command", ["status", "list"])
def test_looking_imports_neither_numpy_nor_the_engine(cluster: Agents, command: str):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "horn", command, "--zk", cluster.hosts],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    took = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    heavy = {"numpy", "rich", "zmq", "safetensors", "horn.network", "horn.compiler", "horn.runtime"}
    assert took & heavy == set()


def test_up_runs_a_job_and_leaves_nothing(run: Run, folder: Path):
    done = run("up", "--slots", "2", "--", "job.py", "-n", "2", "-q")
    assert done.code == 0, done.err
    assert done.files == {"job.horn"}


def test_up_takes_the_options_of_submit_before_the_file(run: Run, folder: Path):
    done = run("up", "--slots", "2", "--", "--tasks", "2", "job.py", "-q")
    assert done.code == 0 and "training " in done.out, done.err


def test_up_does_not_name_commands_for_a_cluster_that_has_ended(run: Run, folder: Path):
    (folder / "bad.py").write_text("def job():\n    return nonsense\n")
    done = run("up", "--slots", "1", "--", "bad.py", "-q")
    assert done.code == 1 and "NameError" in done.err, done.err
    assert "Its cluster and its log end with it: mend it, and run horn up again" in done.err
    assert "horn logs" not in done.err and "horn resume" not in done.err


def test_up_refuses_more_tasks_than_it_has_slots(run: Run, folder: Path):
    """It waited for ever: no other worker can come. A plan needs no slots."""
    done = run("up", "--slots", "1", "--", "job.py", "-g", "2", "-q", "--timeout", "5s")
    assert done.code == 2 and "PENDING" not in done.err
    assert "--groups 2 --tasks 1 need 2 slots, but horn up has started 1; ask for" in done.err
    assert run("up", "--slots", "1", "--", "job.py", "-g", "2", "--dry-run").code == 0
    assert run("up", "--slots", "1", "--", "--help").code == 0


def test_up_under_slurm_makes_one_cluster_of_all_nodes(folder: Path):
    port = own_port()
    processes = []
    for rank in range(2):
        env = {**os.environ, "SLURM_PROCID": str(rank), "SLURM_NTASKS": "2",
               "SLURM_STEP_NODELIST": "127.0.0.1", "PYTHONPATH": str(ROOT)}  # fmt: skip
        words = ["up", "--slots", "1", "--host", "127.0.0.1", "--port", str(port),
                 "--", "job.py", "-n", "2", "-q"]  # fmt: skip
        processes.append(
            subprocess.Popen([sys.executable, "-m", "horn", *words], cwd=folder, env=env,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )  # fmt: skip
    said = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert (folder / "job.horn").exists()
    assert not alive([process.pid for process in processes])
