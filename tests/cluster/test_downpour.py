"""A Downpour job on several hosts: only what ended starts again, and no push is lost or counted
twice. What is pushed are ones.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import horn
from horn.cluster.client import Cluster, Status
from horn.cluster.jobs import State
from tests.cluster import ones
from tests.cluster.agents import Agents, agents

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

PER_EPOCH = 16  # pushes of each group
DOWNPOUR: dict[str, Any] = {
    "target": Path(ones.__file__), "strategy": "downpour",
    "settings": (("strategy.server_optimizer", "job"),),
}  # fmt: skip


@pytest.fixture
def cluster_of(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as made:
        yield made


@pytest.fixture
def client(cluster_of: Agents) -> Iterator[Cluster]:
    with Cluster(cluster_of.hosts, timeout_s=20.0) as cluster:
        yield cluster


def ranks(made: Agents, name: str) -> dict[int, int]:
    """The pids of the tasks that run on a host, by rank."""
    found = {}
    for pid in made.tasks(name):
        try:
            comm = Path(f"/proc/{pid}/comm").read_text()
        except OSError:
            continue  # it has just ended
        found[int(comm.strip().removeprefix("horn-task-"))] = pid
    return found


def notes(made: Agents, job: str) -> list[str]:
    """What was noted of a job's run."""
    (path,) = made.folder.glob(f"**/{job}/**/progress.jsonl")
    said = map(json.loads, path.read_text().splitlines())
    return [one["note"] for one in said if "note" in one]


def pushes(client: Cluster, job: str, folder: Path) -> int:
    client.fetch_model(job, folder / f"{job}.horn")
    return ones.n_pushes(horn.Model.load(folder / f"{job}.horn"))


def ended_well(made: Agents, client: Cluster, job: str, epochs: int) -> Status:
    status = made.wait_ended(client, job)
    assert status.state is State.SUCCEEDED, (status.result, made.said())
    assert status.record.epoch == 1 and status.record.n_restarts == 0, "all have started again"
    assert [row["epoch"] for row in status.result["history"]] == list(range(1, epochs + 1))
    return status


@pytest.mark.parametrize(
    "rank, unit", [(1, "group 0"), (3, "group 1"), (4, "server 0"), (5, "server 1")]
)
def test_on_two_hosts_only_what_ended_starts_again(
    cluster_of: Agents, client: Cluster, tmp_path: Path, rank: int, unit: str
):
    cluster_of.start("a", "b", shared=True)
    job = cluster_of.submit(
        client, "--epochs", "30", groups=2, tasks=2, servers=2, max_restarts=3, **DOWNPOUR
    )
    cluster_of.wait_running(client, job, 5 * PER_EPOCH)
    before = {name: ranks(cluster_of, name) for name in "ab"}
    assert before["a"].keys() == {0, 1, 4} and before["b"].keys() == {2, 3, 5}
    pids = before["a"] | before["b"]
    os.kill(pids[rank], signal.SIGKILL)
    cluster_of.wait(lambda: notes(cluster_of, job))
    status = ended_well(cluster_of, client, job, 30)
    assert pushes(client, job, tmp_path) == 2 * 30 * PER_EPOCH
    (note,) = notes(cluster_of, job)
    assert note.startswith(f"Restarting {unit} (attempt 1 of 3): ")
    # Who went on is the process that began, and has done every step, and each once: a superstep
    # for each batch; group 0 measures at the end of each epoch, and at the end two sets more.
    rows = {row["task"]: row for row in status.result["counters"]}
    for other, pid in pids.items():
        if unit_of(other) != unit:
            assert rows[other]["pid"] == pid
        if unit_of(other) != unit and other < 4:
            n_measured = 0 if other > 1 else 30 + 2
            assert rows[other]["n_supersteps"] == 30 * PER_EPOCH + n_measured


def unit_of(rank: int) -> str:
    return f"server {rank - 4}" if rank >= 4 else f"group {rank // 2}"


def test_a_group_that_always_dies_fails_the_job_though_the_other_goes_on(
    cluster_of: Agents, client: Cluster
):
    cluster_of.start("a", "b", slots=1, shared=True)
    job = cluster_of.submit(
        client, "--epochs", "100000", groups=2, servers=1, max_restarts=1, **DOWNPOUR
    )
    cluster_of.wait_running(client, job, PER_EPOCH)
    first = ranks(cluster_of, "b")[1]
    os.kill(first, signal.SIGKILL)

    def its_successor() -> list[int]:
        """As soon as it is there: it has not trained yet."""
        return [pid for pid, line in cluster_of.descendants("b") if f" {job}:1 " in line]

    (second,) = cluster_of.wait(its_successor)
    os.kill(second, signal.SIGKILL)
    status = cluster_of.wait_ended(client, job)
    assert status.state is State.FAILED and status.record.epoch == 1, cluster_of.said()
    assert "task 1" in status.result["cause"] and "killed by SIGKILL" in status.result["cause"]


def test_when_a_worker_is_lost_all_go_on_from_what_servers_were_told(
    cluster_of: Agents, client: Cluster, tmp_path: Path
):
    cluster_of.start("a", "b", slots=1, shared=True)
    job = cluster_of.submit(
        client, "--epochs", "60", groups=2, servers=1, max_restarts=1, **DOWNPOUR
    )
    cluster_of.wait_running(client, job, 5 * PER_EPOCH)
    cluster_of.kill("b")
    cluster_of.start("b", slots=1, shared=True)
    status = cluster_of.wait_ended(client, job)
    assert status.state is State.SUCCEEDED, (status.result, cluster_of.said())
    assert status.record.epoch == 2 and status.record.n_restarts == 1
    assert pushes(client, job, tmp_path) == 2 * 60 * PER_EPOCH
