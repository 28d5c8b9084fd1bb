"""Signals, lost sessions and vanished jobs: what commands say then, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import horn
from horn.cli import _remote
from horn.cli._end import ending
from horn.cli._remote import until_over
from horn.cluster.client import ClusterClient
from horn.coordination.jobs import JobState
from horn.coordination.session import Session
from horn.errors import NotFound
from horn.training.interrupts import Ended, exception_of
from tests.cli.processes import ended, started
from tests.cli.test_cluster import Run
from tests.cluster.agents import FOREVER, ROOT, Agents, own_port
from tests.cluster.helpers import end_session

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


class _Raised:
    """Whose finalizer hears of a signal, where an exception is ignored."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


class Looked:
    """A cluster, of which each look is taken at once."""

    def retry(self, look: Callable[[None], bool], stop: object) -> bool:
        return look(None)


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [(signal.SIGINT, KeyboardInterrupt, None), (signal.SIGTERM, Ended, 143),
     (signal.SIGHUP, Ended, 129)],
)  # fmt: skip
def test_a_signal_in_a_finalizer_ends_the_command_after_the_look(
    number: int, kind: type[BaseException], code: int | None
):
    looks: list[int] = []

    def look(_: None) -> bool:
        _Raised(number)
        looks.append(1)
        return len(looks) > 2

    def ours(number: int, frame: object) -> None:
        """Whatever there was, as under nohup, where a hangup is ignored."""

    before = signal.signal(number, ours)
    try:
        with pytest.raises(kind) as caught:
            until_over(Looked(), "job-1", look)  # type: ignore[arg-type]
        assert signal.getsignal(number) is ours
    finally:
        signal.signal(number, before)
    assert len(looks) == 1 and getattr(caught.value, "code", None) == code


LOST = """
import signal, weakref

class Thing:
    pass

def heard(_):
    signal.raise_signal({number})

thing = Thing()
reference = weakref.ref(thing, heard)
del thing
while True:  # awake: between two instructions a signal might come just before a pause for good
    pass
"""


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGTERM, 143, "Stopped by SIGTERM."), (signal.SIGHUP, 129, "Stopped by SIGHUP."),
     (signal.SIGINT, 130, "Stopped by Ctrl-C.")],
)  # fmt: skip
def test_a_signal_that_a_weakrefs_callback_hears_ends_the_command(
    folder: Path, number: int, code: int, said: str
):
    """Python ignored the exception there, and the run went on, and ended with 0."""
    (folder / "lost.py").write_text(LOST.format(number=int(number)))
    before = signal.signal(
        number, signal.SIG_DFL
    )  # tests under nohup would hand on what it ignores
    try:
        with started("submit", "lost.py", "--local", folder=folder) as process:
            assert (ended(process).strip(), process.returncode) == (said, code)
    finally:
        signal.signal(number, before)


def test_a_signal_that_comes_while_python_compiles_ends_the_command():
    """Python dropped it where it folded a large constant, and the run went on."""
    text = "mask = 2**64\n" * 50_000

    def stop(number: int, frame: object) -> None:
        raise exception_of(signal.SIGTERM)

    before = signal.signal(signal.SIGVTALRM, stop)  # of processor time: it comes while it compiles
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.02)
    try:
        with pytest.raises(Ended) as caught:
            for _ in range(20):
                compile(text, "masks", "exec")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
    assert caught.value.code == 143


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "Ctrl-C")]
)
def test_a_sweep_that_a_signal_ends_shows_what_there_is(
    folder: Path, number: int, code: int, said: str
):
    text = (folder / "job.py").read_text()
    (folder / "swept.py").write_text(
        f"{text}\nimport dataclasses, os, signal\nbase = job\n"
        f"def ends(context):\n    if context.epoch == 2:\n"
        f"        os.kill(os.getppid(), {int(number)}); signal.pause()\n"
        f"def job(): return dataclasses.replace(base(), callbacks=(ends,))\n"
    )
    words = ("sweep", "swept.py", "--local", "--set", "epochs=1,2", "--slots", "1")
    with started(*words, folder=folder) as process:
        text = ended(process)
    assert f"Stopped by {said}; this is what there is so far." in text, text
    assert process.returncode == code


def test_other_exceptions_of_finalizers_are_told(folder: Path):
    text = (
        "class Thing:\n    def __del__(self): raise SystemExit(3)\nThing()\nraise SystemExit(9)\n"
    )
    (folder / "lost.py").write_text(text)
    with started("submit", "lost.py", "--local", folder=folder) as process:
        assert "SystemExit: 3" in ended(process) and process.returncode == 1


def test_a_job_that_is_over_when_ctrl_c_comes_is_not_left():
    """It was said to go on."""

    def look(_: None) -> bool:
        signal.raise_signal(signal.SIGINT)
        return True

    until_over(Looked(), "job-1", look)  # type: ignore[arg-type]


def test_a_hangup_that_is_ignored_stays_ignored():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    looks: list[int] = []

    def look(_: None) -> bool:
        signal.raise_signal(signal.SIGHUP)
        looks.append(1)
        return len(looks) > 2

    try:
        until_over(Looked(), "job-1", look, pause_s=0.0)  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGHUP, before)
    assert len(looks) == 3


def test_a_job_that_is_not_there_any_more_is_explained():
    """ZooKeeper had lost its data, and the command said: no job 'job-1'."""

    def look(_: None) -> bool:
        raise NotFound("no job 'job-1'")

    with pytest.raises(NotFound, match="any more: somebody has removed it, or ZooKeeper has lost"):
        until_over(Looked(), "job-1", look)  # type: ignore[arg-type]


def test_ctrl_c_while_a_class_is_made_is_no_bug_of_horn(capsys: pytest.CaptureFixture[str]):
    """Python 3.11 makes a RuntimeError of it, as in an import of dataclasses."""

    @click.command()
    def command() -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    assert ending(command, []) == 130
    assert capsys.readouterr().err == "\nStopped by Ctrl-C.\n"


def test_errors_have_no_colour(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """NO_COLOR and TERM=dumb were not heard."""

    @click.command()
    def command() -> None:
        raise NotFound("it is not there")

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert ending(command, []) == 4
    err = capsys.readouterr().err
    assert err.startswith("Error: ") and "it is not there" in err and "\x1b" not in err


def test_sigterm_detaches_and_says_that_the_job_goes_on(cluster: Agents, folder: Path):
    words = ["submit", "job.py", "--set", f"epochs={FOREVER}"]
    with started(*words, folder=folder, zk=cluster.hosts) as process, cluster.client() as client:
        job = attached(process)
        process.send_signal(signal.SIGTERM)
        err = ended(process)
        assert process.returncode == 143 and f"Detached; the job goes on. horn logs -f {job}" in err
        assert client.status(job).state is JobState.RUNNING


def test_ctrl_c_before_the_first_look_says_that_the_job_goes_on(
    cluster: Agents, run: Run, monkeypatch: pytest.MonkeyPatch
):
    """While the display of its progress was imported, Ctrl-C named no job."""

    def progress(quiet: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("horn.terminal.progress", progress)
    done = run("submit", "job.py")
    job = run("list", "--json").json["jobs"][0]["id"]
    assert done.code == 130 and f"Detached; the job goes on. horn logs -f {job}" in done.err


def attached(process: subprocess.Popen[str]) -> str:
    """The job of a horn submit that has shown an epoch of it."""
    assert process.stderr is not None
    before = ""
    for line in process.stderr:
        before += line
        if line.startswith("Epoch"):
            return before.partition("Job ")[2].split()[0]
    raise AssertionError(f"it is not attached: {before}")


def test_who_waits_goes_on_in_a_new_session(
    cluster: Agents, run: Run, monkeypatch: pytest.MonkeyPatch
):
    """It ended with the session, telling the user to register again."""
    job = run("submit", "job.py", "-d").out.strip()
    sessions: list[Session] = []
    wait = _remote.until_over

    def until_over(found, name, look, pause_s=0.1):
        def looked(client):
            if client.coord not in sessions:
                sessions.append(client.coord)
                if len(sessions) == 1:
                    end_session(client.coord)
            return look(client)

        wait(found, name, looked, pause_s)

    monkeypatch.setattr(_remote, "until_over", until_over)
    done = run("status", job, "--wait", "--timeout", "60s")
    assert done.code == 0 and "SUCCEEDED" in done.out and len(sessions) == 2, done


def test_ctrl_c_at_stop_says_that_the_job_stops_all_the_same(
    cluster: Agents, run: Run, monkeypatch: pytest.MonkeyPatch
):
    """It said: nothing was saved."""

    def wait(*_: object) -> None:
        raise KeyboardInterrupt

    job = run("submit", "job.py", "-d", "--set", f"epochs={FOREVER}").out.strip()
    with cluster.client() as client:
        cluster.wait_running(client, job)
        with monkeypatch.context() as patch:
            patch.setattr(_remote, "wait", wait)
            done = run("stop", job)
        assert done.code == 130 and f"request to stop stands: horn status {job} --wait" in done.err
        assert cluster.wait_ended(client, job).state is JobState.STOPPED


def test_up_ends_with_its_job_and_says_so(folder: Path):
    """It said that the job goes on."""
    words = ["up", "--slots", "1", "--", "job.py", "--set", f"epochs={FOREVER}"]
    with started(*words, folder=folder) as process:
        job = attached(process)
        process.send_signal(signal.SIGINT)
        err = ended(process)
    assert process.returncode == 130 and err.endswith(f"\nThe job {job} ends with horn up.\n")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(KeyboardInterrupt(), 130, "Ctrl-C"), (Ended(143), 143, "SIGTERM")],
)
def test_up_says_what_ended_it_before_its_job_began(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
):
    """It ended without a word."""

    def submit(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(_remote, "submit", submit)
    done = run("up", "--slots", "1", "--", "job.py")
    assert done.code == code and done.err.strip() == f"Stopped by {said}.", done.err


def test_up_refuses_a_job_that_would_not_be_waited_for(run: Run):
    done = run("up", "--slots", "1", "--", "job.py", "--detach")
    assert done.code == 2 and "--detach: the job would end with its cluster" in done.err


def test_up_ends_when_its_worker_cannot_go_on(folder: Path):
    """There was a traceback of a thread, and a cluster without a worker that stayed."""
    with started("up", "--slots", "1", folder=folder) as process:
        assert process.stderr is not None
        hosts = process.stderr.readline().split()[1]
        with ClusterClient(hosts) as client:
            client.coord.delete(f"{client.paths.workers()}/here")
        err = ended(process)
    assert (process.returncode, err) == (
        3,
        "Error: /horn/workers/here is fenced: its node was removed\n",
    )


def test_the_nodes_of_up_end_with_the_code_of_the_first(folder: Path):
    """They ended with 0 where its job was refused."""
    words = ["up", "--join", "--first", "127.0.0.1", "--host", "127.0.0.1", "--nodes", "2",
             "--slots", "1", "--port", str(own_port())]  # fmt: skip
    with (
        started(*words, "--rank", "0", "--", "none.py", folder=folder) as first,
        started(*words, "--rank", "1", folder=folder) as second,
    ):
        assert "none.py" in ended(first)
        ended(second)
    assert (first.returncode, second.returncode) == (4, 4)


def test_a_reader_that_has_gone_is_no_failure(folder: Path):
    """As of head: click ended with 1."""
    with started("--help", folder=folder) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, "")  # type: ignore[union-attr]


UNREAD = """
import horn

class Says(horn.Callback):
    everywhere = {everywhere}

    def on_epoch_end(self, context):
        if context.epoch == 2 and context.task == 0:
            open("gone").read()  # a pipe: waits until the reader has gone
        print("epoch", context.epoch, "." * 9000)  # more than a buffer takes

def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(4)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(net, horn.data.digits()[:64], epochs=4, callbacks=[Says()])

def report(run):
    print("report", len(run.history))
"""


@pytest.mark.parametrize("words", [(), ("--tasks", "2")])
def test_a_run_goes_on_whose_reader_has_gone(words: tuple[str, ...], folder: Path):
    """As of grep -m1: the run was thrown away, with exit code 0."""
    (folder / "says.py").write_text(UNREAD.format(everywhere=bool(words)))
    os.mkfifo(folder / "gone")
    with subprocess.Popen(
        [sys.executable, "-m", "horn", "submit", "says.py", *words], cwd=folder, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert any(line.startswith("Epoch 1/4") for line in process.stdout)
        process.stdout.close()
        (folder / "gone").write_text("")
        assert process.wait(60) == 0
    assert horn.Model.load(folder / "says.horn").facts["epochs"] == 4


def test_a_broken_pipe_of_the_users_own_is_no_reader_that_has_gone(folder: Path):
    (folder / "pipe.py").write_text('def job():\n    raise BrokenPipeError(32, "mine")\n')
    with started("submit", "pipe.py", folder=folder) as process:
        assert "pipe.py:2  raise BrokenPipeError" in ended(process)
    assert process.returncode == 1


def test_ctrl_c_while_the_commands_are_loaded_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    with started("--help", folder=tmp_path) as process:
        assert ended(process) == "" and process.returncode == -signal.SIGINT
