"""Several weights and memory per synapse under every strategy, in processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn import math, strategies
from tests.support.runs import nothing_is_left  # noqa: F401 (a fixture)


class Gated(horn.Neuron):
    value, gate = horn.Weight(), horn.Weight(init="normal", bias=0.5)

    def forward(self, messages: Any) -> None:
        gate = math.sigmoid(sum(m.input * m.gate for m in messages))
        self.feedforward(math.tanh(gate * sum(m.input * m.value for m in messages)))


class Heard(horn.Neuron):
    """Adds a little of what its synapses remember; the memory does not depend on the order."""

    kept = horn.SynapseState(0.0)

    def forward(self, messages: Any) -> None:
        z = sum(m.input * (m.weight + 0.1 * m.kept) for m in messages)
        for m in messages:
            m.kept = 0.9 * m.kept + 0.1 * m.input
        self.feedforward(self.activation(z))


def job(remembers: bool) -> horn.Job:
    net = horn.Network(seed=3)
    net.input(64)
    net.layer(12, neuron=Gated)
    net.output(
        10, neuron=Heard if remembers else horn.Standard, activation="softmax",
        loss="cross_entropy",
    )  # fmt: skip
    return horn.Job(
        net, horn.data.digits().take(480), horn.SGD(0.1, momentum=0.9), batch_size=32, epochs=3,
        dtype="float64",
    )  # fmt: skip


@pytest.mark.cluster
@pytest.mark.parametrize("name", strategies.names())
def test_every_strategy_trains_them(name: str, nothing_is_left: Any) -> None:  # noqa: F811
    remembers = name != "parallel-dropout"  # which says why it does not
    run = horn.train(job(remembers), groups=2, strategy=name, threads=1, progress=False)
    first = job(remembers).network.initial_parameters("float64")
    found = run.model.parameters
    assert found.keys() == first.keys() >= {"layer1.weight.gate", "layer1.bias.value"}
    for label, array in found.items():
        assert np.isfinite(array).all() and (array != first[label]).any(), label
    assert run.history[-1]["loss"] < 0.8 * run.history[0]["loss"]
    if remembers:
        kept = run.model.states["layer2.kept"]
        assert np.isfinite(kept).all() and (kept != 0.0).any()


@pytest.mark.cluster
@pytest.mark.parametrize("groups,tasks", [(1, 2), (2, 2)])
def test_groups_and_tasks_are_one(groups: int, tasks: int, nothing_is_left: Any) -> None:  # noqa: F811
    one = horn.train(job(True), threads=1, progress=False).model
    run = horn.train(job(True), groups=groups, tasks=tasks, threads=1, progress=False)
    for mine, theirs in ((run.model.parameters, one.parameters), (run.model.states, one.states)):
        assert mine.keys() == theirs.keys()
        for name, array in mine.items():
            np.testing.assert_allclose(array, theirs[name], rtol=1e-9, atol=1e-11, err_msg=name)
