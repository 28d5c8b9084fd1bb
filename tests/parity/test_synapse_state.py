"""Memory per synapse: what horn.SynapseState means, on every backend, in tasks and groups."""

import numpy as np
import pytest

import horn
from horn import math
from horn.backends import Setup, make
from horn.data import Dataset
from horn.partition.placement import LINK_SPLITS
from tests.parity.test_compiled_equals_interpreted import compare, samples
from tests.parity.test_groups import of_groups
from tests.parity.test_tasks import BACKENDS, labelled, of_group, of_one, place, steps
from tests.parity.test_tasks import compare as compare_tasks
from tests.support.combinations import share
from tests.transport.groups import good


class Trace(horn.Neuron):
    """A local rule with an eligibility trace, which the output does not read."""

    trace = horn.SynapseState(0.1)

    def forward(self, messages):
        y = math.tanh(sum(m.input * m.weight for m in messages))
        for m in messages:
            m.trace = 0.9 * m.trace + m.input * y
            self.push(m.trace * y)
        self.feedforward(y)


class Read(horn.Neuron):
    """The output depends on what was kept, and on what is assigned; a condition decides."""

    fast = horn.SynapseState(horn.Normal(0.0, 0.3))
    calls = horn.SynapseState(0.0)
    gain = horn.Parameter(0.7)

    def forward(self, messages):
        z = sum(m.input * (m.weight + self.gain * m.fast) for m in messages)
        total = 0.0
        for m in messages:
            m.calls += 1.0
            if m.input > 0.1:
                m.fast = self.decayed(m) + 0.1 * z * m.input * m.weight
            total += m.fast * m.input
        self.feedforward(self.activation(z + 0.5 * total) + 0.01 * max(m.calls for m in messages))

    def decayed(self, m):
        return 0.95 * m.fast


class Both(horn.Neuron):
    """Its two methods have numbers of their own: of incoming, and of outgoing synapses."""

    kept = horn.SynapseState(0.0)
    slope = horn.SynapseState(0.2)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        for m in messages:
            m.kept = 0.5 * m.kept + m.input * m.weight
        self.feedforward(self.activation(z))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            g = m.delta * self.output
            m.kept = 0.9 * m.kept + 0.1 * g
            m.slope = 0.9 * m.slope + 0.1 * g * g
            self.push(m.kept / (math.sqrt(m.slope) + 0.1))
        self.backpropagate(error * self.activation.derivative(self.output))


class Sometimes(horn.Neuron):
    """Sits some batches out; its synapses then remember what they remembered."""

    kept = horn.SynapseState(1.0)

    def forward(self, messages):
        mask = self.bernoulli(0.6, per="batch") if self.training else 0.6
        if mask == 0:
            self.feedforward(0.0)
        else:
            z = 0.0
            for m in messages:
                m.kept = m.kept + m.input
                z += m.input * m.weight
            self.feedforward(self.activation(z) * mask)

    def backward(self, messages):
        error = 0.0
        for m in messages:
            m.kept = 2.0 * m.kept + m.gradient
            error += m.gradient
            self.push(m.delta * self.output)
        self.backpropagate(error)


class Weighted(horn.Neuron):
    """Beside several weights."""

    a, b = horn.Weight(), horn.Weight()
    kept = horn.SynapseState(0.0)

    def forward(self, messages):
        x = sum(m.input * m.a for m in messages)
        y = sum(m.input * m.b + 0.1 * m.kept for m in messages)
        for m in messages:
            m.kept = m.kept + 0.1 * (m.a - m.b) * x
        self.feedforward(x * math.sigmoid(y))


NEURONS = [Trace, Read, Both, Sometimes, Weighted]
SPARSE = horn.Sparse(sources=lambda o: [o % 5, (o + 2) % 5, 4 - o % 5][: 1 + o % 2])
OPTIMIZERS = {"momentum": horn.SGD(0.05, momentum=0.9), "adam": horn.Adam(0.01, clip_norm=0.5)}


def network(neuron, connect=None, bias=True):
    net = horn.Network(seed=5)
    x = net.input(5)
    a = net.layer(6, neuron=neuron, activation="tanh", bias=bias)
    net.layer(4, neuron=neuron, activation="tanh", inputs=[x, a], connect=connect, bias=bias)
    # a written backward asks for receivers that are weighted sums
    last = horn.Standard if neuron in (Both, Sometimes) else neuron
    net.output(3, neuron=last, activation="softmax", loss="cross_entropy", bias=bias)
    return net


@pytest.mark.parametrize("opt", ["momentum", "adam"])
@pytest.mark.parametrize("neuron, connect", share(2, NEURONS, [None, SPARSE]))
def test_compiled_is_interpreted(neuron, connect, opt):
    bias = opt == "momentum"
    compare(network(neuron, connect, bias), OPTIMIZERS[opt], 4, steps=3)


@pytest.mark.parametrize("neuron, backend, where", share(3, NEURONS, BACKENDS, LINK_SPLITS))
def test_tasks_compute_what_one_does(neuron, backend, where):
    net = network(neuron, SPARSE if neuron is Both else None)
    setup = Setup(net, OPTIMIZERS["momentum"], "labels", 7, "float64", 1)
    data, batches = labelled(net), steps(7, 2)
    placement = place(net, (where,) * 5, ("neurons",) * 5)
    found = of_group(backend, setup, data, batches, placement, 3)
    if where == "sender" and any(isinstance(x, horn.CompileError) for x in found):
        return  # a maximum's place
    compare_tasks(good(found), of_one(backend, setup, data, batches), backend)


@pytest.mark.parametrize("groups,tasks", [(2, 1), (2, 2), (17, 1)])
@pytest.mark.parametrize("neuron", [Trace, Both, Weighted])
def test_groups_keep_the_mean_over_the_whole_batch(neuron, groups, tasks):
    net = network(neuron)
    setup = Setup(net, OPTIMIZERS["momentum"], "labels", 17, "float64", 1)
    data = Dataset(np.random.default_rng(1).standard_normal((20, 5)), np.arange(20) % 3)
    batches = [np.arange(17), np.arange(3, 20), np.arange(5)]
    placement = place(net, ("receiver",) * 5, ("neurons",) * 5) if tasks > 1 else place(net, (), ())
    one = of_one("kernels", setup, data, batches)
    states = [name for name in one.arrays if name in net.state_shapes]
    assert states
    for found in good(of_groups("kernels", setup, data, batches, placement, groups, tasks)):
        for name in states:
            whole = one.arrays[name][tuple(found.places[name])]
            np.testing.assert_allclose(found.arrays[name], whole, rtol=1e-9, atol=1e-11)


class Mean(horn.Neuron):
    """Keeps a running mean of what it hears; plain enough to be said with NumPy."""

    heard = horn.SynapseState(0.5)

    def forward(self, messages):
        for m in messages:
            m.heard = 0.75 * m.heard + 0.25 * m.input
        self.feedforward(sum(m.input * m.weight for m in messages))


@pytest.mark.parametrize("backend", ["python", *BACKENDS])
def test_a_synapse_keeps_the_mean_over_the_batch(backend):
    net = horn.Network(seed=5)
    net.input(4)
    net.output(3, neuron=Mean, loss="squared_error")
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 4)), rng.standard_normal((8, 3))
    engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1))
    engine.bind(Dataset(x, y))
    kept = 0.5
    for step in range(2):
        rows = np.arange(4) + 4 * step
        engine.step(rows, iteration=step, first_sample=0)
        kept = 0.75 * kept + 0.25 * x[rows].mean(axis=0)
    states = engine.states()
    np.testing.assert_allclose(states["layer1.heard"], np.tile(kept, (3, 1)), rtol=1e-12)
    np.testing.assert_allclose(states["layer1.bias.heard"], 1.0 - 0.5 * 0.75**2, rtol=1e-12)
    before = engine.states()
    engine.outputs(x)  # prediction reads, and changes nothing
    assert all((before[name] == array).all() for name, array in engine.states().items())


def test_names_shapes_and_what_is_not_used():
    net = network(Both, SPARSE)
    shapes = net.state_shapes
    edges = len(net.layers[2].links[0].edges.indices)
    assert shapes == {
        "layer1.kept": (6, 5), "layer1.bias.kept": (6,),
        "layer1.kept.to.layer2": (len(net.layers[2].links[1].edges.indices),),
        "layer1.slope.to.layer2": (len(net.layers[2].links[1].edges.indices),),
        "layer2.kept.layer0": (edges,),
        "layer2.kept.layer1": (len(net.layers[2].links[1].edges.indices),),
        "layer2.bias.kept": (4,), "layer2.kept.to.layer3": (3, 4), "layer2.slope.to.layer3": (3, 4),
    }  # fmt: skip
    drawn = network(Read).initial_states("float64")
    fast = [array.tobytes() for name, array in drawn.items() if "fast" in name]
    assert len(set(fast)) == len(fast)


def test_a_model_file_and_a_checkpoint_have_them(tmp_path):
    net = network(Both)
    data = samples(net)
    x, y = np.tile(data.x, (4, 1)), np.tile(data.y, 4)

    def job(epochs):
        return horn.Job(net, (x, y), horn.Adam(0.01), batch_size=4, epochs=epochs, check=False)

    whole = horn.train(job(4), progress=False)
    whole.model.save(tmp_path / "m.horn")
    model = horn.Model.load(tmp_path / "m.horn")
    assert "layer1.kept.to.layer2" in model.states
    for name, array in whole.model.states.items():
        np.testing.assert_array_equal(model.states[name], array)
    np.testing.assert_array_equal(model.predict(x), whole.model.predict(x))
    horn.train(job(2), progress=False, checkpoints=tmp_path / "c", checkpoint_every=12)
    again = horn.train(job(4), progress=False, checkpoints=tmp_path / "c", resume=True)
    for name, array in whole.model.states.items():
        np.testing.assert_array_equal(again.model.states[name], array)


class ByHand(horn.Neuron):
    mean, square = horn.SynapseState(0.0), horn.SynapseState(0.0)

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        t, error = self.iteration + 1, 0.0
        for m in messages:
            error += m.delta * m.weight
            g = m.delta * self.output
            m.mean = 0.9 * m.mean + 0.1 * g
            m.square = 0.999 * m.square + 0.001 * g * g
            first, second = m.mean / (1.0 - 0.9**t), m.square / (1.0 - 0.999**t)
            self.push(-0.01 * first / (math.sqrt(second) + 1e-8))
        self.backpropagate(error * self.activation.derivative(self.output))


@pytest.mark.parametrize("backend", ["python", *BACKENDS])
def test_adam_by_hand_is_adam_in_batches_of_one(backend):
    """With the first weights as they were, so that both go the same way."""
    found = []
    for neuron, opt in ((ByHand, horn.Direct(0.0)), (horn.Standard, horn.Adam(0.01))):
        net = horn.Network(seed=5)
        net.input(4)
        net.layer(6, neuron=neuron, activation="tanh")
        net.output(3, activation="softmax", loss="cross_entropy", bias=False)
        engine = make(backend, Setup(net, opt, "labels", 1, "float64", 1))
        data = samples(net)
        engine.bind(data)
        first = {name: engine.parameters()[name] for name in ("layer1.weight", "layer1.bias")}
        for step in range(5):
            engine.step(np.array([step]), iteration=step, first_sample=step)
            engine.load(first, updates=step + 1)
        found.append(engine.parameters()["layer2.weight"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-12)


# --- what is refused, compiled and interpreted


class Loose(horn.Neuron):
    def forward(self, messages):
        for m in messages:
            m.trace = m.input
        self.feedforward(sum(m.input * m.weight for m in messages))


class OfItself(horn.Neuron):
    trace = horn.SynapseState(0.0)

    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages) + self.trace)


class AssignsInput(horn.Neuron):
    def forward(self, messages):
        for m in messages:
            m.input = 0.0
        self.feedforward(sum(m.input * m.weight for m in messages))


class Ordered(horn.Neuron):
    trace = horn.SynapseState(0.0)

    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input * m.weight
            m.trace = total
        self.feedforward(total)


REFUSED = {Loose: "SynapseState", OfItself: "self.trace is a SynapseState",
           AssignsInput: "m.input cannot be assigned"}  # fmt: skip


@pytest.mark.parametrize("backend", ["python", "kernels"])
@pytest.mark.parametrize("neuron", REFUSED)
def test_what_is_refused(neuron, backend):
    net = network(neuron)
    with pytest.raises(horn.HornError, match=REFUSED[neuron]):
        engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1))
        engine.bind(samples(net))
        engine.probe(np.arange(4), iteration=0, first_sample=0)


def test_what_depends_on_the_order_of_messages_is_refused():
    with pytest.raises(horn.CompileError, match="m.trace uses 'total'"):
        make("kernels", Setup(network(Ordered), horn.SGD(0.1), "labels", 4)).bind(
            samples(network(Ordered))
        )


@pytest.mark.parametrize("name", ["weight", "input", "delta"])
def test_a_name_that_messages_have_already(name):
    with pytest.raises(horn.ModelError, match="another name"):
        type("Bad", (horn.Neuron,), {name: horn.SynapseState()})


def test_parallel_dropout_refuses_it():
    net = horn.Network(seed=1)
    net.input(4)
    net.layer(8, neuron=Mean)
    net.output(2, activation="softmax", loss="cross_entropy")
    job = horn.Job(net, (np.zeros((8, 4)), np.zeros(8, int)), batch_size=4, epochs=1)
    with pytest.raises(horn.HornError, match="SynapseState"):
        horn.train(job, strategy=horn.ParallelDropout(4, keep=0.5), progress=False)
