"""Ctrl-C ends a training and keeps what it has learned."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.training.progress import Progress


class Interrupting(Progress):
    """Ctrl-C in the row of an epoch, as often as wanted."""

    def __init__(self, epoch: int = 2, times: int = 1) -> None:
        self.at, self.times = epoch, times

    def epoch(self, row: Mapping[str, Any]) -> None:
        if row["epoch"] == self.at:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)


def job(**more: Any) -> horn.Job:
    net = horn.Network(seed=5)
    net.input(64)
    net.layer(8, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    data = horn.data.digits().take(640)
    settings: dict[str, Any] = {"epochs": 200, "batch_size": 32, "optimizer": horn.SGD(0.1)} | more
    return horn.Job(net, data, **settings)


def check(run: horn.Run, **settings: Any) -> None:
    """It is the model of the iteration that it says, and as good as that one is."""
    assert run.stopped and run.state == "STOPPED"
    assert 40 <= run.iterations < 200 * 20
    assert len(run.history) == run.iterations // 20
    assert run.model.facts["iteration"] == run.iterations
    whole = horn.train(job(epochs=None, iterations=run.iterations), **settings)
    assert whole.iterations == run.iterations
    for name, array in whole.model.parameters.items():
        np.testing.assert_allclose(run.model.parameters[name], array, rtol=2e-4, atol=2e-6)


def test_one_process_stops_where_the_epoch_ends():
    run = horn.train(job(), progress=Interrupting())
    assert run.iterations == 40 and run.checkpoint == ""
    check(run)


def test_what_was_measured_is_of_the_model_that_is_returned():
    test = horn.data.digits("test").take(200)
    run = horn.train(job(validation=0.1, test=test), progress=Interrupting())
    assert run.test == pytest.approx(run.model.evaluate(test))
    run = horn.train(job(validation=test), progress=Interrupting(1))
    assert run.metrics["validation"] == pytest.approx(run.model.evaluate(test))


def test_with_a_folder_it_can_be_resumed(tmp_path: Path):
    run = horn.train(job(epochs=4), progress=Interrupting(), checkpoints=tmp_path / "c")
    assert Path(run.checkpoint).is_dir() and run.iterations == 40
    rest = horn.train(job(epochs=4), checkpoints=tmp_path / "c", resume=True)
    whole = horn.train(job(epochs=4))
    for name, array in whole.model.parameters.items():
        np.testing.assert_array_equal(rest.model.parameters[name], array)


@pytest.mark.cluster
@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{"tasks": 2}, {"groups": 2}, {"groups": 2, "strategy": "averaging"},
     {"tasks": 2, "strategy": "parallel-dropout"}],
    ids=["tasks", "groups", "averaging", "parallel dropout"],
)  # fmt: skip
def test_tasks_stop_at_one_boundary(settings, is_kept, tmp_path: Path):
    folder = tmp_path / "c" if is_kept else None
    run = horn.train(job(), progress=Interrupting(), checkpoints=folder, timeout=120, **settings)
    assert bool(run.checkpoint) == is_kept
    check(run, **settings if "strategy" in settings else {})
    assert run.metrics["training"] == pytest.approx(run.model.evaluate(job().data))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"tasks": 2}, marks=pytest.mark.cluster),
        pytest.param({"groups": 2, "strategy": "averaging"}, marks=pytest.mark.cluster),
        pytest.param({"tasks": 2, "strategy": "parallel-dropout"}, marks=pytest.mark.cluster),
    ],
    ids=["one process", "tasks", "averaging", "parallel dropout"],
)
def test_a_stop_at_the_end_of_an_epoch_keeps_its_row(settings, tmp_path: Path):
    """One in twenty stops had a model that was an epoch ahead of its history. Here all do."""
    given, folder = job(batch_size=640, epochs=100_000), tmp_path / "c"
    run = horn.train(given, progress=Interrupting(), checkpoints=folder, timeout=120, **settings)
    assert run.stopped and 2 <= run.iterations == len(run.history) == run.history[-1]["iteration"]
    more = replace(given, epochs=run.iterations + 2)
    rest = horn.train(more, checkpoints=folder, resume=True, timeout=120, **settings)
    assert rest.history["epoch"] == list(range(1, run.iterations + 3))
    assert rest.history["loss"][: run.iterations] == run.history["loss"]


class AtTheLast(horn.Callback):
    def __init__(self, iteration: int = 40) -> None:
        self.at = iteration

    def on_batch_end(self, context: horn.TrainingContext) -> None:
        if context.iteration == self.at:
            signal.raise_signal(signal.SIGINT)


def test_a_stop_at_the_last_update_is_no_stop(tmp_path: Path):
    """And its checkpoint goes on where a longer run would be: within an epoch, here the third."""
    given = job(epochs=None, iterations=40, batch_size=40, callbacks=[AtTheLast()])
    run = horn.train(given, checkpoints=tmp_path / "c")
    assert run.state == "SUCCEEDED" and not run.stopped
    assert run.history["iteration"] == [16, 32, 40]
    more = replace(given, iterations=60, callbacks=())
    rest = horn.train(more, checkpoints=tmp_path / "c", resume=True)
    assert rest.history["iteration"] == [16, 32, 48, 60]
    for name, array in horn.train(more).model.parameters.items():
        np.testing.assert_array_equal(rest.model.parameters[name], array)


def test_twice_is_at_once():
    with pytest.raises(KeyboardInterrupt):
        horn.train(job(), progress=Interrupting(times=2))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


CALLS: list[int] = []  # a job tries its metrics once before it begins


def again(y_true: np.ndarray, y_pred: np.ndarray) -> float:
    CALLS.append(len(CALLS))
    if CALLS[-1] % 2:
        signal.raise_signal(signal.SIGINT)
    return 0.0


@pytest.mark.parametrize("more", [{}, {"test": horn.data.digits("test").take(20)}])
def test_a_second_while_the_run_is_measured_ends_that_alone(more):
    run = horn.train(job(metrics=[again], **more), progress=Interrupting())
    check(run)
    assert run.metrics == {} and run.test is None and run.model.facts["metrics"] == {}
    with pytest.raises(KeyboardInterrupt):  # it is over, and was not stopped
        horn.train(job(metrics=[again], epochs=1, callbacks=[AtTheLast(20)]))


def test_a_stop_before_the_first_update_ends_with_it():
    class AtOnce(Progress):
        def begin(self, job: horn.Job) -> None:
            signal.raise_signal(signal.SIGINT)

    run = horn.train(job(), progress=AtOnce())
    assert run.iterations == 1  # the update that it ends with
