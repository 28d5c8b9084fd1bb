"""Pictures of trainings and models."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from IPython.core.formatters import DisplayFormatter

import horn
from horn.cli import horn as commands
from horn.connections import Edges
from horn.errors import DataError, ModelError
from horn.training.history import History

RNG = np.random.default_rng(6)
X = RNG.integers(0, 256, (30, 6, 6, 3)).astype(np.uint8)
NAMES = np.array(["ant", "bee", "cat"])[np.arange(30) % 3]


class Pool(horn.Neuron):
    def forward(self, messages: Any) -> None:
        self.feedforward(max(m.input for m in messages))


def network(channels: int = 3) -> horn.Network:
    net = horn.Network(seed=2)
    net.input((6, 6, channels))
    net.layer(connect=horn.Window(2, padding="same"), neuron=Pool, name="pool")
    net.layer(connect=horn.Convolution(5, 3), activation="relu", name="maps")
    net.layer(connect=horn.Local(2, 2), activation="tanh", name="local")
    net.layer(9, activation="tanh", name="dense")
    net.output(3, activation="softmax", loss="cross_entropy", name="out")
    return net


@pytest.fixture(scope="module")
def run() -> Any:
    return horn.train(horn.Job(network(), (X, NAMES), epochs=3, validation=(X, NAMES)))


def drawn(figure: Any) -> np.ndarray:
    return np.asarray(figure.axes[0].images[0].get_array())


def test_filters_of_colours_lie_in_a_mosaic(run: Any, tmp_path: Path) -> None:
    """Five of 3 x 3 in rows of three, each with its own darkest and brightest number."""
    figure = horn.plot.weights(run, path=tmp_path / "new" / "maps.png")
    assert figure.axes[0].get_title() == "maps"  # the first that has weights
    assert (tmp_path / "new" / "maps.png").read_bytes()[:4] == b"\x89PNG"
    picture, weights = drawn(figure), run.model.parameters["maps.weight"]
    assert picture.shape == (7, 11, 3)
    one = weights[4]
    np.testing.assert_allclose(picture[4:7, 4:7], (one - one.min()) / np.ptp(one), rtol=1e-6)
    assert (picture[3] == 1).all() and (picture[:, 3] == 1).all()


def test_a_notebook_shows_a_figure_before_it_has_heard_of_matplotlib(run: Any) -> None:
    figure = horn.plot.history(run)
    for each in (figure, pickle.loads(pickle.dumps(figure))):
        shown, _ = DisplayFormatter().format(each)
        assert shown["image/png"][:4] == b"\x89PNG"


def test_weights_of_other_layers_lie_where_the_neurons_below_do(run: Any) -> None:
    """Local: a window of 5 channels for each neuron; a dense layer: all positions below it."""
    local, weights = drawn(horn.plot.weights(run.model, "local")), run.model.parameters
    assert local.shape == (3 * 18 - 1, 3 * 5 - 1)
    edges = run.model.network.layers[3].links[0].edges
    first = slice(edges.indptr[7], edges.indptr[8])
    window = weights["local.weight"][first].reshape(2, 2, 5)
    np.testing.assert_array_equal(local[21:23, 3:5], window[:, :, 1])
    dense = drawn(horn.plot.weights(run.model, "dense"))
    assert dense.shape == (9 * 4 - 1, 2 * 4 - 1)
    np.testing.assert_array_equal(
        dense[4:7, 0:3], weights["dense.weight"][1].reshape(3, 3, 2)[:, :, 0]
    )
    out = drawn(horn.plot.weights(run.model, "out"))  # 9 neurons below: 3 x 3
    np.testing.assert_array_equal(out[:3, :3], weights["out.weight"][0].reshape(3, 3))


def test_of_many_neurons_64_are_drawn_evenly() -> None:
    net = horn.Network(seed=1)
    net.input(16)
    net.layer(200, name="many", activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    x = RNG.random((20, 16))
    model = horn.train(horn.Job(net, (x, np.arange(20) % 2), epochs=1)).model
    picture = drawn(horn.plot.weights(model))
    assert picture.shape == (8 * 5 - 1, 8 * 5 - 1)
    np.testing.assert_array_equal(
        picture[-4:, -4:], model.parameters["many.weight"][199].reshape(4, 4)
    )


@pytest.mark.parametrize("layer", ["maps", "local", "dense"])
def test_show_draws_the_same_without_running_the_model(
    run: Any, layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run.model.save("m.horn")
    done = CliRunner().invoke(commands, ["show", "m.horn", "--plot", "o.svg", "--layer", layer])
    assert done.exit_code == 0 and done.output.rstrip().endswith("o.svg"), done.output
    import matplotlib.figure

    seen: list[Any] = []
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda self, path: seen.append(self))
    CliRunner().invoke(commands, ["show", "m.horn", "--plot", "o.svg", "--layer", layer])
    np.testing.assert_array_equal(drawn(seen[0]), drawn(horn.plot.weights(run, layer)))


class Ring:
    """Neuron o hears o and the next two of six, with three weights that all of them share."""

    def __init__(self, shape: tuple[int, ...] = (3,)) -> None:
        self.shape = shape

    def edges(self, n_sources: int, n_receivers: int, rng: Any) -> Edges:
        sources = (np.arange(n_receivers)[:, None] + np.arange(3)) % n_sources
        order = np.argsort(sources, axis=1)
        indptr = 3 * np.arange(n_receivers + 1)
        indices = np.take_along_axis(sources, order, 1).ravel()
        return Edges(indptr, indices, order.ravel(), weight_shape=self.shape)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (1, 1, 3), (1, 1, 1, 3)], ids=str)
def test_shared_weights_of_a_connection_of_ones_own_lie_at_each_neurons_synapses(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    net = horn.Network(seed=1)
    net.input(6)
    net.output(6, connect=Ring(shape), loss="squared_error", name="ring")
    model = horn.Model(net, net.initial_parameters())
    own = model.parameters["ring.weight"].ravel()
    picture = drawn(horn.plot.weights(model, "ring"))
    rows, columns = (2, 3), (6, 6)  # six neurons, each in a cell as wide as the widest
    cells = [picture[k // 3 * rows[0], k % 3 * 7 : k % 3 * 7 + columns[0]] for k in range(6)]
    np.testing.assert_allclose(cells[0][:3], own, rtol=1e-6)
    np.testing.assert_allclose(cells[4], [own[2], *[np.nan] * 3, *own[:2]], rtol=1e-6)
    model.save(tmp_path / "ring.horn")
    path = str(tmp_path / "ring.png")
    shown = CliRunner().invoke(commands, ["show", str(tmp_path / "ring.horn"), "--plot", path])
    assert shown.exit_code == 0, shown.output
    assert Path(path).read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("channels", [1, 3])
def test_neurons_that_hear_nothing_are_drawn_empty(channels: int) -> None:
    net = horn.Network(seed=1)
    net.input((4, 4, channels))
    local = horn.Local(1, 2, padding=((3, 0), 0))
    net.output(connect=local, loss="squared_error", name="local")
    figure = horn.plot.weights(horn.Model(net, net.initial_parameters()))
    first = drawn(figure)[:4, :4]
    assert (first == 1).all() if channels == 3 else np.isnan(first).all()


def test_confusion_counts_who_was_taken_for_whom(run: Any, tmp_path: Path) -> None:
    figure = horn.plot.confusion(run, (X, NAMES), path=tmp_path / "c.png")
    taken = run.model.predict(X, labels=True)
    names = ["ant", "bee", "cat"]
    expected = [[int(((NAMES == a) & (taken == b)).sum()) for b in names] for a in names]
    assert figure.counts.tolist() == expected and figure.counts.sum() == 30
    assert (horn.plot.confusion(run, X, NAMES).counts == figure.counts).all()
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == names
    assert (tmp_path / "c.png").exists()
    two = horn.Network(seed=1)
    two.input(4)
    two.output(1, activation="sigmoid", loss="binary_cross_entropy")
    x, y = RNG.random((20, 4)), np.arange(20) % 2
    model = horn.train(horn.Job(two, (x, y), epochs=1)).model
    counts = horn.plot.confusion(model, (x, y)).counts
    assert counts.tolist() == [[int(((y == a) & ((model.predict(x)[:, 0] > 0.5) == b)).sum())
                                for b in (0, 1)] for a in (0, 1)]  # fmt: skip
    whole = horn.Network(seed=1)
    whole.input(4)
    whole.output(1, loss="squared_error")
    numbers = horn.train(horn.Job(whole, (x, y * 3), epochs=1)).model
    with pytest.raises(ModelError, match="needs a model of one output that tells classes apart"):
        horn.plot.confusion(numbers, (x, y * 3))


def test_a_history_is_losses_beside_the_rest(run: Any) -> None:
    figure = horn.plot.history(run)
    said = [[line.get_label() for line in axes.lines] for axes in figure.axes]
    assert said == [["loss", "val_loss"], ["acc", "val_acc"]]
    np.testing.assert_array_equal(figure.axes[0].lines[1].get_ydata(), run.history["val_loss"])
    assert len(horn.plot.history(run.history, "acc").axes) == 1


ROWS = [
    {"epoch": 4, "loss": 1.0, "groups": [0, 1], "group_loss": [0.8, 1.2]},
    {"epoch": 5, "loss": float("nan"), "groups": [0, 2], "group_loss": [0.7, 0.9]},
    {"epoch": 6, "loss": None, "val_auc": np.float32(0.5), "groups": None, "group_loss": None},
]


def test_a_history_may_begin_late_and_have_gaps_and_other_columns_than_at_first() -> None:
    """As of a run that went on with more metrics, whose columns were said not to be measured."""
    figure = horn.plot.history(ROWS)
    (loss,), (auc,) = (axes.lines for axes in figure.axes)
    assert [line.get_label() for line in (loss, auc)] == ["loss", "val_auc"]
    np.testing.assert_array_equal(loss.get_xdata(), [4, 5, 6])
    np.testing.assert_array_equal(np.array(loss.get_ydata(), float), [1.0, np.nan, np.nan])
    np.testing.assert_array_equal(np.array(auc.get_ydata(), float), [np.nan, np.nan, 0.5])
    one = horn.plot.history(ROWS[:1])
    assert [list(line.get_xdata()) for line in one.axes[0].lines] == [[4]]
    assert len(horn.plot.history([{"loss": 1.0}, {"loss": 0.5}]).axes[0].lines) == 1


def test_losses_of_groups_are_a_line_each(tmp_path: Path) -> None:
    """They were said not to be measured."""
    lines = horn.plot.history(ROWS, "group_loss").axes[0].lines
    found = {line.get_label(): np.array(line.get_ydata(), float) for line in lines}
    np.testing.assert_equal(found, {
        "loss of group 0": np.array([0.8, 0.7, np.nan]),
        "loss of group 1": np.array([1.2, np.nan, np.nan]),
        "loss of group 2": np.array([np.nan, 0.9, np.nan]),
    })  # fmt: skip
    live = horn.plot.live("loss", "group_loss", path=tmp_path / "live.png")
    live.on_epoch_end(SimpleNamespace(history=History(ROWS), n_epochs=6, epoch=6))  # type: ignore
    assert [line.get_label() for line in live.figure.axes[0].lines] == ["loss", *found]
    assert (tmp_path / "live.png").exists()


def test_confusion_takes_the_labels_that_evaluate_takes() -> None:
    x, y = RNG.random((20, 4)), np.arange(20) % 3
    net = horn.Network(seed=1)
    net.input(4)
    net.output(3, activation="softmax", loss="cross_entropy")
    model = horn.train(horn.Job(net, (x, y), epochs=1)).model
    for labels, words in [(y - 1, "label -1 in row 0"), (y + 5, "contain 7"), (None, "no labels")]:
        with pytest.raises(DataError, match=words):
            horn.plot.confusion(model, x, labels)
    side = horn.Network(seed=1)
    side.input(4)
    side.output(1, activation="sigmoid", loss="binary_cross_entropy")
    model = horn.train(horn.Job(side, (x, y % 2), epochs=1)).model
    assert "acc" not in model.evaluate(x, y)
    with pytest.raises(ModelError, match="data with labels, 0 and 1 of a single output"):
        horn.plot.confusion(model, x, y)


@pytest.mark.parametrize("make, words", [
    (lambda run: horn.plot.weights(run, "pool"),
     "layer 'pool' has no weights; those that have are maps, local, dense, out"),
    (lambda run: horn.plot.history(run, "auc"), "'auc' was not measured; the columns are"),
    (lambda run: horn.plot.history([]), "nothing was measured"),
    (lambda run: horn.plot.confusion(run, X, np.eye(3)[np.arange(30) % 3]),
     "needs a model of one output that tells classes"),
    (lambda run: horn.plot.history(None), "history: needs what horn.train returned, .*, got None"),
    (lambda run: horn.plot.history(run.model), "a list of rows as dicts, got Model"),
    (lambda run: horn.plot.history({"loss": [1.0]}), "a list of rows as dicts, got dict"),
    (lambda run: horn.plot.history(run, ["loss", "acc"]), r'names, .*\(run, "loss", "val_loss"\)'),
    (lambda run: horn.plot.live(["loss"]), r'names, .* in horn.plot.live\("loss", "val_loss"\)'),
    (lambda run: horn.plot.confusion(None, X), "confusion: needs a model, or what .*, got None"),
    (lambda run: horn.plot.weights(run.history), "weights: needs a model, or what .* got History"),
    (lambda run: horn.plot.weights(run, ["maps"]), "layer .'maps'. has no weights; those that"),
    (lambda run: horn.plot.raster("run", X, "maps"), "raster: needs a model, .* got 'run'"),
    (lambda run: horn.plot.raster(run, None, "maps"), "list of one sequence or more, .* got None"),
    (lambda run: horn.plot.raster(run, X[:0], "maps"), "one sequence or more, .* got ndarray"),
    (lambda run: horn.plot.history(run, path="a.xyz"), "a.xyz: there is no picture of the kind"),
    (lambda run: horn.plot.live(path="a.xyz").check(None), "live: a.xyz: there is no picture"),
    (lambda run: horn.plot.history(run, path="/proc/no/a.png"), "/proc/no/a.png: cannot be wr"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_said(run: Any, make: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        make(run)


def test_without_matplotlib_the_extra_is_named(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for draw in (horn.plot.history, horn.plot.weights, lambda r: horn.plot.confusion(r, X)):
        with pytest.raises(ModelError, match=r"pip install 'horn-bsp\[plot\]'"):
            draw(run)


def test_layer_alone_says_what_it_is_for(run: Any, tmp_path: Path) -> None:
    run.model.save(tmp_path / "m.horn")
    done = CliRunner().invoke(commands, ["show", str(tmp_path / "m.horn"), "--layer", "maps"])
    assert done.exit_code != 0 and "add --plot" in done.output
