"""A product over messages and what it sends back, also where factors are 0."""

import numpy as np
import pytest

import horn
from horn import math
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
