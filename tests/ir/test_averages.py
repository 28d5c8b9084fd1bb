"""What several samples of a batch leave a State with is their mean: what has none is refused."""

import numpy as np
import pytest

import horn
from horn import explain
from horn.errors import CompileError


class Remembers(horn.Neuron):
    kept = horn.State(0.0)
    trace = horn.SynapseState(0.0)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        spike = 1.0 if z > 1.0 else 0.0
        self.keep(z, spike)
        self.learn(messages, z)
        self.feedforward(z)

    def learn(self, messages, z):
        pass

    def keep(self, z, spike):
        pass


class Reset(Remembers):
    def keep(self, z, spike):
        v = 0.9 * self.kept + z
        self.kept = 0.0 if v > 1.0 else v


class ResetByProduct(Remembers):
    def keep(self, z, spike):
        self.kept = 0.9 * self.kept * (1.0 - spike) + z


class Last(Remembers):
    def keep(self, z, spike):
        if z > 0.0:
            self.kept = z


class Largest(Remembers):
    def keep(self, z, spike):
        self.kept = max(self.kept, z)


class Place(Remembers):
    def keep(self, z, spike):
        self.kept = self.argmax(z, over="layer")


class SynapseReset(Remembers):
    def learn(self, messages, z):
        for m in messages:
            m.trace = 0.5 * m.trace + 1.0 if m.input > 0.0 else 0.0
            self.push(m.trace * z)


class Average(Remembers):
    def keep(self, z, spike):
        self.kept = max(0.99 * self.kept + 0.01 * z, 0.0)


class Homeostatic(Remembers):
    def keep(self, z, spike):
        self.kept += 0.1 * (spike - 0.2) if z > self.kept else 0.05 * z


class Clipped(Remembers):
    def keep(self, z, spike):
        self.kept = 0.9 * self.kept + z
        if self.kept > 5.0:
            self.kept = 5.0


class Counter(Remembers):
    def keep(self, z, spike):
        self.kept = 0.0 if self.kept > 3.0 else self.kept + 1.0


class Told(Remembers):
    def keep(self, z, spike):
        self.kept = spike


class Fades(Remembers):
    def learn(self, messages, z):
        for m in messages:
            m.trace = 0.9 * m.trace + (m.input if z > 0.0 else 0.0)
            self.push(m.trace)


def network(cls):
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(2, neuron=cls)
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize(
    "cls, why",
    [
        (Reset, "'kept' is carried on by some samples and set anew by others"),
        (ResetByProduct, "'kept' is carried on by some"),
        (Last, "'kept' is carried on by some"),
        (Largest, "'kept' is carried on by some"),
        (Place, "'kept' is the place of a neuron"),
        (SynapseReset, "'trace' is carried on by some"),
    ],
)
def test_what_has_no_mean_is_refused_for_several_samples_at_once(cls, why):
    net = network(cls)
    with pytest.raises(CompileError, match=why) as raised:
        explain.check_memory(net, 4)
    assert "batch_size=1" in str(raised.value) and raised.value.line is not None
    with pytest.raises(CompileError, match="groups=2"):
        explain.check_memory(net, 1, groups=2)
    explain.check_memory(net, 1)


@pytest.mark.parametrize("cls", [Average, Homeostatic, Clipped, Counter, Told, Fades])
def test_what_has_a_mean_is_not(cls):
    explain.check_memory(network(cls), 4)


ROUNDS = 1000


class ResetAfterRounds(Remembers):
    def keep(self, z, spike):
        v = self.kept
        for _ in range(ROUNDS):
            v = 0.5 * v * (1.0 - 0.1 * v)
        self.kept = (v + z) * (1.0 - spike)


class AverageAfterRounds(Remembers):
    def keep(self, z, spike):
        v = self.kept
        for _ in range(ROUNDS):
            v = 0.5 * v * (1.0 - 0.1 * v)
        self.kept = v + z


@pytest.mark.timeout(60)
def test_a_variable_that_is_used_twice_a_thousand_times_is_looked_at_once():
    with pytest.raises(CompileError, match="'kept' is carried on by some"):
        explain.check_memory(network(ResetAfterRounds), 4)
    explain.check_memory(network(AverageAfterRounds), 4)


class ResetInTime(horn.Neuron):
    v = horn.State(0.0, per="sample")

    def forward(self, messages):
        v = 0.9 * self.v + sum(m.input * m.weight for m in messages)
        self.v = 0.0 if v > 1.0 else v
        self.feedforward(v)


def test_a_sequence_may_reset_what_is_its_own():
    net = horn.Network(seed=1)
    net.input(1, steps=3)
    net.layer(2, neuron=ResetInTime)
    net.output(2, activation="softmax", loss="cross_entropy")
    explain.check_memory(net, 4)


class OutsideOfTheLanguage(Average):
    def learn(self, messages, z):
        f"{z:.1f}".encode()


@pytest.mark.parametrize("backend", ["kernels", "python"])
def test_training_says_so_before_it_begins(backend):
    data = horn.data.Dataset(np.ones((8, 3)), np.zeros(8, np.int64))

    def train(cls, batch_size):
        job = horn.Job(network(cls), data, batch_size=batch_size, epochs=1)
        return horn.train(job, progress=False, backend=backend)

    with pytest.raises(CompileError, match="batch_size=4"):
        train(Reset, 4)
    assert train(Reset, 1).history
    if backend == "python":
        assert train(OutsideOfTheLanguage, 4).history
