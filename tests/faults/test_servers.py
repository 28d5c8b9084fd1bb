"""Servers and tasks that are killed or stopped while others go on, with real processes and a real
ZooKeeper: experiments 13 and 14. What is pushed are ones, so every sum is exact or wrong.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

import zk
from horn.coordination.paths import Paths
from horn.coordination.session import Session
from horn.strategies import Topology

pytestmark = pytest.mark.cluster
BACK_S = 3.0  # experiment 14
ENDS_S = 2.0  # experiment 13
QUIET_S = 0.7  # for an interpreter and the imports of a server
WAIT_S = 60.0
LONG_S = 1800.0


@pytest.fixture(params=["told", pytest.param("judged", marks=pytest.mark.slow)])
def figure(request: pytest.FixtureRequest) -> Any:
    """For seconds that something took, and may take: they are told, and judged by the slow tests,
    since in the gate others run beside.
    """

    def told(what: str, took_s: float, most_s: float) -> None:
        print(f"\n{what} after {took_s:.2f} s", file=sys.stderr)
        assert request.param == "told" or took_s <= most_s * slowness()

    return told


class Process:
    """One task or server; ``said`` is what it says, as it comes."""

    def __init__(self, role: str, given: dict[str, Any]) -> None:
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.bodies", role,
             json.dumps({"parent": os.getpid(), **given})],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self.said: Queue[dict[str, Any]] = Queue()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.put(json.loads(line))

    def hear(self, key: str, least: int = 0, wait_s: float = WAIT_S) -> dict[str, Any]:
        """The next word with this key, of at least so much where it is a number."""
        ends = time.monotonic() + wait_s
        while True:
            try:
                found = self.said.get(timeout=max(ends - time.monotonic(), 0.01))
            except Empty:
                pytest.fail(f"no {key} in {wait_s} s; exit code {self.process.poll()}")
            if key in found and (key not in ("clock", "ready") or found[key] >= least):
                return found

    def send(self, number: int) -> float:
        self.process.send_signal(number)
        return time.monotonic()

    def stop(self) -> None:
        """Returns when it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def end(self) -> int:
        """Wait for its end by itself."""
        code = self.process.wait(WAIT_S)
        self.reader.join(WAIT_S)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_S)
        self.reader.join(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Job:
    """Processes of one job by rank; each start of one is another attempt."""

    def __init__(self, hosts: str, folder: Path, topology: Topology, **more: Any) -> None:
        self.topology, self.attempt = topology, 0
        self.settings = {
            "hosts": hosts, "job": f"job-{folder.name}"[:90], "url": "ipc://",
            "topology": [topology.n_groups, topology.n_tasks, topology.n_servers],
            "n_first": topology.n_groups,
            "journals": str(folder), "max_staleness": None, "timeout_s": WAIT_S,
            "pull_every": 1, "say_every": 16, "holds": {}, **more,
        }  # fmt: skip
        self.all: list[Process] = []
        self.of: dict[int, Process] = {}

    def start(self, *ranks: int, **more: Any) -> None:
        """In one attempt."""
        self.attempt += 1
        for rank in ranks:
            role = "server" if rank >= self.topology.n_workers else "task"
            given = {**self.settings, "rank": rank, "attempt": self.attempt, **more}
            process = Process(role, given)
            self.all.append(process)
            self.of[rank] = process

    def start_all(self) -> None:
        self.start(*range(self.topology.n_ranks))

    def tasks(self) -> list[Process]:
        return [self.of[rank] for rank in range(self.topology.n_workers)]

    def ended(self, wait_s: float = WAIT_S) -> tuple[list[list[float]], list[dict[str, Any]]]:
        """When all have ended well: what group 0 has, and the last words of the servers."""
        found = [task.hear("done", wait_s=wait_s) for task in self.tasks()]
        t = self.topology
        words = [self.of[rank].hear("spent") for rank in range(t.n_workers, t.n_ranks)]
        assert [process.end() for process in self.of.values()] == [0] * t.n_ranks
        return [one["w"] for one in found[: t.n_tasks]], words


@pytest.fixture(scope="module")
def hosts() -> Iterator[str]:
    with zk.EmbeddedServer(tick_ms=500) as server:
        yield server.hosts


@pytest.fixture
def make(hosts: str, tmp_path: Path) -> Iterator[Any]:
    jobs: list[Job] = []

    def made(topology: Topology, **more: Any) -> Job:
        jobs.append(Job(hosts, tmp_path, topology, **more))
        return jobs[-1]

    yield made
    for job in jobs:
        for process in job.all:
            process.close()


def exact(job: Job, n_pushes: int, wait_s: float = WAIT_S) -> list[dict[str, Any]]:
    """Every number is the number of pushes, at servers and in group 0; what servers said."""
    arrays, words = job.ended(wait_s)
    total = n_pushes * job.topology.n_groups
    for array in arrays:
        assert set(array) == {float(total)}
    for word in words:
        assert {value for w in word["w"].values() for value in w} == {float(total)}
    return words


def kills(job: Job, server: int, n_pushes: int, n_kills: int, *, twice: bool) -> list[float]:
    """Kill a server under load so often; seconds until it was back, from the kill."""
    times = []
    for number in range(n_kills):
        job.of[0].hear("clock", n_pushes * (number + 1) // (n_kills + 2), LONG_S)
        killed = job.of[server].send(signal.SIGKILL)
        if twice and number % 2:
            job.start(server)  # and again while it comes back
            time.sleep(0.15 * number % 0.4)  # at another moment each time: nothing is waited for
            killed = job.of[server].send(signal.SIGKILL)
        job.start(server)
        times.append(job.of[server].hear("ready")["at"] - killed)
    return times


@pytest.mark.parametrize("url", ["ipc://", "tcp://127.0.0.1:0"])
def test_a_server_that_is_killed_under_load_comes_back_and_no_push_is_lost_or_counts_twice(
    make, url, tmp_path, figure
):
    hold = tmp_path / "go"  # nobody is through before the last kill
    job = make(Topology(2, 2, 2), n_pushes=1 << 9, url=url, holds={"480": str(hold)})
    job.start_all()
    times = kills(job, 4, 1 << 9, 3, twice=True)
    hold.touch()
    words = exact(job, 1 << 9)
    figure("a killed server is back", max(times), BACK_S)
    assert words[0]["spent"]["n_replayed"] > 0 and words[1]["spent"]["n_replayed"] == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_pushes_are_summed_exactly_while_a_server_is_killed(make):
    """Experiment 14: 2**20 pushes of 1.0, half of them to each server."""
    n_pushes = 1 << 18  # of two groups to two servers
    job = make(Topology(2, 1, 2), n_pushes=n_pushes, pull_every=64, say_every=1024)
    job.start_all()
    times = kills(job, 2, n_pushes, 6, twice=True)
    exact(job, n_pushes, LONG_S)
    back = f"{statistics.median(times):.2f} s (worst {max(times):.2f})"
    print(f"\n2**20 pushes, {len(times)} kills of a server: back after {back}, sums exact",
          file=sys.stderr)  # fmt: skip
    assert max(times) <= BACK_S * slowness(), times


def test_all_servers_killed_at_once_come_back(make, tmp_path):
    hold = tmp_path / "go"
    job = make(Topology(2, 1, 2), n_pushes=600, holds={"400": str(hold)})
    job.start_all()
    job.of[0].hear("clock", 200)
    for server in (2, 3):
        job.of[server].send(signal.SIGKILL)
    hold.touch()
    job.start(2, 3)
    exact(job, 600)


def test_a_group_that_is_killed_goes_on_where_servers_know_it(make, tmp_path):
    hold, begun = tmp_path / "go", 0
    job = make(Topology(2, 2, 2), n_pushes=512, holds={"400": str(hold)})
    job.start_all()
    for number in range(3):
        if begun < 100 * (number + 1):  # else it may say nothing before it is let go
            job.of[3].hear("clock", 100 * (number + 1))
        victims = (2, 3)  # group 1; one is killed, the other ends with it
        for rank in victims:
            job.of[rank].send(signal.SIGKILL)
        job.start(*victims)
        [begun] = {job.of[rank].hear("clock")["clock"] for rank in victims}
        assert begun >= 100 * number
    hold.touch()
    exact(job, 512)


def test_group_0_may_be_killed_too(make, tmp_path):
    hold = tmp_path / "go"
    job = make(Topology(2, 1, 1), n_pushes=400, max_staleness=2, holds={"300": str(hold)})
    job.start_all()
    job.of[0].hear("clock", 150)
    job.of[0].send(signal.SIGKILL)
    hold.touch()
    job.start(0)
    exact(job, 400)


def test_a_task_that_was_stopped_while_another_got_its_place_applies_nothing_and_ends(
    make, tmp_path, figure
):
    """Experiment 13."""
    hold, last = tmp_path / "go", tmp_path / "go-on"
    job = make(Topology(2, 1, 2), n_pushes=1 << 11)
    # It is not through before it is stopped, and the next one not before it goes on.
    job.start(0, 1, 2, 3, holds={"1024": str(hold)})
    job.of[1].hear("clock", 100)
    zombie = job.of[1]
    zombie.stop()
    hold.touch()
    # as who orders it does once its time is over: its node is taken, with an attempt
    job.start(1, holds={"2000": str(last)})
    job.of[1].hear("clock", 1)
    woken = zombie.send(signal.SIGCONT)
    error = zombie.hear("error")
    assert zombie.end() == 3
    took_s = time.monotonic() - woken
    assert error["error"] in ("Fenced", "SessionLost")
    last.touch()
    exact(job, 1 << 11)
    figure("a task that was stopped ends", took_s, ENDS_S)


def test_a_server_that_was_stopped_while_another_got_its_place_ends(make, tmp_path, figure):
    hold, last = tmp_path / "go", tmp_path / "go-on"
    holds = {"512": str(hold), "768": str(last)}
    job = make(Topology(2, 1, 1), n_pushes=1 << 10, holds=holds)
    job.start_all()
    job.of[0].hear("clock", 100)
    zombie = job.of[2]
    zombie.stop()
    job.start(2)
    job.of[2].hear("ready")
    hold.touch()
    job.of[0].hear("clock", 512)
    woken = zombie.send(signal.SIGCONT)
    error = zombie.hear("error")
    assert zombie.end() == 3 and error["error"] in ("Fenced", "SessionLost")
    took_s = time.monotonic() - woken
    last.touch()
    exact(job, 1 << 10)
    figure("a server that was stopped ends", took_s, ENDS_S)


def test_a_group_waits_for_a_server_until_its_deadline_and_says_which_is_gone(make, figure):
    timeout_s = 5.0
    job = make(Topology(1, 1, 2), n_pushes=1_000_000, timeout_s=timeout_s, say_every=1)
    job.start_all()
    error = job.of[0].hear("clock", 50)
    killed = job.of[2].send(signal.SIGKILL)
    while "error" not in error:
        last, error = error, job.of[0].hear("at")
    assert error["error"] == "BarrierTimeout"
    assert "server 0" not in error["text"] and "server 1 has not answered" in error["text"]
    assert "no link: its connection broke" in error["text"]
    assert error["at"] - last["at"] >= timeout_s  # since it was at work
    figure("a group gave a server up", error["at"] - killed, timeout_s + 2.0)


def test_groups_come_and_leave_while_others_go_on(make, hosts, tmp_path):
    """A third group comes to a job of two, and one more that is killed and comes back."""
    holds = {at: tmp_path / f"go-{at}" for at in ("400", "700")}
    job = make(Topology(2, 1, 2), n_pushes=800, max_staleness=4,
               holds={at: str(path) for at, path in holds.items()})  # fmt: skip
    job.start_all()
    job.of[0].hear("clock", 384)
    later = []
    for group in (2, 3):
        more = Process("task", {**job.settings, "rank": group, "attempt": job.attempt + group,
                                "topology": [group + 1, 1, 2]})  # fmt: skip
        job.all.append(more)
        later.append((more, more.hear("clock")["clock"]))
    first, begun = later[0]
    assert begun >= 380  # where the slowest was
    holds["400"].touch()
    later[1][0].hear("clock", later[1][1] + 16)
    later[1][0].send(signal.SIGKILL)
    again = Process("task", {**job.settings, "rank": 3, "attempt": job.attempt + 9,
                             "topology": [4, 1, 2]})  # fmt: skip
    job.all.append(again)
    assert again.hear("clock")["clock"] >= later[1][1]
    holds["700"].touch()
    again.hear("done")
    first.hear("done")
    arrays, words = job.ended()
    total = 2 * 800 + (800 - begun) + (800 - later[1][1])
    assert set(arrays[0]) == {float(total)}
    assert {value for word in words for w in word["w"].values() for value in w} == {float(total)}
    assert first.end() == again.end() == 0
    with Session(hosts) as coord:
        paths = Paths()
        for group in range(4):
            assert coord.children(paths.members(job.settings["job"], group)) == []


def slowness() -> float:
    """How much longer a process takes to start than on a quiet machine, where others run beside;
    1 on a quiet one.
    """
    began = time.monotonic()
    imports = "import horn.process.server_discovery, kazoo.client"
    subprocess.run([sys.executable, "-c", imports], check=True, cwd=Path(__file__).parents[2])
    return max((time.monotonic() - began) / QUIET_S, 1.0)


def test_a_zombie_of_a_group_that_came_later_applies_nothing_and_ends(make, tmp_path, figure):
    hold = tmp_path / "go"
    job = make(Topology(2, 1, 2), n_pushes=800, max_staleness=4, holds={"400": str(hold)})
    job.start_all()
    job.of[0].hear("clock", 384)
    lives = []
    for attempt in (job.attempt + 1, job.attempt + 2):
        # bounded by the staleness that is allowed: who waits for a file hears no fence
        given = {**job.settings, "rank": 2, "attempt": attempt, "topology": [3, 1, 2], "holds": {}}
        lives.append(Process("task", given))
        job.all.append(lives[-1])
        if len(lives) == 1:
            begun = lives[0].hear("clock")["clock"]
            lives[0].stop()
    zombie, again = lives
    assert again.hear("clock")["clock"] >= begun >= 380
    woken = zombie.send(signal.SIGCONT)
    error = zombie.hear("error")
    assert zombie.end() == 3 and error["error"] in ("Fenced", "SessionLost")
    took_s = time.monotonic() - woken
    hold.touch()
    again.hear("done")
    arrays, words = job.ended()
    total = 2 * 800 + (800 - begun)
    assert set(arrays[0]) == {float(total)}
    assert {value for word in words for w in word["w"].values() for value in w} == {float(total)}
    figure("a task that was stopped ends", took_s, ENDS_S)
