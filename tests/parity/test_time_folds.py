"""Sums and extremes of messages without weights, in sequences: before, inside and after the circle.

They are folds, whose places in memory move from step to step as those of all other loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from tests.parity.test_time import compare, run


class Largest(horn.Neuron):
    def forward(self, messages: Any) -> None:
        self.feedforward(max(m.input for m in messages))


class Mean(horn.Neuron):
    def forward(self, messages: Any) -> None:
        self.feedforward(sum(m.input for m in messages) / len(messages))


class Trace(horn.Neuron):
    """Remembers by itself what it hears."""

    trace = horn.State(0.1, per="sample")

    def forward(self, messages: Any) -> None:
        trace = 0.7 * self.trace + 0.3 * sum(m.input for m in messages)
        self.trace = trace
        self.feedforward(trace)


def network(where: str, neuron: type[horn.Neuron]) -> horn.Network:
    net = horn.Network(seed=3)
    x = net.input((4, 1), steps=3)
    window: Any = horn.OneToOne() if neuron is Trace else horn.Window(2)
    if where == "below":  # of all steps together
        maps = net.layer(connect=horn.Convolution(2, 2), activation="tanh")
        seen = net.layer(connect=window, neuron=neuron, inputs=maps)
        net.layer(3, activation="tanh", inputs=[seen, horn.Delayed()])
    elif where == "inside":  # the circle goes through it
        maps = net.layer(connect=horn.Convolution(2, 2), activation="tanh", inputs=x)
        h = net.layer(6, activation="tanh", inputs=[maps, horn.Delayed("seen")])
        some = horn.Sparse(sources=lambda o: [o, (o + 1) % 6])
        net.layer(6, connect=some, neuron=neuron, inputs=h, name="seen")
    else:
        h = net.layer(6, activation="tanh", inputs=[x, horn.Delayed()])
        net.layer(4, connect=horn.Sparse(fan_in=3), neuron=neuron, inputs=h)
    net.output(2, activation="softmax", loss="cross_entropy", each_step=True)
    return net


@pytest.mark.parametrize("where, neuron", [
    ("below", Largest), ("below", Trace), ("inside", Largest), ("inside", Mean), ("above", Mean),
])  # fmt: skip
def test_folds_of_sequences(where: str, neuron: type[horn.Neuron]) -> None:
    rng = np.random.default_rng(2)
    data = rng.standard_normal((5, 3, 4)), rng.integers(0, 2, (5, 3))
    net = network(where, neuron)
    job = horn.Job(net, data, dtype="float64", batch_size=5, optimizer=horn.SGD(0.1, momentum=0.5))
    expected = run(job, "python")
    for backend in ("reference", "kernels"):
        compare(expected, run(job, backend), 1e-9)
