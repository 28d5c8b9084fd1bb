"""A run that goes on from a checkpoint is the run that was never stopped: the same bits of weights,
of the optimizer's memory, and of every later loss; every sample once per epoch.

Experiment 30. pytest -m slow tests/parity/test_resume.py is every optimizer on every topology.
"""

from __future__ import annotations

import importlib
import itertools
import linecache
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import horn
from horn.checkpoint import Checkpoints
from horn.data import permutation
from horn.errors import CheckpointError, Conflict, JobError
from horn.losses import LOSSES
from horn.strategies import Mean
from horn.training.identity import identity
from horn.training.loop import TrainingLoop
from tests.support.checkpoints import whole_array
from tests.support.runs import bits

pytestmark = [pytest.mark.net, pytest.mark.cluster]
N, BATCH, EPOCHS = 52, 12, 3  # the last batch of an epoch is smaller
PER_EPOCH = -(-N // BATCH)
OPTIMIZERS = {
    "sgd": horn.SGD(0.1),
    "momentum": horn.SGD(horn.Warmup(3, horn.Cosine(0.1, 15)), momentum=0.9),
    "nesterov": horn.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adagrad": horn.Adagrad(0.05),
    "rmsprop": horn.RMSProp(0.01, clip_value=0.1),
    "adadelta": horn.AdaDelta(),
    "adam": horn.Adam(0.01, clip_norm=1.0),
}
SHAPES = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2)]  # groups, tasks
SQUARED = LOSSES["squared_error"]
MOMENTS = {"first": 1, "middle": PER_EPOCH + 2, "epoch end": 2 * PER_EPOCH, "last": 3 * PER_EPOCH}


class Counting(horn.Neuron):
    """It learns a number of its own and remembers one, and draws."""

    gain = horn.Parameter(1.0)
    seen = horn.State(0.0)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.seen = 0.9 * self.seen + total
        self.feedforward(self.gain * total if total > 0 else 0.1 * total)


def network(is_dense=False):
    net = horn.Network(seed=5)
    net.input(9, keep=0.9)
    net.layer(14, neuron=horn.Dropout)
    if is_dense:
        net.layer(10, activation="tanh")
    else:
        net.layer(10, neuron=Counting, connect=horn.Sparse(fan_in=5))
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def data(n=N, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 9)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)


def job(optimizer="momentum", *, is_dense=False, **settings):
    given = {"optimizer": OPTIMIZERS.get(optimizer, optimizer), "batch_size": BATCH,
             "epochs": EPOCHS, "validation": data(20, 2), "keep_best": True}  # fmt: skip
    return horn.Job(network(is_dense), data(), **{**given, **settings})


def told(run):
    """The history, but for the time it took."""
    timed = ("seconds", "samples_per_s")
    return [{k: v for k, v in row.items() if k not in timed} for row in run.history]


def remembered(folder: Path, iteration: int) -> dict[tuple[str, str], bytes]:
    """Everything that a checkpoint has, whole."""
    opened = Checkpoints(folder).open(iteration)
    shapes = opened.facts["identity"]["shapes"]
    found = {}
    for kind in ("parameter", "state", "slot"):
        for name in opened.names(kind):
            array = whole_array(opened, kind, name, shapes[name.partition("/")[0]], "float32")
            found[kind, name] = array.tobytes()
    return found


def law(tmp_path: Path, given: horn.Job, moments=tuple(MOMENTS), **settings) -> None:
    """Saving changes nothing; from a checkpoint it comes to the same end, with the same memory."""
    whole = horn.train(given, **settings)
    saved = tmp_path / "saved"
    run = horn.train(given, checkpoints=saved, checkpoint_every=1, keep_checkpoints=99, **settings)
    assert bits(run) == bits(whole) and told(run) == told(whole)
    last = given.n_iterations
    assert Checkpoints(saved).iterations() == list(range(1, last + 1))
    end = remembered(saved, last)
    for moment, iteration in ((moment, MOMENTS[moment]) for moment in moments):
        again = tmp_path / f"from {moment}"
        start = Checkpoints(saved).open(iteration).path
        run = horn.train(
            given, resume=start, checkpoints=again, checkpoint_every=1, keep_checkpoints=99,
            **settings,
        )  # fmt: skip
        assert bits(run) == bits(whole), moment
        assert told(run) == told(whole), moment
        assert (run.best_epoch, run.iterations) == (whole.best_epoch, whole.iterations)
        if iteration < last:
            assert remembered(again, last) == end, moment


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_goes_on_exactly(optimizer, tmp_path):
    law(tmp_path, job(optimizer))


def test_groups_go_on_exactly(tmp_path):
    law(tmp_path, job("adam"), ["middle"], groups=2, tasks=2)


@pytest.mark.parametrize("every", [1, 5])
def test_averaged_groups_go_on_exactly(every, tmp_path):
    """From between two means too: each group has weights and a memory of its own then."""
    strategy = horn.Averaging(every=every)
    law(tmp_path, job("adam"), ["middle"], groups=2, tasks=2, strategy=strategy)


def test_averaged_groups_on_other_tasks_know_the_losses_of_their_samples(tmp_path):
    """Their epoch's loss had only the batches after the resume."""
    given = job("sgd", dtype="float64", epochs=1)
    settings = {"groups": 2, "strategy": horn.Averaging(every=3)}
    whole = horn.train(given, checkpoints=tmp_path, checkpoint_every=1, keep_checkpoints=99,
                       **settings)  # fmt: skip
    for iteration in (1, 2):
        start = Checkpoints(tmp_path).open(iteration).path
        (row,) = horn.train(given, resume=start, tasks=2, **settings).history
        expected = whole.history[0]
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-9)
        assert row["group_loss"] == pytest.approx(expected["group_loss"], rel=1e-9)


def test_sequences_in_pieces_of_averaged_groups_go_on_with_any_number_of_groups(tmp_path):
    """Each group has its own lanes of the batch; with every=1 they compute what one does."""
    net = horn.Network(seed=1)
    net.layer(5, activation="tanh", inputs=[net.input(2, steps=4), horn.Delayed()])
    net.output(3, activation="softmax", loss="cross_entropy", each_step=True)
    x = np.random.default_rng(1).normal(size=(12, 16, 2))
    given = horn.Job(
        net, (x, np.abs(x[:, :, 0].cumsum(axis=1)).astype(int) % 3), horn.SGD(0.1), batch_size=6,
        epochs=2, dtype="float64", stateful=True, truncate=4,
    )  # fmt: skip
    whole, strategy, saved = horn.train(given), horn.Averaging(every=1), tmp_path / "saved"
    horn.train(given, groups=2, strategy=strategy, checkpoints=saved, checkpoint_every=1,
               keep_checkpoints=99)  # fmt: skip
    start = Checkpoints(saved).open(2).path  # in the middle of the first sequences
    for settings in ({}, {"groups": 3, "strategy": strategy}):
        run = horn.train(given, resume=start, changed=True, **settings)
        for name, array in whole.model.parameters.items():
            np.testing.assert_allclose(run.model.parameters[name], array, 0, 1e-12, err_msg=name)


@dataclass(frozen=True)
class Growing(horn.Strategy):
    """Means after batches 1, 2, 4, 8, ..., which it remembers as ``kind`` says."""

    kind: str = "dict"
    name: ClassVar[str] = "growing"

    def begin(self, view):
        memory = {"next": np.int64(1), 7: (1, 2)}
        return {"dict": memory, "object": object()}[self.kind]

    def after_batch(self, memory, view):
        assert memory[7] == (1, 2)
        if view.n_batches == memory["next"]:
            memory["next"] *= 2
            yield Mean(list(view.parameters.values()))

    def at_end(self, memory, view):
        yield Mean(list(view.parameters.values()))


@dataclass(frozen=True)
class Averag(Growing):
    """Its name begins another's."""

    name: ClassVar[str] = "averag"


def test_a_strategy_goes_on_with_a_dict_that_it_remembers(tmp_path):
    """The first checkpoint ended the run: it took dataclasses alone."""
    given, how = job(is_dense=True), {"groups": 2, "strategy": Growing(), "progress": False}
    whole = horn.train(given, checkpoints=tmp_path, checkpoint_every=5, keep_checkpoints=9, **how)
    again = horn.train(given, resume=Checkpoints(tmp_path).open(5).path, **how)
    assert bits(again) == bits(whole) and told(again) == told(whole)


def test_a_memory_that_no_checkpoint_can_hold_is_told_before_the_first_step(tmp_path):
    with pytest.raises(
        JobError, match=r"strategy growing: its memory, <object .*a dict, a list or"
    ):
        horn.train(job(is_dense=True), groups=2, strategy=Growing("object"), checkpoints=tmp_path,
                   checkpoint_every=1000, progress=False)  # fmt: skip


class Decides(horn.Callback):
    """In the middle of an epoch it lowers the rate, and ends training."""

    def on_batch_end(self, context):
        if context.iteration == 2:
            context.learning_rate = 0.05
        if context.iteration == PER_EPOCH + 2:
            context.stop()


def test_what_callbacks_decided_for_the_end_of_an_epoch_holds_after_a_resume(tmp_path):
    """Averaged groups share it at the end of the epoch, also where they went on in between."""
    given = job(horn.SGD(0.1), callbacks=[Decides()])
    settings = {"groups": 2, "strategy": horn.Averaging(every=2)}
    saved = tmp_path / "saved"
    whole = horn.train(given, checkpoints=saved, checkpoint_every=1, keep_checkpoints=99,
                       **settings)  # fmt: skip
    assert whole.history["learning_rate"] == [0.1, 0.05] and whole.stopped_early
    for iteration in (3, PER_EPOCH + 3):
        run = horn.train(given, resume=Checkpoints(saved).open(iteration).path, **settings)
        assert (bits(run), told(run)) == (bits(whole), told(whole)), iteration


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "before, after",
    [
        ({}, {"groups": 2, "strategy": "averaging"}),
        ({"groups": 2}, {"groups": 2, "strategy": "averaging"}),
        ({"groups": 2, "strategy": "averaging"}, {"groups": 2}),
        ({"groups": 2, "strategy": "averaging"}, {"groups": 2, "strategy": Averag()}),
        ({"groups": 2, "strategy": "averaging"}, {"groups": 3, "strategy": "averaging"}),
        ({"groups": 2, "strategy": "parallel-dropout"}, {"groups": 2}),
    ],
)
def test_another_strategy_goes_on_knowingly(before, after, tmp_path):
    given = job("momentum", is_dense=True, keep_best=False)
    given = given.with_settings(network=plain(given.network))
    short = given.with_settings(epochs=1)
    first = horn.train(short, checkpoints=tmp_path, checkpoint_every=PER_EPOCH, **before)
    run = horn.train(given, resume=tmp_path, changed=True, **after)
    assert run.epochs == EPOCHS and run.iterations == EPOCHS * PER_EPOCH
    # Of groups that had models of their own the first group's samples count.
    near = 0.1 if before.get("strategy") == "averaging" else 1e-6
    assert run.history[0]["loss"] == pytest.approx(first.history[0]["loss"], rel=near)


DROPOUT = {"groups": 2, "strategy": "parallel-dropout"}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "before, after",
    [
        (DROPOUT, {}),
        (DROPOUT, {"groups": 2}),
        ({}, DROPOUT),
        (DROPOUT, {**DROPOUT, "strategy": horn.ParallelDropout(keep=0.3, dropconnect=0.5)}),
    ],
)
def test_sub_models_go_on_as_the_model_that_they_were(before, after, tmp_path):
    """Their weights are larger, as each neuron hears few others: taken as they are, those of the
    whole network made another model.
    """
    still = job(horn.SGD(1e-9), is_dense=True, keep_best=False)
    still = still.with_settings(network=plain(still.network), epochs=2)
    was = horn.train(
        still.with_settings(epochs=1, optimizer=horn.SGD(0.1)),
        checkpoints=tmp_path, checkpoint_every=PER_EPOCH, **before,
    ).model  # fmt: skip
    model = horn.train(still, resume=tmp_path, changed=True, **after).model
    for name, array in was.parameters.items():
        np.testing.assert_allclose(model.parameters[name], array, rtol=1e-4, atol=1e-6)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("before, after", [(DROPOUT, {}), ({}, DROPOUT)])
def test_what_sub_models_kept_is_the_model_that_it_was(before, after, tmp_path):
    given = job(horn.SGD(0.1), is_dense=True)
    given = given.with_settings(network=plain(given.network), epochs=1)
    kept = horn.train(given, **before).model
    further = given.with_settings(epochs=None, iterations=PER_EPOCH + 1)
    horn.train(further, checkpoints=tmp_path, checkpoint_every=PER_EPOCH + 1, **before)
    worse = given.with_settings(epochs=3, optimizer=horn.SGD(30.0))
    run = horn.train(worse, resume=tmp_path, changed=True, **after)
    assert run.model.facts["best_epoch"] == 1
    for name, array in kept.parameters.items():
        np.testing.assert_allclose(run.model.parameters[name], array, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("groups, tasks", SHAPES)
def test_every_optimizer_goes_on_exactly_everywhere(groups, tasks, optimizer, tmp_path):
    law(tmp_path, job(optimizer), groups=groups, tasks=tasks)


def test_sub_models_go_on_exactly(tmp_path):
    strategy = horn.ParallelDropout(dropconnect=0.8)
    given = job("momentum", is_dense=True)
    given = given.with_settings(network=plain(given.network))
    law(tmp_path, given, ["middle"], tasks=2, strategy=strategy)


def plain(net):
    """Without neurons that draw who sits out: sub-models are that."""
    return net.rebuilt(changes={"layer1": {"neuron": horn.Standard}})


@pytest.mark.parametrize("backend", ["reference", pytest.param("python", marks=pytest.mark.slow)])
def test_every_backend_goes_on_exactly(backend, tmp_path):
    law(tmp_path, job("adam", epochs=2), ["middle"], backend=backend)


@pytest.mark.parametrize("before, after", [((1, 1), (1, 3)), ((2, 2), (1, 1))])
def test_another_number_of_groups_and_tasks_goes_on(before, after, tmp_path):
    """From the same numbers, to the bit; sums in another order then differ in the last digits."""
    given = job("adam", dtype="float32")
    first = [dict(zip(("groups", "tasks"), x, strict=True)) for x in (before, after)]
    whole = horn.train(given, checkpoints=tmp_path / "a", checkpoint_every=7, **first[0])
    run = horn.train(
        given, resume=Checkpoints(tmp_path / "a").open(7).path, checkpoints=tmp_path / "b",
        checkpoint_every=1, keep_checkpoints=99, **first[1],
    )  # fmt: skip
    assert run.iterations == whole.iterations
    for mine, its in zip(told(run), told(whole), strict=True):
        for name in ("loss", "val_loss"):
            assert mine[name] == pytest.approx(its[name], rel=2e-4), name
    for name, array in whole.model.parameters.items():
        np.testing.assert_allclose(run.model.parameters[name], array, rtol=2e-3, atol=1e-4)


@pytest.mark.slow
def test_what_another_number_of_tasks_reads_is_what_was_written(tmp_path):
    """A job that ends where the checkpoint is only reads and gives back."""
    given = job("adam", epochs=None, iterations=7, keep_best=False)
    whole = horn.train(given, checkpoints=tmp_path, checkpoint_every=7, groups=2, tasks=2)
    for groups, tasks in SHAPES:
        run = horn.train(given, resume=tmp_path, groups=groups, tasks=tasks)
        assert bits(run) == bits(whole), (groups, tasks)
        for name, array in whole.model.states.items():
            assert run.model.states[name].tobytes() == array.tobytes()


class Recorded(TrainingLoop):
    """A loop that writes down which samples it learns from."""

    seen: list[list[int]] = []

    def _epoch(self):
        step = self.engine.step

        def noting(rows, **where):
            self.seen.append([int(row) for row in rows])
            return step(rows, **where)

        self.engine.step = noting
        try:
            return super()._epoch()
        finally:
            del self.engine.step


@pytest.mark.parametrize("iteration", range(1, EPOCHS * PER_EPOCH))
def test_every_sample_is_seen_once_per_epoch(iteration, tmp_path, monkeypatch):
    module = importlib.import_module("horn.train")
    given = job()
    horn.train(given, checkpoints=tmp_path, checkpoint_every=iteration, keep_checkpoints=99)
    monkeypatch.setattr(module, "TrainingLoop", Recorded)
    monkeypatch.setattr(Recorded, "seen", [])
    horn.train(given, resume=Checkpoints(tmp_path).open(iteration).path)
    order = list(itertools.chain(*(permutation(N, 5, epoch) for epoch in range(EPOCHS))))
    begun = (iteration // PER_EPOCH) * N + min(iteration % PER_EPOCH * BATCH, N)
    assert list(itertools.chain(*Recorded.seen)) == [int(row) for row in order[begun:]]


def test_early_stopping_stops_where_it_would_have(tmp_path):
    given = job(horn.Adam(0.3), epochs=30, early_stopping=horn.EarlyStopping(2))
    whole = horn.train(given, checkpoints=tmp_path, checkpoint_every=4, keep_checkpoints=99)
    assert whole.stopped_early
    for iteration in Checkpoints(tmp_path).iterations():
        run = horn.train(given, resume=Checkpoints(tmp_path).open(iteration).path)
        assert bits(run) == bits(whole) and told(run) == told(whole)
        assert run.stopped_early and run.best_epoch == whole.best_epoch


def test_a_job_may_train_longer_than_it_did(tmp_path):
    short = job(epochs=None, iterations=PER_EPOCH + 2)
    horn.train(short, checkpoints=tmp_path, checkpoint_every=PER_EPOCH + 2)
    run = horn.train(job(), resume=tmp_path)
    assert bits(run) == bits(horn.train(job()))


def test_a_run_resumed_as_the_user_would_goes_on_in_the_same_folder(tmp_path):
    given, saving = job(), {"checkpoints": tmp_path, "checkpoint_every": 4}
    assert bits(horn.train(given, resume=True, **saving)) == bits(horn.train(given))  # from nothing
    assert Checkpoints(tmp_path).iterations() == [4, 8, 12]
    assert bits(horn.train(given, resume=True, **saving)) == bits(horn.train(given))  # from 12
    run = horn.train(given, resume=tmp_path, **saving)
    assert told(run) == told(horn.train(given))
    with pytest.raises(Conflict, match="has checkpoints of another run, the newest of iteration"):
        horn.train(given, **saving)


# what is refused


def other(**changes):
    return job().with_settings(**changes)


def another_network():
    net = horn.Network(seed=5)
    net.input(9, keep=0.9)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize(
    "given, words",
    [
        (other(network=network().rebuilt(seed=6)), "its seed is 5, here 6"),
        (other(optimizer=horn.SGD(0.2)), "its optimizer is SGD"),
        (other(batch_size=13), "its batch size is 12, here 13"),
        (other(dtype="float64"), "its dtype is float32, here float64"),
        (other(data=data(51)), "its number of samples is 52, here 51"),
        (other(network=another_network()), "its layers are 9 InputNeuron identity, 14 Dropout"),
        (other(epochs=1), "is of iteration 7, but this job ends at 5"),
        (
            other(network=network().rebuilt(changes={"layer2": {"bias": None}})),
            "its layer2.bias has shape",
        ),
    ],
)
def test_the_checkpoint_of_another_job_is_refused(given, words, saved):
    with pytest.raises(CheckpointError) as caught:
        horn.train(given, resume=saved)
    assert words in str(caught.value) and caught.value.exit_code == 2


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    horn.train(job(epochs=None, iterations=7), checkpoints=folder, checkpoint_every=7)
    return folder


TWICE = """
import horn
RATE = 0.5
def twice(z):
    return z * RATE
class Own(horn.Neuron):
    slope = 1.0
    def forward(self, messages):
        self.feedforward(self.slope * twice(sum(m.input * m.weight for m in messages)))
"""


@pytest.fixture
def of_file(tmp_path, monkeypatch):
    """A job whose neuron is in a file, with some text replaced."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(old="", new=""):
        sys.modules.pop("own_neuron", None)
        (tmp_path / "own_neuron.py").write_text(TWICE.replace(old, new) if old else TWICE)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        linecache.clearcache()
        module = importlib.import_module("own_neuron")
        changes = {"layer2": {"neuron": module.Own}}
        return job().with_settings(network=network(True).rebuilt(changes=changes))

    yield made
    sys.modules.pop("own_neuron", None)


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize(
    "old, new, words",
    [
        ("m.input * m.weight", "m.input + m.weight", "its source of Own (own_neuron) has"),
        ("RATE = 0.5", "RATE = 0.75", "its RATE (own_neuron) is 0.5, here 0.75"),
        ("return z * RATE", "return z + RATE", "its source of twice (own_neuron) has"),
        ("slope = 1.0", "slope = 2.0", "its layer2.neuron.set.slope is 1.0, here 2.0"),
    ],
)
def test_a_neuron_of_the_same_name_with_another_source_is_refused(
    old, new, words, tasks, of_file, tmp_path
):
    folder = tmp_path / "saved"
    short = of_file().with_settings(epochs=None, iterations=7)
    horn.train(short, checkpoints=folder, checkpoint_every=7, tasks=tasks)
    with pytest.raises(CheckpointError) as caught:
        horn.train(of_file(old, new), resume=folder, tasks=tasks)
    assert words in str(caught.value) and "--changed" in str(caught.value)
    run = horn.train(of_file(), resume=folder, tasks=tasks)  # read again, and the same
    assert bits(run) == bits(horn.train(of_file(), tasks=tasks))


@pytest.mark.parametrize(
    "given, words",
    [
        (other(data=data(seed=9)), "its data.x is float32 (52, 9)"),
        (other(data=(data()[0], data(seed=9)[1])), "its data.y is int64 (52,)"),
        (other(validation=data(20, 7)), "its validation.x is float32 (20, 9)"),
        (
            other(network=network().rebuilt(changes={"layer0": {"keep": 0.5}})),
            "its layer0.keep is 0.9, here 0.5",
        ),
        (
            other(network=network().rebuilt(changes={"layer3": {"loss": SQUARED}})),
            "its layer3.loss.f is horn.losses:cross_entropy, here horn.losses:squared_error",
        ),
        (other(keep_best=False), "its keep_best is True, here False"),
    ],
)
def test_another_job_of_the_same_shape_is_refused_unless_that_is_meant(
    given, words, saved, tmp_path, caplog
):
    with pytest.raises(CheckpointError) as caught:
        horn.train(given, resume=saved)
    assert words in str(caught.value) and caught.value.exit_code == 2
    assert not caplog.text
    run = horn.train(given, resume=saved, changed=True)
    assert "going on with a changed job" in caplog.text and words in caplog.text
    assert run.iterations == given.n_iterations
    # What it saves is of the job that it is now.
    shutil.copytree(saved, tmp_path / "c")
    again = {"checkpoints": tmp_path / "c", "checkpoint_every": 8}
    with pytest.raises(CheckpointError, match="is of another job"):
        horn.train(given, resume=True, **again)
    first = horn.train(given, resume="changed", **again)
    assert bits(first) == bits(run)
    caplog.clear()
    assert bits(horn.train(given, resume=True, **again)) == bits(run) and not caplog.text


@pytest.mark.parametrize("groups, tasks", [(1, 1), (2, 1)])
def test_another_optimizer_begins_without_memory_where_that_is_meant(
    groups, tasks, saved, tmp_path
):
    """It is as if its job had begun with these weights; other shapes are refused all the same."""
    given, settings = other(optimizer=horn.Adam(0.01)), {"groups": groups, "tasks": tasks}
    run = horn.train(
        given, resume=saved, changed=True, checkpoints=tmp_path, checkpoint_every=8, **settings
    )
    opened = Checkpoints(tmp_path).open(8)
    assert any(name.endswith("/mean") for name in opened.names("slot"))
    assert run.iterations == given.n_iterations
    for size in (15, 6):  # the smaller one would fit into what was saved
        resized = other(network=network().rebuilt(changes={"layer1": {"size": size}}))
        with pytest.raises(CheckpointError, match=rf"layer1\.weight was .*, is \({size}, "):
            horn.train(resized, resume=saved, changed=True, **settings)


def test_what_changed_cannot_help_with_is_not_sent_to_it(saved):
    for given, words in (
        (other(network=network().rebuilt(changes={"layer1": {"size": 15}})), "layer1.weight was"),
        (other(dtype="float64"), "all numbers were float32, are float64"),
    ):
        with pytest.raises(CheckpointError, match=r"or begin with what it learned: Job\(initial="):
            horn.train(given, resume=saved)
        with pytest.raises(CheckpointError, match=rf"has other arrays: .*{words}.* Job\(initial="):
            horn.train(given, resume=saved, changed=True)


def test_learned_weights_do_not_go_to_other_synapses_of_another_seed(saved):
    given = other(network=network().rebuilt(seed=6))
    with pytest.raises(CheckpointError) as caught:
        horn.train(given, resume=saved)
    assert "initial=model" in str(caught.value) and "--changed" not in str(caught.value)
    words = r"of other synapses than this job: layer2\.weight\..*it has horn\.Network\(seed=5\)"
    with pytest.raises(CheckpointError, match=words):
        horn.train(given, resume=saved, changed=True)


def test_another_seed_of_the_same_synapses_goes_on_where_that_is_meant(tmp_path, caplog):
    settings = {"checkpoints": tmp_path, "checkpoint_every": 4}
    horn.train(job(is_dense=True, epochs=1), **settings)
    dense = job(is_dense=True)
    given = dense.with_settings(network=dense.network.rebuilt(seed=6))
    assert horn.train(given, resume="changed", **settings).iterations == given.n_iterations
    assert "its seed is 5, here 6" in caplog.text


def test_epochs_that_became_other_numbers_of_updates_are_said(tmp_path, caplog):
    """It is updates that count: nothing is left of as many epochs of half as many."""
    settings = {"checkpoints": tmp_path, "checkpoint_every": PER_EPOCH}
    horn.train(job(keep_best=False, epochs=2), **settings)
    horn.train(job(keep_best=False, epochs=3), resume=True, **settings)
    assert "epochs had" not in caplog.text
    given = job(keep_best=False, epochs=6, batch_size=2 * BATCH)
    run = horn.train(given, resume="changed", **settings)
    assert run.iterations == given.n_iterations
    assert (
        f"epochs had {PER_EPOCH} updates and have 3 now. Updates are counted: it goes on after "
        f"update {3 * PER_EPOCH}, which was in epoch 3 and is in epoch 5 of this job; 3 are left"
    ) in caplog.text


def test_what_servers_were_told_is_another_jobs(tmp_path, caplog):
    each_epoch = horn.Downpour(push_every=5)
    settings = {"strategy": each_epoch, "groups": 2, "checkpoints": tmp_path}
    short = job(keep_best=False, epochs=1)
    horn.train(short, **settings)
    given = short.with_settings(data=data(seed=9), epochs=2)
    with pytest.raises(CheckpointError, match=r"its data.x is float32 \(52, 9\)"):
        horn.train(given, resume=True, **settings)
    run = horn.train(given, resume="changed", **settings)
    assert "going on with a changed job" in caplog.text and run.epochs == 2
    caplog.clear()
    horn.train(given, resume=True, **settings)
    assert not caplog.text
    with pytest.raises(CheckpointError, match="its number of servers is 1, here 2"):
        horn.train(given, resume=True, servers=2, **settings)


def test_a_checkpoint_that_says_less_of_its_job_is_refused(tmp_path, monkeypatch):
    train = importlib.import_module("horn.train")

    def less(job, strategy, settings=None):
        found = identity(job, strategy, settings)
        return {key: value for key, value in found.items() if key not in ("job", "sources")}

    with monkeypatch.context() as patch:
        patch.setattr(train, "identity", less)
        short = job(epochs=None, iterations=7)
        horn.train(short, checkpoints=tmp_path, checkpoint_every=7)
    with pytest.raises(CheckpointError, match="says of its job what this horn does not write"):
        horn.train(job(), resume=tmp_path)


def test_another_strategy_is_refused(saved):
    given = job(is_dense=True)
    given = given.with_settings(network=plain(given.network))
    with pytest.raises(CheckpointError, match="its strategy is allreduce, here parallel-dropout"):
        horn.train(given, resume=saved, strategy="parallel-dropout")


def test_a_missing_checkpoint_is_no_start(tmp_path):
    for where in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(CheckpointError) as caught:
            horn.train(job(), resume=where)
        assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"checkpoint_every": 3}, "say where checkpoints are"),
        ({"resume": True}, "say where checkpoints are"),
        ({"checkpoints": "c", "checkpoint_every": 0}, "checkpoint_every must be a whole number"),
        ({"checkpoints": "c", "keep_checkpoints": 0}, "keep_checkpoints must be a whole number"),
        (
            {"checkpoints": "c", "checkpoint_seconds": 0},
            "checkpoint_seconds must be a number of seconds above 0",
        ),
        ({"changed": True}, "changed is for going on"),
        ({"max_restarts": -1}, "max_restarts must be a whole number from 0"),
        (
            {"checkpoints": "c", "groups": 2, "strategy": "downpour", "checkpoint_every": 3},
            "with servers",
        ),
    ],
)
def test_wrong_settings_are_said_at_once(settings, words):
    with pytest.raises(JobError, match=words):
        horn.train(job(), **settings)
