"""Sequences of which forward is computed again, part by part: the same numbers in less memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import horn
from horn.backends import Setup, make
from horn.checkpoint import Checkpoints
from horn.compiler import lower
from horn.compiler.parts import Sums, length_of
from horn.errors import CompileError, ModelError
from horn.ir import load
from horn.math import sigmoid, sqrt
from horn.partition.placement import Placement
from horn.partition.rewrite import partition
from horn.program import Buffer, Frame, Loop, Output, Parts, Post, reads, writes
from tests.parity.recurrent import LIF, LSTM
from tests.parity.test_groups import of_groups
from tests.parity.test_stateful import job_of as in_stream
from tests.parity.test_stateful import net_of, sequences
from tests.parity.test_tasks import of_one
from tests.parity.test_time import BATCHES, OPTIMIZERS, compare, elman, job_of
from tests.parity.test_time_ragged import job_of as ragged
from tests.parity.test_time_together import MANY, alike, in_pieces
from tests.support.runs import bits
from tests.transport.groups import good


def setup_of(job: Any, recompute: str | None, threads: int = 1) -> Setup:
    size = min(job.batch_size, len(job.data))
    return Setup(job.network, job.optimizer, "labels", size, job.dtype, threads,
                 recompute=recompute)  # fmt: skip


def engine_of(job: Any, backend: str, recompute: str | None, threads: int = 1) -> Any:
    engine = make(backend, setup_of(job, recompute, threads))
    engine.bind(job.data)
    return engine


def learned(job: Any, backend: str, recompute: str | None, threads: int = 1) -> dict[str, Any]:
    """Three updates, one of a short batch between."""
    engine = engine_of(job, backend, recompute, threads)
    losses = [engine.step(r, iteration=k, first_sample=5 * k) for k, r in enumerate(BATCHES)]
    states = {f"state {name}": array for name, array in engine.states().items()}
    answers = engine.outputs(job.data.x)
    return {"losses": np.array(losses), "outputs": answers, **engine.parameters(), **states}


def law(job: Any) -> None:
    expected = learned(job, "kernels", None)
    for backend in ("reference", "kernels"):
        compare(expected, learned(job, backend, "sqrt"), 1e-12)


@pytest.mark.parametrize("seed", [2, 11])
def test_generated_nets_learn_the_same(seed):
    """Several cells, delays and layers, draws, clipped gradients, weights, short batches."""
    law(job_of(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(500, 800))
def test_generated_nets_learn_the_same_at_length(seed):
    law(job_of(seed))


@pytest.mark.parametrize("seed", [3, 4])
def test_sequences_of_different_lengths_learn_the_same(seed):
    law(ragged(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_sequences_of_different_lengths_at_length(seed):
    law(ragged(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_longer_sequences_at_length(seed):
    """Parts of several steps, the last one shorter, delays longer than it."""
    steps = int(np.random.default_rng(seed).integers(8, 40))
    law(job_of(seed, steps=steps))


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("steps", [1, 11])
def test_delays_longer_than_a_part(steps, each):
    net = horn.Network(seed=steps)
    x = net.input(3, steps=steps)
    heard = {"x": x, "h": horn.Delayed(), "back": horn.Delayed("out", 5)}
    net.layer(4, neuron=LSTM, inputs=heard)
    net.output(2, activation="softmax", loss="cross_entropy", each_step=each, name="out")
    rng = np.random.default_rng(steps)
    y = rng.integers(0, 2, (5, steps) if each else 5)
    data = rng.normal(size=(5, steps, 3)), y
    law(horn.Job(net, data, dtype="float64", batch_size=5, optimizer=OPTIMIZERS[steps % 5]))


class Leaky(horn.Neuron):
    """What a Parameter is made of is known before any step."""

    decay = horn.Parameter(0.5)
    v = horn.State(0.0, per="sample")

    def forward(self, messages):
        self.v = sigmoid(self.decay) * self.v + sum(m.input * m.weight for m in messages)
        self.feedforward(self.v)


class Normed(horn.Neuron):
    """So is what weights alone add up to."""

    def forward(self, messages):
        size = sqrt(sum(m.weight**2 for m in messages))
        self.feedforward(sum(m.input * m.weight for m in messages) / size)


def job_of_known(cell: type[horn.Neuron]) -> Any:
    rng = np.random.default_rng(7)
    net = horn.Network(seed=7)
    net.layer(4, neuron=cell, inputs=[net.input(3, steps=9), horn.Delayed()], name="h")
    net.output(2, activation="softmax", loss="cross_entropy")
    data = rng.normal(size=(5, 9, 3)), rng.integers(0, 2, 5)
    return horn.Job(net, data, dtype="float64", batch_size=5, optimizer=horn.SGD(0.3, 0.9))


@pytest.mark.parametrize("cell", [Leaky, Normed])
def test_functions_of_learned_arrays_are_known_before_all_parts(cell):
    job = job_of_known(cell)
    law(job)
    expected = learned(job, "python", None)
    compare(expected, learned(job, "kernels", "sqrt"), 1e-9)
    if cell is Leaky:
        assert np.all(expected["h.decay"] != 0.5)


@pytest.mark.parametrize("cell", [Leaky, Normed])
def test_tasks_and_groups_know_them_too(cell):
    agree_together(job_of_known(cell), "kernels", 2, 2)


# --- together, and in pieces


def agree_together(job: Any, backend: str, n_groups: int, n_tasks: int) -> None:
    """Tasks and groups whose rows are computed again come to what one process that keeps all."""
    one = of_one(backend, setup_of(job, None), job.data, BATCHES)
    everybody = of_groups(backend, setup_of(job, "sqrt"), job.data, BATCHES,
                          Placement.rows(job.network), n_groups, n_tasks)  # fmt: skip
    for rank, found in enumerate(good(everybody)):
        alike(found.losses, one.losses, f"{rank}: losses")
        assert found.arrays.keys() == one.arrays.keys()
        for name, array in found.arrays.items():
            alike(array, one.arrays[name][found.places[name]], f"{rank}: {name}")


@pytest.mark.parametrize("many", [(2, 1), (1, 3), (2, 2)])
def test_tasks_and_groups_compute_their_rows_again(many):
    agree_together(job_of(103), "kernels", *many)


@pytest.mark.slow
@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("seed", range(100, 140))
def test_tasks_and_groups_at_length(seed, many):
    agree_together((job_of, ragged)[seed % 2](seed), ("reference", "kernels")[seed // 2 % 2], *many)


def test_a_tasks_part_adds_up_before_it_travels():
    """What parts add up goes off once, behind all of them."""
    net = elman(9, each=True)
    program = lower.training_program(net, horn.SGD(0.1), "label", thin=False, part=3)
    found = partition(program, Placement.rows(net), [program.loss])
    (at,) = (k for k, s in enumerate(found.statements) if isinstance(s, Parts))
    posts = [k for k, s in enumerate(found.statements) if isinstance(s, Post)]
    assert posts and at < min(posts)
    moved = {move.array for k in posts for move in found.statements[k].moves}
    assert {"h.weight.h.gradient", "h.weight.layer0.gradient", "loss"} <= moved


@pytest.mark.parametrize(
    ("backend", "cell", "delay"), [("kernels", LSTM, 5), ("reference", LIF, 1)]
)
def test_pieces_of_a_stream_are_computed_again(backend, cell, delay):
    """Losses, what is learned and what goes on to the next piece; of a short batch, too."""
    job = in_stream(net_of(cell, delay), sequences(7, 27), stateful=True, truncate=9)
    keeps, again = (in_pieces(engine_of(job, backend, how), job) for how in (None, "sqrt"))
    alike(again[0], keeps[0], "losses")
    assert again[1].keys() == keeps[1].keys()
    for name, array in keeps[1].items():
        alike(again[1][name], array, name)


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.cluster
def test_groups_of_processes_go_on_exactly(tmp_path):
    """In the middle of a stream, of which each group computes its lanes again: the same bits."""
    job = in_stream(net_of(), sequences(7, 27), stateful=True, truncate=9, epochs=2)
    one = horn.train(job, progress=False)
    job = job.with_settings(recompute="sqrt")
    how = {"checkpoints": tmp_path, "checkpoint_every": 1, "keep_checkpoints": 99}
    whole = horn.train(job, progress=False, groups=2, **how)
    rest = horn.train(job, progress=False, groups=2, resume=Checkpoints(tmp_path).open(8).path)
    assert bits(rest) == bits(whole)
    for name, array in one.model.parameters.items():
        alike(whole.model.parameters[name], array, name)


def test_a_plan_has_a_part_in_memory():
    data = np.zeros((16, 400, 3), np.float32), np.zeros(16, int)
    found = [
        horn.plan(horn.Job(elman(400), data, batch_size=16, recompute=how), tasks=2)
        for how in (None, "sqrt")
    ]
    kept, again = (max(each.memory_bytes["activations"]) for each in found)
    assert again < kept / 8
    assert 1.1 < found[1].predicted_s / found[0].predicted_s < 2


def test_two_threads_have_the_bits_of_one():
    job = job_of(4, dtype="float32")
    one, two = (learned(job, "kernels", "sqrt", threads) for threads in (1, 2))
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_a_thousand_steps_take_an_eighth_of_the_memory():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(4, 1000, 3)), rng.integers(0, 2, 4)
    taken = []
    for recompute in (None, "sqrt"):
        job = horn.Job(elman(1000), data, batch_size=4, optimizer=horn.SGD(0.1))
        engine = engine_of(job, "kernels", recompute)
        engine.step(np.arange(4), iteration=0, first_sample=0)
        loop = engine.training_runner.loop
        buffers = {id(s.memory): s.memory.nbytes for s in loop.memory.spans.values()}
        begun = sum(a.nbytes for part in loop.begun for a in part)
        taken.append(sum(buffers.values()) + begun)
    assert taken[1] < taken[0] / 8
    assert length_of(1000) == 32


def test_a_job_of_many_steps_takes_less_memory():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(16, 300, 2)).astype(np.float32), rng.integers(0, 2, 16)
    peaks, found = [], []
    for recompute in (None, "sqrt"):
        net = horn.Network(seed=1)
        x = net.input(2, steps=300)
        net.layer(100, activation="tanh", inputs=[x, horn.Delayed()])
        net.output(2, activation="softmax", loss="cross_entropy")
        job = horn.Job(net, data, batch_size=16, epochs=1, check=False, recompute=recompute,
                       optimizer=horn.SGD(0.1))  # fmt: skip
        tracemalloc.start()
        found.append(horn.train(job, progress=False, threads=1))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    n_bytes = 4 * 300 * 16 * 100  # of one buffer of all steps
    assert peaks[0] - peaks[1] > n_bytes
    for name, array in found[0].model.parameters.items():
        np.testing.assert_allclose(found[1].model.parameters[name], array, 0, 1e-6)


def test_what_is_refused():
    data = np.zeros((4, 6, 3)), np.zeros(4, int)
    with pytest.raises(ModelError, match='recompute is "sqrt" or None'):
        horn.Job(elman(6), data, recompute="half")
    net = horn.Network()
    net.input(3)
    net.output(2, activation="softmax", loss="cross_entropy")
    with pytest.raises(ModelError, match="network of sequences"):
        horn.Job(net, (np.zeros((4, 3)), data[1]), recompute="sqrt")
    net = horn.Network()
    x = net.input(3, steps=6)
    net.layer(4, inputs=[horn.Reversed(x), horn.Delayed()])
    net.output(2, activation="softmax", loss="cross_entropy")
    with pytest.raises(ModelError, match="reversed needs all"):
        horn.Job(net, data, recompute="sqrt")


class Pushes(horn.Neuron):
    """A rule of its own that reads what its synapses remember."""

    trace = horn.SynapseState(0.0)

    def forward(self, messages):
        y = sigmoid(sum(m.input * m.weight for m in messages))
        for m in messages:
            self.push(-y * m.trace)
            m.trace = 0.5 * m.trace + m.input
        self.feedforward(y)


class Remembers(horn.Neuron):
    trace = horn.SynapseState(0.0)

    def forward(self, messages):
        total = 0.0
        for m in messages:
            m.trace = 0.5 * m.trace + m.input
            total += m.trace * m.weight
        self.feedforward(sigmoid(total))


@pytest.mark.parametrize("backend", ["python", "reference", "kernels"])
def test_synapse_states_are_refused_where_neurons_push(backend):
    def job(cell: Any) -> horn.Job:
        net = horn.Network(seed=1)
        net.layer(2, neuron=cell, inputs=net.input(2, steps=3))
        net.output(1, loss="squared_error")
        x = np.random.default_rng(0).normal(size=(2, 3, 2))
        return horn.Job(net, (x, x[:, 0, :1]), dtype="float64")

    with pytest.raises(CompileError, match="has one step where a neuron pushes in forward"):
        engine_of(job(Pushes), backend, "sqrt")
    found, expected = (learned_once(job(Remembers), backend, how) for how in ("sqrt", None))
    compare(expected, found, 1e-12)


def learned_once(job: Any, backend: str, recompute: str | None) -> dict[str, Any]:
    engine = engine_of(job, backend, recompute)
    engine.step(np.arange(2), iteration=0, first_sample=0)
    return {**engine.parameters(), **engine.states()}


def test_what_all_steps_say_together_is_refused_with_its_layer():
    """A sum over the steps, what follows of it, and a step that asks for that."""
    net = job_of_known(Leaky).network
    buffers = {"x": Buffer("x", ("b", "n1")), "p": Buffer("p", ("n1",), "learned")}
    buffers |= {name: Buffer(name, ("n1",)) for name in ("sum", "part.4", "known")}
    buffers["y"] = Buffer("y", ("b", "n1"))

    def loop(name: str, node: Any, axis: str = "") -> Loop:
        return Loop(Frame(1), (Output(name, node, axis, "sum" if axis else ""),))

    def has_rows(s: Any) -> bool:
        return any("b" in buffers[name].axes for name in (*reads(s), *writes(s)))

    begins = loop("known", load("p", "o") * load("p", "o"))
    total = loop("sum", load("x", "bo") * load("known", "o"), "b")
    follows = loop("part.4", load("sum", "o") * load("known", "o"))
    asks = loop("y", load("x", "bo") * load("part.4", "o"))
    found = Sums(net, buffers, [begins, total, follows], has_rows, ["x"])
    assert (found.known, found.after) == ([begins], [follows])
    assert Sums(net, buffers, [begins], has_rows, ["p"]).known == []  # steps change it
    with pytest.raises(CompileError, match=r"^h \(Leaky\): part.4: .* train without it"):
        Sums(net, buffers, [begins, total, follows, asks], has_rows, ["x"])
