"""SynapseStates of sequences: what synapses remember from step to step, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn import math
from horn.compiler import lower
from horn.errors import ModelError
from tests.parity.test_stateful import engine_of, job_of
from tests.parity.test_time import compare, run

BACKENDS = ("python", "reference", "kernels")


class Eligible(horn.Neuron):
    """A local rule: one number goes on from batch to batch, one begins with every sequence."""

    trace = horn.SynapseState(0.1)
    slow = horn.SynapseState(0.2, per="sample")

    def forward(self, messages):
        y = math.tanh(sum(m.input * m.weight for m in messages))
        for m in messages:
            m.slow = 0.5 * m.slow + 0.3 * m.trace
            m.trace = 0.9 * m.trace + m.input * y
            self.push(m.trace * y - 0.1 * m.slow * m.weight)
        self.feedforward(y)


class Fast(horn.Neuron):
    """Fast weights: the output reads them, and weights learn by derived gradients."""

    fast = horn.SynapseState(horn.Normal(0.0, 0.3))
    own = horn.SynapseState(0.1, per="sample")
    gain = horn.Parameter(0.7)

    def forward(self, messages):
        z = sum(m.input * (m.weight + self.gain * m.fast) for m in messages)
        total = 0.0
        for m in messages:
            m.fast = 0.9 * m.fast + 0.1 * z * m.input * m.weight
            m.own = 0.5 * m.own + m.fast
            total += m.fast * m.input + 0.1 * m.own
        self.feedforward(math.tanh(z + 0.5 * total))


def net_of(cell: Any, connect: Any, *, is_heard: bool, each: bool = True) -> horn.Network:
    net = horn.Network(seed=1)
    x = net.input(4, steps=4)
    heard = [x, horn.Delayed()] if is_heard else [x]
    net.layer(3, neuron=cell, inputs=heard, connect=connect, name="cell")
    net.output(2, activation="softmax", loss="cross_entropy", each_step=each, name="out")
    return net


def data_of(n: int = 5, steps: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, steps, 4)), rng.integers(0, 2, (n, steps))


CASES = [
    (cell, connect, heard)
    for cell in (Eligible, Fast)
    for connect in (None, horn.Sparse(fan_in=2), horn.Convolution(2, kernel=2))
    for heard in (False, True)
    if not (heard and isinstance(connect, horn.Convolution))
]
FEW = [(Eligible, None, True), (Fast, horn.Sparse(fan_in=2), True)]


def law(cell: Any, connect: Any, heard: bool, seed: int) -> None:
    if isinstance(connect, horn.Convolution):
        net = horn.Network(seed=1)
        net.layer(neuron=cell, inputs=net.input((4, 1), steps=4), connect=connect, name="cell")
        net.output(2, activation="softmax", loss="cross_entropy", each_step=True)
    else:
        net = net_of(cell, connect, is_heard=heard)
    job = horn.Job(net, data_of(seed=seed), dtype="float64", batch_size=5,
                   optimizer=horn.SGD(0.1, momentum=0.5))  # fmt: skip
    found = run(job, "python")
    for backend in BACKENDS[1:]:
        compare(found, run(job, backend), 1e-9)


@pytest.mark.parametrize(("cell", "connect", "heard"), FEW)
def test_three_backends_remember_alike(cell, connect, heard):
    law(cell, connect, heard, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("cell", "connect", "heard"), CASES)
def test_the_law_at_length(cell, connect, heard, seed):
    law(cell, connect, heard, seed)


class OfBias(horn.Neuron):
    """Its bias remembers something that waits for no other layer."""

    kept = horn.SynapseState(0.0)

    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input * m.weight + 0.1 * m.kept
            m.kept = 0.9 * m.kept + 0.1 * m.input
        self.feedforward(math.tanh(total))


@pytest.mark.parametrize("below", [horn.Standard, OfBias])
def test_synapses_above_a_reversal_remember_step_by_step(below):
    """What the bias remembers was computed for all steps before the reversal, and each step behind
    it read what the last one left.
    """
    net = horn.Network(seed=1)
    x = net.input(4, steps=4)
    net.layer(3, neuron=below, inputs=[horn.Reversed(x), horn.Delayed()])
    net.layer(3, neuron=OfBias)
    net.output(2, activation="softmax", loss="cross_entropy", each_step=True)
    job = horn.Job(net, data_of(), dtype="float64", batch_size=5, optimizer=horn.SGD(0.1))
    found = run(job, "python")
    for backend in BACKENDS[1:]:
        compare(found, run(job, backend), 1e-9)


@pytest.mark.parametrize("cell", [Eligible, Fast])
def test_in_pieces_synapses_remember_what_they_do_of_the_whole(cell):
    data = data_of(3, 8)
    net = net_of(cell, None, is_heard=True)
    whole = job_of(net.of_steps(8, asks_each=False), data)
    parts = job_of(net, data, stateful=True)
    expected, heard = engine_of(whole).outputs(whole.data.x), list[dict[str, np.ndarray]]()
    for backend in BACKENDS:
        engine = engine_of(parts, backend)
        found = engine.outputs(parts.data.x, pieces=2).reshape(3, 8, 2)
        np.testing.assert_allclose(found, expected, 0, 1e-12)
        for piece in range(2):
            engine.step(np.arange(3) * 2 + piece, iteration=piece, first_sample=0)
        heard.append({**engine.parameters(), **engine.states(), **engine.memory()["heard"]})
    for other in heard[1:]:
        compare(heard[0], other, 1e-11)


@pytest.mark.parametrize("cell", [Eligible, Fast])
def test_behind_the_end_of_a_sequence_nothing_is_remembered(cell):
    """Of sequences of other lengths each one is as if it were alone."""
    x, y = data_of(3)
    lengths = [2, 4, 3]
    data = (
        [a[:n] for a, n in zip(x, lengths, strict=True)],
        [a[:n] for a, n in zip(y, lengths, strict=True)],
    )
    job = job_of(net_of(cell, None, is_heard=True), data)
    found = [run_of(engine_of(job, backend)) for backend in BACKENDS]
    for other in found[1:]:
        compare(found[0], other, 1e-10)


@pytest.mark.parametrize("cell", [Eligible, Fast])
def test_layers_in_both_directions_remember(cell):
    net = horn.Network(seed=1)
    x = net.input(4, steps=4)
    there = net.layer(3, neuron=cell, inputs=[x, horn.Delayed()])
    back = net.layer(2, neuron=cell, inputs=horn.Reversed(there))
    net.output(2, activation="softmax", loss="cross_entropy", each_step=True,
               inputs=[there, horn.Reversed(back)])  # fmt: skip
    job = horn.Job(net, data_of(), dtype="float64", batch_size=5, optimizer=horn.SGD(0.1))
    found = run(job, "python")
    for backend in BACKENDS[1:]:
        compare(found, run(job, backend), 1e-9)


def run_of(engine: Any) -> dict[str, np.ndarray]:
    loss = [engine.step(np.array(r), iteration=k, first_sample=0)
            for k, r in enumerate([[0, 1, 2], [2, 0], [0]])]  # fmt: skip
    return {"loss": np.array(loss), **engine.parameters(), **engine.states()}


def test_a_stream_remembers_as_prediction_does():
    data = data_of(2)
    job = horn.Job(net_of(Fast, None, is_heard=True), data, epochs=1)
    model = horn.train(job, progress=False).model
    np.testing.assert_allclose(model.stream()(data[0][1]), model.predict(data[0])[1], 0, 1e-5)


def test_where_nothing_comes_back_one_step_is_kept():
    program = lower.training_program(net_of(Eligible, None, is_heard=True), horn.SGD(0.1), "label")
    wide = [b for b in program.buffers.values() if len(b.axes) == 3]
    assert {b.name for b in wide} >= {"cell.trace.layer0.now", "cell.slow.cell.now"}
    assert all(b.span is None for b in wide)


def test_what_is_kept_and_what_begins_anew():
    job = horn.Job(net_of(Eligible, None, is_heard=False), data_of(), epochs=1)
    states = horn.train(job, progress=False).model.states
    assert (states["cell.slow"] == np.float32(0.2)).all() and np.ptp(states["cell.trace"]) > 0


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("cell", "how"),
    [
        (Eligible, {"groups": 2, "tasks": 2}),
        *(
            pytest.param(cell, how, marks=pytest.mark.slow)
            for cell in (Eligible, Fast)
            for how in ({"tasks": 2}, {"tasks": 3}, {"groups": 2})
        ),
    ],
)
def test_tasks_and_groups_remember_as_one(cell, how):
    job = horn.Job(net_of(cell, None, is_heard=True), data_of(7), dtype="float64", epochs=2,
                   batch_size=5)  # fmt: skip
    found = [horn.train(job, progress=False, **given).model for given in ({}, how)]
    one, other = ({**each.parameters, **each.states} for each in found)
    for name, array in one.items():
        np.testing.assert_allclose(other[name], array, 0, 1e-12, err_msg=name)


def test_what_is_refused():
    class Later(horn.Neuron):
        kept = horn.SynapseState(0.0)

        def forward(self, messages):
            self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

        def backward(self, messages):
            for m in messages:
                m.kept = 0.9 * m.kept + m.delta
                self.push(m.kept * self.output)
            self.backpropagate(sum(m.delta * m.weight for m in messages))

    with pytest.raises(ModelError, match=r"layer1 \(Later\): a SynapseState of backward is not"):
        net = horn.Network()
        net.layer(2, neuron=Later, inputs=net.input(4, steps=4))
        net.output(2, activation="softmax", loss="cross_entropy")
        horn.Job(net, data_of())
    with pytest.raises(ModelError, match=r'SynapseState: per must be "run" or "sample"'):
        horn.SynapseState(0.0, per="step")
    with pytest.raises(ModelError, match=r'has a SynapseState\(per="sample"\), but the samples'):
        net = horn.Network()
        net.layer(2, neuron=Eligible, inputs=net.input(4))
        net.output(2, activation="softmax", loss="cross_entropy")
        horn.Job(net, (np.zeros((4, 4)), np.zeros(4, int)))
