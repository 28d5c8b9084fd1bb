"""Callbacks in one process: what they see, what they may ask for, and what is built in."""

from __future__ import annotations

import csv
import signal
import threading
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn import contents, modelfile
from horn.callbacks import TrainingContext
from horn.training.deadline import Interrupted
from horn.training.hooks import Hooks
from horn.training.progress import Progress
from tests.support.runs import bits

PER_EPOCH = 20


def job(**more: Any) -> horn.Job:
    net = horn.Network(seed=5)
    net.input(64)
    net.layer(8, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    settings: dict[str, Any] = {"data": horn.data.digits().take(640), "epochs": 4,
                                "batch_size": 32, "optimizer": horn.SGD(0.1)}  # fmt: skip
    return horn.Job(net, **settings | more)


def held_out() -> horn.data.Dataset:
    return horn.data.digits("test").take(200)


class Diary(horn.Callback):
    """All that it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def on_train_begin(self, context: TrainingContext) -> None:
        self.lines.append(("begin", context.iteration, context.n_epochs, context.n_iterations))

    def on_epoch_end(self, context: TrainingContext) -> None:
        assert context.row is context.history[-1] and context.loss is None
        self.lines.append(("epoch", context.epoch, context.iteration, len(context.history)))

    def on_train_end(self, context: TrainingContext) -> None:
        self.lines.append(("end", context.iteration))


class ByBatch(Diary):
    def on_batch_end(self, context: TrainingContext) -> None:
        assert context.row is None and context.loss is not None and context.loss > 0
        self.lines.append(("batch", context.epoch, context.iteration))


def test_hooks_are_called_in_their_order_and_see_where_training_is():
    diary = Diary()
    horn.train(job(callbacks=[diary], epochs=2))
    epochs = [("epoch", 1, 20, 1), ("epoch", 2, 40, 2)]
    assert diary.lines == [("begin", 0, 2, 40), *epochs, ("end", 40)]


def test_batches_are_told_of_where_a_callback_wants_them_and_only_there():
    diary = ByBatch()
    horn.train(job(callbacks=[diary], epochs=1))
    assert diary.lines[1:21] == [("batch", 1, k) for k in range(1, 21)]
    assert diary.lines[21:] == [("epoch", 1, 20, 1), ("end", 20)]
    assert Hooks(job(callbacks=[diary])).is_by_batch
    assert not Hooks(job(callbacks=[Diary(), print])).is_by_batch


def test_callbacks_that_only_watch_change_no_bit():
    run = horn.train(job(callbacks=[Diary(), lambda context: context.model.predict(held_out())]))
    assert bits(run) == bits(horn.train(job()))


def test_a_function_is_called_after_each_epoch_with_the_model_of_it():
    found = []
    run = horn.train(job(callbacks=[lambda context: found.append(context.model)], epochs=3))
    assert [model.facts["iteration"] for model in found] == [20, 40, 60]
    assert found[2].evaluate(held_out()) == run.model.evaluate(held_out())
    assert found[0].evaluate(held_out()) != run.model.evaluate(held_out())


def test_the_model_at_the_end_is_the_runs():
    found = []

    class End(horn.Callback):
        def on_train_end(self, context: TrainingContext) -> None:
            found.append(context.model)

    run = horn.train(job(callbacks=[End()], validation=held_out(), keep_best=True))
    assert found == [run.model]


def test_before_the_first_update_there_is_no_model():
    class Early(horn.Callback):
        def on_train_begin(self, context: TrainingContext) -> None:
            context.model.predict(held_out())

    with pytest.raises(horn.CallbackError, match="from the first update on.*network.initial_par"):
        horn.train(job(callbacks=[Early()]))


def test_what_a_new_run_begins_with_is_there_before_the_first_update():
    found = []

    class Early(horn.Callback):
        def on_train_begin(self, context: TrainingContext) -> None:
            found.append(context.job.network.initial_parameters(context.job.dtype))

    run = horn.train(job(callbacks=[Early()], optimizer=horn.SGD(0.0)))
    assert found[0].keys() == run.model.parameters.keys()
    for name, array in run.model.parameters.items():
        assert np.array_equal(found[0][name], array) and found[0][name].dtype == array.dtype


def test_stop_after_an_epoch_and_within_one():
    class Stop(horn.Callback):
        def on_batch_end(self, context: TrainingContext) -> None:
            if context.iteration == 27:
                context.stop()

    run = horn.train(job(callbacks=[lambda c: c.stop() if c.epoch == 2 else None]))
    assert run.epochs == 2 and run.iterations == 40 and run.stopped_early and not run.stopped
    run = horn.train(job(callbacks=[Stop()], validation=held_out()))
    assert run.iterations == run.history[-1]["iteration"] == 27 and run.history[-1]["val_acc"]
    assert bits(run) == bits(horn.train(job(epochs=None, iterations=27, validation=held_out())))


class StopsFirst(horn.Callback):
    def on_train_begin(self, context: TrainingContext) -> None:
        context.stop()


def test_stop_before_the_first_update_ends_training_after_it(tmp_path):
    run = horn.train(job(callbacks=[StopsFirst()]))
    assert run.stopped_early and run.iterations == run.history[-1]["iteration"] == run.epochs == 1
    assert bits(run) == bits(horn.train(job(epochs=None, iterations=1)))
    horn.train(job(epochs=None, iterations=25), checkpoints=tmp_path, checkpoint_every=25)
    run = horn.train(job(callbacks=[StopsFirst()]), checkpoints=tmp_path, resume=True)
    assert run.stopped_early and run.history["iteration"] == [20, 26]
    assert bits(run) == bits(horn.train(job(epochs=None, iterations=26)))


def test_stop_after_the_last_epoch_stops_nothing():
    run = horn.train(job(callbacks=[lambda c: c.stop() if c.epoch == 4 else None]))
    assert run.iterations == 80 and not run.stopped_early


@pytest.mark.parametrize("backend", ["kernels", "reference", "python"])
def test_the_learning_rate_may_be_set(backend):
    def halve(context: TrainingContext) -> None:
        context.learning_rate /= 2

    small: dict[str, Any] = {"epochs": 3, "data": horn.data.digits().take(8), "batch_size": 4}
    run = horn.train(job(callbacks=[halve], **small), backend=backend)
    assert run.history["learning_rate"] == [0.1, 0.05, 0.025]
    assert run.model.facts["optimizer"] == "SGD(learning_rate=0.1)"
    by_schedule = job(optimizer=horn.SGD(horn.Step(0.1, 2, 0.5)), **small)
    assert bits(run) == bits(horn.train(by_schedule, backend=backend))


def test_the_history_has_the_rate_of_the_last_update_and_not_the_next():
    class Falling(horn.Callback):
        def on_batch_end(self, context):
            context.learning_rate /= 2

    run = horn.train(job(callbacks=[Falling()], batch_size=320, epochs=2))
    assert run.history["learning_rate"] == [0.05, 0.0125]


def test_a_schedule_keeps_its_form_when_the_rate_is_set():
    def to_a_tenth(context: TrainingContext) -> None:
        if context.epoch == 1:
            context.learning_rate = context.learning_rate / 10

    schedule = horn.Exponential(0.1, 0.99)
    run = horn.train(job(callbacks=[to_a_tenth], optimizer=horn.SGD(schedule), epochs=2))
    assert run.history["learning_rate"] == pytest.approx([schedule.at(19), schedule.at(39) / 10])


def test_at_the_end_of_a_schedule_the_rate_may_be_set_to_what_it_is():
    """Half of 0 is 0: a finished run ended with an error."""

    def halve(context: TrainingContext) -> None:
        context.learning_rate *= 0.5

    schedule = horn.Cosine(0.1, iterations=40)
    run = horn.train(job(callbacks=[halve], optimizer=horn.SGD(schedule), epochs=2))
    assert run.history["learning_rate"] == pytest.approx([schedule.at(19), schedule.at(39) / 2])

    def set_to_one(context: TrainingContext) -> None:
        if context.epoch == 2:
            context.learning_rate = 1.0

    with pytest.raises(horn.CallbackError, match="cannot be set to 1.0 at iteration 40, where"):
        horn.train(job(callbacks=[set_to_one], optimizer=horn.SGD(schedule), epochs=2))


@pytest.mark.parametrize("value", [-1.0, float("nan"), "fast"])
def test_a_rate_that_cannot_be_is_refused(value):
    def setting(context: TrainingContext) -> None:
        context.learning_rate = value

    with pytest.raises(horn.CallbackError, match="learning_rate must be a number from 0"):
        horn.train(job(callbacks=[setting]))


def test_a_callback_that_raises_is_named_with_its_line_and_nothing_is_lost():
    class Reader(horn.Callback):
        def on_epoch_end(self, context: TrainingContext) -> None:
            if context.epoch == 2:
                print(context.row["accuracy"])  # type: ignore[index]

    with pytest.raises(horn.CallbackError) as caught:
        horn.train(job(callbacks=[Reader()]))
    error = caught.value
    assert (error.callback, error.hook) == ("Reader", "on_epoch_end")
    assert "callback Reader, on_epoch_end of epoch 2: KeyError: 'accuracy'" in str(error)
    assert "test_callbacks.py" in str(error) and 'context.row["accuracy"]' in str(error)
    assert isinstance(error.__cause__, KeyError)
    assert len(error.run.history) == 2 and error.run.iterations == 40
    assert bits(error.run) == bits(horn.train(job(epochs=2)))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "stop",
            True,
            "context.stop = True changes nothing; to end training write  context.stop()",
        ),
        ("stop_training", True, "to end training write  context.stop()"),
        ("lr", 0.5, "context.lr = 0.5 changes nothing; write  context.learning_rate = 0.5"),
        ("learningrate", 0.5, "write  context.learning_rate = 0.5"),
        ("epoch", 100, "context.epoch = 100 changes nothing: it is what horn tells callbacks"),
        ("mine", 1, "a callback keeps its own in itself, as self.mine"),
    ],
)
def test_what_a_context_does_not_take_is_refused(name, value, said):
    def sets(context: TrainingContext) -> None:
        setattr(context, name, value)

    with pytest.raises(horn.CallbackError) as caught:
        horn.train(job(callbacks=[sets], epochs=2))
    assert said in str(caught.value) and caught.value.run.iterations == 20


def test_a_row_takes_columns_and_keeps_what_was_measured():
    def gap(context: TrainingContext) -> None:
        assert context.row is not None
        context.row["gap"] = context.row["epoch"] + 0.5

    def pretend(context: TrainingContext) -> None:
        assert context.row is not None
        context.row["val_loss"] = -1.0

    seen = horn.train(job(callbacks=[gap], epochs=2, validation=held_out()))
    assert seen.history["gap"] == [1.5, 2.5]
    with pytest.raises(
        horn.CallbackError, match=r"row\['val_loss'\] is what was measured"
    ) as caught:
        horn.train(job(callbacks=[gap, pretend], epochs=2, validation=held_out()))
    [row] = caught.value.run.history
    assert row["val_loss"] == seen.history["val_loss"][0] and row["gap"] == 1.5


class Heard(Progress):
    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.own: list[Any] = []

    def epoch(self, row: Any) -> None:
        self.rows.append(dict(row))

    def added(self, epoch: int, columns: Any) -> None:
        self.own.append((epoch, dict(columns)))


def test_who_watches_is_told_the_columns_of_callbacks_also_before_one_fails():
    def gap(context: TrainingContext) -> None:
        if context.epoch > 1:
            context.row["gap"] = context.epoch + 0.5  # type: ignore[index]

    def fails(context: TrainingContext) -> None:
        context.row["last"] = context.epoch  # type: ignore[index]
        if context.epoch == 3:
            raise ValueError("enough")

    heard = Heard()
    with pytest.raises(horn.CallbackError, match="enough"):
        horn.train(job(callbacks=[gap, fails], epochs=4), progress=heard)
    assert heard.own == [
        (1, {"last": 1}),
        (2, {"gap": 2.5, "last": 2}),
        (3, {"gap": 3.5, "last": 3}),
    ]
    assert [row["epoch"] for row in heard.rows] == [1, 2, 3] and "gap" not in heard.rows[-1]


@pytest.mark.parametrize("name", ["n_epochs", "note", "waits"])
def test_a_column_may_not_be_called_as_what_horn_tells_of_a_job(name):
    """One called n_epochs was shown as the number of epochs in horn status."""

    def add(context: TrainingContext) -> None:
        context.row |= {"gap": 0.5, name: 7}

    said = rf"context\.row: '{name}' is a name of horn's own; choose another \(taken: epoch, "
    with pytest.raises(horn.CallbackError, match=said) as caught:
        horn.train(job(callbacks=[add]))
    [row] = caught.value.run.history
    assert row["gap"] == 0.5 and name not in row


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.array([[1.5, 2.0]], np.float32), [[1.5, 2.0]]),
        ({"a": np.float32(0.5), "b": (1, None)}, {"a": 0.5, "b": [1, None]}),
        (np.True_, True),
        ("text", "text"),
    ],
)
def test_a_column_of_a_callback_is_plain_and_a_checkpoint_keeps_it(tmp_path, given, kept):
    def add(context: TrainingContext) -> None:
        assert context.row is not None
        context.row |= {"mine": given}
        context.row.setdefault("list", []).append(np.int8(context.epoch))

    settings = {"callbacks": [add], "epochs": 2}
    run = horn.train(job(**settings), checkpoints=tmp_path, checkpoint_every=PER_EPOCH + 1)
    assert run.history["mine"] == [kept, kept] and run.history["list"] == [[1], [2]]
    assert type(run.history[0]["list"][0]) is int
    more = horn.train(job(**settings | {"epochs": 3}), checkpoints=tmp_path, resume=True)
    assert more.history["mine"] == [kept] * 3 and more.history["list"] == [[1], [2], [3]]


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ({"mine": date(2020, 1, 1)}, r"context\.row\['mine'\] is of type date; write numbers or t"),
        ({"mine": {"at": [Path("x")]}}, "is of type PosixPath"),
        ({"mine": np.array([1j])}, "is of type complex"),
        ({"mine": np.longdouble(1)}, "is of type longdouble"),
        ({"mine": {1: 0.5}}, "has the key 1, which is no text; write '1'"),
        ({2: 0.5}, r"context\.row\[2\] has the key 2, which is no text"),
    ],
)
def test_what_no_checkpoint_can_keep_is_no_column(added, said):
    def fine(context: TrainingContext) -> None:
        context.row["gap"] = 0.5  # type: ignore[index]

    def adds(context: TrainingContext) -> None:
        context.row.update(added)  # type: ignore[union-attr]

    with pytest.raises(horn.CallbackError, match=said) as caught:
        horn.train(job(callbacks=[fine, adds]))
    assert (caught.value.callback, caught.value.hook) == ("adds", "on_epoch_end")
    [row] = caught.value.run.history  # a run whose history can be saved
    assert row["gap"] == 0.5 and not row.keys() & {"mine", 2}


def test_a_callback_that_fails_leaves_no_column_that_cannot_be_kept():
    def fails(context: TrainingContext) -> None:
        context.row.update(mine={1}, other=np.ones(2), loss=0.0)  # type: ignore[union-attr]
        raise KeyError("mine")

    with pytest.raises(horn.CallbackError, match="KeyError: 'mine'") as caught:
        horn.train(job(callbacks=[fails]))
    [row] = caught.value.run.history
    assert row["other"] == [1.0, 1.0] and "mine" not in row and row["loss"] > 0


class Scaled(horn.SGD):
    def __init__(self, rate: float, scale: float) -> None:
        super().__init__(rate)
        vars(self)["scale"] = scale

    def update(self, w: Any, g: Any, slots: Any, lr: Any, t: Any) -> Any:
        return super().update(w, self.scale * g, slots, lr, t)


def test_an_optimizer_with_an_init_of_its_own_has_a_rate_that_may_be_set():
    def halve(context: TrainingContext) -> None:
        context.learning_rate /= 2

    run = horn.train(job(callbacks=[halve], optimizer=Scaled(0.4, 0.25), epochs=2))
    assert run.history["learning_rate"] == [0.4, 0.2]
    assert bits(run) == bits(horn.train(job(callbacks=[halve], epochs=2)))


def test_a_progress_function_that_raises_is_named_and_nothing_is_lost():
    def show(row: dict[str, Any]) -> None:
        if row["epoch"] == 2:
            print(row["accuracy"])

    with pytest.raises(horn.CallbackError) as caught:
        horn.train(job(), progress=show)
    error = caught.value
    assert "callback show, progress of epoch 2: KeyError: 'accuracy'" in str(error)
    assert 'print(row["accuracy"])' in str(error)
    assert error.run.stopped and bits(error.run) == bits(horn.train(job(epochs=2)))


@pytest.mark.parametrize("hook", ["on_train_begin", "on_batch_end", "on_train_end"])
def test_every_hook_is_named(hook):
    def fail(self: horn.Callback, context: TrainingContext) -> None:
        raise ValueError("no such thing")

    failing = type("Failing", (horn.Callback,), {hook: fail})()
    later = Diary()
    with pytest.raises(horn.CallbackError, match=f"callback Failing, {hook} .*no such thing") as e:
        horn.train(job(callbacks=[failing, later]))
    iterations = {"on_train_begin": None, "on_batch_end": 1, "on_train_end": 80}[hook]
    assert (e.value.run.iterations if e.value.run else None) == iterations
    assert len(later.lines) == {"on_train_begin": 0, "on_batch_end": 1, "on_train_end": 5}[hook]


class OfKeras(horn.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(logs["loss"])


class Bare(horn.Callback):
    def on_train_begin(self):
        pass


class Begins(horn.Callback):
    def on_epoch_begin(self, context):
        pass


@pytest.mark.parametrize(
    "given, words",
    [
        ([Begins()], r"Begins.on_epoch_begin is called by nobody; the hooks are on_train_begin, "),
        ([OfKeras()], r"OfKeras.on_epoch_end\(self, epoch, logs\): horn passes one context"),
        ([Bare()], r"Bare.on_train_begin\(self\): horn passes one context; write  def on_train_be"),
        (print, "callbacks is a list"),
        (Diary(), "callbacks is a list"),
        ([Diary], r"has the class Diary; write Diary\(\)"),
        ([3], "a callback is a horn.Callback"),
        ([type("Keras", (), {"on_epoch_end": print, "__call__": print})()], "is a horn.Callback"),
        (
            [horn.ModelCheckpoint("best.horn")],
            "ModelCheckpoint watches val_loss, but .*validation=",
        ),
        ([horn.ReduceOnPlateau()], "ReduceOnPlateau watches val_loss, but the job has no valid"),
    ],
)
def test_what_is_no_callback_of_this_job_is_refused_at_once(given, words):
    with pytest.raises(horn.ModelError, match=words):
        job(callbacks=given)


def test_settings_that_cannot_be_are_refused():
    nan = float("nan")
    for wrong in (
        {"factor": 1.0}, {"factor": "a"}, {"patience": 0}, {"patience": 2.5}, {"mode": "best"},
        {"least": nan}, {"least": -1}, {"min_delta": "x"}, {"min_delta": nan},
    ):  # fmt: skip
        (name,) = wrong
        with pytest.raises(horn.ModelError, match=f"ReduceOnPlateau: {name} "):
            horn.ReduceOnPlateau("loss", **wrong)
    for separator in (";;", "", "\n", '"', 3):
        with pytest.raises(horn.ModelError, match="CSVLogger: separator is one character"):
            horn.CSVLogger("log.csv", separator)


def test_model_checkpoint_has_the_best_model(tmp_path):
    path = tmp_path / "deep" / "best.horn"
    run = horn.train(job(callbacks=[horn.ModelCheckpoint(path)], validation=held_out(), epochs=8,
                         optimizer=horn.SGD(0.9), keep_best=True))  # fmt: skip
    best = horn.Model.load(path)
    for name, array in run.model.parameters.items():
        np.testing.assert_array_equal(best.parameters[name], array)
    assert best.facts["iteration"] == run.model.facts["iteration"]


def test_a_model_of_a_checkpoint_has_the_facts_of_the_runs_and_answers_alike(tmp_path):
    """It gave one of several labels; and horn show: its file is damaged."""
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, activation="sigmoid", loss="binary_cross_entropy")
    x = np.random.default_rng(0).standard_normal((40, 3))
    every = horn.ModelCheckpoint(tmp_path / "m.horn", save_best_only=False)
    several = (x[:, :2] > 0).astype(float)
    run = horn.train(horn.Job(net, (x, several), epochs=2, batch_size=10, callbacks=[every]))
    saved = horn.Model.load(tmp_path / "m.horn")
    measured = {"metrics", "date", "seconds"}
    expected = {k: fact for k, fact in run.model.facts.items() if k not in measured}
    assert {k: fact for k, fact in saved.facts.items() if k not in measured} == expected
    assert expected["answers"] == "each" and saved.facts.keys() == run.model.facts.keys()
    for model in (run.model, saved):
        with pytest.raises(horn.ModelError, match="each output of this model answers by itself"):
            model.predict(x, labels=True)
    shown = dict(contents.facts(modelfile.read_manifest(tmp_path / "m.horn")))
    assert shown["data"] == "data, 40 samples"
    assert shown["trained"].startswith("8 updates of batch 10, 2 epochs, ")


def test_another_run_has_another_best(tmp_path):
    """Also where it ends with worse than the run before it."""
    keep = horn.ModelCheckpoint(path := tmp_path / "best.horn")
    less = horn.ReduceOnPlateau(patience=1, min_delta=10.0)
    settings = {"callbacks": [keep, less], "validation": held_out()}
    first = horn.train(job(**settings, epochs=4)).history
    path.unlink()
    second = horn.train(job(**settings, epochs=2)).history
    assert path.exists() and keep.best == min(second["val_loss"])
    assert second["learning_rate"] == first["learning_rate"][:2]


def test_model_checkpoint_names_each_epoch(tmp_path):
    every = horn.ModelCheckpoint(tmp_path / "m{epoch:02}-{loss:.2f}.horn", save_best_only=False)
    run = horn.train(job(callbacks=[every], epochs=2))
    names = [f"m{row['epoch']:02}-{row['loss']:.2f}.horn" for row in run.history]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    wrong = horn.ModelCheckpoint(tmp_path / "{accuracy}.horn", save_best_only=False)
    with pytest.raises(horn.ModelError, match="by 'accuracy', .* are epoch, iteration, loss, acc"):
        job(callbacks=[wrong])
    for path, said in [("{loss", "expected '}'"), ("{}", "by ''")]:
        with pytest.raises(horn.ModelError, match=said):
            job(callbacks=[horn.ModelCheckpoint(path, save_best_only=False)])
    empty = horn.ModelCheckpoint(tmp_path / "{group_loss:.2f}.horn", save_best_only=False)
    with pytest.raises(horn.CallbackError, match="it may name epoch, iteration, loss, acc"):
        horn.train(job(callbacks=[empty]))


def test_a_column_that_is_not_measured_is_said_with_those_that_are():
    with pytest.raises(horn.ModelError, match="'f1', which this job does not measure; .* loss"):
        job(callbacks=[horn.ReduceOnPlateau("f1")])
    other = horn.ReduceOnPlateau("f1")
    with pytest.raises(horn.CallbackError, match="'f1', which this job does not measure; .* loss"):
        horn.train(job(callbacks=[lambda context: None, other]))  # it might have added one


@pytest.mark.parametrize("name", ["ReduceOnPlateau", "early stopping"])
def test_an_accuracy_that_nobody_can_measure_is_said_before_the_first_update(name):
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, loss="squared_error")
    x, y = np.random.default_rng(0).standard_normal((2, 40, 3))
    two = [horn.ReduceOnPlateau("val_acc"), horn.ReduceOnPlateau("val_loss")]
    watching: dict[str, Any] = {"callbacks": two}
    if name == "early stopping":
        watching = {"early_stopping": horn.EarlyStopping(monitor="val_acc")}
    given = horn.Job(net, (x, y[:, :2]), validation=0.2, epochs=1, **watching)
    with pytest.raises(horn.HornError, match=f"{name} watches val_acc, but accuracy needs class"):
        horn.train(given)


def test_a_checkpoint_of_every_epoch_watches_nothing(tmp_path):
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, loss="squared_error")
    x, y = np.random.default_rng(0).standard_normal((2, 40, 3))
    every = horn.ModelCheckpoint(tmp_path / "m.horn", monitor="val_acc", save_best_only=False)
    horn.train(horn.Job(net, (x, y[:, :2]), validation=0.2, epochs=1, callbacks=[every]))
    assert (tmp_path / "m.horn").exists()


def test_reduce_on_plateau_waits_and_reduces():
    given = horn.ReduceOnPlateau("acc", factor=0.5, patience=2, min_delta=2.0, least=0.03)
    run = horn.train(job(callbacks=[given], epochs=9))
    # the first is the best; nothing is better by 2.0
    rates = [0.1, 0.1, 0.1, 0.05, 0.05, 0.03, 0.03, 0.03, 0.03]
    assert run.history["learning_rate"] == rates and given.best == run.history["acc"][0]


def test_an_undefined_value_is_no_best_and_ends_nothing():
    values = iter([float("nan"), float("nan"), 0.5, float("nan"), 0.7, 0.6])  # the first: a trial

    def odd(y_true, y_pred):
        return next(values)

    given = horn.ReduceOnPlateau("val_odd", factor=0.5, patience=2)
    run = horn.train(
        job(metrics=[odd], validation=held_out(), epochs=5, optimizer=horn.SGD(0.1),
            callbacks=[given])
    )  # fmt: skip
    assert run.history["val_odd"] == [None, 0.5, None, 0.7, 0.6]
    assert given.best == 0.7 and given.waited == 1

    def own(context):
        context.row["own"] = {2: 3.0, 4: 5.0}.get(context.epoch, float("nan"))

    given = horn.ReduceOnPlateau("own", factor=0.5, patience=2)
    run = horn.train(job(callbacks=[own, given], epochs=5))
    assert given.best == 5.0 and run.history["learning_rate"] == [0.1] * 5


def test_a_loss_that_is_undefined_in_the_first_epoch_is_not_the_best_for_ever():
    stopping = horn.EarlyStopping(patience=2)
    given = job(validation=held_out(), early_stopping=stopping)
    scores = [given.score({"val_loss": value}) for value in (float("nan"), 2.0, None, 1.0)]
    assert scores == [float("inf"), 2.0, float("inf"), 1.0]


@pytest.mark.parametrize("monitor", ["loss", "val_loss", "acc", "val_acc"])
def test_what_nobody_measures_is_said_before_the_first_update_beside_functions_too(monitor):
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, loss="squared_error" if "acc" in monitor else None)
    x, y = np.random.default_rng(0).standard_normal((2, 40, 3))
    both = [lambda context: None, horn.ReduceOnPlateau(monitor)]
    target = "labels" if "acc" in monitor else None
    given = horn.Job(net, (x, y[:, :2]), validation=0.2, epochs=1, callbacks=both, target=target)
    said = "accuracy needs class" if "acc" in monitor else "the network has none"
    with pytest.raises(horn.HornError, match=f"ReduceOnPlateau watches {monitor}, but {said}"):
        horn.train(given)


def plateau(**more: Any) -> tuple[horn.Job, horn.ReduceOnPlateau]:
    given = horn.ReduceOnPlateau("loss", factor=0.5, patience=1, min_delta=0.2)
    return job(callbacks=[given], epochs=8, **more), given


def test_what_callbacks_remember_survives_a_resume(tmp_path):
    """Ctrl-C in the middle of an epoch; going on gives the bits of a run that was never stopped."""
    whole, first = plateau()
    reference = horn.train(whole)
    assert len(set(reference.history["learning_rate"])) > 2

    class Interrupt(horn.Callback):
        def on_batch_end(self, context: TrainingContext) -> None:
            if context.iteration == 5 * PER_EPOCH + 7:
                signal.raise_signal(signal.SIGINT)

    stopped_job, _ = plateau()
    stopped_job = stopped_job.with_settings(callbacks=[*stopped_job.callbacks, Interrupt()])
    stopped = horn.train(stopped_job, checkpoints=tmp_path)
    assert stopped.stopped and stopped.iterations == 107
    going, again = plateau()
    diary = Diary()
    log = tmp_path / "log.csv"
    going = going.with_settings(callbacks=[*going.callbacks, horn.CSVLogger(log), diary])
    resumed = horn.train(going, checkpoints=tmp_path, resume=True)
    assert resumed.history["learning_rate"] == reference.history["learning_rate"]
    assert bits(resumed) == bits(reference)
    assert (again.best, again.waited) == (first.best, first.waited)
    assert diary.lines[0] == ("begin", 107, 8, 160)
    assert [line[1] for line in diary.lines if line[0] == "epoch"] == [6, 7, 8]
    with open(log) as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == [str(k) for k in range(1, 9)]


def test_what_no_checkpoint_can_keep_is_said_before_training():
    class Odd(horn.Callback):
        remembers = ("things",)

        def __init__(self) -> None:
            self.things = object()

    with pytest.raises(horn.CallbackError, match="Odd, remembers .* keeps numbers, texts"):
        horn.train(job(callbacks=[Odd()]))


def test_csv_logger_writes_the_history(tmp_path):
    path = tmp_path / "logs" / "run.csv"
    run = horn.train(job(callbacks=[horn.CSVLogger(path, ";")], epochs=3))
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file, delimiter=";"))
    assert [float(row["loss"]) for row in rows] == run.history["loss"]
    assert rows[0]["val_loss"] == "" and [path] == list(path.parent.iterdir())


def test_csv_logger_replaces_no_program_and_leaves_no_half_file(tmp_path):
    (program := tmp_path / "train.py").write_text("import horn")
    with pytest.raises(horn.ModelError, match="train.py: is a program, and would be replaced"):
        horn.train(job(callbacks=[horn.CSVLogger(program)]))
    assert program.read_text() == "import horn"
    (rows := tmp_path / "rows.csv").write_text("1,2,0\n3,1,1\n")
    with pytest.raises(horn.ModelError, match="rows.csv: is read here, and would be replaced"):
        horn.train(job(callbacks=[horn.CSVLogger(rows)], test=horn.data.load(rows)))
    rows.unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_tensorboards_own_reader_reads_what_is_written(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "board"
    run = horn.train(
        job(callbacks=[horn.TensorBoard(folder, histograms=True)], validation=held_out())
    )
    found = reader.EventAccumulator(str(folder))
    found.Reload()
    assert {"loss", "acc", "val_loss", "val_acc", "learning_rate"} <= set(found.Tags()["scalars"])
    events = found.Scalars("val_loss")
    assert [event.step for event in events] == [1, 2, 3, 4]
    np.testing.assert_allclose([event.value for event in events], run.history["val_loss"], 1e-6)
    assert set(found.Tags()["histograms"]) == set(run.model.parameters)
    layer = run.model.parameters["layer1.weight"]
    assert found.Histograms("layer1.weight")[-1].histogram_value.num == layer.size


@pytest.mark.parametrize("ends_in", ["a callback", "the loop", "the first hook"])
def test_a_run_that_fails_closes_its_tensorboard_with_all_that_was_written(tmp_path, ends_in):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    class Fails(horn.Callback):
        def on_train_begin(self, context):
            assert ends_in != "the first hook"

        def on_epoch_end(self, context):
            assert context.epoch < 2 or ends_in != "a callback"

        def on_batch_end(self, context):
            if context.epoch == 3 and ends_in == "the loop":  # no failure of a callback
                raise Interrupted(1.0)

    board = horn.TensorBoard(tmp_path)
    with pytest.raises(horn.HornError):
        horn.train(job(callbacks=[board, Fails()]))
    assert not [one for one in threading.enumerate() if "EventLogger" in type(one).__name__]
    found = reader.EventAccumulator(str(tmp_path))
    found.Reload()
    n = 0 if ends_in == "the first hook" else 2
    steps = [event.step for event in found.Scalars("loss")] if n else []
    assert steps == [1, 2][:n]


def test_what_fails_when_a_callback_is_closed_does_not_hide_the_error_of_the_run(tmp_path, caplog):
    pytest.importorskip("tensorboardX")

    class Full(horn.TensorBoard):
        def on_epoch_end(self, context):
            self._writer.close()
            self._writer = Closed()
            raise ValueError("the cause")

    class Closed:
        def close(self):
            raise OSError(28, "No space left on device")

    with pytest.raises(horn.CallbackError, match="the cause"):
        horn.train(job(callbacks=[Full(tmp_path)]))
    assert "callback Full is not closed: " in caplog.text and "No space left" in caplog.text


def test_tensorboard_and_plots_say_which_extra_they_need(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(horn.ModelError, match=r"pip install 'horn-bsp\[tensorboard\]'"):
        job(callbacks=[horn.TensorBoard("board")])
    with pytest.raises(horn.ModelError, match=r"pip install 'horn-bsp\[plot\]'"):
        job(callbacks=[horn.plot.live()])


def test_a_plot_grows_with_the_history(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "loss.png"
    plot = horn.plot.live(path=path)
    run = horn.train(job(callbacks=[plot], validation=held_out()))
    assert path.read_bytes()[:4] == b"\x89PNG"
    [axes] = plot.figure.axes
    loss, val_loss = axes.lines
    assert list(loss.get_ydata()) == run.history["loss"]
    assert list(val_loss.get_ydata()) == run.history["val_loss"]


def test_a_plot_of_columns_that_nobody_measures_is_refused_before_training():
    pytest.importorskip("matplotlib")
    with pytest.raises(horn.ModelError, match="none of auc is measured; the columns are epoch"):
        job(callbacks=[horn.plot.live("auc")])
    with pytest.raises(horn.ModelError, match="none of val_acc, val_f1 is measured"):
        job(callbacks=[horn.plot.live("val_acc", "val_f1")], metrics=["f1"])  # no validation data
    plots = [horn.plot.live("val_f1"), horn.plot.live("auc", "loss")]
    job(callbacks=plots, metrics=["f1"], validation=held_out())


def test_a_plot_may_draw_a_column_that_a_callback_adds(tmp_path):
    pytest.importorskip("matplotlib")

    def add(context):
        context.row["gap"] = 0.5

    plot = horn.plot.live("gap", path=tmp_path / "gap.png")
    horn.train(job(callbacks=[add, plot], epochs=2))
    assert list(plot.figure.axes[0].lines[0].get_ydata()) == [0.5, 0.5]
    with pytest.raises(horn.CallbackError, match="none of auc is measured; the columns are epoch"):
        horn.train(job(callbacks=[add, horn.plot.live("auc")]))


def falling(iteration: int) -> float:
    return 0.2 / (1 + iteration / 50)


def test_a_schedule_may_be_a_plain_function():
    run = horn.train(job(optimizer=horn.SGD(falling), epochs=2))
    assert run.history["learning_rate"] == [falling(19), falling(39)]
    assert run.model.facts["optimizer"] == "SGD(learning_rate=falling)"
    warm = horn.train(job(optimizer=horn.SGD(horn.Warmup(40, falling)), epochs=1))
    assert warm.history["learning_rate"] == [pytest.approx(falling(19) / 2)]


@pytest.mark.parametrize("given", ["0.1", [0.1], True, horn.Step, object()])
def test_what_is_no_rate_is_refused_where_it_is_given(given):
    with pytest.raises(horn.ModelError, match="SGD: learning_rate is a number, a schedule such as"):
        horn.SGD(given)


@pytest.mark.parametrize("value", [None, -0.5, float("inf"), "much"])
def test_a_function_that_returns_no_rate_is_named(value):
    def mine(iteration: int) -> Any:
        return value

    with pytest.raises(horn.ModelError, match=r"learning rate of mine\(0\) must be a number"):
        horn.train(job(optimizer=horn.SGD(mine)))


def test_files_are_where_a_cluster_keeps_them(tmp_path, monkeypatch):
    monkeypatch.setenv("HORN_FILES", str(tmp_path / "files"))
    horn.train(job(callbacks=[horn.CSVLogger("log.csv")], epochs=1))
    assert (tmp_path / "files" / "log.csv").exists() and not Path("log.csv").exists()


def test_a_function_that_takes_more_than_a_context_is_refused_before_training():
    def told(context: TrainingContext, row: Any) -> None: ...

    with pytest.raises(
        horn.ModelError, match=r"told\(context, row\): .*write  def told\(context\):"
    ):
        job(callbacks=[told])
