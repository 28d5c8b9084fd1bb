"""Sequences in pieces: the law, what goes on and what does not, lanes, checkpoints, long
predictions, what is refused.
"""

from __future__ import annotations

import io
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import horn
from horn.backends import Setup, make
from horn.checkpoint import Checkpoints
from horn.errors import DataError, JobError, ModelError
from tests.parity.recurrent import GRU, LIF, LSTM, Distance
from tests.support.runs import bits

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("python", "reference", "kernels")
SGD = horn.SGD(0.1, momentum=0.9)


class Drawing(horn.Neuron):
    """Draws at every step, in prediction, too, and keeps a running value between batches."""

    seen = horn.State(0.05)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.seen = 0.5 * self.seen + 0.1 * total
        drawn = self.uniform() + self.uniform(per="sequence")
        self.feedforward(horn.math.tanh(total + self.seen) + 0.1 * drawn)


def net_of(
    cell: Any = LSTM, delay: int = 2, steps: int = 12, second: Any = Drawing
) -> horn.Network:
    net = horn.Network(seed=1)
    x = net.input(2, steps=steps)
    heard = {"x": x, "h": horn.Delayed(steps=1), "back": horn.Delayed("out", delay)}
    first = net.layer(3, neuron=cell, inputs=heard, name="cell")
    net.layer(2, neuron=second, inputs=[first, horn.Delayed(x, 2)], name="drawing")
    net.output(2, activation="softmax", loss="cross_entropy", each_step=True, name="out")
    return net


def sequences(n: int, steps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, steps, 2)), rng.integers(0, 2, (n, steps))


def job_of(net: horn.Network, data: Any, **how: Any) -> horn.Job:
    given = {"dtype": "float64", "batch_size": 4, "optimizer": SGD}
    return horn.Job(net, data, **{**given, **how})


def engine_of(job: horn.Job, backend: str = "kernels", threads: int = 1) -> Any:
    setup = Setup(job.network, job.optimizer, "labels", job.batch_size, job.dtype, threads)
    engine = make(backend, setup)
    engine.bind(job.data)
    return engine


@pytest.mark.parametrize(("cell", "delay", "steps"), [(LSTM, 5, 2), (Distance, 1, 6)])
def test_in_pieces_a_sequence_is_answered_as_whole(cell, delay, steps):
    law(cell, delay, steps, 2, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=100, deadline=None)
@given(
    cell=st.sampled_from([LSTM, GRU, LIF, Distance]), delay=st.integers(1, 7),
    steps=st.sampled_from([1, 2, 3, 4, 6]), n=st.integers(2, 4), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_law_at_length(cell, delay, steps, n, seed):
    law(cell, delay, steps, n, seed)


def law(cell: Any, delay: int, steps: int, n: int, seed: int) -> None:
    """Forward in pieces is forward of the whole, with its draws, in three backends."""
    data = sequences(n, 12, seed)
    whole = job_of(net_of(cell, delay), data)
    parts = job_of(net_of(cell, delay), data, stateful=True, truncate=steps)
    count = parts.data.pieces
    assert (parts.network.steps, count) == (steps, 12 // steps)
    for backend in BACKENDS:
        expected, found = engine_of(whole, backend), engine_of(parts, backend)
        sent = found.outputs(parts.data.x, pieces=count).reshape(n, 12, 2)
        np.testing.assert_allclose(sent, expected.outputs(whole.data.x), 0, 1e-12)
        (one, n_one), (all_, n_all) = found.losses(parts.data), expected.losses(whole.data)
        assert (one / count, n_one) == (pytest.approx(all_, abs=1e-9), n_all)


def test_three_backends_learn_alike_from_pieces():
    """Losses, what is learned and what goes on; of more sequences than a batch has."""
    job = job_of(net_of(), sequences(6, 13), stateful=True, truncate=3)
    found = []
    for backend in BACKENDS:
        engine = engine_of(job, backend)
        for k, rows in enumerate([0, 1, 2, 3, 0]):
            lanes = np.array([5, 0, 3, 1] if k < 4 else [2, 4])
            loss = engine.step(lanes * 4 + rows, iteration=k, first_sample=0 if k < 4 else 4)
        found.append({"loss": np.array(loss), **engine.parameters(), **engine.memory()["heard"]})
        assert {k: v.shape for k, v in engine.memory()["heard"].items()} == {
            "cell.cell.now": (4, 1, 3), "cell.output": (4, 1, 3), "drawing.seen.now": (4, 1, 2),
            "layer0.output": (4, 2, 2), "out.output": (4, 2, 2),
        }  # fmt: skip
    for other in found[1:]:
        for name, array in found[0].items():
            np.testing.assert_allclose(other[name], array, 0, 1e-11, err_msg=name)


def test_the_gradient_of_a_piece_is_that_of_finite_differences():
    """Trap 7: of the second piece, with what the first one has left held as it is."""
    job = job_of(net_of(GRU, 5, 4, horn.Standard), sequences(3, 12), stateful=True)
    engine, rows = engine_of(job), np.arange(3) * job.data.pieces
    engine.step(rows, iteration=0, first_sample=0)
    arrays = engine.parameters()
    found = engine.probe(rows + 1, iteration=1, first_sample=0)
    anew = engine.probe(rows, iteration=1, first_sample=0)
    assert abs(found["loss"] - anew["loss"]) > 1e-4
    for name, array in arrays.items():
        for place in list(np.ndindex(array.shape))[:: max(1, array.size // 5)]:
            losses = []
            for way in (1e-5, -1e-5):
                moved = {k: v.copy() for k, v in arrays.items()}
                moved[name][place] += way
                engine.load(moved, engine.states())
                again = engine.probe(rows + 1, iteration=1, first_sample=0)
                losses.append(float(again["loss"]))
            expected = (losses[0] - losses[1]) / 2e-5
            assert found[f"{name}.gradient"][place] == pytest.approx(
                expected, rel=1e-8, abs=1e-8
            ), name


def test_a_sequence_begins_anew_after_another():
    """In the next batch, in the next epoch, and in one with fewer sequences."""
    job = job_of(net_of(), sequences(5, 12), stateful=True, truncate=4)
    engine = engine_of(job)
    first = {n: engine.probe(np.arange(n) * 3, iteration=0, first_sample=0) for n in (4, 2)}
    still = engine.memory()["heard"]
    assert not any(array.any() for array in still.values())  # to look changes nothing
    arrays, states = engine.parameters(), engine.states()
    for piece in range(3):
        engine.step(np.arange(4) * 3 + piece, iteration=piece, first_sample=0)
    assert all(array.any() for array in still.values())
    engine.load(arrays, states)
    for n, expected in first.items():
        found = engine.probe(np.arange(n) * 3, iteration=0, first_sample=0)
        assert all(np.array_equal(found[name], array) for name, array in expected.items())


class Drawn(horn.Neuron):
    """Sends two draws of each step, and a draw of the sequence in thousands."""

    def forward(self, messages):
        own = self.normal(0.0, 1.0) + 10.0 * self.uniform(0.0, 1.0)
        of_all = horn.math.floor(self.uniform(0.0, 100.0, per="sequence"))
        self.feedforward(own + 1000.0 * of_all + 0.0 * sum(m.input * m.weight for m in messages))


@pytest.mark.parametrize("backend", ["kernels", "reference", "python"])
def test_draws_do_not_repeat_in_a_sequence_of_any_length(backend):
    """Nor depend on the pieces that it is heard in: one of them goes across 2**16 steps."""
    net = horn.Network(seed=1)
    net.layer(5, neuron=Drawn, inputs=[net.input(1, steps=3), horn.Delayed()])
    net.output(5, neuron=horn.neurons.Relay, connect=horn.OneToOne(), loss="squared_error",
               each_step=True)  # fmt: skip
    found = {}
    for steps in (1, 3, 7):
        setup = Setup(net.of_steps(steps), None, "labels", 1, "float64", 1)
        engine = make(backend, setup)
        engine.load(net.initial_parameters("float64"), net.initial_states("float64"))
        for first in (0, (2**16 - 5) // 21 * 21):
            pieces = range(first // steps, (first + 21) // steps)
            sent = [engine.go_on(np.zeros((1, steps)), k * steps, 4) for k in pieces]
            found[steps, first] = np.concatenate([each.reshape(-1, 5) for each in sent])
    for (_, first), each in found.items():
        np.testing.assert_array_equal(each, found[1, first])
    sent = np.concatenate([each for (steps, _), each in found.items() if steps == 1])
    assert len(np.unique(sent)) == sent.size
    assert (np.round(sent / 1000.0) == np.round(sent[0] / 1000.0)).all()


def test_two_threads_are_one_to_the_bit():
    job = job_of(net_of(), sequences(9, 12), stateful=True, truncate=3, dtype="float32",
                 batch_size=8)  # fmt: skip
    found = []
    for threads in (1, 2):
        engine = engine_of(job, threads=threads)
        for k in range(4):
            engine.step(np.arange(8) * 4 + k, iteration=k, first_sample=0)
        found.append({**engine.parameters(), **engine.memory()["heard"]})
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


# --- checkpoints


def told(run: horn.Run) -> list[dict[str, Any]]:
    timed = ("seconds", "samples_per_s")
    return [{k: v for k, v in row.items() if k not in timed} for row in run.history]


@pytest.mark.parametrize("backend", ["kernels", "python"])
def test_from_the_middle_of_a_stream_it_goes_on_as_undisturbed(backend, tmp_path):
    """To the bit, from every moment: of a batch, between two, at the end of an epoch."""
    few = backend == "python"
    job = job_of(net_of(steps=3), sequences(3 - few, 9 - 3 * few), stateful=True, batch_size=2,
                 epochs=2 - few, dtype="float32", validation=sequences(1, 9, 1))  # fmt: skip
    whole = horn.train(job, backend=backend, progress=False)
    how = {"checkpoint_every": 1, "keep_checkpoints": 99, "progress": False, "backend": backend}
    horn.train(job, checkpoints=tmp_path / "saved", **how)
    for moment in (1, 3, 5, 6) if not few else (1,):
        start = Checkpoints(tmp_path / "saved").open(moment).path
        run = horn.train(job, resume=start, backend=backend, progress=False)
        assert bits(run) == bits(whole) and told(run) == told(whole), moment


KILLED = """
import os, signal, sys
import horn
from tests.parity.test_stateful import SGD, job_of, net_of, sequences

class Killed(horn.Callback):
    def on_batch_end(self, context):
        if context.iteration == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

job = job_of(net_of(steps=3), sequences(3, 24), stateful=True, batch_size=2, epochs=2,
             callbacks=[Killed()])
run = horn.train(job, checkpoints=sys.argv[1], checkpoint_every=1, resume=True, progress=False)
run.model.save(sys.argv[3])
"""


@pytest.mark.cluster
def test_killed_in_the_middle_of_a_stream_and_resumed(tmp_path):
    """Processes that are killed twice, and one that comes to the end, leave what one would have."""
    for moment, code in ((5, -signal.SIGKILL), (18, -signal.SIGKILL), (0, 0)):
        given = [str(tmp_path / "saved"), str(moment), str(tmp_path / "model.horn")]
        done = subprocess.run([sys.executable, "-c", KILLED, *given], cwd=ROOT, timeout=120,
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == code, done.stderr
    job = job_of(net_of(steps=3), sequences(3, 24), stateful=True, batch_size=2, epochs=2)
    whole = horn.train(job, progress=False).model
    found = horn.Model.load(tmp_path / "model.horn")
    for name, array in {**whole.parameters, **whole.states}.items():
        assert np.array_equal({**found.parameters, **found.states}[name], array), name


# --- data


def test_one_long_sequence_is_cut_into_lanes():
    x = np.arange(103, dtype=np.float32)[:, None]
    net = horn.Network(seed=1)
    net.layer(2, inputs=[net.input(1, steps=10), horn.Delayed()], activation="tanh")
    net.output(1, loss="squared_error", each_step=True)
    job = horn.Job(net, (x, 2 * x), stateful=True, batch_size=2, epochs=3)
    assert (job.data.pieces, len(job.data), job.iterations_per_epoch) == (5, 10, 5)
    np.testing.assert_array_equal(job.data.x[:, 0], [0, 10, 20, 30, 40, 51, 61, 71, 81, 91])
    np.testing.assert_array_equal(job.data.y, 2 * job.data.x)
    held = horn.Job(net, (x, 2 * x), stateful=True, batch_size=2, validation=0.2)
    np.testing.assert_array_equal(held.validation.x[:, 0], [82, 92])  # its end, in one lane
    shorter = job.with_settings(truncate=5)
    assert (shorter.data.pieces, shorter.network.steps) == (10, 5)
    flat = horn.Job(net, (x[:, 0], 2 * x[:, 0]), stateful=True, batch_size=2)
    np.testing.assert_array_equal(flat.data.x, job.data.x)


def rhyme(times: int = 30) -> horn.data.Dataset:
    return horn.data.text(io.StringIO("she sells sea shells by the sea shore\n" * times))


def of_letters(n: int, steps: int) -> horn.Network:
    net = horn.Network(seed=1)
    letters = net.input(n, steps=steps)
    net.layer(12, neuron=LSTM, inputs=[letters, horn.Delayed()], name="memory")
    net.output(n, activation="softmax", loss="cross_entropy", each_step=True)
    return net


def test_other_settings_cut_the_sequences_anew():
    """As --set and sweeps give them: the lanes, and the steps that filled no piece, were lost."""
    x, y = sequences(3, 23)

    def job(data, **more):
        settings = {"batch_size": 3, "truncate": 4, "validation": (x, y), "test": (x, y)} | more
        return horn.Job(net_of(), data, stateful=True, **settings)

    for data in ((x, y), (x.reshape(69, 2), y.ravel())):
        for changes in ({"batch_size": 2}, {"truncate": 5}, {"batch_size": 1, "truncate": 3}):
            found, made = job(data).with_settings(**changes), job(data, **changes)
            assert found.n_iterations == made.n_iterations
            for what in ("data", "validation", "test"):
                one, other = getattr(found, what), getattr(made, what)
                assert one.pieces == other.pieces
                np.testing.assert_array_equal(one.x, other.x)
                np.testing.assert_array_equal(one.y, other.y)
    given = job((x, y)).with_settings(data=(x[:, :12], y[:, :12]), truncate=6).data
    assert (given.pieces, len(given)) == (2, 6)


@pytest.mark.parametrize("n", [1, 4])
def test_other_settings_hold_out_what_a_new_job_would(n):
    """The end of one sequence, or some of several; truncate=None is again of the network's steps"""
    x, y = sequences(n, 80)

    def job(**more):
        settings = {"batch_size": n, "truncate": 4, "validation": 0.5} | more
        return horn.Job(net_of(), (x, y), stateful=True, **settings)

    for changes in ({"validation": 0.25}, {"validation": None}, {"truncate": None}):
        found, made = job().with_settings(**changes), job(**changes)
        assert found.network.steps == made.network.steps
        np.testing.assert_array_equal(found.data.x, made.data.x)
        np.testing.assert_array_equal(found.data.y, made.data.y)


def test_a_text_as_one_stream(tmp_path):
    """From the text to a model that has learned, is saved, evaluated on all of another one, and
    predicts it whole as its stream does.
    """
    text = rhyme()
    n = len(text.classes)
    assert (text.x.shape, text.y.shape) == ((1139, n), (1139,))
    other = horn.data.text(io.StringIO("she sells shells by the shore\n" * 4),
                           alphabet=text.classes)  # fmt: skip
    job = horn.Job(of_letters(n, 19), text, stateful=True, truncate=10, batch_size=6, epochs=25,
                   optimizer=horn.Adam(0.02), validation=other)  # fmt: skip
    run = horn.train(job, progress=False)
    assert run.history[-1]["loss"] < 0.6 and run.history[-1]["acc"] > 0.8
    model = run.model
    assert model.network.steps == 10
    assert model.evaluate(other)["loss"] == pytest.approx(run.history[-1]["val_loss"], abs=1e-6)
    model.save(tmp_path / "m.horn")
    found = horn.Model.load(tmp_path / "m.horn").predict(other)
    hot = other.x.astype(np.float32)
    np.testing.assert_allclose(found, model.stream()(hot), 0, 1e-5)
    assert found.shape == (119, n)
    assert model.predict(other, labels=True).tolist() == model.labels_of(found).tolist()


def test_predictions_of_sequences_that_are_longer():
    """As the stream answers them; of one alone, and where the last step is judged."""
    x, y = sequences(3, 23)
    for each in (True, False):
        net = horn.Network(seed=1)
        numbers = net.input(2, steps=5)
        net.layer(3, neuron=LSTM, inputs=[numbers, horn.Delayed(steps=2)])
        net.output(2, activation="softmax", loss="cross_entropy", each_step=each)
        labels = y[:, :5] if each else y[:, 4]
        model = horn.train(horn.Job(net, (x[:, :5], labels), epochs=1), progress=False).model
        found = model.predict(x)
        for k in range(3):
            sent = model.stream()(x[k])
            np.testing.assert_allclose(found[k], sent if each else sent[-1], 0, 1e-5)
            np.testing.assert_allclose(model.predict(x[k]), found[k], 0, 1e-6)
        ends = (23, 9, 3)  # each as if it were alone
        lists = [one[:n] for one, n in zip(x, ends, strict=True)]
        apart = [model.predict(one[None])[0] for one in lists]
        for of_any in (lists, horn.data.sequences(lists)):
            for one, alone in zip(model.predict(of_any), apart, strict=True):
                np.testing.assert_allclose(one, alone, 0, 1e-6)
            labels = model.predict(of_any, labels=True)
            for one, alone in zip(labels, apart, strict=True):
                np.testing.assert_array_equal(one, alone.argmax(axis=-1))
            for one, said in zip(model.labels_of(model.predict(of_any)), labels, strict=True):
                np.testing.assert_array_equal(one, said)
        assert model.predict(x[:, :5]).shape == ((3, 5, 2) if each else (3, 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_of_sequences_that_are_longer_draws_as_its_row(backend, monkeypatch):
    """Those that are heard together, too, whatever their order: later ones drew as the first."""
    monkeypatch.setattr("horn.model_stream.NUMBERS", 40)  # 20 steps at once
    monkeypatch.setattr("horn.model_engines.PIECE_STEPS", 5)
    net = net_of(steps=2)
    arrays = net.initial_parameters(), net.initial_states()
    model = horn.Model(net, *arrays, backend=backend, dtype="float64")
    x, _ = sequences(6, 13)
    lists = [one[:n] for one, n in zip(x, (3, 9, 1, 13, 9, 4), strict=True)]
    stream = model.stream()
    for several in (lists, x):
        for row, found in enumerate(model.predict(several)):
            stream.reset(row)
            np.testing.assert_allclose(found, stream(several[row]), 0, 1e-12)


def test_short_sequences_are_not_heard_to_the_end_of_a_long_one(monkeypatch):
    """They were, three at a time, and in pieces of as few steps as the network has."""
    net = net_of(steps=3)
    model = horn.Model(net, net.initial_parameters(), net.initial_states())
    numbers = np.zeros((101, 1000, 2))
    lists = [numbers[k, : 1000 if k == 40 else 3] for k in range(101)]
    asked, outputs = [], type(make("kernels", Setup(net))).outputs

    def counted(engine, x, *how, **more):
        asked.append(x.size // 2)
        return outputs(engine, x, *how, **more)

    monkeypatch.setattr("horn.backends._compiled.CompiledEngine.outputs", counted)
    for several, steps in ((lists, [1024, 100 * 32]), (numbers[:100, :300], [100 * 320])):
        asked.clear()
        assert len(model.predict(several)) == len(several)
        assert asked == steps


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("steps", [2, 5, 8, 13, 15])
def test_all_steps_of_sequences_of_any_length_are_judged(steps, backend):
    """As by a network that takes them whole: also those of a last piece that is not full."""
    x, y = sequences(3, steps)
    net, whole = net_of(steps=5), net_of(steps=steps)
    models = [
        horn.Model(one, net.initial_parameters(), net.initial_states(), backend=backend,
                   dtype="float64")
        for one in (net, whole)
    ]  # fmt: skip
    for k in range(2):  # what one evaluation has heard the next one does not
        for one, as_samples in (((x[k], y[k]), (x[k : k + 1], y[k : k + 1])), ((x, y), (x, y))):
            found, expected = models[0].evaluate(*one), models[1].evaluate(*as_samples)
            assert found["loss"] == pytest.approx(expected["loss"], abs=1e-12)
            assert found["acc"] == expected["acc"]
    rows = horn.data.as_dataset((x[0], y[0]))
    assert models[0].evaluate(rows) == models[0].evaluate(x[0], y[0])


def test_pieces_are_not_judged_where_a_layer_hears_the_end_first():
    x, y = sequences(3, 13)
    net = horn.Network(seed=1)
    back = net.layer(3, inputs=[horn.Reversed(net.input(2, steps=5)), horn.Delayed()])
    net.output(2, activation="softmax", loss="cross_entropy", each_step=True,
               inputs=horn.Reversed(back))  # fmt: skip
    model = horn.Model(net, net.initial_parameters())
    assert model.evaluate(x[0, :4], y[0, :4]) == model.evaluate(x[:1, :4], y[:1, :4])
    with pytest.raises(ModelError, match="at most 5 steps, not pieces of longer ones"):
        model.evaluate(x, y)


# --- what is refused


def test_so_are_those_of_several_outputs_of_different_lengths():
    x, y = sequences(3, 23)
    net = horn.Network(seed=1)
    cell = net.layer(3, neuron=LSTM, inputs=[net.input(2, steps=5), horn.Delayed()])
    net.output(2, activation="softmax", loss="cross_entropy", each_step=True, name="each")
    net.output(1, loss="squared_error", inputs=cell, name="last")
    targets = {"each": y[:, :5], "last": x[:, 4, :1]}
    model = horn.train(horn.Job(net, (x[:, :5], targets), epochs=1)).model
    lists = [x[0], x[1, :9], x[2, :3]]
    found = model.predict(lists)
    for k, one in enumerate(lists):
        alone = model.predict(one[None])
        np.testing.assert_allclose(found["each"][k], alone["each"][0], 0, 1e-6)
        np.testing.assert_allclose(found["last"][k], alone["last"][0], 0, 1e-6)
        said = model.labels_of(found)["each"][k]
        np.testing.assert_array_equal(said, model.predict(lists, labels=True)["each"][k])
    with pytest.raises(DataError, match=r"x\[0\] is the longest.*pass 2 features at each step"):
        model.predict([np.zeros((9, 4)), np.zeros((3, 4))])


def test_data_sets_of_sequences_are_cut_as_arrays_are(tmp_path):
    """Of files, too, whose labels of each step horn reads as numbers; with and without lengths."""
    x, y = sequences(4, 12)
    np.savez(tmp_path / "plain.npz", x=x, y=y)
    np.savez(tmp_path / "ends.npz", x=x, y=y, lengths=np.full(4, 12))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    plain, ends, pair = (
        horn.data.load(spec.replace("@", str(tmp_path)))
        for spec in ("@/plain.npz", "@/ends.npz", "@/x.npy,@/y.npy")
    )

    def run(data, **more):
        job = horn.Job(net_of(steps=4), data, SGD, batch_size=2, epochs=1, stateful=True, **more)
        return horn.train(job)

    arrays = run((x, y), test=(x, y))
    for data in (plain, ends, pair, horn.data.sequences(x, y)):
        found = run(data, test=data)
        assert bits(found) == bits(arrays) and found.test == arrays.test
        # In pieces of other lengths, whose losses are added up in float32 in another order.
        assert found.model.evaluate(data) == pytest.approx(arrays.test, rel=1e-6)
        assert len(horn.train(horn.Job(net_of(), data, epochs=1)).history) == 1  # not in pieces
    np.savez(tmp_path / "turned.npz", x=x.transpose(0, 2, 1), y=y)
    turned = horn.data.load(str(tmp_path / "turned.npz"))
    for more in ({}, {"stateful": True, "truncate": 4}):
        with pytest.raises(DataError, match=r"shape \(2, 12\), but .*2 features.*transpose\(0, 2"):
            horn.Job(net_of(), turned, **more)


def test_a_model_of_pieces_of_one_step_hears_one_sequence():
    """Rows are its steps; they were answered each as a sequence of its own."""
    x, y = sequences(1, 12)
    job = job_of(net_of(), (x[0], y[0]), stateful=True, truncate=1, test=(x[0], y[0]))
    run = horn.train(job, progress=False)
    for model in (run.model, pickle.loads(pickle.dumps(run.model))):
        answers = model.predict(x[0])
        np.testing.assert_array_equal(answers, model.predict(x)[0])
        stream = model.stream()
        np.testing.assert_allclose(answers, [stream(row) for row in x[0]], 0, 1e-12)
        assert model.evaluate(x[0], y[0]) == run.test
        assert model.record(x[0], "drawing")["drawing"].shape == (12, 2)


def test_what_is_refused():
    x, y = sequences(4, 12)
    net = net_of(steps=4)
    with pytest.raises(ModelError, match="truncate is of stateful jobs; write stateful=True"):
        horn.Job(net, (x[:, :4], y[:, :4]), truncate=4)
    with pytest.raises(ModelError, match="truncate is the steps of a piece.* got 0"):
        horn.Job(net, (x, y), stateful=True, truncate=0)
    with pytest.raises(DataError, match="nothing goes on from piece to piece: 4 steps each.*text"):
        horn.Job(net, (x[:, :4], y[:, :4]), stateful=True)  # samples, which are shuffled
    with pytest.raises(DataError, match="32 lanes of 1 steps, and pieces of 4.*batch_size"):
        horn.Job(net, (x.reshape(48, 2), y.ravel()), stateful=True)
    with pytest.raises(DataError, match=r"\(4, 12, 3\), but sequences in pieces are .*steps, 2\)"):
        horn.Job(net, (np.zeros((4, 12, 3)), y), stateful=True)
    with pytest.raises(DataError, match=r"y has shape \(4,\), but of sequences in pieces each"):
        horn.Job(net, (x, y[:, 0]), stateful=True)
    ragged = [row[: 3 + k] for k, row in enumerate(x)], [row[: 3 + k] for k, row in enumerate(y)]
    for data in (ragged, horn.data.sequences(*ragged)):
        with pytest.raises(DataError, match="data: sequences of different lengths.*leave stateful"):
            horn.Job(net, data, stateful=True)
        with pytest.raises(DataError, match="validation: sequences of different lengths"):
            horn.Job(net, (x, y), stateful=True, validation=data)
    with pytest.raises(ModelError, match="sample_weight is .* each sequence, but the data are one"):
        horn.Job(net, (x[0], y[0]), stateful=True, sample_weight=np.ones(12))
    last = horn.Network()
    last.layer(2, inputs=[last.input(2, steps=4), horn.Delayed()])
    last.output(2, activation="softmax", loss="cross_entropy")
    with pytest.raises(ModelError, match="each is judged: write net.output.*each_step=True"):
        horn.Job(last, (x, y), stateful=True)
    flat = horn.Network()
    flat.input(2)
    flat.output(2, activation="softmax", loss="cross_entropy")
    with pytest.raises(ModelError, match=r"stateful is for .*net.input\(2, steps=...\)"):
        horn.Job(flat, (x[:, 0], y[:, 0]), stateful=True)
    cut = horn.Job(net, (x, y), stateful=True).data
    with pytest.raises(DataError, match="cut into 4 lanes already, too few .*=0.1; pass the data"):
        horn.Job(net, cut, stateful=True, validation=0.1)
    assert len(horn.Job(net, cut, stateful=True, validation=0.5).validation) == 6
    text = rhyme()
    with pytest.raises(DataError, match="steps of one long sequence.*stateful=True.*text"):
        horn.Job(of_letters(len(text.classes), 9), text).check_data()
    other = horn.data.text(io.StringIO("shore" * 20), alphabet=text.classes[::-1])
    with pytest.raises(DataError, match="another alphabet.*alphabet=data.classes"):
        horn.Job(of_letters(len(text.classes), 9), text, stateful=True, validation=other)
    with pytest.raises(JobError, match="with servers .easgd. has no checkpoints"):
        horn.train(horn.Job(net, (x, y), stateful=True), groups=2, strategy="easgd",
                   checkpoints="anywhere")  # fmt: skip
    with pytest.raises(DataError, match="stride is from piece to piece"):
        horn.data.text(io.StringIO("abc"), stride=2)
