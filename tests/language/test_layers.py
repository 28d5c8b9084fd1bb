"""The digest of a layer's IR: it differs wherever what is read differs, in any part of it."""

from __future__ import annotations

import pytest

import horn
from horn.language.layers import digest
from tests.language.texts import module, source

BACKWARD = """
    first = horn.State(0.0)
    second = horn.State(0.0)
    kept = horn.SynapseState(0.0)

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            self.push(m.delta * self.output)
            m.kept = m.kept + m.delta
        self.first = self.first + error
        self.backpropagate(error * self.activation.derivative(self.output))
"""


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("self.first + error", "self.first + 2.0 * error"),
        ("self.first = ", "self.second = "),
        ("m.kept + m.delta", "m.kept - m.delta"),
        ("self.push(m.delta * ", "self.push(2.0 * m.delta * "),
        ("backpropagate(error", "backpropagate(-error"),
    ],
)
def test_a_digest_is_of_all_that_a_backward_does(tmp_path, said, instead):
    def of(text: str) -> str:
        net = horn.Network(seed=1)
        net.input(3)
        net.layer(4, neuron=module(tmp_path, source(text)).N, activation="tanh")
        net.output(2, activation="softmax", loss="cross_entropy")
        return digest(net.layers[1], [net.layers[2]])

    assert said in BACKWARD
    assert "" != of(BACKWARD) == of(BACKWARD) != of(BACKWARD.replace(said, instead))
