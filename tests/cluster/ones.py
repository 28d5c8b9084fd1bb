"""A job whose every push is ones: what is learned counts pushes, so a sum is exact or wrong."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np

import horn
from horn.topology import Topology


class Ones(horn.Neuron):
    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input * m.weight
        self.feedforward(self.activation(total))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            self.push(1.0)
        self.backpropagate(0.0 * error)


@dataclass(frozen=True)
class Held:
    """The rate 1, after a while from an update on, until a file is there. See Agents.held."""

    since: int
    until: str

    def at(self, iteration: int) -> float:
        if iteration >= self.since and not os.path.exists(self.until):
            time.sleep(0.01)  # a server asks for each of its pieces
        return 1.0


def job(epochs: int = 4, since: int = 0, until: str = "") -> horn.Job:
    net = horn.Network(seed=3)
    net.input(8)
    net.layer(16, neuron=Ones, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((512, 8))
    y = (x[:, 0] > 0).astype(int)
    return horn.Job(
        net, (x, y), optimizer=horn.SGD(Held(since, until) if until else 1.0), batch_size=16,
        epochs=epochs, check=False, dtype="float64",
    )  # fmt: skip


def per_epoch(n_groups: int) -> int:
    """Pushes of each of so many groups."""
    topology = Topology(n_groups, 1, 1)
    return horn.Downpour(server_optimizer="job").prepared(job(), topology).iterations_per_epoch


def n_pushes(model: horn.Model) -> int:
    """How many pushes servers have applied, from a model that is learned from them alone."""
    began = job().network.initial_parameters(np.float64)["layer2.weight"]
    steps = began - model.parameters["layer2.weight"]
    found = np.unique(np.round(steps))
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-9)
    assert len(found) == 1, f"not all parameters have had the same pushes: {found}"
    return int(found[0])
