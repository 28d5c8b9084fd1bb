"""The IR of layers: read once where it is the same, and digests that differ wherever it does."""

from __future__ import annotations

import numpy as np
import pytest

import horn
from horn import explain, ir
from horn.backends import Setup, make
from horn.data import Dataset
from horn.language import parse
from horn.language.layers import Reading, digest
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


class Plain(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages))


class OfItsLayer(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total * self.layer_index)


class OfItsRun(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(2.0 * total if self.training else total)


class OfItsPast(horn.Neuron):
    kept = horn.State(0.0)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.kept = 0.9 * self.kept + 0.1 * total
        self.feedforward(total - self.kept)


class OfItsTarget(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages) + self.target)


def network(neuron: type[horn.Neuron], n_layers: int = 5) -> horn.Network:
    net = horn.Network(seed=1)
    net.input(3)
    for _ in range(n_layers):
        net.layer(4, neuron=neuron, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


@pytest.fixture
def n_read(monkeypatch: pytest.MonkeyPatch) -> list[type[horn.Neuron]]:
    """The classes whose forward is read, one for each time."""
    found: list[type[horn.Neuron]] = []
    read = parse.forward

    def counted(context):
        found.append(context.cls)
        return read(context)

    monkeypatch.setattr(parse, "forward", counted)
    return found


def test_layers_of_a_class_are_read_once_for_the_check_and_all_programs_of_a_run(n_read):
    rng = np.random.default_rng(0)
    x, y = rng.random((8, 3), dtype=np.float32), np.array([0, 1] * 4)
    horn.train(
        horn.Job(network(Plain), data=(x, y), test=(x, y), batch_size=4, epochs=1), progress=False
    )
    assert len(n_read) == 2 and n_read.count(Plain) == 1  # and the output's


def test_layers_that_keep_a_state_are_read_once_for_all_checks_and_programs_of_a_run(n_read):
    rng = np.random.default_rng(0)
    data = rng.random((8, 3), dtype=np.float32), np.array([0, 1] * 4)
    horn.train(horn.Job(network(OfItsPast), data=data, batch_size=4, epochs=1), progress=False)
    assert len(n_read) == 2 and n_read.count(OfItsPast) == 1


@pytest.mark.parametrize("neuron", [Plain, OfItsLayer, OfItsRun])
@pytest.mark.parametrize("first", [True, False])
def test_a_reading_of_a_network_is_that_of_each_layer_by_itself(neuron, first):
    net, reading = network(neuron), Reading()
    for training in (first, not first):
        for layer in net.layers[1:]:
            receivers = net.receivers(layer)
            ours = reading.layer(layer, training, receivers=receivers)
            assert ours == Reading().layer(layer, training, receivers=receivers)


def test_a_layer_that_reads_its_target_is_refused_at_prediction_after_it_was_read_for_training():
    net = horn.Network(seed=1)
    net.input(3)
    last, reading = net.output(2, neuron=OfItsTarget, loss="squared_error"), Reading()
    forward, _, _ = reading.layer(last, True)
    assert ir.contains(forward.output, ir.Op.TARGET)
    with pytest.raises(horn.CompileError, match="target"):
        reading.layer(last, False)


def test_a_written_backward_is_read_for_the_weights_of_its_receivers():
    class Named(horn.Neuron):
        forget = horn.Weight()

        def forward(self, messages):
            self.feedforward(sum(m.input * m.forget for m in messages))

    class Sends(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.input * m.weight for m in messages))

        def backward(self, messages):
            self.backpropagate(sum(m.delta * m.weight for m in messages))

    net = horn.Network(seed=1)
    net.input(3)
    net.layer(4, neuron=Sends)
    net.layer(4, neuron=Sends)
    net.layer(4, neuron=Named)
    net.output(2, loss="squared_error")
    reading = Reading()
    reading.layer(net.layers[1], True, receivers=net.receivers(net.layers[1]))
    with pytest.raises(horn.CompileError, match="m.forget"):
        reading.layer(net.layers[2], True, receivers=net.receivers(net.layers[2]))


def test_the_programs_of_an_engine_are_of_the_text_as_it_was_and_another_engine_reads_it_anew():
    class Gains(horn.Neuron):
        gain = 1.0

        def forward(self, messages):
            self.feedforward(self.gain * sum(m.input * m.weight for m in messages))

    def engine():
        made = make("kernels", Setup(net, horn.SGD(0.0), "targets", 1, "float64", 1))
        made.bind(data)
        return made

    net = horn.Network(seed=1)
    net.input(1)
    net.output(1, neuron=Gains, loss="squared_error", init=1.0)
    data = Dataset(np.ones((1, 1)), np.ones((1, 1)), 1.0, "ones")
    first = engine()
    Gains.gain = 3.0
    assert first.outputs(np.ones((1, 1)))[0, 0] == 1.0
    assert engine().outputs(np.ones((1, 1)))[0, 0] == 3.0


def test_what_runs_how_is_explained_of_layers_that_are_read_once(n_read):
    explain.runs_as(network(Plain))
    assert n_read.count(Plain) == 1
