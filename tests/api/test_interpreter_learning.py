"""The interpreter beside gradients: kinds of neurons, draws, sitting out, state, the update."""

import math

import numpy as np
import pytest

import horn
from horn import random
from horn.backends import Setup, make
from horn.data import Dataset
from tests.api.interpreted import (
    Conditional,
    Gain,
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
from tests.support.neurons import Half, WrittenHalf

# --- kinds of neurons


class Dropping(horn.Neuron):
    """Reads its messages on one path alone; still a weighted sum."""

    def forward(self, messages):
        if self.bernoulli(0.5) == 0:
            self.feedforward(0.0)
        else:
            self.feedforward(sum(m.input * m.weight for m in messages))


def _hebb(neuron, m, y):
    getattr(neuron, "pu" + "sh")(0.1 * m.input * y)


RULES = {"hebb": _hebb}


@horn.interpreted
class ByName(horn.Neuron):
    """Its rule is found by ways that no text shows."""

    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            RULES["hebb"](self, m, y)
        self.feedforward(y)


@horn.interpreted
class Written(horn.Neuron):
    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(0.1 * m.input * y)
        self.feedforward(y)


def test_what_python_alone_finds_is_pushed():
    found = []
    for cls in (ByName, Written):
        net = horn.Network(seed=4)
        net.input(3)
        net.layer(2, neuron=cls, name="local")
        net.output(2, activation="softmax", loss="cross_entropy")
        made = engine(net, dataset(4, 3, 2))
        before = made.parameters()["local.weight"].copy()
        step(made, 4)
        found.append(made.parameters()["local.weight"])
        assert np.abs(found[-1] - before).max() > 1e-4
    np.testing.assert_array_equal(*found)


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


@pytest.mark.parametrize("per", ["sample", "batch"])
def test_a_dropped_feature_is_0_whatever_it_was(per):
    """Not -0, of which atan2 makes another angle, and not NaN."""
    net = horn.Network(seed=6)
    net.input(20, keep=0.5, per=per)
    net.output(1, loss="squared_error")
    for value in (-1.0, np.inf):
        data = Dataset(np.full((3, 20), value), np.zeros((3, 1)))
        for backend in ("python", "reference", "kernels"):
            made = make(backend, Setup(net, horn.SGD(0.1), "labels", 3, "float64", 1))
            made.bind(data)
            with np.errstate(all="ignore"):
                sent = made.probe(np.arange(3), iteration=0, first_sample=0)["layer0.output"]
            dropped = sent != value
            assert 0 < dropped.sum() < 60
            assert not sent[dropped].any() and not np.signbit(sent[dropped]).any(), backend


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
