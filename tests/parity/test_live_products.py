"""Per-batch dropout: wide layers read live weights in place, and silent neurons that others
notice stay.
"""

from __future__ import annotations

import numpy as np
import pytest

import horn
from horn._kernels.engine import Tape
from horn.backends import Setup, make
from horn.data import Dataset
from horn.neurons import BatchDropout
from tests.parity.test_compiled_equals_interpreted import compare
from tests.support.neurons import Written, WrittenHalf


@pytest.mark.parametrize(
    "optimizer",
    [horn.SGD(0.1), horn.SGD(0.1, momentum=0.9), horn.Adam(0.01)],
    ids=["sgd", "momentum", "adam"],
)
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("batch", [20, 100, 300])
def test_wide_dropped_layers_train_alike(batch, n_threads, optimizer, rng):
    # given a net whose every layer drops per batch, some wide and one thin
    net = horn.Network(seed=3)
    net.input(150, keep=0.8, per="batch")
    for size in (130, 90, 12):
        net.layer(size, neuron=BatchDropout, activation="relu")
    net.output(5, activation="softmax", loss="cross_entropy")
    data = Dataset(rng.random((batch, 150), dtype=np.float32), rng.integers(0, 5, batch))
    # when both backends take the same steps
    engines = []
    for backend in ("reference", "kernels"):
        engine = make(backend, Setup(net, optimizer, "labels", batch, "float32", n_threads))
        engine.bind(data)
        for k in range(6):
            engine.step(np.arange(batch), iteration=k, first_sample=k * batch)
        engines.append(engine)
    # then they have the same weights, and the weights were read in place where that is possible
    expected, found = (engine.parameters() for engine in engines)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=2e-5, err_msg=name)
    in_place = engines[1].training_runner.writer.in_place
    possible = batch <= 256 and Tape(np.float32).reads_live
    assert set(in_place.values()) == ({"layer1.weight", "layer2.weight"} if possible else set())


class PushesOfAll(Written):
    """Pushes by the weights toward all receivers, silent ones too."""

    def backward(self, messages):
        total = sum(m.weight for m in messages)
        back = 0.0
        for m in messages:
            back += m.delta * m.weight
            self.push(m.delta * self.output * total)
        self.backpropagate(back * self.activation.derivative(self.output))


class KeepsOfAll(Written):
    """Keeps the sum of the weights toward all receivers."""

    seen = horn.State(0.0)

    def backward(self, messages):
        back = 0.0
        for m in messages:
            back += m.delta * m.weight
            self.push(m.delta * self.output)
        self.seen = sum(m.weight for m in messages)
        self.backpropagate(back * self.activation.derivative(self.output))


class Gains(horn.Neuron):
    """Keeps the sum of the weights from all senders."""

    seen = horn.State(0.0)

    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        self.seen = 0.9 * self.seen + 0.1 * sum(m.weight for m in messages)
        self.feedforward(self.activation(y))


class Totals(horn.Neuron):
    """Learns by the weights from all senders."""

    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        total = sum(m.weight for m in messages)
        for m in messages:
            self.push(-0.1 * y * m.input * total)
        self.feedforward(y)


class DrawsInBackward(WrittenHalf):
    """Sits out per batch, and pushes with a draw of each sample."""

    def backward(self, messages):
        u = self.uniform(0.0, 1.0)
        back = 0.0
        for m in messages:
            back += m.delta * m.weight
            self.push(m.delta * self.output * u)
        self.push(back * u, to="gain")
        self.backpropagate(back)


def chain(*layers, keep=1.0):
    net = horn.Network(seed=3)
    net.input(6, keep=keep, per="batch")
    for neuron in layers:
        net.layer(7, neuron=neuron, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize(
    ("layers", "keep"),
    [
        ((PushesOfAll, BatchDropout), 1.0),
        ((KeepsOfAll, BatchDropout), 1.0),
        ((BatchDropout, Gains), 1.0),
        ((Gains,), 0.5),
        ((Totals,), 0.5),
        ((DrawsInBackward,), 1.0),
    ],
    ids=lambda v: "-".join(cls.__name__ for cls in v) if isinstance(v, tuple) else str(v),
)
def test_silent_neurons_are_there_for_those_who_notice_them(layers, keep):
    compare(chain(*layers, keep=keep), horn.SGD(0.1), 5)
