"""Callbacks of task processes: they run here, see the whole model, and all tasks follow them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from typing import Any

import numpy as np
import pytest

import horn
from horn.callbacks import TrainingContext
from horn.errors import BarrierTimeout, JobError, TaskFailed
from horn.executor import attempts
from horn.training.run_settings import RunSettings
from tests.support.runs import bits, job, nothing_is_left, pid_of

pytestmark = [pytest.mark.net, pytest.mark.cluster]
__all__ = ["nothing_is_left"]  # a fixture
# Of 60 samples in batches of 16: 4 updates per epoch.
LAYOUTS: dict[str, dict[str, Any]] = {
    "tasks": {"tasks": 2},
    "groups": {"groups": 2},
    "both": {"groups": 2, "tasks": 2},
    "averaging": {"groups": 2, "strategy": "averaging"},
    "sub-models": {"tasks": 2, "strategy": "parallel-dropout"},
}
JOINED = [name for name in LAYOUTS if name != "averaging"]


def dense() -> horn.Network:
    """Sub-models have no sparse layers."""
    net = horn.Network(seed=3)
    net.input(8)
    net.layer(13, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


class Watch(horn.Callback):
    """The model after each epoch, and what it scores."""

    def __init__(self) -> None:
        self.models: list[horn.Model] = []
        self.rates: list[float] = []

    def on_epoch_end(self, context: TrainingContext) -> None:
        self.models.append(context.model)
        assert context.model is self.models[-1]
        self.rates.append(context.learning_rate)


class Halve(horn.Callback):
    changes_rate = True

    def on_epoch_end(self, context: TrainingContext) -> None:
        context.learning_rate *= 0.5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_tasks_follow_a_rate_that_is_set(layout):
    """As a schedule of the same numbers does, which every task computes by itself."""
    watch = Watch()
    run = horn.train(job(network=dense(), epochs=4, callbacks=[Halve(), watch]), **LAYOUTS[layout])
    assert run.history["learning_rate"] == [0.1, 0.05, 0.025, 0.0125]
    assert watch.rates == [0.05, 0.025, 0.0125, 0.00625]
    schedule = horn.SGD(horn.Step(0.1, 4, 0.5), momentum=0.9)
    given = job(network=dense(), epochs=4, optimizer=schedule)
    assert bits(run) == bits(horn.train(given, **LAYOUTS[layout]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_model_is_whole_and_of_its_epoch(layout):
    watch = Watch()
    run = horn.train(job(network=dense(), epochs=3, callbacks=[watch]), **LAYOUTS[layout])
    if layout != "averaging":  # it takes a mean at the end
        strategy = horn.ParallelDropout(2) if layout == "sub-models" else "allreduce"
        shorter = horn.train(job(network=dense(), epochs=2), strategy=strategy)
        for name, array in run.model.parameters.items():
            np.testing.assert_array_equal(watch.models[2].parameters[name], array)
            expected = shorter.model.parameters[name]  # of one task: sums in another order
            np.testing.assert_allclose(watch.models[1].parameters[name], expected, rtol=1e-9)
    assert [model.facts["iteration"] for model in watch.models] == [4, 8, 12]


@pytest.mark.parametrize("layout", JOINED)
def test_all_tasks_stop_within_an_epoch(layout):
    seen = []

    class Stop(horn.Callback):
        def on_batch_end(self, context: TrainingContext) -> None:
            seen.append(context.iteration)
            if context.iteration == 6:
                assert context.model.facts["iteration"] == 6
                context.stop()

    run = horn.train(job(network=dense(), epochs=4, callbacks=[Stop()]), **LAYOUTS[layout])
    assert seen == [1, 2, 3, 4, 5, 6]
    assert run.iterations == 6 and run.epochs == 2 and run.stopped_early
    shorter = job(network=dense(), epochs=None, iterations=6)
    assert bits(run) == bits(horn.train(shorter, **LAYOUTS[layout]))


@pytest.mark.parametrize("strategy", ["averaging", "downpour", "easgd"])
def test_groups_that_do_not_share_batches_stop_after_the_epoch(strategy):
    class Stop(horn.Callback):
        def on_batch_end(self, context: TrainingContext) -> None:
            if context.iteration == 6:
                context.stop()

    watch = Watch()
    run = horn.train(job(epochs=40, callbacks=[Stop(), watch]), groups=2, strategy=strategy)
    assert run.epochs == len(watch.models) == 2 and run.stopped_early


@pytest.mark.parametrize("layout", ["both", "averaging"])
def test_a_stop_before_the_first_update_ends_training_after_it_or_its_epoch(layout):
    class Stop(horn.Callback):
        def on_train_begin(self, context: TrainingContext) -> None:
            context.stop()

    run = horn.train(job(network=dense(), epochs=4, callbacks=[Stop()]), **LAYOUTS[layout])
    assert run.iterations == (4 if layout == "averaging" else 1)
    assert run.epochs == 1 and run.stopped_early


@pytest.mark.parametrize("strategy", ["downpour", "easgd"])
def test_with_servers_the_rate_is_theirs(strategy):
    with pytest.raises(JobError, match="Halve sets the learning rate, but strategy .* has servers"):
        horn.train(job(callbacks=[Halve()]), groups=2, strategy=strategy)

    def setting(context: TrainingContext) -> None:
        context.learning_rate = 0.5

    with pytest.raises(horn.CallbackError, match="cannot be set: strategy") as caught:
        horn.train(job(callbacks=[setting]), groups=2, strategy=strategy)
    assert caught.value.run.epochs == 1


def test_a_callback_that_raises_ends_the_tasks_and_keeps_the_run():
    def odd(context: TrainingContext) -> None:
        if context.epoch == 2:
            raise ValueError("enough")

    with pytest.raises(horn.CallbackError, match="callback odd, on_epoch_end of epoch 2") as caught:
        horn.train(job(epochs=40, callbacks=[odd]), tasks=2)
    run = caught.value.run
    assert run.epochs == 2 and bits(run) == bits(horn.train(job(epochs=2), tasks=2))


def test_a_task_that_is_killed_while_a_callback_waits_for_the_model_is_the_cause():
    class Killer(horn.Callback):
        def on_epoch_end(self, context: TrainingContext) -> None:
            os.kill(pid_of(1), signal.SIGKILL)
            with contextlib.suppress(Exception):  # whatever it does, the run has failed
                context.model.predict(np.zeros((1, 8)))

    with pytest.raises(TaskFailed, match="First failure: task 1"):
        horn.train(job(epochs=40, callbacks=[Killer()]), tasks=2, max_restarts=0)


@pytest.mark.parametrize("hook", ["on_batch_end", "on_epoch_end"])
def test_tasks_that_do_not_answer_a_callback_are_named(hook, monkeypatch):
    """It was waited for them without an end: no other task was there to say that they are late."""
    monkeypatch.setattr(attempts, "MARGIN_S", 0.0)

    def stop(self: horn.Callback, context: TrainingContext) -> None:
        for task in (0, 1):
            os.kill(pid_of(task), signal.SIGSTOP)
        _ = context.model

    stops = type("Stops", (horn.Callback,), {hook: stop})
    said = r"sending the model to a callback: only 0 of 2 .*; absent: task 0, task 1"
    with pytest.raises(BarrierTimeout, match=said) as late:
        horn.train(job(callbacks=[stops()]), tasks=2, superstep_timeout=1.0, max_restarts=0)
    assert "is stopped (SIGSTOP" in str(late.value)


def test_a_task_in_a_callback_of_its_own_is_waited_for(tmp_path):
    """All tasks are as long in it: nobody waits for another."""
    with_own = [Everywhere(str(tmp_path)), Watch()]
    one = attempts.Attempts.__new__(attempts.Attempts)
    one.settings = RunSettings(superstep_timeout=1.0, start_timeout=60.0)
    for callbacks, first_s in ((with_own, 540.0), (with_own[1:], 1.0 + attempts.MARGIN_S)):
        one.job = job(callbacks=callbacks)
        assert one._answer_s(0) == first_s
        assert one._answer_s(1) == 1.0 + attempts.MARGIN_S


def test_a_restart_takes_callbacks_back_to_the_checkpoint(tmp_path):
    """A task is killed between two checkpoints; what callbacks remember is as if it never was."""

    def plateau() -> horn.ReduceOnPlateau:
        return horn.ReduceOnPlateau("loss", factor=0.5, patience=1, min_delta=0.1)

    reference = horn.train(job(epochs=8, callbacks=[plateau()]), tasks=2)
    assert len(set(reference.history["learning_rate"])) > 2

    class KillOnce(horn.Callback):
        is_done = False

        def on_batch_end(self, context: TrainingContext) -> None:
            if context.iteration == 23 and not self.is_done:
                self.is_done = True
                os.kill(pid_of(1), signal.SIGKILL)

    one = plateau()
    run = horn.train(job(epochs=8, callbacks=[one, KillOnce()]), tasks=2, checkpoints=tmp_path,
                     checkpoint_every=5)  # fmt: skip
    assert run.history["learning_rate"] == reference.history["learning_rate"]
    assert bits(run) == bits(reference)


def test_a_resumed_run_goes_on_with_what_callbacks_remember(tmp_path):
    """Stopped on two tasks, resumed on two groups."""
    reference = horn.train(job(epochs=6, callbacks=[Halve()]), tasks=2)

    class Interrupt(horn.Callback):
        def on_batch_end(self, context: TrainingContext) -> None:
            if context.iteration == 10:
                signal.raise_signal(signal.SIGINT)

    stopped = horn.train(
        job(epochs=6, callbacks=[Halve(), Interrupt()]), tasks=2, checkpoints=tmp_path
    )
    assert stopped.stopped and stopped.iterations < 24
    run = horn.train(job(epochs=6, callbacks=[Halve()]), groups=2, checkpoints=tmp_path,
                     resume=True)  # fmt: skip
    assert run.history["learning_rate"] == reference.history["learning_rate"]
    for name, array in reference.model.parameters.items():
        np.testing.assert_allclose(run.model.parameters[name], array, rtol=1e-9, atol=1e-12)


def rate(iteration: int) -> float:
    return SCALE / (1 + iteration)


SCALE = 0.4


def test_a_function_as_a_schedule_travels_to_tasks():
    run = horn.train(job(optimizer=horn.SGD(rate)), tasks=2)
    assert run.history["learning_rate"] == [rate(3), rate(7)]


def test_progress_and_callbacks_see_the_same_rows():
    rows: list[Any] = []
    seen: list[Any] = []
    given = job(epochs=3, callbacks=[lambda context: seen.append(dict(context.row))])
    run = horn.train(given, groups=2, progress=rows.append)
    assert seen == [dict(row) for row in rows] == list(run.history)


class Losses(horn.Callback):
    def __init__(self) -> None:
        self.seen: list[float | None] = []

    def on_batch_end(self, context: TrainingContext) -> None:
        self.seen.append(context.loss)


@pytest.mark.parametrize("strategy", ["averaging", "easgd"])
def test_a_group_without_a_sample_of_a_batch_tells_no_loss(strategy):
    """Nine samples: the last batch has one, which is another group's."""
    x, y = np.random.default_rng(0).normal(size=(9, 8)), np.arange(9) % 3
    losses = Losses()
    given = horn.Job(dense(), (x, y), batch_size=4, epochs=2, callbacks=[losses])
    run = horn.train(given, groups=2, strategy=strategy)
    assert [loss is None for loss in losses.seen] == [False, False, True] * 2
    first, second, _ = losses.seen[:3]
    assert run.history[0]["group_loss"][0] == pytest.approx((first + second) / 2)


class Everywhere(horn.Callback):
    """A line per hook into a file per task."""

    everywhere = True

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def _say(self, context: TrainingContext, word: str) -> None:
        with open(f"{self.folder}/{context.group}-{context.task}", "a") as file:
            file.write(f"{word} {os.getpid()} {context.iteration}\n")

    def on_train_begin(self, context: TrainingContext) -> None:
        self._say(context, "begin")

    def on_batch_end(self, context: TrainingContext) -> None:
        assert context.loss is not None
        self._say(context, "batch")

    def on_epoch_end(self, context: TrainingContext) -> None:
        assert context.row is not None and context.learning_rate > 0
        self._say(context, "epoch")

    def on_train_end(self, context: TrainingContext) -> None:
        self._say(context, "end")


@pytest.mark.parametrize("beside", [[], [Halve]])
def test_a_callback_may_run_in_every_task(beside, tmp_path):
    made = [Everywhere(str(tmp_path)), *(kind() for kind in beside)]
    run = horn.train(job(epochs=2, callbacks=made), groups=2, tasks=2)
    lines = {path.name: path.read_text().split("\n") for path in tmp_path.iterdir()}
    assert sorted(lines) == ["0-0", "0-1", "1-0", "1-1"]
    words = ["begin", *["batch"] * 4, "epoch", *["batch"] * 4, "epoch", "end"]
    for found in lines.values():
        assert [line.split()[0] for line in found[:-1]] == words
    assert len({found[0].split()[1] for found in lines.values()} - {str(os.getpid())}) == 4
    plain = horn.train(job(epochs=2, callbacks=[kind() for kind in beside]), groups=2, tasks=2)
    assert bits(run) == bits(plain)
    alone = horn.train(job(epochs=1, callbacks=[Everywhere(str(tmp_path))]))  # here, with one task
    assert alone.epochs == 1 and f"end {os.getpid()} 4" in (tmp_path / "0-0").read_text()


class Deciding(horn.Callback):
    everywhere = True

    def on_epoch_end(self, context: TrainingContext) -> None:
        context.stop()


class Odd(horn.Callback):
    everywhere = True

    def on_epoch_end(self, context: TrainingContext) -> None:
        raise ValueError("enough")


def test_a_callback_in_every_task_only_looks():
    with pytest.raises(TaskFailed, match="callback Deciding, on_epoch_end of epoch 1: a callback "
                       "that runs everywhere only looks"):  # fmt: skip
        horn.train(job(callbacks=[Deciding()]), tasks=2)


@pytest.mark.parametrize("callback", [Deciding, Odd])
def test_what_a_callback_raises_in_a_task_is_no_bug_of_horn(callback):
    with pytest.raises(TaskFailed) as caught:
        horn.train(job(callbacks=[callback()]), tasks=2)
    assert caught.value.exit_code == 1
    found = re.search(r"task \d .*callback \w+, on_epoch_end of epoch 1: .*test_callbacks.py:\d+",
                      str(caught.value), re.DOTALL)  # fmt: skip
    assert found


def test_attributes_that_cannot_travel_are_said_before():
    odd = Everywhere("here")
    odd.folder = object()  # type: ignore[assignment]
    with pytest.raises(JobError, match="cannot be given to other processes: .*object"):
        horn.train(job(callbacks=[odd]), tasks=2)
    odd.folder = [{3: "by epoch"}]  # type: ignore[assignment]
    with pytest.raises(JobError, match="folder = .*: 'by epoch'.*by text"):
        horn.train(job(callbacks=[odd]), tasks=2)
