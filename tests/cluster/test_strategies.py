"""Groups that take steps of their own, on several hosts: averaging, and elastic averaging.

Under averaging the groups wait for one another, so a kill changes no bit. Under elastic averaging
only what ended starts again, and groups may come and leave.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.cluster import remote_files
from horn.cluster.client import ClusterClient
from horn.coordination.jobs import JobState
from tests.cluster.agents import JOB, Agents, alive
from tests.cluster.test_downpour import ended_well, horn_says, notes, ranks, trains

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
EPOCHS, PER_EPOCH = 30, 20


def job_of(epochs: int) -> horn.Job:
    """What ``Agents.submit`` submits."""
    scope: dict[str, Any] = {}
    exec(compile(JOB, "job.py", "exec"), scope)
    made: horn.Job = scope["job"](epochs=epochs)
    return made


def parameters(client: ClusterClient, job: str, folder: Path) -> dict[str, np.ndarray]:
    remote_files.fetch_model(client, job, folder / f"{job}.horn")
    return dict(horn.Model.load(folder / f"{job}.horn").parameters)


@pytest.mark.parametrize("what", [pytest.param("task", marks=pytest.mark.slow), "worker"])
def test_a_kill_changes_no_bit_of_averaging(
    cluster_of: Agents, client: ClusterClient, tmp_path: Path, what: str
):
    """Two groups on a host each, whose means are every ten batches: between two of them no group
    has what another has, so each goes on from its own part of the checkpoint.
    """
    cluster_of.start("a", "b", slots=1, shared=True)
    job = cluster_of.submit(
        client, "--epochs", str(EPOCHS), *cluster_of.held(8 * PER_EPOCH), groups=2,
        strategy="averaging", checkpoint_every=33, max_restarts=3,
    )  # fmt: skip
    cluster_of.wait_running(client, job, 8 * PER_EPOCH)
    if what == "task":
        [pid] = ranks(cluster_of, "b").values()
        os.kill(pid, signal.SIGKILL)
    else:
        cluster_of.kill("b")
        cluster_of.start("b", slots=1, shared=True)
    cluster_of.wait(lambda: client.status(job).record.attempt == 2)
    cluster_of.let_go()
    status = cluster_of.wait_ended(client, job)
    assert status.state is JobState.SUCCEEDED, (status.result, cluster_of.said())
    assert (status.record.attempt, status.record.n_restarts) == (2, 1)
    calm = horn.train(job_of(EPOCHS), groups=2, strategy="averaging").model.parameters
    for name, array in parameters(client, job, tmp_path).items():
        np.testing.assert_array_equal(array, calm[name], err_msg=name)


@pytest.mark.parametrize(
    "rank, unit", [(1, "group 1"), pytest.param(2, "server 0", marks=pytest.mark.slow)]
)
def test_of_elastic_averaging_only_what_ended_starts_again(
    cluster_of: Agents, client: ClusterClient, tmp_path: Path, rank: int, unit: str
):
    cluster_of.start("a", "b", slots=1, shared=True)
    job = cluster_of.submit(
        client, "--epochs", str(EPOCHS), *cluster_of.held(8 * PER_EPOCH), groups=2, servers=1,
        strategy="easgd", max_restarts=3,
    )  # fmt: skip
    cluster_of.wait_running(client, job, 8 * PER_EPOCH)
    before = ranks(cluster_of, "a") | ranks(cluster_of, "b")
    assert before.keys() == {0, 1, 2}
    os.kill(before[rank], signal.SIGKILL)
    cluster_of.wait(lambda: notes(cluster_of, job))
    cluster_of.let_go()
    status = ended_well(cluster_of, client, job, EPOCHS)
    (note,) = notes(cluster_of, job)
    assert note.startswith(f"Restarting {unit} (attempt 1 of 3): ")
    now = {row["task"]: row["pid"] for row in status.result["counters"]}
    assert {r for r in before if now[r] == before[r]} == before.keys() - {rank}
    given = job_of(1)
    model = horn.Model.load(_fetched(client, job, tmp_path))
    assert model.evaluate(given.data.x, given.data.y)["acc"] > 0.9


def _fetched(client: ClusterClient, job: str, folder: Path) -> Path:
    remote_files.fetch_model(client, job, folder / "m.horn")
    return folder / "m.horn"


def test_groups_of_elastic_averaging_come_and_leave(cluster_of: Agents, client: ClusterClient):
    """1 -> 2 -> 1 through the command line."""
    cluster_of.start("a", slots=2)
    job = cluster_of.submit(
        client, "--epochs", "200", *cluster_of.held(), groups=1, servers=1, max_restarts=0,
        strategy="easgd",
    )  # fmt: skip
    cluster_of.wait_running(client, job, PER_EPOCH + 1)
    asked = horn_says(cluster_of, "scale", job, "--groups", "2")
    assert asked.returncode == 0 and f"Job {job} has 2 groups: 0, 1" in asked.stderr, asked
    its = cluster_of.wait(lambda: trains(cluster_of, job, 1, 2))
    asked = horn_says(cluster_of, "scale", job, "--groups", "1")
    assert asked.returncode == 0, asked
    assert not alive(its) and client.free(client.workers())["a"].free == 1
    cluster_of.let_go()
    status = ended_well(cluster_of, client, job, 200)
    assert notes(cluster_of, job) == [
        "Group 1 comes.", "Group 1 is to leave at the end of its epoch.", "Group 1 has left."
    ]  # fmt: skip
    groups = [row["groups"] for row in status.result["history"]]
    assert groups[0] is None and [0, 1] in groups and groups[-1] is None
    losses = status.result["history"]
    assert losses[-1]["loss"] < losses[0]["loss"]


def test_groups_of_averaging_are_part_of_it(cluster_of: Agents, client: ClusterClient):
    """So it keeps them, and says so; the job goes on as if nobody had asked."""
    cluster_of.start("a", slots=3)
    job = cluster_of.submit(
        client, "--epochs", str(EPOCHS), *cluster_of.held(PER_EPOCH), groups=2,
        strategy="averaging",
    )  # fmt: skip
    cluster_of.wait_running(client, job, PER_EPOCH)
    asked = horn_says(cluster_of, "scale", job, "--groups", "3")
    assert asked.returncode == 2, asked
    assert "is averaging, whose groups are part of it: only of allreduce" in asked.stderr
    assert "Stop it, and submit it with --groups 3" in asked.stderr
    cluster_of.let_go()
    status = cluster_of.wait_ended(client, job)
    assert status.state is JobState.SUCCEEDED and status.record.attempt == 1, cluster_of.said()
