"""Inputs with names, several connections from one layer: who hears what, the law, tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.backends import Setup, make
from horn.errors import CompileError, ModelError
from horn.explain import kind, never_learn
from horn.partition.placement import LINK_SPLITS
from tests.parity.differences import check_gradients
from tests.parity.test_compiled_equals_interpreted import compare, samples
from tests.parity.test_tasks import compare as compare_tasks
from tests.parity.test_tasks import of_group, of_one, place
from tests.support.neurons import Written
from tests.transport.groups import good


class Apart(horn.Neuron):
    """A weighted sum of each input, and of all."""

    def forward(self, messages):
        h = 0.0
        for m in messages.h:
            h += m.input * m.weight
        x = sum(m.input * m.weight for m in messages.x)
        both = sum(m.input * m.weight for m in messages)
        self.feedforward(horn.math.tanh(x) * h + 0.5 * both)


class Gates(horn.Neuron):
    gate, value = horn.Weight(bias=1.0), horn.Weight()

    def forward(self, messages):
        gate = horn.math.sigmoid(sum(m.input * m.gate for m in messages.x))
        self.feedforward(gate * sum(m.input * m.value for m in messages))


class Otherwise(horn.Neuron):
    """No sums of input * weight; of one input a part."""

    gain = horn.Parameter(0.3)

    def forward(self, messages):
        top = max(m.input * m.weight for m in messages.x)
        some = max((m.input for m in messages.h if m.input * m.weight > 0.0), default=0.1)
        p = 1.0
        for m in self.those(messages):
            p *= 1.0 + 0.1 * m.input * m.weight
        self.feedforward(self.gain * top + some * p / len(messages.h) + 0.1 * len(messages))

    def those(self, messages):
        return messages.h


class Remembers(horn.Neuron):
    trace = horn.SynapseState(0.1)

    def forward(self, messages):
        z = sum(m.input * m.weight + m.trace for m in messages)
        for m in messages.h:
            m.trace = 0.5 * m.trace + m.input
        self.feedforward(horn.math.tanh(z))


class Scaled(horn.Neuron):
    """Its gradient of one input is a sum over the weights of the other."""

    def forward(self, messages):
        scale = sum(m.input for m in messages.a)
        self.feedforward(
            horn.math.tanh(sum(horn.math.tanh(m.input * m.weight * scale) for m in messages.b))
        )


class Oja(horn.Neuron):
    """Learns by its own push, and is told of no error."""

    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(-0.1 * y * (m.input - y * m.weight))
        self.feedforward(self.activation(y))


class Hebb(horn.Neuron):
    """Teaches one input's synapses, each by its rule, and no others."""

    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages.x:
            self.push(0.1 * y * m.input)
        for m in messages.h:
            self.push(0.2 * y * (m.input - m.weight))
        self.feedforward(y)


def net_of(neuron: Any, connect: Any = None, below: Any = horn.neurons.Standard) -> horn.Network:
    """``neuron`` hears the input, and the hidden layer twice."""
    net = horn.Network(seed=3)
    x = net.input(5, name="in")
    h = net.layer(4, neuron=below, activation="tanh", name="below")
    net.layer(3, neuron=neuron, inputs={"x": x, "h": h, "again": h}, connect=connect, name="here")
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


LAW = [Apart, Gates, Otherwise, Remembers, Hebb]


@pytest.mark.parametrize("connect", [None, {"h": horn.Sparse(fan_in=2)}], ids=["dense", "sparse"])
@pytest.mark.parametrize("neuron", LAW)
def test_the_interpreter_is_the_law(neuron, connect):
    compare(net_of(neuron, connect), horn.SGD(0.1, momentum=0.5), 4)


@pytest.mark.parametrize("neuron", [Apart, Gates, Otherwise])
def test_derived_gradients_are_finite_differences(neuron):
    net = net_of(neuron, {"again": horn.Sparse(fan_in=3)})
    check_gradients(
        "kernels", Setup(net, horn.SGD(0.1), "labels", 5, "float64", 1), samples(net), 6
    )


@pytest.mark.parametrize("neuron", [Apart, Gates])
def test_a_written_backward_below_hears_of_each_sum(neuron):
    """Toward receivers that tell their inputs apart m.delta is of the sums that a message is in."""

    class Below(Written):
        def backward(self, messages):
            error = 0.0
            for m in messages:
                error += m.gradient
            self.backpropagate(error * self.activation.derivative(self.output))

    assert kind(net_of(neuron).layers[2]) == "weighted sum"
    below = Written if neuron is Apart else Below
    compare(net_of(neuron, below=below), horn.SGD(0.1, momentum=0.5), 4)
    net = net_of(neuron, below=below)
    setup = Setup(net, horn.SGD(0.1), "labels", 5, "float64", 1)
    check_gradients("kernels", setup, samples(net), 6)


def net_of_scaled(teacher: str) -> horn.Network:
    """Two layers under one that is no weighted sum; no gradient flows back through the later."""
    net = horn.Network(seed=3)
    x = net.input(4)
    a = net.layer(3, inputs=[x], activation="tanh", name="told")
    neuron = Oja if teacher == "its own push" else horn.neurons.Standard
    b = net.layer(3, inputs=[x], activation="tanh", neuron=neuron, name="other")
    net.layer(3, neuron=Scaled, inputs={"a": a, "b": b}, bias=False)
    net.output(2, activation="softmax", loss="cross_entropy")
    return net.freezing(["other.weight", "other.bias"]) if teacher == "none" else net


@pytest.mark.parametrize("optimizer", [horn.SGD(0.5), horn.Adam(0.1)], ids=repr)
@pytest.mark.parametrize("teacher", ["none", "its own push"])
def test_a_gradient_is_of_the_weights_that_the_batch_began_with(teacher, optimizer):
    compare(net_of_scaled(teacher), optimizer, 4)


@pytest.mark.parametrize("teacher", ["none", "its own push"])
def test_tasks_take_gradients_of_the_weights_that_the_batch_began_with(teacher):
    setup = Setup(net_of_scaled(teacher), horn.SGD(0.5), "labels", 4, "float64", 1)
    data, batches = samples(setup.network), [np.array([0, 3, 4, 9]), np.array([1, 2, 5])]
    placement = place(setup.network, ["receiver"] * 5, ["all", *["neurons"] * 4])
    group = good(of_group("kernels", setup, data, batches, placement, 2))
    compare_tasks(group, of_one("reference", setup, data, batches), teacher)


@pytest.mark.parametrize("n_tasks", [2, 3])
@pytest.mark.parametrize("where", LINK_SPLITS)
@pytest.mark.parametrize("neuron", [Apart, Gates, Remembers])
def test_tasks_do_what_one_does(neuron, where, n_tasks):
    net = net_of(neuron, {"h": horn.Sparse(fan_in=2)})
    splits = ["receiver", where, "receiver", "sender", "receiver"]
    placement = place(net, splits, ["all", "neurons", "neurons", "rows"])
    setup = Setup(net, horn.SGD(0.1, momentum=0.5), "labels", 4, "float64", 1)
    batches = [np.array([0, 3, 4, 9]), np.array([1, 2, 5])]
    group = good(of_group("kernels", setup, samples(net), batches, placement, n_tasks))
    compare_tasks(group, of_one("kernels", setup, samples(net), batches), where)


def test_connections_from_one_layer_are_each_their_own():
    net = net_of(Apart, {"h": horn.Sparse(fan_in=3), "again": horn.Sparse(fan_in=3)})
    drawn = net.initial_parameters()
    assert [name for name in drawn if name.startswith("here")] == [
        "here.weight.x", "here.weight.h", "here.weight.again", "here.bias"
    ]  # fmt: skip
    _, h, again = net.layers[2].links
    assert (drawn[h.weight] != drawn[again.weight]).all()
    assert (h.edges.indices != again.edges.indices).any()
    gates = net_of(Gates).initial_parameters()
    arrays = [gates[f"here.weight.{name}"] for name in ("h.gate", "h.value", "again.gate")]
    assert all((a != b).all() for a, b in zip(arrays, arrays[1:], strict=False))
    engine = make("kernels", Setup(net_of(Remembers), horn.SGD(0.1), "labels", 4, "float64", 1))
    traces = {"here.trace.x", "here.trace.h", "here.trace.again", "here.bias.trace"}
    assert engine.states().keys() == traces


def test_names_change_no_number():
    """The first connection from a layer draws what the only one draws: as before there were
    names.
    """
    nets = []
    for named in (False, True):
        net = horn.Network(seed=3)
        x = net.input(5)
        h = net.layer(4)
        net.layer(3, inputs={"x": x, "h": h} if named else [x, h], name="here")
        nets.append(net.initial_parameters())
    plain, named = nets
    for a, b in (("layer0", "x"), ("layer1", "h")):
        np.testing.assert_array_equal(plain[f"here.weight.{a}"], named[f"here.weight.{b}"])


def test_a_local_rule_leaves_alone_what_it_pushes_nothing_to():
    net = net_of(Hebb)
    engine = make("kernels", Setup(net, horn.Direct(), "labels", 4, "float64", 1))
    before = engine.parameters()
    engine.bind(samples(net))
    engine.step(np.arange(4), iteration=0, first_sample=0)
    changed = {name for name, a in engine.parameters().items() if (a != before[name]).any()}
    assert {name for name in changed if name.startswith("here")} == {
        "here.weight.x", "here.weight.h"
    }  # fmt: skip


def digits_job() -> horn.Job:
    net = horn.Network(seed=2)
    x = net.input(64)
    h = net.layer(12, activation="tanh")
    net.layer(10, neuron=Apart, inputs={"x": x, "h": h, "twice": h}, name="here")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(net, horn.data.digits(), epochs=2, optimizer=horn.SGD(0.1, momentum=0.9))


@pytest.mark.cluster
@pytest.mark.net
@pytest.mark.timeout(120)
def test_files_and_processes_keep_the_names(tmp_path):
    model = horn.train(digits_job(), tasks=2).model
    alone = horn.train(digits_job()).model
    for name, array in alone.parameters.items():
        np.testing.assert_allclose(model.parameters[name], array, rtol=1e-3, atol=1e-4)
    model.save(tmp_path / "m.horn")
    again = horn.Model.load(tmp_path / "m.horn")
    test = horn.data.digits("test")
    np.testing.assert_array_equal(again.predict(test), model.predict(test))
    assert again.network.layers[2].inputs == ("x", "h", "twice")
    assert "Apart, identity (x: layer0, h: layer1, twice: layer1)" in again.summary()
    np.testing.assert_array_equal(again.cut("here").predict(test), model.activations(test, "here"))
    more = horn.train(horn.Job(again.network, horn.data.digits(), epochs=1, initial=again)).model
    assert more.evaluate(test)["acc"] > 0.8


def test_what_no_gradient_reaches_is_told_of_by_its_input():
    class Half(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.input * m.weight for m in messages.x))

    below, said = never_learn(net_of(Half))
    assert "below.weight, below.bias will never learn" in below
    assert "here.weight.h, here.weight.again, here.bias will never learn" in said


# what does not fit


class Asks(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages.z))


class AsksBack(Written):
    def backward(self, messages):
        self.backpropagate(sum(m.delta * m.weight for m in messages.x))


class WritesApart(Apart):
    def backward(self, messages):
        for m in messages:
            self.push(m.delta * self.output)
        self.backpropagate(sum(m.delta * m.weight for m in messages))


class PushesTwice(horn.Neuron):
    def forward(self, messages):
        for m in messages.x:
            self.push(m.input)
        for m in messages:
            self.push(m.input)
        self.feedforward(sum(m.input * m.weight for m in messages))


@pytest.mark.parametrize("backend", ["python", "kernels"])
@pytest.mark.parametrize(
    "neuron, below, sentence",
    [
        (Asks, None, r"test_inputs.py:\d+, in Asks.forward(.|\n)*messages has no 'z': its inputs "
         r"are messages.x, messages.h, messages.again; give the layer one, as net.layer\(..., "
         r'inputs=\{"z": a_layer\}\)'),
        (Apart, AsksBack, "messages.x: in backward messages come from the receivers and have no"),
        (WritesApart, None, "tells its inputs apart .messages.x., so it has no one delta"),
        (PushesTwice, None, "push"),
    ],
)  # fmt: skip
def test_a_class_that_asks_for_what_a_layer_does_not_give(neuron, below, sentence, backend):
    net = net_of(neuron, below=below or horn.neurons.Standard)
    with pytest.raises(CompileError, match=sentence):
        engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1))
        engine.bind(samples(net))
        engine.step(np.arange(4), iteration=0, first_sample=0)


def test_layers_whose_inputs_have_no_names_say_so():
    net = horn.Network()
    net.input(3)
    net.output(2, neuron=Asks, loss="squared_error")
    with pytest.raises(CompileError, match="messages has no 'z': its inputs have no names; give"):
        make("kernels", Setup(net, None, None, 1)).outputs(np.ones((1, 3)))


@pytest.mark.parametrize(
    "inputs, connect, sentence",
    [
        (lambda a: [a, a], None, r"below is named twice in inputs; give each connection a name, as "
         r'inputs=\{"x": ..., "y": ...\}'),
        (lambda a: {"a b": a}, None, "an input is called by a word that neurons read, as "
         "messages.x; got 'a b'"),
        (lambda a: {1: a}, None, "an input is called by a word"),
        (lambda a: {"_x": a}, None, "an input is called by a word"),
        (lambda a: {}, None, "inputs is empty; name at least one layer"),
        (lambda a: {"x": "below"}, None, "inputs must be layers of this network.*got 'below'"),
        (lambda a: {"x": a}, {"y": horn.OneToOne()}, "connect names 'y', which is not among its "
         "inputs; the keys are layers of inputs, or their names"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_are_said(inputs, connect, sentence):
    net = horn.Network()
    net.input(3)
    below = net.layer(3, name="below")
    with pytest.raises(ModelError, match=f"layer 2 'here': .*{sentence}"):
        net.layer(3, inputs=inputs(below), connect=connect, name="here")


@pytest.mark.parametrize("word", ["weight", "input"])
def test_an_input_called_as_a_field_of_messages_is_an_input_as_others(word):
    net = horn.Network(seed=1)
    below = net.layer(4, neuron=Written, activation="tanh", inputs=[net.input(5)])
    net.layer(4, neuron=Written, activation="tanh", inputs={word: below})
    net.output(3, loss="squared_error")
    compare(net, horn.SGD(0.1), 4)
