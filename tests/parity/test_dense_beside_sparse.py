"""Dense loops in nets with sparse links or windows: arrays have the batch side by side there, the
loops get copies with a sample's numbers side by side (docs/notes/0188).
"""

import numpy as np
import pytest

import horn
from horn import math
from horn.backends import Setup, make
from horn.data import sequences
from tests.parity.differences import check_gradients
from tests.parity.test_compiled_equals_interpreted import agree, compare, samples


class Radial(horn.Neuron):
    def forward(self, messages):
        self.feedforward(math.exp(-0.1 * sum((m.input - m.weight) ** 2 for m in messages)))


class Largest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


class Product(horn.Neuron):
    def forward(self, messages):
        p = 1.0
        for m in messages:
            p *= 1.0 - 0.1 * m.input * m.weight
        self.feedforward(p)


class Dendrites(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(math.tanh(m.input * m.weight) for m in messages))


class Gated(horn.Neuron):
    """No tile, with a draw per message and a memory per synapse."""

    kept = horn.SynapseState(0.0)

    def forward(self, messages):
        total = 0.0
        for m in messages:
            if m.input > m.weight:
                total += m.input * m.weight * self.bernoulli(0.8) + m.kept
            m.kept = 0.5 * m.kept + 0.1 * m.input
        self.feedforward(math.tanh(total))


NEURONS = [Radial, Largest, Product, Dendrites, Gated]


def sparse(neuron):
    net = horn.Network(seed=3)
    net.input(21)
    net.layer(19, neuron=neuron)
    net.layer(9, activation="tanh", connect=horn.Sparse(fan_in=4))
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def windows(neuron):
    net = horn.Network(seed=3)
    net.input((5, 4, 1))
    net.layer(connect=horn.Convolution(channels=3, kernel=(3, 2)), activation="tanh")
    net.layer(19, neuron=neuron)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def in_time(neuron):
    net = horn.Network(seed=3)
    heard = net.input(5, steps=4)
    net.layer(9, neuron=neuron, inputs=[heard, horn.Delayed()])
    net.layer(6, activation="tanh", connect=horn.Sparse(fan_in=4))
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def in_steps(n):
    """Sequences of 1 to 4 steps for ``in_time``."""
    rng = np.random.default_rng(1)
    x, lengths = rng.standard_normal((n, 4, 5)), [4, 2, 4, 1, 3, 4, 4, 2, 4, 4, 1, 3][:n]
    whole = [row[:end] for row, end in zip(x, lengths, strict=True)]
    return sequences(whole, rng.integers(0, 3, n))


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("network", [sparse, windows])
@pytest.mark.parametrize("batch", [1, 5])
def test_the_kernels_answer_is_the_interpreters(network, neuron, batch):
    compare(network(neuron), horn.SGD(0.1, momentum=0.9), batch, "kernels")


@pytest.mark.parametrize("neuron", [Radial, Largest, Product, Dendrites])
def test_derived_gradients_are_finite_differences(neuron):
    net = windows(neuron)
    setup = Setup(net, horn.SGD(0.1), "labels", 5, "float64", 1)
    check_gradients("kernels", setup, samples(net), 3)


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("network", [sparse, windows, in_time])
def test_threads_change_no_bit(network, neuron, monkeypatch):
    monkeypatch.setattr("horn.scheduling.choices.MIN_WORK_PER_THREAD", 1)
    net = network(neuron)
    data, rows = in_steps(12) if net.steps else samples(net), np.arange(12)
    found = []
    for threads in (1, 2, 3):
        setup = Setup(net, horn.SGD(0.1), "labels", 12, "float32", threads)
        engine = make("kernels", setup)
        engine.bind(data)
        assert engine.training_runner.tape.n_threads == threads
        losses = [engine.step(rows, iteration=k, first_sample=12 * k) for k in range(3)]
        found.append((losses, engine.parameters()))
    losses, arrays = found[0]
    for other_losses, others in found[1:]:
        assert losses == other_losses
        for name, array in arrays.items():
            assert array.tobytes() == others[name].tobytes(), name


@pytest.mark.parametrize("neuron", [Radial, Largest, Dendrites])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_cell_beside_sparse_links_in_time(neuron, batch):
    net, data = in_time(neuron), in_steps(8)
    names = ("python", "kernels")
    setup = Setup(net, horn.SGD(0.1), "labels", batch, "float64", 1)
    agree([make(name, setup) for name in names], names, data, batch)
