"""Experiment 10: a task is killed in each phase of its life; the result is that of a run without.

The phase is a point of the code, where the task kills itself (``springs.py``).

    pytest -m slow -s tests/faults/test_phases.py      20 of each phase, some 7 minutes
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import horn
from horn.executor.task_pool import TaskPool
from horn.strategies.downpour import Downpour
from tests.faults.springs import PUSHING, SET, Trap
from tests.faults.test_kills import EVERY, LOADED_S, Watch, job, nothing_is_left, same_history
from tests.support.runs import bits

pytestmark = [pytest.mark.net, pytest.mark.cluster]
__all__ = ["nothing_is_left"]  # a fixture
SYNCHRONOUS = ["start", *SET]
N_ITERATIONS = 60
PINS = {"layer1": "receiver", "layer2": "receiver"}  # so that tasks also meet between layers
SETTINGS = {
    "forward": {"pins": PINS}, "backward": {"pins": PINS}, "barrier": {"barrier": "zookeeper"},
}  # fmt: skip
NOTICED_S, RESUMED_S = 0.5, 5.0  # after the kill
NAMES = ("noticed", "restarted", "first superstep")


class Heard(Watch):
    """Also when the exit of a task was heard of, and what group 0 did meanwhile."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.heard_at, self.steps = [], []
        events = TaskPool.events

        def watched(pool, timeout_s):
            for rank, said, descriptors in events(pool, timeout_s):
                if isinstance(said, int) and said < 0:
                    self.heard_at.append(time.monotonic())
                yield rank, said, descriptors

        monkeypatch.setattr(TaskPool, "events", watched)

    def on_step(self, iteration):
        self.steps.append((iteration, time.monotonic()))


def trapped(phase, mark, iteration=25):
    return horn.SGD(Trap(str(mark), phase, iteration=iteration), momentum=0.9)


def times(mark, watch, resumed_at):
    killed_at = float(mark.read_text())
    return tuple(at - killed_at for at in (watch.heard_at[0], watch.noted_at[0], resumed_at))


def kill_in(phase, folder, monkeypatch):
    """One synchronous run with a kill; the seconds from it to what came of it."""
    mark, watch = folder / "mark", Heard(monkeypatch)
    settings = SETTINGS.get(phase, {})
    iteration = N_ITERATIONS - 1 if phase == "cleanup" else 25
    run = horn.train(
        job(N_ITERATIONS, optimizer=trapped(phase, mark, iteration)), tasks=2, progress=watch,
        checkpoints=folder / "c", checkpoint_every=EVERY, **settings,
    )  # fmt: skip
    calm = horn.train(job(N_ITERATIONS), tasks=2, **settings)
    assert mark.exists(), f"no task was killed in {phase}"
    assert bits(run) == bits(calm)
    same_history(run, calm)
    assert len(watch.notes) == 1 and "killed by SIGKILL" in watch.notes[0], watch.notes
    assert not list((folder / "c").glob("*.tmp"))
    if phase == "cleanup" and not watch.resumed_at:  # from the last checkpoint there was no step
        return times(mark, watch, float(Path(f"{mark}.again").read_text()))
    return times(mark, watch, watch.resumed_at[0])


def kill_while_pushing(folder, monkeypatch):
    """Of group 1 of two: group 0 goes on, and does no step twice."""
    mark, watch = folder / "mark", Heard(monkeypatch)
    n_iterations = 400
    run = horn.train(
        job(n_iterations, optimizer=horn.SGD(Trap(str(mark), PUSHING))), groups=2, servers=1,
        strategy=Downpour(server_optimizer="job"), progress=watch, checkpoints=folder / "c",
    )  # fmt: skip
    assert run.state == "SUCCEEDED" and mark.exists()
    assert [note.partition(" (")[0] for note in watch.notes] == ["Restarting group 1"]
    numbers = [iteration for iteration, _ in watch.steps]
    assert numbers == sorted(set(numbers)), "group 0 has done a step again"
    assert run.history["epoch"] == sorted(set(run.history["epoch"]))
    return times(mark, watch, float(Path(f"{mark}.again").read_text()))


def kill_one(phase, folder, monkeypatch):
    folder.mkdir()
    with monkeypatch.context() as patch:
        if phase == PUSHING:
            return kill_while_pushing(folder, patch)
        return kill_in(phase, folder, patch)


@pytest.mark.parametrize("phase", ["start", "backward", "barrier", "pushing", "checkpointing"])
def test_a_kill_in_a_phase_costs_no_result(phase, tmp_path, monkeypatch):
    took = kill_one(phase, tmp_path / "run", monkeypatch)
    print(phase, *(f"{n} {t:.2f} s" for n, t in zip(NAMES, took, strict=True)), file=sys.stderr)
    assert took[-1] <= LOADED_S


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("phase", [*SYNCHRONOUS, PUSHING])
def test_20_kills_in_a_phase_cost_no_result(phase, tmp_path, monkeypatch):
    took = [kill_one(phase, tmp_path / str(n), monkeypatch) for n in range(20)]
    told = ", ".join(
        f"{name} {np.median(found):.2f} s (worst {max(found):.2f})"
        for name, found in zip(NAMES, zip(*took, strict=True), strict=True)
    )
    print(f"\n{phase}, 20 kills: {told}; load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    noticed_s, _, resumed_s = np.median(took, axis=0)
    assert noticed_s <= NOTICED_S and resumed_s <= RESUMED_S
