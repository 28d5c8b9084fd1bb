"""horn submit --dry-run with tasks, and on machines that are not here."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import horn
from horn.planner import calibration
from horn.planner import plan as planning
from horn.planner.machine import Machine
from horn.topology import Topology


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures that are not measured, of a machine with two cores."""
    monkeypatch.setattr(calibration, "_known", {calibration._key("float32"): Machine(n_cores=2)})


def test_tasks_are_shown(run: Any) -> None:
    done = run("submit", "job.py", "--dry-run", "--tasks", "2")
    assert done.code == 0, done.err
    header = done.out.splitlines()[0].split()
    assert header == ["Layer", "Neuron", "Units", "Params", "Runs", "as", "Partition",
                      "Placement", "Messages", "Bytes", "Predicted"]  # fmt: skip
    assert "2 tasks over shm · batch 10" in done.out
    assert "Memory per task about" in done.out and "Predicted " in done.out
    assert done.out.rstrip().endswith("Dry run: nothing was trained or written.")
    assert done.files == set()


def test_groups_are_shown(run: Any) -> None:
    done = run("submit", "job.py", "--dry-run", "-g", "5")
    assert done.code == 0 and "1 group of 1 task" not in done.out
    said = "5 groups of 1 task, allreduce: they share each batch, at most 2 samples a group"
    assert said in done.out
    done = run("submit", "job.py", "--dry-run", "-g", "64")  # as without --dry-run
    assert done.code == 2 and "use fewer groups, or a larger batch_size" in done.err
    done = run("submit", "job.py", "--dry-run", "-g", "3", "-n", "2", "--strategy", "downpour")
    assert "3 groups of 2 tasks, downpour: each has batches of 10 of its own" in done.out
    plan = run("submit", "job.py", "--dry-run", "-g", "5", "--json").json
    assert (plan["groups"], plan["tasks"], plan["strategy"]) == (5, 1, "allreduce")


def test_json_has_the_group(run: Any) -> None:
    plan = run("submit", "job.py", "--dry-run", "--tasks", "3", "--json").json
    assert plan["schema"] == "horn.plan/1"
    group = plan["group"]
    assert group["tasks"] == 3 and group["transport"] == "shm"
    assert len(group["layers"][1]["neurons"]) == 3
    assert run("submit", "job.py", "--dry-run", "--json").json["group"] is None


def test_pins_and_transport_count(run: Any) -> None:
    done = run("submit", "job.py", "--dry-run", "-n", "2", "--pin", "layer1=sender",
               "--transport", "tcp", "--json")  # fmt: skip
    group = done.json["group"]
    assert group["placement"]["layer1.weight"] == "sender" and group["transport"] == "tcp"


def test_machines_that_are_not_here(run: Any) -> None:
    done = run("submit", "job.py", "--dry-run", "--assume",
               "tasks=64,bandwidth=10Gbit,latency=50us")  # fmt: skip
    assert done.code == 0, done.err
    assert "64 tasks over tcp" in done.out and "where tasks=64," in done.out


@pytest.mark.parametrize(
    "words, said",
    [
        ("speed=3", "write any of tasks=64, cores=64, bandwidth=10Gbit or 1.2GB, latency=50us"),
        ("latency=50", "write a number from above 0, as in latency=50us"),
        ("tasks=2,latency=1e400s", "no machine has this; write, say, latency=50us"),
        ("tasks=1.5", "write a whole number, as in tasks=64"),
    ],
)
def test_a_bad_word_is_a_usage_error(run: Any, words: str, said: str) -> None:
    done = run("submit", "job.py", "--dry-run", "--assume", words)
    assert done.code == 2 and said in done.err and done.out == ""


def test_assume_is_for_a_plan(run: Any) -> None:
    done = run("submit", "job.py", "--assume", "tasks=2")
    assert done.code == 2 and "--dry-run" in done.err


# --- what is said before a start


def test_more_tasks_than_cores_are_said(run: Any, two_cores: None) -> None:
    done = run("submit", "job.py", "--dry-run", "--tasks", "3", "--groups", "2")
    assert done.code == 0
    (line,) = [row for row in done.err.splitlines() if "take turns" in row]
    assert re.fullmatch(
        r"6 processes on 2 cores take turns: predicted [\d.]+ [um]s per batch, [\d.]+ [um]s on 1 "
        r"task. At most 2 can work at the same time.", line
    )  # fmt: skip


def test_a_small_network_is_said_to_be_slower_on_two_tasks(run: Any, two_cores: None) -> None:
    done = run("submit", "job.py", "--dry-run", "--tasks", "2", "--json")
    (line,) = done.json["advice"]
    assert line.startswith("This network is too small to be faster on 2 tasks: predicted ")
    assert line + "." in done.err.splitlines()
    assert run("submit", "job.py", "--dry-run", "--json").json["advice"] == []


@pytest.mark.cluster
def test_it_is_said_before_training_starts(run: Any, two_cores: None) -> None:
    done = run("submit", "job.py", "--tasks", "2", "--set", "epochs=1")
    assert done.code == 0, done.err
    lines = done.err.splitlines()
    said = next(k for k, line in enumerate(lines) if line.startswith("This network is too small"))
    trained = next(k for k, line in enumerate(lines) if line.startswith("Epoch "))
    assert said < trained
    quiet = run("submit", "job.py", "--tasks", "2", "--set", "epochs=1", "--quiet")
    assert "too small" not in quiet.err


def test_nothing_is_said_where_tasks_help(two_cores: None) -> None:
    net = horn.Network(seed=1)
    net.input(2000)
    net.layer(3000, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    x, y = np.zeros((300, 2000), np.float32), np.zeros(300, int)
    job = horn.Job(net, (x, y), optimizer=horn.SGD(0.1), batch_size=300)
    assert planning.advice(job, Topology(1, 2), threads=1) == []
    assert len(planning.advice(job, Topology(1, 3), threads=1)) == 1
    assert planning.advice(job, Topology(1, 1)) == []
