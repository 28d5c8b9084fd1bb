"""horn evaluate, predict and show, on a model that submit has saved."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn import modelfile
from tests.cli.conftest import JOB
from tests.cli.processes import started
from tests.support.room import no_room

NEURON = """
class Shifted(horn.Neuron):
    shift = 0.25
    gain = horn.Parameter(1.0)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(self.gain * self.activation(total + self.shift))
"""


@pytest.fixture
def model(run: Any, folder: Path) -> str:
    """A model of a user's neuron, whose file is gone; and rows.npz, what it was trained on."""
    (folder / "source").mkdir()
    text = JOB.replace("def job", NEURON + "\ndef job", 1)
    text = text.replace("net.layer(4, ", "net.layer(4, neuron=Shifted, ")
    text = text.replace("    return", '    np.savez("rows.npz", x=x, y=y)\n    return')
    (folder / "source" / "mine.py").write_text(text)
    assert run("submit", "source/mine.py", "-q", "--set", "epochs=5").code == 0
    shutil.rmtree(folder / "source")
    return "mine.horn"


def test_evaluate_and_predict_give_the_figure_of_the_training(run: Any, model: str) -> None:
    shown = run("show", model, "--json").json["facts"]["metrics"]["training"]
    found = run("evaluate", model, "rows.npz", "--json").json
    assert found["schema"] == "horn.evaluate/1" and found["samples"] == 40
    assert found["loss"] == pytest.approx(shown["loss"]) and found["acc"] == shown["acc"]
    labels = [int(text) for text in run("predict", model, "rows.npz", "--labels").out.split()]
    with np.load("rows.npz") as rows:
        assert np.mean(labels == rows["y"]) == found["acc"]
    assert f"acc {found['acc']:.4f}" in run("evaluate", model, "rows.npz").out


def test_a_model_of_a_file_whose_name_is_no_utf_8_can_be_read(run: Any, folder: Path) -> None:
    """Its description had half a character, and could not be read any more."""
    text = JOB.replace("def job", NEURON + "\ndef job", 1)
    name = os.fsdecode(b"j\xe4b.py")
    (folder / name).write_text(text.replace("net.layer(4, ", "net.layer(4, neuron=Shifted, "))
    assert run("submit", name, "-q", "-o", "a.horn").code == 0
    done = run("show", "a.horn")
    assert done.code == 0 and "j?b.py" in done.out, done.err


@pytest.mark.cluster
def test_labels_with_half_a_character_are_printed_and_written(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8")  # strict, as in most languages
    net = horn.Network(seed=3)
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    parameters = {name: np.zeros_like(a) for name, a in net.initial_parameters().items()}
    model = horn.Model(net, parameters, classes=("caf\udce9", "thé"))  # of two it is the first
    model.save("m.horn")
    np.save("x.npy", np.ones((1, 2)))
    with started("predict", "m.horn", "x.npy", "--labels", folder=folder) as process:
        assert process.communicate(timeout=60) == ("caf\\udce9\n", "")
    assert run("predict", "m.horn", "x.npy", "--labels", "-o", "out.csv").code == 0
    assert (folder / "out.csv").read_text() == "caf\\udce9\n"
    assert run("show", "m.horn").out.count(r"'caf\udce9', 'thé'") == 1


def test_predict_writes_what_the_model_predicts(run: Any, model: str) -> None:
    done = run("predict", model, "rows.npz", "-o", "out.npy")
    assert done.out == "" and done.err == "Wrote out.npy: 40 × 2 float32.\n"
    with np.load("rows.npz") as rows:
        expected = horn.Model.load(model).predict(rows["x"])
    np.testing.assert_array_equal(np.load("out.npy"), expected)
    assert run("predict", model, "rows.npz", "-o", "out.csv").files == {"out.csv"}
    np.testing.assert_allclose(np.loadtxt("out.csv", delimiter=","), expected, rtol=1e-6)
    first = run("predict", model, "rows.npz").out.splitlines()[0]
    np.testing.assert_allclose([float(v) for v in first.split()], expected[0], rtol=1e-5)


@pytest.mark.parametrize("name", ["out.npy", "out.npz", "out.csv"])
def test_predictions_that_have_no_room_are_said_with_their_file(
    run: Any, model: str, name: str
) -> None:
    """Of a .npy file it was: a bug in horn, 80 requested and 25 written."""
    with no_room(100):
        done = run("predict", model, "rows.npz", "-o", name)
    said = f"Error: -o {name}: cannot be written (File too large); choose another place\n"
    assert (done.code, done.err, done.files) == (2, said, set())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("names", [("y",), ("y", "z")])
@pytest.mark.parametrize("has_ids", [False, True])
def test_a_table_has_all_digits(
    run: Any, folder: Path, dtype: str, names: tuple[str, ...], has_ids: bool
) -> None:
    """Numbers near 1.7e9 were all 1.7e+09."""
    net = horn.Network(seed=1)
    net.input(1)
    hidden = net.layer(2)
    for name in names:
        net.output(2, name=name, loss="squared_error", inputs=hidden)
    at = net.initial_parameters(dtype=dtype)
    at |= {f"{name}.bias": at[f"{name}.bias"] + 1.7e9 for name in names}
    model = horn.Model(net, at, dtype=dtype)
    model.save("m.horn")
    rows = [f"r{k}, {k * 0.37}" if has_ids else f"{k * 0.37}" for k in range(5)]
    (folder / "x.csv").write_text("\n".join(rows) + "\n")
    assert run("predict", "m.horn", "x.csv", "-o", "out.csv").code == 0
    found = model.predict(horn.data.load("x.csv", labels=False))
    expected = np.hstack([*found.values()]) if isinstance(found, dict) else found
    skipped = {"skiprows": int(has_ids or len(names) > 1)}
    columns = range(has_ids, has_ids + 2 * len(names))
    table = np.loadtxt("out.csv", dtype, delimiter=",", usecols=columns, **skipped)
    np.testing.assert_array_equal(table, expected)
    assert len(np.unique(table[:, 0])) == (5 if dtype == "float64" else 1)
    assert float(run("predict", "m.horn", "x.csv").out.split()[-1]) == 1.7e9  # short


def test_labels_that_are_numbers_with_a_point_keep_it_in_a_table(run: Any, folder: Path) -> None:
    net = horn.Network(seed=1)
    net.input(1)
    net.output(2, activation="softmax", loss="cross_entropy")
    horn.Model(net, net.initial_parameters(), classes=(0.5, 1.5)).save("m.horn")
    (folder / "x.csv").write_text("-5\n5\n")
    assert run("predict", "m.horn", "x.csv", "--labels", "-o", "out.csv").code == 0
    assert sorted((folder / "out.csv").read_text().split()) == ["0.5", "1.5"]


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_file_in_other_units_than_the_training_data_is_warned_of(
    run: Any, folder: Path, caplog: pytest.LogCaptureFixture, command: str
) -> None:
    net = horn.Network(seed=1)
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    facts = {"scale": None, "highest": 200.0}
    horn.Model(net, net.initial_parameters(), facts=facts).save("m.horn")
    np.savez("bytes.npz", x=np.array([[200, 3]], np.uint8), y=[1])
    np.savez("numbers.npz", x=[[200.0, 3.0]], y=[1])
    assert run(command, "m.horn", "numbers.npz").code == 0 and not caplog.records
    assert run(command, "m.horn", "bytes.npz").code == 0
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("bytes.npz: bytes count 0.00392157 each, 1 at most, but the training")


def test_predict_json_has_the_outputs(run: Any, model: str) -> None:
    found = run("predict", model, "rows.npz", "--json").json
    assert found["schema"] == "horn.predict/1" and found["shape"] == [40, 2]
    assert len(found["outputs"]) == 40 and sum(found["outputs"][0]) == pytest.approx(1.0, abs=1e-5)


def test_show_says_what_the_model_is_and_where_it_comes_from(run: Any, model: str) -> None:
    done = run("show", model)
    assert done.code == 0 and done.err == ""
    for text in (
        "1 layer1  Shifted, tanh",
        "loss       cross_entropy",
        "training   loss 0.",
        "optimizer  SGD(learning_rate=0.5",
        "20 updates of batch 10, 5 epochs",
        "source     mine.py (mine), sha256",
    ):
        assert text in done.out, done.out
    assert "self.activation(total + self.shift)" in run("show", model, "--source").out


def test_show_says_of_a_part_of_a_model_how_long_it_learned(run: Any, model: str) -> None:
    """It said that the file is damaged."""
    horn.Model.load(model).cut("layer1").save("part.horn")
    done = run("show", "part.horn")
    assert done.code == 0 and re.search(r"^trained +20 updates$", done.out, re.M), done


def test_show_json_is_the_manifest(run: Any, model: str) -> None:
    found = run("show", model, "--json").json
    assert found["schema"] == "horn.model/1" and found["format"] == modelfile.FORMAT
    assert found["network"]["layers"][1]["constants"] == {"shift": 0.25}
    assert found["sources"]["mine"]["file"] == "mine.py"


def test_names_in_a_file_command_no_terminal(run: Any, model: str) -> None:
    from horn import modelfile

    manifest, arrays = modelfile.read(model)
    escape = "\x1b]0;title\x07N"
    manifest["network"]["layers"][1] |= {"neuron_name": escape, "name": "[/x]"}
    manifest["facts"]["data"] = escape
    manifest["sources"]["mine"]["file"] = escape
    modelfile.write("odd.horn", manifest, arrays)
    done = run("show", "odd.horn", "--source")
    assert done.code == 0 and "1 [/x]" in done.out
    assert "\x1b" not in done.out and done.out.count(repr(escape)[1:-1]) == 3


def test_show_runs_nothing_of_the_file(run: Any, model: str, folder: Path) -> None:
    """A model whose source would say so when it is run."""
    from horn import modelfile

    manifest, arrays = modelfile.read(model)
    text = manifest["sources"]["mine"]["text"].replace(
        "shift = 0.25", "shift = 0.25; open('was-run', 'w').close()"
    )
    import hashlib

    digest = hashlib.sha256(text.encode()).hexdigest()
    manifest["sources"]["mine"] |= {"text": text, "sha256": digest}
    modelfile.write("evil.horn", manifest, arrays)
    assert run("show", "evil.horn").code == 0 and run("show", "evil.horn", "--source").code == 0
    assert not (folder / "was-run").exists()
    assert run("evaluate", "evil.horn", "rows.npz").files == {"was-run"}  # it would have shown


def test_a_damaged_file_is_not_drawn(run: Any, model: str) -> None:
    from horn import modelfile

    pytest.importorskip("matplotlib")
    manifest, arrays = modelfile.read(model)
    manifest["network"]["layers"][1]["links"][0]["source"] = 9
    modelfile.write("odd.horn", manifest, arrays)
    done = run("show", "odd.horn", "--plot", "p.png")
    assert done.code == 2 and "odd.horn" in done.err and "is damaged" in done.err


def test_check_says_how_neurons_run_and_that_backwards_agree(run: Any, folder: Path) -> None:
    neuron = """
class Own(horn.Neuron):
    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            self.push(m.delta * self.output)
        self.backpropagate(error * self.activation.derivative(self.output))
"""
    text = JOB.replace("def job", neuron + "\ndef job", 1)
    (folder / "job.py").write_text(text.replace("net.layer(4, ", "net.layer(4, neuron=Own, "))
    done = run("check", "job.py")
    assert done.code == 0 and done.files == set()
    assert "weighted sum" in done.out and "matrix products" in done.out and "agree" in done.out
    found = run("check", "job.py", "--json").json
    assert found["schema"] == "horn.check/1" and found["ok"] is True
    assert found["layers"][0]["backward"] == "written"
    assert found["layers"][0]["worst"]["relative_error"] < 1e-6
    assert json.dumps(found)


def test_zk_has_the_options_of_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    from horn.cli import horn as group
    from horn.cli._end import ending

    assert ending(group, ["zk", "--help"]) == 0
    assert "--data-dir" in capsys.readouterr().out
    assert ending(group, ["zk", "--tick-ms", "0"]) == 2


@pytest.mark.parametrize("address", ["127.0.0.1:2181", "localhost:2181", "[::1]:2181"])
def test_an_address_with_a_port_is_told_where_ports_are_given(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was said to be reachable from other hosts, and to want a key."""
    from horn.cli import horn as group
    from horn.cli._end import ending

    assert ending(group, ["zk", "--bind", address]) == 2
    said = capsys.readouterr().err
    assert f"--bind {address}: an address has no port here; give the port with --port" in said


REGRESSION = """
import numpy as np

import horn


def spread(y_true, y_pred):
    return float(np.std(y_true - y_pred))


def job():
    net = horn.Network(seed=1)
    net.input(2)
    net.output(1, loss="squared_error")
    x = np.arange(24.0).reshape(12, 2) / 24.0
    np.savez("rows.npz", x=x, y=x[:, :1])
    return horn.Job(net, (x, x[:, :1]), validation=0.5, epochs=2, metrics=["r2", spread])
"""


def test_show_and_evaluate_say_what_was_measured_and_that_the_loss_is_half(
    run: Any, folder: Path
) -> None:
    (folder / "line.py").write_text(REGRESSION)
    done = run("submit", "line.py")
    assert done.code == 0 and re.search(r"val_loss \S+  val_r2 \S+  val_spread ", done.err)
    (folder / "line.py").unlink()
    shown = run("show", "line.horn").out
    assert "squared_error, half of (y - t)^2" in shown
    assert re.search(r"validation loss \S+  r2 \S+  spread ", shown)
    assert re.match(r"loss \S+  r2 \S+  spread \S+$", run("evaluate", "line.horn", "rows.npz").out)
    other = run("evaluate", "line.horn", "rows.npz", "--metric", "mse", "--metric", "mae", "--json")
    assert other.json["mse"] == pytest.approx(2 * other.json["loss"]) and "r2" not in other.json
    wrong = run("evaluate", "line.horn", "rows.npz", "--metric", "f1")
    assert wrong.code == 2 and 'take "mae"' in wrong.err


def test_show_counts_the_parameters_of_a_layer_whose_name_has_a_slash(
    run: Any, folder: Path
) -> None:
    net = horn.Network(seed=1)
    a = net.layer(3, inputs=net.input(2), name="block1")
    net.output(1, inputs=[a], connect=horn.Sparse(fan_in=2), name="block1/out")
    horn.Model(net, net.initial_parameters("float64"), {}).save("nested.horn")
    shown = run("show", "nested.horn").out
    assert re.search(r"block1 .* 3 +9 +0\n", shown) and re.search(r"block1/out .* 1 +3 ", shown)


FLOWERS = """
import horn

def job():
    net = horn.Network(seed=1)
    net.input(2)
    net.layer(6, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    return horn.Job(net, horn.data.load("train.csv"), optimizer=horn.SGD(0.3), epochs=30,
                    batch_size=10, normalize=True)
"""


@pytest.fixture
def flowers(run: Any, folder: Path) -> list[list[str]]:
    """Rows of a file with a header, names of samples and of classes; and flowers.horn, of them."""
    rng = np.random.default_rng(0)
    names, centers = ["iris, blue", "lily", "rose"], [(0, 500), (5, 500), (5, 900)]
    rows = []
    for k in range(90):
        a, b = centers[k % 3] + rng.normal(size=2) * [0.5, 40]
        rows.append([f"no {k}", f"{a:.4f}", f"{b:.4f}", names[k % 3]])
    text = ["plant;length;width;kind", *(";".join(f'"{cell}"' for cell in row) for row in rows)]
    (folder / "train.csv").write_text("\n".join(text) + "\n")
    (folder / "flowers.py").write_text(FLOWERS)
    assert run("submit", "flowers.py", "-q").code == 0
    return rows


def test_a_table_of_named_classes_from_training_to_prediction(
    run: Any, flowers: list[list[str]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("evaluate", "flowers.horn", "train.csv", "--json").json["acc"] == 1.0
    done = run("predict", "flowers.horn", "train.csv", "--labels", "-o", "out.csv")
    assert done.code == 0, done.err
    with open("out.csv", newline="") as file:
        found = list(csv.reader(file))
    assert found == [["plant", "label"], *([row[0], row[3]] for row in flowers)]
    for more in ((), ("--ids", "plant")):  # by default the first column
        run("predict", "flowers.horn", "train.csv", *more, "--labels", "-o", "out.npz")
        with np.load("out.npz") as arrays:
            assert sorted(arrays) == ["ids", "y"]
            assert arrays["ids"].tolist() == [row[0] for row in flowers]
            assert arrays["y"].tolist() == [row[3] for row in flowers]
    done = run("predict", "flowers.horn", "train.csv", "--ids", "plant", "-o", "out.npy")
    said = "-o out.npy: one array has no place for the names of samples, --ids plant; write .npz"
    assert (done.code, done.files) == (2, set()) and said in done.err
    run("predict", "flowers.horn", "train.csv", "-o", "out.csv")
    with open("out.csv", newline="") as file:
        assert next(csv.reader(file)) == ["plant", "iris, blue", "lily", "rose"]
    lines = run("predict", "flowers.horn", "train.csv", "--labels").out.splitlines()
    assert lines[:2] == ["no 0 iris, blue", "no 1 lily"]
    found = run("predict", "flowers.horn", "train.csv", "--labels", "--json").json
    assert found["ids"][2] == "no 2" and found["outputs"][2] == "rose"
    shown = run("show", "flowers.horn").out
    assert "classes    'iris, blue', 'lily', 'rose'" in shown
    assert "features   normalized by mean and standard deviation" in shown
    # the same samples, with other columns and through a pipe
    moved = "".join(f"{row[3].replace(',', '')},{k},{row[1]},{row[2]}\n"
                    for k, row in enumerate(flowers))  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.StringIO("kind,number,length,width\n" + moved))
    done = run("predict", "flowers.horn", "-", "--labels", "--ids", "number", "--label", "kind")
    assert done.out.splitlines()[1] == "1 lily", done.err
    (folder / "few.csv").write_text("plant;length;width;kind\na;1;2;tulip\n")
    done = run("evaluate", "flowers.horn", "few.csv")
    assert done.code == 2
    assert "few.csv: has labels that this model does not have: 'tulip' (1 sample" in done.err


def test_a_table_without_labels_is_told_so_and_not_that_a_feature_is_missing(
    run: Any, folder: Path
) -> None:
    net = horn.Network(seed=1)
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    (folder / "rows.csv").write_text("long,wide,kind\n1,2,a\n3,1,b\n")
    job = horn.Job(net, horn.data.load("rows.csv"), epochs=1)
    horn.train(job, progress=False).model.save("m.horn")
    assert run("evaluate", "m.horn", "rows.csv").code == 0
    (folder / "bare.csv").write_text("long,wide\n1,2\n3,1\n")
    asked = run("evaluate", "m.horn", "bare.csv")
    assert asked.code == 2
    assert "bare.csv: has no column with labels: its last, 'wide', is one of the" in asked.err
    assert run("predict", "m.horn", "bare.csv").code == 0


def test_no_result_replaces_what_it_is_made_of(run: Any, folder: Path) -> None:
    """The data were overwritten by the predictions for them, without a word."""
    rows = "1,2,0\n3,1,1\n"
    (folder / "rows.csv").write_text(rows)
    (folder / "link.csv").symlink_to("rows.csv")
    text = JOB.replace("horn.Job(net, (x, y)", "horn.Job(net, horn.data.load('rows.csv')")
    (folder / "own.py").write_text(text)
    assert run("submit", "own.py", "-q").code == 0
    np.savez(folder / "rows.npz", x_test=np.ones((2, 2)))
    (folder / "model.csv").write_bytes((folder / "own.horn").read_bytes())
    (folder / "d").mkdir()
    np.save(folder / "d" / "x0.npy", np.ones((2, 2)))
    np.save(folder / "d" / "y0.npy", np.zeros(2, int))
    own = text.replace("rows.csv", "d")
    (folder / "shards.py").write_text(own)

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    before = files()
    for words in (
        "predict own.horn rows.csv --label 3 -o rows.csv",
        "predict own.horn rows.csv --label 3 -o link.csv",
        "predict own.horn rows.npz:test -o ./rows.npz",
        "predict model.csv rows.csv --label 3 -o model.csv",
        "submit own.py -o rows.csv",
        "submit own.py --profile rows.csv",
        "sweep own.py --set epochs=1,2 -o link.csv",
        "predict own.horn d -o d/x0.npy",
        "submit shards.py -o d/y0.npy",
    ):
        done = run(*words.split())
        written = words.split()[-1]
        assert done.code == 2 and f"{written}: is read here, and would be replaced" in done.err
    assert before == files()
    assert run("predict", "own.horn", "rows.csv", "--label", "3", "-o", "new.csv").code == 0
    for _ in range(2):
        assert run("predict", "own.horn", "d", "-o", "d/answers.npy").code == 0


def test_a_column_too_many_is_told_with_the_option_that_says_what_it_is(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label that is a number was taken for a feature, and the remedy was one of pandas."""
    net = horn.Network(seed=1)
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    (folder / "rows.csv").write_text("long,wide,is it\n1,2,0\n3,1,1\n")
    job = horn.Job(net, horn.data.load("rows.csv"), epochs=1)
    horn.train(job, progress=False).model.save("m.horn")

    done = run("predict", "m.horn", "rows.csv")
    has = "has 'is it', which this model has not learned from: add  "
    label, ids = "--label 'is it'  if it is the label", "--ids 'is it'  if it names the samples"
    assert done.code == 2
    assert done.err == f"Error: rows.csv: {has}{label}, {ids}, or leave the column out\n"
    right = run("predict", "m.horn", "rows.csv", "--label", "is it")
    assert right.code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("long,wide,is it\n1,2,0\n3,1,1\n"))
    assert f"Error: standard input: {has}{label}" in run("predict", "m.horn", "-").err

    first = "is it,long,wide\n0,1,2\n1,3,1\n"
    (folder / "first.csv").write_text(first)
    done = run("evaluate", "m.horn", "first.csv")
    taken = "its last column was taken for the label, and 'wide' is missing; it "
    assert done.code == 2 and f"first.csv: {taken}{has}{label}, {ids}" in done.err
    assert run("evaluate", "m.horn", "first.csv", "--label", "is it").code == 0

    (folder / "known.csv").write_text("number,long,wide,is it\n7,1,2,0\n8,3,1,1\n")
    done = run("evaluate", "m.horn", "known.csv")
    assert (
        "known.csv: has 'number', which this model has not learned from: add  --ids nu" in done.err
    )
    assert run("evaluate", "m.horn", "known.csv", "--ids", "number").code == 0
