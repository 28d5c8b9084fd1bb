"""Neurons that are no products, behind windows: their passes run in patches (docs/notes/0189)."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import horn
from horn import math
from horn.backends import Setup, _patches, make
from horn.compiler.lower import training_program
from horn.partition.placement import Placement
from horn.scheduling import patches
from tests.parity.differences import check_gradients
from tests.parity.test_compiled_equals_interpreted import compare, samples
from tests.parity.test_tasks import compare as compare_tasks
from tests.parity.test_tasks import of_group, of_one
from tests.transport.groups import good


class Manhattan(horn.Neuron):
    def forward(self, messages):
        self.feedforward(math.exp(-0.1 * sum(abs(m.input - m.weight) for m in messages)))


class Dendrites(horn.Neuron):
    gain = horn.Parameter(0.7)

    def forward(self, messages):
        self.feedforward(self.gain * sum(math.tanh(m.input * m.weight) for m in messages))


class Soft(horn.Neuron):
    def forward(self, messages):
        top = math.stop_gradient(max(m.input * m.weight for m in messages))
        self.feedforward(math.log(sum(math.exp(m.input * m.weight - top) for m in messages)) + top)


class Dilation(horn.Neuron):
    """The largest sum, as in morphology."""

    def forward(self, messages):
        self.feedforward(max(m.input + m.weight for m in messages))


class NoisyOr(horn.Neuron):
    """Its weights' gradients are negated, and zeros are counted where a product is 0."""

    def forward(self, messages):
        p = 1.0
        for m in messages:
            p *= 1.0 - m.input * m.weight
        self.feedforward(1.0 - p)


class Metric(horn.Neuron):
    """Two weights per synapse, and none of a sample's own."""

    centre, scale = horn.Weight(), horn.Weight()

    def forward(self, messages):
        far = sum(m.scale * (m.input - m.centre) ** 2 for m in messages)
        self.feedforward(math.exp(-0.1 * far))


NEURONS = [Manhattan, Dendrites, Soft, Dilation, NoisyOr, Metric]
SMALL = horn.Convolution(3, 3, padding="same")


@pytest.fixture(autouse=True)
def small_patches(monkeypatch):
    """Patches of nets that are small enough for the interpreter, in parts."""
    monkeypatch.setattr(patches, "MIN_PLACES", 1)
    monkeypatch.setattr(_patches, "MOST", 80)


def network(neuron, connection=SMALL, shape=(4, 3, 2), bias=True):
    net = horn.Network(seed=3)
    net.input(shape)
    net.layer(connect=connection, neuron=neuron, bias=bias)
    net.layer(connect=horn.Convolution(2, 2, padding=1), neuron=neuron, bias=bias)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def patched(net, batch_size=3):
    program = training_program(net, horn.SGD(0.1), "labels")
    return patches.find_patched(program, batch_size)


def test_windows_of_the_same_taps_are_in_several_patches():
    """Those of the tests here: as MOST is in reality, networks so small are in one for all taps."""
    for layer in network(Manhattan).layers[1:3]:
        taps = [tuple(each.taps) for each in _patches.patches_of(layer.links[0], 3)]
        assert len(set(taps)) < len(taps)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("neuron", NEURONS)
def test_the_kernels_answer_is_the_interpreters(neuron, bias):
    net = network(neuron, bias=bias)
    assert patched(net).loops
    compare(net, horn.SGD(0.1, momentum=0.9), 3, "kernels")


class Dropped(horn.Neuron):
    """Its messages draw, each for itself and for each sample."""

    def forward(self, messages):
        self.feedforward(math.prod(1 + m.input * m.weight * self.bernoulli(0.5) for m in messages))


def test_passes_whose_messages_draw_run_on_synapses():
    net = network(Dropped)
    assert not patched(net).loops
    compare(net, horn.SGD(0.1), 3, "kernels")


@pytest.mark.parametrize(
    "optimizer", [horn.SGD(0.1, clip_norm=0.01), horn.Adam(0.01, weight_decay=0.1)]
)
def test_updates_of_shared_weights(optimizer):
    compare(network(Metric), optimizer, 3, "kernels")


@pytest.mark.parametrize("neuron", NEURONS)
def test_derived_gradients_are_finite_differences(neuron):
    net = network(neuron)
    setup = Setup(net, horn.SGD(0.1), "labels", 5, "float64", 1)
    check_gradients("kernels", setup, samples(net), 3)


@st.composite
def connections(draw):
    told = {"padding": draw(st.sampled_from(["same", "valid", 1, 2, ((2, 0), (0, 1))]))}
    for name, most in (("kernel", 3), ("stride", 2), ("dilation", 2)):
        told[name] = tuple(draw(st.integers(1, most)) for _ in range(2))
    return horn.Convolution(draw(st.integers(1, 3)), **told)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(
    neuron=st.sampled_from(NEURONS),
    connection=connections(),
    channels=st.integers(1, 3),
    batch=st.integers(1, 6),
)
def test_any_window(neuron, connection, channels, batch):
    net = network(neuron, connection, (6, 5, channels))
    assert patched(net, batch).loops
    found = []
    for name in ("reference", "kernels"):
        setup = Setup(net, horn.SGD(0.1, momentum=0.5), "labels", batch, "float64", 1)
        engine = make(name, setup)
        data = samples(net)
        engine.bind(data)
        order = np.arange(len(data))
        parts = [order[k : k + batch] for k in range(0, len(order), batch)]  # the last is short
        losses = [engine.step(r, iteration=k, first_sample=0) for k, r in enumerate(parts)]
        found.append((losses, engine.parameters()))
    (losses, arrays), (others, there) = found
    np.testing.assert_allclose(losses, others, rtol=1e-9)
    for name, array in arrays.items():
        np.testing.assert_allclose(array, there[name], rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("neuron", NEURONS)
def test_threads_change_no_bit(neuron, monkeypatch):
    monkeypatch.setattr("horn.scheduling.choices.MIN_WORK_PER_THREAD", 1)
    monkeypatch.setattr(_patches, "MOST", 2000)
    net = network(neuron, horn.Convolution(5, 3, padding="same"), (9, 8, 4))
    data, rows, found = samples(net), np.arange(12), []
    for threads in (1, 2, 3):
        engine = make("kernels", Setup(net, horn.SGD(0.1), "labels", 12, "float32", threads))
        engine.bind(data)
        assert engine.training_runner.tape.n_threads == threads
        losses = [engine.step(rows, iteration=k, first_sample=12 * k) for k in range(3)]
        found.append((losses, {k: v.tobytes() for k, v in engine.parameters().items()}))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("neuron", NEURONS)
def test_two_tasks_that_share_rows_train_what_one_does(neuron):
    net = network(neuron)
    setup = Setup(net, horn.SGD(0.1, momentum=0.9), "labels", 5, "float64", 1)
    batches = [np.array([0, 3, 4, 9, 11]), np.array([1, 2, 5])]  # the last one is short
    group = of_group("kernels", setup, samples(net), batches, Placement.rows(net), 2)
    compare_tasks(good(group), of_one("kernels", setup, samples(net), batches), "rows")


def test_weights_are_not_laid_out_for_each_synapse_where_nobody_reads_them_so():
    found = patched(network(Manhattan))
    assert found.unread == {"layer1.weight.each", "layer2.weight.each"}


@pytest.mark.parametrize("neuron, factor", [(Manhattan, 0.1), (NoisyOr, -1.0), (Dilation, 1.0)])
def test_a_factor_of_sums_waits_until_they_are_summed(neuron, factor):
    found = patched(network(neuron))
    assert [by for _, by in found.sums.values()] == [factor] * 2
    assert len(found.multiplied) == 2 * (factor != 1.0)


def test_large_batches_look_places_up_on_synapses():
    net = network(Dilation)
    few, many = (patched(net, n) for n in (patches.MANY - 1, patches.MANY))
    assert sum(each is not None for each in few.loops.values() for each in each) > sum(
        each is not None for each in many.loops.values() for each in each
    )
