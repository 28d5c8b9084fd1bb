"""Statistics over the positions of a channel, and of a map over the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.backends import Setup, make
from horn.errors import CompileError
from horn.partition.placement import CHANNELS, PLACES, Placement
from tests.parity.differences import check_gradients
from tests.parity.test_compiled_equals_interpreted import compare, samples
from tests.parity.test_groups import of_groups
from tests.parity.test_tasks import compare as compare_tasks
from tests.parity.test_tasks import of_group, of_one, place
from tests.support.combinations import share
from tests.transport.groups import good


class BatchNormalized(horn.Neuron):
    """Ioffe & Szegedy 2015, section 3.2: of a convolution each map has one mean."""

    gain, shift = horn.Parameter(1.0), horn.Parameter(0.0)
    average, spread = horn.State(0.0), horn.State(1.0)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        mean = self.mean(z, over="batch", running="average")
        var = self.var(z, over="batch", running="spread")
        self.feedforward(self.gain * (z - mean) / horn.math.sqrt(var + 1e-3) + self.shift)


class InstanceNormalized(horn.Neuron):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        mean, var = self.mean(z, over="channel"), self.var(z, over="channel")
        self.feedforward((z - mean) / horn.math.sqrt(var + 1e-2) + 0.1 * self.sum(z, over="batch")
                         if self.training else z - mean)  # fmt: skip


class Excited(horn.Neuron):
    """Of other kinds than weighted sums; asks for a number that is the same everywhere, too."""

    def forward(self, messages):
        top = max(m.input * m.weight for m in messages)
        many = self.sum(1.0, over="channel")
        self.feedforward(top * horn.math.sigmoid(self.mean(top, over="channel")) / many)


def through(neuron: Any, connection: Any = None, shape: Any = (3, 4, 2)) -> horn.Network:
    net = horn.Network(seed=3)
    net.input(shape)
    net.layer(connect=connection or horn.Convolution(3, 2), neuron=neuron, name="space")
    net.layer(4, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


NEURONS = [BatchNormalized, InstanceNormalized, Excited]
SGD = horn.SGD(0.1, momentum=0.5)


@pytest.mark.parametrize(
    "connection, shape",
    [(horn.Convolution(3, 2), (3, 4, 2)), (horn.Local(2, 2), (4, 1)),
     (horn.OneToOne(), (3, 2, 2)), (horn.Tied, (2, 3, 1))],
    ids=["convolution", "local", "one to one", "tied"],
)  # fmt: skip
@pytest.mark.parametrize("neuron", NEURONS)
def test_the_interpreter_is_the_law(neuron, connection, shape):
    if connection is horn.Tied:
        net = horn.Network(seed=3)
        net.input(shape)
        maps = net.layer(connect=horn.Convolution(2, 2), activation="tanh")
        net.layer(connect=horn.Tied(maps), neuron=neuron)
        net.output(3, activation="softmax", loss="cross_entropy")
    else:
        net = through(neuron, connection, shape)
    compare(net, SGD, 4)


@pytest.mark.parametrize("neuron", [BatchNormalized, InstanceNormalized])
def test_derived_gradients_are_finite_differences(neuron):
    setup = Setup(through(neuron), horn.SGD(0.1), "labels", 5, "float64", 1)
    check_gradients("kernels", setup, samples(setup.network), 6)


def test_a_map_has_one_mean_of_all_samples_and_positions():
    net = through(BatchNormalized)
    engine = make("kernels", Setup(net, horn.SGD(0.0), "labels", 12, "float64", 1))
    data = samples(net)
    engine.bind(data)
    arrays = engine.parameters()
    found = engine.probe(np.arange(12), iteration=0, first_sample=0)["space.output"]
    x, w = data.x.reshape(12, 3, 4, 2), arrays["space.weight"]
    z = np.zeros((12, 2, 3, 3))
    for r, c in np.ndindex(2, 3):
        z[:, r, c] = np.einsum("bhwc,ohwc->bo", x[:, r : r + 2, c : c + 2], w)
    mean, var = z.mean(axis=(0, 1, 2)), z.var(axis=(0, 1, 2))
    expected = (z - mean) / np.sqrt(var + 1e-3)
    np.testing.assert_allclose(found.reshape(z.shape), expected, atol=1e-12)
    engine.step(np.arange(12), iteration=0, first_sample=0)
    states = engine.states()
    np.testing.assert_allclose(states["space.average"].reshape(6, 3), np.tile(0.1 * mean, (6, 1)))
    average, spread = 0.1 * mean, 0.9 + 0.1 * var
    engine = make("kernels", Setup(net.until("space"), None, None, 12, "float64", 1))
    engine.load(
        {name: a for name, a in arrays.items() if name.startswith("space")},
        {name: a for name, a in states.items() if name.startswith("space")},
    )
    predicted = (z - average) / np.sqrt(spread + 1e-3)
    np.testing.assert_allclose(engine.outputs(data.x).reshape(z.shape), predicted, atol=1e-12)


BATCHES = [np.array([0, 3, 4, 9]), np.array([1, 2, 5])]


@pytest.mark.parametrize(
    "neuron, where, n_tasks", share(2, [BatchNormalized, InstanceNormalized], PLACES, [2, 3])
)
def test_tasks_do_what_one_does(neuron, where, n_tasks):
    net = through(neuron)
    for work in ("neurons", "rows", CHANNELS):
        placement = place(net, [where, "receiver", "sender"], ["all", work, "neurons", "rows"])
        setup, data = Setup(net, SGD, "labels", 4, "float64", 1), samples(net)
        group = good(of_group("kernels", setup, data, BATCHES, placement, n_tasks))
        compare_tasks(group, of_one("kernels", setup, data, BATCHES), where)


@pytest.mark.parametrize("neuron", [BatchNormalized, InstanceNormalized])
@pytest.mark.parametrize("backend", ["reference", "kernels"])
def test_a_task_without_rows_asks_nothing(backend, neuron):
    net = through(neuron)
    setup, data = Setup(net, SGD, "labels", 2, "float64", 1), samples(net)
    batches = [np.array([0, 3]), np.array([4])]
    group = good(of_group(backend, setup, data, batches, Placement.rows(net), 3))
    compare_tasks(group, of_one(backend, setup, data, batches), backend)


@pytest.mark.parametrize("n_groups, n_tasks", [(2, 1), (3, 1), (2, 2)])
def test_groups_ask_all_of_the_batch(n_groups, n_tasks):
    net = through(BatchNormalized)
    setup, data = Setup(net, SGD, "labels", 4, "float64", 1), samples(net)
    found = good(
        of_groups("kernels", setup, data, BATCHES, Placement.default(net), n_groups, n_tasks)
    )
    one = of_one("kernels", setup, data, BATCHES)
    for group in range(n_groups):
        compare_tasks(found[group * n_tasks : (group + 1) * n_tasks], one, f"group {group}")


@pytest.mark.parametrize("neuron", [BatchNormalized, Excited])
def test_exports_ask_their_channels(neuron, tmp_path):
    pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    net = through(neuron)
    model = horn.Model(net, net.initial_parameters(), net.initial_states())
    model.export(tmp_path / "m.onnx")
    x = np.random.default_rng(0).random((5, net.n_inputs)).astype(np.float32)
    (found,) = ReferenceEvaluator(str(tmp_path / "m.onnx")).run(None, {"x": x})
    np.testing.assert_allclose(found, model.predict(x), atol=1e-6)


@pytest.mark.parametrize("backend", ["python", "kernels"])
def test_a_flat_layer_has_no_channels(backend):
    net = horn.Network()
    net.input(3)
    net.layer(2, neuron=InstanceNormalized)
    net.output(2, activation="softmax", loss="cross_entropy")
    with pytest.raises(CompileError, match="this layer has no positions: give it a shape, as"):
        engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 2, "float64", 1))
        engine.bind(samples(net))
        engine.step(np.arange(2), iteration=0, first_sample=0)
