"""Groups of real processes: the answer of one task, the first failure by name, nothing left."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import horn
import zk
from horn.coordination.jobs import Jobs, JobState
from horn.coordination.session import Session
from horn.errors import (
    BarrierTimeout,
    CheckpointError,
    CompileError,
    Diverged,
    JobError,
    TaskFailed,
    Timeout,
)
from horn.executor import launch as launching
from horn.executor import processes
from horn.executor.job_entry import JobEntry
from horn.executor.launch import launch, launch_at
from horn.executor.processes import ChildProcess, import_paths
from horn.executor.progress_record import ProgressRecord
from horn.executor.task_pool import TaskPool
from horn.partition.placement import Placement
from horn.planner.plan import cheapest
from horn.process.control import StartPhase
from horn.process.job_payload import draft
from horn.training.checkpointing import RecoverySettings
from horn.training.progress import Progress
from horn.training.run_settings import RunSettings
from tests.cluster.helpers import end_session, wait_until
from tests.support.combinations import share
from tests.support.runs import (
    DEADLINE_S,
    LATE_S,
    NEVER_S,
    At,
    Leaky,
    Notes,
    Waits,
    bits,
    children,
    data,
    endless,
    is_stopped,
    job,
    network,
    nothing_is_left,
    patient,
    pid_of,
    same,
    stop,
    what_is_open,
)

__all__ = ["nothing_is_left", "patient"]  # fixtures
pytestmark = [pytest.mark.net, pytest.mark.cluster]


@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_a_group_gives_the_answer_of_one_task(tasks, backend):
    if backend == "python":
        pytest.skip("the interpreter runs on one task")
    one = horn.train(job(), backend=backend)
    many = horn.train(job(), backend=backend, tasks=tasks)
    same(one, many)
    assert many.metrics["training"] == pytest.approx(one.metrics["training"])
    assert many.state == "SUCCEEDED" and many.iterations == one.iterations


@pytest.mark.parametrize("groups, tasks", [(2, 1), (3, 1), (2, 2)])
def test_groups_give_the_answer_of_one_task(groups, tasks):
    given = job()
    run = horn.train(given, groups=groups, tasks=tasks)
    same(horn.train(given), run)
    assert [row["task"] for row in run.counters] == list(range(groups * tasks))


def test_early_stopping_keeps_the_best_model_of_the_group():
    settings = {
        "validation": 0.25, "test": data(20, 1), "epochs": 12, "optimizer": horn.Adam(0.3),
        "early_stopping": horn.EarlyStopping(2),
    }  # fmt: skip
    one = horn.train(job(**settings))
    many = horn.train(job(**settings), tasks=2)
    same(one, many)
    assert (many.stopped_early, many.best_epoch) == (one.stopped_early, one.best_epoch)
    assert many.test == pytest.approx(one.test) and many.test == many.metrics["test"]
    assert many.model.evaluate(*data(20, 1)) == pytest.approx(many.test)


def test_every_transport_and_barrier_gives_the_same_bits(monkeypatch):
    # What is cheapest depends on the transport, and another placement rounds differently.
    module = importlib.import_module("horn.train")  # horn.train is the function
    monkeypatch.setattr(module, "_placement", lambda job, _: Placement.default(job.network))
    first = horn.train(job(), tasks=3)
    for settings in ({"transport": "ipc"}, {"transport": "tcp"}, {"barrier": "zookeeper"}):
        assert bits(horn.train(job(), tasks=3, **settings)) == bits(first), settings


def test_weights_may_be_pinned():
    one = horn.train(job())
    for where in ("receiver", "sender", "replicated"):
        same(one, horn.train(job(), tasks=2, pins={"layer1": where, "layer3": where}))


def test_more_tasks_than_neurons():
    given = job(network=network(hidden=2, fan_in=2), iterations=3, epochs=None)
    same(horn.train(given), horn.train(given, tasks=4))


def test_progress_and_counters_of_a_group(tmp_path):
    class Watcher(Progress):
        said = []
        interval_s = 0.0

        def begin(self, job):
            self.said.append("begin")

        def step(self, epoch, iteration, loss, samples_per_s):
            self.said.append(iteration)

        def epoch(self, row):
            self.said.append(row["epoch"] * 1000)

        def end(self):
            self.said.append("end")

    trace = tmp_path / "trace.json"
    run = horn.train(job(), tasks=2, progress=Watcher(), trace=trace)
    assert Watcher.said == ["begin", 1, 2, 3, 4, 1000, 5, 6, 7, 8, 2000, "end"]
    assert [row["task"] for row in run.counters] == [0, 1]
    sent, received = (sum(row[k] for row in run.counters) for k in ("n_sent", "n_received"))
    assert sent == received > 0
    for row in run.counters:
        assert row["n_supersteps"] > 8 and row["compute_s"] > 0 and row["sent_bytes"] > 0
        assert {row[f"n_{what}"] for what in ("dropped", "damaged", "repeated", "mended")} == {0}
    events = json.loads(trace.read_text())["traceEvents"]
    assert {e["tid"] for e in events if e["ph"] == "X"} == {0, 1}
    lines = [e for e in events if e["ph"] == "i"]
    assert len(lines) == run.counters[0]["n_supersteps"] and all(e["s"] == "g" for e in lines)
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in events if e["ph"] == "X")


def test_a_trace_that_cannot_be_written_costs_no_model(tmp_path, caplog):
    """The trained model was lost to a FileNotFoundError."""

    class Removes(horn.Callback):
        def on_train_begin(self, context):
            folder.rmdir()

    (folder := tmp_path / "gone").mkdir()
    watched = job().with_settings(callbacks=[Removes()])
    run = horn.train(watched, tasks=2, progress=False, trace=folder / "t.json")
    assert run.iterations == 8 and run.state == "SUCCEEDED"
    said = "gone/t.json: cannot be written (No such file or directory); the run is there without it"
    assert said in caplog.text


# what the processes are given


SCRIPT = """
import horn, numpy as np

SLOPE = 0.25

class Mine(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total if total > 0 else total * SLOPE)

net = horn.Network(seed=1)
net.input(2)
net.layer(6, neuron=Mine)
net.output(2, activation="softmax", loss="cross_entropy")
x = np.random.default_rng(0).standard_normal((40, 2))
run = horn.train(horn.Job(net, (x, (x[:, 0] > 0).astype(int)), epochs=2), tasks=TASKS)
run.model.save("model.horn")
print(f"{run.history[-1]['loss']:.6f}")
"""


def test_a_script_needs_no_guard(tmp_path):
    said = []
    for tasks in (1, 2):
        (tmp_path / "script.py").write_text(SCRIPT.replace("TASKS", str(tasks)))
        done = subprocess.run(
            [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(horn.__file__).parents[1])},
            timeout=DEADLINE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        said.append(done.stdout)
    assert said[0] == said[1]
    assert horn.Model.load(tmp_path / "model.horn").network.layers[1].neuron.__name__ == "Mine"


def test_what_cannot_travel_is_said_before_anything_starts(monkeypatch):
    limits = types.SimpleNamespace(low=0.1)

    class Captured(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.input * m.weight for m in messages) + limits.low)

    def started(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", started)
    net = horn.Network()
    net.input(2)
    net.output(1, neuron=Captured, loss="squared_error")
    with pytest.raises(JobError, match="cannot be given to other processes"):
        horn.train(horn.Job(net, (np.zeros((4, 2)), np.zeros((4, 1)))), tasks=2)


def test_a_python_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(JobError, match=r"task 0 cannot be started: .*/nowhere/python"):
        horn.train(job(), tasks=2)


@pytest.mark.parametrize("call", ["memfd_create", "pidfd_open"])
def test_a_start_that_fails_half_way_leaves_nothing(monkeypatch, call):
    """A process whose end cannot be watched ran on, and the error was Python's."""

    def refuse(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = what_is_open()
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(JobError, match="task 5 cannot be started: .*Too many open files"):
        ChildProcess(5, 1, "test")
    assert what_is_open() == before and 5 not in children().values()


def test_a_task_that_does_not_read_what_it_is_told_is_ended(monkeypatch, caplog):
    """Who started it waited for ever, and with it all other tasks."""
    monkeypatch.setattr(processes, "TELL_S", 0.05)
    child = ChildProcess(5, 1, "test")
    try:
        os.kill(child.process.pid, signal.SIGSTOP)
        for _ in range(100_000):
            child.tell(StartPhase(0))
            if child.process.poll() is not None or "has read nothing" in caplog.text:
                break
        assert child.process.wait(DEADLINE_S) == -signal.SIGKILL
        assert f"task=5 pid={child.process.pid}: it has read nothing for 0.05 s" in caplog.text
    finally:
        child.end()


def test_a_killed_task_that_the_kernel_holds_is_left_behind(monkeypatch, caplog):
    """One that waits for a disk: who ended it waited with it."""
    monkeypatch.setattr(processes, "KILLED_S", 0.01)
    child = ChildProcess(5, 1, "test")
    end = child.process.wait

    def never(timeout: float | None = None) -> int:
        assert timeout is not None, "it would wait for ever"
        raise subprocess.TimeoutExpired("task", timeout)

    monkeypatch.setattr(child.process, "wait", never)
    pool = TaskPool([5], 1, "test", standby=[child])
    pool.stop()
    assert pool.pids == {} and end(DEADLINE_S) in (-signal.SIGTERM, -signal.SIGKILL)
    said = f"task left behind task=5 pid={child.process.pid}: it was killed and has not ended in"
    assert said in caplog.text


def test_what_is_no_text_in_the_path_is_skipped_as_by_python(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path])
    assert len(horn.train(job(), tasks=2).history) == 2


def test_a_current_folder_that_was_removed_is_no_place_of_modules(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert import_paths() == ["/elsewhere"]


def test_a_task_that_cannot_begin_is_the_first_failure(monkeypatch, capfd):
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(
        TaskFailed, match=r"task [01] \(pid \d+\), starting\n  ended with exit code"
    ):
        horn.train(job(), tasks=2)
    assert "encodings" in capfd.readouterr().err


def test_an_interpreted_network_runs_on_one_task():
    @horn.interpreted
    class Slow(Leaky):
        pass

    net = horn.Network()
    net.input(2)
    net.output(1, neuron=Slow, loss="squared_error")
    with pytest.raises(JobError, match="a network that is interpreted runs on one"):
        horn.train(horn.Job(net, (np.zeros((4, 2)), np.zeros((4, 1)))), tasks=2)


class Foreign(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        while total > 1:
            total = total / 2
        self.feedforward(total)


def test_a_neuron_that_does_not_compile_points_at_the_users_line():
    net = horn.Network()
    net.input(2)
    net.output(1, neuron=Foreign, loss="squared_error")
    given = horn.Job(net, (np.zeros((4, 2)), np.zeros((4, 1))))
    with pytest.raises(CompileError) as alone:
        horn.train(given)
    with pytest.raises(CompileError) as grouped:
        horn.train(given, tasks=2)
    assert str(grouped.value) == str(alone.value)


# failures


@pytest.mark.parametrize(
    "number, settings",
    [
        (signal.SIGKILL, {"tasks": 3}),  # two are left, and neither is named
        (signal.SIGSEGV, {"tasks": 2}),
        (signal.SIGKILL, {"tasks": 2, "transport": "tcp"}),
        (signal.SIGKILL, {"tasks": 2, "barrier": "zookeeper"}),
    ],
)
def test_a_killed_task_is_the_first_failure(number, settings, patient):
    pids = {}

    def kill():
        pids.update({n: pid for pid, n in children().items()})
        os.kill(pids[1], number)

    with pytest.raises(TaskFailed) as caught:
        horn.train(endless(), progress=At(kill), max_restarts=0,
                   superstep_timeout=NEVER_S, **settings)  # fmt: skip
    error = caught.value
    assert (error.task, error.pid, error.exit_code) == (1, pids[1], 1)
    assert f"was killed by {number.name}" in str(error)
    assert "iteration" in str(error)
    others = "2 tasks were" if settings["tasks"] == 3 else "task was"
    assert f"The other {others} stopped" in str(error)


def test_a_stopped_task_is_named_with_what_it_owes():
    with pytest.raises(BarrierTimeout) as caught:
        horn.train(
            endless(), tasks=2, superstep_timeout=LATE_S, max_restarts=0,
            progress=At(lambda: stop(pid_of(1))),
        )  # fmt: skip
    error = caught.value
    assert error.absent == ("task 1",) and error.exit_code == 1
    text = str(error)
    assert "superstep" in text and ("collect" in text or "barrier" in text)
    assert "task 1 owes" in text and f"{LATE_S:g} s" in text, text
    assert "is stopped (SIGSTOP, or a debugger)" in text


@dataclass(frozen=True)
class Hangs:
    """A schedule that one task, whichever comes first, never returns from."""

    mark: str
    is_deaf: bool = False  # its main thread takes no signals, so that another one does
    initial: float = 0.1

    def at(self, iteration):
        if iteration >= 5:
            try:
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return self.initial
            if self.is_deaf:
                threading.Thread(target=threading.Event().wait, daemon=True).start()
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
            while True:
                pass
        return self.initial


@pytest.mark.parametrize("is_deaf", [False, True])
def test_a_task_that_hangs_says_where(is_deaf, tmp_path, monkeypatch):
    monkeypatch.setattr("horn.executor.processes.STACK_S", DEADLINE_S)  # it may get no processor
    given = endless(optimizer=horn.SGD(Hangs(str(tmp_path / "mark"), is_deaf)))
    with pytest.raises(BarrierTimeout) as caught:
        horn.train(given, tasks=3, superstep_timeout=LATE_S, max_restarts=0)
    error = caught.value
    assert len(error.absent) == 1
    assert f"{error.absent[0]} (pid" in str(error) and "is here" in str(error)
    assert f'{Path(__file__).name}", line' in str(error) and "in at" in str(error)


@dataclass(frozen=True)
class Raises:
    """A schedule with a fault in it."""

    initial: float = 0.1

    def at(self, iteration):
        return self.initial / (7 - iteration)


def test_the_users_line_is_in_the_first_failure():
    with pytest.raises(TaskFailed) as caught:
        horn.train(endless(optimizer=horn.SGD(Raises())), tasks=2)
    error = caught.value
    assert error.exit_code == 1
    assert re.search("ZeroDivisionError: (float )?division by zero", str(error))
    assert "return self.initial / (7 - iteration)" in str(error)
    assert f"{Path(__file__).name}:" in str(error) and "iteration 7" in str(error)


@dataclass(frozen=True)
class OpensTooMuch:
    """A schedule after which its task can open no file."""

    initial: float = 0.1

    def at(self, iteration):
        if iteration == 7 and Path("/proc/self/comm").read_text().startswith("horn-task"):
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
            return float(len(os.listdir("/")))
        return self.initial


def test_a_task_that_can_open_no_file_says_so():
    """It imported a module to say it, and ended without a word."""
    with pytest.raises(TaskFailed, match="Too many open files") as caught:
        horn.train(endless(optimizer=horn.SGD(OpensTooMuch())), tasks=2, max_restarts=0)
    assert 'os.listdir("/")' in str(caught.value) and "iteration 7" in str(caught.value)


@pytest.mark.parametrize("tasks", [2, 3])
def test_divergence_is_told_as_with_one_task(tasks, patient):
    given = {"optimizer": horn.SGD(1e200), "epochs": 3}
    with pytest.raises(Diverged) as alone:
        horn.train(job(**given))
    with pytest.raises(Diverged) as grouped:
        horn.train(job(**given), tasks=tasks)
    assert str(grouped.value) == str(alone.value)
    assert grouped.value.exit_code == 7


class Oja(horn.Neuron):
    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(y * (m.input - y * m.weight))
        self.feedforward(y)


def test_a_network_without_a_loss_may_diverge_on_one_task_first():
    net = horn.Network(seed=1)
    net.input(6)
    net.layer(5, neuron=Oja, bias=False)
    x = np.random.default_rng(0).standard_normal((50, 6)) * 10
    given = horn.Job(net, (x, None), optimizer=horn.Direct(), batch_size=10, epochs=3, target=None)
    with pytest.raises(Diverged, match="30 of 30 gradients are not finite.\nThe weights grew"):
        horn.train(given, tasks=2)


def test_a_timeout_is_the_parents_decision():
    """Nothing else ends this one."""
    with pytest.raises(Timeout, match="the job took more than 3 s; stopped at iteration") as caught:
        horn.train(endless(), tasks=2, timeout=3.0, superstep_timeout=NEVER_S)
    assert str(caught.value).endswith("; raise timeout (--timeout)")


def test_an_exception_of_the_watcher_ends_the_group():
    def boom():
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        horn.train(endless(), tasks=2, progress=At(boom))


def test_ctrl_c_ends_the_group():
    stop = At(lambda: os.kill(os.getpid(), signal.SIGINT))
    assert horn.train(endless(), tasks=2, progress=stop).stopped


PARENT = """
import os, sys
sys.path.insert(0, {root!r})
import horn
from horn.training.progress import Progress
from tests.support.runs import endless, children

class Tell(Progress):
    def epoch(self, row):
        if row["epoch"] == 1:
            print(*children(), flush=True)

horn.train(endless(), tasks=2, progress=Tell())
"""


def test_a_process_that_still_imports_ends_with_its_parent(tmp_path):
    """Imports that take for ever stand for those that take long on a busy machine."""
    (tmp_path / "horn").mkdir()
    (tmp_path / "horn" / "__init__.py").write_text("import time\ntime.sleep(1000)\n")
    code = (
        "import sys; from horn.executor.processes import ChildProcess\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "print(ChildProcess(0, 1, 'test').process.pid, flush=True); input()"
    )
    how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **how) as parent:
        child = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            parent.wait(DEADLINE_S)
            assert select.select([child], [], [], DEADLINE_S)[0], "it goes on without its parent"
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child, signal.SIGKILL)
            os.close(child)


def test_the_tasks_end_with_a_parent_that_is_killed(tmp_path):
    code = textwrap.dedent(PARENT).format(root=str(Path(__file__).parents[2]))
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env
    ) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        ends = [os.pidfd_open(pid) for pid in pids]
        parent.kill()
        for fd in ends:
            assert select.select([fd], [], [], DEADLINE_S)[0], "a task outlives its parent"
            os.close(fd)
    assert len(pids) == 2
    assert not [*tmp_path.iterdir()]  # a folder for a stop was made before there was one


def test_progress_that_fails_at_the_end_leaves_no_tasks(monkeypatch):
    done = []

    def ended(record):
        raise OSError("the terminal has gone")

    def nowhere():
        raise JobError("no placement")

    monkeypatch.setattr(ProgressRecord, "end", ended)
    monkeypatch.setattr(launching.Attempts, "close", lambda self: done.append("closed"))
    pool, given = types.SimpleNamespace(stop=lambda: done.append("stopped")), job()
    here = launching.JobAttempt("", "j", 0, pool, "", 1)
    with pytest.raises(OSError, match="terminal"):
        launch_at(
            here, given, draft(given), nowhere, RunSettings(tasks=2), Progress(), 0.0,
            RecoverySettings(),
        )  # fmt: skip
    assert done == ["stopped", "closed"]


# ZooKeeper


def test_a_job_leaves_no_node_behind(tmp_path):
    mark = tmp_path / "mark"
    with zk.EmbeddedServer(tick_ms=1000) as server, Session(server.hosts) as coord:
        seen = []

        def look():
            (name,) = coord.children("/horn/jobs")
            members = coord.children(f"/horn/jobs/{name}/groups/0/members")
            seen.append((name, coord.get(f"/horn/jobs/{name}/state").data, sorted(members)))
            mark.touch()

        # Its tasks are still there when its first epoch is heard of.
        given = job(name="a job!", optimizer=horn.SGD(Waits(str(mark))))

        def run(given, watcher):
            settings = RunSettings(tasks=2, barrier="zookeeper", hosts=server.hosts)
            return launch(
                given, draft(given), lambda: cheapest(given, 2).placement, settings, watcher,
                time.perf_counter(),
            )  # fmt: skip

        run(given, At(look))
        ((name, state, members),) = seen
        assert name.startswith("a-job-") and state == b"RUNNING" and members == ["0", "1"]
        assert coord.children("/horn/jobs") == []
        with pytest.raises(TaskFailed):
            run(endless(), At(lambda: os.kill(pid_of(0), signal.SIGKILL)))
        assert coord.children("/horn/jobs") == []


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_entry_that_somebody_removed_is_made_anew(is_whole):
    with (
        zk.EmbeddedServer(tick_ms=1000) as server,
        Session(server.hosts) as coord,
        JobEntry(server.hosts, "j", job(), RunSettings(tasks=2)) as entry,
    ):
        if is_whole:
            Jobs(coord).forget("j")
        else:
            coord.remove(coord.paths.job("j"))
        entry.change(JobState.RUNNING)
        assert Jobs(coord).state("j") is JobState.RUNNING
        coord.set(coord.paths.state("j"), b"as no horn writes it")
        entry.change(JobState.SUCCEEDED)
        assert Jobs(coord).state("j") is JobState.SUCCEEDED


# The run's own ZooKeeper


class Own(zk.EmbeddedServer):
    """Remembers those that a run starts."""

    made: list[Own] = []

    def __init__(self, **settings):
        super().__init__(**settings)
        Own.made.append(self)


@pytest.fixture
def own_server(monkeypatch):
    Own.made.clear()
    monkeypatch.setattr("zk.EmbeddedServer", Own)
    return lambda: Own.made[-1]


def test_a_run_whose_own_session_ended_restarts_and_succeeds(own_server, monkeypatch, tmp_path):
    mark = tmp_path / "mark"
    given = job(epochs=6, optimizer=horn.SGD(Waits(str(mark))))
    mark.touch()
    calm = horn.train(given, tasks=2)
    mark.unlink()
    entries = []

    class Seen(JobEntry):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            entries.append(self)

    monkeypatch.setattr("horn.executor.launch.JobEntry", Seen)

    def lose():
        end_session(entries[0].coord)
        wait_until(lambda: entries[0].coord._over)
        os.kill(pid_of(1), signal.SIGKILL)
        mark.touch()

    watcher = Notes(lose)
    found = horn.train(given, tasks=2, progress=watcher, superstep_timeout=NEVER_S)
    assert bits(found) == bits(calm)
    assert [note.partition(":")[0] for note in watcher.notes] == [
        "Restarting from iteration 0 (attempt 1 of 3)"
    ]


def test_a_run_outlives_its_own_zookeeper(own_server, tmp_path):
    mark = tmp_path / "mark"
    given = job(epochs=6, optimizer=horn.SGD(Waits(str(mark))))
    mark.touch()
    calm = horn.train(given, tasks=2)
    mark.unlink()

    def end():
        own_server().stop()
        mark.touch()

    watcher = Notes(end)
    found = horn.train(given, tasks=2, progress=watcher, superstep_timeout=NEVER_S)
    assert bits(found) == bits(calm)
    assert len(Own.made) == 2 and len(watcher.notes) == 1  # one for each run; one restart


def test_what_others_write_into_a_runs_own_zookeeper_does_not_end_it(own_server):
    """A worker agent whose cluster's ZooKeeper had this port before refuses the job, say."""

    def refuse():
        with Session(own_server().hosts) as coord:
            (name,) = coord.children("/horn/jobs")
            coord.set(f"/horn/jobs/{name}/state", b"FAILED")

    given = job(epochs=6)
    found = horn.train(given, tasks=2, progress=At(refuse))
    assert bits(found) == bits(horn.train(given, tasks=2))


STANDING_STILL = """
import hashlib, os, sys, threading
import horn, horn.executor.launch as launch
from horn.training.progress import Progress
from tests.support.runs import Waits, job

launch.TICK_MS = 50  # sessions last 1 s

class Steps(Progress):
    def epoch(self, row):
        if row["epoch"] == 1:
            print("stop", flush=True)
    def note(self, text):
        print("note", text, flush=True)

if __name__ == "__main__":
    given = job(epochs=6, optimizer=horn.SGD(Waits(sys.argv[2])))
    run = horn.train(given, progress=Steps(), **eval(sys.argv[1]))
    digest = hashlib.sha256()
    for name, array in sorted(run.model.parameters.items()):
        digest.update(array.tobytes())
    print("end", digest.hexdigest(), flush=True)
"""
STILL_S = 2.5  # sessions last one


@pytest.mark.parametrize(
    "who, settings",
    share(2, ["parent", "all"], [{"tasks": 2}, {"tasks": 2, "barrier": "zookeeper"}]),
)
def test_a_run_that_stood_still_goes_on(tmp_path, who, settings):
    script = tmp_path / "standing_still.py"
    script.write_text(STANDING_STILL)
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    mark = tmp_path / "mark"
    run = subprocess.Popen([sys.executable, str(script), repr(settings), str(mark)], env=env,
                           text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    try:
        assert run.stdout.readline() == "stop\n"
        tasks = list(children(run.pid))
        assert len(tasks) == 2
        stopped = [run.pid] if who == "parent" else [*tasks, run.pid]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda pid=pid: is_stopped(pid))
        mark.touch()  # whoever runs comes to the end of the second epoch
        threading.Event().wait(STILL_S)  # the experiment: time passes for nobody
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        out, err = run.communicate(timeout=DEADLINE_S)
    finally:
        run.kill()
        run.communicate()
    one = horn.train(job(epochs=6, optimizer=horn.SGD(Waits(str(mark)))), **settings)
    digest = hashlib.sha256()
    for _, array in sorted(one.model.parameters.items()):
        digest.update(array.tobytes())
    assert out.splitlines() == [f"end {digest.hexdigest()}"], err
    assert err.count("stood still") <= 1 and len(err.splitlines()) <= 1


@pytest.mark.parametrize("has_gone", [True, False])
def test_a_checkpoint_that_has_gone_is_no_end_of_a_job_of_a_cluster(
    has_gone, tmp_path, monkeypatch
):
    """An attempt before it, whose agent stood still, had removed the one that was chosen."""
    start = types.SimpleNamespace(path=tmp_path / "ckpt-000000050-1000")
    if not has_gone:
        start.path.mkdir()

    class Begun(launching.Attempts):
        def __init__(self, *given):
            self.start, self.record = start, types.SimpleNamespace(end=lambda: None)

        def monitor(self, *given):
            return monitor

        def repairs(self, *given):
            return monitor

        def listen(self, *given):
            raise CheckpointError(str(start.path), "is damaged")

        def close(self):
            pass

    monitor = types.SimpleNamespace(is_repairable=lambda error: False, is_given_up=False)
    monitor.begin = lambda: None
    monkeypatch.setattr(launching, "Attempts", Begun)
    pool = types.SimpleNamespace(stop=lambda: None)
    attempt = launching.JobAttempt("", "", 0, pool, "", 1)
    recovery = types.SimpleNamespace(journals=None)
    with pytest.raises(CheckpointError):
        launch_at(attempt, None, None, lambda: None, None, None, 0.0, recovery)
    assert attempt.is_repairable is has_gone
