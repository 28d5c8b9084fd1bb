"""How layers run, in words."""

import pytest

import horn
from horn.compiler import explain
from horn.neurons import BatchDropout, Dropout, Standard


class Radial(horn.Neuron):
    def forward(self, messages):
        self.feedforward(horn.math.exp(-sum((m.input - m.weight) ** 2 for m in messages)))


class Saturating(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(horn.math.tanh(m.input * m.weight) for m in messages))


class Hebb(horn.Neuron):
    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(y * m.input)
        self.feedforward(y)


class Momentum(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages))

    def backward(self, messages):
        g = 0.0
        for m in messages:
            g += m.gradient
            self.push(0.9 * m.previous_update - self.learning_rate * m.delta * self.output)
        self.backpropagate(g)


@horn.interpreted
class Slow(Standard):
    pass


def network(neuron, **settings):
    net = horn.Network(seed=1)
    net.input(6)
    net.layer(4, neuron=neuron, **settings)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize(
    ("neuron", "settings", "way"),
    [
        (Standard, {}, "matrix products"),
        (Dropout, {}, "matrix products"),
        (Radial, {}, "matrix products"),
        (Hebb, {}, "matrix products"),
        (Momentum, {}, "matrix products"),
        (Saturating, {}, "fused loop"),
        (BatchDropout, {}, "matrix products, live neurons only"),
        (Standard, {"connect": horn.Sparse(fan_in=2)}, "loop over edges"),
        (Slow, {}, "message by message"),
    ],
)
def test_runs_as(neuron, settings, way):
    assert explain.runs_as(network(neuron, **settings))["layer1"] == way


def test_one_interpreted_layer_slows_them_all():
    assert set(explain.runs_as(network(Slow)).values()) == {"message by message"}


@pytest.mark.parametrize(
    ("neuron", "kind"),
    [(Standard, "weighted sum"), (Radial, "other"), (Saturating, "other"), (Hebb, "local rule")],
)
def test_kind(neuron, kind):
    assert explain.kind(network(neuron).layers[1]) == kind
