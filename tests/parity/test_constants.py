"""A constant means the same however a neuron runs: a number of NumPy is that number of Python."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

import horn
from tests.conftest import EXISTING

ZERO, THREE, FIVE, HUNDRED = np.uint8(0), np.uint8(3), np.uint8(5), np.int8(100)
TENTH, YES = np.float32(0.1), np.bool_(True)
TAPS = np.arange(4, dtype=np.uint8)
Pair = namedtuple("Pair", "low high")


def difference(a, b=THREE):
    return a - b


class Many(horn.Neuron):
    hundred = np.int8(100)
    taps = np.array([0.5, 0.1], dtype=np.float32)
    pair = Pair(2.0, np.uint8(7))

    def forward(self, messages):
        z = sum(m.input for m in messages)
        z += (THREE - FIVE) + self.hundred * HUNDRED + (-THREE) + difference(ZERO)
        z += (TENTH == 0.1) + TENTH / 3 + TENTH**2 + (YES + YES) + (-1.0 if YES else 1.0)
        z += (TAPS[1] - TAPS[2]) + TAPS[2] ** -1 + sum(k - FIVE for k in TAPS)
        z += sum(k * k for k in self.taps) + self.pair.low - self.pair.high * FIVE
        self.feedforward(self.activation(z))


def between(output):
    return output + (THREE - FIVE)


@pytest.mark.parametrize("backend", EXISTING)
def test_numbers_of_numpy_are_numbers_of_python(backend):
    net = horn.Network()
    net.input(1)
    net.layer(
        1, neuron=Many, bias=False, interlayer=between,
        activation=lambda z: z + (THREE - FIVE),
    )  # fmt: skip
    net.output(1, loss="squared_error", init=horn.initializers.Constant(1.0))
    job = horn.Job(net, ([[0.0]], [[0.0]]), horn.SGD(0.0), epochs=1, dtype="float64")
    model = horn.train(job, backend=backend, progress=False).model
    tenth = float(np.float32(0.1))
    expected = -2 - 2  # of the activation and the interlayer
    expected += -2 + 10_000 - 3 - 3 + tenth / 3 + tenth**2 + 2 - 1
    expected += -1 + 0.5 - 14 + 0.25 + tenth**2 + 2 - 35
    found = model.activations(np.zeros((1, 1)), "layer1")
    np.testing.assert_allclose(found, [[expected]], rtol=1e-12)


def around():
    large, small = np.float16(300), np.uint8(3)
    return lambda z, *, by=FIVE: z * (large * large) + (small - by)


@pytest.mark.parametrize("backend", EXISTING)
def test_what_is_around_a_lambda_and_its_named_defaults_are_numbers_of_python(backend):
    net = horn.Network()
    net.input(1)
    net.layer(1, activation=around(), init=horn.Constant(1.0), bias=0.0)
    net.output(1, loss="squared_error")
    job = horn.Job(net, ([[1.0]], [[0.0]]), horn.SGD(0.0), epochs=1, dtype="float64")
    model = horn.train(job, backend=backend, progress=False).model
    assert model.activations(np.ones((1, 1)), "layer1").item() == 90_000.0 - 2.0


class Named(horn.Neuron):
    __k = 2.0
    k = 3.0
    __kept = horn.State(0.0)

    def forward(self, messages):
        z = sum(m.input for m in messages)
        self.__kept = self.__k * z
        self.feedforward(self.__k * self.__class__.k * type(self).k + self.__kept)


class Below(Named):
    k = 5.0


@pytest.mark.parametrize("backend", EXISTING)
def test_a_constant_is_found_where_python_finds_it(backend):
    net = horn.Network()
    net.input(1)
    net.layer(1, neuron=Below, bias=False)
    net.output(1, loss="squared_error")
    job = horn.Job(net, ([[0.5]], [[0.0]]), horn.SGD(0.0), epochs=1, dtype="float64")
    model = horn.train(job, backend=backend, progress=False).model
    assert model.activations(np.array([[0.5]]), "layer1") == [[2.0 * 5.0 * 5.0 + 1.0]]
