"""Tasks whose sums are of nothing: without rows of a short batch, or without messages."""

import numpy as np
import pytest

import horn
from horn.backends import Setup
from horn.data import Dataset
from horn.partition.placement import Placement
from tests.parity.test_patches import NEURONS
from tests.parity.test_tasks import compare, of_group, of_one
from tests.support.neurons import RBF
from tests.transport.groups import good

ROWS = [np.arange(5), np.arange(5, 10), np.array([10])]


def dense(neuron):
    net = horn.Network(seed=3)
    net.input(40)
    net.layer(24, neuron=neuron)
    net.layer(20, neuron=neuron)
    return net


def windows(neuron):
    net = horn.Network(seed=3)
    net.input((7, 6, 3))
    net.layer(connect=horn.Convolution(4, 3, 2, "same"), neuron=neuron)
    net.layer(connect=horn.Convolution(2, 2), neuron=neuron)
    return net


@pytest.mark.parametrize("network", [dense, windows])
@pytest.mark.parametrize("neuron", NEURONS)
def test_tasks_that_share_rows_train_what_one_does(network, neuron):
    net = network(neuron)
    net.output(3, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(2)
    data = Dataset(0.3 * rng.random((11, net.n_inputs)), rng.integers(0, 3, 11))
    setup = Setup(net, horn.SGD(0.05, momentum=0.5), "labels", 5, "float64", 1)
    one = of_one("kernels", setup, data, ROWS)
    for n_tasks in (2, 3):
        group = of_group("kernels", setup, data, ROWS, Placement.rows(net), n_tasks)
        compare(good(group), one, f"{n_tasks} tasks")


# Rows at the border, whole tasks of them, that hear nothing, or that nothing hears.
UNHEARD = {
    "padding": ((3, 4, 2), horn.Convolution(2, 1, padding=1)),
    "wide": ((3, 4, 2), horn.Convolution(2, 2, padding=5)),
    "before": ((3, 4, 2), horn.Convolution(2, 2, padding=((5, 0), 0))),
    "after": ((3, 4, 2), horn.Convolution(2, 2, padding=((0, 5), (1, 0)))),
    "groups": ((3, 4, 2), horn.Convolution(4, 1, padding=1, groups=2)),
    "signal": ((3, 2), horn.Convolution(4, 1, padding=2, groups=2)),
    "local": ((3, 4, 2), horn.Local(2, 1, padding=1)),
    "window": ((3, 4, 2), horn.Window(1, padding=1)),
    "transposed": ((3, 4, 2), horn.TransposedConvolution(2, 1, padding=1)),
    "transposed groups": ((3, 4, 2), horn.TransposedConvolution(4, 1, padding=1, groups=2)),
}


@pytest.mark.parametrize("work", ["receiver", "sender"])
@pytest.mark.parametrize("neuron", [horn.neurons.Standard, RBF])
@pytest.mark.parametrize("name", UNHEARD)
def test_tasks_whose_rows_hear_nothing_or_are_not_heard_train_what_one_does(name, neuron, work):
    shape, connection = UNHEARD[name]
    net = horn.Network(seed=3)
    net.input(shape)
    net.layer(connect=horn.Convolution(2, 3, padding="same"), activation="tanh", name="below")
    net.layer(connect=connection, neuron=neuron, activation="tanh", name="t")
    net.output(3, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(2)
    data = Dataset(rng.normal(size=(9, net.n_inputs)), rng.integers(0, 3, 9))
    setup = Setup(net, horn.SGD(0.05, momentum=0.5), "labels", 5, "float64", 1)
    batches = [np.arange(5), np.arange(5, 9)]
    one = of_one("kernels", setup, data, batches)
    placement = Placement({(1, 0): "receiver", (2, 0): work, (3, 0): "sender"}, {0: "all"})
    compare(good(of_group("kernels", setup, data, batches, placement, 3)), one, "3 tasks")
