"""horn.plan: what a job will do on its tasks."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import horn
from horn.errors import HornError, JobError, ModelError
from horn.planner import calibration
from horn.planner.machine import Machine


@pytest.fixture(autouse=True)
def known_machine(monkeypatch):
    """Figures that do not depend on what else runs here."""
    monkeypatch.setattr(calibration, "_known", {calibration._key("float32"): Machine(n_cores=2)})


@pytest.fixture
def job():
    net = horn.Network(seed=3)
    net.input(64)
    net.layer(100, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    data = (rng.random((400, 64)), rng.integers(0, 10, 400))
    return horn.Job(net, data=data, optimizer=horn.SGD(0.1), epochs=1)


def test_it_prints_nicely(job):
    said = str(horn.plan(job, tasks=2))
    assert "1 layer1  Standard, tanh" in said and "50 + 50" in said
    assert "2 tasks over shm · batch 32" in said and "Memory per task about" in said
    assert "Predicted " in said.splitlines()[-1]


def test_it_is_json(job):
    plan = horn.plan(job, tasks=2, pins={"layer1": "receiver"})
    found = json.loads(json.dumps(plan.as_dict()))
    assert found["tasks"] == 2 and found["placement"]["layer1.weight"] == "receiver"
    assert found["bytes_per_batch"] == sum(s["n_bytes"] for s in found["supersteps"])
    assert found["messages_per_batch"] == sum(s["n_messages"] for s in found["supersteps"])
    assert [layer["name"] for layer in found["layers"]] == ["layer0", "layer1", "layer2"]
    assert found["layers"][1]["partition"] == "50 + 50"
    assert found["predicted_s"] > 0 and found["measured"] is None


def test_more_tasks_than_neurons(job):
    plan = horn.plan(job, tasks=13)
    assert plan.layers[2].neurons == (10,) * 13  # too few to divide: every task has all
    assert [layer.partition for layer in plan.layers] == ["all", "13 x 7-8", "all"]
    assert "  13 x 7-8  " in str(plan)


def test_one_task_sends_nothing(job):
    plan = horn.plan(job)
    assert plan.n_bytes == plan.n_messages == 0 and plan.supersteps == ()


def test_assumed_machines(job):
    plan = horn.plan(job, assume="tasks=64,bandwidth=10Gbit,latency=50us")
    assert plan.n_tasks == 64 and plan.transport == "tcp"
    slower = horn.plan(job, assume="tasks=64,bandwidth=10Gbit,latency=50ms")
    assert slower.predicted_s > plan.predicted_s
    assert "where tasks=64," in str(plan)


def test_after_a_run(job):
    run = horn.train(job)
    plan = horn.plan(job).after(run)
    assert plan.measured is not None and plan.measured.step_s > 0
    assert "measured" in str(plan) == repr(plan) and plan.as_dict()["measured"]["step_s"] > 0
    assert dataclasses.replace(plan, measured=None) == horn.plan(job)


def test_an_epoch_that_nobody_told_of_is_not_measured(job):
    """As one that group 0 of a run with servers reported to a process that has ended."""
    run = horn.train(job)
    plan = horn.plan(job).after(run)
    run.history.rows.insert(0, {**run.history[0], "samples_per_s": None})
    assert horn.plan(job).after(run) == plan


@pytest.mark.parametrize("tasks", [0, -1, 1.5, True])
def test_bad_tasks(job, tasks):
    with pytest.raises(JobError, match="tasks must be a whole number"):
        horn.plan(job, tasks=tasks)


def test_bad_words(job):
    with pytest.raises(JobError, match="write any of tasks=64"):
        horn.plan(job, assume="speed=3")
    with pytest.raises(JobError, match="horn.plan takes a horn.Job"):
        horn.plan(job.network)
    with pytest.raises(JobError, match="pigeon"):
        horn.plan(job, tasks=2, transport="pigeon")
    with pytest.raises(ModelError, match="layer7"):
        horn.plan(job, tasks=2, pins={"layer7": "sender"})
    with pytest.raises(HornError):
        horn.plan(job, tasks=2, pins={"layer1": "nowhere"})
