"""The interpreter against the loss itself: what it derives is what finite differences see."""

import math
from math import tanh

import numpy as np
import pytest

import horn
from horn import random
from tests.api.running import assert_gradients_are_true, dataset, engine, probe, step


class WeightedSum(horn.Neuron):
    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input * m.weight
        self.feedforward(self.activation(total))


class Maximum(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


class Product(horn.Neuron):
    def forward(self, messages):
        product = 1.0
        for m in messages:
            product *= 1.0 + 0.3 * m.input * m.weight
        self.feedforward(product)


class Radial(horn.Neuron):
    def forward(self, messages):
        self.feedforward(math.exp(-sum((m.input - m.weight) ** 2 for m in messages)))


class TanhInside(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(tanh(m.input * m.weight) for m in messages))


class Gain(horn.Neuron):
    gain = horn.Parameter(1.5)
    shift = horn.Parameter(horn.Normal(0.2, 0.1))

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(self.gain * self.activation(total + self.shift))


class GainPerMessage(horn.Neuron):
    """A Parameter inside the sum: it is there once for every message."""

    gain = horn.Parameter(0.8)

    def forward(self, messages):
        self.feedforward(sum(self.gain**2 + tanh(m.input) * m.weight for m in messages))


class Conditional(horn.Neuron):
    slope = horn.Parameter(0.3)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        if total > 0:
            self.feedforward(total)
        else:
            self.feedforward(self.slope * total)


def squash(z):
    return math.log1p(abs(z)) / (1.0 + math.exp(-z))


class Base(horn.Neuron):
    def combine(self, messages):
        return sum(squash(m.input) * m.weight for m in messages)


class Helpers(Base):
    """Helper functions and methods, ``super()``, and mathematics imported on the spot."""

    def combine(self, messages):
        from math import sqrt

        return sqrt(1.0 + super().combine(messages) ** 2)

    def forward(self, messages):
        self.feedforward(self.combine(messages))


class Everything(horn.Neuron):
    power = horn.Parameter(1.7)

    def forward(self, messages):
        s = sum(m.input * m.weight for m in messages)
        a = horn.math.maximum(s, 0.1) + horn.math.minimum(s, 2.0) - horn.math.abs_(s)
        b = horn.math.softplus(s) * horn.math.sigmoid(-s) + horn.math.expm1(0.1 * s)
        c = (2.0 + math.sin(s)) ** self.power + 2.0 ** math.cos(s)
        d = horn.math.where(s > 0.2, horn.math.sqrt(horn.math.where(s > 0.2, s, 1.0)), s * s)
        self.feedforward(0.1 * (a + b + c + d + math.floor(s) + horn.math.sign(s)))


class Noisy(horn.Neuron):
    spread = horn.Parameter(0.4)

    def forward(self, messages):
        keep = self.bernoulli(0.7)
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(keep * (total + self.normal(0.0, self.spread)) + self.uniform(-1, 1))


class Remembering(horn.Neuron):
    trace = horn.State(0.5)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.trace = 0.5 * self.trace + total
        self.feedforward(self.activation(self.trace))


class Reweighted(horn.Neuron):
    """Each synapse has a fixed random factor of its own."""

    def forward(self, messages):
        self.feedforward(sum(m.normal() * m.input * m.weight + m.uniform() for m in messages))


NEURONS = [
    WeightedSum, Maximum, Product, Radial, TanhInside, Gain, GainPerMessage, Conditional,
    Helpers, Everything, Noisy, Remembering, Reweighted, horn.Dropout,
]  # fmt: skip


def network(neuron, size=3, **settings):
    net = horn.Network(seed=4)
    net.input(3)
    net.layer(size, neuron=neuron, activation="tanh", **settings)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


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


# --- kinds of neurons


class Dropping(horn.Neuron):
    """Reads its messages on one path alone; still a weighted sum."""

    def forward(self, messages):
        if self.bernoulli(0.5) == 0:
            self.feedforward(0.0)
        else:
            self.feedforward(sum(m.input * m.weight for m in messages))


class Mean(horn.Neuron):
    def forward(self, messages):
        start = 0.5
        for m in messages:
            start = m.weight * m.input + start
        self.feedforward(start / len(messages) if start > 0 else start**2)


class Gated(horn.Neuron):
    """The sum decides nothing here, one message does."""

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total if max(m.input for m in messages) > 0 else 0.0)


class Halved(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(0.5 * m.input * m.weight for m in messages))


class Rarely(horn.Neuron):
    """A maximum on a path that no ordinary number takes."""

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        if total > 1e6:
            total = max(m.input for m in messages)
        self.feedforward(total)


@pytest.mark.parametrize(
    "neuron, expected",
    [(WeightedSum, True), (horn.Dropout, True), (Dropping, True), (Mean, True), (Conditional, True),
     (Gain, True), (Remembering, True), (Noisy, True), (Maximum, False), (Product, False),
     (Radial, False), (TanhInside, False), (Gated, False), (Halved, False), (Rarely, False),
     (Reweighted, False)],
    ids=lambda x: getattr(x, "__name__", str(x)),
)  # fmt: skip
def test_only_a_weighted_sum_has_a_delta(neuron, expected):
    found = probe(engine(network(neuron), dataset(2, 3, 3)), 2)
    assert ("layer1.delta" in found) == expected
    assert "layer2.delta" in found


# --- draws and inference


def test_dropout_silences_in_training_and_scales_at_inference():
    net = horn.Network(seed=5)
    net.input(3)
    net.layer(40, neuron=horn.Dropout, activation="tanh", name="hidden")
    net.output(2, activation="softmax", loss="cross_entropy")
    made = engine(net, dataset(8, 3, 2))

    kept = probe(made, 8)["hidden.output"] != 0
    again = probe(made, 8)["hidden.output"] != 0
    later = probe(made, 8, iteration=1)["hidden.output"] != 0

    assert 0.35 < kept.mean() < 0.65
    assert np.array_equal(kept, again) and not np.array_equal(kept, later)
    assert not np.array_equal(kept[0], kept[1])  # each sample has its own
    x, w = dataset(8, 3, 2).x, made.parameters()
    h = 0.5 * np.tanh(x @ w["hidden.weight"].T + w["hidden.bias"])
    z = h @ w["layer2.weight"].T + w["layer2.bias"]
    y = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(made.outputs(x), y, rtol=1e-12)


def test_a_draw_follows_from_seed_layer_neuron_sample_iteration_and_place():
    class Drawing(horn.Neuron):
        def forward(self, messages):
            self.feedforward(self.inner() + 0 * sum(m.input * m.weight for m in messages))

        def inner(self):
            return self.uniform(2.0, 4.0)

    made = engine(network(Drawing), dataset(2, 3, 3))
    got = probe(made, 2, iteration=7, first_sample=100)["layer1.output"]
    # forward calls inner in its second line, 29 columns in; inner draws in its second line
    place = random.site([("forward", 1, 29), ("inner", 1, 19)])
    u = random.uniform(random.key(4, 1), place, range(3), [100, 101], 7)
    np.testing.assert_array_equal(got, 2.0 + 2.0 * u)


def test_a_draw_in_a_generator_expression_is_placed_in_the_method_around_it():
    class Drawing(horn.Neuron):
        def forward(self, messages):
            total = sum(
                m.normal() for m in messages
            )  # fmt: skip
            self.feedforward(total)

    net = horn.Network(seed=4)
    net.input(2)
    net.output(1, neuron=Drawing)
    got = engine(net, dataset(1, 2, 2)).outputs(np.zeros((1, 2)))
    place = random.site([("forward", 2, 16)])
    synapses = [0, 1, 1 << 32]  # two sources, and the bias as a second link
    z = random.normal(random.key(4, 1), place, [0], synapses, 2**32 - 1)
    np.testing.assert_allclose(got[0, 0], z.sum())


@pytest.mark.parametrize(
    "per, same_sample, same_iteration",
    [("sample", False, False), ("batch", True, False), ("run", True, True)],
)
def test_draws_are_per_sample_batch_or_run(per, same_sample, same_iteration):
    class Drawing(horn.Neuron):
        period = per

        def forward(self, messages):
            self.feedforward(self.uniform(per=self.period))

    made = engine(network(Drawing), dataset(2, 3, 3))
    now, later = (probe(made, 2, iteration=k)["layer1.output"] for k in (0, 1))
    assert np.array_equal(now[0], now[1]) == same_sample
    assert np.array_equal(now, later) == same_iteration


@pytest.mark.parametrize("per", ["sample", "batch"])
def test_input_dropout_masks_in_training_and_scales_at_inference(per):
    net = horn.Network(seed=6)
    net.input(30, keep=0.8, per=per)
    net.output(2, activation="softmax", loss="cross_entropy")
    data = dataset(4, 30, 2)
    made = engine(net, data)

    sent = probe(made, 4, first_sample=10)["layer0.output"]

    samples = range(10, 14) if per == "sample" else [random.SHARED]
    mask = random.uniform(random.key(6, 0), 0, range(30), samples, 0) < 0.8
    np.testing.assert_array_equal(sent, data.x * mask)
    w = made.parameters()
    z = 0.8 * data.x @ w["layer1.weight"].T + w["layer1.bias"]
    np.testing.assert_allclose(
        made.outputs(data.x), np.exp(z) / np.exp(z).sum(1, keepdims=True), rtol=1e-12
    )


# --- sitting out


@pytest.mark.parametrize("written", [False, True])
def test_a_neuron_that_sits_out_a_batch_keeps_its_weights_and_their_momentum(written):
    class Half(horn.neurons.BatchDropout):
        gain = horn.Parameter(1.0)

        def forward(self, messages):
            if self.training and self.bernoulli(0.5, per="batch") == 0:
                self.feedforward(0.0)
            else:
                total = sum(m.input * m.weight for m in messages)
                self.feedforward(self.gain * self.activation(total))

    class WrittenHalf(Half):
        def backward(self, messages):
            gradient = 0.0
            for m in messages:
                gradient += m.gradient
                self.push(m.delta * self.output)
            self.push(gradient * self.output / self.gain, to="gain")
            slope = self.activation.derivative(self.output / self.gain)
            self.backpropagate(self.gain * gradient * slope)  # tanh'(0) = 1: not 0 if called

    net = network(WrittenHalf if written else Half, size=8, name="h")
    made = engine(net, dataset(4, 3, 3), horn.Adam(0.1, weight_decay=0.01, clip_norm=5.0))
    sat_once, moved_once = np.zeros(8, bool), np.zeros(8, bool)
    for k in range(4):
        before, slots = made.parameters(), made.slots()
        silent = np.all(probe(made, 4, iteration=k, first_sample=4 * k)["h.output"] == 0, axis=0)
        step(made, 4, iteration=k, first_sample=4 * k)
        after, slots_after = made.parameters(), made.slots()
        for name, axis in (("h.weight", 0), ("h.bias", 0), ("h.gain", 0), ("layer2.weight", 1)):
            for old, new in (
                (before[name], after[name]),
                (slots[f"{name}/mean"], slots_after[f"{name}/mean"]),
            ):
                changed = np.any(np.moveaxis(new != old, axis, 0).reshape(8, -1), axis=1)
                np.testing.assert_array_equal(changed, ~silent, err_msg=name)
        sat_once |= silent
        moved_once |= ~silent
    assert sat_once.any() and (sat_once & moved_once).any()


def test_a_zero_for_a_reason_of_one_sample_is_not_sitting_out():
    class Quiet(horn.Neuron):
        def forward(self, messages):
            mask = self.bernoulli(0.5, per="batch")
            if mask * self.bernoulli(0.0) == 0:
                self.feedforward(0.0)
            else:
                self.feedforward(sum(m.input * m.weight for m in messages))

    made = engine(network(Quiet), dataset(1, 3, 3), horn.SGD(0.1, weight_decay=0.1))
    before = made.parameters()
    step(made, 1)
    assert np.all(made.parameters()["layer1.weight"] != before["layer1.weight"])  # they decay


def test_a_feature_that_is_silent_for_a_batch_sits_out():
    net = horn.Network(seed=6)
    net.input(20, keep=0.5, per="batch")
    net.output(2, activation="softmax", loss="cross_entropy")
    made = engine(net, dataset(3, 20, 2), horn.SGD(0.1, momentum=0.9, weight_decay=0.1))
    for k in range(3):
        before = made.parameters()["layer1.weight"]
        silent = np.all(probe(made, 3, iteration=k)["layer0.output"] == 0, axis=0)
        step(made, 3, iteration=k)
        changed = np.any(made.parameters()["layer1.weight"] != before, axis=0)
        np.testing.assert_array_equal(changed, ~silent)
        assert 0 < silent.sum() < 20


# --- state, local rules, Direct


def test_state_is_per_sample_within_a_batch_and_the_mean_between_batches():
    net = horn.Network(seed=4)
    net.input(3)
    net.layer(2, neuron=Remembering, name="h")
    net.output(2, activation="softmax", loss="cross_entropy")
    data = dataset(4, 3, 2)
    made = engine(net, data, horn.SGD(0.0))
    w = made.parameters()
    sums = data.x @ w["h.weight"].T + w["h.bias"]
    kept = np.full(2, 0.5)
    for k in range(3):
        found = probe(made, 4, iteration=k)
        np.testing.assert_allclose(found["h.output"], 0.5 * kept + sums, rtol=1e-12)
        step(made, 4, iteration=k)
        kept = (0.5 * kept + sums).mean(axis=0)
        np.testing.assert_allclose(made.states()["h.trace"], kept, rtol=1e-12)
    first = made.outputs(data.x)
    np.testing.assert_array_equal(made.outputs(data.x), first)
    np.testing.assert_allclose(made.states()["h.trace"], kept, rtol=1e-12)


class Oja(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages))
        for m in messages:
            self.push(self.output * (m.input - self.output * m.weight))


def test_a_local_rule_learns_from_its_own_push_without_a_loss():
    net = horn.Network(seed=1)
    net.input(2)
    net.layer(1, neuron=Oja, bias=False)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 1)) * np.array([[2.0, 1.0]]) + 0.1 * rng.normal(size=(40, 2))
    made = engine(net, horn.data.as_dataset((x, None)), horn.Direct(), target=None)
    w = made.parameters()["layer1.weight"]
    y = x @ w.T

    loss = step(made, 20)

    expected = w + 0.0
    expected += (y[:20] * (x[:20] - y[:20] * w)).mean(axis=0)
    np.testing.assert_allclose(made.parameters()["layer1.weight"], expected, rtol=1e-12)
    assert loss == 0.0
    assert set(made.states()) == set() and "layer1.delta" not in probe(made, 2)


def test_nothing_flows_back_through_a_local_rule():
    net = horn.Network(seed=1)
    net.input(2)
    net.layer(2, activation="tanh", name="below")
    net.layer(2, neuron=Oja, name="oja")
    net.output(2, activation="softmax", loss="cross_entropy")
    data = dataset(3, 2, 2)
    made = engine(net, data, horn.SGD(0.1, weight_decay=0.5))
    found, before = probe(made, 3), made.parameters()
    y, x, w = found["oja.output"], found["below.output"], before["oja.weight"]
    pushed = (y[:, :, None] * (x[:, None, :] - y[:, :, None] * w)).mean(axis=0)
    np.testing.assert_allclose(found["oja.weight.gradient"], pushed, rtol=1e-12)
    bias = (y * (1.0 - y * before["oja.bias"])).mean(axis=0)  # the bias synapse has input 1
    np.testing.assert_allclose(found["oja.bias.gradient"], bias, rtol=1e-12)
    assert "below.weight.gradient" not in found and "below.delta" not in found
    step(made, 3)
    np.testing.assert_array_equal(made.parameters()["below.weight"], before["below.weight"])


def test_under_direct_a_push_is_the_update_and_a_derived_gradient_goes_downhill():
    class Momentum(WeightedSum):
        def backward(self, messages):
            gradient = 0.0
            for m in messages:
                gradient += m.gradient
                self.push(-0.1 * m.delta * self.output + 0.9 * m.previous_update)
            self.backpropagate(gradient * self.activation.derivative(self.output))

    made = engine(network(Momentum), dataset(4, 3, 3), horn.Direct(0.1))
    plain = engine(network(WeightedSum), dataset(4, 3, 3), horn.SGD(0.1, momentum=0.9))
    sgd = engine(network(WeightedSum), dataset(4, 3, 3), horn.SGD(0.1))
    before = made.parameters()
    step(made, 4), step(plain, 4), step(sgd, 4)
    for name, expected in sgd.parameters().items():
        np.testing.assert_allclose(made.parameters()[name], expected, rtol=1e-12, err_msg=name)
    # from here on the pushed weights have momentum, the derived ones have none
    for other in (plain, sgd):
        other.load(made.parameters(), slots=other.slots(), updates=1)
    moved = made.parameters()["layer2.weight"] - before["layer2.weight"]
    step(made, 4), step(plain, 4), step(sgd, 4)
    assert np.abs(moved).max() > 0
    got, like = made.parameters(), plain.parameters()
    np.testing.assert_allclose(got["layer2.weight"], like["layer2.weight"], rtol=1e-12)
    np.testing.assert_allclose(got["layer1.weight"], sgd.parameters()["layer1.weight"], rtol=1e-12)


# --- the update


def test_gradients_are_means_over_the_batch():
    made = engine(network(Gain), dataset(4, 3, 3))
    whole = made.probe(np.arange(4), iteration=0, first_sample=0)
    parts = [made.probe(np.array([k]), iteration=0, first_sample=k) for k in range(4)]
    for name in whole:
        if name.endswith(".gradient") or name == "loss":
            mean = np.mean([p[name] for p in parts], axis=0)
            np.testing.assert_allclose(whole[name], mean, rtol=1e-12, atol=1e-16, err_msg=name)


def test_decay_is_of_weights_alone_then_values_then_the_norm_is_clipped():
    optimizer = horn.SGD(0.5, weight_decay=0.3, clip_value=0.05, clip_norm=0.08)
    made = engine(network(Gain), dataset(4, 3, 3), optimizer)
    before, found = made.parameters(), probe(made, 4)
    g = {k: found[f"{k}.gradient"] + (0.3 * v if "weight" in k else 0) for k, v in before.items()}
    g = {k: np.clip(v, -0.05, 0.05) for k, v in g.items()}
    norm = np.sqrt(sum((v**2).sum() for v in g.values()))
    assert norm > 0.08
    step(made, 4)
    for name, value in made.parameters().items():
        expected = before[name] - 0.5 * g[name] * 0.08 / norm
        np.testing.assert_allclose(value, expected, rtol=1e-12, err_msg=name)


def test_float32_rounds_what_is_stored_and_nothing_else():
    exact = engine(network(Gain), dataset(4, 3, 3))
    single = engine(network(Gain), dataset(4, 3, 3), dtype="float32")
    exact.load({k: v.astype(np.float64) for k, v in single.parameters().items()})
    np.testing.assert_array_equal(probe(exact, 4)["loss"], probe(single, 4)["loss"])
    step(exact, 4), step(single, 4)
    for name, value in single.parameters().items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, exact.parameters()[name].astype(np.float32))


def test_probe_and_prediction_change_nothing():
    made = engine(network(Remembering), dataset(4, 3, 3), horn.Adam(0.1))
    before = made.parameters(), made.states(), made.slots()
    probe(made, 4), made.outputs(dataset(4, 3, 3).x), made.losses(dataset(4, 3, 3))
    for old, new in zip(before, (made.parameters(), made.states(), made.slots()), strict=True):
        assert old.keys() == new.keys()
        assert all(np.array_equal(old[k], new[k]) for k in old)


def test_losses_sums_the_loss_and_counts_the_first_largest_outputs():
    net = horn.Network()
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy", init=0.0)
    data = dataset(5, 2, 2)  # all outputs are 1/2: the first is said, and right for 3 of 5
    total, right = engine(net).losses(data)
    assert right == 3
    np.testing.assert_allclose(total, 5 * np.log(2), rtol=1e-12)


def test_a_saved_engine_goes_on_as_if_never_stopped():
    whole, first = (engine(network(Gain), dataset(4, 3, 3), horn.Adam(0.1)) for _ in "ab")
    for k in range(4):
        step(whole, 4, iteration=k)
    for k in range(2):
        step(first, 4, iteration=k)
    second = engine(network(Gain), dataset(4, 3, 3), horn.Adam(0.1))
    second.load(first.parameters(), first.states(), first.slots(), updates=2)
    for k in range(2, 4):
        step(second, 4, iteration=k)
    for name, value in whole.parameters().items():
        np.testing.assert_array_equal(value, second.parameters()[name])


def test_arithmetic_is_ieee_and_a_branch_not_taken_leaves_no_nan():
    class Wild(horn.Neuron):
        def forward(self, messages):
            s = sum(m.input * m.weight for m in messages)
            huge = math.exp(1000.0 + 0.0 * s)
            nothing = 1.0 / (0.0 * s)
            safe = horn.math.where(s > -1e9, s, math.log(-1.0 - s * s) + huge * nothing)
            self.feedforward(self.activation(safe))

    assert_gradients_are_true(engine(network(Wild), dataset(2, 3, 3)), 2)


def test_max_picks_the_first_of_equals_and_the_gradient_goes_there():
    class Largest(horn.Neuron):
        def forward(self, messages):
            self.feedforward(max(m.input * m.weight for m in messages))

    net = horn.Network()
    net.input(3)
    net.output(1, neuron=Largest, loss="squared_error", init=1.0, bias=False)
    data = horn.data.Dataset(np.array([[0.5, 2.0, 2.0]]), np.array([[0.0]]))
    found = probe(engine(net, data), 1)
    np.testing.assert_array_equal(found["layer1.weight.gradient"], [[0.0, 4.0, 0.0]])


def test_the_methods_that_run_are_the_users_own(capsys):
    class Talking(horn.Neuron):
        def forward(self, messages):
            assert isinstance(self, Talking)
            total = 0.0
            for m in messages:
                assert isinstance(m, horn.Synapse)
                total += m.input * m.weight
            print(f"{type(self).__name__} {self.index} of layer {self.layer_index}: {total:.3f}")
            self.feedforward(total)

    made = engine(network(Talking), dataset(1, 3, 3))
    made.outputs(np.zeros((1, 3)))
    assert capsys.readouterr().out.splitlines() == [
        f"Talking {o} of layer 1: 0.000" for o in range(3)
    ]
