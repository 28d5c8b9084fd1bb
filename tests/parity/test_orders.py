"""What a neuron asks of its messages in their order of size (docs/notes/0147)."""

import statistics

import numpy as np
import pytest

import horn
from horn import explain, math
from horn.backends import Setup, make
from horn.compiler.lower import training_program
from horn.errors import CompileError, ModelError
from horn.partition.placement import LINK_SPLITS
from horn.scheduling.lifetimes import rooms
from tests.conftest import EXISTING
from tests.parity.differences import check_gradients
from tests.parity.test_compiled_equals_interpreted import COMPILED, compare, samples
from tests.parity.test_groups import of_groups
from tests.parity.test_tasks import compare as compare_tasks
from tests.parity.test_tasks import is_illegal, labelled, of_group, of_one, place, steps
from tests.transport.groups import good


class Loudest(horn.Neuron):
    """The key chooses, another field is sent."""

    def forward(self, messages):
        best = max(messages, key=lambda m: m.input * m.weight + 0.1 * m.index)
        least = min(messages, key=lambda m: abs(m.weight))
        self.feedforward(math.tanh(best.input * best.weight + 0.3 * best.input + least.weight))


class DrawnKey(horn.Neuron):
    def forward(self, messages):
        best = max(messages, key=lambda m: m.input * m.weight + self.normal(0.0, 0.5))
        self.feedforward(best.input * best.weight)


class Middle(horn.Neuron):
    def forward(self, messages):
        self.feedforward(math.tanh(math.median(m.input * m.weight for m in messages)))


class Second(horn.Neuron):
    def forward(self, messages):
        self.feedforward(math.tanh(math.largest(2, (m.input * m.weight for m in messages))))


class Ranked(horn.Neuron):
    def forward(self, messages):
        third = math.smallest(3, (abs(m.input - m.weight) for m in messages))
        top = math.top_sum(3, (m.input * m.weight for m in messages))
        some = math.median(m.input - m.weight for m in messages if m.index % 3 != 0)
        self.feedforward(math.tanh(0.5 * top - third + 0.3 * some))


class KeyByStep(horn.Neuron):
    """While the key is the same for all messages, the first is chosen."""

    def forward(self, messages):
        late = self.iteration > 0
        best = max(messages, key=lambda m: m.input * m.weight if late else 1.0)
        self.feedforward(best.input if late else 2.0 * best.weight)


class KeyByNeuron(horn.Neuron):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        least = min(messages, key=lambda m: m.input if z > 0.0 else self.index)
        self.feedforward(least.input if z > 0.0 else 2.0 * least.weight)


def network(neuron, connect=None, bias=True, inputs=2):
    net = horn.Network(seed=3)
    x = net.input(7)
    hidden = net.layer(5, activation="tanh")
    net.layer(4, neuron=neuron, inputs=[x, hidden][-inputs:], connect=connect, bias=bias)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize(
    "neuron, connect",
    [
        (Loudest, None),
        (DrawnKey, None),
        (Loudest, horn.Sparse(fan_in=4)),
        (Second, None),
        pytest.param(Second, horn.Sparse(fan_in=4), marks=pytest.mark.slow),
        pytest.param(Ranked, None, marks=pytest.mark.slow),
        pytest.param(Ranked, horn.Sparse(fan_in=4), marks=pytest.mark.slow),
    ],
)
def test_the_compiled_answer_is_the_interpreters(neuron, connect):
    compare(network(neuron, connect, bias=connect is None), horn.SGD(0.1), 5)


@pytest.mark.parametrize("neuron", [KeyByStep, KeyByNeuron])
@pytest.mark.parametrize("connect", [None, horn.Sparse(fan_in=4)])
def test_of_keys_that_are_all_the_same_on_a_path_the_first_is_chosen(neuron, connect):
    compare(network(neuron, connect, bias=connect is None), horn.SGD(0.1), 5)


class Largest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input + m.weight for m in messages))


def test_the_largest_of_two_sparse_inputs_tells_its_sender():
    compare(network(Largest, horn.Sparse(fan_in=4), bias=False), horn.SGD(0.1), 5)


@pytest.mark.parametrize("neuron", [Loudest, Middle, pytest.param(Ranked, marks=pytest.mark.slow)])
def test_derived_gradients_are_finite_differences(neuron):
    net = network(neuron, inputs=1)
    setup = Setup(net, horn.SGD(0.1), "labels", 5, "float64", 1)
    check_gradients("kernels", setup, samples(net), 3)


@pytest.mark.parametrize(
    "neuron, where",
    [
        (Loudest, "sender"),
        (Second, "sender"),
        *(
            pytest.param(c, where, marks=pytest.mark.slow)
            for c in (Loudest, Middle, Second)
            for where in LINK_SPLITS
        ),
    ],
)
def test_tasks_and_groups_find_the_same_or_say_that_they_cannot(neuron, where):
    net = network(neuron, inputs=1)
    setup = Setup(net, horn.SGD(0.1), "labels", 6, "float64", 1)
    data, batches = labelled(net), steps(6, 3)[:2]
    placement = place(net, (where,) * 9, ("neurons",) * 9)
    one = of_one("kernels", setup, data, batches)
    tasks = of_group("kernels", setup, data, batches, placement, 2)
    if is_illegal(tasks):  # a place, or who has the smallest, has no parts
        assert where == "sender" and neuron is not Second
        return
    compare_tasks(good(tasks), one, where)
    groups = of_groups("kernels", setup, data, batches, placement, 2, 1)
    compare_tasks(good(groups), one, where)


def test_the_middle_is_that_of_statistics():
    for size in (6, 7):
        net = horn.Network(seed=1)
        net.input(size)
        net.layer(3, neuron=Middle, bias=False)
        net.output(2, activation="softmax", loss="cross_entropy")
        rng = np.random.default_rng(0)
        x = np.round(rng.standard_normal((9, size)), 1)  # with equals among them
        for backend, dtype in zip(COMPILED, ("float64", "float32"), strict=True):
            engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 9, dtype, 1))
            engine.load({**engine.parameters(), "layer1.weight": np.ones((3, size), dtype)})
            engine.bind(horn.data.Dataset(x, np.zeros(9, np.int64)))
            sent = engine.probe(np.arange(9), iteration=0, first_sample=0)["layer1.output"]
            expected = [[np.tanh(statistics.median(row))] * 3 for row in x]
            np.testing.assert_allclose(sent, expected, rtol=1e-6 if dtype == "float32" else 1e-12)


class Extremes(horn.Neuron):
    """Each in turn, of the same messages."""

    def forward(self, messages):
        found = math.median(m.input for m in messages)
        if self.index == 1:
            found = math.smallest(2, (m.input for m in messages))
        elif self.index == 2:
            found = math.largest(2, (m.input for m in messages))
        elif self.index == 3:
            found = math.smallest(1, (m.input for m in messages))
        elif self.index == 4:
            found = math.largest(1, (m.input for m in messages))
        elif self.index == 5:
            found = math.top_sum(3, (m.input for m in messages))
        self.feedforward(found)


class Powers(horn.Neuron):
    def forward(self, messages):
        self.feedforward(math.median(1.0 / abs(m.input) for m in messages))


ROWS = np.array([
    [2.0, 5e13, 4.0, 0.5, 1.0, 3.0],
    [-2.0, -5e13, -4.0, 0.5, 1.0, -3.0],
    [1e-30, 2e-30, -1e-30, 3e-30, 1.0, -1e-35],
    [0.0, -0.0, 1e-38, -1e-38, 0.0, 1e30],
    [3.0, 3.0, 3.0, 3.0, 3.0, 3.0],
    [1e30, 1e20, 1e10, 1.0, 1e-10, 1e-20],
])  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", COMPILED)
def test_neither_far_nor_infinite_messages_hide_the_others(backend, dtype):
    """Half the distance to an infinite message is infinite, and to a far one as good as that."""
    net = horn.Network(seed=1)
    net.input(6)
    net.layer(6, neuron=Extremes, bias=False)
    net.layer(1, neuron=Powers, bias=False, inputs=net.layers[0])
    net.output(2, activation="softmax", loss="cross_entropy", inputs=[net.layers[1], net.layers[2]])
    engine = make(backend, Setup(net, horn.SGD(0.1), "labels", len(ROWS), dtype, 1))
    engine.bind(horn.data.Dataset(ROWS.astype(dtype), np.zeros(len(ROWS), np.int64)))
    found = engine.probe(np.arange(len(ROWS)), iteration=0, first_sample=0)
    for row, sent, powers in zip(
        ROWS.astype(dtype), found["layer1.output"], found["layer2.output"], strict=True
    ):
        a, b, *_, y, z = sorted(row)
        np.testing.assert_array_equal(sent[1:5], [b, y, a, z])
        np.testing.assert_allclose(sent[0], statistics.median(row), rtol=1e-7)
        np.testing.assert_allclose(sent[5], sum(sorted(row)[3:]), rtol=1e-6)
        with np.errstate(divide="ignore"):
            wanted = statistics.median(np.float64(1.0) / abs(row.astype(np.float64)))
        if wanted < np.finfo(dtype).max:
            np.testing.assert_allclose(powers, wanted, rtol=1e-6)
        else:
            assert np.isinf(powers)


class Minus(horn.Neuron):
    def forward(self, messages):
        self.feedforward(-sum(m.input * m.weight for m in messages))


class LostKey(horn.Neuron):
    def forward(self, messages):
        best = max(messages, key=lambda m: math.log(m.input))
        least = min(messages, key=lambda m: math.log(m.input))
        self.feedforward(10.0 * best.input + least.input)


@pytest.mark.parametrize("connect", [None, horn.Sparse(fan_in=3)])
@pytest.mark.parametrize("backend", EXISTING)
def test_the_first_message_whose_key_is_no_number_is_chosen(backend, connect):
    net = horn.Network(seed=0)
    x = net.input(3)
    minus = net.layer(connect=horn.OneToOne(), neuron=Minus, bias=False, init="ones")
    net.layer(2, neuron=LostKey, inputs=[x, minus], connect=connect, bias=False)
    net.output(1, loss="squared_error")
    heard = np.array([[2.0, 5.0, 3.0], [2.0, -5.0, 3.0], [-1.0, -2.0, 4.0], [0.0, 0.0, 0.0]])
    made = make(backend, Setup(net, horn.SGD(0.1), "targets", 4, "float64", 1))
    made.bind(horn.data.Dataset(heard, np.zeros((4, 1))))
    sent = made.probe(np.arange(4), iteration=0, first_sample=0)["layer2.output"]
    np.testing.assert_array_equal(sent, [[-22.0] * 2, [-55.0] * 2, [-11.0] * 2, [0.0] * 2])


class FewMessages(horn.Neuron):
    """Fewer messages than are asked for, and none at all."""

    def forward(self, messages):
        ninth = math.largest(9, (m.input * m.weight for m in messages))
        tenth = math.smallest(10, (m.input * m.weight for m in messages))
        none = math.median(m.input for m in messages if m.index < 0)
        found = math.top_sum(9, (m.input * m.weight for m in messages))
        found += 1.0 if ninth < -1e30 else 0.0
        found += 2.0 if tenth > 1e30 else 0.0
        found += 4.0 if math.isnan(none) else 0.0
        best = max(messages, key=lambda m: m.weight)
        self.feedforward(found + best.input)


def test_fewer_messages_than_are_asked_for():
    compare(network(FewMessages, horn.Sparse(fan_in=1), bias=False), horn.SGD(0.1), 5)


class BothOfTwo(horn.Neuron):
    """As many as there are, of which both are 0 where what is below says nothing."""

    def forward(self, messages):
        both = math.top_sum(2, (m.input * m.weight for m in messages))
        self.feedforward(math.tanh(both) if both > 0.05 else self.activation(both))


def test_of_all_messages_equal_ones_have_a_gradient_each():
    net = horn.Network(seed=78)
    net.input(4)
    net.layer(1, activation="relu")
    net.output(1, neuron=BothOfTwo, activation="tanh", loss="squared_error")
    compare(net, horn.SGD(0.05), 3)


class FirstOfEquals(horn.Neuron):
    """All messages are equal, that of the bias too; each number here tells of a tie."""

    def forward(self, messages):
        largest = max(messages, key=lambda m: math.tanh(0.5 * m.input))
        least = min(messages, key=lambda m: math.exp(0.5 * m.input))
        of_places = max(messages, key=lambda m: math.tanh(0.5 * (m.index > -1)))
        found = largest.index + 10.0 * least.index + 100.0 * of_places.index
        top = max(math.tanh(0.5 * m.input) for m in messages)
        equal = sum(1.0 for m in messages if math.tanh(0.5 * m.input) >= top)
        self.feedforward(found + 1000.0 * equal)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", EXISTING)
def test_of_equal_messages_the_first_is_found_before_that_of_the_bias(backend, dtype):
    net = horn.Network(seed=3)
    net.input(3)
    net.output(2, neuron=FirstOfEquals, loss="squared_error")
    engine = make(backend, Setup(net, horn.SGD(0.1), "targets", 2, dtype, 1))
    np.testing.assert_array_equal(engine.outputs(np.ones((2, 3), dtype)), np.full((2, 2), 4000.0))


class OfNumbers(horn.Neuron):
    """Of numbers that no input reaches."""

    def forward(self, messages):
        of_ones = math.median(2.0 for m in messages) + math.largest(2, (3.0 for m in messages))
        of_places = math.median(m.index for m in messages)
        found = of_ones + 10.0 * of_places + 100.0 * math.top_sum(2, (m.index for m in messages))
        self.feedforward(found)


@pytest.mark.parametrize("backend", EXISTING)
def test_the_middle_of_constants_and_of_places(backend):
    net = horn.Network(seed=3)
    net.input(4)
    net.output(1, neuron=OfNumbers, loss="squared_error")
    engine = make(backend, Setup(net, horn.SGD(0.1), "targets", 2, "float64", 1))
    np.testing.assert_array_equal(engine.outputs(np.ones((2, 4))), [[725.0], [725.0]])


def test_plain_python_has_them_too():
    values = [3.0, -1.0, 2.0, 2.0, 8.0]
    assert math.median(values) == statistics.median(values) == 2.0
    assert math.median(values[:4]) == statistics.median(values[:4])
    assert (math.largest(2, values), math.smallest(2, values)) == (3.0, 2.0)
    assert math.top_sum(2, values) == 11.0
    assert math.top_sum(9, values) == 14.0
    assert math.largest(9, values) == -math.smallest(9, values) == float("-inf")


def test_a_neuron_of_orders_runs_as_a_loop():
    assert "fused loop" in explain.runs_as(network(Second, inputs=1))["layer2"]


def says(forward, problem):
    cls = type("Orders", (horn.Neuron,), {"forward": forward})
    with pytest.raises(CompileError, match=problem) as raised:
        make("kernels", Setup(network(cls), horn.SGD(0.1), "labels", 3, "float64", 1)).bind(
            samples(network(cls))
        )
    assert raised.value.line is not None


def by_a_name(self, messages):
    self.feedforward(max(messages, key=abs).input)


def zeroth(self, messages):
    self.feedforward(math.largest(0, (m.input for m in messages)))


def learned(self, messages):
    self.feedforward(math.largest(self.index, (m.input for m in messages)))


def of_constants(self, messages):
    self.feedforward(math.median(t for t in (1.0, 2.0)))


def test_what_is_not_meant_is_refused_with_its_line():
    says(by_a_name, r"best = max\(messages, key=lambda m: abs\(m\)\)")
    says(zeroth, "largest counts from 1, got 0")
    says(learned, "whole numbers that are known before the run")
    says(of_constants, "median is of messages, in one loop")


class Median(horn.Neuron):
    def forward(self, messages):
        self.feedforward(horn.math.median(m.input for m in messages))


def medians_of_windows() -> horn.Job:
    net = horn.Network(seed=1)
    net.input((12, 12, 3))
    net.layer(connect=horn.Convolution(4, 3), activation="tanh")
    net.layer(connect=horn.Window(3), neuron=Median)
    net.output(2, activation="softmax", loss="cross_entropy")
    x = np.random.default_rng(0).normal(size=(9, 12, 12, 3))
    return horn.Job(net, (x, np.arange(9) % 2), epochs=2, batch_size=4)


@pytest.mark.parametrize("threads", [1, 2])
def test_what_halves_find_shares_memory_and_no_bit_changes(threads, monkeypatch):
    """Each step of the bisection had memory of its own: 200 numbers for a neuron and sample."""
    program = training_program(medians_of_windows().network, horn.SGD(), "label")
    shared = rooms(program, 4)
    assert len(shared) > 150 and not set(shared) & set(shared.values())
    model = horn.train(medians_of_windows(), threads=threads).model
    monkeypatch.setattr("horn.scheduling.lifetimes.MANY", 10_000)
    assert not rooms(program, 4)
    apart = horn.train(medians_of_windows(), threads=threads).model
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(array, apart.parameters[name])
    x = np.random.default_rng(1).normal(size=(5, 12, 12, 3))
    np.testing.assert_array_equal(model.predict(x), apart.predict(x))


@pytest.mark.parametrize("f", [math.largest, math.smallest, math.top_sum])
@pytest.mark.parametrize("k", [0, -1])
def test_a_place_below_the_first_is_refused_by_python_too(f, k):
    with pytest.raises(ValueError, match=f"{f.__name__} counts from 1, got {k}"):
        f(k, [1.0, 2.0, 3.0])


class Strongest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


def of_two_links(dtype, backend):
    """A layer that hears 3 of 5 inputs each, and 4 neurons; its engine, bound."""
    net = horn.Network(seed=3)
    x = net.input(5)
    below = net.layer(4, inputs=[x], activation="tanh")
    links = {"x": horn.Sparse(fan_in=3), "below": horn.Dense()}
    net.layer(6, inputs={"x": x, "below": below}, neuron=Strongest, connect=links, name="here")
    net.output(2, activation="softmax", loss="cross_entropy")
    engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 4, dtype, 1))
    engine.bind(samples(net))
    return engine


@pytest.mark.parametrize("backend", COMPILED)
def test_messages_are_numbered_among_those_of_their_neuron(backend):
    """Numbered among all of a link, those behind 2 ** 24 have no float32 of their own: the gradient
    of a maximum went to several messages, or to none."""
    engine = of_two_links("float32", backend)
    engine.step(np.arange(4), iteration=0, first_sample=0)
    runner = engine.training_runner
    np.testing.assert_array_equal(runner.value("layer2#edge0"), [0, 1, 2] * 6)
    np.testing.assert_array_equal(runner.value("layer1#index+3"), [3, 4, 5, 6])


@pytest.mark.parametrize("backend", COMPILED)
def test_more_messages_than_a_dtype_tells_apart_are_refused(backend, monkeypatch):
    monkeypatch.setattr("horn.backends._constants.MOST_PLACES", {"float32": 7})
    of_two_links("float32", backend)
    monkeypatch.setattr("horn.backends._constants.MOST_PLACES", {"float32": 6})
    of_two_links("float64", backend)
    with pytest.raises(
        ModelError, match="7 neurons or messages are numbered, of which float32 tel"
    ):
        of_two_links("float32", backend)
