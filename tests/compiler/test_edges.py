"""Gradients at the edges of domains, and what no path chooses: finite, as the interpreter says."""

from __future__ import annotations

import numpy as np
import pytest

import horn
from horn import math
from horn.backends import Setup, make
from horn.data import Dataset

N_IN, N, ROWS = 5, 4, 4


class Distance(horn.Neuron):
    def forward(self, messages):
        self.feedforward(math.sqrt(sum((m.input - m.weight) ** 2 for m in messages)))


class Softened(horn.Neuron):
    def forward(self, messages):
        d = sum((m.input - m.weight) ** 2 for m in messages)
        self.feedforward(math.tanh(math.sqrt(d + 1e-12)))


class ThinPlate(horn.Neuron):
    def forward(self, messages):
        d = sum((m.input - m.weight) ** 2 for m in messages)
        self.feedforward(d * math.log(d) if d > 0 else 0.0)


class Power(horn.Neuron):
    p = horn.Parameter(0.5)

    def forward(self, messages):
        self.feedforward(sum(abs(m.input * m.weight) ** self.p for m in messages))


class Root(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(abs(m.input * m.weight) ** 0.5 for m in messages))


class Inverse(horn.Neuron):
    def forward(self, messages):
        t = sum((m.input - m.weight) * m.input for m in messages)
        self.feedforward(1.0 / t if t != 0 else 0.0)


class InverseOfMany(horn.Neuron):
    """What two paths share, and none of them takes."""

    def forward(self, messages):
        t = sum(abs(m.input - m.weight) for m in messages)
        r = 1.0 / t
        y = r if t > 0 else 0.25
        z = math.tanh(r) if t > 0 else 0.5
        self.feedforward(y + z)


class Shared(horn.Neuron):
    """What is divided by is one number for all messages, of which none asks for it."""

    def forward(self, messages):
        t = sum(abs(m.input - m.weight) for m in messages)
        total = sum(m.input / t if t > 0 else m.weight for m in messages)
        self.feedforward(math.tanh(total))


class Logarithm(horn.Neuron):
    def forward(self, messages):
        t = sum(abs(m.input - m.weight) for m in messages)
        self.feedforward(math.tanh(math.log(t)) if t > 0 else 0.0)


class Gaussian(horn.Neuron):
    def forward(self, messages):
        self.feedforward(math.exp(-sum((m.input - m.weight) ** 2 for m in messages)))


class Multiquadric(horn.Neuron):
    def forward(self, messages):
        self.feedforward(math.sqrt(1.0 + sum((m.input - m.weight) ** 2 for m in messages)))


AT_THE_EDGE = [
    Distance,
    Softened,
    ThinPlate,
    Power,
    Root,
    Inverse,
    InverseOfMany,
    Shared,
    Logarithm,
]


def network(cls: type[horn.Neuron]) -> horn.Network:
    net = horn.Network(seed=1)
    net.input(N_IN)
    net.layer(N, neuron=cls, bias=False)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def probed(cls: type[horn.Neuron], backend: str, dtype: str = "float64") -> dict[str, np.ndarray]:
    """Neuron k has learned sample k by heart; one input of each sample is 0."""
    x = np.random.default_rng(3).uniform(0.5, 3.0, (ROWS, N_IN))
    x[np.arange(ROWS), np.arange(ROWS)] = 0.0
    x = x.astype("float32").astype(dtype)
    net = network(cls)
    engine = make(backend, Setup(net, horn.SGD(0.1), "labels", ROWS, dtype, 1))
    engine.load({**engine.parameters(), net.layers[1].links[0].weight: x[:N].copy()})
    engine.bind(Dataset(x, np.arange(ROWS) % 3))
    return engine.probe(np.arange(ROWS), iteration=0, first_sample=0)


@pytest.mark.parametrize("backend", ["reference", "kernels"])
@pytest.mark.parametrize("cls", AT_THE_EDGE)
def test_at_the_edge_of_its_domain_a_neuron_has_the_interpreters_gradient(cls, backend):
    with np.errstate(all="ignore"):
        expected, found = probed(cls, "python"), probed(cls, backend)
    for name, value in expected.items():
        assert np.isfinite(value).all(), name
        np.testing.assert_allclose(found[name], value, rtol=1e-7, atol=1e-9, err_msg=name)


def test_a_distance_of_single_precision_keeps_its_digits():
    found = probed(Distance, "kernels", "float32")
    expected = probed(Distance, "python")
    np.testing.assert_allclose(
        found["layer1.output"], expected["layer1.output"], rtol=1e-6, atol=0.0
    )
    assert (np.diagonal(found["layer1.output"]) == 0.0).all()


class Spread(horn.Neuron):
    """The variance of what a neuron hears."""

    def forward(self, messages):
        mean = sum(m.input * m.weight for m in messages) / len(messages)
        self.feedforward(sum((m.input * m.weight - mean) ** 2 for m in messages) / len(messages))


class Cubes(horn.Neuron):
    """Its gradient is a sum of squares over the batch."""

    def forward(self, messages):
        self.feedforward(sum((m.input - m.weight) ** 3 for m in messages))


@pytest.mark.parametrize("connect", [None, horn.Convolution(N, 2)], ids=["dense", "windows"])
@pytest.mark.parametrize("cls", [Gaussian, Multiquadric, Distance, Spread, Cubes])
def test_powers_of_differences_keep_their_digits_far_from_0(cls, connect):
    """Features such as years: near 1,000, with distances of about 1, in float32."""
    net = horn.Network(seed=1)
    net.input((4, 4, 1))
    net.layer(None if connect else N, neuron=cls, connect=connect, bias=False)
    net.output(3, activation="softmax", loss="cross_entropy")
    link = net.layers[1].links[0]
    x = np.random.default_rng(3).uniform(999.8, 1000.2, (ROWS, 16)).astype(np.float32)

    def probe(backend, dtype):
        engine = make(backend, Setup(net, horn.SGD(0.1), "labels", ROWS, dtype, 1))
        shape = engine.parameters()[link.weight].shape
        weight = np.resize(x, shape)
        if cls is Spread:  # of products that are near 1,000
            weight = np.linspace(1.0, 1.001, weight.size, dtype=np.float32).reshape(shape)
        engine.load({**engine.parameters(), link.weight: weight.astype(dtype)})
        engine.bind(Dataset(x.astype(dtype), np.arange(ROWS) % 3))
        return engine.probe(np.arange(ROWS), iteration=0, first_sample=0)

    expected, found = probe("python", "float64"), probe("kernels", "float32")
    for name in ("layer1.output", "layer1.weight.gradient"):
        of = np.abs(expected[name]).max()
        np.testing.assert_allclose(found[name], expected[name], rtol=0.0, atol=2e-3 * of)
