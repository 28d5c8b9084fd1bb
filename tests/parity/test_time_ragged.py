"""Sequences of any lengths: the law, a sequence alone = in a padded batch, what is judged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import horn
from horn.backends import Setup, make
from horn.cli import horn as commands
from horn.data import permutation
from horn.errors import ModelError
from horn.training.loop import TrainingLoop
from horn.training.progress import Progress
from tests.parity.recurrent import (
    CELLS,
    GRU,
    LSTM,
    SMOOTH,
    Distance,
    Hebb,
    Masked,
    Noisy,
    generated,
)
from tests.parity.test_time import OPTIMIZERS, check_gradients, compare, elman, engine_of, run
from tests.parity.test_time_together import MANY, agree

BACKENDS = ("python", "reference", "kernels")
ALONE = [LSTM, GRU, Distance, Noisy, Masked, Hebb]


def job_of(seed: int, cells: tuple[Any, ...] = CELLS) -> horn.Job:
    """A job as test_time has them, of sequences that end early."""
    net, (x, y) = generated(seed, cells)
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, net.steps + 1, len(x))
    weights = rng.random(5) if rng.random() < 0.3 else None
    optimizer = OPTIMIZERS[int(rng.integers(len(OPTIMIZERS)))]
    job = horn.Job(net, data=cut(x, y, lengths, net.last.each_step), dtype="float64",
                   batch_size=5, optimizer=optimizer, sample_weight=weights)  # fmt: skip
    job.check_data()
    return job


def cut(x: Any, y: Any, lengths: Any, each: bool) -> tuple[Any, Any]:
    """Lists of sequences with so many steps of these."""
    xs = [row[:n] for row, n in zip(x, lengths, strict=True)]
    return xs, [row[:n] for row, n in zip(y, lengths, strict=True)] if each else y


def with_data(job: horn.Job, data: Any) -> horn.Job:
    return horn.Job(job.network, data=data, dtype="float64", batch_size=5, optimizer=job.optimizer)


@pytest.mark.parametrize("seed", [1, 8])
def test_the_law(seed):
    job = job_of(seed)
    found = run(job, "python")
    for backend in BACKENDS[1:]:
        compare(found, run(job, backend), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1320))
def test_the_law_at_length(seed):
    test_the_law(seed)


@pytest.mark.parametrize("backend", ["reference", "kernels"])
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 10_000), cell=st.sampled_from(ALONE))
def test_a_sequence_alone_is_itself_in_a_padded_batch(backend, seed, cell):
    alone_as_in_a_batch(backend, seed, cell)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), cell=st.sampled_from(ALONE))
def test_a_sequence_alone_at_length(backend, seed, cell):
    alone_as_in_a_batch(backend, seed, cell)


def alone_as_in_a_batch(backend: str, seed: int, cell: type[horn.Neuron]) -> None:
    """Trap 6: what it sends, keeps, draws, and the gradient; batches add such gradients up."""
    net, (x, y) = generated(seed, (LSTM, cell))
    lengths = np.random.default_rng(seed).integers(1, net.steps + 1, len(x))
    each = net.last.each_step
    xs, ys = cut(x, y, lengths, each)
    how: dict[str, Any] = {"dtype": "float64", "batch_size": 5, "optimizer": horn.SGD(0.1)}
    padded = engine_of(horn.Job(net, data=(xs, ys), **how), backend)
    together = padded.probe(np.arange(5), iteration=1, first_sample=20)
    total: dict[str, Any] = {}
    local = {layer.name for layer in net.layers if layer.neuron is Hebb}
    for k, n in enumerate(lengths):
        shorter = net.of_steps(int(n))  # a network of as many steps as it has, each asked
        object.__setattr__(shorter.last, "each_step", each)
        one = horn.Job(shorter, data=(x[k : k + 1, :n], y[k : k + 1, :n] if each else y[k : k + 1]),
                       **how)  # fmt: skip
        alone = engine_of(one, backend)
        alone.load(padded.parameters(), padded.states())
        found = alone.probe(np.array([0]), iteration=1, first_sample=20 + k)
        share = n / lengths.sum() if each else 1 / 5
        for name, array in found.items():
            if array.ndim == 3:
                counts = 5 * share if ".delta" in name else 1.0
                mine = together[name][k, :n]
                np.testing.assert_allclose(mine, counts * array[0], 0, 1e-10, err_msg=name)
            elif name.endswith("gradient") or name == "loss":
                pushed = name.split(".")[0] in local and name != "loss"
                total[name] = total.get(name, 0.0) + array * (1 / 5 if pushed else share)
    for name, array in total.items():
        np.testing.assert_allclose(together[name], array, 0, 1e-10, err_msg=name)


def test_what_is_behind_the_end_does_not_matter():
    """Not a digit of anything: junk there, NaN too, is not read."""
    job = job_of(3, SMOOTH)
    data, net = job.data, job.network
    lengths = data.lengths
    x = data.images.copy()
    y = data.y.copy()
    for row, n in zip(x, lengths, strict=True):
        row[n:] = np.nan
    other = horn.data.sequences(x, y, lengths=lengths)
    one, two = run(job, "kernels"), run(with_data(job, other), "kernels")
    assert net.steps > lengths.min()
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_nothing_grows_behind_the_end():
    """A network that doubles at every step: what is behind the end must not become infinite."""

    class Doubles(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.input for m in messages.x) + 2.0 * sum(
                m.input * m.weight for m in messages.h))  # fmt: skip

    net = horn.Network(seed=1)
    x = net.input(1, steps=1100)
    net.layer(1, neuron=Doubles, inputs={"x": x, "h": horn.Delayed()}, name="h", bias=False,
              connect={"h": horn.OneToOne()}, init=1.0)  # fmt: skip
    net.output(1, loss="squared_error")
    data = [np.ones((n, 1)) for n in (3, 1100)], np.zeros((2, 1))
    data[0][1][:] = 0.0
    job = horn.Job(net, data=data, dtype="float64", optimizer=horn.SGD(1e-6), batch_size=2)
    for backend in BACKENDS[1:]:
        found = engine_of(job, backend).probe(np.arange(2), iteration=0, first_sample=0)
        assert all(np.isfinite(array).all() for array in found.values())


@pytest.mark.parametrize("each", [False, True])
def test_gradients_are_those_of_finite_differences(each):
    net = horn.Network(seed=5)
    x = net.input(2, steps=6)
    heard = {"x": x, "h": horn.Delayed(), "back": horn.Delayed("out", 2)}
    net.layer(3, neuron=LSTM, inputs=heard)
    net.output(2, activation="tanh", loss="squared_error", name="out", each_step=each)
    rng = np.random.default_rng(0)
    lengths = [6, 1, 3, 4]
    data = rng.normal(size=(4, 6, 2)), rng.normal(size=(4, 6, 2) if each else (4, 2))
    job = horn.Job(net, data=cut(*data, lengths, each), dtype="float64", optimizer=horn.SGD(0.1))
    check_gradients(job)
    found = engine_of(job, "kernels").probe(np.arange(4), iteration=0, first_sample=0)
    behind = np.arange(6) >= np.array(lengths)[:, None]
    deltas = [array for name, array in found.items() if ".delta" in name]
    assert deltas and all(not array[behind].any() for array in deltas)


@pytest.mark.parametrize("backend", BACKENDS)
def test_losses_and_accuracies_count_steps(backend):
    """The mean over the steps that there are, not over sequences."""
    net = elman(4, each=True)
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 3)) for n in (4, 1, 2)]
    y = [rng.integers(0, 2, n) for n in (4, 1, 2)]
    job = horn.Job(net, data=(x, y), dtype="float64", optimizer=horn.SGD(0.1), batch_size=3)
    engine = engine_of(job, backend)
    sent = engine.outputs(job.data.x, job.data.lengths)
    own = np.concatenate([row[: len(one)] for row, one in zip(sent, x, strict=True)])
    labels = np.concatenate(y)
    expected = -np.log(own[np.arange(7), labels]).mean()
    loss, right = engine.losses(job.data)
    assert loss / 3 == pytest.approx(expected) and right == (own.argmax(axis=1) == labels).sum()
    assert engine.step(np.arange(3), iteration=0, first_sample=0) == pytest.approx(expected)


def test_aggregates_are_of_the_last_step_of_each_sequence():
    job = job_of(3)
    sizes = {layer.name: layer.size for layer in job.network.layers}
    assert sizes["l0"] > 1
    asked = horn.Aggregate("l0", _largest), horn.Aggregate("out", _mean, "max")
    found = []
    for backend in BACKENDS:
        engine = make(backend, Setup(job.network, None, "labels", 5, "float64", 1, asked))
        found.append(engine.watch(job.data)[2])
    sent = engine_of(job, "kernels").probe(np.arange(5), iteration=0, first_sample=0)["l0.output"]
    assert sent.shape[1] == job.network.steps
    np.testing.assert_allclose(found, [found[0]] * 3, 0, 1e-12)
    alone = [horn.Aggregate("out", _mean, "max")]
    engine = make("kernels", Setup(job.network, None, "labels", 5, "float64", 1, tuple(alone)))
    said = engine.outputs(job.data.x, job.data.lengths).reshape(5, -1, sizes["out"])
    assert engine.watch(job.data)[2] == [pytest.approx(said[:, -1].mean(axis=1).max())]


def _largest(output):
    return output.max()


def _mean(output):
    return output.mean()


# --- one job, from training to a file


def task(each: bool, lists: bool = True, batch: int = 16, **how: Any) -> horn.Job:
    rng = np.random.default_rng(3)
    x = [rng.normal(size=(n, 3)).astype(np.float32) for n in rng.integers(1, 7, 60)]
    y = [(one[:, 0].cumsum() > 0).astype(int) for one in x]
    net = horn.Network(seed=1)
    a = net.input(3, steps=8)
    net.layer(6, neuron=LSTM, inputs={"x": a, "h": horn.Delayed()}, name="h")
    net.output(2, activation="softmax", loss="cross_entropy", each_step=each)
    y = y if each else np.array([one[-1] for one in y])
    data = (x, y) if lists else horn.data.sequences(x, y)
    return horn.Job(net, data=data, validation=0.2, batch_size=batch, epochs=4,
                    optimizer=horn.Adam(0.02), metrics=["f1"], **how)  # fmt: skip


@pytest.mark.parametrize("each", [False, True])
def test_training_files_and_resuming(each, tmp_path, capsys):
    whole = horn.train(task(each), progress=False)
    assert whole.history[-1]["loss"] < whole.history[0]["loss"]
    assert 0.0 <= whole.history[-1]["acc"] <= 1.0 and 0.0 <= whole.history[-1]["val_f1"] <= 1.0
    same = horn.train(task(each, lists=False), progress=False)
    assert [row["loss"] for row in same.history] == [row["loss"] for row in whole.history]
    whole.model.save(tmp_path / "a.horn")
    read = horn.Model.load(tmp_path / "a.horn")
    x = [np.random.default_rng(0).normal(size=(n, 3)) for n in (2, 8, 1)]
    found, labels = read.predict(x), read.predict(x, labels=True)
    if each:
        assert [one.shape for one in found] == [(2, 2), (8, 2), (1, 2)]
        assert [one.shape for one in labels] == [(2,), (8,), (1,)]
        assert [one.shape for one in read.activations(x, "h")] == [(2, 6), (8, 6), (1, 6)]
    else:
        assert found.shape == (3, 2) and labels.shape == (3,)
        assert read.activations(x, "h").shape == (3, 6)
    for one, sent in zip(x, found, strict=True):  # alone, an array of fewer steps than 8
        np.testing.assert_allclose(read.predict(one[None])[0], sent, 0, 1e-6)
    assert read.evaluate(x, labels)["acc"] == 1.0
    apart = np.array([None, *x], object)[1:]
    for one, other in zip(read.predict(apart), found, strict=True):
        assert np.array_equal(one, other)
    folder = tmp_path / "checkpoints"
    horn.train(task(each).with_settings(epochs=2), progress=False, checkpoints=folder)
    rest = horn.train(task(each), progress=False, checkpoints=folder, resume=True)
    for name, array in whole.model.parameters.items():
        assert np.array_equal(array, rest.model.parameters[name])
    data = horn.data.sequences(x)
    np.savez(tmp_path / "x.npz", x=data.images, lengths=data.lengths)
    commands.main(["predict", str(tmp_path / "a.horn"), str(tmp_path / "x.npz")],
                  standalone_mode=False)  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert [line.count("|") for line in lines] == ([1, 7, 0] if each else [0, 0, 0])
    names = [str(tmp_path / "a.horn"), str(tmp_path / "x.npz")]
    commands.main(["predict", *names, "--json"], standalone_mode=False)
    said = json.loads(capsys.readouterr().out)
    assert said["shape"] == ([3, None, 2] if each else [3, 2]) and len(said["outputs"]) == 3
    if each:
        with pytest.raises(horn.HornError, match="of different lengths"):
            commands.main(["predict", *names, "-o", str(tmp_path / "x.npy")],
                          standalone_mode=False)  # fmt: skip


def test_sequences_of_one_number_a_step():
    net = horn.Network(seed=1)
    net.layer(2, inputs=[net.input(1, steps=6), horn.Delayed()], activation="tanh")
    net.output(1, loss="squared_error", each_step=True)
    x = [np.arange(1.0, n + 1) for n in (3, 1, 6)]
    job = horn.Job(net, (x, x), batch_size=3, epochs=1)
    model = horn.train(job, progress=False).model
    as_lists = [one.tolist() for one in x]
    for each in (x, np.array(x, object), [one[:, None] for one in x], as_lists):
        found = model.predict(each)
        assert [one.shape for one in found] == [(3, 1), (1, 1), (6, 1)]
    assert model.evaluate(x, x) == model.evaluate(horn.data.sequences(x, x))


def test_a_batch_has_as_many_steps_as_its_longest_sequence():
    """What is not there is not computed."""
    job = horn.Job(elman(50), data=([np.zeros((n, 3)) for n in (2, 3, 50)], np.zeros(3, int)),
                   optimizer=horn.SGD(0.1), batch_size=3)  # fmt: skip
    for backend in BACKENDS[1:]:
        engine = engine_of(job, backend)
        engine.step(np.array([1, 0]), iteration=0, first_sample=0)
        assert engine.training_runner.n_steps == 3
        engine.step(np.array([1, 2]), iteration=0, first_sample=0)
        assert engine.training_runner.n_steps == 50


def test_like_lengths_lie_together():
    """Each sequence once an epoch, in other company in the next, fewer steps; by (seed, epoch)."""
    lengths = np.random.default_rng(0).integers(1, 41, 203)
    x = [np.zeros((n, 3)) for n in lengths]

    def epochs(**how: Any) -> list[list[Any]]:
        job = horn.Job(elman(40), (x, np.zeros(203, int)), batch_size=10, epochs=2, **how)
        seen: list[list[Any]] = []
        engine = engine_of(job, "reference")
        engine.step = lambda rows, **at: seen.append(rows.tolist()) or 0.0
        TrainingLoop(job, engine, Progress(), 0.0)._epoch()
        loop = TrainingLoop(job, engine, Progress(), 0.0)
        loop.run()
        return [seen[:21], seen[21:42], seen[42:63]]

    plain, near = epochs(), epochs(buckets=5)
    first, again, second = near
    assert first == again and first != second and near == epochs(buckets=5)
    for epoch in (first, second):
        assert sorted(sum(epoch, [])) == list(range(203)) and len(epoch[-1]) == 3
    steps, fewer = (sum(lengths[rows].max() for rows in each[0]) for each in (plain, near))
    assert fewer < 0.7 * steps
    assert sorted(map(sorted, first)) != sorted(map(sorted, second))
    assert first[-1] == plain[0][-1]  # what is left over is as it is drawn
    longest = [int(lengths[rows].max()) for rows in first]
    assert longest != sorted(longest)


@pytest.mark.parametrize("how", [{"buckets": -1}, {"buckets": 2.0}, {"buckets": True}])
def test_buckets_are_a_whole_number(how):
    with pytest.raises(ModelError, match="a whole number from 0"):
        horn.Job(elman(4), (np.zeros((5, 4, 3)), np.zeros(5, int)), **how)
    net = horn.Network()
    net.input(2)
    net.output(1, loss="squared_error")
    with pytest.raises(ModelError, match="are no sequences"):
        horn.Job(net, (np.zeros((5, 2)), np.zeros((5, 1))), buckets=2)


# --- several tasks and groups


@pytest.mark.parametrize("many", [(2, 1), (1, 3), (2, 2)])
def test_tasks_and_groups_compute_what_one_process_computes(many):
    for seed in (1, 8):
        agree(job_of(seed), "kernels", *many)


@pytest.mark.slow
@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("seed", range(1000, 1032))
def test_tasks_and_groups_at_length(seed, many):
    agree(job_of(seed), BACKENDS[1 + seed % 2], *many)


@pytest.mark.slow
@pytest.mark.parametrize("each", [False, True])
def test_processes_compute_what_one_computes(each):
    one, other = task(each, dtype="float64", batch=13), task(each, dtype="float64", batch=13)
    found = horn.train(one, progress=False)
    parts = horn.train(other, progress=False, tasks=2, groups=2)
    for name, array in found.model.parameters.items():
        np.testing.assert_allclose(parts.model.parameters[name], array, 0, 1e-9, err_msg=name)
    for a, b in zip(found.history, parts.history, strict=True):
        assert b["loss"] == pytest.approx(a["loss"]) and b["val_acc"] == a["val_acc"]


@pytest.mark.cluster
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "strategy, part",
    [("allreduce", 1), (horn.Averaging(every=1), 1), (horn.Downpour(max_staleness=0), 2)],
)
def test_steps_of_groups_count_alike(strategy, part):
    """Of lengths that differ a group's loss, and its gradient on servers, count by its steps."""
    whole = task(True, dtype="float64", batch=48)
    one = horn.train(whole, progress=False)
    own = task(True, dtype="float64", batch=48 // part)
    run = horn.train(own, progress=False, groups=2, strategy=strategy)
    assert run.history[0]["iteration"] == 1  # an epoch is a batch
    loss, losses = one.history[0]["loss"], run.history[0]["group_loss"]
    assert run.history[0]["loss"] == pytest.approx(loss, rel=1e-12)
    halves = np.split(whole.data.lengths[permutation(48, 1, 0)], 2)
    steps = [half.sum() for half in halves]
    assert steps[0] != steps[1]
    assert np.average(losses, weights=steps) == pytest.approx(loss, rel=1e-12)
    if not isinstance(strategy, horn.Averaging):  # a mean of weights counts groups alike
        for name, array in one.model.parameters.items():
            np.testing.assert_allclose(run.model.parameters[name], array, 0, 1e-12, err_msg=name)
