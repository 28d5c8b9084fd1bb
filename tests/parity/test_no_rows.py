"""A short batch whose last tasks have no rows: their sums are of nothing."""

import numpy as np
import pytest

import horn
from horn.backends import Setup
from horn.data import Dataset
from horn.partition.placement import Placement
from tests.parity.test_patches import NEURONS
from tests.parity.test_tasks import compare, of_group, of_one
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
