"""A sequence that comes step by step is answered as the whole is; a text goes on."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

import horn
from horn import math
from horn.backends import Setup, make
from tests.conftest import EXISTING

STEPS = 7


class Gated(horn.Neuron):
    forget = horn.Weight(bias=1.0)
    value = horn.Weight()
    cell = horn.State(0.25, per="sample")

    def forward(self, messages):
        f = math.sigmoid(sum(m.input * m.forget for m in messages))
        self.cell = f * self.cell + sum(m.input * m.value for m in messages)
        self.feedforward(math.tanh(self.cell))


class Noisy(horn.Neuron):
    """Draws also when it predicts: another number at each step, and one for all of them."""

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages) + self.normal(0.0, 1.0)
        self.feedforward(total + self.normal(0.0, 1.0, per="sequence"))


class Counting(horn.Neuron):
    """What it has heard in all; no product."""

    n = horn.State(0.0, per="sample")

    def forward(self, messages):
        self.n = self.n + max(abs(m.input) for m in messages)
        self.feedforward(math.tanh(0.1 * self.n))


def network(neuron, hears, *, each_step=True):
    """hears : what the first layer does, given the input."""
    net = horn.Network(seed=2)
    x = net.input(3, steps=STEPS)
    first = net.layer(4, neuron=neuron, inputs=hears(x))
    heard = {"now": first, "before": horn.Delayed(first, steps=2)}
    net.layer(5, activation="tanh", inputs=heard)
    net.output(2, loss="squared_error", each_step=each_step)
    return net


def model(net, backend):
    learned = net.initial_parameters(np.float64), net.initial_states(np.float64)
    return horn.Model(net, *learned, dtype="float64", backend=backend)


@pytest.mark.parametrize("backend", EXISTING)
@pytest.mark.parametrize(
    "neuron, hears",
    [
        (Gated, lambda x: [x, horn.Delayed()]),
        (Gated, lambda x: x),
        (Noisy, lambda x: [x, horn.Delayed(steps=3)]),
        (Counting, lambda x: x),
    ],
)
def test_a_sequence_in_pieces_is_answered_as_the_whole_is(neuron, hears, backend, rng):
    made = model(network(neuron, hears), backend)
    x = rng.normal(size=(2, STEPS, 3))
    whole = made.predict(x)
    stream = made.stream()
    for k in (0, 1):
        if neuron is Noisy and k:
            continue  # the second sample of a batch draws other numbers
        pieces = [stream(x[k, :2]), stream(x[k, 2])[None], stream(x[k, 3:])]
        np.testing.assert_allclose(np.concatenate(pieces), whole[k], rtol=0, atol=1e-12)
        assert stream.at == STEPS and stream(x[k, :0]).shape == (0, 2)
        stream.reset()


@pytest.mark.parametrize("backend", EXISTING)
def test_a_stream_may_be_longer_than_what_was_learned_from(backend, rng):
    """And of a network that is judged by its last step each step is answered."""
    short = network(Gated, lambda x: [x, horn.Delayed()], each_step=False)
    made = model(short, backend)
    x = rng.normal(size=(STEPS + 4, 3))
    longer = model(short.of_steps(STEPS + 4), backend)
    answers = made.stream()(x)
    np.testing.assert_allclose(answers, longer.predict(x[None])[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(answers[STEPS - 1], made.predict(x[None, :STEPS])[0], atol=1e-12)


def test_two_streams_of_a_model_have_nothing_to_do_with_one_another(rng):
    made = model(network(Gated, lambda x: [x, horn.Delayed()]), "kernels")
    x = rng.normal(size=(2, STEPS, 3))
    whole, first, second = made.predict(x), made.stream(), made.stream()
    for t in range(STEPS):
        np.testing.assert_allclose(first(x[0, t]), whole[0, t], atol=1e-12)
        np.testing.assert_allclose(second(x[1, t]), whole[1, t], atol=1e-12)
        assert made.predict(x).shape == whole.shape
    assert first._engine.setup.threads == 1  # two took 25 times as long for a step of one row


@pytest.mark.parametrize("backend", EXISTING)
@pytest.mark.parametrize("neuron", [Counting, Gated])
def test_an_engine_that_answers_others_between_the_steps_goes_on_as_before(neuron, backend, rng):
    net, x = network(neuron, lambda x: [x, horn.Delayed()]).of_steps(1), rng.normal(size=(7, 3))
    setup, answers = Setup(net, None, "labels", 1, "float64", 1), []
    for others in (x[4:], x[:0]):
        engine = make(backend, setup)
        engine.forget()
        answers.append([])
        for t in range(3):
            answers[-1].append(engine.go_on(x[t : t + 1], t))
            if len(others):
                engine.outputs(others)
    np.testing.assert_array_equal(*answers)


def test_what_is_no_stream_is_said():
    flat = horn.Network(seed=1)
    flat.input(3)
    flat.output(2, loss="squared_error")
    with pytest.raises(horn.ModelError, match="stream is for a network of sequences"):
        model(flat, "kernels").stream()
    made = model(network(Gated, lambda x: x), "kernels")
    for wrong in (np.zeros(4), np.zeros((2, 2)), np.zeros((1, 2, 3)), 1.0):
        with pytest.raises(horn.DataError, match="a step has 3 features"):
            made.stream()(wrong)
    stream = made.stream()
    stream(np.zeros((2, 3)))
    for wrong in (np.nan, np.inf):
        with pytest.raises(horn.DataError, match=f"feature 2 of step 3 is {wrong}, no finite"):
            stream([[0.0, 0.0, 0.0], [0.0, 0.0, wrong]])
    with pytest.raises(horn.DataError, match="stream: x holds text, but numbers"):
        stream(["a", "b", "c"])
    assert stream.at == 2 and np.isfinite(stream(np.zeros(3))).all()
    with pytest.raises(horn.ModelError, match="is for a model that learned a text"):
        made.generate("a", 3)
    both = network(Gated, lambda x: x)
    both.output(2, loss="squared_error", inputs=both.layers[1], name="b")
    with pytest.raises(
        horn.ModelError, match="answers of one output, but this model has .*, b; go"
    ):
        model(both, "kernels").generate("a", 3)


@pytest.fixture(scope="module")
def abc(tmp_path_factory: pytest.TempPathFactory) -> horn.Model:
    """Has learned that after a comes b, then c, then a."""
    data = horn.data.text(io.StringIO("abc" * 400), 12)
    net = horn.Network(seed=1)
    x = net.input(3, steps=12)
    net.layer(8, neuron=Gated, inputs=[x, horn.Delayed()])
    net.output(3, activation="softmax", loss="cross_entropy", each_step=True)
    run = horn.train(horn.Job(net, data, horn.Adam(0.02), batch_size=20, epochs=20))
    path = tmp_path_factory.mktemp("abc") / "abc.horn"
    run.model.save(path)
    return horn.Model.load(path)


def test_a_text_goes_on_as_it_was_learned(abc: horn.Model):
    """The alphabet is in the model's file."""
    assert abc.classes == ("a", "b", "c")
    assert abc.generate("ab", 10, temperature=0) == "abcabcabcabc"
    written = abc.generate("c", 60, seed=3)
    assert len(written) == 61 and written.startswith("c")
    assert written == abc.generate("c", 60, seed=3)
    assert abc.generate("c", 60, temperature=50.0, seed=3) != abc.generate(
        "c", 60, temperature=50.0, seed=4
    )
    assert abc.generate("abc", 0) == "abc"


@pytest.mark.parametrize(
    "given, said",
    [
        (("", 3), "prefix is what the text begins with"),
        (("abd", 3), r"character 'd' \(line 1, in 'abd'\) is not among the 3 of the alphabet"),
        (("a", -1), "from 0; got -1"),
        ((b"ab", 3), r"prefix is text, got b'ab'; pass prefix.decode\(\)"),
        (([0, 1], 3), r"prefix is text, got \[0, 1\]; pass the characters"),
    ],
)
def test_what_cannot_be_written_is_said(abc: horn.Model, given, said):
    with pytest.raises(horn.DataError, match=said):
        abc.generate(*given)
    with pytest.raises(horn.DataError, match="temperature is from 0"):
        abc.generate("a", 3, temperature=-1.0)


def test_next_to_no_temperature_is_none(abc: horn.Model):
    cold = abc.generate("ab", 10, temperature=1e-310)  # the logarithms by it were infinite
    assert cold == abc.generate("ab", 10, temperature=0)


def test_bytes_are_scaled_as_those_were_that_it_learned_from(abc: horn.Model):
    hot = np.eye(3, dtype=np.uint8)[[0, 1, 2, 0]]
    np.testing.assert_array_equal(abc.stream()(hot), abc.stream()(hot.astype(np.float32)))
    net = network(Gated, lambda x: x)
    x = np.arange(2 * STEPS * 3, dtype=np.uint8).reshape(2, STEPS, 3)
    job = horn.Job(net, (x.astype(np.float32) / 255, np.zeros((2, STEPS, 2))), iterations=1)
    plain = horn.train(job).model  # it has not seen bytes: they count as bytes do
    np.testing.assert_allclose(plain.stream()(x[0]), plain.predict(x[:1])[0], atol=1e-6)


@pytest.mark.cluster
def test_predict_answers_lines_as_they_come(abc: horn.Model, tmp_path: Path):
    import subprocess
    import sys

    abc.save(tmp_path / "abc.horn")
    command = [sys.executable, "-m", "horn", "predict", "abc.horn", "-", "--stream", "--labels"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        for line, answer in (("1,0,0", "b"), ("0 1 0", "c"), ("0,0,1", "a")):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            assert process.stdout.readline().strip() == answer  # before the next line is written
        _, said = process.communicate("1,0\n", timeout=60)
    assert process.returncode == 2 and "standard input, line 4" in said and "line 1 has 3" in said
    np.save(tmp_path / "steps.npy", np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1]])
    command[5] = "steps.npy"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["b", "c", "a", "b", "c"], done.stderr
