"""self.target in sequences: where the last step is judged, that target is known at every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from tests.parity import test_time_receivers as receivers
from tests.parity import test_time_together as together
from tests.parity.test_time import compare, engine_of, run

BACKENDS = ("python", "reference", "kernels")


class DeltaRule(horn.Neuron):
    fade = 0.0

    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        error = y - self.target if self.training else 0.0
        for m in messages:
            self.push(error * m.input)
        self.feedforward(y)


class Fading(horn.Neuron):
    """Its errors of the whole sequence, fading, are what it learns from."""

    fade = 0.5
    fading = horn.State(0.0, per="sample")

    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        if self.training:
            self.fading = self.fade * self.fading + y - self.target
        else:
            self.fading = 0.0
        for m in messages:
            self.push(self.fading * m.input)
        self.feedforward(y)


class Centred(horn.Neuron):
    """Pushes what is above the mean of the layer's errors; who hears it late hears the target."""

    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        error = y - self.target if self.training else 0.0
        middle = self.mean(error, over="layer")
        for m in messages:
            self.push((error - middle) * m.input)
        if self.training:
            self.feedforward(0.5 * self.target + 0.5 * y)
        else:
            self.feedforward(y)


def sequences(lengths: list[int]) -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 3, 3)), rng.normal(size=(6, 2))
    cut = [row[:n] for row, n in zip(x, lengths, strict=True)]
    return (x if set(lengths) == {3} else cut), y


EVEN, SHORT, RAGGED = [3] * 6, [3, 3, 3, 3, 3, 2], [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("lengths", [EVEN, SHORT, RAGGED])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rule", [DeltaRule, Fading])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rule_hears_the_target_at_every_step(backend, rule, bias, lengths):
    """By hand, of one update: pushes of all steps, padding apart; the loss is of the last one."""
    x, y = sequences(lengths)
    net = horn.Network(seed=1)
    net.input(3, steps=3)
    net.output(2, neuron=rule, loss="squared_error", bias=bias, name="out")
    job = horn.Job(net, (x, y), horn.SGD(0.1), batch_size=6, dtype="float64")
    engine = engine_of(job, backend)
    w = engine.parameters()["out.weight"].copy()
    pushed, pushed_bias, loss = np.zeros((2, 3)), np.zeros(2), 0.0
    for row, target in zip(x, y, strict=True):
        error = np.zeros(2)
        for heard in row:
            error = rule.fade * error + w @ heard - target
            pushed += np.outer(error, heard)
            pushed_bias += error
        loss += 0.5 * ((w @ row[-1] - target) ** 2).sum() / 6
    assert engine.step(np.arange(6), iteration=0, first_sample=0) == pytest.approx(loss)
    found = engine.parameters()
    np.testing.assert_allclose(found["out.weight"], w - 0.1 * pushed / 6, rtol=1e-12)
    if bias:
        np.testing.assert_allclose(found["out.bias"], -0.1 * pushed_bias / 6, rtol=1e-12)


def several(is_ragged: bool) -> horn.Job:
    """Outputs of the last step, of which a layer hears one late, and one of each step."""
    net, rng = horn.Network(seed=2), np.random.default_rng(1)
    heard = net.input(3, steps=3)
    below = net.layer(4, activation="tanh", inputs=[heard, horn.Delayed("out")])
    net.output(3, neuron=Centred, inputs=below, loss="squared_error", name="out")
    net.output(2, neuron=DeltaRule, inputs=below, loss="squared_error", name="rule")
    net.output(2, neuron=Fading, inputs=below, loss="squared_error", each_step=True, name="more")
    x, each = rng.normal(size=(7, 3, 3)), rng.normal(size=(7, 3, 2))
    y = {"out": rng.integers(0, 3, 7), "rule": rng.normal(size=(7, 2)), "more": each}
    if is_ragged:
        lengths = [1 + k % 3 for k in range(7)]
        x, y["more"] = ([a[:n] for a, n in zip(one, lengths, strict=True)] for one in (x, each))
    how: dict[str, Any] = {"optimizer": horn.SGD(0.1, momentum=0.5), "batch_size": 7}
    job = horn.Job(net, (x, y), dtype="float64", **how)
    job.check_data()
    return job


@pytest.mark.parametrize("is_ragged", [False, True])
def test_the_law(is_ragged):
    job = several(is_ragged)
    found = run(job, "python")
    for backend in BACKENDS[1:]:
        compare(found, run(job, backend), 1e-9)


@pytest.mark.parametrize("is_ragged", [False, True])
def test_tasks_and_groups_hear_the_same(is_ragged):
    job = several(is_ragged)
    together.agree(job, "kernels", 2, 1)
    together.agree(job, "kernels", 1, 2)
    receivers.agree(job, "kernels", 2, receivers.of_all)
