"""A neuron that nobody sends to: what it makes of no messages is the same, whoever computes."""

import numpy as np
import pytest

import horn
from horn.backends import Setup, make
from tests.parity.test_compiled_equals_interpreted import COMPILED, samples


class Largest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


class Smallest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(min(m.input * m.weight for m in messages))


class Mean(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages) / len(messages))


class Mean2(horn.Neuron):
    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input
        self.feedforward(total / len(messages))


class Default(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max((m.input * m.weight for m in messages), default=2.0))


class Counts(horn.Neuron):
    def forward(self, messages):
        self.feedforward(1.0 if len(messages) == 0 else float(len(messages)))


@pytest.mark.parametrize(
    "neuron, none",
    [(Largest, -np.inf), (Smallest, np.inf), (Mean, np.nan), (Mean2, np.nan), (Default, 2.0),
     (Counts, 1.0)],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["python", *COMPILED])
def test_what_comes_of_no_messages(backend, neuron, none):
    net = horn.Network(seed=1)
    net.input(3)
    some = horn.Sparse(sources=lambda o: [0, 1] if o else [])
    net.layer(2, neuron=neuron, connect=some, bias=False)
    net.output(2, activation="softmax", loss="cross_entropy")
    data = samples(net)
    engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 3, "float64", 1))
    engine.bind(data)
    sent = engine.probe(np.arange(3), iteration=0, first_sample=0)["layer1.output"]
    np.testing.assert_array_equal(sent[:, 0], [none] * 3)
    assert np.isfinite(sent[:, 1]).all()
