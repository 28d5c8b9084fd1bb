"""What a neuron of a sequence asks of the batch: at each step, of the samples that have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn import math
from horn.backends import Setup
from horn.errors import CompileError
from horn.partition.placement import Placement
from tests.parity import test_recompute, test_stateful
from tests.parity.recurrent import CELLS, LSTM, SMOOTH, Distance, generated
from tests.parity.test_groups import of_groups
from tests.parity.test_time import BATCHES, OPTIMIZERS, check_gradients, compare, run
from tests.parity.test_time_ragged import cut

BACKENDS = ("python", "reference", "kernels")


class BatchNorm(horn.Neuron):
    """Hears itself late, and keeps running values for prediction."""

    gain, shift = horn.Parameter(1.2), horn.Parameter(0.1)
    average, spread = horn.State(0.0), horn.State(1.0)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        mean = self.mean(z, over="batch", running="average")
        var = self.var(z, over="batch", running="spread")
        self.feedforward(math.tanh(self.gain * (z - mean) / math.sqrt(var + 0.1) + self.shift))


class Apart(horn.Neuron):
    """No weighted sum; sums and means of what it carries, in training."""

    seen = horn.State(0.1, per="sample")

    def forward(self, messages):
        far = sum((m.input - m.weight) ** 2 for m in messages)
        y = math.exp(-0.3 * far) + 0.5 * self.seen
        if self.training:
            y = y - 0.2 * self.mean(self.seen * y, over="batch")
            y = y + 0.01 * self.sum(math.tanh(far), over="batch")
        self.seen = y
        self.feedforward(y)


class Equal(horn.Neuron):
    """Asks about numbers that are equal for all samples, and takes the answers in another one."""

    p, q = horn.Parameter(0.5), horn.Parameter(0.2)
    run, spread = horn.State(0.0), horn.State(1.0)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        z = z + self.mean(self.p, over="batch", running="run")
        z = z + self.var(sum(m.weight for m in messages), over="batch", running="spread")
        if self.training:
            n = self.sum(0.01 * self.q, over="batch")
            z = z + self.mean(n * z, over="batch")
        self.feedforward(math.tanh(z))


OFTEN = (BatchNorm, Apart) * 2 + CELLS
ASKING = (BatchNorm, Apart, Equal)


def job_of(seed: int, cells: tuple[Any, ...] = OFTEN, **how: Any) -> horn.Job:
    net, (x, y) = generated(seed, cells, **how)
    if not any(layer.neuron in ASKING for layer in net.layers):
        return job_of(seed + 10_000, cells, **how)
    rng, data = np.random.default_rng(seed), (x, y)
    if rng.random() < 0.6:
        lengths = rng.integers(1, net.steps + 1, len(x))
        data = cut(x, y, lengths, net.last.each_step)
    # Not Adam: what comes before a mean has no gradient but rounding, which Adam divides by itself.
    optimizer = [OPTIMIZERS[k] for k in (0, 1, 3, 4)][int(rng.integers(4))]
    return horn.Job(net, data, dtype="float64", batch_size=5, optimizer=optimizer)


@pytest.mark.parametrize("seed", [1, 3109])
def test_the_law(seed):
    job = job_of(seed)
    found = run(job, "python")
    for backend in BACKENDS[1:]:
        compare(found, run(job, backend), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3000, 3200))
def test_the_law_at_length(seed):
    test_the_law(seed)


@pytest.mark.parametrize("seed", [2])
def test_gradients_are_those_of_finite_differences(seed):
    check_gradients(job_of(seed, (BatchNorm, Apart, LSTM, Distance), steps=3))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_gradients_are_those_of_finite_differences_at_length(seed, steps):
    check_gradients(job_of(seed, (*ASKING, *SMOOTH), steps=steps))


def test_only_samples_that_have_a_step_are_asked():
    """By hand: a layer without a circle, lengths 3, 1 and 2."""

    class Minus(horn.Neuron):
        average = horn.State(0.0)

        def forward(self, messages):
            z = sum(m.input for m in messages)
            self.feedforward(z - self.mean(z, over="batch", running="average"))

    net = horn.Network(seed=1)
    net.layer(1, neuron=Minus, inputs=net.input(1, steps=3), name="minus", bias=False)
    net.output(1, loss="squared_error", each_step=True)
    x = [np.array([3.0, 5.0, 7.0]), np.array([0.0]), np.array([6.0, -1.0])]
    job = horn.Job(net, (x, x), dtype="float64", batch_size=3, optimizer=horn.SGD(0.1))
    means = [3.0, 2.0, 7.0]
    kept = [0.1 * 3.0]  # of the second, after one step; of the others after three and two
    kept += [0.9 * kept[0] + 0.1 * 2.0]
    kept += [0.9 * kept[1] + 0.1 * 7.0]
    for backend in BACKENDS:
        engine = test_stateful.engine_of(job, backend)
        found = engine.probe(np.arange(3), iteration=0, first_sample=0)["minus.output"][..., 0]
        for row, one in zip(found, x, strict=True):
            np.testing.assert_allclose(row[: len(one)], one - means[: len(one)], 0, 1e-12)
        engine.step(np.arange(3), iteration=0, first_sample=0)
        expected = (kept[2] + kept[0] + kept[1]) / 3
        assert engine.states()["minus.average"] == pytest.approx(expected)


def test_what_is_equal_for_all_samples_is_counted_where_they_have_the_step():
    """By hand: sequences of 1 and 3 steps; the second leaves three tenths, as of 1 - 0.9 ** 3."""
    net = horn.Network(seed=1)
    net.layer(2, neuron=Equal, inputs=net.input(2, steps=3), bias=False, name="h")
    net.output(1, loss="squared_error", each_step=True)
    x = [np.ones((n, 2)) for n in (1, 3)]
    job = horn.Job(net, (x, [one[:, :1] for one in x]), dtype="float64", batch_size=2)
    for backend in BACKENDS:
        engine = test_stateful.engine_of(job, backend)
        engine.step(np.arange(2), iteration=0, first_sample=0)
        states = engine.states()
        assert states["h.run"] == pytest.approx((0.5 * (1 - 0.9) + 0.5 * (1 - 0.9**3)) / 2)
        assert states["h.spread"] == pytest.approx((0.9 + 0.9**3) / 2)  # the variance is 0
    check_gradients(job)


@pytest.mark.parametrize("seed", [1])
def test_what_is_equal_for_all_samples_learns_the_same(seed):
    job = job_of(seed, (Equal, LSTM))
    assert job.data.lengths is not None
    found = run(job, "python")
    for backend in BACKENDS[1:]:
        compare(found, run(job, backend), 1e-9)
    test_recompute.law(job)


@pytest.mark.parametrize("seed", [3])
def test_parts_computed_again_learn_the_same(seed):
    test_recompute.law(job_of(seed))


def task(**how: Any) -> horn.Job:
    rng = np.random.default_rng(3)
    x = [rng.normal(loc=2.0, size=(n, 3)) for n in rng.integers(2, 7, 60)]
    y = [(one[:, 0].cumsum() > 2.0 * np.arange(1, len(one) + 1)).astype(int) for one in x]
    net = horn.Network(seed=1)
    net.layer(8, neuron=BatchNorm, inputs=[net.input(3, steps=8), horn.Delayed()], name="h")
    net.output(2, activation="softmax", loss="cross_entropy", each_step=True)
    given: dict[str, Any] = {"batch_size": 15, "epochs": 6, "optimizer": horn.Adam(0.03)}
    return horn.Job(net, (x, y), **{**given, **how})


def test_running_values_are_there_at_prediction(tmp_path):
    run = horn.train(task(), progress=False)
    assert run.history[-1]["loss"] < run.history[0]["loss"] and run.history[-1]["acc"] > 0.7
    run.model.save(tmp_path / "a.horn")
    model = horn.Model.load(tmp_path / "a.horn")
    assert np.abs(model.states["h.average"]).max() > 0.1
    x = np.random.default_rng(0).normal(loc=2.0, size=(4, 8, 3))
    stream = model.stream()
    np.testing.assert_allclose(stream(x[0]), model.predict(x)[0], 0, 1e-5)


@pytest.mark.slow
@pytest.mark.net
def test_groups_with_batches_of_their_own():
    run = horn.train(task(), groups=2, strategy="easgd", progress=False)
    assert np.isfinite(run.history[-1]["loss"])


@pytest.mark.parametrize("many", [(2, 1), (1, 2)])
def test_who_has_a_part_of_the_batch_cannot_ask_it(many):
    job = task(dtype="float64")
    setup = Setup(job.network, job.optimizer, "labels", 15, "float64", 1)
    placement = Placement.rows(job.network)
    for found in of_groups("kernels", setup, job.data, BATCHES, placement, *many):
        assert isinstance(found, CompileError)
        assert "h (BatchNorm): asks the batch" in str(found) and 'strategy="easgd"' in str(found)
        assert "in a job that neither is stateful nor recomputes" in str(found)
