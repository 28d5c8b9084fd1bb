"""Groups and servers as processes: what is killed, stopped or wrong is the named first failure."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import BarrierTimeout, JobError, TaskFailed
from horn.strategies.downpour import Downpour
from horn.training.progress import Progress
from tests.contracts.test_strategies import LocalAverage
from tests.support.runs import (
    LATE_S,
    NEVER_S,
    At,
    Notes,
    children,
    data,
    endless,
    job,
    nothing_is_left,  # noqa: F401 (a fixture)
    patient,  # noqa: F401 (a fixture)
    pid_of,
    stop,
)

pytestmark = [pytest.mark.net, pytest.mark.cluster]


@dataclass(frozen=True)
class Held(Downpour):
    """All wait before batch ``at`` until there is a file. Every batch is pushed."""

    server_optimizer: str = "adagrad"
    mark: str = ""
    at: int = 0

    def before_batch(self, memory, view):
        while self.mark and view.n_batches >= self.at and not os.path.exists(self.mark):
            time.sleep(0.001)  # between two looks
        yield from super().before_batch(memory, view)


def killed(rank: int, n_processes: int, **settings: Any) -> TaskFailed:
    """What is said when the process of a rank is killed."""
    pids = {}

    def kill() -> None:
        pids.update({n: pid for pid, n in children().items()})
        assert set(pids) >= set(range(n_processes))
        os.kill(pids[rank], signal.SIGKILL)

    with pytest.raises(TaskFailed) as caught:
        horn.train(endless(), progress=At(kill), max_restarts=0, superstep_timeout=NEVER_S,
                   **settings)  # fmt: skip
    error = caught.value
    assert (error.task, error.pid, error.exit_code) == (rank, pids[rank], 1)
    assert "was killed by SIGKILL" in str(error)
    return error


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("more", [{}, {"transport": "ipc"}, {"transport": "tcp"}])
def test_a_killed_server_is_the_first_failure(more):
    error = killed(3, 4, groups=2, servers=2, strategy="downpour", **more)
    assert str(error).startswith(f"First failure: server 1 (pid {error.pid})")
    assert "The other 3 tasks were stopped" in str(error)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("servers", [0, 1])
def test_a_killed_worker_of_another_group_is_the_first_failure(servers):
    error = killed(1, 2 + servers, groups=2, servers=servers, strategy="downpour")
    assert str(error).startswith(f"First failure: task 1 (pid {error.pid})")


@pytest.mark.usefixtures("patient")
def test_a_killed_worker_of_a_strategy_without_servers_is_the_first_failure():
    error = killed(3, 4, groups=2, tasks=2, strategy=LocalAverage())
    assert str(error).startswith(f"First failure: task 3 (pid {error.pid})")


@pytest.mark.parametrize(
    "groups, tasks, stopped",
    [
        (2, 2, 3),
        pytest.param(2, 2, 0, marks=pytest.mark.slow),
        pytest.param(2, 1, 1, marks=pytest.mark.slow),
        pytest.param(2, 1, 0, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_task_is_named_by_its_rank(groups, tasks, stopped):
    with pytest.raises(BarrierTimeout) as caught:
        horn.train(
            endless(), groups=groups, tasks=tasks, strategy="downpour", superstep_timeout=LATE_S,
            max_restarts=0, progress=At(lambda: stop(pid_of(stopped))),
        )  # fmt: skip
    assert caught.value.absent == (f"task {stopped}",)
    assert f"task {stopped} (pid" in str(caught.value) and "is stopped" in str(caught.value)


def test_a_group_of_one_task_that_is_stopped_starts_again(tmp_path):
    mark = tmp_path / "mark"
    watcher = Notes(None)

    def act():
        stop(pid_of(1))
        mark.touch()

    watcher.act = act
    horn.train(
        job(epochs=8), groups=2, strategy=Held(mark=str(mark), at=6), superstep_timeout=LATE_S,
        checkpoints=tmp_path / "c", progress=watcher,
    )  # fmt: skip
    assert len(watcher.notes) == 1 and watcher.notes[0].startswith("Restarting group 1")
    assert "without a heartbeat" in watcher.notes[0]


def test_a_stopped_server_is_named():
    with pytest.raises(BarrierTimeout) as caught:
        horn.train(
            endless(), groups=2, strategy="downpour", superstep_timeout=LATE_S,
            max_restarts=0, progress=At(lambda: stop(pid_of(2))),
        )  # fmt: skip
    assert caught.value.absent == ("server 0",)
    assert "server 0 has not answered" in str(caught.value)


@dataclass(frozen=True)
class Raises:
    """A schedule with a fault that only servers meet: no group has more than eight iterations, and
    servers count the updates of all groups."""

    initial: float = 0.1

    def at(self, iteration):
        return self.initial / (9 - iteration)


@pytest.mark.parametrize("servers", [0, 1])
def test_the_users_line_that_a_server_meets_is_in_the_first_failure(servers):
    given = job(optimizer=horn.SGD(Raises()), batch_size=15)  # epochs of 2 iterations
    with pytest.raises(TaskFailed) as caught:
        horn.train(given.with_settings(epochs=4), groups=2, servers=servers,
                   strategy=horn.Downpour(server_optimizer="job"),
                   superstep_timeout=NEVER_S)  # fmt: skip
    who = "server 0" if servers else "task 0"
    assert str(caught.value).startswith(f"First failure: {who} (pid")
    assert "return self.initial / (9 - iteration)" in str(caught.value)
    assert "ZeroDivisionError" in str(caught.value)


@dataclass(frozen=True)
class Busy(Downpour):
    """Group 0 makes three updates and is then busy for ever; then group 1 begins."""

    mark: str = ""

    def before_batch(self, memory, view):
        if view.group == 0 and view.n_batches == 3:
            os.close(os.open(self.mark, os.O_CREAT))
            while True:
                time.sleep(0.001)  # until it is killed
        while self.mark and view.group == 1 and not os.path.exists(self.mark):
            time.sleep(0.001)  # between two looks
        yield from super().before_batch(memory, view)


def test_what_a_guest_meets_is_the_first_failure_while_its_task_is_busy(tmp_path):
    given = job(optimizer=horn.SGD(Raises()), batch_size=15)  # group 1 has eight
    strategy = Busy(server_optimizer="job", mark=str(tmp_path / "mark"))
    with pytest.raises(TaskFailed) as caught:
        horn.train(given.with_settings(epochs=4), groups=2, servers=0, strategy=strategy)
    assert str(caught.value).startswith("First failure: task 0 (pid")
    assert "return self.initial / (9 - iteration)" in str(caught.value)


class Moody(LocalAverage):
    """It raises in group 1."""

    def after_batch(self, memory, view):
        if view.group == 1 and view.n_batches == 5:
            raise RuntimeError(f"enough of {len(view.parameters)} arrays")
        yield from super().after_batch(memory, view)


def test_the_line_of_a_strategy_of_the_user_is_in_the_first_failure():
    with pytest.raises(TaskFailed) as caught:
        horn.train(endless(), groups=2, strategy=Moody())
    assert str(caught.value).startswith("First failure: task 1 (pid")
    assert 'raise RuntimeError(f"enough of' in str(caught.value)
    assert "RuntimeError: enough of" in str(caught.value)


class Uneven(LocalAverage):
    """Its groups ask for the mean of different arrays."""

    def after_batch(self, memory, view):
        yield horn.strategies.Mean(list(view.parameters.values())[view.group :])


def test_groups_that_ask_for_different_means_are_told():
    with pytest.raises(horn.HornError, match="every group must ask for the mean of the same"):
        horn.train(endless(), groups=2, strategy=Uneven())


class Watcher(Progress):
    """Stops a group while it waits for a file, which it makes, and lets it go on once group 0 has
    made some more steps.
    """

    interval_s = 0.0

    def __init__(self, rank: int, mark: Path, at: int, n_more: int) -> None:
        self.rank, self.mark, self.at, self.n_more = rank, mark, at, n_more
        self.is_stopped = False
        self.went_on_at: int | None = None

    def step(self, epoch, iteration, loss, samples_per_s):
        if iteration == self.at:
            stop(pid_of(self.rank))
            self.is_stopped = True
            self.mark.touch()
        elif self.went_on_at is None and iteration == self.at + self.n_more:
            assert self.is_stopped and stopped(pid_of(self.rank))
            self.went_on_at = iteration
            os.kill(pid_of(self.rank), signal.SIGCONT)


def stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    "transport", ["shm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ipc", "tcp"))]
)
def test_a_stopped_group_does_not_stop_the_other(transport, tmp_path):
    watcher = Watcher(1, tmp_path / "mark", 20, 500)
    run = horn.train(
        job(epochs=100, batch_size=2), groups=2, strategy=Held(mark=str(watcher.mark), at=20),
        progress=watcher, transport=transport,
    )  # fmt: skip
    assert watcher.went_on_at is not None and run.state == "SUCCEEDED"
    assert run.epochs == 100 and run.iterations == 1500
    assert all(len(row["group_loss"]) == 2 for row in run.history)


def test_a_group_that_is_bound_waits_for_the_stopped_one(tmp_path):
    """With max_staleness the other goes on only so far; then it waits, and all ends well."""
    mark = tmp_path / "mark"

    class Bound(Progress):
        interval_s = 0.0
        let_go: threading.Timer | None = None

        def step(self, epoch, iteration, loss, samples_per_s):
            if iteration == 20:
                pid = pid_of(1)
                stop(pid)
                mark.touch()
                # it can end only by this
                self.let_go = threading.Timer(1.0, os.kill, (pid, signal.SIGCONT))
                self.let_go.start()

    watcher = Bound()
    run = horn.train(
        job(epochs=20, batch_size=2), groups=2, progress=watcher,
        strategy=Held(max_staleness=2, mark=str(mark), at=20),
    )  # fmt: skip
    assert watcher.let_go is not None
    watcher.let_go.join()
    assert run.iterations == 300 and max(run.staleness) <= 5


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_server_may_be_a_guest(groups, tasks, monkeypatch):
    given, started = job(epochs=4), []
    start = subprocess.Popen

    def starts(*what, **how):
        started.append(start(*what, **how))
        return started[-1]

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", starts)
        run = horn.train(
            given, groups=groups, tasks=tasks, servers=0, strategy=Downpour(max_staleness=0)
        )
    assert len(started) == groups * tasks
    other = horn.train(given, groups=groups, tasks=tasks, strategy=Downpour(max_staleness=0))
    assert [row["role"] for row in run.counters] == [f"task {k}" for k in range(groups * tasks)]
    assert set(run.staleness) == {0} and run.staleness == other.staleness
    for name, array in other.model.parameters.items():
        np.testing.assert_array_equal(run.model.parameters[name], array)


def test_more_servers_than_numbers():
    net = horn.Network(seed=1)
    net.input(1)
    net.output(2, bias=False, activation="softmax", loss="cross_entropy")
    x, y = data(12)
    given = horn.Job(net, (x[:, :1], y % 2), batch_size=4, epochs=2)
    run = horn.train(given, groups=2, servers=3, strategy="downpour")
    assert run.state == "SUCCEEDED" and len(run.counters) == 5


@pytest.mark.parametrize(
    "strategy",
    [
        Downpour(),
        pytest.param(Downpour(max_staleness=0), marks=pytest.mark.slow),
        pytest.param(LocalAverage(1), marks=pytest.mark.slow),
    ],
)
def test_more_tasks_than_neurons(strategy):
    net = horn.Network(seed=1)
    net.input(8)
    net.layer(1, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    run = horn.train(job(network=net), groups=2, tasks=3, strategy=strategy)
    assert run.state == "SUCCEEDED"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"groups": 40, "strategy": "downpour"}, "downpour: 40 groups share each batch"),
        (
            {"groups": 40, "strategy": Downpour(server_optimizer="job")},
            "downpour: 40 groups with batches of 16 need",
        ),
        ({"groups": 2, "servers": 2}, "strategy allreduce has no servers, but 2 were asked for"),
        ({"strategy": LocalAverage(), "servers": 1}, "strategy local-average has no servers"),
        ({"strategy": "downpour", "servers": -1}, "servers must be a whole number from 0, got -1"),
        ({"strategy": "downpour", "servers": 1.5}, "servers must be a whole number from 0"),
    ],
)
def test_what_no_strategy_can_do_is_said_at_once(options, message):
    with pytest.raises(JobError, match=message):
        horn.train(job(), **options)


def test_downpour_that_pushes_gradients_needs_some():
    net = horn.Network(seed=1)
    net.input(8)
    net.output(3, activation="softmax", loss="cross_entropy")
    with pytest.raises(JobError, match="needs gradients, but Direct tells"):
        pushes = Downpour(server_optimizer="job")
        horn.train(job(network=net, optimizer=horn.Direct(0.1)), groups=2, strategy=pushes)
