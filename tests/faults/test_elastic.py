"""Experiment 24: the scenarios of Horovod's elastic tests, on a cluster of agents.

| Horovod                          | here                                                        |
|----------------------------------|-------------------------------------------------------------|
| hosts are added and removed      | test_a_job_moves_on_as_workers_come_and_go                  |
| one rank fails                   | test_worker.py: the death of a task costs an attempt        |
| the same hosts are used again    | test_worker.py: an agent that is started again              |
| all ranks fail                   | test_all_tasks_may_die_at_once                              |
| too few hosts: it waits          | test_worker.py: a job waits for slots, and says why         |
| too few hosts in the middle      | test_a_job_that_lost_its_only_worker_waits_for_another      |
| the limit of restarts            | test_worker.py: a job whose tasks always die                |
| a failure while it recovers      | test_a_second_failure_while_it_recovers                     |

A host on which it always fails is the business of seating (tests/cluster/test_scheduler.py).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from horn.cluster.client import ClusterClient
from horn.coordination.jobs import JobState
from tests.cluster.agents import Agents
from tests.cluster.test_agent import weights

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
EPOCHS = "300"


def calm(cluster_of: Agents, client: ClusterClient, folder: Path) -> str:
    """What nothing disturbed comes to."""
    job = cluster_of.submit(client, "--epochs", EPOCHS, tasks=2)
    assert cluster_of.wait_ended(client, job).state is JobState.SUCCEEDED, cluster_of.said()
    return weights(client, job, folder)


def submit(cluster_of: Agents, client: ClusterClient, *more: str) -> str:
    arguments = ("--epochs", EPOCHS, *more)
    return cluster_of.submit(client, *arguments, tasks=2, checkpoint_every=100)


def iteration(client: ClusterClient, job: str) -> int:
    return int(client.status(job).progress.get("iteration", 0))


@pytest.mark.slow
def test_all_tasks_may_die_at_once(cluster_of: Agents, client: ClusterClient, tmp_path: Path):
    cluster_of.start("a")
    expected = calm(cluster_of, client, tmp_path)
    job = submit(cluster_of, client)
    cluster_of.wait_running(client, job, 150)
    tasks = cluster_of.tasks("a")
    assert len(tasks) == 2
    for pid in tasks:
        os.kill(pid, signal.SIGKILL)
    status = cluster_of.wait_ended(client, job)
    assert status.state is JobState.SUCCEEDED, (status.result, cluster_of.said())
    assert status.record.n_restarts == 1
    assert weights(client, job, tmp_path) == expected


@pytest.mark.slow
def test_a_second_failure_while_it_recovers(
    cluster_of: Agents, client: ClusterClient, tmp_path: Path
):
    """The tasks of the second attempt are killed as soon as they are there."""
    cluster_of.start("a")
    expected = calm(cluster_of, client, tmp_path)
    job = submit(cluster_of, client)
    cluster_of.wait_running(client, job, 150)
    first = set(cluster_of.tasks("a"))
    os.kill(min(first), signal.SIGKILL)
    pid = min(cluster_of.wait(lambda: set(cluster_of.tasks("a")) - first))
    os.kill(pid, signal.SIGKILL)
    status = cluster_of.wait_ended(client, job)
    assert status.state is JobState.SUCCEEDED, (status.result, cluster_of.said())
    assert status.record.attempt == 3 and status.record.n_restarts == 2
    assert weights(client, job, tmp_path) == expected


def test_a_job_moves_on_as_workers_come_and_go(
    cluster_of: Agents, client: ClusterClient, tmp_path: Path
):
    """Killed or told to leave, each worker is followed by one that came while it worked."""
    cluster_of.start("a", shared=True)
    expected = calm(cluster_of, client, tmp_path)
    job = submit(cluster_of, client, *cluster_of.held(1000))
    for worker, follower, how in (("a", "b", signal.SIGKILL), ("b", "c", signal.SIGTERM)):
        cluster_of.wait_running(client, job, iteration(client, job) + 100)
        cluster_of.start(follower, shared=True)
        assert cluster_of.tasks(worker)
        cluster_of.kill(worker, how)
        cluster_of.processes.pop(worker).wait(60)
        cluster_of.wait(lambda f=follower: cluster_of.tasks(f))
    cluster_of.let_go()
    status = cluster_of.wait_ended(client, job)
    assert status.state is JobState.SUCCEEDED, (status.result, cluster_of.said())
    assert status.result["host"] == "c" and status.record.n_restarts == 2
    assert weights(client, job, tmp_path) == expected


@pytest.mark.slow
def test_a_job_that_lost_its_only_worker_waits_for_another(
    cluster_of: Agents, client: ClusterClient, tmp_path: Path
):
    cluster_of.start("a", shared=True)
    expected = calm(cluster_of, client, tmp_path)
    job = submit(cluster_of, client)
    cluster_of.wait_running(client, job, 150)
    cluster_of.start("b", slots=1, shared=True)  # too small
    cluster_of.kill("a")
    del cluster_of.processes["a"]
    reason = cluster_of.wait(lambda: client.status(job).record.reason)
    assert reason == "waits for 2 slots; the 1 usable worker has 1: start more workers"
    assert client.status(job).state is JobState.RESTARTING
    cluster_of.start("c", slots=1, shared=True)
    status = cluster_of.wait_ended(client, job)
    assert status.state is JobState.SUCCEEDED, (status.result, cluster_of.said())
    assert weights(client, job, tmp_path) == expected
