"""A product over messages and what it sends back, also where factors are 0."""

import numpy as np
import pytest

import horn
from horn import math
from horn.backends import Setup, make
from horn.data import Dataset
from tests.parity.test_compiled_equals_interpreted import compare


class SigmaPi(horn.Neuron):
    """0 with any input that is."""

    gain = horn.Parameter(0.4)

    def forward(self, messages):
        p = 1.0
        for m in messages:
            p *= m.input * (1.1 + 0.5 * m.weight)
        self.feedforward(math.tanh(self.gain * p))


class NoisyOr(horn.Neuron):
    gain = horn.Parameter(0.4)

    def forward(self, messages):
        off = 1.0
        for m in messages:
            off *= 1.0 - self.gain * m.input * m.weight
        self.feedforward(1.0 - off)


class Gaps(horn.Neuron):
    def forward(self, messages):
        p = 1.0
        for m in messages:
            p *= m.input - m.weight
        self.feedforward(math.tanh(p))


@pytest.mark.parametrize("neuron", [SigmaPi, NoisyOr, Gaps])
@pytest.mark.parametrize("connect", [None, horn.Sparse(fan_in=6)])
def test_products_with_zeros(neuron, connect):
    """No zero, one, two; in one link or both; a product that is 0 without any; an infinite one."""
    net = horn.Network(seed=2)
    x = net.input(12)
    a = net.layer(9, activation="relu")
    net.layer(8, neuron=neuron, inputs=[x, a], connect=connect)
    net.layer(5, neuron=neuron)
    net.output(3, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(4)
    rows = rng.uniform(0.8, 1.2, (8, 12))
    rows[1, 3] = rows[2, 5] = rows[2, 6] = rows[3, 11] = 0.0
    rows[4, :3] = 1e-160
    compare(net, horn.SGD(0.1), 8, steps=1, data=Dataset(rows, np.arange(8) % 3))


class Quartic(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum((m.input - m.weight) ** 4 for m in messages))


@pytest.mark.parametrize("backend", ["reference", "kernels"])
def test_high_powers_of_differences_keep_their_digits(backend):
    """Of numbers that are large beside their differences: terms of x ** 4 would cancel."""
    x = (1000 + np.random.default_rng(1).normal(size=(4, 10))).astype(np.float32)
    net = horn.Network(seed=1)
    net.input(10)
    net.output(3, neuron=Quartic, bias=False, init=horn.Normal(1000, 1), loss="squared_error")
    w = net.initial_parameters(np.float32)["layer1.weight"].astype(np.float64)
    gaps = x[:, None].astype(np.float64) - w
    y = (gaps**4).sum(axis=2)
    engine = make(backend, Setup(net, horn.SGD(0.1), "targets", 4, "float32", 1))
    engine.bind(Dataset(x, np.zeros((4, 3))))
    probe = engine.probe(np.arange(4), iteration=0, first_sample=0)
    np.testing.assert_allclose(probe["layer1.output"], y, rtol=1e-5)
    gradient = np.mean(y[..., None] * -4 * gaps**3, axis=0)
    error = np.abs(probe["layer1.weight.gradient"] - gradient).max()
    assert error < 1e-5 * np.abs(gradient).max()
