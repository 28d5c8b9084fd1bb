"""Several weights per synapse: what a class declares as horn.Weight, on every backend."""

import numpy as np
import pytest

import horn
from horn import math
from horn.backends import Setup, make
from horn.partition.placement import LINK_SPLITS
from tests.parity.test_compiled_equals_interpreted import compare, samples
from tests.parity.test_groups import of_groups
from tests.parity.test_tasks import BACKENDS, labelled, of_group, of_one, place, steps
from tests.parity.test_tasks import compare as compare_tasks
from tests.support.combinations import share
from tests.transport.groups import good


class Gated(horn.Neuron):
    """A gated linear unit: two weighted sums, one of them the other's gate."""

    value, gate = horn.Weight(), horn.Weight(init="normal", bias=1.0)

    def forward(self, messages):
        gate = math.sigmoid(sum(m.input * m.gate for m in messages))
        self.feedforward(gate * sum(m.input * m.value for m in messages))


class Mixed(horn.Neuron):
    """More than weighted sums: m.weight is one of three."""

    weight, centre, width = horn.Weight(), horn.Weight(init="normal"), horn.Weight(init=0.5)
    gain = horn.Parameter(0.7)

    def forward(self, messages):
        far = sum(self.stretched(m) ** 2 for m in messages)
        top = max(m.input * m.weight - abs(m.centre) for m in messages)
        self.feedforward(math.tanh(self.gain * top) + math.exp(-far / len(messages)))

    def stretched(self, m):
        return (m.input - m.centre) * m.width


class One(horn.Neuron):
    """The only weight has a name of its own."""

    strength = horn.Weight(bias=0.25)

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.strength for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.gradient
        self.backpropagate(error * self.activation.derivative(self.output))


class Before(horn.Neuron):
    """A written backward toward synapses with two weights."""

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta.value * m.value + m.delta.gate * m.gate
            self.push(m.delta.gate * self.output, to="gate")
            self.push(m.delta.value * self.output, to="value")
        self.backpropagate(error * self.activation.derivative(self.output))


class TwoRules(horn.Neuron):
    """A local rule for two of three weights; the third stays."""

    fast, slow, still = horn.Weight(), horn.Weight(), horn.Weight()

    def forward(self, messages):
        y = math.tanh(sum(m.input * (m.fast + m.slow + m.still) for m in messages))
        for m in messages:
            self.push(y * m.input - m.fast, to="fast")
            if y > 0.0:
                self.push(0.1 * (m.fast - m.slow), to="slow")
            else:
                self.push(0.0, to="slow")
        self.feedforward(y)


SPARSE = horn.Sparse(sources=lambda o: [o % 5, (o + 2) % 5, 4 - o % 5][: 1 + o % 2])
NEURONS = [Gated, Mixed, One, TwoRules]


def network(neuron, connect=None, bias=True, before=None):
    net = horn.Network(seed=5)
    x = net.input(5, keep=0.8)
    a = net.layer(6, neuron=before or horn.Standard, activation="tanh")
    both = [a] if before else [x, a]
    net.layer(4, neuron=neuron, activation="tanh", inputs=both, connect=connect, bias=bias)
    net.output(3, neuron=neuron, activation="softmax", loss="cross_entropy")
    return net


OPTIMIZERS = {
    "momentum": horn.SGD(0.05, momentum=0.9),
    "decay": horn.SGD(0.1, weight_decay=0.1, clip_norm=0.2),
    "adam": horn.Adam(0.01, weight_decay=0.01),
}


@pytest.mark.parametrize("opt,bias", [("momentum", True), ("decay", False), ("adam", 0.5)])
@pytest.mark.parametrize("neuron, connect", share(2, NEURONS, [None, SPARSE]))
def test_compiled_is_interpreted(neuron, connect, opt, bias):
    compare(network(neuron, connect, bias), OPTIMIZERS[opt], 4)


@pytest.mark.parametrize("opt", OPTIMIZERS)
@pytest.mark.parametrize("connect", [None, SPARSE], ids=["dense", "sparse"])
def test_a_written_backward_sees_the_deltas_of_both_weights(connect, opt):
    compare(network(Gated, connect, before=Before), OPTIMIZERS[opt], 4)


@pytest.mark.parametrize("neuron, backend", share(3, [Gated, Mixed, One], ["python", *BACKENDS]))
def test_derived_gradients_are_finite_differences(neuron, backend):
    net = network(neuron)
    net = net.rebuilt(changes={"layer0": {"keep": 1.0}})
    data, rows = samples(net), np.arange(4)
    engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1))
    engine.bind(data)
    at = {"iteration": 0, "first_sample": 0}
    found = engine.probe(rows, **at)
    arrays = engine.parameters()
    rng = np.random.default_rng(0)
    for name, array in arrays.items():
        for flat in rng.choice(array.size, min(3, array.size), replace=False):
            place_ = np.unravel_index(flat, array.shape)
            losses = []
            for h in (1e-6, -1e-6):
                moved = array.copy()
                moved[place_] += h
                engine.load({**arrays, name: moved})
                losses.append(float(engine.probe(rows, **at)["loss"]))
            engine.load(arrays)
            slope = (losses[0] - losses[1]) / 2e-6
            assert found[f"{name}.gradient"][place_] == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(
    "where, backend, neuron, opt",
    share(2, LINK_SPLITS, BACKENDS, [Gated, One, TwoRules], ["momentum", "adam"]),
)
def test_tasks_compute_what_one_does(neuron, backend, where, opt):
    net = network(neuron, SPARSE if opt == "adam" else None)
    setup = Setup(net, OPTIMIZERS[opt], "labels", 7, "float64", 1)
    data, batches = labelled(net), steps(7, 2)
    placement = place(net, (where,) * 5, ("neurons",) * 5)
    one = of_one(backend, setup, data, batches)
    compare_tasks(good(of_group(backend, setup, data, batches, placement, 3)), one, backend)


@pytest.mark.parametrize("groups,tasks", [(2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("opt", OPTIMIZERS)
@pytest.mark.parametrize("neuron", [Gated, Mixed])
def test_groups_compute_what_one_does(neuron, opt, groups, tasks):
    net = network(neuron)
    setup = Setup(net, OPTIMIZERS[opt], "labels", 6, "float64", 1)
    data, batches = labelled(net), steps(6, 2)
    placement = place(net, ("receiver",) * 5, ("neurons",) * 5) if tasks > 1 else place(net, (), ())
    one = of_one("kernels", setup, data, batches)
    found = good(of_groups("kernels", setup, data, batches, placement, groups, tasks))
    for each in found:
        np.testing.assert_allclose(each.outputs, one.outputs, rtol=1e-9, atol=1e-11)


def test_names_shapes_and_first_values():
    net = network(Gated, bias=0.5)
    arrays = net.initial_parameters("float64")
    assert [name for name in arrays if name.startswith("layer2")] == [
        "layer2.weight.layer0.value", "layer2.weight.layer0.gate",
        "layer2.weight.layer1.value", "layer2.weight.layer1.gate",
        "layer2.bias.value", "layer2.bias.gate",
    ]  # fmt: skip
    assert arrays["layer3.weight.gate"].shape == arrays["layer3.weight.value"].shape == (3, 4)
    assert (arrays["layer2.bias.gate"] == 1.0).all()  # the class's own
    assert (arrays["layer2.bias.value"] == 0.5).all()  # the layer's
    drawn = [a.tobytes() for name, a in arrays.items() if ".weight" in name]
    assert len(set(drawn)) == len(drawn)


def test_a_weight_called_weight_keeps_its_name_and_its_draw():
    class Plain(horn.Neuron):
        weight = horn.Weight()

        def forward(self, messages):
            self.feedforward(sum(m.input * m.weight for m in messages))

    found = []
    for neuron in (Plain, horn.Standard):
        net = horn.Network(seed=2)
        net.input(3)
        net.output(2, neuron=neuron)
        found.append(net.initial_parameters())
    assert found[0].keys() == found[1].keys()
    assert all((found[0][name] == found[1][name]).all() for name in found[0])


def test_a_model_file_has_each_weight(tmp_path):
    net = network(Mixed, SPARSE)
    data = samples(net)
    run = horn.train(
        horn.Job(net, (data.x, data.y), horn.Adam(0.01), batch_size=4, epochs=1), progress=False
    )
    run.model.save(tmp_path / "m.horn")
    model = horn.Model.load(tmp_path / "m.horn")
    assert model.parameters.keys() == run.model.parameters.keys()
    assert "layer3.weight.width" in model.parameters
    np.testing.assert_array_equal(model.predict(data.x), run.model.predict(data.x))


# --- what is refused, compiled and interpreted


class AsksForWeight(horn.Neuron):
    gate = horn.Weight()

    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages))


class AsksItself(horn.Neuron):
    gate = horn.Weight()

    def forward(self, messages):
        self.feedforward(sum(m.input for m in messages) * self.gate)


class PushesToNone(horn.Neuron):
    a, b = horn.Weight(), horn.Weight()

    def forward(self, messages):
        y = sum(m.input * m.a for m in messages)
        for m in messages:
            self.push(y * m.b)
        self.feedforward(y)


class PushesToAnother(PushesToNone):
    def forward(self, messages):
        y = sum(m.input * m.a for m in messages)
        for m in messages:
            self.push(y * m.b, to="c")
        self.feedforward(y)


class PushesOutside(PushesToNone):
    def forward(self, messages):
        y = sum(m.input * m.a for m in messages)
        self.push(y, to="b")
        self.feedforward(y)


class PushesTwice(PushesToNone):
    def forward(self, messages):
        y = sum(m.input * m.a for m in messages)
        for m in messages:
            self.push(y * m.b, to="a")
            self.push(y * m.b, to="a")
        self.feedforward(y)


class PushesSometimes(PushesToNone):
    def forward(self, messages):
        y = sum(m.input * m.a for m in messages)
        for m in messages:
            if m.input > 0.0:
                self.push(y * m.b, to="a")
        self.feedforward(y)


class ReadsThePast(horn.Neuron):
    gate = horn.Weight()

    def forward(self, messages):
        self.feedforward(sum(m.input * m.gate + m.previous_update for m in messages))


class WritesBackward(Gated):
    def backward(self, messages):
        self.backpropagate(sum(m.gradient for m in messages))


class Assigns(horn.Neuron):
    gate = horn.Weight()

    def forward(self, messages):
        self.gate = 1.0
        self.feedforward(sum(m.input * m.gate for m in messages))


REFUSED = {
    AsksForWeight: "m.gate",
    AsksItself: "self.gate is a Weight",
    PushesToNone: 'to="a" or to="b"',
    PushesToAnother: "no Weight or Parameter 'c'",
    PushesOutside: "inside the loop",
    PushesTwice: "second time",
    PushesSometimes: "exactly once|once per message",
    ReadsThePast: "previous_update is of m.weight; .* each synapse in a horn.SynapseState",
    WritesBackward: "2 weights",
    Assigns: "self.gate is a Weight",
}


@pytest.mark.parametrize("backend", ["python", "kernels"])
@pytest.mark.parametrize("neuron", REFUSED)
def test_what_is_refused(neuron, backend):
    net = network(neuron)
    with pytest.raises(horn.HornError, match=REFUSED[neuron]):
        engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1))
        engine.bind(samples(net))
        engine.probe(np.arange(4), iteration=0, first_sample=0)


class BelowReadsWeight(Before):
    def backward(self, messages):
        self.backpropagate(sum(m.weight for m in messages))


class BelowReadsDelta(Before):
    def backward(self, messages):
        self.backpropagate(sum(m.delta for m in messages))


class BelowReadsAnother(Before):
    def backward(self, messages):
        self.backpropagate(sum(m.delta.widths for m in messages))


class BelowPushes(Before):
    def backward(self, messages):
        for m in messages:
            self.push(m.gradient)
        self.backpropagate(0.0)


BELOW = {
    BelowReadsWeight: "m.value",
    BelowReadsDelta: "m.delta",
    BelowReadsAnother: "m.delta.widths",
    BelowPushes: 'to="value"',
}


@pytest.mark.parametrize("backend", ["python", "kernels"])
@pytest.mark.parametrize("neuron", BELOW)
def test_what_a_backward_may_not_do_toward_several_weights(neuron, backend):
    net = network(Gated, before=neuron)
    with pytest.raises(horn.HornError, match=BELOW[neuron]):
        engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1))
        engine.bind(samples(net))
        engine.probe(np.arange(4), iteration=0, first_sample=0)


def test_a_name_that_messages_have_already():
    with pytest.raises(horn.ModelError, match="another name"):
        type("Bad", (horn.Neuron,), {"input": horn.Weight()})
