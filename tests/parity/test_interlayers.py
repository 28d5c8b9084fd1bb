"""What an interlayer says of its whole layer is the same compiled, interpreted and divided."""

from __future__ import annotations

import numpy as np
import pytest

import horn
from horn import math
from horn.backends import Setup, make
from horn.data import Dataset
from horn.partition.placement import LAYER_SPLITS, Placement
from tests.parity.test_tasks import compare, of_group, of_one

ROWS = 6


def standardised(output):
    """Layer normalisation, with the layer's size in words of its own."""
    centred = output - output.sum() / len(output)
    return centred / math.sqrt((centred**2).sum() / len(centred) + 1e-3)


def grown(output):
    return output * len(output - 1.0)


def network(interlayer, size: int = 5) -> horn.Network:
    net = horn.Network(seed=4)
    net.input(4)
    net.layer(size, activation="tanh", interlayer=interlayer)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def setup(net: horn.Network) -> Setup:
    return Setup(net, horn.SGD(0.1, momentum=0.9), "labels", ROWS, "float64", 1)


def data() -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset(rng.standard_normal((12, 4)), np.arange(12) % 3)


by_lambda = lambda output: output - output.sum() / len(output)  # noqa: E731
by_python = lambda output: output / (9.0 + sum(output)) - max(output) + min(output)  # noqa: E731


@pytest.mark.parametrize("interlayer", [standardised, grown, by_lambda, by_python])
@pytest.mark.parametrize("backend", ["kernels", "reference"])
def test_the_length_of_a_layer_is_the_interpreters(interlayer, backend):
    found = []
    for name in ("python", backend):
        engine = make(name, setup(network(interlayer)))
        engine.bind(data())
        found.append(engine.probe(np.arange(ROWS), iteration=0, first_sample=0))
    for name, expected in found[0].items():
        np.testing.assert_allclose(found[1][name], expected, rtol=1e-9, atol=1e-12, err_msg=name)
    plain = network(lambda output: output * 5.0)
    if interlayer is grown:
        engine = make(backend, setup(plain))
        engine.bind(data())
        again = engine.probe(np.arange(ROWS), iteration=0, first_sample=0)
        np.testing.assert_allclose(found[1]["layer1.output"], again["layer1.output"])


@pytest.mark.parametrize("work", list(LAYER_SPLITS))
@pytest.mark.parametrize("n_tasks", [2, 3])
def test_the_length_of_a_divided_layer_is_of_the_whole(n_tasks, work):
    net = network(standardised)
    placement = Placement(
        {(1, 0): "receiver", (2, 0): "sender"}, {layer.index: work for layer in net.layers}
    )
    batches = [np.arange(ROWS), np.arange(ROWS - 2) + 3]
    one = of_one("kernels", setup(net), data(), batches)
    group = of_group("kernels", setup(net), data(), batches, placement, n_tasks)
    compare(group, one, f"{n_tasks} tasks, {work}")
