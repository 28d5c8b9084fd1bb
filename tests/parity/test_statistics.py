"""What a neuron asks of its layer and of the batch (docs/notes/0117)."""

import numpy as np
import pytest

import horn
from horn import explain, math
from horn.backends import Setup, make
from horn.errors import CompileError, JobError
from horn.partition.placement import LAYER_SPLITS
from tests.conftest import EXISTING
from tests.parity.differences import check_gradients
from tests.parity.test_compiled_equals_interpreted import COMPILED, compare, samples
from tests.parity.test_groups import of_groups
from tests.parity.test_tasks import compare as compare_tasks
from tests.parity.test_tasks import labelled, of_group, of_one, place, steps
from tests.support.combinations import share
from tests.support.neurons import Written
from tests.transport.groups import good


class BatchNorm(horn.Neuron):
    gain, shift = horn.Parameter(1.2), horn.Parameter(0.1)
    average, spread = horn.State(0.0), horn.State(1.0)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        mean = self.mean(z, over="batch", running="average")
        var = self.var(z, over="batch", running="spread")
        self.feedforward(
            self.activation(self.gain * (z - mean) / math.sqrt(var + 1e-3) + self.shift)
        )


class LayerNorm(horn.Neuron):
    gain = horn.Parameter(1.2)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        mean, var = self.mean(z, "layer"), self.var(z, over="layer")
        self.feedforward(math.tanh(self.gain * (z - mean) / math.sqrt(var + 1e-3)))


class Winners(horn.Neuron):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(z if self.rank(z, over="layer") < 3 else 0.0)


class Soft(horn.Neuron):
    """No weighted sum: its gradients are of each synapse."""

    def forward(self, messages):
        far = sum((m.input - m.weight) ** 2 for m in messages)
        top, low = self.max(-far, over="layer"), self.min(far, over="layer")
        e = math.exp(-far - top)
        both = self.sum(far * far, over="batch") if self.training else 1.0
        self.feedforward(
            e / self.sum(e, over="layer") + 0.1 * far / (1.0 + top * low) + math.tanh(0.001 * both)
        )


class Map(horn.Neuron):
    """A local rule."""

    def forward(self, messages):
        far = sum((m.input - m.weight) ** 2 for m in messages)
        near = math.exp(-0.5 * (self.index - self.argmax(-far, over="layer")) ** 2)
        for m in messages:
            self.push(near * (m.weight - m.input))
        self.feedforward(math.exp(-far))


CLASSES = [BatchNorm, LayerNorm, Winners, Soft, Map]


def network(neuron, connect=None, size=6):
    net = horn.Network(seed=3)
    x = net.input(7)
    below = Written if neuron in (BatchNorm, LayerNorm, Winners) else horn.neurons.Standard
    hidden = net.layer(11, neuron=below, activation="tanh")
    a = net.layer(size, neuron=neuron, inputs=[x, hidden], connect=connect, activation="tanh")
    net.layer(5, neuron=neuron, inputs=[a], activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize("connect, neuron", share(2, [None, horn.Sparse(fan_in=3)], CLASSES))
def test_the_compiled_answer_is_the_interpreters(neuron, connect):
    if neuron is Map:
        net = horn.Network(seed=3)
        net.input(7)
        net.layer(6, neuron=Map, connect=connect)
        net.output(3, neuron=Map, loss="squared_error")
    else:
        net = network(neuron, connect)
    compare(net, horn.SGD(0.1), 5)


class FirstByStep(horn.Neuron):
    def forward(self, messages):
        late = self.iteration > 0
        z = sum(m.input * m.weight for m in messages)
        first = self.argmax(z if late else 1.0, over="layer")
        self.feedforward(first if late else -first - 5.0)


class LargestByStep(horn.Neuron):
    def forward(self, messages):
        late = self.iteration > 0
        heard, z = sum(m.input for m in messages), sum(m.input * m.weight for m in messages)
        top = self.max(heard if late else z, over="layer")
        self.feedforward(top if late else 0.1 - top)


class TotalByStep(horn.Neuron):
    def forward(self, messages):
        late = self.iteration > 0
        heard, z = sum(m.input for m in messages), sum(m.input * m.weight for m in messages)
        total = self.sum(heard if late else z, over="layer")
        self.feedforward(total if late else 0.1 - total)


class RankByStep(horn.Neuron):
    def forward(self, messages):
        late = self.iteration > 0
        heard, z = sum(m.input for m in messages), sum(m.input * m.weight for m in messages)
        rank = self.rank(heard if late else z, over="layer")
        self.feedforward(rank if late else 0.1 - rank)


@pytest.mark.parametrize("neuron", [FirstByStep, LargestByStep, TotalByStep, RankByStep])
@pytest.mark.parametrize("connect", [None, horn.Sparse(fan_in=2)])
def test_on_a_path_the_layer_is_asked_of_one_number_or_of_what_each_hears(neuron, connect):
    net = horn.Network(seed=3)
    net.input(7)
    net.layer(5, neuron=neuron, connect=connect, bias=False)
    net.output(3, loss="squared_error")
    compare(net, horn.SGD(0.001), 5)


@pytest.mark.parametrize("neuron", CLASSES[:4])
def test_an_output_neuron_may_ask_too(neuron):
    net = horn.Network(seed=4)
    net.input(7)
    net.output(4, neuron=neuron, activation="sigmoid", loss="squared_error")
    compare(net, horn.SGD(0.1), 5)


@pytest.mark.parametrize(
    "neuron, links, layers", share(3, CLASSES, ["sender", "replicated"], LAYER_SPLITS)
)
def test_tasks_ask_as_one(neuron, links, layers):
    net = network(neuron, size=7)
    setup = Setup(net, horn.SGD(0.1), "labels", 6, "float64", 1)
    data, batches = labelled(net), steps(6, 3)
    placement = place(net, (links,) * 9, (layers,) * 9)
    one = of_one("kernels", setup, data, batches)
    for backend, n_tasks in (("reference", 2), ("kernels", 3)):
        tasks = of_group(backend, setup, data, batches, placement, n_tasks)
        compare_tasks(good(tasks), one, f"{backend}, {n_tasks} tasks")


@pytest.mark.parametrize("layers", ["neurons", "rows"])
@pytest.mark.parametrize("neuron", CLASSES)
def test_groups_of_allreduce_ask_the_whole_batch(neuron, layers):
    net = network(neuron, size=7)
    setup = Setup(net, horn.SGD(0.1), "labels", 6, "float64", 1)
    data, batches = labelled(net), steps(6, 3)
    placement = place(net, ("receiver",) * 9, (layers,) * 9)
    one = of_one("kernels", setup, data, batches)
    for n_groups, n_tasks in ((2, 1), (2, 2), (3, 1)):
        found = of_groups("kernels", setup, data, batches, placement, n_groups, n_tasks)
        compare_tasks(good(found), one, f"{n_groups} groups of {n_tasks}")


@pytest.mark.parametrize("neuron", [BatchNorm, LayerNorm, Soft])
def test_derived_gradients_are_finite_differences(neuron):
    net = network(neuron)
    data = samples(net)
    setup = Setup(net, horn.SGD(0.1), "labels", 5, "float64", 1)
    check_gradients("reference", setup, data, 3)


def test_running_values_follow_and_are_what_prediction_reads():
    net = horn.Network(seed=3)
    net.input(7)
    net.layer(4, neuron=BatchNorm, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    data = samples(net)
    for backend in COMPILED:
        engine = make(backend, Setup(net, horn.SGD(0.0), "labels", 6, "float64", 1))
        engine.bind(data)
        rows = np.arange(6)
        w, b = (engine.parameters()[f"layer1.{name}"] for name in ("weight", "bias"))
        z = data.x[rows] @ w.T + b
        engine.step(rows, iteration=0, first_sample=0)
        states = engine.states()
        np.testing.assert_allclose(states["layer1.average"], 0.1 * z.mean(axis=0), rtol=1e-9)
        np.testing.assert_allclose(states["layer1.spread"], 0.9 + 0.1 * z.var(axis=0), rtol=1e-9)
        one = engine.outputs(data.x[:1])
        np.testing.assert_allclose(engine.outputs(data.x)[:1], one, rtol=1e-12)


def test_equals_are_ranked_in_their_order():
    class Equal(horn.Neuron):
        def forward(self, messages):
            z = 1.0 if self.index > 1 else 0.0
            self.feedforward(self.rank(z, "layer") + 10.0 * self.argmax(z, "layer"))

    net = horn.Network(seed=0)
    net.input(2)
    net.layer(5, neuron=Equal)
    net.output(2, activation="softmax", loss="cross_entropy")
    for backend in ("python", *COMPILED):
        engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 3, "float64", 1))
        engine.bind(samples(net))
        sent = engine.probe(np.arange(3), iteration=0, first_sample=0)["layer1.output"]
        assert sent.tolist() == [[23.0, 24.0, 20.0, 21.0, 22.0]] * 3


class Lost(horn.Neuron):
    def forward(self, messages):
        z = horn.math.log(sum(m.input * m.weight for m in messages))
        self.feedforward(self.rank(z, "layer") + 10.0 * self.argmax(z, "layer"))


@pytest.mark.parametrize("backend", EXISTING)
def test_what_is_no_number_is_the_argmax_and_ranked_last(backend):
    net = horn.Network(seed=0)
    net.input(5)
    net.layer(connect=horn.OneToOne(), neuron=Lost, bias=False, init="ones")
    net.output(1, loss="squared_error")
    x = np.array(
        [[1.0, -1.0, 3.0, -2.0, 2.0], [1.0, 2.0, 3.0, 4.0, -1.0], [1.0, 2.0, 3.0, 0.0, 2.0]]
    )
    made = make(backend, Setup(net, horn.SGD(0.1), "targets", 3, "float64", 1))
    made.bind(horn.data.Dataset(x, np.zeros((3, 1))))
    sent = made.probe(np.arange(3), iteration=0, first_sample=0)["layer1.output"]
    expected = [[12, 13, 10, 14, 11], [43, 42, 41, 40, 44], [23, 21, 20, 24, 22]]
    np.testing.assert_array_equal(sent, expected)


def says(forward, problem, **more):
    cls = type("Asks", (horn.Neuron,), {"forward": forward, **more})
    net = horn.Network(seed=0)
    net.input(2)
    net.layer(3, neuron=cls)
    net.output(2, activation="softmax", loss="cross_entropy")
    data = samples(net)
    for backend in ("python", "kernels"):
        with pytest.raises(CompileError, match=problem) as raised:
            engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 3, "float64", 1))
            engine.bind(data)
            engine.step(np.arange(3), iteration=0, first_sample=0)
            engine.outputs(data.x)
        assert raised.value.line is not None


def in_the_loop(self, messages):
    self.feedforward(sum(m.weight * self.mean(m.input, over="layer") for m in messages))


def under_an_if(self, messages):
    z = sum(m.input * m.weight for m in messages)
    self.feedforward(self.mean(z, over="layer") if z > 0.0 else z)


def of_no_batch(self, messages):
    z = sum(m.input * m.weight for m in messages)
    self.feedforward(z - self.mean(z, over="batch"))


def largest_of_the_batch(self, messages):
    self.feedforward(self.max(sum(m.input * m.weight for m in messages), over="batch"))


def no_state(self, messages):
    z = sum(m.input * m.weight for m in messages)
    self.feedforward(self.mean(z, over="batch", running="average"))


def smallest(self, messages):
    z = sum(m.input * m.weight for m in messages)
    self.feedforward(self.argmin(z, over="layer"))


def test_what_cannot_be_asked_is_refused_with_its_line():
    says(smallest, r'no self.argmin: write self.argmax\(-x, over="layer"\)')
    says(in_the_loop, "inside the loop over messages; ask once")
    says(under_an_if, "compute it before the if")
    says(of_no_batch, "at prediction there is no batch")
    says(largest_of_the_batch, "self.max is over .batch.; there are .*layer.: sum")
    says(no_state, "State")


def test_a_class_may_use_the_words_for_itself():
    class Own(horn.Neuron):
        mean = horn.State(0.5)

        def forward(self, messages):
            self.feedforward(self.max(sum(m.input * m.weight for m in messages)) - self.mean)

        def max(self, z):
            return z if z > 0.0 else 0.0

    net = horn.Network(seed=0)
    net.input(4)
    net.layer(3, neuron=Own)
    net.output(2, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1), 3)


class Named(horn.Neuron):
    """Declares what the compiler calls values of its own: layer1.sum, layer1.asked, ..."""

    sum, raw, loss = horn.State(0.5), horn.Parameter(0.5), horn.State(0.1)
    asked, max, target = horn.Parameter(0.5), horn.Parameter(0.5), horn.Parameter(0.5)

    def forward(self, messages):
        z = self.raw * sum(m.input * m.weight for m in messages) + self.target
        z += self.max * max(m.input for m in messages) - self.asked * self.mean(z, over="layer")
        self.sum = 0.9 * self.sum + 0.1 * z
        self.loss = 0.9 * self.loss
        self.feedforward(self.activation(z + self.sum + self.loss))


def test_a_class_may_use_names_that_the_compiler_has_for_values():
    net = horn.Network(seed=0)
    net.input(4)
    net.layer(3, neuron=Named, activation="tanh")
    net.output(2, neuron=Named, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1), 3)


def test_products_stay_products():
    assert explain.runs_as(network(BatchNorm))["layer2"] == "matrix products"


def test_sub_models_have_no_layer_to_ask():
    net = horn.Network(seed=0)
    net.input(64)
    net.layer(8, neuron=LayerNorm)
    net.output(10, activation="softmax", loss="cross_entropy")
    job = horn.Job(net, horn.data.digits(), batch_size=10, iterations=1)
    with pytest.raises(JobError, match="asks its layer or the batch"):
        horn.train(job, strategy="parallel-dropout", groups=2)


class Inputs(horn.Neuron):
    """What it asks has no weight in it, nor anything else of the neuron."""

    def forward(self, messages):
        heard = sum(m.input for m in messages)
        asked = self.min(heard, over="layer") + 0.3 * self.sum(heard, over="layer")
        asked += 0.1 * self.argmax(heard, over="layer") + 0.2 * self.rank(heard, over="layer")
        asked += self.var(heard, over="layer") + 0.5 * self.mean(2.0, over="layer")
        asked += 0.3 * self.rank(self.iteration, "layer") + self.argmax(len(messages), "layer")
        self.feedforward(math.tanh(0.1 * asked + sum(m.input * m.weight for m in messages)))


@pytest.mark.parametrize("connect", [None, horn.Sparse(fan_in=2)])
def test_numbers_of_inputs_alone_are_each_neurons_own(connect):
    net = network(Inputs, connect)
    compare(net, horn.SGD(0.1), 5)
    setup = Setup(net, horn.SGD(0.1), "labels", 5, "float64", 1)
    check_gradients("kernels", setup, samples(net), 3)


class ReadsRunning(horn.Neuron):
    average = horn.State(0.3)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.mean(z, over="batch", running="average")
        self.feedforward(math.tanh(z - 5.0 * self.average))


def test_a_running_value_that_is_read_again_passes_its_gradient():
    net = network(ReadsRunning)
    compare(net, horn.SGD(0.1), 5)
    setup = Setup(net, horn.SGD(0.1), "labels", 5, "float64", 1)
    check_gradients("kernels", setup, samples(net), 3)


class AllHear(horn.Neuron):
    """What this neuron hears says nothing of what the others of its layer do."""

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        heard = 0.4 if any(m.input > 0.37 for m in messages) else z
        self.feedforward(math.tanh(self.mean(heard, over="layer")) + z)


def test_what_one_neuron_hears_is_not_known_of_the_layer():
    net = horn.Network(seed=14)
    net.input(4)
    net.layer(3, neuron=AllHear, connect=horn.Sparse(fan_in=1), bias=False)
    net.output(2, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1), 5)


class AllRanked(horn.Neuron):
    """What is known of this neuron is not known of those that it is ranked among."""

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        height = -2.0 * z if z > 0.0 else 0.1 * z
        place = self.rank(height, over="layer")
        self.feedforward(math.tanh(height + 0.2 * place) if z > 0.0 else 0.5 * z)


@pytest.mark.parametrize("connect", [None, horn.Sparse(fan_in=2)])
def test_what_is_known_of_one_neuron_is_not_known_of_those_it_is_ranked_among(connect):
    net = horn.Network(seed=14)
    net.input(4)
    net.layer(5, neuron=AllRanked, connect=connect)
    net.output(2, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1), 5)


class WritesBack(horn.Neuron):
    p = horn.Parameter(0.5)

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            self.push(m.delta * self.output)
        self.push(error, to="p")
        self.backpropagate(error)


class OfLayer(WritesBack):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(z - self.p * self.mean(z, over="layer"))


class OfRank(WritesBack):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(z if self.rank(z, over="layer") < 1.0 else 0.0)


class OfBatch(WritesBack):
    average = horn.State(0.0)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.mean(z, over="batch", running="average")
        self.feedforward(z)


class OfNothing(WritesBack):
    """What it asks of the layer it does not use; and how many samples there are."""

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.mean(z, over="layer")
        n = self.sum(self.p, over="batch") if self.training else 1.0
        self.feedforward(z * n)


@pytest.mark.parametrize("backend", ["python", "reference", "kernels"])
def test_a_written_backward_beside_a_statistic_is_refused(backend):
    x = np.random.default_rng(0).normal(size=(4, 2))

    def engine_of(cell):
        net = horn.Network(seed=1)
        net.input(2)
        net.layer(3, neuron=cell, bias=False)
        net.output(1, loss="squared_error", bias=False)
        data = horn.Job(net, (x, x[:, :1]), dtype="float64").data
        engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 4, "float64"))
        engine.bind(data)
        return engine

    for cell in (OfLayer, OfRank, OfBatch):
        with pytest.raises(CompileError, match="forward asks the layer or the batch"):
            engine_of(cell)
    engine = engine_of(OfNothing)
    found = engine.probe(np.arange(4), iteration=0, first_sample=0)
    expected = x @ engine.parameters()["layer1.weight"].T * (4 * 0.5)
    np.testing.assert_allclose(found["layer1.output"], expected, rtol=1e-12)
