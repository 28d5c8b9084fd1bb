"""Tasks that are killed, stopped or misbehave: the job ends as if nothing had been, or says why.

Experiments 11, 12, 23 and 24; 10 is in test_phases.py, 23 on an agent in test_users_code.py.
pytest -m slow tests/faults/test_kills.py has the full numbers.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest

import horn
import zk
from horn.checkpoint import Checkpoints
from horn.coordination.session import Session
from horn.errors import BarrierTimeout, TaskFailed
from horn.executor.launch import launch
from horn.planner.plan import cheapest
from horn.process.job_payload import draft
from horn.training.checkpointing import RecoverySettings
from horn.training.progress import Progress
from horn.training.run_settings import RunSettings
from tests.faults.springs import Holds
from tests.support.runs import bits, children, nothing_is_left, pid_of, stop

pytestmark = [pytest.mark.net, pytest.mark.cluster]
__all__ = ["nothing_is_left"]  # a fixture
EVERY = 10
LOADED_S = 40.0  # on one that does


def job(iterations=120, **settings):
    net = horn.Network(seed=11)
    net.input(20, keep=0.9)
    net.layer(64, neuron=horn.Dropout)
    net.layer(32, activation="tanh", connect=horn.Sparse(fan_in=16))
    net.output(4, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(3)
    x = rng.standard_normal((640, 20)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int) + 2 * (x[:, 1] > 0)
    given = {"optimizer": horn.SGD(0.05, momentum=0.9), "batch_size": 32, "validation": 0.1}
    return horn.Job(net, (x, y), iterations=iterations, **{**given, **settings})


def held(mark, iteration, second="", **settings):
    """The same job, whose tasks wait there for a file: they cannot be through before what is to
    happen to them has.
    """
    schedule = Holds(str(mark), iteration, str(second))
    return job(optimizer=horn.SGD(schedule, momentum=0.9), **settings)


class Watch(Progress):
    """Notes what restarts, when, and when the first step after it came."""

    interval_s = 0.0

    def __init__(self):
        self.notes, self.noted_at, self.resumed_at = [], [], []
        self.killed_at = []
        self.last = 0

    def kill(self, pid):
        self.killed_at.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)

    def note(self, text):
        self.notes.append(text)
        self.noted_at.append(time.monotonic())

    def step(self, epoch, iteration, loss, samples_per_s):
        if len(self.resumed_at) < len(self.notes):
            self.resumed_at.append(time.monotonic())
        self.last = iteration
        self.on_step(iteration)

    def on_step(self, iteration):
        pass


# experiment 11: the model of a run with kills is that of one without


class Killer(Watch):
    """Kills a task at each of these iterations, once, and a short random time after it began.
    mark : a file that is made when all are done.
    """

    def __init__(self, at, n_tasks, rng, mark):
        super().__init__()
        self.at, self.n_tasks, self.rng, self.mark = sorted(at), n_tasks, rng, mark

    def on_step(self, iteration):
        if not self.at or iteration < self.at[0]:
            return
        running = {task: pid for pid, task in children().items()}
        if set(range(self.n_tasks)) <= running.keys():  # else this was said before the last kill
            self.at.pop(0)
            time.sleep(self.rng.random() * 0.02)  # the moment inside the iterations that follow
            self.kill(running[int(self.rng.integers(self.n_tasks))])
            if not self.at:
                self.mark.touch()


def killed(n_iterations, n_kills, seed, folder, groups=1, tasks=2):
    rng = np.random.default_rng(seed)
    at = rng.choice(np.arange(2, n_iterations - 30), n_kills, replace=False).tolist()
    mark = folder.with_name("killed")
    watch = Killer(at, groups * tasks, rng, mark)
    # Behind the last kill, and some steps behind the last checkpoint: those are heard of.
    given = held(mark, n_iterations - 15, iterations=n_iterations)
    run = horn.train(
        given, groups=groups, tasks=tasks, checkpoints=folder, checkpoint_every=EVERY,
        progress=watch, max_restarts=n_kills,
    )  # fmt: skip
    assert len(watch.killed_at) == n_kills and len(watch.notes) >= 1
    return run, watch


def same_history(run, other):
    timed = ("seconds", "samples_per_s")
    rows = [[{k: v for k, v in row.items() if k not in timed} for row in r.history]
            for r in (run, other)]  # fmt: skip
    assert rows[0] == rows[1]


def test_a_run_with_kills_gives_the_model_of_one_without(tmp_path):
    calm = horn.train(job(), tasks=2)
    run, watch = killed(120, 2, 1, tmp_path / "c")
    assert bits(run) == bits(calm)
    same_history(run, calm)
    assert "Restarting from iteration" in watch.notes[0]
    assert "(attempt 1 of 2): First failure: task" in watch.notes[0]
    assert not list((tmp_path / "c").glob("*.tmp"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("groups, tasks", [(1, 3), (2, 2)])
def test_10_kills_give_the_model_of_none(groups, tasks, number, tmp_path):
    """All of them: 20 runs of 20."""
    calm = horn.train(job(400), groups=groups, tasks=tasks)
    run, watch = killed(400, 10, number, tmp_path / "c", groups, tasks)
    assert bits(run) == bits(calm)
    same_history(run, calm)
    notice, resume = timed(watch, watch.noted_at), timed(watch, watch.resumed_at)
    print(
        f"\n{groups} x {tasks}: {len(watch.notes)} restarts; noticed after "
        f"{np.median(notice):.2f} s (worst {max(notice):.2f}), first new superstep after "
        f"{np.median(resume):.2f} s (worst {max(resume):.2f})",
        file=sys.stderr,
    )


def timed(watch, when):
    """Seconds from each kill to what came of it; a kill that a restart overtook is not counted."""
    found = []
    for at in watch.killed_at:
        after = [t - at for t in when if t > at]
        if after:
            found.append(min(after))
    return found


# what the user's code in tasks needs to know


def horn_task():
    """Whether this process is a task: its parent asks the schedule, too, for the plan."""
    import sys

    return sys.argv[0] == "-c"


def first(mark):
    """Whether nobody was here before."""
    import os

    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


@pytest.mark.slow
def test_servers_and_their_groups_start_again():
    """Under Downpour without checkpoints: from the beginning."""
    watch = Watch()
    once = []

    def kill():
        once.append(os.kill(pid_of(2), signal.SIGKILL))

    watch.epoch = lambda row: None if once else kill()
    run = horn.train(job(40), groups=2, servers=1, strategy="downpour", progress=watch)
    assert run.state == "SUCCEEDED" and len(watch.notes) == 1
    assert "Restarting from iteration 0" in watch.notes[0] and "server 0" in watch.notes[0]
    assert [row["epoch"] for row in run.history] == list(range(1, len(run.history) + 1))


# experiment 12: a straggler is no failure


@pytest.mark.slow
def test_a_task_that_is_stopped_for_half_the_timeout_costs_no_restart():
    given, watch = job(), Watch()
    calm = horn.train(given, tasks=2)
    timers = []

    def halt(row):
        if not timers:
            pid = pid_of(1)
            stop(pid)
            timers.append(threading.Timer(3.0, os.kill, (pid, signal.SIGCONT)))
            timers[0].start()

    watch.epoch = halt
    run = horn.train(given, tasks=2, superstep_timeout=6.0, progress=watch)
    timers[0].join()
    assert watch.notes == [] and bits(run) == bits(calm)


def test_a_task_that_is_stopped_for_longer_is_replaced(tmp_path):
    mark, watch = tmp_path / "stopped", Watch()
    once = []

    def halt(row):
        if not once:
            once.append(stop(pid_of(1)))
            mark.touch()

    watch.epoch = halt
    # So long that nobody else is late, where many processes share a machine.
    run = horn.train(held(mark, 55), tasks=2, superstep_timeout=6.0, progress=watch,
                     checkpoints=tmp_path / "c", checkpoint_every=EVERY)  # fmt: skip
    assert bits(run) == bits(horn.train(job(), tasks=2))
    assert len(watch.notes) == 1 and "is stopped (SIGSTOP" in watch.notes[0]
    assert "absent: task 1" in watch.notes[0]


# experiment 23: the user's code


@dataclass(frozen=True)
class Misbehaves:
    """A schedule with a fault, met by all tasks at one iteration."""

    how: str
    initial: float = 0.05

    def at(self, iteration):
        if iteration == 12 and horn_task():
            misbehave(self.how)
        return self.initial


def misbehave(how):
    import ctypes
    import os
    import sys
    import threading

    if how == "exception":
        raise ValueError("the user's mistake")
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(3)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "loop":
        while True:
            pass
    if how == "thread":
        threading.Thread(target=threading.Event().wait).start()


@pytest.mark.parametrize(
    "how, error, words, n_restarts",
    [
        ("exception", TaskFailed, "ValueError: the user's mistake", 0),
        ("exit", TaskFailed, "SystemExit: 3", 0),
        ("segfault", TaskFailed, "was killed by SIGSEGV", 1),
        pytest.param("_exit", TaskFailed, "ended with exit code 3", 1, marks=pytest.mark.slow),
    ],
)
def test_what_the_users_code_did_is_said(how, error, words, n_restarts):
    watch = Watch()
    with pytest.raises(error) as caught:
        horn.train(job(40, optimizer=horn.SGD(Misbehaves(how))), tasks=2, progress=watch,
                   max_restarts=1, superstep_timeout=20.0)  # fmt: skip
    assert words in str(caught.value)
    assert sum("Restarting" in note for note in watch.notes) == n_restarts
    assert horn.train(job(10), tasks=2).state == "SUCCEEDED"  # the next job runs


@pytest.mark.slow
def test_an_endless_loop_of_the_users_is_named_with_its_line():
    watch = Watch()
    with pytest.raises(BarrierTimeout) as caught:
        horn.train(job(40, optimizer=horn.SGD(LoopsInOne())), tasks=2, progress=watch,
                   max_restarts=1, superstep_timeout=3.0)  # fmt: skip
    assert "in at" in str(caught.value) and "test_kills.py" in str(caught.value)
    assert sum("Restarting" in note for note in watch.notes) == 1


@dataclass(frozen=True)
class LoopsInOne:
    """The second task never returns."""

    initial: float = 0.05

    def at(self, iteration):
        import sys

        if iteration == 12 and sys.argv[-1].endswith(":1"):
            while True:
                pass
        return self.initial


@pytest.mark.slow
def test_a_thread_that_never_ends_holds_nothing_up():
    run = horn.train(job(20, optimizer=horn.SGD(Misbehaves("thread"))), tasks=2)
    assert run.state == "SUCCEEDED"


# experiment 24: limits


@dataclass(frozen=True)
class Crashes:
    """A schedule whose task crashes at one iteration, each time, in as many attempts as it is told
    to."""

    folder: str
    iteration: int
    times: int
    initial: float = 0.05
    after: str = ""  # once there is such a file, if it is given

    def at(self, iteration):
        import glob
        import os
        import signal
        import time

        if iteration == self.iteration and horn_task():
            ends = time.monotonic() + 60.0
            while self.after and not glob.glob(self.after) and time.monotonic() < ends:
                time.sleep(0.01)  # between two looks
            for number in range(self.times):
                if first(f"{self.folder}/crash{number}"):
                    os.kill(os.getpid(), signal.SIGKILL)
        return self.initial


def test_after_so_many_restarts_the_first_cause_is_said(tmp_path):
    watch = Watch()
    with pytest.raises(TaskFailed) as caught:
        saved = str(tmp_path / "c" / "ckpt-*-0000" / "MANIFEST.json")
        crashes = Crashes(str(tmp_path), 12, 100, after=saved)
        horn.train(job(40, optimizer=horn.SGD(crashes)), tasks=2, progress=watch,
                   max_restarts=3, checkpoints=tmp_path / "c", checkpoint_every=10)  # fmt: skip
    assert "was killed by SIGKILL" in str(caught.value)
    at = [note[: note.index(")") + 1] for note in watch.notes[:-1]]
    assert at == [f"Restarting from iteration 10 (attempt {k} of 3)" for k in (1, 2, 3)]
    assert watch.notes[-1] == "Given up: 3 restarts without a new checkpoint between them."
    assert Checkpoints(tmp_path / "c").latest().iteration == 10


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_new_checkpoint_gives_new_attempts(tmp_path):
    """Four kills, each after new checkpoints, with one restart allowed."""

    class AfterNewOnes(Killer):
        """However late a step is heard of, there is a checkpoint since the last kill."""

        newest = 0

        def on_step(self, iteration):
            there = Checkpoints(tmp_path / "c").iterations()
            n_killed = len(self.killed_at)
            if there and there[-1] > self.newest:
                super().on_step(iteration)
            if len(self.killed_at) > n_killed:
                self.newest = Checkpoints(tmp_path / "c").iterations()[-1]

    rng, mark = np.random.default_rng(0), tmp_path / "killed"
    watch = AfterNewOnes([35, 75, 115, 155], 2, rng, mark)
    run = horn.train(held(mark, 988, iterations=1000), tasks=2, checkpoints=tmp_path / "c",
                     checkpoint_every=5, progress=watch, max_restarts=1)  # fmt: skip
    assert len(watch.notes) == 4 and all("attempt 1 of 1" in note for note in watch.notes)
    assert bits(run) == bits(horn.train(job(1000), tasks=2))


def test_a_second_failure_while_it_starts_again(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"

    class Twice(Watch):
        def on_step(self, iteration):
            if iteration >= 15 and not self.killed_at:
                self.kill(pid_of(0))
                first.touch()

        def note(self, text):
            super().note(text)
            if len(self.killed_at) == 1:
                self.thread = threading.Thread(target=self.again)
                self.thread.start()

        def again(self):
            ends = time.monotonic() + 30
            while time.monotonic() < ends:
                found = [pid for pid, task in children().items() if task == 1]
                if found:
                    self.kill(found[0])
                    second.touch()  # until then all who start wait
                    return
                time.sleep(0.001)  # between two looks

    watch = Twice()
    run = horn.train(held(first, 25, second), tasks=2, checkpoints=tmp_path / "c",
                     checkpoint_every=10, progress=watch)  # fmt: skip
    watch.thread.join()
    assert len(watch.killed_at) == 2 and len(watch.notes) == 2
    assert bits(run) == bits(horn.train(job(), tasks=2))


def test_the_state_says_restarting(tmp_path):
    """What others see of it in ZooKeeper."""
    mark, seen, states = tmp_path / "killed", tmp_path / "seen", []
    given = held(mark, 30, seen, iterations=60)
    with zk.EmbeddedServer(tick_ms=500) as server, Session(server.hosts) as coord:

        def look():
            (name,) = coord.children("/horn/jobs")
            states.append(coord.get(f"/horn/jobs/{name}/state").data.decode())

        class Looks(Progress):
            def epoch(self, row):
                look()
                if not mark.exists():
                    os.kill(pid_of(0), signal.SIGKILL)
                    mark.touch()
                    self.thread = threading.Thread(target=self.wait)
                    self.thread.start()

            def wait(self):
                """Meanwhile all who start again are held up."""
                ends = time.monotonic() + 30
                while states[-1] != "RESTARTING" and time.monotonic() < ends:
                    look()
                seen.touch()

        watcher, settings = Looks(), RunSettings(tasks=2, hosts=server.hosts)
        launch(given, draft(given), lambda: cheapest(given, 2).placement, settings, watcher,
               time.perf_counter(), recovery=RecoverySettings(max_restarts=1))  # fmt: skip
        watcher.thread.join()
        assert coord.children("/horn/jobs") == []
    assert states[0] == states[-1] == "RUNNING" and "RESTARTING" in states
