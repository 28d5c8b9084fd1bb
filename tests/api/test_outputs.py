"""Several outputs and losses between layers in people's hands: targets by name, what is answered
and measured, files, commands, and what does not fit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import horn
from horn.cli import horn as commands
from horn.errors import DataError, JobError, ModelError
from horn.explain import never_learn, runs_as
from tests.support.runs import bits

RNG = np.random.default_rng(5)
X = RNG.normal(size=(80, 4))
DIGIT = RNG.integers(0, 3, 80)
SIDE = np.where(X[:, 0] > 0, "right", "left")
SIZES = np.stack([X[:, 1] + X[:, 2], X[:, 3]], axis=1)
Y = {"digit": DIGIT, "side": SIDE, "sizes": SIZES}
TEXT = """
import horn
import numpy as np


def job():
    rng = np.random.default_rng(5)
    net = horn.Network(seed=2)
    net.input(4)
    h = net.layer(6, activation="tanh", name="h")
    net.output(3, activation="softmax", loss="cross_entropy", inputs=h, name="digit")
    net.output(2, loss="squared_error", inputs=h, weight=0.5, name="sizes")
    net.loss(h, f=lambda y: abs(y), weight=0.1, name="quiet")
    x = rng.normal(size=(80, 4))
    return horn.Job(net, (x, {"digit": rng.integers(0, 3, 80), "sizes": x[:, :2]}), epochs=2)
"""


def net_of(seed: int = 2) -> horn.Network:
    net = horn.Network(seed=seed)
    net.input(4)
    h = net.layer(6, activation="tanh", name="h")
    net.output(3, activation="softmax", loss="cross_entropy", inputs=h, name="digit")
    net.output(1, activation="sigmoid", loss="binary_cross_entropy", name="side", weight=0.5)
    net.output(2, loss="squared_error", name="sizes", weight=0.25)
    net.loss(h, f=horn.math.tanh, weight=0.1, name="quiet")
    return net


def job(net: horn.Network | None = None, data: Any = None, **more: Any) -> horn.Job:
    more = {"epochs": 3, "optimizer": horn.SGD(0.3), "dtype": "float64"} | more
    return horn.Job(net or net_of(), (X, Y) if data is None else data, **more)


# what is given


def test_a_tuple_is_in_the_order_of_the_outputs_and_names_in_any() -> None:
    expected = bits(horn.train(job()))
    turned = {name: Y[name] for name in ("sizes", "digit", "side")}
    for y in ((DIGIT, SIDE, SIZES), [DIGIT, SIDE, SIZES], turned, Y | {"nobody's": DIGIT}):
        assert bits(horn.train(job(data=(X, y)))) == expected


def test_a_dataset_keeps_targets_in_splits_slices_and_files(tmp_path: Path) -> None:
    data = horn.data.as_dataset((X, Y))
    assert [(t.name, t.size, t.is_labels) for t in data.targets] == [
        ("digit", 1, True), ("side", 1, True), ("sizes", 2, False)
    ]  # fmt: skip
    rest, held = data.split(0.25, seed=3)
    for part, rows in ((data[10:20], slice(10, 20)), (data.take(5), slice(0, 5))):
        np.testing.assert_array_equal(part.of_output("digit").y, DIGIT[rows])
        np.testing.assert_array_equal(part.of_output("sizes").y, SIZES[rows])
    for part in (rest, held):
        here = [np.flatnonzero((X == row).all(axis=1))[0] for row in part.x]
        np.testing.assert_array_equal(part.of_output("digit").y, DIGIT[here])
        named = part.of_output("side")
        assert [named.classes[k] for k in named.y] == SIDE[here].tolist()
    np.savez(tmp_path / "rows.npz", x=X, **{f"y.{name}": y for name, y in Y.items()})
    read = horn.data.load(str(tmp_path / "rows.npz"))
    assert {part.name: part.classes for part in read.targets}["side"] == ("left", "right")
    expected = bits(horn.train(job()))
    assert bits(horn.train(job(data=read))) == expected
    again = horn.data.as_dataset(X).with_targets(Y)
    np.testing.assert_array_equal(again.y, data.y)


def test_a_network_with_one_output_takes_its_own_of_several_targets() -> None:
    one = horn.Network(seed=1)
    one.input(4)
    one.output(3, activation="softmax", loss="cross_entropy", name="digit")
    run = horn.train(job(one, data=(X, Y)))
    model = run.model
    assert bits(run) == bits(horn.train(job(one, data=(X, DIGIT))))
    assert model.evaluate(X, Y) == model.evaluate(X, DIGIT)


def test_an_output_without_a_loss_has_no_targets() -> None:
    net = horn.Network(seed=1)
    net.input(4)
    h = net.layer(5, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy", inputs=h, name="digit")
    net.output(2, inputs=h, name="bare")
    for y in (DIGIT, {"digit": DIGIT}):
        found = horn.train(job(net, data=(X, y))).model
        assert found.predict(X)["bare"].shape == (80, 2)
        assert set(found.evaluate(X, y)) == {"loss", "digit_loss", "digit_acc"}


# what is answered and measured


def test_answers_and_measures_have_the_names_of_the_outputs() -> None:
    run = horn.train(job(validation=(X, Y), test=(X, Y), metrics=["f1", "r2"]))
    model, found = run.model, run.model.evaluate(X, Y)
    assert list(found) == [
        "loss", "digit_loss", "side_loss", "sizes_loss", "quiet", "digit_acc", "digit_f1",
        "side_acc", "side_f1", "side_r2", "sizes_r2",
    ]  # fmt: skip
    parts = [found[n] for n in ("digit_loss", "side_loss", "sizes_loss", "quiet")]
    assert found["loss"] == pytest.approx(np.dot(parts, [1.0, 0.5, 0.25, 0.1]))
    answers = model.predict(X)
    assert {name: a.shape for name, a in answers.items()} == {
        "digit": (80, 3), "side": (80, 1), "sizes": (80, 2)
    }  # fmt: skip
    assert found["digit_loss"] == pytest.approx(
        float(-np.log(answers["digit"][np.arange(80), DIGIT]).mean())
    )
    said = model.predict(X, labels=True)
    assert found["digit_acc"] == pytest.approx((said["digit"] == DIGIT).mean())
    assert 0.6 < found["side_acc"] == (said["side"] == SIDE).mean()
    np.testing.assert_array_equal(said["sizes"], answers["sizes"])
    assert found["quiet"] == pytest.approx(np.tanh(model.activations(X, "h")).sum(axis=1).mean())
    row = run.history[-1]
    assert {f"val_{name}": row[f"val_{name}"] for name in found} == {
        f"val_{name}": value for name, value in found.items()
    }
    assert run.test == found and row["acc"] is None and row["val_acc"] is None
    assert {"digit_acc", "side_acc", "digit_loss", "quiet"} <= set(row)
    assert model.classes_["digit"] is None and model.classes_["side"].tolist() == ["left", "right"]


def test_metrics_are_of_one_output_or_of_all_that_they_fit() -> None:
    model = horn.train(job(metrics={"digit": ["f1"], "sizes": "r2"})).model
    assert {"digit_f1", "sizes_r2"} <= set(model.evaluate(X, Y))
    assert not {"side_f1", "side_r2"} & set(model.evaluate(X, Y))
    assert "side_auc" in model.evaluate(X, Y, metrics={"side": "auc"})
    with pytest.raises(ModelError, match="there is no output 'digits'; the network has digit,"):
        job(metrics={"digits": "f1"})
    with pytest.raises(horn.HornError, match="metric 'top2' fits none of the outputs a, b and"):
        net = horn.Network()
        net.input(4)
        h = net.layer(3)
        for name in ("a", "b"):
            net.output(2, loss="squared_error", inputs=h, name=name)
        horn.train(job(net, data=(X, {"a": SIZES, "b": SIZES}), metrics="top2"))


def test_one_of_the_measures_stops_training() -> None:
    stopping = horn.EarlyStopping(patience=2, monitor="val_side_acc")
    run = horn.train(job(validation=(X, Y), early_stopping=stopping, epochs=30))
    best = max(run.history["val_side_acc"])
    assert run.model.evaluate(X, Y)["side_acc"] == best
    with pytest.raises(ModelError, match="watches 'val_acc', but what is measured is .*val_digit"):
        job(validation=(X, Y), early_stopping=horn.EarlyStopping(monitor="val_acc"))
    with pytest.raises(ModelError, match=r"; add metrics=\{'sizes': \['r2'\]\}, or watch one"):
        job(validation=(X, Y), early_stopping=horn.EarlyStopping(monitor="val_sizes_r2"))


@pytest.mark.parametrize(
    "column, expected",
    [("val_mse_acc", "max"), ("mse_acc", "max"), ("val_reg", "min"), ("reg", "min"),
     ("val_sizes_r2", "max"), ("val_sizes_mae", "min"), ("seconds", "min"), ("active", "max")],
)  # fmt: skip
def test_what_is_better_is_known_of_the_job_not_by_a_name(column: str, expected: str) -> None:
    """A loss called reg had to rise, and the accuracy of an output called mse to fall."""
    net = horn.Network(seed=2)
    net.input(4)
    h = net.layer(3, name="h")
    net.output(3, activation="softmax", loss="cross_entropy", inputs=h, name="mse")
    net.output(2, loss="squared_error", inputs=h, name="sizes")
    net.loss(h, f=abs, name="reg")
    watch = horn.ReduceOnPlateau(column, min_delta=0.0)
    given = job(net, (X, {"mse": DIGIT, "sizes": SIZES}), validation=0.25, metrics=["r2", "mae"],
                aggregates={"active": horn.Aggregate("h", lambda y: y.mean())},
                callbacks=[watch])  # fmt: skip
    assert given.better(column) == expected
    run = horn.train(given)
    assert watch.best == (min if expected == "min" else max)(run.history[column])
    if column.startswith("val_"):
        score = given.with_settings(early_stopping=horn.EarlyStopping(monitor=column)).score
        assert (score({column: 1.0}) < score({column: 2.0})) is (expected == "min")


def test_the_columns_of_a_job_are_those_that_its_outputs_are_measured_in() -> None:
    """The accuracy of numbers was listed, and who watched it got a KeyError after an epoch."""
    net = net_of()
    net.output(2, name="free")
    one = job(net, validation=(X, Y), metrics=["f1", "mae"], epochs=1)
    row = horn.train(one, progress=False).history[0]
    assert {name for name, value in row.items() if value is not None} <= set(one.columns)
    measured = [name for name in one.columns if name not in ("group_loss", "groups")]
    assert all(row[name] is not None for name in measured)
    for missing in ("val_sizes_acc", "val_sizes_f1", "val_digit_mae", "val_free_acc", "val_acc"):
        watching = {"validation": (X, Y), "metrics": ["f1", "mae"]}
        with pytest.raises(ModelError, match=f"watches '{missing}', but .*_mae; watch one"):
            job(net, **watching, early_stopping=horn.EarlyStopping(monitor=missing))
        with pytest.raises(ModelError, match=f"watches '{missing}', which this job does not"):
            job(net, **watching, callbacks=[horn.ReduceOnPlateau(missing)])


def test_targets_of_another_shape_are_told_as_such_where_one_watches() -> None:
    stopping = horn.EarlyStopping(monitor="val_digit_acc")
    wrong = X, {**Y, "digit": np.eye(4)[DIGIT]}
    watched = job(data=wrong, validation=0.2, early_stopping=stopping)
    with pytest.raises(DataError, match=r"digit: targets have shape \(64, 4\), but digit has 3"):
        horn.train(watched)


# between layers


def test_an_autoencoder_is_a_loss_between_a_layer_and_the_input() -> None:
    """As target="input" with one output, to the bit of the loss."""
    plain = horn.Network(seed=4)
    plain.input(4)
    plain.layer(3, activation="tanh")
    plain.output(4, loss="squared_error", name="again")
    mine = horn.Network(seed=4)
    x = mine.input(4)
    mine.layer(3, activation="tanh")
    mine.loss(mine.layer(4, name="again"), x, "squared_error", name="image")
    theirs = horn.train(job(plain, data=X, target="input"))
    ours = horn.train(job(mine, data=X))
    for name, array in theirs.model.parameters.items():
        np.testing.assert_allclose(ours.model.parameters[name], array, rtol=1e-9, atol=1e-12)
    assert ours.history["loss"] == pytest.approx(theirs.history["loss"])
    np.testing.assert_allclose(ours.model.predict(X), theirs.model.predict(X))


def test_what_stop_gradient_holds_does_not_move() -> None:
    def toward(a, b):
        return (a - horn.math.stop_gradient(b)) ** 2

    net = horn.Network(seed=4)
    net.input(4)
    teacher = net.layer(3, activation="tanh", name="teacher")
    student = net.layer(3, activation="tanh", inputs=net.layers[0], name="student")
    net.loss(student, teacher, toward)
    before = net.initial_parameters(np.float64)
    run = horn.train(job(net, data=X, epochs=40))
    after = run.model.parameters
    np.testing.assert_array_equal(after["teacher.weight"], before["teacher.weight"])
    assert run.history[-1]["loss"] < 0.05 * run.history[0]["loss"]


def test_siamese_towers_share_weights_and_are_compared() -> None:
    net = horn.Network(seed=4)
    a, b = net.input(2, name="a"), net.input(2, name="b")
    one = net.layer(3, activation="tanh", inputs=a, name="one")
    two = net.layer(3, activation="tanh", inputs=b, connect=horn.Tied(one), name="two", bias=False)
    net.output(1, activation="sigmoid", loss="binary_cross_entropy", inputs=[one, two], name="same")
    net.loss(one, two, lambda p, q: (p - q) ** 2, weight=0.1, name="distance")
    data = {"a": X[:, :2], "b": X[:, 2:]}, (X[:, 0] * X[:, 2] > 0).astype(int)
    found = horn.train(job(net, data=data)).model.evaluate(data)
    assert list(found) == ["loss", "same_loss", "distance", "acc"]


# elsewhere


def test_a_model_file_keeps_all_of_it(tmp_path: Path) -> None:
    model = horn.train(job(metrics={"digit": "f1"})).model
    model.save(tmp_path / "m.horn")
    again = horn.Model.load(tmp_path / "m.horn")
    assert again.evaluate(X, Y) == model.evaluate(X, Y)
    said, expected = again.predict(X, labels=True), model.predict(X, labels=True)
    assert all((said[name] == expected[name]).all() for name in expected)
    assert [(k.loss_weight, k.answers) for k in again.network.layers[2:]] == [
        (1.0, True), (0.5, True), (0.25, True), (0.1, False)
    ]  # fmt: skip
    more = horn.train(job(again.network, initial=again, epochs=1)).model
    assert more.evaluate(X, Y)["loss"] < model.evaluate(X, Y)["loss"]
    # a part of it, with one of the outputs
    assert again.cut("digit").predict(X).shape == (80, 3)


@pytest.mark.net
@pytest.mark.timeout(120)
@pytest.mark.cluster
@pytest.mark.parametrize(
    "where",
    [
        {"tasks": 2},
        pytest.param({"groups": 2}, marks=pytest.mark.slow),
        pytest.param({"groups": 2, "strategy": "downpour"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_tasks_learn_and_measure_as_one(where: dict[str, Any]) -> None:
    given = job(validation=(X, Y), batch_size=16)
    one, found = horn.train(given), horn.train(given, **where)
    if "strategy" not in where:
        for name, array in one.model.parameters.items():
            np.testing.assert_allclose(found.model.parameters[name], array, rtol=1e-9, atol=1e-12)
    assert found.history.columns == one.history.columns
    assert found.model.evaluate(X, Y).keys() == one.model.evaluate(X, Y).keys()
    if "strategy" in where:  # the last pushes come after the last row
        return
    last, evaluated = found.history[-1], found.model.evaluate(X, Y)
    assert last["val_digit_loss"] == pytest.approx(evaluated["digit_loss"])
    assert last["val_side_acc"] == pytest.approx(evaluated["side_acc"])


@pytest.mark.cluster
def test_sub_models_have_several_outputs_but_no_losses_between_layers() -> None:
    with pytest.raises(JobError, match="quiet is a loss between layers, and sub-models have"):
        horn.train(job(), strategy="parallel-dropout")
    net = horn.Network(seed=2)
    net.input(4)
    h = net.layer(6, activation="tanh", name="h")
    net.output(3, activation="softmax", loss="cross_entropy", inputs=h, name="digit")
    net.output(2, loss="squared_error", weight=0.25, name="sizes")
    history = horn.train(job(net, epochs=8), strategy="parallel-dropout").history
    assert history[-1]["loss"] < 0.9 * history[0]["loss"]


def test_it_is_explained_and_what_never_learns_is_told() -> None:
    assert {"digit", "side", "sizes", "quiet"} <= set(runs_as(net_of()))
    assert never_learn(net_of()) == []
    net = horn.Network()
    net.input(4)
    h = net.layer(3, name="h")
    net.output(2, loss="squared_error", inputs=net.layers[0], name="a")
    net.output(2, loss="squared_error", inputs=net.layers[0], name="b")
    assert any("layer 1 'h'" in said for said in never_learn(net)) and h.size == 3


def run(*arguments: str) -> str:
    found = CliRunner().invoke(commands, arguments)
    assert found.exit_code == 0, found.output
    return found.output


def test_commands_name_the_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("several.py").write_text(TEXT)
    horn.train(job()).model.save("m.horn")
    np.savez("rows.npz", x=X, **{f"y.{name}": y for name, y in Y.items()})
    assert "digit_loss" in run("evaluate", "m.horn", "rows.npz")
    assert "loss       digit (cross_entropy) + 0.5 * side" in run("show", "m.horn")
    first = run("predict", "m.horn", "rows.npz", "--labels").splitlines()[0]
    assert first.startswith("digit ") and "  side left" in first or "  side right" in first
    shown = json.loads(run("predict", "m.horn", "rows.npz", "--json"))
    assert shown["shape"] == {"digit": [80, 3], "side": [80, 1], "sizes": [80, 2]}
    run("predict", "m.horn", "rows.npz", "-o", "said.csv")
    header, line, *_ = Path("said.csv").read_text().splitlines()
    assert header == "digit.0,digit.1,digit.2,side.0,sizes.0,sizes.1" and line.count(",") == 5
    run("predict", "m.horn", "rows.npz", "--labels", "-o", "said.npz")
    with np.load("said.npz") as said:
        assert sorted(said) == ["digit", "side", "sizes"] and said["side"].shape == (80,)
    rows = "".join(f"no {k},1,2,3,4\n" for k in range(2))
    Path("named.csv").write_text("plant,a,b,c,d\n" + rows)
    run("predict", "m.horn", "named.csv", "-o", "said.npz")
    with np.load("said.npz") as said:
        assert sorted(said) == ["digit", "ids", "side", "sizes"]
        assert said["ids"].tolist() == ["no 0", "no 1"]
    refused = CliRunner().invoke(commands, ["predict", "m.horn", "rows.npz", "-o", "said.npy"])
    assert "the outputs digit, side, sizes are several arrays; write .npz or .csv" in str(
        refused.exception
    )
    assert "quiet" in run("check", "several.py")
    assert "digit:1" in run("trace", "several.py", "--neuron", "digit:1")
    assert "quiet" in run("explain", "several.py")


# what does not fit


@pytest.mark.parametrize(
    "data, sentence",
    [
        ((X, DIGIT), r"the targets of 'digit', 'side', 'sizes' are missing: .* the data have y of "
         r"shape \(80,\), without a name; pass \(x, \{'digit': \.\.\., 'side'"),
        ((X, {"digit": DIGIT, "sizes": SIZES}), r"the targets of 'side' are missing"),
        ((X, (DIGIT, SIDE)), "y is 2 arrays, but the network has the outputs digit, side, sizes; "
         "give a dict by these names, or a tuple of 3 in this order"),
        ((X, DIGIT.tolist()), "y is a list of numbers, but the network has the outputs"),
        (X, "data has no targets, but the network has the outputs digit, side, sizes"),
        ((X, Y | {"digit": DIGIT[:9]}), r"the outputs have 9 \('digit'\), 80 \('side'\), 80"),
        ((X, Y | {"digit": DIGIT - 1}), "data: digit: label -1 in row .* is negative"),
        ((X, Y | {"digit": DIGIT * 3}), "labels contain 6 .* digit has classes 0..2"),
        ((X, Y | {"sizes": SIZES[:, :1]}), r"sizes: targets have shape \(80, 1\), but sizes has 2"),
        ((X, Y | {"sizes": None}), "targets of 'sizes' are None"),
        ((X, {}), "y is an empty dict; name the targets of each output"),
    ],
)  # fmt: skip
def test_targets_that_do_not_fit_are_said(data: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        job(data=data).check_data()


@pytest.mark.parametrize(
    "more, sentence",
    [
        ({"target": "input"}, 'target="input" is of one output, but the network has digit, side'),
        ({"class_weight": "balanced"}, "class_weight is of one output, but the network has digit"),
        ({"data": lambda: iter([(X, DIGIT)]), "iterations": 3, "epochs": None},
         "the network has several outputs, and the targets of a stream are of one; pass arrays, "
         "\\(x, {'digit': ..., 'side': ..., 'sizes': ...}\\), or one .npz file"),
        ({"aggregates": {"digit_acc": horn.Aggregate("h", lambda o: o.mean())}},
         "an aggregate is called 'digit_acc', which is the column of"),
        ({"data": X, "target": None},
         "without a loss, but this one has the losses of digit, side, sizes, quiet; leave target="),
        ({"validation": 0.2, "early_stopping": horn.EarlyStopping(monitor="val_sizes_r2")},
         "add metrics={'sizes': \\['r2'\\]}, or watch one of them"),
    ],
    ids=["input", "class weight", "stream", "aggregate", "no target", "monitor"],
)  # fmt: skip
def test_what_is_not_available_is_said(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        job(**more)


def test_networks_that_do_not_fit_are_said() -> None:
    def base() -> tuple[horn.Network, Any]:
        net = horn.Network()
        net.input(4)
        return net, net.layer(3, name="h")

    net, h = base()
    with pytest.raises(ModelError, match="compares neuron by neuron, but h has 3 and layer0 has 4"):
        net.loss(h, net.layers[0], "squared_error")
    with pytest.raises(ModelError, match=r"f is a function f\(a\), of one number; got None"):
        net.loss(h)
    with pytest.raises(ModelError, match=r"f is a function f\(a, b\), or the name of a loss"):
        net.loss(h, h, lambda y: y)
    with pytest.raises(ModelError, match="takes layers, .*; got <function"):
        net.loss(h, lambda y: y)
    with pytest.raises(ModelError, match="weight is a factor of the loss, from 0, got -1"):
        net.loss(h, f=abs, weight=-1)
    with pytest.raises(ModelError, match="weight is a factor of the loss, a number, got 'much'"):
        net.output(2, loss="squared_error", weight="much")
    for name in ("acc", "attempt"):  # a column of the history, and a fact of a job
        with pytest.raises(ModelError, match=f"'{name}' is a name of horn's own; choose another"):
            net.loss(h, f=abs, name=name)
    net.loss(h, f=abs)
    with pytest.raises(ModelError, match="outputs and losses are the last; add it before"):
        net.layer(3)


class Feedback(horn.Neuron):
    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        for m in messages:
            self.push(m.delta * self.output)
        self.backpropagate(sum(e.delta * e.normal(0.0, 0.3) for e in self.error))


class Hears(Feedback):
    def backward(self, messages):
        for m in messages:
            self.push(m.delta * self.output)
        error = sum(m.delta * m.weight for m in messages)
        self.backpropagate(error * self.activation.derivative(self.output))


def test_written_backwards_hear_of_outputs_and_not_of_losses_without_a_delta() -> None:
    net = horn.Network()
    net.input(4)
    h = net.layer(3, neuron=Feedback, activation="tanh")
    for name in ("a", "b"):
        net.output(2, loss="squared_error", inputs=h, name=name)
    with pytest.raises(ModelError, match="reads self.error, .*but there are 2: a, b"):
        net.check()
    net = horn.Network(seed=1)
    net.input(4)
    h = net.layer(3, neuron=Hears, activation="tanh", name="h")
    for name in ("a", "b"):
        net.output(2, loss="squared_error", inputs=h, name=name)
    horn.train(job(net, data=(X, {"a": SIZES, "b": SIZES})))  # its gradients are compared
    net.loss(h, f=abs)
    with pytest.raises(horn.CompileError, match="more than a function of sum.input . weight"):
        horn.train(job(net, data=(X, {"a": SIZES, "b": SIZES})))


# Targets of an output layer with a shape


def pictures() -> horn.Network:
    net = horn.Network(seed=1)
    net.input((4, 4, 1))
    net.output(connect=horn.Convolution(2, 3, padding="same"), loss="squared_error", name="maps")
    return net


PICTURES = np.random.default_rng(0).normal(size=(8, 4, 4, 1))
MAPS = np.random.default_rng(1).normal(size=(8, 4, 4, 2))
TURNED = MAPS.transpose(0, 3, 1, 2)
SAID = (
    r"have the shape \(2, 4, 4\), but .*\(4, 4, 2\), channels last; write y\.transpose\(0, 2, 3, 1"
)


def test_targets_with_the_shape_of_the_output_are_taken_as_they_are() -> None:
    flat = MAPS.reshape(8, -1)
    model = horn.train(horn.Job(pictures(), (PICTURES, MAPS), epochs=1)).model
    found = horn.train(horn.Job(pictures(), (PICTURES, flat), epochs=1)).model
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(array, found.parameters[name])
    assert model.evaluate(PICTURES, MAPS) == model.evaluate(PICTURES, flat)
    for data in (
        horn.data.as_dataset((PICTURES, MAPS)),
        horn.data.as_dataset((PICTURES, None)).with_targets(MAPS),
        (PICTURES, {"maps": MAPS}),
        lambda: iter([(PICTURES, MAPS)]),
    ):
        other = horn.train(horn.Job(pictures(), data, iterations=1)).model
        weight = found.parameters["maps.weight"]  # a stream's rows are in another order
        np.testing.assert_allclose(other.parameters["maps.weight"], weight, rtol=1e-4)
    assert "targets (4, 4, 2)" in repr(horn.data.as_dataset((PICTURES, MAPS)))


def test_targets_with_channels_first_are_refused_with_the_transpose() -> None:
    """They were to be reshaped, which mixes the axes."""
    held_out = {"validation": (PICTURES, TURNED)}
    for data, settings in (
        ((PICTURES, TURNED), {}),
        ((PICTURES, {"maps": TURNED}), {}),
        ((PICTURES, MAPS), held_out),
        (lambda: iter([(PICTURES, TURNED)]), {}),
    ):
        with pytest.raises(DataError, match=SAID):
            horn.train(horn.Job(pictures(), data, iterations=1, **settings))
    model = horn.Model(pictures(), pictures().initial_parameters())
    with pytest.raises(DataError, match=SAID):
        model.evaluate(PICTURES, TURNED)


def test_several_outputs_have_targets_with_shapes_of_their_own() -> None:
    net = horn.Network(seed=1)
    x = net.input((4, 4, 1))
    maps = horn.Convolution(2, 3, padding="same")
    net.output(connect=maps, inputs=x, loss="squared_error", name="maps")
    net.output(2, inputs=x, activation="softmax", loss="cross_entropy", name="kind")
    kinds = np.arange(8) % 2
    model = horn.train(horn.Job(net, (PICTURES, {"maps": MAPS, "kind": kinds}), epochs=1)).model
    with pytest.raises(DataError, match=f"maps: the targets of a sample {SAID}"):
        horn.train(horn.Job(net, (PICTURES, {"maps": TURNED, "kind": kinds}), epochs=1))
    with pytest.raises(DataError, match=SAID):
        model.evaluate(PICTURES, {"maps": TURNED, "kind": kinds})


@pytest.mark.parametrize("settings, said", [
    ({"loss": "squared_error"}, r"targets have shape \(8, 4, 4\), but .* pass \(8, 4, 4, 2\)"),
    ({"activation": "softmax", "loss": "cross_entropy"}, '"A class for each position"'),
])  # fmt: skip
def test_a_mask_of_classes_is_told_what_the_output_needs(settings: Any, said: str) -> None:
    net = horn.Network(seed=1)
    net.input((4, 4, 1))
    net.output(connect=horn.Convolution(2, 3, padding="same"), **settings)
    with pytest.raises(DataError, match=said):
        horn.train(horn.Job(net, (PICTURES, (MAPS[..., 0] > 0).astype(int)), epochs=1))
