"""Real processes: the same bits as in one, the dead and the stopped named, nothing left behind."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from horn.errors import BarrierTimeout
from horn.transport import PeerLost
from tests.transport.groups import TIMEOUT_S, Processes, expected_digests, listeners, mixed

pytestmark = [pytest.mark.net, pytest.mark.cluster]
SCHEMES = ["shm", "ipc", "tcp"]
HERE = "tests.transport.bodies"


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return request.param


def children():
    """Processes that this one has started and that have not been waited for."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@pytest.mark.parametrize("n_tasks", [2, 3, 4])
def test_processes_exchange_what_threads_do(scheme, n_tasks):
    steps = mixed(n_tasks, seed=10 + n_tasks)
    with Processes(scheme, n_tasks, f"{HERE}:digest", steps, 5) as group:
        got = [group.result(task) for task in range(n_tasks)]
    assert got == expected_digests(n_tasks, steps, 5)  # as inproc: contracts/test_transport.py


@pytest.mark.parametrize("how, n_tasks", [("exchange", 3), ("barrier", 2)])
def test_a_killed_task_is_named_at_once(scheme, how, n_tasks):
    last, work = n_tasks - 1, f"{HERE}:go_until_trouble"
    with Processes(scheme, n_tasks, work, how, TIMEOUT_S, (last,)) as group:
        assert [group.read(task) for task in range(n_tasks)] == ["here"] * n_tasks
        os.kill(group.processes[-1].pid, signal.SIGKILL)
        for task in range(last):
            error = group.result(task)
            assert isinstance(error, PeerLost), error
            # the second to see it may meet the first one's goodbye before
            lost = {f"task {last}"} if n_tasks == 2 else {"task 0", "task 1", "task 2"}
            assert set(error.lost) <= lost and "superstep 50" in str(error)
            assert "killed" in str(error)  # its end was seen, and no time had to pass
    assert not group.listeners & listeners(group.endpoints)


@pytest.mark.parametrize("how, silent", [("exchange", (2,)), ("barrier", (1, 2))])
def test_a_stopped_task_is_named_at_the_deadline(scheme, how, silent):
    with Processes(scheme, 3, f"{HERE}:go_until_trouble", how, 0.5, silent) as group:
        assert [group.read(task) for task in range(3)] == ["here"] * 3
        for task in silent:
            os.kill(group.processes[task].pid, signal.SIGSTOP)
        try:
            errors = [group.result(task) for task in range(3) if task not in silent]
        finally:
            for task in silent:
                os.kill(group.processes[task].pid, signal.SIGKILL)
        first = next(e for e in errors if isinstance(e, BarrierTimeout))
        assert first.absent == tuple(f"task {task}" for task in silent)
        assert "superstep 50" in str(first)
        if how == "exchange":
            assert "task 2 owes part 2 (<f4 (1000,))" in str(first)


@pytest.mark.parametrize("how", ["exchange", pytest.param("barrier", marks=pytest.mark.slow)])
def test_who_stood_still_together_goes_on(scheme, how):
    """A computer slept, for longer than anybody waits: none of its tasks is late."""
    with Processes(scheme, 3, f"{HERE}:wait_for_the_last", how, 3.0) as group:
        assert [group.read(task) for task in range(3)] == ["here"] * 3
        for pipe in group.pipes:
            pipe.send("go on")
        for process in group.processes:  # each stops itself
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        threading.Event().wait(3.2)
        os.kill(group.processes[2].pid, signal.SIGCONT)  # all wait for this one
        if how == "exchange":
            assert group.read(2) == "posted"
        for process in group.processes[:2]:
            os.kill(process.pid, signal.SIGCONT)
        got = [group.result(task) for task in range(3)]
    assert got == ([[1, 2], [0, 2], [0, 1]] if how == "exchange" else ["crossed"] * 3), got


def test_a_stopped_receiver_bounds_the_senders_memory(scheme):
    with Processes(scheme, 2, f"{HERE}:flood") as group:
        assert group.read(0) == group.read(1) == "here"  # nobody is still agreeing
        os.kill(group.processes[1].pid, signal.SIGSTOP)
        try:
            sent, grown_kb = group.result(0)
        finally:
            os.kill(group.processes[1].pid, signal.SIGKILL)
    assert 2 <= sent <= 12 and grown_kb < 80_000  # 16 MiB of credit, two slots, once copied


def run_many(scheme, n_runs, rng):
    """Groups of three one after another; in every fourth one is killed at some moment."""
    n_children = len(children())
    n_fds = len(os.listdir("/proc/self/fd"))
    names, were_there = [], set()
    for index in range(n_runs):
        with Processes(scheme, 3, f"{HERE}:short") as group:
            names += group.endpoints
            were_there |= group.listeners
            if index % 4 == 3:
                victim = int(rng.integers(3))
                assert group.read(victim) == "here"  # connected; then anywhere
                os.kill(group.processes[victim].pid, signal.SIGKILL)
                for task in {0, 1, 2} - {victim}:
                    result = group.result(task)
                    assert isinstance(result, (PeerLost, float)), result
            else:
                assert [group.result(task) for task in range(3)] == [200.0] * 3
    assert not were_there & listeners(names)
    assert len(children()) <= n_children + 1  # one that multiprocessing keeps
    assert len(os.listdir("/proc/self/fd")) <= n_fds + 2


def test_runs_leave_nothing(scheme, rng):
    run_many(scheme, 8 if scheme == "shm" else 6, rng)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_200_runs_leave_nothing(scheme, rng):
    run_many(scheme, 200, rng)
