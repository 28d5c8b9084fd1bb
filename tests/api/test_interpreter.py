"""The interpreter against the loss itself: what it derives is what finite differences see."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import horn
from horn.autodiff.tape import Traced
from horn.backends import Setup, make
from horn.interpreter import engine as engine_of_python
from horn.interpreter import layerwise, neuron_kinds, passes
from horn.interpreter.calls import Call
from tests.api.interpreted import (
    Conditional,
    Everything,
    Gain,
    GainPerMessage,
    Helpers,
    Maximum,
    Noisy,
    Product,
    Radial,
    Remembering,
    Reweighted,
    TanhInside,
    WeightedSum,
    network,
)
from tests.api.running import assert_gradients_are_true, dataset, engine, probe, step

NEURONS = [
    WeightedSum, Maximum, Product, Radial, TanhInside, Gain, GainPerMessage, Conditional,
    Helpers, Everything, Noisy, Remembering, Reweighted, horn.Dropout,
]  # fmt: skip


@pytest.mark.parametrize("neuron", NEURONS, ids=lambda cls: cls.__name__)
def test_derived_gradients_are_those_of_the_loss(neuron):
    assert_gradients_are_true(engine(network(neuron), dataset(2, 3, 3)), 2)


@pytest.mark.parametrize("neuron", [WeightedSum, Maximum, Radial], ids=lambda cls: cls.__name__)
def test_derived_gradients_pass_through_layers_that_are_no_weighted_sums(neuron):
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(2, activation="tanh")
    net.layer(3, neuron=neuron, activation="sigmoid")
    net.layer(2, neuron=neuron, activation="sigmoid")
    net.output(2, activation="softmax", loss="cross_entropy")
    assert_gradients_are_true(engine(net, dataset(2, 3, 2)), 2)


def normalised(output):
    return output / (output.sum() + output.max() - output.min() + 1.0)


def above_mean(output):
    return horn.math.where(output > output.mean(), output, 0.1 * output**2)


@pytest.mark.parametrize("function", [normalised, above_mean, horn.activations.softmax])
def test_derived_gradients_pass_through_an_interlayer(function):
    net = network(WeightedSum, interlayer=function)
    assert_gradients_are_true(engine(net, dataset(2, 3, 3)), 2)


def graph(neuron):
    net = horn.Network(seed=2)
    x = net.input(4)
    a = net.layer(3, activation="tanh", connect=horn.Sparse(fan_in=2))
    b = net.layer(2, neuron=neuron, activation="sigmoid", inputs=x, bias=False)
    c = net.layer(
        3, neuron=neuron, activation="tanh", inputs=[b, x, a], connect={x: horn.Sparse(fan_in=1)}
    )
    net.output(2, inputs=[a, c], activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize("neuron", [WeightedSum, Maximum, Gain], ids=lambda cls: cls.__name__)
def test_derived_gradients_hold_on_a_sparse_graph_with_several_inputs(neuron):
    assert_gradients_are_true(engine(graph(neuron), dataset(2, 4, 2)), 2)


def huber(output, target):
    e = abs(output - target)
    return 0.5 * e * e if e < 0.3 else 0.3 * (e - 0.15)


@pytest.mark.parametrize(
    "loss, activation",
    [("squared_error", "scaled_tanh"), ("binary_cross_entropy", "sigmoid"), (huber, "leaky_relu"),
     ("squared_error", "softplus")],
)  # fmt: skip
def test_derived_gradients_hold_for_every_loss(loss, activation):
    net = horn.Network(seed=3)
    net.input(3)
    net.layer(2, activation="tanh")
    net.output(2, activation=activation, loss=loss)
    assert_gradients_are_true(engine(net, dataset(3, 3, 2)), 3)


def test_an_autoencoder_compares_with_the_sample_before_its_mask():
    net = horn.Network(seed=3)
    net.input(3, keep=0.5)
    net.layer(2, activation="tanh")
    net.output(3, loss="squared_error")
    data = dataset(2, 3, 2)
    made = engine(net, data, target="input")

    found = probe(made, 2)

    expected = 0.5 * ((found["layer2.output"] - data.x[:2]) ** 2).sum(axis=1).mean()
    np.testing.assert_allclose(found["loss"], expected)
    assert_gradients_are_true(made, 2)


# --- written backward


class Written(WeightedSum):
    def backward(self, messages):
        gradient = 0.0
        for m in messages:
            gradient += m.delta * m.weight
            self.push(m.delta * self.output)
        self.backpropagate(gradient * self.activation.derivative(self.output))


class WrittenGain(horn.Neuron):
    """A Parameter and a State that carries z from forward to backward."""

    gain = horn.Parameter(1.5)
    z = horn.State(0.0)

    def forward(self, messages):
        self.z = sum(m.input * m.weight for m in messages)
        self.feedforward(self.gain * self.activation(self.z))

    def backward(self, messages):
        gradient = sum(m.gradient for m in messages)
        for m in messages:
            self.push(m.delta * self.output)
        self.push(gradient * self.activation(self.z), to="gain")
        self.backpropagate(gradient * self.gain * self.activation.derivative_at(self.z))


class DerivedGain(horn.Neuron):
    gain = horn.Parameter(1.5)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(self.gain * self.activation(z))


@pytest.mark.parametrize(
    "written, derived", [(Written, WeightedSum), (WrittenGain, DerivedGain)], ids=["plain", "gain"]
)
def test_a_correct_written_backward_equals_the_derived_one(written, derived):
    found = [probe(engine(graph(n), dataset(3, 4, 2)), 3) for n in (written, derived)]
    assert found[0].keys() == found[1].keys()
    for name, expected in found[1].items():
        np.testing.assert_allclose(found[0][name], expected, rtol=1e-12, atol=1e-15, err_msg=name)


def test_what_backward_pushes_is_what_is_learned_even_if_it_is_no_gradient():
    class Stubborn(WeightedSum):
        def backward(self, messages):
            for _ in messages:
                self.push(1.0)
            self.backpropagate(0.0)

    made = engine(network(Stubborn), dataset(2, 3, 3))
    found = probe(made, 2)
    assert np.all(found["layer2.weight.gradient"] == 1.0)
    assert np.all(found["layer1.weight.gradient"] == 0.0)  # its senders hear a delta of 0
    assert np.any(found["layer2.bias.gradient"] != 1.0)  # nobody pushes to a bias


def test_a_backward_that_does_not_push_leaves_the_weights_to_the_derived_gradient():
    class Silent(WeightedSum):
        def backward(self, messages):
            gradient = sum(m.gradient for m in messages)
            self.backpropagate(gradient * self.activation.derivative(self.output))

    a, b = (probe(engine(network(n), dataset(2, 3, 3)), 2) for n in (Silent, WeightedSum))
    for name in b:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-12, err_msg=name)


def test_backward_of_an_output_neuron_is_derived_where_hidden_ones_call_theirs():
    class Both(WeightedSum):
        def backward(self, messages):
            error = 0.0
            for m in messages:
                error += m.delta * m.weight
                self.push(m.delta * self.output)
            self.backpropagate(error * self.activation.derivative(self.output))

    net = horn.Network(seed=1)
    net.input(2)
    net.layer(3, neuron=Both, activation="tanh")
    net.output(2, neuron=Both, activation="softmax", loss="cross_entropy")
    assert_gradients_are_true(engine(net, dataset(2, 2, 2)), 2)


def test_feedback_alignment_goes_back_through_fixed_random_weights():
    class Alignment(WeightedSum):
        def backward(self, messages):
            gradient = 0.0
            for m in messages:
                gradient += m.delta * m.normal(0.0, 0.5)
                self.push(m.delta * self.output)
            self.backpropagate(gradient * self.activation.derivative(self.output))

    made = engine(network(Alignment), dataset(4, 3, 3), horn.SGD(0.5))
    backs = []
    for k in range(3):
        found = probe(made, 4, iteration=k, first_sample=4 * k)
        h, up = found["layer1.output"], found["layer2.delta"]
        signal = found["layer1.delta"] / (1 - h * h)
        backs.append(np.linalg.lstsq(up, signal, rcond=None)[0])
        # the deltas of a softmax sum to 0, so the matrix is known but for a constant per column
        backs[-1] -= backs[-1].mean(axis=0)
        step(made, 4, iteration=k, first_sample=4 * k)
    np.testing.assert_allclose(backs[1], backs[0], atol=1e-9)
    np.testing.assert_allclose(backs[2], backs[0], atol=1e-9)
    weights = made.parameters()["layer2.weight"]
    assert np.abs(backs[0] - (weights - weights.mean(axis=0))).max() > 0.1


def test_layers_that_threads_run_at_the_same_time_hear_their_own_answers():
    has_answer, is_heard, others = threading.Event(), threading.Event(), []

    def run(f, size):
        rows = [(Traced(float(k), varies=True),) for k in range(size)]
        return [x.value for x in layerwise.run(f, rows)[0]]

    def other(output):
        total = output.sum()
        has_answer.set()
        assert is_heard.wait(10.0)
        return total + output

    def f(output):
        if not others:
            others.append(pool.submit(run, other, 5))
            assert has_answer.wait(10.0)
        total = output.sum()
        is_heard.set()
        return total + output

    with ThreadPoolExecutor(1) as pool:
        assert run(f, 3) == [3.0, 4.0, 5.0]
        assert others[0].result() == [10.0, 11.0, 12.0, 13.0, 14.0]


class Walked(Call):
    """A call of nothing, with a comparison."""

    def __init__(self):
        pass

    def compared(self, outcome, operands):
        return outcome

    def run(self, parameters=()):
        self.compared(True, ())
        return self


def test_walks_of_methods_leave_breakpoint_as_it_was_in_whatever_order_they_end():
    before = sys.breakpointhook
    first, second = neuron_kinds.walk(Walked), neuron_kinds.walk(Walked)
    next(first), next(second)
    assert len(list(first)) == len(list(second)) == 1
    assert sys.breakpointhook is before


def test_a_sequence_is_read_once_and_its_steps_share_those_before(monkeypatch):
    read, read_sample = [], engine_of_python.read_sample
    monkeypatch.setattr(
        engine_of_python, "read_sample", lambda *args: read.append(args) or read_sample(*args)
    )
    net = horn.Network(seed=1)
    net.input(1, steps=30)
    hidden = net.layer(1)
    net.output(1, inputs={"now": hidden, "then": horn.Delayed(hidden, 2)}, loss="squared_error")
    data = horn.data.Dataset(np.ones((2, 30)), np.ones((2, 1)), shape=(30, 1))
    made = make("python", Setup(net, horn.SGD(0.01), "labels", 2, "float64", 1))
    made.bind(data)
    made.step(np.arange(2), iteration=0, first_sample=0)
    assert len(read) == 2
    last, gradients = made.observe(np.arange(2), 0, iteration=1, first_sample=2)
    assert len(last.past) == len(gradients.later) == 29
    assert last.past[0].past[0] is last.past[1] is last.past[:2][1]
    assert [*last.past[0].past] == [*last.past][1:]
    assert isinstance(last.past, passes.Chain) and isinstance(gradients.later, passes.Chain)


def test_a_batch_asks_for_the_length_of_each_sequence_a_fixed_number_of_times(monkeypatch):
    """Each sample took the mean of the whole batch: a question for every pair of samples."""
    asked = []
    n_steps = engine_of_python.Engine._n_steps

    def counted(self, data, row):
        asked.append(row)
        return n_steps(self, data, row)

    monkeypatch.setattr(engine_of_python.Engine, "_n_steps", counted)
    step(engine(network(WeightedSum), dataset(6, 3, 3)), 6)
    assert len(asked) == 12
