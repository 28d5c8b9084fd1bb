"""What a condition does not choose contributes nothing, however wrong its numbers are."""

import numpy as np
import pytest

import horn
from horn import explain, math
from tests.api.running import engine, probe, step
from tests.conftest import EXISTING

# The first sample is silent: sums of its absolute values are 0.
X = np.array([[0.0, 0.0], [0.5, -0.2], [1.0, -1.0], [-0.7, 0.4]])


class Mean(horn.Neuron):
    """A weighted mean of what is there, of nothing 0."""

    def forward(self, messages):
        a = sum(abs(m.input) for m in messages)
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(z / a if a > 0.0 else 0.0)


class MeanOfLarge(horn.Neuron):
    def forward(self, messages):
        n = sum(1.0 if m.input > 0.3 else 0.0 for m in messages)
        t = sum(m.input * m.weight for m in messages if m.input > 0.3)
        y = 0.0
        if n > 0.0:
            y = t / n
        self.feedforward(y)


class Shares(horn.Neuron):
    def forward(self, messages):
        s = sum(abs(m.input) for m in messages)
        y = 0.0
        if s > 0.0:
            for m in messages:
                y += m.input * m.weight / s
        self.feedforward(y)


class LogScale(horn.Neuron):
    def forward(self, messages):
        s = sum(abs(m.input) for m in messages)
        y = 0.0
        if s > 0.0:
            y = sum(math.log(s) * m.input * m.weight for m in messages)
        self.feedforward(y)


class OfOwnAndShared(horn.Neuron):
    """The condition is the neuron's, the sum that is 0 the sample's."""

    def forward(self, messages):
        s = sum(abs(m.input) for m in messages)
        z = sum(m.input * m.weight for m in messages)
        y = 0.0
        if s > 0.0 and z > -0.1:
            y = sum(m.input * m.weight / s for m in messages)
        self.feedforward(y)


class ThreeArms(horn.Neuron):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        e = math.exp(2000.0 * z)
        self.feedforward(z if z > 0.01 else (e if z < -0.01 else e * e))


class Roots(horn.Neuron):
    """One root, used in five places."""

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        y = math.sqrt(z)
        t = 0.0
        if z > 0.0:
            t += y
        if z > 0.1:
            t += 0.3 * y * y
        if z > 0.2:
            t -= math.sin(y)
        if z > 0.3:
            t += 0.2 * y**3
        if z > 0.4:
            t += math.tanh(y)
        if z > 0.5:
            t += 0.1 * y
        self.feedforward(t)


NEURONS = [Mean, MeanOfLarge, Shares, LogScale, OfOwnAndShared, ThreeArms, Roots]


def network(neuron):
    net = horn.Network(seed=2)
    net.input(2)
    net.layer(3, connect=horn.Sparse(csr=([0, 1, 2, 4], [0, 1, 0, 1])), bias=False, init="ones")
    net.layer(4, neuron=neuron, bias=False)
    net.output(1, loss="squared_error")
    return net


class LeftOut(horn.Neuron):
    """What would be infinite or no number has other axes than the condition that leaves it out."""

    def forward(self, messages):
        found = sum(m.weight / m.index for m in messages if m.input > 0.3 and m.index > 0)
        found += sum(m.input / m.weight for m in messages if m.input > 9.0)
        found += sum(m.input * math.log(-1.0 - m.weight**2) for m in messages if m.input > 9.0)
        self.feedforward(found)


class Kept(horn.Neuron):
    """What is finite unless it overflows."""

    def forward(self, messages):
        self.feedforward(sum(math.exp(m.weight) / 2.0 for m in messages if m.input > 0.3))


@pytest.mark.parametrize("backend", EXISTING)
def test_a_message_that_is_left_out_adds_nothing_to_a_sum(backend):
    net = horn.Network(seed=2)
    net.input(2)
    net.output(2, neuron=LeftOut, loss="squared_error", bias=False, init="zeros")
    data = horn.data.Dataset(X, np.ones((4, 2)))
    outputs = probe(engine(net, data, backend=backend, target="targets"), 4)["layer1.output"]
    np.testing.assert_array_equal(outputs, np.zeros((4, 2)))


def test_a_guarded_sum_is_a_product_unless_it_could_be_infinite():
    runs = {}
    for neuron in (Kept, LeftOut):
        net = horn.Network(seed=2)
        net.input(2)
        net.output(2, neuron=neuron, loss="squared_error", bias=False)
        runs[neuron] = explain.runs_as(net)["layer1"]
    assert "matrix product" in runs[Kept] and "fused loop" in runs[LeftOut]


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("backend", [name for name in EXISTING if name != "python"])
def test_what_is_not_chosen_gives_no_gradient(backend, neuron):
    data = horn.data.Dataset(X, np.array([[0.3], [-0.2], [0.9], [0.1]]))
    made = [engine(network(neuron), data, backend=b, target="targets") for b in ("python", backend)]
    for k in range(3):
        expected, got = (probe(e, 4, iteration=k) for e in made)
        for name, value in expected.items():
            assert np.isfinite(value).all(), name
            np.testing.assert_allclose(got[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
        losses = [step(e, 4, iteration=k) for e in made]
        assert losses[1] == pytest.approx(losses[0], rel=1e-9)
