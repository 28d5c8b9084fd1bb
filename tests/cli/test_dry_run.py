"""horn submit --dry-run with tasks, and on machines that are not here."""

from __future__ import annotations

from typing import Any

import pytest


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
        ("tasks=1.5", "write a whole number, as in tasks=64"),
    ],
)
def test_a_bad_word_is_a_usage_error(run: Any, words: str, said: str) -> None:
    done = run("submit", "job.py", "--dry-run", "--assume", words)
    assert done.code == 2 and said in done.err and done.out == ""


def test_assume_is_for_a_plan(run: Any) -> None:
    done = run("submit", "job.py", "--assume", "tasks=2")
    assert done.code == 2 and "--dry-run" in done.err
