"""Layers wide enough that products read live weights in place: the backends agree."""

from __future__ import annotations

import numpy as np
import pytest

import horn
from horn._kernels.engine import Tape
from horn.backends import Setup, make
from horn.data import Dataset
from horn.neurons import BatchDropout


@pytest.mark.parametrize(
    "optimizer",
    [horn.SGD(0.1), horn.SGD(0.1, momentum=0.9), horn.Adam(0.01)],
    ids=["sgd", "momentum", "adam"],
)
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("batch", [20, 100, 300])
def test_wide_dropped_layers_train_alike(batch, n_threads, optimizer, rng):
    # given a net whose every layer drops per batch, some wide and one thin
    net = horn.Network(seed=3)
    net.input(150, keep=0.8, per="batch")
    for size in (130, 90, 12):
        net.layer(size, neuron=BatchDropout, activation="relu")
    net.output(5, activation="softmax", loss="cross_entropy")
    data = Dataset(rng.random((batch, 150), dtype=np.float32), rng.integers(0, 5, batch))
    # when both backends take the same steps
    engines = []
    for backend in ("reference", "kernels"):
        engine = make(backend, Setup(net, optimizer, "labels", batch, "float32", n_threads))
        engine.bind(data)
        for k in range(6):
            engine.step(np.arange(batch), iteration=k, first_sample=k * batch)
        engines.append(engine)
    # then they have the same weights, and the weights were read in place where that is possible
    expected, found = (engine.parameters() for engine in engines)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=2e-5, err_msg=name)
    in_place = engines[1].training_runner.writer.in_place
    possible = batch <= 256 and Tape(np.float32).reads_live
    assert set(in_place.values()) == ({"layer1.weight", "layer2.weight"} if possible else set())
