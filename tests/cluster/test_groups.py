"""horn scale of allreduce: other groups go on from a checkpoint, to the same result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import horn
from horn.cluster import remote_files
from horn.cluster.client import ClusterClient
from horn.cluster.scaling import scale, wait_scaled
from horn.coordination.jobs import JobState
from horn.errors import Conflict
from tests.cluster.agents import DEADLINE_S, Agents

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
EPOCHS = 60


def parameters(client: ClusterClient, job: str, folder: Path) -> dict[str, np.ndarray]:
    remote_files.fetch_model(client, job, folder / f"{job}.horn")
    return dict(horn.Model.load(folder / f"{job}.horn").parameters)


@pytest.mark.parametrize(
    "before, then", [pytest.param(1, (3,), marks=pytest.mark.slow), (2, (1, 2))]
)
def test_groups_come_and_leave_without_changing_the_result(
    cluster_of: Agents, client: ClusterClient, tmp_path: Path, before: int, then: tuple[int, ...]
):
    cluster_of.start("a", slots=3)
    calm = cluster_of.submit(client, "--epochs", str(EPOCHS))
    assert cluster_of.wait_ended(client, calm).state is JobState.SUCCEEDED, cluster_of.said()

    held = cluster_of.held(300)  # of 1200 iterations
    job = cluster_of.submit(client, "--epochs", str(EPOCHS), *held, groups=before)
    cluster_of.wait_running(client, job, 100)
    for n_groups in then:
        scale(client, job, n_groups)
        status = wait_scaled(client, job, n_groups, DEADLINE_S)
        assert status.record.groups == tuple(range(n_groups))
        ranks = [allocation.ranks for allocation in status.record.allocations.values()]
        assert ranks == [tuple(range(n_groups))]
        cluster_of.wait_running(client, job, 100)
    cluster_of.let_go()
    status = cluster_of.wait_ended(client, job)
    assert status.state is JobState.SUCCEEDED, (status.result, cluster_of.said())
    assert (status.record.attempt, status.record.n_restarts) == (1 + len(then), 0)
    rows = status.result["history"]
    assert [row["epoch"] for row in rows] == list(range(1, EPOCHS + 1))
    assert len(rows[-1]["group_loss"]) == then[-1] and rows[-1]["iteration"] == 20 * EPOCHS
    whole = parameters(client, calm, tmp_path)
    for name, array in parameters(client, job, tmp_path).items():
        np.testing.assert_allclose(array, whole[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_groups_come_on_another_host_that_shares_the_folder(
    cluster_of: Agents, client: ClusterClient
):
    """It was refused before anything was asked: only hosts were counted on which the job ran."""
    cluster_of.start("a", "b", shared=True)
    job = cluster_of.submit(client, "--epochs", "10", *cluster_of.held(100), groups=2)
    cluster_of.wait_running(client, job, 50)
    assert len(client.status(job).record.allocations) == 1
    scale(client, job, 4)
    status = wait_scaled(client, job, 4, DEADLINE_S)
    assert {*status.record.allocations} == {"a", "b"}
    cluster_of.let_go()
    status = cluster_of.wait_ended(client, job)
    assert status.state is JobState.SUCCEEDED, (status.result, cluster_of.said())
    assert len(status.result["history"][-1]["group_loss"]) == 4


def test_more_groups_than_a_batch_has_samples_are_not_taken(
    cluster_of: Agents, client: ClusterClient
):
    cluster_of.start("a", slots=3)
    job = cluster_of.submit(
        client, "--epochs", "10", *cluster_of.held(100), groups=2, settings=(("batch_size", "2"),)
    )
    cluster_of.wait_running(client, job, 50)
    scale(client, job, 3)
    with pytest.raises(Conflict, match="goes on with 2 groups: 3 groups cannot run it: .* has 2"):
        wait_scaled(client, job, 3, DEADLINE_S)
    cluster_of.let_go()
    status = cluster_of.wait_ended(client, job)
    assert status.state is JobState.SUCCEEDED, (status.result, cluster_of.said())
    assert [len(row["group_loss"]) for row in status.result["history"]][-1] == 2
