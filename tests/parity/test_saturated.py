"""A softmax or sigmoid that has rounded to 0 or 1 is judged alike, interpreted and compiled."""

from __future__ import annotations

import math

import numpy as np
import pytest

import horn
from horn import losses
from horn.backends import Setup, make
from horn.data import Dataset
from tests.parity.recurrent import GRU

ROWS = 4


class Late(horn.Neuron):
    """The sigmoid of a sum and a Parameter."""

    slope = horn.Parameter(1.5)

    def forward(self, messages):
        z = self.slope * sum(m.input * m.weight for m in messages)
        self.feedforward(horn.math.sigmoid(z))


def flat(seed: int, size: int, **of_output) -> horn.Network:
    net = horn.Network(seed=seed)
    net.input(3)
    net.layer(4, activation="tanh")
    net.output(size, init=horn.Normal(std=2000.0), **of_output)
    return net


def in_time(**of_output) -> horn.Network:
    net = horn.Network(seed=2)
    x = net.input(1, steps=3)
    net.layer(4, neuron=GRU, inputs={"x": x, "h": horn.Delayed()})
    net.output(3, init=horn.Normal(std=2000.0), **of_output)
    return net


class Masked(horn.Neuron):
    """A class that is impossible: exp(-inf) is 0."""

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(horn.math.where(self.index == 1, -math.inf, z))


class Certain(horn.Neuron):
    """A truth that is certain, as the sign of infinity, or learned."""

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        sure = horn.math.where(self.index == 0, math.inf, -math.inf)
        self.feedforward(horn.math.sigmoid(horn.math.where(self.index < 2, sure, z)))


CLASSES = {"activation": "softmax", "loss": "cross_entropy"}
TRUTHS = {"activation": "sigmoid", "loss": "binary_cross_entropy"}
NETS = {
    "softmax": (lambda: flat(1, 3, **CLASSES), "labels"),
    "softmax of targets": (lambda: flat(1, 3, **CLASSES), "targets"),
    "sigmoid": (lambda: flat(2, 2, **TRUTHS), "targets"),
    "sigmoid of a Parameter": (
        lambda: flat(3, 2, neuron=Late, loss="binary_cross_entropy"), "targets"
    ),
    "softmax at each step": (lambda: in_time(each_step=True, **CLASSES), "labels"),
    "sigmoid at the last step": (lambda: in_time(**TRUTHS), "targets"),
}  # fmt: skip


def job(name: str) -> tuple[Setup, Dataset]:
    made, target = NETS[name]
    net = made()
    rng = np.random.default_rng(0)
    each = net.last.each_step
    x = rng.standard_normal((ROWS, 3))
    if target == "labels":
        y = rng.integers(0, net.last.size, (ROWS, 3) if each else ROWS)
    else:
        y = rng.integers(0, 2, (ROWS, net.last.size)).astype(float)
    return Setup(net, horn.SGD(0.1), target, ROWS, "float64", 1), Dataset(x, y)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("backend", ["kernels", "reference"])
def test_loss_and_gradients_are_the_interpreters(name, backend):
    found, judged = [], []
    for each in ("python", backend):
        setup, data = job(name)
        engine = make(each, setup)
        engine.bind(data)
        found.append(engine.probe(np.arange(ROWS), iteration=0, first_sample=0))
        judged.append(engine.losses(data)[0])
    assert 40.0 < found[0]["loss"] < np.inf
    assert judged[0] == pytest.approx(ROWS * float(found[0]["loss"]))
    assert judged[1] == pytest.approx(judged[0])
    for what, expected in found[0].items():
        np.testing.assert_allclose(found[1][what], expected, rtol=1e-9, atol=1e-12, err_msg=what)


def test_training_goes_on_interpreted():
    setup, data = job("softmax")
    made = horn.Job(setup.network, data, optimizer=setup.optimizer, batch_size=2, epochs=2)
    run = horn.train(made, backend="python")
    assert [np.isfinite(row["loss"]) for row in run.history] == [True, True]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", ["labels", "shares", "truths"])
def test_an_infinite_input_of_a_softmax_or_sigmoid_that_is_right_costs_nothing(target, dtype):
    rng = np.random.default_rng(0)
    x, shares = rng.standard_normal((ROWS, 3)), rng.random(ROWS)
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(4, activation="tanh")
    if target == "truths":
        net.output(3, neuron=Certain, loss="binary_cross_entropy")
        y = np.stack([np.ones(ROWS), np.zeros(ROWS), shares], axis=1)
    else:
        net.output(3, neuron=Masked, **CLASSES)
        y = np.stack([shares, np.zeros(ROWS), 1.0 - shares], axis=1)
    if target == "labels":
        y = 2 * rng.integers(0, 2, ROWS)
    kind = "labels" if target == "labels" else "targets"
    found = {}
    for backend in ("python", "reference", "kernels"):
        engine = make(backend, Setup(net, horn.SGD(0.1), kind, ROWS, dtype, 1))
        engine.bind(Dataset(x, y))
        found[backend] = engine.probe(np.arange(ROWS), iteration=0, first_sample=0)
        assert engine.losses(Dataset(x, y))[0] == pytest.approx(ROWS * found[backend]["loss"])
    rtol = 1e-9 if dtype == "float64" else 1e-4
    for what, expected in found["python"].items():
        assert np.isfinite(expected).all(), what
        for backend, got in found.items():
            np.testing.assert_allclose(
                got[what], expected, rtol=rtol, atol=1e-6, err_msg=f"{backend}: {what}"
            )
    assert 0.1 < found["python"]["loss"] < 5.0
    sure = [1] if target != "truths" else [0, 1]
    assert (found["python"]["layer2.weight.gradient"][sure] == 0.0).all()


@pytest.mark.parametrize(
    "z, target, expected",
    [(math.inf, 1.0, 0.0), (-math.inf, 0.0, 0.0), (math.inf, 0.0, math.inf),
     (-math.inf, 1.0, math.inf), (math.inf, 0.5, math.inf), (-math.inf, 0.5, math.inf),
     (0.0, 1.0, math.log(2)), (40.0, 1.0, math.exp(-40.0)), (-3.0, 0.25, 0.798587351573742)],
)  # fmt: skip
def test_the_cross_entropy_of_a_sigmoid_is_its_limit(z, target, expected):
    got = losses.binary_cross_entropy_of_sigmoid(z, target)
    assert got == pytest.approx(expected, rel=1e-9, abs=0.0)
