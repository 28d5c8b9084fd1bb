"""Real processes: the same bits as in one, the dead and the stopped named, nothing left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from horn.errors import BarrierTimeout
from horn.transport import PeerLost
from tests.transport.groups import (
    Processes,
    expected_digests,
    mixed,
)

pytestmark = [pytest.mark.net, pytest.mark.cluster]
SCHEMES = ["shm", "ipc", "tcp"]
HERE = "tests.transport.bodies"


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return request.param


def left_of(endpoints):
    """Those of these endpoints that still are sockets or files; other groups are not looked at."""
    unix = Path("/proc/net/unix").read_text()
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    tcp = {row[1].rpartition(":")[2] for row in rows if row[3] == "0A"}
    left = []
    for endpoint in endpoints:
        scheme, _, name = endpoint.partition("://")
        if scheme == "tcp":
            is_there = f"{int(name.rpartition(':')[2]):04X}" in tcp
        else:
            bare = name.lstrip("@")
            is_there = bare in unix or Path("/dev/shm", bare).exists()
        if is_there:
            left.append(endpoint)
    return left


def children():
    """Processes that this one has started and that have not been waited for."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@pytest.mark.parametrize("n_tasks", [2, 3, 4])
def test_processes_exchange_what_threads_do(scheme, n_tasks):
    steps = mixed(n_tasks, seed=10 + n_tasks)
    with Processes(scheme, n_tasks, f"{HERE}:digest", steps, 5) as group:
        got = [group.result(task)[0] for task in range(n_tasks)]
    assert got == expected_digests(n_tasks, steps, 5)  # as inproc: contracts/test_transport.py


@pytest.mark.parametrize("how, n_tasks", [("exchange", 3), ("barrier", 2)])
def test_a_killed_task_is_named_at_once(scheme, how, n_tasks):
    with Processes(scheme, n_tasks, f"{HERE}:go_until_trouble", how, 30.0) as group:
        assert [group.read(task) for task in range(n_tasks)] == ["here"] * n_tasks
        os.kill(group.processes[-1].pid, signal.SIGKILL)
        killed = time.monotonic()
        for task in range(n_tasks - 1):
            error, when = group.result(task)
            assert isinstance(error, PeerLost), error
            # the second to see it may meet the first one's goodbye before
            lost = {f"task {n_tasks - 1}"} if n_tasks == 2 else {"task 0", "task 1", "task 2"}
            assert set(error.lost) <= lost and "superstep 50" in str(error)
            assert when - killed < 2.0
    assert left_of(group.endpoints) == []


@pytest.mark.parametrize("how", ["exchange", "barrier"])
def test_a_stopped_task_is_named_within_the_deadline(scheme, how):
    with Processes(scheme, 3, f"{HERE}:go_until_trouble", how, 0.5) as group:
        assert [group.read(task) for task in range(3)] == ["here"] * 3
        os.kill(group.processes[2].pid, signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            errors = []
            for task in (0, 1):
                error, when = group.result(task)
                errors.append(error)
                assert when - stopped < 3.0
        finally:
            os.kill(group.processes[2].pid, signal.SIGKILL)
        first = next(e for e in errors if isinstance(e, BarrierTimeout))
        assert first.absent == ("task 2",) and "superstep 50" in str(first)
        if how == "exchange":
            assert "task 2 owes part 2 (<f4 (1000,))" in str(first)


@pytest.mark.parametrize("how", ["exchange", "barrier"])
def test_who_stood_still_together_goes_on(scheme, how):
    """A computer slept, for longer than anybody waits: none of its tasks is late."""
    with Processes(scheme, 3, f"{HERE}:wait_for_the_last", how, 2.0) as group:
        assert [group.read(task) for task in range(3)] == ["here"] * 3
        for process in group.processes:
            os.kill(process.pid, signal.SIGSTOP)
        assert not group.pipes[0].poll(2.5)
        for process in group.processes:
            os.kill(process.pid, signal.SIGCONT)
        group.pipes[2].send("go on")
        got = [group.result(task)[0] for task in range(3)]
    assert got == ([[1, 2], [0, 2], [0, 1]] if how == "exchange" else ["crossed"] * 3), got


def test_a_stopped_receiver_bounds_the_senders_memory(scheme):
    with Processes(scheme, 2, f"{HERE}:flood") as group:
        assert group.read(0) == group.read(1) == "here"  # nobody is still in the plan
        os.kill(group.processes[1].pid, signal.SIGSTOP)
        try:
            (sent, grown_kb), _ = group.result(0)
        finally:
            os.kill(group.processes[1].pid, signal.SIGKILL)
    assert 2 <= sent <= 12 and grown_kb < 80_000  # 16 MiB of credit, two slots, once copied


def run_many(scheme, n_runs, rng):
    """Groups of three one after another; in every fourth one is killed at some moment."""
    n_children = len(children())
    n_fds = len(os.listdir("/proc/self/fd"))
    names = []
    for index in range(n_runs):
        with Processes(scheme, 3, f"{HERE}:short") as group:
            names += group.endpoints
            if index % 4 == 3:
                victim = int(rng.integers(3))
                assert group.read(victim) == "here"  # connected; then anywhere
                os.kill(group.processes[victim].pid, signal.SIGKILL)
                for task in {0, 1, 2} - {victim}:
                    result, _ = group.result(task)
                    assert isinstance(result, (PeerLost, float)), result
            else:
                assert [group.result(task)[0] for task in range(3)] == [200.0] * 3
    assert left_of(names) == []
    assert len(children()) <= n_children + 1  # one that multiprocessing keeps
    assert len(os.listdir("/proc/self/fd")) <= n_fds + 2


def test_runs_leave_nothing(scheme, rng):
    run_many(scheme, 8 if scheme == "shm" else 6, rng)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_200_runs_leave_nothing(scheme, rng):
    run_many(scheme, 200, rng)
