"""Faults of a cluster that fall into a start of a task, and into the repair of an earlier fault:
of its agents, of ZooKeeper, of a host. The result is that of a run without.

    pytest -m slow -s tests/faults/test_starts_on_agents.py
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

import horn
import zk
from horn.cluster.client import ClusterClient
from horn.cluster.job_status import JobStatus
from horn.cluster.resume import resume
from horn.coordination.jobs import JobState
from tests.cluster.agents import JOB as PLAIN
from tests.cluster.agents import ROOT, Agents, alive, own_port
from tests.cluster.test_agent import weights
from tests.faults import clock
from tests.faults.cluster import Cluster as Hosts
from tests.faults.cluster import digest as hosts_digest
from tests.faults.cluster import until
from tests.faults.test_kills import nothing_is_left
from tests.faults.test_partitions import cut, record
from tests.faults.test_starts import jump
from tests.hosts import hosts, why_not

pytestmark = [pytest.mark.net, pytest.mark.cluster]
__all__ = ["nothing_is_left"]  # a fixture

JOB = """
import job as plain
import horn
from tests.faults.springs import Stands

def job(mark: str, point: str, folder: str = ""):
    schedule = Stands(mark, point, 1, folder, 60)
    return plain.job(epochs=10).with_settings(optimizer=horn.SGD(schedule))
"""
STOPS = """
import job as plain
import horn
from tests.faults.springs import Stops

def job(stops: str):
    return plain.job(epochs=10).with_settings(optimizer=horn.SGD(Stops(stops)))
"""
ON_AGENTS = ["reading", "joined", "connecting", "compiling", "crossing"]
SESSION_S = 3.0  # of agents that are lost


@dataclass
class Stage:
    """Agents on a ZooKeeper that can go and come back, and a job of two tasks, one of which stands
    at a point of its start: of its first one, or of the one after its death (``again``).
    """

    made: Agents
    server: zk.EmbeddedServer
    client: ClusterClient
    folder: Path
    clock: clock.Clock | None  # of the agents

    def begin(self, point: str, again: bool) -> str:
        target = self.folder / "stands.py"
        target.write_text(JOB)
        more = ["--folder", str(self.folder)] if again else []
        mark = str(self.folder / "mark")
        job = self.made.submit(
            self.client, "--mark", mark, "--point", point, *more, tasks=2, checkpoint_every=20,
            target=target,
        )  # fmt: skip
        self.made.wait(Path(f"{mark}.here").exists)
        assert Path(f"{mark}.died").exists() == again
        return job

    def begin_stops(self, points: list[str]) -> tuple[str, list[Path]]:
        """A job that stands at each of them, in a start of its own."""
        target = self.folder / "stops.py"
        target.write_text(STOPS)
        marks = [self.folder / f"stop{number}" for number in range(len(points))]
        lines = "\n".join(f"{mark}|{point}" for mark, point in zip(marks, points, strict=True))
        job = self.made.submit(
            self.client, "--stops", lines, tasks=2, checkpoint_every=20, target=target,
            max_restarts=2 * len(points),  # fewer are wanted
        )  # fmt: skip
        return job, marks

    def go(self) -> None:
        (self.folder / "mark.go").touch()

    def task(self) -> int:
        """The process that stands."""
        [pid] = [
            pid for name in self.made.processes for pid in self.made.tasks(name)
            if Path(f"/proc/{pid}/comm").read_text().strip() == "horn-task-1"
        ]  # fmt: skip
        return pid

    def host(self) -> str:
        """The agent that it is of."""
        [name] = [name for name in self.made.processes if self.task() in self.made.tasks(name)]
        return name

    def end(self, job: str, state: JobState = JobState.SUCCEEDED) -> JobStatus:
        status = self.made.wait_ended(self.client, job)
        assert status.state is state, (status.result, self.made.said())
        return status


def kill_the_task(stage: Stage, job: str) -> int:
    os.kill(stage.task(), signal.SIGKILL)
    return 1


def kill_the_runner(stage: Stage, job: str) -> int:
    parent = Path(f"/proc/{stage.task()}/stat").read_text().rpartition(")")[2].split()[1]
    assert int(parent) != stage.made.processes[stage.host()].pid
    os.kill(int(parent), signal.SIGKILL)
    return 1


def kill_the_agent(stage: Stage, job: str) -> int:
    name = stage.host()
    stage.made.kill(name)
    del stage.made.processes[name]
    return 1


def kill_the_other_agent(stage: Stage, job: str) -> int:
    """Which may be the one that leads."""
    [name] = stage.made.processes.keys() - {stage.host()}
    stage.made.kill(name)
    del stage.made.processes[name]
    return 0


def freeze_the_host(stage: Stage, job: str) -> int:
    """It stands still until others have its job, and then finds out."""
    name, attempt = stage.host(), stage.client.status(job).record.attempt
    agent = stage.made.processes[name]
    pids = [agent.pid, *(pid for pid, _ in stage.made.descendants(name))]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    stage.made.wait(lambda: stage.client.status(job).record.attempt > attempt)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return 1


def restart_zookeeper(stage: Stage, job: str) -> int:
    """Away for less than a session: nobody starts again."""
    stage.server.stop()
    stage.server.start()
    return 0


def lose_zookeeper(stage: Stage, job: str) -> int:
    """Away until the tasks have ended because of it, and back only for new sessions: by an old
    place, who leads again first could give the job to an agent that has not come back.
    """
    task = stage.task()
    stage.server.stop()
    stage.made.wait(lambda: not alive([task]))
    agents = [process.pid for process in stage.made.processes.values()]
    for pid in agents:
        os.kill(pid, signal.SIGSTOP)
    stage.server.start()
    stage.made.wait(lambda: not stage.client.workers())
    for pid in agents:
        os.kill(pid, signal.SIGCONT)
    return 1


def jump_the_clocks(stage: Stage, job: str) -> int:
    """Of the agents and all that they have started; not ZooKeeper's."""
    assert stage.clock is not None
    assert b"HORN_TEST_CLOCK" in Path(f"/proc/{stage.task()}/environ").read_bytes()
    jump(stage.clock)
    return 0


FAULTS = [kill_the_task, kill_the_runner, kill_the_agent, kill_the_other_agent, freeze_the_host,
          restart_zookeeper, lose_zookeeper, jump_the_clocks]  # fmt: skip
IN_GATE = {(kill_the_runner, "compiling", False), (kill_the_agent, "crossing", True),
           (jump_the_clocks, "joined", True)}  # fmt: skip
CASES = [
    pytest.param(
        *case,
        id=f"{case[0].__name__}-{case[1]}-{'again' if case[2] else 'first'}",
        marks=() if case in IN_GATE else pytest.mark.slow,
    )
    for case in itertools.product(FAULTS, ON_AGENTS, [False, True])
]


@pytest.fixture
def stage(tmp_path):
    server = zk.EmbeddedServer(own_port(), tick_ms=500, data_dir=str(tmp_path / "zk"))
    server.start()
    made = Agents(tmp_path, server.hosts)
    made.session_s = SESSION_S
    made.environment["PYTHONPATH"] = str(ROOT)
    wrong = None if clock.why_not() else clock.Clock(tmp_path)
    if wrong is not None:
        made.environment |= wrong.everywhere(str(ROOT))
    children = []
    try:
        made.start("a", "b", shared=True)
        with made.client() as client:
            made.wait_known(client)
            yield Stage(made, server, client, tmp_path, wrong)
            children = [pid for name in made.processes for pid, _ in made.descendants(name)]
    finally:
        made.stop()
        server.stop()
    made.wait(lambda: not alive(children))


def digest(parameters):
    whole = hashlib.sha256()
    for name in sorted(parameters):
        whole.update(name.encode() + parameters[name].tobytes())
    return whole.hexdigest()


@pytest.fixture(scope="module")
def calm_on_agents():
    scope: dict = {}
    exec(compile(PLAIN, "job.py", "exec"), scope)
    given = scope["job"](epochs=10).with_settings(optimizer=horn.SGD(0.05))
    return digest(horn.train(given, tasks=2).model.parameters)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault, point, again", CASES)
def test_a_cluster_survives_a_fault_in_a_start(stage, fault, point, again, calm_on_agents):
    job = stage.begin(point, again)
    n_restarts = fault(stage, job) + again
    stage.go()
    status = stage.end(job)
    assert status.record.n_restarts == n_restarts, (status.record, stage.made.said())
    assert weights(stage.client, job, stage.folder) == calm_on_agents


N_STOPS = 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.slow) for n in range(11)])
def test_chaos_that_falls_into_starts_and_recoveries_changes_no_bit(stage, seed, calm_on_agents):
    """One fault after the other, each drawn for a point that is drawn, of a start or a recovery."""
    draw = random.Random(seed)
    points = draw.sample([*ON_AGENTS, "compiled", "beginning", "first checkpoint"], N_STOPS - 1)
    points.insert(draw.randrange(N_STOPS), "running")  # what comes then meets a recovery
    job, marks = stage.begin_stops(points)
    done = []
    for mark, point in zip(marks, points, strict=True):
        stage.made.wait(Path(f"{mark}.here").exists)
        names = set(stage.made.processes)
        fault = draw.choice([f for f in FAULTS if f is not jump_the_clocks or stage.clock])
        done.append(f"{fault.__name__} at {point}")
        n_restarts = fault(stage, job)
        gone = names - stage.made.processes.keys()
        if gone:
            stage.made.start(*gone, shared=True)
            stage.made.wait_known(stage.client)
        if not n_restarts:  # now that no host is seated that is dead, and not yet known to be
            kill_the_task(stage, job)
        Path(f"{mark}.go").touch()
    status = stage.end(job)
    print("\n", seed, done, status.record.n_restarts)
    assert status.record.n_restarts == N_STOPS, (status.record, done, stage.made.said())
    assert weights(stage.client, job, stage.folder) == calm_on_agents


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("point", ON_AGENTS)
def test_a_job_that_is_stopped_in_a_start_can_be_resumed(stage, point, again, calm_on_agents):
    job = stage.begin(point, again)
    stage.client.stop(job, now=False)
    stage.end(job, JobState.STOPPED)  # it need not be waited for
    stage.go()
    resume(stage.client, job)
    stage.end(job)
    assert weights(stage.client, job, stage.folder) == calm_on_agents


# a host that is cut off while one of its tasks is at a point of its start

ON_HOSTS = """
import horn
from tests.faults.cluster import JOB
from tests.faults.springs import Stands

scope = {}
exec(compile(JOB, "plain.py", "exec"), scope)

def job(mark: str = "", point: str = "", folder: str = ""):
    schedule = Stands(mark, point, 1, folder, 60) if mark else 0.05
    return scope["job"](hidden=32, epochs=2, samples=6000).with_settings(
        optimizer=horn.SGD(schedule))
"""
SHAPE = "--groups 2 --tasks 2 --max-restarts 1000 --checkpoint-every 20 --- "


@pytest.fixture(scope="module")
def on_hosts(tmp_path_factory):
    if why_not() or "HORN_DATA" not in os.environ:
        pytest.skip(why_not() or "HORN_DATA does not say where")
    with hosts(4) as net:
        folder = tmp_path_factory.mktemp("cluster")
        with Hosts(net, net.hosts[:3], folder, slots=3, zk_host=net.hosts[3]) as found:
            job = found.submit(SHAPE, text=ON_HOSTS)
            found.wait(job, "SUCCEEDED")
            yield found, hosts_digest(found, job)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("point", ["joined", "connecting", "compiling", "crossing"])
@pytest.mark.parametrize("kind", ["zookeeper", "from zookeeper", "all"])
def test_a_host_that_is_cut_off_in_a_start_is_done_without(on_hosts, kind, point, again, tmp_path):
    """What it ran has ended before others have its places."""
    cluster, calm = on_hosts
    folder = f"--folder {cluster.folder}" if again else ""
    mark = tmp_path / "mark"
    job = cluster.submit(f"{SHAPE}--mark {mark} --point {point} {folder}", text=ON_HOSTS)
    try:
        until(Path(f"{mark}.here").exists, 60.0, cluster.told)
        names = [(n, pid) for n, host in enumerate(cluster.hosts) for pid in host.pids()]
        [number] = [n for n, pid in names if comm(pid) == "horn-task-1"]
        pids = [pid for n, pid in names if n == number and comm(pid).startswith("horn-task-")]
        with cluster.session() as coord:
            attempt = record(coord, job).attempt
            cut(cluster, kind, cluster.hosts[number])
            until(lambda: record(coord, job).attempt > attempt, 30.0, cluster.told)
            assert not alive(pids), "two attempts overlap"
        cluster.net.heal()
        Path(f"{mark}.go").touch()
        assert cluster.wait(job, "SUCCEEDED", 120.0)["restarts"] == 1 + again
        assert hosts_digest(cluster, job) == calm
    finally:
        Path(f"{mark}.go").touch()
        cluster.net.heal()
        cluster.stop_all()
        cluster.wait_workers(3)


def comm(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
