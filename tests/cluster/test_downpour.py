"""A Downpour job on several hosts: only what ended starts again, and no push is lost or counted
twice. What is pushed are ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import horn
from horn.cluster import remote_files
from horn.cluster.client import ClusterClient
from horn.cluster.job_status import JobStatus
from horn.cluster.resume import resume
from horn.cluster.scaling import scale, wait_scaled
from horn.coordination.jobs import ENDED, JobState
from tests.cluster import ones
from tests.cluster.agents import DEADLINE_S, FOREVER, ROOT, Agents, alive

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

EPOCHS, LONG = 25, 60  # of a job that is held meanwhile, and of one that is not
PER_EPOCH = ones.per_epoch(2)  # pushes of each of two groups
DOWNPOUR: dict[str, Any] = {
    "target": Path(ones.__file__), "strategy": "downpour",
    "settings": (("strategy.server_optimizer", "job"),),
}  # fmt: skip


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


def told(made: Agents, job: str) -> list[dict[str, Any]]:
    """What was told of a job's run."""
    (path,) = made.folder.glob(f"**/{job}/**/progress.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def notes(made: Agents, job: str) -> list[str]:
    return [one["note"] for one in told(made, job) if "note" in one]


def pushes(client: ClusterClient, job: str, folder: Path) -> int:
    remote_files.fetch_model(client, job, folder / f"{job}.horn")
    return ones.n_pushes(horn.Model.load(folder / f"{job}.horn"))


def ended_well(made: Agents, client: ClusterClient, job: str, epochs: int) -> JobStatus:
    status = made.wait_ended(client, job)
    assert status.state is JobState.SUCCEEDED, (status.result, made.said())
    assert status.record.attempt == 1 and status.record.n_restarts == 0, "all have started again"
    assert [row["epoch"] for row in status.result["history"]] == list(range(1, epochs + 1))
    return status


@pytest.mark.parametrize(
    "rank, unit",
    [
        (1, "group 0"),
        pytest.param(3, "group 1", marks=pytest.mark.slow),
        pytest.param(4, "server 0", marks=pytest.mark.slow),
        pytest.param(5, "server 1", marks=pytest.mark.slow),
    ],
)
def test_on_two_hosts_only_what_ended_starts_again(
    cluster_of: Agents, client: ClusterClient, tmp_path: Path, rank: int, unit: str
):
    cluster_of.start("a", "b", shared=True)
    job = cluster_of.submit(
        client, "--epochs", str(EPOCHS), *cluster_of.held(5 * PER_EPOCH), groups=2, tasks=2,
        servers=2, max_restarts=3, **DOWNPOUR,
    )  # fmt: skip
    cluster_of.wait_running(client, job, 5 * PER_EPOCH)
    before = {name: ranks(cluster_of, name) for name in "ab"}
    assert before["a"].keys() == {0, 1, 4} and before["b"].keys() == {2, 3, 5}
    pids = before["a"] | before["b"]
    os.kill(pids[rank], signal.SIGKILL)
    cluster_of.wait(lambda: notes(cluster_of, job))
    cluster_of.let_go()
    status = ended_well(cluster_of, client, job, EPOCHS)
    assert pushes(client, job, tmp_path) == 2 * EPOCHS * PER_EPOCH
    (note,) = notes(cluster_of, job)
    assert note.startswith(f"Restarting {unit} (attempt 1 of 3): ")
    # Who went on is the process that began, and has done every step, and each once: a superstep
    # for each batch; group 0 measures at the end of each epoch, and at the end two sets more.
    rows = {row["task"]: row for row in status.result["counters"]}
    for other, pid in pids.items():
        if unit_of(other) != unit:
            assert rows[other]["pid"] == pid
        if unit_of(other) != unit and other < 4:
            n_measured = 0 if other > 1 else EPOCHS + 2
            assert rows[other]["n_supersteps"] == EPOCHS * PER_EPOCH + n_measured


def unit_of(rank: int) -> str:
    return f"server {rank - 4}" if rank >= 4 else f"group {rank // 2}"


def test_a_group_that_always_dies_fails_the_job_though_the_other_goes_on(
    cluster_of: Agents, client: ClusterClient
):
    cluster_of.start("a", "b", slots=1, shared=True)
    job = cluster_of.submit(
        client, "--epochs", FOREVER, *cluster_of.held(PER_EPOCH), groups=2, servers=1,
        max_restarts=1, **DOWNPOUR,
    )  # fmt: skip
    cluster_of.wait_running(client, job, PER_EPOCH)
    first = ranks(cluster_of, "b")[1]
    os.kill(first, signal.SIGKILL)

    def is_over() -> bool:
        """Its successors, too, as soon as they are there: none finishes an epoch."""
        for pid, line in cluster_of.descendants("b"):
            if f" {job}:1 " in line and pid != first:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return client.jobs.state(job) in ENDED

    cluster_of.wait(is_over)
    status = client.status(job)
    assert status.state is JobState.FAILED and status.record.attempt == 1, cluster_of.said()
    assert "task 1" in status.result["cause"] and "killed by SIGKILL" in status.result["cause"]


def test_when_a_worker_is_lost_all_go_on_from_what_servers_were_told(
    cluster_of: Agents, client: ClusterClient, tmp_path: Path
):
    cluster_of.start("a", "b", slots=1, shared=True)
    job = cluster_of.submit(
        client, "--epochs", str(EPOCHS), *cluster_of.held(5 * PER_EPOCH), groups=2, servers=1,
        max_restarts=1, **DOWNPOUR,
    )  # fmt: skip
    cluster_of.wait_running(client, job, 5 * PER_EPOCH)
    cluster_of.kill("b")
    cluster_of.let_go()
    cluster_of.start("b", slots=1, shared=True)
    status = cluster_of.wait_ended(client, job)
    assert status.state is JobState.SUCCEEDED, (status.result, cluster_of.said())
    assert status.record.attempt == 2 and status.record.n_restarts == 1
    assert pushes(client, job, tmp_path) == 2 * EPOCHS * PER_EPOCH


def horn_says(made: Agents, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "horn", *words, "--zk", made.hosts]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)


def test_groups_come_and_leave_while_a_job_trains(
    cluster_of: Agents, client: ClusterClient, tmp_path: Path
):
    """1 -> 2 -> 1 through the command line: history tells of both, and every push counts once."""
    cluster_of.start("a", slots=4)
    job = cluster_of.submit(
        client, "--epochs", str(EPOCHS), *cluster_of.held(), groups=1, tasks=2, servers=1,
        max_restarts=0, **DOWNPOUR,
    )  # fmt: skip
    cluster_of.wait_running(client, job, 1)
    cluster_of.wait(lambda: any("row" in one for one in told(cluster_of, job)))  # of one group
    asked = horn_says(cluster_of, "scale", job, "--groups", "2")
    assert asked.returncode == 0, asked.stderr
    assert f"Job {job} has 2 groups: 0, 1" in asked.stderr
    assert client.free(client.workers())["a"].free == 0
    shown = json.loads(horn_says(cluster_of, "status", job, "--json").stdout)
    assert shown["groups"] == 2 and shown["hosts"] == {"a": [0, 1, 2, 3, 4]}
    its = cluster_of.wait(lambda: trains(cluster_of, job, 1, 3))
    asked = horn_says(cluster_of, "scale", job, "--groups", "1")
    assert asked.returncode == 0, asked.stderr
    assert not alive(its) and client.status(job).record.allocations["a"].ranks == (0, 1, 2)
    assert client.free(client.workers())["a"].free == 2
    cluster_of.let_go()
    status = ended_well(cluster_of, client, job, EPOCHS)
    assert notes(cluster_of, job) == [
        "Group 1 comes.", "Group 1 is to leave at the end of its epoch.", "Group 1 has left."
    ]  # fmt: skip
    groups = [row["groups"] for row in status.result["history"]]
    assert groups[0] is None and [0, 1] in groups and groups[-1] is None
    rows = {row["role"]: row for row in status.result["counters"]}
    n_its = rows["group 1's task 0"]["n_supersteps"]
    assert n_its > 0 and n_its == rows["group 1's task 1"]["n_supersteps"]
    assert pushes(client, job, tmp_path) == EPOCHS * ones.per_epoch(1) + n_its


def trains(made: Agents, job: str, group: int, rank: int) -> list[int]:
    """The pid of a rank that came later, once its group has told of an epoch."""
    rows = (one["row"] for one in told(made, job) if "row" in one)
    if not any(group in (row["groups"] or ()) for row in rows):
        return []
    found = [line for name in made.processes for line in made.descendants(name)]
    return [pid for pid, line in found if f" {job}:{rank} " in line]


@pytest.mark.slow
def test_a_group_that_came_to_another_host_starts_again_alone(
    cluster_of: Agents, client: ClusterClient, tmp_path: Path
):
    """2 -> 1 -> 2 on two hosts: the new one reads the part of the data that nobody had."""
    cluster_of.start("a", "b", shared=True)
    job = cluster_of.submit(
        client, "--epochs", str(LONG), groups=2, tasks=2, servers=2, max_restarts=1, **DOWNPOUR
    )
    cluster_of.wait_running(client, job, PER_EPOCH)
    scale(client, job, 1)
    status = wait_scaled(client, job, 1, 60.0)
    assert {name: allocation.ranks for name, allocation in status.record.allocations.items()} == {
        "a": (0, 1, 4), "b": (5,)
    }  # fmt: skip
    scale(client, job, 2)
    status = wait_scaled(client, job, 2, 60.0)
    assert status.record.groups == (0, 3) and status.record.allocations["b"].ranks == (5, 8, 9)
    (its,) = cluster_of.wait(lambda: trains(cluster_of, job, 3, 8))
    others = ranks(cluster_of, "a")
    os.kill(its, signal.SIGKILL)
    status = ended_well(cluster_of, client, job, LONG)
    (note,) = [note for note in notes(cluster_of, job) if note.startswith("Restarting")]
    assert note.startswith("Restarting group 3 (attempt 1 of 1): group 3's task 0 ended")
    rows = {row["task"]: row for row in status.result["counters"]}
    assert {rank: rows[rank]["pid"] for rank in others} == others
    assert rows[0]["n_supersteps"] == LONG * PER_EPOCH + LONG + 2
    found = pushes(client, job, tmp_path)  # and at both servers the same
    began = LONG * PER_EPOCH + rows[2]["n_supersteps"] + rows[8]["n_supersteps"]
    assert began < found <= began + LONG * PER_EPOCH


@pytest.mark.slow
def test_a_job_that_is_stopped_goes_on_with_the_groups_that_it_had(
    cluster_of: Agents, client: ClusterClient, tmp_path: Path
):
    cluster_of.start("a", slots=2)
    job = cluster_of.submit(client, "--epochs", "150", groups=1, servers=1, **DOWNPOUR)
    cluster_of.wait_running(client, job, 1)
    scale(client, job, 2)
    wait_scaled(client, job, 2, 60.0)
    cluster_of.wait(lambda: trains(cluster_of, job, 1, 2))
    client.stop(job, now=False)
    assert cluster_of.wait_ended(client, job).state is JobState.STOPPED
    assert "job runner killed" not in cluster_of.said(), "its tasks were started again"
    resume(client, job)
    status = cluster_of.wait_ended(client, job)
    assert status.state is JobState.SUCCEEDED, (status.result, cluster_of.said())
    assert status.record.groups == (0, 1) and status.record.attempt == 2
    assert [len(row["group_loss"]) for row in status.result["history"][-3:]] == [2, 2, 2]
    assert pushes(client, job, tmp_path) > 150 * ones.per_epoch(1)


def test_who_is_to_leave_before_a_job_begins_leaves_after_an_epoch(
    cluster_of: Agents, client: ClusterClient, tmp_path: Path
):
    """Servers count on every group that the job was submitted with."""
    cluster_of.start("a", slots=1, shared=True)
    held = cluster_of.held()
    job = cluster_of.submit(client, "--epochs", str(EPOCHS), *held, groups=2, servers=1, **DOWNPOUR)
    cluster_of.wait(lambda: client.status(job).record.reason)
    scale(client, job, 1)
    cluster_of.start("b", slots=1, shared=True)
    cluster_of.wait_known(client)
    status = wait_scaled(client, job, 1, DEADLINE_S)
    assert (
        status.record.allocations["b"].ranks == () and client.free(client.workers())["b"].free == 1
    )
    cluster_of.let_go()
    ended_well(cluster_of, client, job, EPOCHS)
    assert pushes(client, job, tmp_path) == (EPOCHS + 1) * PER_EPOCH


def test_what_cannot_be_scaled_says_why(cluster_of: Agents, client: ClusterClient):
    cluster_of.start("a", slots=2)
    job = cluster_of.submit(client, "--epochs", FOREVER, groups=1, servers=1, **DOWNPOUR)
    other = cluster_of.submit(client, "--epochs", FOREVER, strategy="averaging")
    for name in (job, other):  # both have their slots
        cluster_of.wait_running(client, name, 1)
    for name, n_groups, text in (
        (job, 0, "--groups 0: at least 1, since group 0 measures and decides when to end"),
        (job, 4, "4 groups need 3 slots more than the job has for 1 group; free: 0 on a"),
        (other, 2, "is averaging, whose groups are part of it: only of allreduce, and of a job"),
    ):
        asked = horn_says(cluster_of, "scale", name, "--groups", str(n_groups))
        assert asked.returncode == 2 and text in asked.stderr, asked.stderr
    client.stop(job, now=True)
    cluster_of.wait_ended(client, job)
    asked = horn_says(cluster_of, "scale", job, "--groups", "1")
    assert asked.returncode == 6 and "is STOPPED; only one that runs" in asked.stderr
    client.stop(other, now=True)
    cluster_of.wait_ended(client, other)
