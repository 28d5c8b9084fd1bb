"""self.target of output neurons, self.error and self.loss of hidden ones (docs/notes/0117)."""

import numpy as np
import pytest

import horn
from horn import random
from horn.backends import Setup, make
from horn.errors import CompileError, HornError
from tests.parity.test_compiled_equals_interpreted import COMPILED, compare, samples
from tests.parity.test_groups import of_groups
from tests.parity.test_tasks import compare as compare_tasks
from tests.parity.test_tasks import labelled, of_group, of_one, place, steps
from tests.transport.groups import good

AT = {"iteration": 0, "first_sample": 0}


class Aligned(horn.Neuron):
    """Direct feedback alignment."""

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = sum(e.delta * e.normal(0.0, 0.5) for e in self.error)
        for m in messages:
            self.push(m.delta * self.output)
        self.backpropagate(error * self.activation.derivative(self.output))


class Rewarded(horn.Neuron):
    noise, usual = horn.State(0.0), horn.State(1.0)

    def forward(self, messages):
        self.noise = self.normal(0.0, 0.3)
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages) + self.noise))

    def backward(self, messages):
        loudest = max(e.delta * (1.0 + e.uniform()) for e in self.error)
        better = (self.loss - self.usual) * self.noise + 0.1 * loudest
        self.usual = 0.9 * self.usual + 0.1 * self.loss
        for m in messages:
            self.push(m.delta * self.output)
        self.backpropagate(better)


class Taught(horn.Neuron):
    """Its output is the target in training, and it learns by the delta rule."""

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push((z - self.target) * m.input)
        if self.training:
            self.feedforward(0.5 * self.target + 0.5 * z)
        else:
            self.feedforward(z)


def network(neuron, connect=None):
    net = horn.Network(seed=3)
    x = net.input(7)
    a = net.layer(9, neuron=neuron, activation="tanh")
    net.layer(6, neuron=neuron, inputs=[x, a], connect=connect, activation="tanh")
    net.output(4, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize("connect", [None, horn.Sparse(fan_in=3)])
@pytest.mark.parametrize("neuron", [Aligned, Rewarded])
def test_what_a_hidden_neuron_hears_is_the_interpreters(neuron, connect):
    compare(network(neuron, connect), horn.SGD(0.1), 5)


@pytest.mark.parametrize("where", ["receiver", "replicated"])
@pytest.mark.parametrize("layers", ["neurons", "rows"])
@pytest.mark.parametrize("neuron", [Aligned, Rewarded])
def test_tasks_and_groups_hear_the_same(neuron, layers, where):
    net = network(neuron)
    setup = Setup(net, horn.SGD(0.1), "labels", 6, "float64", 1)
    data, batches = labelled(net), steps(6, 3)
    placement = place(net, (where,) * 9, (layers,) * 9)
    one = of_one("kernels", setup, data, batches)
    for backend in COMPILED:
        tasks = of_group(backend, setup, data, batches, placement, 2)
        compare_tasks(good(tasks), one, backend)
    compare_tasks(good(of_groups("kernels", setup, data, batches, placement, 2, 1)), one, "groups")


def test_the_errors_come_through_fixed_weights():
    """By the formula of the paper, with horn's own draws."""
    net = network(Aligned)
    engine = make("kernels", Setup(net, horn.SGD(0.1), "labels", 5, "float64", 1))
    data = samples(net)
    engine.bind(data)
    found = [engine.probe(np.arange(5), iteration=k, first_sample=5 * k) for k in range(2)]
    delta, output = found[0]["layer3.delta"], found[0]["layer1.output"]
    weights, *_ = np.linalg.lstsq(delta, found[0]["layer1.delta"] / (1 - output**2), rcond=None)
    np.testing.assert_allclose(
        delta @ weights, found[0]["layer1.delta"] / (1 - output**2), atol=1e-9
    )
    again = found[1]["layer1.delta"] / (1 - found[1]["layer1.output"] ** 2)
    np.testing.assert_allclose(found[1]["layer3.delta"] @ weights, again, atol=1e-9)
    keys = random.receiver_keys(random.key(3, 1), np.arange(9), 2)
    assert len(np.unique(keys)) == 18


class NamedError(horn.Neuron):
    """A local rule whose State has the name of what hidden neurons hear of the outputs."""

    error = horn.State(0.0)

    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        self.error = 0.5 * self.error + y
        for m in messages:
            self.push(self.error * m.input)
        self.feedforward(y)


def test_a_state_may_be_called_error():
    net = horn.Network(seed=3)
    net.input(4)
    net.layer(3, neuron=NamedError)
    net.output(2, loss="squared_error")
    compare(net, horn.SGD(0.1), 5)


@pytest.mark.parametrize("size, loss", [(3, "squared_error"), (1, "squared_error")])
def test_an_output_neuron_reads_what_the_loss_compares_with(size, loss):
    net = horn.Network(seed=3)
    net.input(7)
    net.layer(5)
    net.output(size, neuron=Taught, loss=loss)
    compare(net, horn.SGD(0.1), 5)
    rng = np.random.default_rng(0)
    if size > 1:
        values = horn.data.Dataset(rng.standard_normal((12, 7)), rng.standard_normal((12, size)))
        compare(net, horn.SGD(0.1), 5, data=values)


def test_tasks_and_groups_read_the_same_target():
    net = horn.Network(seed=3)
    net.input(7)
    net.layer(5)
    net.output(3, neuron=Taught, loss="squared_error")
    setup = Setup(net, horn.SGD(0.1), "labels", 6, "float64", 1)
    data, batches = labelled(net), steps(6, 3)
    one = of_one("kernels", setup, data, batches)
    for where in ("receiver", "sender", "replicated"):
        placement = place(net, (where,) * 9, ("neurons",) * 9)
        tasks = of_group("kernels", setup, data, batches, placement, 2)
        compare_tasks(good(tasks), one, where)
        groups = of_groups("kernels", setup, data, batches, placement, 2, 1)
        compare_tasks(good(groups), one, where)


def says(problem, forward=None, backward=None, hidden=True, loss="squared_error"):
    methods = {"forward": forward or Aligned.forward}
    if backward is not None:
        methods["backward"] = backward
    cls = type("Hears", (horn.Neuron,), methods)
    for backend in ("python", "kernels"):
        net = horn.Network(seed=0)
        net.input(7)
        net.layer(3, neuron=cls if hidden else None, activation="tanh") if hidden else net.layer(3)
        net.output(2, **({} if hidden else {"neuron": cls}), loss=loss)
        data = samples(net)
        with pytest.raises(HornError, match=problem):
            engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 3, "float64", 1))
            engine.bind(data)
            engine.step(np.arange(3), **AT)
            engine.outputs(data.x)


def reads_target(self, messages):
    self.feedforward(sum(m.input * m.weight for m in messages) - self.target)


def reads_error(self, messages):
    self.feedforward(sum(m.input * m.weight for m in messages) - self.loss)


def test_what_is_not_known_is_refused():
    says("only output neurons have one", reads_target)
    says("known in training only", reads_target, hidden=False)
    net = horn.Network(seed=0)
    net.input(7)
    net.layer(3, neuron=type("Early", (horn.Neuron,), {"forward": reads_error}))
    net.output(2, loss="squared_error")
    with pytest.raises(CompileError, match="self.loss is known in backward.*; a rule in forward"):
        make("kernels", Setup(net, horn.SGD(0.1), "labels", 3, "float64", 1)).bind(samples(net))


@pytest.mark.parametrize("backend", ["python", "reference", "kernels"])
def test_a_draw_of_the_neuron_in_a_loop_over_errors_is_refused(backend):
    class Drawing(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.input * m.weight for m in messages))

        def backward(self, messages):
            for m in messages:
                self.push(m.delta * self.output)
            self.backpropagate(sum(e.delta * self.normal() for e in self.error))

    net = horn.Network(seed=1)
    net.input(3)
    net.layer(4, neuron=Drawing)
    net.output(2, loss="squared_error")
    with pytest.raises(CompileError, match="same number") as caught:
        engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1))
        engine.bind(samples(net))
        engine.probe(np.arange(4), iteration=0, first_sample=0)
    assert "e.delta * self.normal()" in str(caught.value)
