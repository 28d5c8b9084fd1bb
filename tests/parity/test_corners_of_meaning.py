"""The corners where honest engines differ, as note 0001 decides them, on the compiled backends."""

import numpy as np
import pytest

import horn
from horn import math
from horn.backends import Engine
from horn.compiler.lower import training_program
from tests.api.running import dataset, engine, probe, step
from tests.conftest import EXISTING
from tests.parity.test_compiled_equals_interpreted import compare
from tests.support.neurons import Half, WrittenHalf

COMPILED = [name for name in EXISTING if name != "python"]


class Sum(horn.Neuron):
    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input * m.weight
        self.feedforward(self.activation(total))


class Largest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


class Counting(horn.Neuron):
    def forward(self, messages):
        self.feedforward(0.1 * len(messages))


class Aligned(Sum):
    def backward(self, messages):
        gradient = 0.0
        for m in messages:
            gradient += m.delta * m.normal(0.0, 0.5)
            self.push(m.delta * self.output)
        self.backpropagate(gradient * self.activation.derivative(self.output))


class Reading(Sum):
    """Writes backward and never pushes."""

    def backward(self, messages):
        gradient = sum(m.gradient for m in messages)
        self.backpropagate(gradient * self.activation.derivative(self.output))


class Momentum(Sum):
    def backward(self, messages):
        gradient = 0.0
        for m in messages:
            gradient += m.gradient
            self.push(-0.1 * m.delta * self.output + 0.9 * m.previous_update)
        self.backpropagate(gradient * self.activation.derivative(self.output))


class Oja(horn.Neuron):
    gain = horn.Parameter(1.0)

    def forward(self, messages):
        self.feedforward(self.gain * sum(m.input * m.weight for m in messages))
        for m in messages:
            self.push(self.output * (m.input - self.output * m.weight))


class Noisy(horn.Neuron):
    spread = horn.Parameter(0.4)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages) + self.normal(0.0, self.spread)
        shared = self.uniform(-1, 1, per="batch") + self.uniform(per="run")
        self.feedforward(self.bernoulli(0.7) * total + shared)


class Remembering(horn.Neuron):
    trace = horn.State(0.5)

    def forward(self, messages):
        self.trace = 0.5 * self.trace + sum(m.input * m.weight for m in messages)
        self.feedforward(self.activation(self.trace))


class NotLost(horn.Neuron):
    """How many of these are no number, of one or of messages that are none."""

    def forward(self, messages):
        n = horn.math.log(-1.0 - sum(m.input * m.weight for m in messages) ** 2)
        found = self.one(max(0.0, n)) + self.one(max(n, 0.0)) + self.one(max(0.0, n, 1.0))
        found += self.one(min(0.0, n)) + self.one(min(max(n, -1.0), 1.0))
        found += self.one(horn.math.maximum(0.0, n)) + self.one(horn.math.minimum(0.0, n))
        found += self.one(self.max(n, over="layer"))
        found += self.one(max(horn.math.log(m.input) for m in messages))
        found += self.one(horn.math.median(horn.math.log(m.input) for m in messages))
        found += self.one(horn.math.largest(2, (horn.math.log(m.input) for m in messages)))
        found += self.one(horn.math.smallest(1, (horn.math.log(m.input) for m in messages)))
        found += self.one(horn.math.top_sum(2, (horn.math.log(m.input) for m in messages)))
        self.feedforward(found)

    def one(self, x):
        return 1.0 if horn.math.isnan(x) else 0.0


class HalfPower(horn.Neuron):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward((z * z * 0.0 - 1e308 * 10.0) ** 0.5)


def chain(*neurons, **settings):
    net = horn.Network(seed=4)
    net.input(3, **settings)
    for neuron in neurons:
        net.layer(4, neuron=neuron, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def dead_end():
    net = horn.Network(seed=2)
    x = net.input(3)
    h = net.layer(4, neuron=Aligned, inputs=x, activation="tanh")
    net.layer(2, inputs=h, activation="tanh")
    net.output(3, inputs=[h, x], activation="softmax", loss="cross_entropy")
    return net


def without_loss():
    net = horn.Network(seed=2)
    net.input(3)
    net.layer(4, neuron=Aligned, activation="tanh")
    net.layer(3, neuron=Reading, activation="tanh")
    net.layer(2, neuron=Oja)
    return net


def one_output():
    net = horn.Network(seed=2)
    net.input(3)
    net.output(1, activation="sigmoid", loss="binary_cross_entropy")
    return net


def empty_rows():
    net = horn.Network(seed=2)
    net.input(3)
    graph = horn.Sparse(csr=([0, 0, 1, 3, 3], [1, 0, 2]))
    net.layer(4, activation="tanh", connect=graph, bias=False)
    net.output(3, connect=horn.Sparse(fan_in=0), activation="softmax", loss="cross_entropy")
    return net


def autoencoder():
    net = horn.Network(seed=2)
    net.input(3, keep=0.5)
    net.layer(2, neuron=Half, activation="tanh")
    net.output(3, loss="squared_error", activation="sigmoid")
    return net


ADAM = horn.Adam(0.1, weight_decay=0.01, clip_norm=0.5)
SGD = horn.SGD(0.1, momentum=0.9, weight_decay=0.1)
CASES = {
    "sitting out": (chain(Half), ADAM),
    "sitting out, two layers": (chain(Half, Half), SGD),
    "sitting out with a backward": (chain(WrittenHalf), ADAM),
    "sitting out with backwards": (chain(WrittenHalf, WrittenHalf), SGD),
    "sitting out below a maximum": (chain(Half, Largest), ADAM),
    "sitting out above a backward": (chain(Aligned, Half), ADAM),
    "features sit out": (chain(Largest, keep=0.6, per="batch"), ADAM),
    "direct": (chain(Momentum, Momentum), horn.Direct(0.1, clip_value=0.05)),
    "synapse draws": (chain(Aligned, Aligned), ADAM),
    "backward without push": (chain(Reading), ADAM),
    "backward below a maximum": (chain(Reading, Largest), ADAM),
    "local rule": (chain(Sum, Oja, Sum), ADAM),
    "counting": (chain(Counting, Sum), ADAM),
    "draws": (chain(Noisy, Noisy, keep=0.6), ADAM),
    "state": (chain(Remembering, keep=0.6, per="batch"), SGD),
    "dead end": (dead_end(), SGD),
    "one output": (one_output(), ADAM),
    "empty rows": (empty_rows(), ADAM),
    "no loss": (without_loss(), SGD, None),
    "autoencoder": (autoencoder(), ADAM, "input"),
}


def assert_same(got: dict, expected: dict) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


def kept(made: Engine) -> dict:
    return made.parameters() | made.states() | made.slots()


@pytest.mark.parametrize("backend", COMPILED)
@pytest.mark.parametrize("case", CASES)
def test_compiled_equals_interpreted_in_the_corners(case, backend):
    net, optimizer, *target = CASES[case]
    target = target[0] if target else "labels"
    data = dataset(8, 3, 2 if net.last.size == 1 else 3)
    judge, made = (
        engine(net, data, optimizer, backend=b, target=target) for b in ("python", backend)
    )
    for k in range(3):
        expected, got = (probe(e, 4, iteration=k, first_sample=4 * k) for e in (judge, made))
        if target is None:
            expected.pop("loss"), got.pop("loss", None)
        assert_same(got, expected)
        losses = [step(e, 4, iteration=k, first_sample=4 * k) for e in (judge, made)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-9)
        assert_same(kept(made), kept(judge))
    np.testing.assert_allclose(made.outputs(data.x), judge.outputs(data.x), rtol=1e-9, atol=1e-12)
    assert made.losses(data) == pytest.approx(judge.losses(data), rel=1e-9)


def lost_of_all(output):
    n = horn.math.log(output)
    return horn.math.isnan(max(n)) * 1.0 + horn.math.isnan(n.min()) * 1.0 + 0.0 * output


@pytest.mark.parametrize("backend", EXISTING)
def test_a_layers_extreme_is_no_number_where_one_is_none(backend):
    net = horn.Network(seed=1)
    net.input(2)
    net.layer(connect=horn.OneToOne(), interlayer=lost_of_all, bias=False, init="ones")
    net.output(1, loss="squared_error")
    signs = horn.data.Dataset(np.array([[1.0, -1.0], [-1.0, 2.0], [1.0, 2.0]]), np.zeros((3, 1)))
    outputs = probe(engine(net, signs, backend=backend, target="targets"), 3)["layer1.output"]
    np.testing.assert_array_equal(outputs, [[2.0, 2.0], [2.0, 2.0], [0.0, 0.0]])


@pytest.mark.parametrize("neuron, found", [(NotLost, 13.0), (HalfPower, np.inf)])
@pytest.mark.parametrize("backend", EXISTING)
def test_what_is_no_number_stays_none_and_a_root_is_a_power(backend, neuron, found):
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(2, neuron=neuron)
    net.output(1, loss="squared_error")
    signs = horn.data.Dataset(np.array([[1.0, -1.0, 2.0], [-1.0, 2.0, 3.0]]), np.zeros((2, 1)))
    outputs = probe(engine(net, signs, backend=backend, target="targets"), 2)["layer1.output"]
    np.testing.assert_array_equal(outputs, np.full((2, 2), found))


class Phase(horn.Neuron):
    """An angle; of nothing, 0."""

    def forward(self, messages):
        real = sum(m.input * m.weight for m in messages)
        self.feedforward(horn.math.atan2(2.0 * real, real))


@pytest.mark.parametrize("backend", EXISTING)
def test_the_angle_of_nothing_passes_no_gradient(backend):
    """It was NaN, and all weights with it."""
    net = horn.Network(seed=1)
    net.input(2)
    net.layer(2, neuron=Phase, bias=False, name="phase")
    net.output(1, loss="squared_error")
    job = horn.Job(net, (np.zeros((3, 2)), np.ones((3, 1))), epochs=1, dtype="float64")
    found = horn.train(job, progress=False, backend=backend).model.parameters
    began = net.initial_parameters("float64")
    np.testing.assert_array_equal(found["phase.weight"], began["phase.weight"])
    assert np.isfinite(found["layer2.bias"]).all() and found["layer2.bias"] != 0.0


class LargestOfAnswers(horn.Neuron):
    """The extremes of what is true or false; nothing here is true."""

    def forward(self, messages):
        found = max(m.input > 9.0 for m in messages)
        best = -9.0
        for m in messages:
            answer = m.input > 9.0
            if answer > best:
                best = answer
        some = max((m.input > 9.0 for m in messages if m.index > 0), default=5.0)
        self.feedforward(found + 10.0 * best + 100.0 * some + self.max(found > 0.5, over="layer"))


@pytest.mark.parametrize("connect", [None, horn.Sparse(fan_in=2)])
@pytest.mark.parametrize("backend", EXISTING)
def test_the_largest_of_answers_that_are_all_false_is_0(backend, connect):
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(2, neuron=LargestOfAnswers, connect=connect, bias=False)
    net.output(1, loss="squared_error")
    data = horn.data.Dataset(np.ones((2, 3)), np.zeros((2, 1)))
    outputs = probe(engine(net, data, backend=backend, target="targets"), 2)["layer1.output"]
    np.testing.assert_array_equal(outputs, np.zeros((2, 2)))


class Overflowing(horn.Neuron):
    kept = horn.State(0.0)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.kept = 1e300 * z
        self.feedforward(z % (z * z * 0.0 + 1e308 * 10.0))


@pytest.mark.parametrize("backend", EXISTING)
def test_a_sum_of_gradients_that_are_infinite_warns_of_nothing(backend):
    """Warnings are errors in these tests."""
    net = horn.Network(seed=3)
    net.input(3)
    net.layer(2, neuron=Overflowing)
    net.output(1, loss="squared_error")
    x = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0], [2.0, 2.0, 2.0]])
    data = horn.data.Dataset(x, np.ones((3, 1)))
    for dtype in ("float32", "float64"):
        made = engine(net, data, ADAM, backend=backend, target="targets", dtype=dtype)
        assert not np.isfinite(step(made, 3))


class Flags(horn.Neuron):
    """What one message decides, as Python programs say it, on both sides of the condition."""

    def forward(self, messages):
        seen, quiet, level, rest = False, True, 0.5, self.index + 2.0
        for m in messages:
            if m.input > 1.0:
                seen = True
                level = 1.0
            elif m.weight > 0.0:
                quiet = quiet and m.input < 0.6
            if m.input < -1.0:
                if m.weight > 0.0:
                    quiet = False
            else:
                seen = seen or m.weight > 0.9
            rest = 0.0 if m.input > 2.0 else rest
        self.feedforward(seen + 10.0 * quiet + 100.0 * level + 1000.0 * rest)


class GuardedExtremes(horn.Neuron):
    def forward(self, messages):
        best, least, nested = -9.0, 9.0, -9.0
        for m in messages:
            v = m.input * m.weight
            if m.input > 0.0 and v > best and m.weight > -0.5:
                best = v
            least = least if m.input > 0.0 or v >= least else v
            if m.input > 0.0:
                if nested < v:
                    nested = v
        self.feedforward(best + 10.0 * least + 100.0 * nested)


@pytest.mark.parametrize("neuron", [Flags, GuardedExtremes])
@pytest.mark.parametrize("backend", COMPILED)
def test_what_an_if_keeps_of_the_messages_is_the_interpreters(backend, neuron):
    net = horn.Network(seed=3)
    net.input(3)
    net.layer(4, neuron=neuron)
    net.output(1, loss="squared_error")
    x = np.random.default_rng(2).normal(0.0, 1.5, (12, 3))
    data = horn.data.Dataset(x, np.ones((12, 1)))
    expected, got = (
        probe(engine(net, data, backend=b, target="targets"), 12) for b in ("python", backend)
    )
    assert len(np.unique(expected["layer1.output"])) > 10
    assert_same(got, expected)


class NoiseBefore(horn.Neuron):
    """What is drawn for the sample chooses a number of the other path."""

    def forward(self, messages):
        noise = 0.1 if self.uniform() > 0.5 else 0.0
        if self.bernoulli(0.5, per="batch") == 0:
            self.feedforward(0.0)
        else:
            self.feedforward(sum(m.input * m.weight for m in messages) + noise)


class BatchBefore(horn.Neuron):
    """What is drawn for the batch chooses a number of the other path."""

    below = 0.0

    def forward(self, messages):
        factor = 1.0 if self.bernoulli(0.5, per="batch") > 0 else 2.0
        if self.uniform(per="run") >= self.below:
            self.feedforward(0.0)
        else:
            self.feedforward(factor * sum(m.input * m.weight for m in messages))


class SampleAround(horn.Neuron):
    """A draw for the sample is around the 0, and chooses it too."""

    share = 0.0

    def forward(self, messages):
        if self.uniform() < self.share:
            self.feedforward(0.0)
        elif self.bernoulli(0.5, per="batch") == 0:
            self.feedforward(0.0)
        else:
            self.feedforward(sum(m.input * m.weight for m in messages))


class Both(horn.Neuron):
    """One draw for the batch or the other."""

    def forward(self, messages):
        if self.bernoulli(0.7, per="batch") == 0 or self.uniform(per="batch") > 0.6:
            y = 0.0
        else:
            y = sum(m.input * m.weight for m in messages)
        self.feedforward(y)


class OfConstants(horn.Neuron):
    """The 0 is made of constants, through a method, a function and the activation."""

    scale = 2.0

    def forward(self, messages):
        y = self.scale * math.tanh(self.total(messages))
        if y < 0.0:
            y = 0.1 * y
        self.feedforward(self.activation(max(y, -5.0) / (1.0 + abs(y))))

    def total(self, messages):
        if self.bernoulli(0.5, per="batch") == 0:
            return 0.0
        return sum(m.input * m.weight for m in messages)


class Compared(horn.Neuron):
    """A comparison is an if that chooses 1 or 0."""

    def forward(self, messages):
        is_low, is_high = self.uniform(per="batch") < 0.5, self.uniform(per="batch") > 0.5
        self.feedforward(max(0.0, is_low - 0.5) * (not is_high))


class OfTheNeuron(horn.Neuron):
    """The 0 is that of some neurons, or of some batches."""

    def forward(self, messages):
        if self.bernoulli(0.5, per="batch") == 0:
            self.feedforward(self.index % 2 + self.iteration % 2)
        else:
            self.feedforward(sum(m.input * m.weight for m in messages))


class DrawnMask(horn.Neuron):
    """A 0 that was drawn is no constant: it takes part."""

    def forward(self, messages):
        mask = self.bernoulli(0.5, per="batch")
        if mask == 0:
            self.feedforward(2.0 * mask)
        else:
            self.feedforward(sum(m.input * m.weight for m in messages))


class TimesAParameter(horn.Neuron):
    """0 times a number that is learned is no constant."""

    gain = horn.Parameter(0.5)

    def forward(self, messages):
        y = 0.0
        if self.bernoulli(0.5, per="batch") == 1:
            y = sum(m.input * m.weight for m in messages)
        self.feedforward(self.gain * y)


class EitherDraw(horn.Neuron):
    """The 0 of ``or`` and ``and`` is that of a draw."""

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages) if self.bernoulli(0.5) == 1 else 0.0
        a, b = self.bernoulli(0.4, per="batch"), self.bernoulli(0.4, per="batch")
        if a or b:
            self.feedforward(total)
        else:
            self.feedforward(a or b)


class EitherDrawAlone(horn.Neuron):
    def forward(self, messages):
        a, b = self.bernoulli(0.4, per="batch"), self.bernoulli(0.4, per="batch")
        self.feedforward(a or b)


class BothDraws(horn.Neuron):
    def forward(self, messages):
        a, b = self.bernoulli(0.7, per="batch"), self.bernoulli(0.7, per="batch")
        self.feedforward(a and b)


class DrawOrComparison(horn.Neuron):
    """The 0 is that of the comparison, a constant, where it comes last."""

    def forward(self, messages):
        a, b = self.bernoulli(0.4, per="batch"), self.uniform(per="batch")
        self.feedforward(a or b > 0.6)


class ComparisonOrDraw(horn.Neuron):
    def forward(self, messages):
        a, b = self.bernoulli(0.4, per="batch"), self.uniform(per="batch")
        self.feedforward(b > 0.6 or a)


class DrawAndComparison(horn.Neuron):
    """The 0 is that of the draw, or of the comparison."""

    def forward(self, messages):
        a, b = self.bernoulli(0.7, per="batch"), self.uniform(per="batch")
        self.feedforward(a and b > 0.4)


class TimesAChoice(horn.Neuron):
    """A draw for the sample chooses a factor, and not whether the product is 0."""

    def forward(self, messages):
        k = 2.0 if self.uniform() > 0.5 else 3.0
        y = 0.0
        if self.bernoulli(0.5, per="batch") == 1:
            y = sum(m.input * m.weight for m in messages)
        self.feedforward(k * y)


class TimesComparison(horn.Neuron):
    def forward(self, messages):
        y = 0.0
        if self.bernoulli(0.5, per="batch") == 1:
            y = sum(m.input * m.weight for m in messages)
        self.feedforward((1.0 + (self.uniform() > 0.5)) * y)


class TimesAChoiceOf0(horn.Neuron):
    """0 times a sum of messages is no constant: again the draw for the batch chooses alone."""

    def forward(self, messages):
        k = 1.0 if self.uniform() > 0.5 else 0.0
        y = 0.0
        if self.bernoulli(0.5, per="batch") == 1:
            y = sum(m.input * m.weight for m in messages)
        self.feedforward(k * y)


TAKING_PART = [
    *(DrawnMask, TimesAParameter, EitherDraw, EitherDrawAlone, BothDraws),
    ComparisonOrDraw,
]
LEAVING = [
    *(OfConstants, Compared, OfTheNeuron, TimesAChoiceOf0),
    *(DrawOrComparison, DrawAndComparison, TimesAChoice, TimesComparison),
]
SITTING_OUT = [
    *(NoiseBefore, BatchBefore, SampleAround, Both),
    *LEAVING,
    *TAKING_PART,
]


@pytest.mark.parametrize("neuron", [*LEAVING, *TAKING_PART])
def test_who_feeds_forward_a_0_made_of_constants_sits_out_and_a_drawn_0_does_not(neuron):
    net = horn.Network(seed=4)
    net.input(4)
    net.layer(6, neuron=neuron)
    net.output(2, loss="squared_error")
    statements = training_program(net, horn.SGD(0.1), "values").statements
    is_mask = ["layer1#live" in repr(each) for each in statements]
    assert any(is_mask) == (neuron in LEAVING)


@pytest.mark.parametrize("neuron", SITTING_OUT)
@pytest.mark.parametrize("backend", COMPILED)
def test_a_neuron_sits_out_by_what_chooses_its_0_alone(backend, neuron):
    """Momentum waits and weights do not decay where a neuron sits out, and go on elsewhere."""
    net = horn.Network(seed=4)
    net.input(4)
    net.layer(6, neuron=neuron)
    net.output(2, loss="squared_error")
    compare(net, horn.SGD(0.1, momentum=0.9, weight_decay=0.5), 3, backend, steps=4)
