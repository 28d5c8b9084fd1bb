"""horn predict with a model of sequences: a file is one of them, its lines are the steps."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn

STEPS = np.array([[1, 2, 3], [4, 5, 60], [0, 7, 200]])  # bytes would be worth 1/255 each


class Leaky(horn.Neuron):
    v = horn.State(0.0, per="sample")

    def forward(self, messages: Any) -> None:
        self.v = 0.5 * self.v + sum(0.01 * m.input * m.weight for m in messages)
        self.feedforward(horn.math.tanh(self.v))


def saved(folder: Path, *outputs: str) -> horn.Model:
    """A model of sequences of at most four steps, in "a.horn"; outputs : its names."""
    net = horn.Network(seed=3)
    heard = net.layer(5, neuron=Leaky, inputs=[net.input(3, steps=4), horn.Delayed()])
    for name in outputs:
        net.output(2, inputs=heard, activation="softmax", loss="cross_entropy", name=name,
                   each_step=name == "steps")  # fmt: skip
    classes: Any = ("ham", "spam") if len(outputs) == 1 else None
    model = horn.Model(net, net.initial_parameters(), net.initial_states(), classes=classes)
    model.save(folder / "a.horn")
    np.savetxt(folder / "steps.csv", STEPS, fmt="%d", delimiter=",")
    return model


def numbers(text: str) -> np.ndarray:
    return np.array([line.split() for line in text.splitlines()], float)


def test_a_stream_of_a_file_is_that_of_its_lines(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(folder, "kind")
    expected = model.stream()(STEPS.astype(float))
    found = numbers(run("predict", "a.horn", "steps.csv", "--stream").out)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    monkeypatch.setattr("sys.stdin", io.StringIO((folder / "steps.csv").read_text()))
    np.testing.assert_array_equal(numbers(run("predict", "a.horn", "-", "--stream").out), found)
    np.save(folder / "steps.npy", STEPS.astype(np.uint8))  # those are bytes
    found = numbers(run("predict", "a.horn", "steps.npy", "--stream").out)
    np.testing.assert_allclose(found, model.stream()(STEPS / 255), atol=1e-6)


def test_a_stream_of_a_file_is_normalized_in_double_and_told_what_is_no_float(
    run: Any, folder: Path
) -> None:
    net = horn.Network(seed=3)
    net.layer(5, neuron=Leaky, inputs=[net.input(3, steps=4), horn.Delayed()])
    net.output(2, activation="softmax", loss="cross_entropy")
    x = 1e9 + np.random.default_rng(0).normal(size=(8, 4, 3))  # float32 has steps of 64 there
    job = horn.Job(net, (x, np.arange(8) % 2), normalize=True, iterations=1)
    model = horn.train(job, progress=False).model
    model.save(folder / "a.horn")
    np.save(folder / "steps.npy", x[0])
    found = numbers(run("predict", "a.horn", "steps.npy", "--stream").out)
    np.testing.assert_allclose(found, model.stream()(x[0]), atol=1e-6)
    assert np.ptp(found[:, 0]) > 1e-4
    np.save(folder / "steps.npy", np.array([[1.0, 1e300, 2.0]]))
    saved(folder, "kind")
    done = run("predict", "a.horn", "steps.npy", "--stream")
    assert done.code == 2 and "feature 1 of step 0 is 1e+300, no finite float32" in done.err


def test_one_sequence_is_one_sample(run: Any, folder: Path) -> None:
    model = saved(folder, "kind")
    expected = model.predict(STEPS.astype(float)[None])
    found = numbers(run("predict", "a.horn", "steps.csv").out)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    said = run("predict", "a.horn", "steps.csv", "--labels").out
    assert said.split() == [["ham", "spam"][int(expected[0].argmax())]]
    told = json.loads(run("predict", "a.horn", "steps.csv", "--json").out)
    assert told["shape"] == [1, 2] and np.allclose(told["outputs"], expected)
    (folder / "ids.csv").write_text("id,a,b,c\n" + "t1,1,2,3\nt2,4,5,60\nt3,0,7,200\n")
    np.testing.assert_array_equal(numbers(run("predict", "a.horn", "ids.csv").out), found)


@pytest.mark.parametrize("n", [2, 4, 6])
def test_one_sequence_is_judged_step_by_step(run: Any, folder: Path, n: int) -> None:
    model = saved(folder, "steps")
    x, y = np.random.default_rng(n).normal(size=(n, 3)), ["ham", "spam"] * (n // 2)
    lines = (",".join([*map(str, row), label]) for row, label in zip(x, y, strict=True))
    (folder / "rows.csv").write_text("\n".join(lines))
    told = json.loads(run("evaluate", "a.horn", "rows.csv", "--json").out)
    said = model.predict(x)[np.arange(n), np.arange(n) % 2]
    assert told["loss"] == pytest.approx(float(-np.log(said).mean()), abs=1e-6)
    saved(folder, "kind")  # the last step alone is answered
    done = run("evaluate", "a.horn", "rows.csv")
    assert done.code == 2 and "rows.csv: its rows are the steps of one sequence" in done.err
    assert "as one sample, x of shape (1, steps, 3), with one answer" in done.err


def test_one_sequence_with_several_outputs_is_one_sample(run: Any, folder: Path) -> None:
    model = saved(folder, "kind", "steps")
    expected = model.predict(STEPS.astype(float)[None])
    done = run("predict", "a.horn", "steps.csv", "--json")
    told = json.loads(done.out)
    assert told["shape"] == {"kind": [1, 2], "steps": [1, 3, 2]}
    assert np.allclose(told["outputs"]["kind"], expected["kind"])
    assert np.allclose(told["outputs"]["steps"], np.asarray(expected["steps"])[:, :3])
    [line] = run("predict", "a.horn", "steps.csv").out.splitlines()
    assert line.startswith("kind ") and line.count("|") == 2


@pytest.mark.parametrize("outputs", [("steps",), ("kind", "steps")])
@pytest.mark.parametrize("more", [(), ("--labels",)])
def test_answers_of_different_lengths_are_written_with_these(
    run: Any, folder: Path, outputs: tuple[str, ...], more: tuple[str, ...]
) -> None:
    model = saved(folder, *outputs)
    each = [np.random.default_rng(n).normal(size=(n, 3)) for n in (2, 4, 1)]
    data = horn.data.sequences(each)
    np.savez(folder / "rag.npz", x=data.images, lengths=data.lengths)
    for place, remedy in (("out.csv", "each"), ("out.npy", "")):
        done = run("predict", "a.horn", "rag.npz", *more, "-o", place)
        assert done.code == 2 and f"-o {place}: " in done.err and "write .npz" in done.err
        assert remedy in done.err
    done = run("predict", "a.horn", "rag.npz", *more, "-o", "out.npz")
    assert done.code == 0 and "Wrote out.npz: " in done.out + done.err
    saved(folder, "lengths", "steps")
    done = run("predict", "a.horn", "rag.npz", *more, "-o", "other.npz")
    assert done.code == 2 and "an output of this model is called 'lengths', as an" in done.err
    expected = model.predict(data, labels=bool(more))
    expected = expected if len(outputs) > 1 else {"y": expected}
    with np.load(folder / "out.npz") as file:
        found = dict(file)
    assert {*found} == {*expected, "lengths"} and found["lengths"].tolist() == [2, 4, 1]
    for name, answers in expected.items():
        ends = found["lengths"] if isinstance(answers, list) else [None] * 3
        for one, other, n in zip(found[name], answers, ends, strict=True):
            np.testing.assert_array_equal(one[:n] if n else one, other)


def test_rows_of_a_network_of_one_step_are_samples(run: Any, folder: Path) -> None:
    net = horn.Network(seed=3)
    net.layer(5, neuron=Leaky, inputs=[net.input(3, steps=1), horn.Delayed()])
    net.output(2, activation="softmax", loss="cross_entropy")
    model = horn.Model(net, net.initial_parameters(), net.initial_states())
    model.save(folder / "a.horn")
    np.savetxt(folder / "rows.csv", STEPS, fmt="%d", delimiter=",")
    found = numbers(run("predict", "a.horn", "rows.csv").out)
    np.testing.assert_allclose(found, model.predict(STEPS.astype(float)[:, None]), atol=1e-6)


def test_a_file_of_sequences_of_one_step_has_as_many_samples(run: Any, folder: Path) -> None:
    model = saved(folder, "kind")
    np.save(folder / "one.npy", STEPS.astype(float)[:, None])
    found = numbers(run("predict", "a.horn", "one.npy").out)
    np.testing.assert_allclose(found, model.predict(STEPS.astype(float)[:, None]), atol=1e-6)


@pytest.mark.parametrize("text", [
    "\ufeff1,2,3\n4,5,60\n",
    "a,b,c\n1,2,3\n4,5,60",
    "1;2;3\n4;5;60\n",
    "1\t2\t3\n4\t5\t60\n",
    "1,2,3\r4,5,60\r",
    "1, 2, 3\r\n\r\n4, 5, 60\r\n",
    '"1","2","3"\n4,5,"60"\n',
    "id,a,b,c,kind\nt1,1,2,3,ham\nt2,4,5,60,spam\n",
    "2019,2020,2021,kind\n1,2,3,ham\n4,5,60,spam\n",
    "1 2  3\n\n 4 5 60\n",  # of standard input alone
])  # fmt: skip
def test_lines_are_read_as_those_of_a_file(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    model = saved(folder, "kind")
    standard_input = io.TextIOWrapper(io.BytesIO(text.encode()), newline="\n")
    monkeypatch.setattr("sys.stdin", standard_input)
    found = run("predict", "a.horn", "-", "--stream").out
    expected = model.stream()(STEPS[:2].astype(float))
    np.testing.assert_allclose(numbers(found.replace("t1", "").replace("t2", "")), expected, 1e-5)
    if "," in text:
        (folder / "in.csv").write_bytes(text.encode())
        assert run("predict", "a.horn", "in.csv", "--stream").out == found


def test_columns_of_standard_input_are_those_that_the_model_learned_from(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swapped columns were answered as the others."""
    net = horn.Network()
    net.input(2, steps=2)
    net.output(1)
    names = ("a", "b")
    horn.Model(net, net.initial_parameters(), feature_names=names, target=None).save("m.horn")
    monkeypatch.setattr("sys.stdin", io.StringIO("a,b\n1,2\n3,4\n"))
    assert len(run("predict", "m.horn", "-", "--stream").out.splitlines()) == 2
    monkeypatch.setattr("sys.stdin", io.StringIO("b,a\n1,2\n3,4\n"))
    done = run("predict", "m.horn", "-", "--stream")
    assert (done.code, done.out) == (2, "")
    assert "standard input: other columns than this model has: another order, 'b' where" in done.err


@pytest.mark.parametrize("line", ["1;2;3", "1,x,3", "a b c"])
def test_a_step_that_is_no_numbers_is_told(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    saved(folder, "kind")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"1,2,3\n{line}\n"))
    done = run("predict", "a.horn", "-", "--stream")
    what = {"1;2;3": "has 1 cells, but line 1 has 3", "1,x,3": "column 2 is 'x', but a number is",
            "a b c": "column 1 is 'a', but a number is expected"}[line]  # fmt: skip
    assert done.code == 2 and len(done.out.splitlines()) == 1
    assert f"standard input, line 2: {what}" in done.err


TEXT = "she sells sea shells by the sea shore\n" * 8


@pytest.mark.parametrize("is_stateful", [False, True])
def test_a_model_of_characters_is_asked_about_a_text(
    is_stateful: bool, run: Any, folder: Path
) -> None:
    (folder / "rhyme.txt").write_text(TEXT)
    data = horn.data.text("rhyme.txt", None if is_stateful else 5)
    n = len(data.classes)
    net = horn.Network(seed=1)
    heard = net.layer(6, activation="tanh", inputs=[net.input(n, steps=5), horn.Delayed()])
    net.output(n, inputs=heard, activation="softmax", loss="cross_entropy", each_step=True)
    job = horn.Job(net, data, batch_size=3, epochs=1, stateful=is_stateful)
    model = horn.train(job).model
    model.save("m.horn")
    (folder / "less.txt").write_text("sea shells\nby the shore\n" * 3)  # of fewer letters
    less = horn.data.text("less.txt", None if is_stateful else 5, alphabet=model.classes)
    found = run("evaluate", "m.horn", "less.txt", "--json").json
    assert {name: found[name] for name in ("loss", "acc")} == model.evaluate(less)
    answers = run("predict", "m.horn", "less.txt", "--json").json["outputs"]
    np.testing.assert_allclose(np.squeeze(answers), model.predict(less), rtol=1e-6)
    lines = run("predict", "m.horn", "less.txt", "--stream").out.splitlines()
    whole = horn.data.text("less.txt", alphabet=model.classes)
    np.testing.assert_allclose(numbers("\n".join(lines)), model.stream()(whole), atol=1e-5)


def test_a_text_is_no_data_of_another_model(run: Any, folder: Path) -> None:
    saved(folder, "kind")
    (folder / "rhyme.txt").write_text(TEXT)
    done = run("evaluate", "a.horn", "rhyme.txt")
    assert done.code == 2 and "rhyme.txt: is of no format that horn reads" in done.err
