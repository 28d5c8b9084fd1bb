"""What the cost model says of sums and folds over windows."""

from __future__ import annotations

import numpy as np
import pytest

import horn
from horn.compiler.lower import training_program
from horn.partition.placement import Placement
from horn.partition.rewrite import partition
from horn.planner import plan
from horn.planner.cost_model import Costs, StepCost
from horn.planner.machine import Machine
from tests.support.neurons import MaxPool

ROWS = 64
HERE = Machine(n_cores=64, call_s=0.0, batch_s=0.0)


def network(activation: str = "relu", pool: type[horn.Neuron] = MaxPool) -> horn.Network:
    net = horn.Network(seed=1)
    net.input((16, 16, 8))
    net.layer(connect=horn.Convolution(24, 3, padding="same"), activation=activation)
    net.layer(connect=horn.Window(2, stride=2), neuron=pool)
    net.output(4, activation="softmax", loss="cross_entropy")
    return net


def cost(
    net: horn.Network, n_tasks: int = 1, rows: int = ROWS, where: str = "receiver"
) -> StepCost:
    program = training_program(net, horn.SGD(0.1), "label", thin=False)
    if n_tasks > 1:
        links = {(layer.index, 0): where for layer in net.layers[1:]}
        work = "rows" if where == "replicated" else "neurons"
        layers = {layer.index: work for layer in net.layers[1:]}
        program = partition(program, Placement(links, {0: "all", **layers}))
    return Costs(net, HERE, n_tasks, rows).step(program)


def test_sums_over_windows_cost_their_synapses_in_whole_vectors():
    net = network("identity")
    edges = net.layers[1].links[0].edges
    assert edges is not None
    each = HERE.window_s["forward"] + 32 / 24 * HERE.window_s["gradient"]  # 24 maps in vectors
    assert 1.0 < cost(net).layers[1] / (len(edges.indices) * ROWS * each) < 1.3
    few, full, more = (cost(net, rows=n).layers[1] for n in (17, 32, 33))
    assert 0.7 * full < few <= full < 0.9 * more


def test_what_is_done_with_sums_is_free_and_pooling_is_no_walk_over_synapses():
    class Smooth(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(horn.math.exp(m.input) for m in messages))

    assert cost(network("relu")).layers[1] <= cost(network("tanh")).layers[1]
    assert cost(network()).layers[2] < 0.3 * cost(network(pool=Smooth)).layers[2]


def test_squared_differences_over_windows_cost_their_synapses():
    class Near(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum((m.input - m.weight) ** 2 for m in messages))

    class Nearest(horn.Neuron):
        def forward(self, messages):
            self.feedforward(min((m.input - m.weight) ** 2 for m in messages))

    def layer(neuron: type[horn.Neuron]) -> float:
        net = horn.Network(seed=1)
        net.input((16, 16, 8))
        net.layer(connect=horn.Convolution(24, 3, padding="same"), neuron=neuron, bias=False)
        net.output(4, activation="softmax", loss="cross_entropy")
        return float(cost(net).layers[1])

    assert layer(Near) < 0.5 * layer(Nearest)  # which goes synapse by synapse


@pytest.mark.parametrize("where", ["receiver", "replicated"])
def test_two_tasks_compute_half_each_by_positions_or_by_samples(where):
    one, two = cost(network()), cost(network(), 2, where=where)
    for layer in (1, 2):
        assert two.layers[layer] == pytest.approx(one.layers[layer] / 2, rel=0.25)


def wide(net: horn.Network) -> None:
    net.input((4, 4, 128))
    for _ in range(2):
        net.layer(connect=horn.Convolution(128, 3, padding="same"), activation="relu")


def tall(net: horn.Network) -> None:
    net.input((32, 32, 3))
    for _ in range(2):
        net.layer(connect=horn.Convolution(16, 3, padding="same"), activation="relu")


def narrowing(net: horn.Network) -> None:
    net.input((4, 4, 16))
    net.layer(connect=horn.Convolution(256, 3, padding="same"), activation="relu")
    net.layer(connect=horn.Convolution(32, 3, padding="same"), activation="relu")


@pytest.mark.parametrize(
    "build, batch, where",
    [(wide, 16, "input_channels"), (narrowing, 16, "input_channels"), (tall, 1, "rows"),
     (tall, 64, "replicated")],
)  # fmt: skip
def test_tasks_divide_what_moves_the_least(build, batch, where):
    """Many weights and small images: channels, by turns of the maps and of those below. A batch of
    one: positions. A large one: samples.
    """
    net = horn.Network(seed=1)
    build(net)
    net.output(4, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    x = rng.random((batch, net.n_inputs), np.float32)
    job = horn.Job(net, data=(x, rng.integers(0, 4, batch)), batch_size=batch)
    found = plan.cheapest(job, 2, machine=Machine(), threads=1)
    said = found.placement.links[2, 0]
    assert said == where or where == "rows" and said in ("receiver", "sender")


class Manhattan(horn.Neuron):
    def forward(self, messages):
        self.feedforward(-sum(abs(m.input - m.weight) for m in messages))


def test_patches_cost_what_dense_loops_do(monkeypatch):
    """Samples and positions are rows; what tasks divide by neurons runs on synapses."""

    def windows() -> horn.Network:
        net = horn.Network(seed=1)
        net.input((16, 16, 8))
        net.layer(connect=horn.Convolution(24, 3), neuron=Manhattan, bias=False)
        net.output(4, activation="softmax", loss="cross_entropy")
        return net

    dense = horn.Network(seed=1)
    dense.input(72)  # as many as a window has places
    dense.layer(24, neuron=Manhattan, bias=False)
    dense.output(4, activation="softmax", loss="cross_entropy")
    as_rows = cost(dense, rows=ROWS * 14 * 14).layers[1]
    patched = cost(windows()).layers[1]
    assert as_rows < patched < 3 * as_rows  # and the copies
    halves = cost(windows(), 2, where="replicated").layers[1]
    assert 0.4 * patched < halves < 0.6 * patched
    monkeypatch.setattr("horn.scheduling.patches.MIN_PLACES", 1000)
    on_synapses = cost(windows()).layers[1]
    assert on_synapses > 2 * patched
    assert cost(windows(), 2).layers[1] > 0.4 * on_synapses
