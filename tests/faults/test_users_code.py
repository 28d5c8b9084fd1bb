"""Experiment 23: what a job's code does wrong, on an agent that runs jobs as another user with
limits. The job ends with its cause, or as if nothing were; the agent lives, grows by no more than 5
MB, leaves nothing of the job, and runs the next one.

test_kills.py has the same for runs without a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from horn.cluster import remote_files
from horn.cluster.client import ClusterClient
from horn.coordination.jobs import ENDED, JobState
from tests.cluster.agents import Agents, agents, alive
from tests.passable import can_be_another_user, open_folder, passable

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MEMORY_BYTES = 2 << 30  # of each process of a job
GROWTH_BYTES = 5 << 20  # of the agent
LOG_BYTES, LOG_END_BYTES = 8 << 20, 1 << 20
USER = "54321"

JOB = """
import ctypes
import os
import signal
import sys
import threading
from dataclasses import dataclass

import numpy as np
import horn
import job as plain

def misbehave(how):
    if how == "exception":
        raise ValueError("the user's mistake")
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(3)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "loop" and open("/proc/self/comm").read().strip() == "horn-task-1":
        while True:
            pass
    if how == "thread":
        threading.Thread(target=threading.Event().wait).start()
    if how == "memory":
        np.ones(10 << 27)
    if how == "log":
        line = "x" * 1023
        for _ in range(1 << 19):  # 512 MB of each of two tasks
            print(line)
        print("the end")
    if how == "descriptors":
        kept = []
        while True:
            kept.append(open("/dev/null"))
    if how == "forks":
        for _ in range(2000):
            if os.fork() == 0:
                signal.pause()

@dataclass(frozen=True)
class Misbehaves:
    how: str

    def at(self, iteration):
        if iteration == 12 and open("/proc/self/comm").read().startswith("horn-task"):
            misbehave(self.how)
        return 0.1

def job(how: str = ""):
    return plain.job().with_settings(optimizer=horn.SGD(Misbehaves(how)))
"""

CASES = {
    "exception": (JobState.FAILED, ["wrong.py", "ValueError: the user's mistake"]),
    "exit": (JobState.FAILED, ["SystemExit: 3"]),
    "_exit": (JobState.FAILED, ["ended with exit code 3"]),
    "segfault": (JobState.FAILED, ["was killed by SIGSEGV"]),
    "loop": (JobState.FAILED, ["absent: task 1", "wrong.py"]),
    "thread": (JobState.SUCCEEDED, []),
    "memory": (JobState.FAILED, ["Unable to allocate 10.0 GiB"]),
    "log": (JobState.SUCCEEDED, []),
    "descriptors": (JobState.FAILED, ["wrong.py", "Too many open files"]),
    "forks": (JobState.FAILED, ["wrong.py", "Resource temporarily unavailable"]),
}
IN_GATE = {"memory"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Agents]:
    with open_folder() as folder, passable() as before, agents(folder) as made:
        made.options = ["--memory", str(MEMORY_BYTES)]
        if can_be_another_user():
            made.before, made.options = before, [*made.options, "--user", USER]
        (folder / "wrong.py").write_text(JOB)
        made.start("a")
        yield made


@pytest.mark.parametrize(
    "how", [how if how in IN_GATE else pytest.param(how, marks=pytest.mark.slow) for how in CASES]
)
def test_a_job_that_misbehaves_costs_itself_only(how: str, cluster: Agents):
    if how == "forks" and not cluster.before:
        pytest.skip("the number of root's processes has no limit, and nobody else can be had here")
    with cluster.client() as client:
        run_next(cluster, client)
        agent = cluster.processes["a"]
        before = resident(agent.pid)
        job = cluster.submit(client, "--how", how, tasks=2, max_restarts=0,
                             target=cluster.folder / "wrong.py",
                             options={"superstep_timeout_s": 3.0})  # fmt: skip
        below: set[int] = set()

        def has_ended() -> bool:
            below.update(pid for pid, _ in cluster.descendants("a"))
            return client.jobs.state(job) in ENDED

        cluster.wait(has_ended)
        status = client.status(job)
        assert status.state is CASES[how][0], (status.result, cluster.said())
        if status.state is JobState.FAILED:
            assert status.result["code"] == 1
            told = f"{status.result['cause']}\n{status.result['details']}"
            for words in (*CASES[how][1], "task 1" if how == "loop" else "task "):
                assert words in told, told
        if how == "log":
            n_bytes = client.files(job)["a"]["g0.t1"]
            assert LOG_BYTES < n_bytes <= LOG_BYTES + LOG_END_BYTES + 200
            _, last = remote_files.read(client, job, "a", "g0.t1", tail=1)
            assert last == b"the end\n"
        run_next(cluster, client)
        grown = resident(agent.pid) - before
        print(f"{how}: {status.state}, the agent has grown by {grown / 2**20:+.1f} MB, "
              f"{len(below)} processes")  # fmt: skip
        assert agent.poll() is None and abs(grown) <= GROWTH_BYTES
        warm = {pid for pid, _ in cluster.descendants("a")}
        cluster.wait(lambda: not alive(sorted(below - warm)))
        client.remove(job)


def run_next(cluster: Agents, client: ClusterClient) -> None:
    """A job that does nothing wrong."""
    job = cluster.submit(client, tasks=2)
    assert cluster.wait_ended(client, job).state is JobState.SUCCEEDED, cluster.said()
    client.remove(job)


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * 4096
