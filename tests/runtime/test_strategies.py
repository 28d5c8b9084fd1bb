"""Groups and servers as processes: what is killed, stopped or wrong is the named first failure."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import BarrierTimeout, JobError, TaskFailed
from horn.progress import Progress
from horn.strategies.downpour import Downpour
from tests.contracts.test_strategies import LocalAverage
from tests.runtime.test_launch import (
    At,
    children,
    data,
    endless,
    job,
    nothing_is_left,  # noqa: F401 (a fixture)
    pid_of,
)

pytestmark = [pytest.mark.net, pytest.mark.cluster]
DEADLINE_S = 30.0


def killed(rank: int, n_processes: int, **settings: Any) -> TaskFailed:
    """What is said when the process of a rank is killed."""
    pids = {}

    def kill() -> None:
        pids.update({n: pid for pid, n in children().items()})
        assert set(pids) >= set(range(n_processes))
        os.kill(pids[rank], signal.SIGKILL)

    began = time.monotonic()
    with pytest.raises(TaskFailed) as caught:
        horn.train(endless(), progress=At(kill), max_restarts=0, **settings)
    assert time.monotonic() - began < DEADLINE_S
    error = caught.value
    assert (error.task, error.pid, error.exit_code) == (rank, pids[rank], 1)
    assert "was killed by SIGKILL" in str(error)
    return error


@pytest.mark.parametrize("more", [{}, {"transport": "ipc"}, {"transport": "tcp"}])
def test_a_killed_server_is_the_first_failure(more):
    error = killed(3, 4, groups=2, servers=2, strategy="downpour", **more)
    assert str(error).startswith(f"First failure: server 1 (pid {error.pid})")
    assert "The other 3 tasks were stopped" in str(error)


@pytest.mark.parametrize("servers", [0, 1])
def test_a_killed_worker_of_another_group_is_the_first_failure(servers):
    error = killed(1, 2 + servers, groups=2, servers=servers, strategy="downpour")
    assert str(error).startswith(f"First failure: task 1 (pid {error.pid})")


def test_a_killed_worker_of_a_strategy_without_servers_is_the_first_failure():
    error = killed(3, 4, groups=2, tasks=2, strategy=LocalAverage())
    assert str(error).startswith(f"First failure: task 3 (pid {error.pid})")


@pytest.mark.parametrize("groups, tasks, stopped", [(2, 2, 3), (2, 2, 0)])
def test_a_stopped_task_is_named_by_its_rank(groups, tasks, stopped):
    with pytest.raises(BarrierTimeout) as caught:
        horn.train(
            endless(), groups=groups, tasks=tasks, strategy="downpour", superstep_timeout=2.0,
            max_restarts=0, progress=At(lambda: os.kill(pid_of(stopped), signal.SIGSTOP)),
        )  # fmt: skip
    assert caught.value.absent == (f"task {stopped}",)
    assert f"task {stopped} (pid" in str(caught.value) and "is stopped" in str(caught.value)


def test_a_stopped_server_is_named():
    with pytest.raises(BarrierTimeout) as caught:
        horn.train(
            endless(), groups=2, strategy="downpour", superstep_timeout=2.0,
            max_restarts=0, progress=At(lambda: os.kill(pid_of(2), signal.SIGSTOP)),
        )  # fmt: skip
    assert caught.value.absent == ("server 0",)
    assert "server 0 owes" in str(caught.value)


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
    began = time.monotonic()
    with pytest.raises(TaskFailed) as caught:
        horn.train(given.with_settings(epochs=4), groups=2, servers=servers,
                   strategy=horn.Downpour(server_optimizer="job"))  # fmt: skip
    assert time.monotonic() - began < DEADLINE_S
    who = "server 0" if servers else "task 0"
    assert str(caught.value).startswith(f"First failure: {who} (pid")
    assert "return self.initial / (9 - iteration)" in str(caught.value)
    assert "ZeroDivisionError" in str(caught.value)


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
        horn.train(endless(), groups=2, strategy=Uneven(), superstep_timeout=5.0)


class Watcher(Progress):
    """Stops a group after some steps, and lets it go on once group 0 has made more of them."""

    interval_s = 0.0

    def __init__(self, rank: int, n_more: int) -> None:
        self.rank, self.n_more = rank, n_more
        self.stopped_at: int | None = None
        self.went_on_at: int | None = None

    def step(self, epoch, iteration, loss, samples_per_s):
        if self.stopped_at is None and iteration >= 20:
            self.stopped_at = iteration
            os.kill(pid_of(self.rank), signal.SIGSTOP)
        elif self.went_on_at is None and iteration >= (self.stopped_at or 1 << 60) + self.n_more:
            assert stopped(pid_of(self.rank))
            self.went_on_at = iteration
            os.kill(pid_of(self.rank), signal.SIGCONT)


def stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("transport", ["shm", "ipc", "tcp"])
def test_a_stopped_group_does_not_stop_the_other(transport):
    watcher = Watcher(1, 500)
    run = horn.train(
        job(epochs=100, batch_size=2), groups=2, strategy="downpour", progress=watcher,
        transport=transport, timeout=60.0,
    )  # fmt: skip
    assert watcher.went_on_at is not None and run.state == "SUCCEEDED"
    assert run.epochs == 100 and run.iterations == 1500
    assert all(len(row["group_loss"]) == 2 for row in run.history)


def test_a_group_that_is_bound_waits_for_the_stopped_one():
    """With max_staleness the other goes on only so far; then it waits, and all ends well."""
    seen: list[int] = []

    class Bound(Progress):
        interval_s = 0.0
        let_go: threading.Timer | None = None

        def step(self, epoch, iteration, loss, samples_per_s):
            seen.append(iteration)
            if len(seen) == 20:
                pid = pid_of(1)
                os.kill(pid, signal.SIGSTOP)
                # it can end only by this
                self.let_go = threading.Timer(1.0, os.kill, (pid, signal.SIGCONT))
                self.let_go.start()

    watcher = Bound()
    run = horn.train(
        job(epochs=20, batch_size=2), groups=2, strategy=Downpour(max_staleness=2),
        progress=watcher, timeout=60.0,
    )  # fmt: skip
    assert watcher.let_go is not None
    watcher.let_go.join(DEADLINE_S)
    assert run.iterations == 300 and max(run.staleness) <= 5


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_server_may_be_a_guest(groups, tasks):
    n_processes = []
    given, others = job(epochs=4), len(children())  # a ZooKeeper of another test may be one
    run = horn.train(
        given, groups=groups, tasks=tasks, servers=0, strategy=Downpour(max_staleness=0),
        progress=At(lambda: n_processes.append(len(children()) - others)),
    )  # fmt: skip
    other = horn.train(given, groups=groups, tasks=tasks, strategy=Downpour(max_staleness=0))
    assert n_processes == [groups * tasks]
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


@pytest.mark.parametrize("strategy", [Downpour(), Downpour(max_staleness=0), LocalAverage(1)])
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
        ({"groups": 40, "strategy": "downpour"}, "downpour: 40 groups with batches of 16 need"),
        ({"groups": 2, "servers": 2}, "strategy allreduce has no servers, but 2 were asked for"),
        ({"strategy": LocalAverage(), "servers": 1}, "strategy local-average has no servers"),
        ({"strategy": "downpour", "servers": -1}, "servers must be a whole number from 0, got -1"),
        ({"strategy": "downpour", "servers": 1.5}, "servers must be a whole number from 0"),
    ],
)
def test_what_no_strategy_can_do_is_said_at_once(options, message):
    with pytest.raises(JobError, match=message):
        horn.train(job(), **options)


def test_downpour_needs_gradients():
    net = horn.Network(seed=1)
    net.input(8)
    net.output(3, activation="softmax", loss="cross_entropy")
    with pytest.raises(JobError, match="downpour needs gradients, but Direct adds"):
        horn.train(job(network=net, optimizer=horn.Direct(0.1)), groups=2, strategy="downpour")
