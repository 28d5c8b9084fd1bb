"""A job whose disk is full at its end: the model is kept until there is room for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import horn
from horn.cli._cluster import as_json
from horn.cli.stop import command
from horn.cluster.client import ClusterClient
from horn.cluster.scaling import scale
from horn.coordination.jobs import JobState
from horn.errors import JobError
from tests.cluster.agents import Agents
from tests.cluster.test_strategies import job_of, parameters
from tests.faults.test_checkpoint_storage import fill, small_disk

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
__all__ = ["small_disk"]  # a fixture
EPOCHS, PER_EPOCH = 8, 20


def begun(made: Agents, client: ClusterClient, disk: Path, **more: Any) -> str:
    """A job that is near its end when its disk gets full, behind its last checkpoint."""
    (disk / "s").mkdir()
    made.options += ["--shared", str(disk / "s")]
    made.start("a")
    since = made.held((EPOCHS - 2) * PER_EPOCH)
    job = made.submit(client, "--epochs", str(EPOCHS), *since, tasks=2, checkpoint_every=50, **more)
    made.wait_running(client, job, (EPOCHS - 2) * PER_EPOCH)
    made.wait(lambda: list(disk.rglob("ckpt-*100-*/MANIFEST.json")))
    fill(disk / "full", disk, 0)
    made.let_go()
    return job


def test_a_job_is_submitted_though_the_disk_of_a_worker_is_full(
    small_disk: Path, cluster_of: Agents, client: ClusterClient
):
    """It was refused as soon as that worker was asked."""
    cluster_of.options = ["--dir", str(small_disk / "a")]
    cluster_of.start("a")
    cluster_of.options = []
    cluster_of.start("b")
    cluster_of.wait_known(client)
    fill(small_disk / "full", small_disk, 0)
    job = cluster_of.submit(client, "--epochs", "2", tasks=2)
    status = cluster_of.wait_ended(client, job)
    assert status.state is JobState.SUCCEEDED, (status.result, cluster_of.said())


def test_a_job_whose_disk_is_full_keeps_its_groups_and_a_stop_says_what_it_loses(
    cluster_of: Agents, client: ClusterClient, small_disk: Path, tmp_path: Path
):
    """Both went on from the last checkpoint, or from none, without a word and with exit code 0."""
    cluster_of.environment["TMPDIR"] = str(tmp_path)
    (small_disk / "s").mkdir()
    cluster_of.options += ["--shared", str(small_disk / "s")]
    cluster_of.start("a")
    held = cluster_of.held(90)
    job = cluster_of.submit(client, "--epochs", "300", *held, groups=2, checkpoint_every=80)
    cluster_of.wait(lambda: client.status(job).record.checkpoint == 80)
    fill(small_disk / "full", small_disk, 0)
    cluster_of.wait(lambda: "No space left" in client.status(job).note)
    with pytest.raises(JobError, match=r"keeps its groups: .*No space left on device"):
        scale(client, job, 1)
    assert client.status(job).record.n_wanted == 0
    done = CliRunner().invoke(command, [job, "--zk", cluster_of.hosts], standalone_mode=False)
    status = client.status(job)
    assert done.return_value == 1 and status.state is JobState.STOPPED, (done, cluster_of.said())
    cause = str(status.result["cause"])
    assert cause.startswith("its checkpoint could not be saved: task ") and "No space" in cause
    assert cause.endswith(" since 80 are not in one") and cause in done.output, done.output


def waits(made: Agents) -> bool:
    """What ``horn logs`` shows."""
    logs = (path for path in (made.folder / "a").rglob("*") if path.is_file())
    return any(b"model waits to be written" in path.read_bytes() for path in logs)


def test_a_model_waits_for_room_and_nothing_is_computed_again(
    cluster_of: Agents, client: ClusterClient, small_disk: Path, tmp_path: Path
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cluster_of.environment["TMPDIR"] = str(elsewhere)
    job = begun(cluster_of, client, small_disk)
    cluster_of.wait(lambda: waits(cluster_of))
    # An attached submit showed the last epoch, and was silent then.
    cluster_of.wait(lambda: client.status(job).reason)
    status = client.status(job)
    assert status.state is JobState.RUNNING
    assert status.reason.startswith("waits, for 600 s at most, to write its model on a; make room ")
    assert str(small_disk) in status.reason and "No space left" in status.reason
    assert status.reason in as_json(status)["reason"]
    (small_disk / "full").unlink()
    status = cluster_of.wait_ended(client, job)
    assert status.state is JobState.SUCCEEDED, (status.result, cluster_of.said())
    assert (status.record.attempt, status.record.n_restarts) == (1, 0)
    assert status.reason == ""
    # Each try left a copy of the model in the temporary folder: 1,200 of them.
    assert list(elsewhere.rglob("*.horn")) == []
    calm = horn.train(job_of(EPOCHS), tasks=2).model.parameters
    for name, array in parameters(client, job, tmp_path).items():
        np.testing.assert_array_equal(array, calm[name], err_msg=name)


def test_who_does_not_want_to_wait_for_room_stops_the_job(
    cluster_of: Agents, client: ClusterClient, small_disk: Path, tmp_path: Path
):
    """Its model is in the temporary folder of a worker, and who stopped it is told of which."""
    cluster_of.environment["TMPDIR"] = str(tmp_path)
    job = begun(cluster_of, client, small_disk)
    cluster_of.wait(lambda: waits(cluster_of))
    client.stop(job, now=False)
    status = cluster_of.wait_ended(client, job)
    (kept,) = tmp_path.rglob("horn-kept-*/*.horn")
    assert status.state is JobState.STOPPED and status.result["code"] == 5, cluster_of.said()
    cause = str(status.result["cause"])
    assert cause.startswith("on worker a: ") and "No space left" in cause
    assert cause.endswith(f"; the model is kept in {kept}: move it from there")
    assert horn.Model.load(kept).facts["iteration"] == EPOCHS * PER_EPOCH
