"""Sequences with several outputs, of each step or of the last, and losses between layers: the law,
gradients, tasks and groups, pieces, parts computed again, and what users do with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.cli import horn as commands
from horn.errors import DataError, ModelError
from tests.parity import test_recompute, test_stateful
from tests.parity.recurrent import CELLS, LSTM, SMOOTH, Written, generated
from tests.parity.test_time import OPTIMIZERS, check_gradients, compare, engine_of, run
from tests.parity.test_time_together import MANY, agree

BACKENDS = ("python", "reference", "kernels")


def apart(a, b):
    return 0.5 * (a - b) ** 2 + 0.1 * a * b


def square(y):
    return 0.5 * y * y


def several(seed: int, cells: tuple[Any, ...] = CELLS, **how: Any) -> horn.Job:
    """A network of test_time with more outputs and losses, ragged or not."""
    net, (x, first) = generated(seed, cells, **how)
    rng, n, steps = np.random.default_rng(seed + 1), len(x), net.steps
    y = {"out": first}
    hidden = [layer for layer in net.layers if layer.kind != "output"]
    for k in range(int(rng.integers(0, 3))):
        name, each, size = f"more{k}", bool(rng.random() < 0.5), int(rng.integers(1, 4))
        below, weight = hidden[int(rng.integers(len(hidden)))], float(rng.choice([1.0, 0.3, 2.0]))
        plain = {"inputs": below, "each_step": each, "weight": weight, "name": name}
        shape = (n, steps) if each else (n,)
        if rng.random() < 0.5 and size > 1:
            net.output(size, activation="softmax", loss="cross_entropy", **plain)
            y[name] = rng.integers(0, size, shape)
        else:
            net.output(size, activation="tanh", loss="squared_error", **plain)
            y[name] = rng.normal(size=(*shape, size))
    hidden = [layer for layer in hidden if layer.neuron is not Written]  # asks for a delta
    for _ in range(int(rng.integers(0 if len(y) > 1 else 1, 3))):
        a, each = hidden[int(rng.integers(len(hidden)))], bool(rng.random() < 0.5)
        alike = [layer for layer in hidden if layer.size == a.size and layer is not a]
        if alike and rng.random() < 0.6:
            net.loss(a, alike[0], apart, each_step=each, weight=0.5)
        else:
            net.loss(a, f=square, each_step=each, weight=0.2)
    asked = {layer.name: layer.each_step for layer in net.outputs}
    if rng.random() < 0.5:
        lengths = rng.integers(1, steps + 1, n)
        x = [row[:k] for row, k in zip(x, lengths, strict=True)]
        y = {
            name: [row[:k] for row, k in zip(one, lengths, strict=True)] if asked[name] else one
            for name, one in y.items()
        }
    weights = rng.random(n) if rng.random() < 0.3 else None
    optimizer = OPTIMIZERS[int(rng.integers(len(OPTIMIZERS)))]
    data = (x, y if len(y) > 1 else first if not isinstance(x, list) else y["out"])
    job = horn.Job(net, data=data, dtype="float64", batch_size=n, optimizer=optimizer,
                   sample_weight=weights)  # fmt: skip
    job.check_data()
    return job


def everything(job: horn.Job, backend: str) -> dict[str, Any]:
    """As ``run``, and each loss by itself."""
    total, right, _, each = engine_of(job, backend).results(job.data)
    return run(job, backend) | {"each": np.array(each), "results": np.array([total, right])}


@pytest.mark.parametrize("seed", [2, 5])
def test_the_law(seed):
    job = several(seed)
    found = everything(job, "python")
    for backend in BACKENDS[1:]:
        compare(found, everything(job, backend), 1e-9)
    weights = [layer.loss_weight for layer in job.network.judged]
    assert found["results"][0] == pytest.approx(np.dot(weights, found["each"]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2300))
def test_the_law_at_length(seed):
    test_the_law(seed)


@pytest.mark.parametrize("seed", [4])
def test_gradients_are_those_of_finite_differences(seed):
    check_gradients(several(seed, SMOOTH, steps=3))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_gradients_are_those_of_finite_differences_at_length(seed, steps):
    check_gradients(several(seed, SMOOTH, steps=steps))


@pytest.mark.parametrize("many", [(2, 1), (1, 2)])
def test_tasks_and_groups_do_what_one_does(many):
    agree(several(7), "kernels", *many)


@pytest.mark.slow
@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("seed", range(2000, 2040))
def test_tasks_and_groups_do_at_length(seed, many):
    agree(several(seed), BACKENDS[1 + seed % 2], *many)


@pytest.mark.parametrize("seed", [6, 2002, 2003])
def test_parts_computed_again_learn_the_same(seed):
    test_recompute.law(several(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2120))
def test_parts_computed_again_learn_the_same_at_length(seed):
    test_recompute.law(several(seed))


# --- one sentence: its tags, what it is as a whole, and two layers that are to agree


WORDS = ["cat", "dog", "runs", "sees", "."]


def sentences(n: int, seed: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """One hot words; the tag of each as text, and how many nouns there are."""
    rng = np.random.default_rng(seed)
    tags, x, counts = [], [], []
    for _ in range(n):
        words = rng.integers(0, 5, int(rng.integers(1, 7)))
        x.append(np.eye(5)[words])
        tags.append(np.array(["noun", "noun", "verb", "verb", "end"])[words].tolist())
        counts.append(["none", "some"][int((words < 2).any())])
    return x, {"tag": tags, "nouns": counts, "size": np.array([[len(one)] for one in x]) / 6.0}


def tagger(data: Any = None, **how: Any) -> horn.Job:
    net = horn.Network(seed=1)
    words = net.input(5, steps=6)
    heard = net.layer(8, neuron=LSTM, inputs={"x": words, "h": horn.Delayed()}, name="heard")
    net.output(3, activation="softmax", loss="cross_entropy", each_step=True, name="tag")
    net.output(2, activation="softmax", loss="cross_entropy", name="nouns")
    net.output(1, loss="squared_error", inputs=heard, weight=0.5, name="size")
    net.loss(heard, f=square, each_step=True, weight=0.01, name="quiet")
    given = {"batch_size": 10, "epochs": 6, "optimizer": horn.Adam(0.03), "validation": 0.2}
    return horn.Job(net, sentences(60) if data is None else data, **{**given, **how})


@pytest.mark.parametrize("kind", [tuple, list])
def test_targets_in_the_order_of_the_outputs_may_be_of_each_step(kind):
    x, y = sentences(9)
    found, named = tagger((x, kind(y.values()))).data, tagger((x, y)).data
    assert [part.name for part in found.targets] == ["tag", "nouns", "size"]
    np.testing.assert_array_equal(found.y, named.y)
    with pytest.raises(horn.DataError, match="y is a list of numbers, but .* tuple of 3 in this"):
        tagger((x, kind(y["nouns"])))


def test_from_training_to_a_file(tmp_path):
    run = horn.train(tagger(), progress=False)
    row = run.history[-1]
    assert row["loss"] < run.history[0]["loss"] and row["val_tag_acc"] > 0.6
    assert {"val_tag_loss", "val_nouns_acc", "val_size_loss", "val_quiet"} <= set(row)
    run.model.save(tmp_path / "a.horn")
    model = horn.Model.load(tmp_path / "a.horn")
    x, y = sentences(9, seed=5)
    found = model.predict(x)
    assert [one.shape for one in found["tag"]] == [(len(one), 3) for one in x]
    assert found["nouns"].shape == (9, 2) and found["size"].shape == (9, 1)
    said = model.predict(x, labels=True)
    assert [one.shape for one in said["tag"]] == [(len(one),) for one in x]
    assert set(np.concatenate(said["tag"])) <= {"end", "noun", "verb"}
    measured = model.evaluate(x, {**y, "tag": said["tag"], "nouns": said["nouns"]})
    assert measured["tag_acc"] == measured["nouns_acc"] == 1.0
    right = np.mean(np.concatenate(said["tag"]) == np.concatenate(y["tag"]))
    assert model.evaluate(x, y)["tag_acc"] == pytest.approx(right)
    alone = model.predict(x[0][None])
    np.testing.assert_allclose(alone["tag"][0], found["tag"][0], 0, 1e-6)
    stream = model.stream()
    heard = stream(x[0])
    np.testing.assert_allclose(heard["tag"], found["tag"][0], 0, 1e-6)
    np.testing.assert_allclose(heard["nouns"][-1], found["nouns"][0], 0, 1e-6)
    long = np.concatenate(x)  # one sequence of more steps than the network's
    assert len(long) > 6
    answers = model.predict(long)
    assert answers["tag"].shape == (len(long), 3) and answers["size"].shape == (1,)


def test_commands_answer_by_name(tmp_path, capsys):
    model = horn.train(tagger(epochs=1), progress=False).model
    model.save(tmp_path / "a.horn")
    x, y = sentences(4)
    data = horn.data.sequences(x, y)
    np.savez(tmp_path / "x.npz", x=data.images, lengths=data.lengths)
    names = [str(tmp_path / "a.horn"), str(tmp_path / "x.npz")]
    commands.main(["predict", *names, "--labels"], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all(line.startswith("tag ") for line in lines)
    commands.main(["show", names[0]], standalone_mode=False)
    assert "quiet" in capsys.readouterr().out


def test_a_dataset_of_sequences_has_them_by_name():
    x, y = sentences(60)
    data = horn.data.sequences(x, y)
    assert data.of_output("tag").y.shape == (60, 6)
    assert data.of_output("tag").classes == ("end", "noun", "verb")
    one, other = (horn.train(tagger(each), progress=False) for each in (None, data))
    assert [row["loss"] for row in one.history] == [row["loss"] for row in other.history]


def test_in_pieces_all_outputs_are_cut():
    """A stream with two outputs and a loss: pieces = whole, and backends learn alike."""
    net = horn.Network(seed=1)
    x = net.input(2, steps=12)
    h = net.layer(4, neuron=LSTM, inputs={"x": x, "h": horn.Delayed()})
    net.output(3, activation="softmax", loss="cross_entropy", each_step=True, name="kind")
    net.output(2, loss="squared_error", each_step=True, name="next", inputs=h)
    net.loss(h, f=square, each_step=True, weight=0.1)
    rng = np.random.default_rng(0)
    data = rng.normal(size=(4, 12, 2)), {
        "kind": rng.choice(["a", "b", "c"], (4, 12)), "next": rng.normal(size=(4, 12, 2))
    }  # fmt: skip
    given = {"dtype": "float64", "batch_size": 4, "optimizer": horn.SGD(0.1), "epochs": 1}
    whole = horn.Job(net, data, **given)
    parts = horn.Job(net, data, **given, stateful=True, truncate=3)
    assert parts.data.pieces == 4 and parts.network.steps == 3
    learned = []
    for backend in BACKENDS[1:]:
        expected = test_stateful.engine_of(whole, backend)
        engine = test_stateful.engine_of(parts, backend)
        sent = engine.outputs(parts.data.x, pieces=4).reshape(4, 12, 5)
        np.testing.assert_allclose(sent, expected.outputs(whole.data.x), 0, 1e-12)
        assert engine.losses(parts.data)[0] / 4 == pytest.approx(expected.losses(whole.data)[0])
        for k in range(5):
            engine.step(np.arange(4) * 4 + k % 4, iteration=k, first_sample=0)
        learned.append({**engine.parameters(), **engine.memory()["heard"]})
    for other in learned[1:]:
        compare(learned[0], other, 1e-9)
    model = horn.train(parts, progress=False).model
    assert model.predict(data[0])["next"].shape == (4, 12, 2)
    assert model.evaluate(*data)["kind_acc"] >= 0.0


# --- text of each step, one output


def test_text_of_each_step():
    x, y = sentences(60)
    net = horn.Network(seed=1)
    net.layer(8, inputs=[net.input(5, steps=6), horn.Delayed()], activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy", each_step=True)
    few = [[("end" if tag == "end" else "noun") for tag in tags] for tags in y["tag"][:9]]
    job = horn.Job(net, (x, y["tag"]), epochs=8, batch_size=10, optimizer=horn.Adam(0.03),
                   validation=(x[:9], few))  # fmt: skip
    model = horn.train(job, progress=False).model
    assert model.classes == ("end", "noun", "verb")
    said = model.predict(x, labels=True)
    assert np.mean(np.concatenate(said) == np.concatenate(y["tag"])) > 0.9
    assert model.evaluate(x, said)["acc"] == 1.0
    whole = [one for one in zip(x, y["tag"], strict=True) if len(one[0]) == 6]
    arrays = np.array([a for a, _ in whole]), np.array([b for _, b in whole])
    assert model.evaluate(*arrays)["acc"] > 0.9
    unknown = [["verb"] * (len(one) - 1) + ["adverb"] for one in x]
    with pytest.raises(DataError, match=r"'adverb' \(60 samples, the first in row 0\)"):
        model.evaluate(x, unknown)
    two = horn.Network(seed=1)
    two.layer(4, inputs=[two.input(5, steps=6), horn.Delayed()], activation="tanh")
    two.output(1, activation="sigmoid", loss="binary_cross_entropy", each_step=True)
    sides = [["end" if tag == "end" else "word" for tag in tags] for tags in y["tag"]]
    sided = horn.Job(two, (x, sides), epochs=8, batch_size=10, optimizer=horn.Adam(0.05))
    answers = horn.train(sided, progress=False).model.predict(x, labels=True)
    assert np.mean(np.concatenate(answers) == np.concatenate(sides)) > 0.9


# --- one sequence from another


def backward_words(n: int, seed: int) -> tuple[list[str], list[Any], list[Any]]:
    """Words of a, b, c, d; what is heard of each, one hot, and what is to be said."""
    rng, letters = np.random.default_rng(seed), sorted("abcd>.")
    words = ["".join(rng.choice(list("abcd"), rng.integers(1, 6))) for _ in range(n)]
    x = [np.eye(6)[[letters.index(k) for k in f"{word}>{word[::-1]}"]] for word in words]
    return words, x, [list(f"{'>' * len(word)}{word[::-1]}.") for word in words]


@pytest.mark.slow
@pytest.mark.parametrize("are_two", [False, True])
def test_words_are_written_backward(are_two):
    """By one layer that reads and writes, or by two, one of which hears the other Delayed."""
    net = horn.Network(seed=1)
    heard = net.input(6, steps=11)
    reading = net.layer(64, neuron=LSTM, inputs={"x": heard, "h": horn.Delayed()}, name="reading")
    if are_two:
        both = {"x": heard, "h": horn.Delayed(), "read": horn.Delayed(reading)}
        net.layer(48, neuron=LSTM, inputs=both, name="writing")
    net.output(6, activation="softmax", loss="cross_entropy", each_step=True)
    words, x, y = backward_words(1000, 1)
    job = horn.Job(net, (x, y), horn.Adam(0.01), batch_size=32, epochs=25)
    model = horn.train(job, progress=False).model
    new = sorted({word for word in backward_words(300, 2)[0] if word not in words})
    assert len(new) > 50
    said = [model.generate(f"{word}>", len(word) + 1, temperature=0) for word in new]
    right = [one == f"{word}>{word[::-1]}." for word, one in zip(new, said, strict=True)]
    assert np.mean(right) > 0.95, np.mean(right)


# --- what is refused


def test_what_does_not_fit_is_said():
    x, y = sentences(5)
    with pytest.raises(DataError, match=r"data: nouns: y has an entry for each step, but the"):
        tagger((x, {**y, "nouns": y["tag"]}))
    with pytest.raises(DataError, match=r"data: tag: y has shape \(5,\), but each step is asked"):
        tagger((x, {**y, "tag": y["nouns"]}))
    with pytest.raises(DataError, match=r"tag: y\[0\] has . entries, but sequence 0 has"):
        tagger((x, {**y, "tag": [[*one, "end"] for one in y["tag"]]}))
    with pytest.raises(DataError, match="the targets of 'size' are missing"):
        tagger((x, {"tag": y["tag"], "nouns": y["nouns"]}))
    with pytest.raises(ModelError, match=r"each is judged: write net.output\(2, .*each_step=True"):
        tagger((np.zeros((1, 60, 5)), y), stateful=True)
    flat = horn.Network()
    flat.layer(2, inputs=flat.input(2), name="h")
    flat.loss(flat.layers[1], f=square, each_step=True)
    with pytest.raises(ModelError, match="a judge of each step, but the samples are no sequences"):
        flat.check()
