"""Metrics beside the loss: what each is, by its definition; where it is seen; whom it fits."""

from __future__ import annotations

import io
import json
from statistics import correlation
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import horn
from horn import metrics
from horn.answers import answer_kind, n_right
from horn.data import as_dataset
from horn.errors import JobError, ModelError
from horn.metrics import METRICS, resolve, score
from horn.sources import CapturedCode, SourceCapture
from horn.training.progress import LineProgress, Progress
from tests.support.runs import bits


def network(outputs: int = 3, activation: str = "softmax", loss: str = "cross_entropy",
            inputs: int = 6) -> horn.Network:  # fmt: skip
    net = horn.Network(seed=5)
    net.input(inputs)
    net.layer(8, activation="tanh")
    net.output(outputs, activation=activation, loss=loss)
    return net


NETWORKS = {
    "label": network(),
    "one-hot": network(),
    "side": network(1, "sigmoid", "binary_cross_entropy"),
    "each": network(3, "sigmoid", "binary_cross_entropy"),
    "number": network(1, "identity", "squared_error"),
    "numbers": network(3, "identity", "squared_error"),
}


def samples(kind: str, n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """What can be learned a little."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 6))
    z = x[:, :3] + 0.5 * rng.standard_normal((n, 3))
    y = {
        "label": z.argmax(axis=1),
        "one-hot": np.eye(3)[z.argmax(axis=1)],
        "side": (z[:, 0] > 0).astype(int),
        "each": (z > 0).astype(float),
        "number": z[:, :1],
        "numbers": z,
    }[kind]
    return x, y


def of(name: str, kind: str, y: np.ndarray, outputs: np.ndarray) -> float:
    net = NETWORKS[kind]
    (metric,) = resolve(name, "here")
    data = as_dataset((np.zeros((len(outputs), 6)), y))
    return score(metric, net, data, "labels", np.asarray(outputs, float))


# what each is


@st.composite
def scored(draw: Any, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Targets, and outputs with ties."""
    n, columns = draw(st.integers(4, 25)), 1 if kind == "side" else 3
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    outputs = rng.integers(0, 6, (n, columns)) / 5.0
    if kind in ("label", "one-hot"):
        y = np.concatenate([[0, 1, 2], rng.integers(0, 3, n - 3)])
        return (y if kind == "label" else np.eye(3)[y]), outputs
    y = np.concatenate([np.zeros((1, columns)), np.ones((1, columns)),
                        rng.integers(0, 2, (n - 2, columns))])  # fmt: skip
    return (y[:, 0].astype(int) if kind == "side" else y), outputs


def by_class(kind: str, y: np.ndarray, outputs: np.ndarray) -> list[tuple[list[bool], list[bool]]]:
    """(is it, is it said) of every sample, for each class or label."""
    if kind in ("side", "each"):
        wide = y.reshape(outputs.shape)
        return [([v == 1 for v in wide[:, k]], [v > 0.5 for v in outputs[:, k]])
                for k in range(outputs.shape[1])]  # fmt: skip
    true = y if kind == "label" else y.argmax(axis=1)
    said = outputs.argmax(axis=1)
    return [([t == k for t in true], [s == k for s in said]) for k in range(3)]


@pytest.mark.parametrize("kind", ["label", "one-hot", "side", "each"])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_precision_recall_f1_and_auc_are_what_their_definitions_say(kind: str, data: Any) -> None:
    y, outputs = data.draw(scored(kind))
    found: dict[str, list[float]] = {"precision": [], "recall": [], "f1": [], "auc": []}
    for k, (true, said) in enumerate(by_class(kind, y, outputs)):
        tp = sum(t and s for t, s in zip(true, said, strict=True))
        p, r = tp / sum(said) if sum(said) else 0.0, tp / sum(true)
        found["precision"].append(p)
        found["recall"].append(r)
        found["f1"].append(2 * p * r / (p + r) if p + r else 0.0)
        pairs = [(a, b) for a, t in zip(outputs[:, k], true, strict=True) if t
                 for b, f in zip(outputs[:, k], true, strict=True) if not f]  # fmt: skip
        found["auc"].append(np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs]))
    for name, values in found.items():
        assert of(name, kind, y, outputs) == pytest.approx(np.mean(values)), name


@settings(max_examples=40, deadline=None, derandomize=True)
@given(n=st.integers(2, 30), columns=st.sampled_from([1, 3]), seed=st.integers(0, 2**32 - 1))
def test_errors_and_r2_are_what_their_definitions_say(n: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, outputs = rng.standard_normal((2, n, columns))
    kind = "number" if columns == 1 else "numbers"
    off = [(o - t) for t, o in zip(y.ravel(), outputs.ravel(), strict=True)]
    assert of("mae", kind, y, outputs) == pytest.approx(sum(map(abs, off)) / len(off))
    assert of("mse", kind, y, outputs) == pytest.approx(sum(v * v for v in off) / len(off))
    assert of("rmse", kind, y, outputs) ** 2 == pytest.approx(of("mse", kind, y, outputs))
    each = [1 - ((o - t) ** 2).sum() / ((t - t.mean()) ** 2).sum()
            for t, o in zip(y.T, outputs.T, strict=True)]  # fmt: skip
    assert of("r2", kind, y, outputs) == pytest.approx(np.mean(each))


def test_a_class_that_is_neither_there_nor_said_does_not_count() -> None:
    # as scikit-learn: of classes 0 and 1 alone, f1 is (0.8 + 2/3) / 2
    y, said = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 0])
    outputs = np.eye(3)[said]
    assert of("f1", "label", y, outputs) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert np.isnan(of("auc", "label", y, outputs))
    # but one that is said and not there counts as 0
    outputs[0] = [0, 0, 1]
    assert of("recall", "label", y, outputs) == pytest.approx((1 / 3 + 1 / 2 + 0) / 3)


def test_r2_of_a_constant_target_is_one_if_it_is_met_and_else_nothing() -> None:
    y = np.full((4, 1), 2.0)
    assert of("r2", "number", y, y) == 1.0 and of("r2", "number", y, y + 1.0) == 0.0
    y = np.full((10, 1), 0.3)  # whose mean is not 0.3 to the last bit
    assert y.mean() != 0.3
    assert of("r2", "number", y, y) == 1.0 and of("r2", "number", y, y + 1.0) == 0.0


def test_top_k_is_among_the_k_largest() -> None:
    y, outputs = np.array([0, 1, 2]), np.array([[3.0, 2, 1], [3, 2, 1], [3, 2, 1]])
    assert [of(f"top{k}", "label", y, outputs) for k in (1, 2, 3)] == pytest.approx(
        [1 / 3, 2 / 3, 1]
    )


@pytest.mark.parametrize("kind", ["label", "one-hot", "side", "each", "number", "numbers"])
def test_of_an_output_that_is_no_number_no_metric_says_a_number(kind: str) -> None:
    _, y = samples(kind, n=40)
    y = np.ones_like(y) if kind.startswith("number") else y
    outputs = np.full((40, NETWORKS[kind].last.size), 0.4)
    outputs[3, 0] = np.nan
    names = ["mae", "mse", "rmse", "r2"]
    if not kind.startswith("number"):
        names = ["precision", "recall", "f1", "auc"] + ["top1"] * (kind in ("label", "one-hot"))
    assert all(np.isnan(of(name, kind, y, outputs)) for name in names)
    if not kind.startswith("number"):
        said = (outputs[3] > 0.5).astype(y.dtype)  # as a class it would have been right
        y[3] = {"label": 0, "one-hot": [1, 0, 0]}.get(kind, said[0] if kind == "side" else said)
        right, known = n_right(kind, outputs, y), np.arange(40) != 3
        of_known = n_right(kind, outputs[known], y[known])
        assert right == of_known + (2 if kind == "each" else 0)


def test_of_equal_outputs_the_first_is_the_larger_in_top_k_too() -> None:
    # a network that says the same of all classes was right in each of its answers
    y, outputs = np.array([0, 1, 2, 1]), np.full((4, 3), 1 / 3)
    assert of("top1", "label", y, outputs) == of("accuracy", "label", y, outputs) == 0.25
    assert of("top2", "one-hot", np.eye(3)[y], outputs) == 0.75
    outputs = np.array([[1.0, 2, 2], [2, 2, 1], [0, 0, 1], [1, 0, 0]])
    assert [of(f"top{k}", "label", y, outputs) for k in (1, 2, 3)] == [0.25, 0.75, 1.0]


# what is right


@pytest.mark.parametrize("kind, y, outputs, right", [
    ("label", [2, 0], [[0.1, 0.2, 0.7], [0.3, 0.4, 0.3]], 1),
    ("one-hot", [[0, 0, 1], [1, 0, 0]], [[0.1, 0.2, 0.7], [0.3, 0.4, 0.3]], 1),
    ("side", [0, 1, 1], [[0.4], [0.6], [0.5]], 2),
    ("side", [[0], [1], [1]], [[0.4], [0.6], [0.5]], 2),
    ("each", [[0, 1, 1], [0, 0, 0]], [[0.6, 0.6, 0.6], [0.1, 0.1, 0.1]], 5),
])  # fmt: skip
def test_right_answers_are_counted_as_the_network_and_the_targets_mean_them(
    kind: str, y: Any, outputs: Any, right: int
) -> None:
    y = np.array(y) if np.ndim(y) == 1 else np.array(y, float)
    assert answer_kind(NETWORKS[kind], "labels", y) == kind
    assert n_right(kind, np.array(outputs), y) == right


@pytest.mark.parametrize("backend", ["kernels", "reference", "python"])
@pytest.mark.parametrize("kind", ["label", "one-hot", "side", "each"])
def test_accuracy_is_of_every_kind_of_answer(kind: str, backend: str) -> None:
    x, y = samples(kind)
    job = horn.Job(
        NETWORKS[kind], (x, y), horn.SGD(0.3), batch_size=20, epochs=1, validation=(x[:40], y[:40])
    )
    run = horn.train(job, backend=backend)
    outputs = run.model.predict(x[:40])
    expected = {
        "label": lambda: (outputs.argmax(1) == y[:40]).mean(),
        "one-hot": lambda: (outputs.argmax(1) == y[:40].argmax(1)).mean(),
        "side": lambda: ((outputs[:, 0] > 0.5) == y[:40]).mean(),
        "each": lambda: ((outputs > 0.5) == y[:40]).mean(),
    }[kind]()
    assert run.history[-1]["val_acc"] == pytest.approx(expected)
    assert run.history[-1]["acc"] is not None and expected > 0.3
    assert run.model.evaluate(x[:40], y[:40])["acc"] == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["number", "numbers"])
def test_numbers_are_neither_right_nor_wrong(kind: str) -> None:
    run = horn.train(
        horn.Job(NETWORKS[kind], samples(kind), horn.SGD(0.01), batch_size=20, epochs=1)
    )
    assert run.history["acc"] == [None] and "acc" not in run.model.evaluate(*samples(kind))


# where they are seen


def off_by(y_true, y_pred):
    """A user's: how far the said probability of the label is from 1."""
    assert y_true.shape == (40,) and y_pred.shape == (40, 3)
    return float(np.mean(1.0 - y_pred[np.arange(len(y_true)), y_true]))


NAMES = ("val_f1", "val_auc", "val_top2", "val_off_by")


def job(**more: Any) -> horn.Job:
    x, y = samples("label")
    made: dict[str, Any] = {
        "batch_size": 20, "epochs": 3, "validation": (x[:40], y[:40]),
        "metrics": ["accuracy", "f1", "auc", "top2", off_by], "dtype": "float64",
    } | more  # fmt: skip
    data = made.pop("data", (x[40:], y[40:]))
    return horn.Job(network(), data, horn.SGD(0.3), **made)


@pytest.fixture(scope="module")
def alone() -> horn.Run:
    return horn.train(job())


def test_metrics_are_columns_of_the_history_and_of_the_last_word(alone: horn.Run) -> None:
    x, y = (a[:40] for a in samples("label"))
    outputs = alone.model.predict(x)
    row, last = alone.history[-1], alone.metrics["validation"]
    assert alone.history.columns[-4:] == NAMES
    assert row["val_off_by"] == pytest.approx(1.0 - outputs[np.arange(40), y].mean())
    assert row["val_f1"] == pytest.approx(of("f1", "label", y, outputs))
    assert row["val_auc"] == pytest.approx(of("auc", "label", y, outputs))
    assert last == {name.removeprefix("val_"): row[name]
                    for name in ("val_loss", "val_acc", *NAMES)}  # fmt: skip
    assert len(set(alone.history["val_auc"])) == 3
    stream = io.StringIO()
    horn.train(job(epochs=1), progress=LineProgress(stream))
    assert f"  val_f1 {alone.history[0]['val_f1']:#.4g}  " in stream.getvalue()


def test_metrics_of_no_output_are_none() -> None:
    data = samples("label")
    model = horn.train(horn.Job(NETWORKS["label"], data, epochs=1, metrics={})).model
    assert model.metrics == ()
    assert model.evaluate(*data, metrics={}) == model.evaluate(*data)


def test_the_last_word_has_them_of_training_and_of_test_data_too() -> None:
    run = horn.train(job(validation=None, metrics="f1"))
    assert "val_f1" not in run.history.columns
    assert run.metrics["training"]["f1"] == run.model.evaluate(job().data)["f1"]
    x, y = samples("label", seed=1)
    assert horn.train(job(validation=None, metrics="f1", test=(x, y))).test["f1"] > 0.3


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (2, 2)])
def test_tasks_and_groups_measure_the_same(shape: tuple[int, int], alone: horn.Run) -> None:
    run = horn.train(job(), groups=shape[0], tasks=shape[1])
    for name in NAMES:
        assert run.history[name] == pytest.approx(alone.history[name], rel=1e-9), name
    assert run.metrics["validation"] == pytest.approx(alone.metrics["validation"], rel=1e-9)


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("options", [
    {"strategy": "downpour", "groups": 2}, {"strategy": "averaging", "groups": 2, "tasks": 2},
    {"strategy": "parallel-dropout", "tasks": 2},
], ids=str)  # fmt: skip
def test_every_strategy_measures_the_model_that_it_has(options: dict[str, Any]) -> None:
    run = horn.train(job(epochs=1), **options)
    last = run.metrics["validation"]
    assert last == pytest.approx(run.model.evaluate(job().validation), rel=1e-9)
    assert set(last) == {"loss", "acc", "f1", "auc", "top2", "off_by"}


@pytest.mark.parametrize("backend", ["reference", "python"])
def test_every_backend_measures_the_same(backend: str, alone: horn.Run) -> None:
    run = horn.train(job(epochs=1), backend=backend)
    for name in NAMES:
        assert run.history[0][name] == pytest.approx(alone.history[0][name], rel=1e-9)


def test_who_measures_changes_no_bit(alone: horn.Run) -> None:
    blind = horn.train(job(metrics=()))
    assert bits(blind) == bits(alone) and blind.history["val_loss"] == alone.history["val_loss"]
    assert set(blind.metrics["validation"]) == {"loss", "acc"}


@pytest.mark.parametrize("metric, mode", [("f1", None), (off_by, "min")])
def test_the_best_model_is_that_of_a_metric(metric: Any, mode: str | None) -> None:
    name = "val_f1" if metric == "f1" else "val_off_by"
    stopping = horn.EarlyStopping(patience=2, monitor=name, mode=mode)
    run = horn.train(job(metrics=metric, epochs=40, early_stopping=stopping))
    column = run.history[name]
    best = max(column) if metric == "f1" else min(column)
    assert run.best_epoch == column.index(best) + 1
    assert run.metrics["validation"][name.removeprefix("val_")] == best


def test_what_is_not_defined_is_none_and_never_the_best() -> None:
    values = iter([float("nan"), 0.5, float("nan"), 0.7, 0.6])

    def odd(y_true, y_pred):
        return next(values)

    stopping = horn.EarlyStopping(patience=9, monitor="val_odd", mode="max")
    run = horn.train(job(metrics=[odd], epochs=4, early_stopping=stopping))  # one is the trial
    assert run.history["val_odd"] == [0.5, None, 0.7, 0.6] and run.best_epoch == 3


# the model file


def test_a_model_file_keeps_them_and_the_text_of_functions(alone: horn.Run, tmp_path: Any) -> None:
    alone.model.save(tmp_path / "m.horn")
    found = horn.Model.load(tmp_path / "m.horn")
    expected = alone.metrics["validation"]
    assert found.evaluate(job().validation) == pytest.approx(expected)
    found.save(tmp_path / "again.horn")
    assert horn.Model.load(tmp_path / "again.horn").evaluate(job().validation).keys() == {*expected}
    other = found.evaluate(job().validation, metrics=["recall"])
    assert set(other) == {"loss", "acc", "recall"}
    assert set(found.evaluate(job().validation, metrics=())) == {"loss", "acc"}


def test_a_function_of_a_package_is_kept_by_its_name() -> None:
    given = resolve(correlation, "here")
    capture = SourceCapture()
    kept = metrics.to_json(given, capture)
    assert kept == [{"name": "correlation", "import": "statistics:correlation"}]
    assert not capture.sources()
    assert metrics.from_json(kept, CapturedCode({}, "here")) == given


# refused, before training


def unlucky(y_true, y_pred):
    return y_pred[:, 7].mean()


def wide(y_true, y_pred):
    return y_pred


def top3(y_true, y_pred):
    return 0.5


@pytest.mark.parametrize("kind, given, said", [
    ("label", "F1", "unknown metric 'F1'; did you mean 'f1'[?] known: accuracy, precision"),
    ("label", [7], "a metric is a name, as \"f1\", or a function"),
    ("label", ["f1", "f1"], "two metrics are called 'f1'; leave one out"),
    ("label", [lambda y, p: 0.0], "needs a name of its own"),
    ("label", [top3], "of its own, by which its column is called; \"top3\" is that of one of horn"),
    ("label", "mae", "'mae' does not fit layer2 .softmax. and the labels of the validation data"),
    ("number", "f1", "one output that is no sigmoid is a number; take \"mae\""),
    ("numbers", "accuracy", "they are not rows with a single 1 among zeros; for several labels"),
    ("each", "top2", "'top2' does not fit .*: it is for classes, one per sample"),
    ("label", [unlucky], "unlucky: tried before training on the validation data, it raised "
     r"IndexError.*here \(120,\), and y_pred, what the outputs say, \(120, 3\)"),
    ("label", [wide], "wide: returns an array of shape .120, 3., but one number is expected"),
])  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"tasks": 2}], ids=str)
def test_a_metric_that_does_not_fit_is_said_before_training(kind, given, said, options) -> None:
    begun: list[Any] = []

    class Watcher(Progress):
        def begin(self, job: horn.Job) -> None:
            begun.append(job)

    with pytest.raises(ModelError, match=said) as raised:
        horn.train(
            horn.Job(NETWORKS[kind], samples(kind), validation=samples(kind, seed=1),
                     metrics=given),
            progress=Watcher(), **options,
        )  # fmt: skip
    assert not begun and "\n" not in str(raised.value)


def flipped(y_true, y_pred):
    y_true[:] = 1 - y_true
    return 0.0


def centred(y_true, y_pred):
    y_pred -= y_pred.mean()
    return float((y_true * y_pred).mean())


@pytest.mark.parametrize("kind, metric", [("side", flipped), ("number", flipped),
                                          ("number", centred), ("each", flipped)])  # fmt: skip
@pytest.mark.parametrize("where", ["training", "validation", "evaluate"])
def test_a_metric_that_writes_is_refused_and_changes_no_data(kind, metric, where) -> None:
    x, y = samples(kind)
    before = y.copy()
    own = None if where == "training" else (x, y)
    said = f"metric {metric.__name__}: writes into what it measures .*read-only.*y_true.copy"
    with pytest.raises(ModelError, match=said):
        if where == "evaluate":
            run = horn.train(horn.Job(NETWORKS[kind], (x, y), epochs=1))
            run.model.evaluate(x, y, metrics=[metric])
        else:
            horn.train(horn.Job(NETWORKS[kind], (x, y), validation=own, metrics=[metric]))
    assert np.array_equal(y, before) and y.flags.writeable


def test_a_class_that_validation_lacks_is_said_before_training() -> None:
    x, y = samples("label")
    few = horn.Job(network(), (x, y), validation=(x[y != 2], y[y != 2]), metrics=["auc"])
    with pytest.raises(ModelError, match="the validation data has no samples of class 2; hold"):
        horn.train(few)


def test_what_is_watched_must_be_measured_and_have_a_better() -> None:
    with pytest.raises(ModelError, match=r"watches 'val_f2', but what is measured is val_loss, "
                       r"val_acc, val_f1; add metrics=\['f2'\]"):  # fmt: skip
        job(metrics="f1", early_stopping=horn.EarlyStopping(monitor="val_f2"))
    with pytest.raises(ModelError, match='a function of yours; say what is better: .*mode="max"'):
        job(early_stopping=horn.EarlyStopping(monitor="val_off_by"))
    with pytest.raises(ModelError, match='"min" or "max"; got \'up\''):
        horn.EarlyStopping(mode="up")
    with pytest.raises(ModelError, match="an aggregate is called 'val_f1'"):
        job(aggregates={"val_f1": horn.Aggregate("layer1", lambda output: output.mean())})


def test_metrics_need_a_loss_that_says_what_outputs_are_compared_with() -> None:
    net = horn.Network()
    net.input(6)
    net.output(3)
    with pytest.raises(ModelError, match="layer1 has no loss; give net.output one"):
        horn.train(horn.Job(net, samples("label"), metrics=["f1"]))


def test_accuracy_cannot_be_watched_of_numbers() -> None:
    stopping = horn.EarlyStopping(monitor="val_acc")
    with pytest.raises(JobError, match='accuracy needs class labels.*watch "val_loss"'):
        horn.train(horn.Job(NETWORKS["numbers"], samples("numbers"), validation=0.2,
                            early_stopping=stopping))  # fmt: skip


def test_an_autoencoder_has_errors() -> None:
    x, _ = samples("label")
    made = horn.Job(network(6, "identity", "squared_error"), x, horn.SGD(0.05), target="input",
                    validation=0.25, epochs=2, metrics=["mae", "r2"])  # fmt: skip
    run = horn.train(made)
    off = np.abs(run.model.predict(made.validation.x) - made.validation.x).mean()
    assert run.history[-1]["val_mae"] == pytest.approx(off, rel=1e-6)
    assert "acc" not in run.metrics["validation"]


def test_history_with_metrics_is_plain_json(alone: horn.Run) -> None:
    assert json.loads(json.dumps(list(alone.history)))[0]["val_f1"] == alone.history[0]["val_f1"]
    assert all(metric.f.__doc__ for metric in METRICS.values())


def test_the_first_line_says_what_the_accuracy_of_training_is_of() -> None:
    def said(n: int, kind: str = "label") -> list[str]:
        stream = io.StringIO()
        job = horn.Job(NETWORKS[kind], samples(kind, n), horn.SGD(0.01), epochs=1)
        run = horn.train(job, progress=LineProgress(stream))
        if kind == "label":
            x, y = (a[:: job.looks_at_every] for a in samples(kind, n))
            assert run.history[0]["acc"] == run.model.evaluate(x, y)["acc"]
        return stream.getvalue().splitlines()

    first, second = said(500)
    assert first == (
        "acc is of 100 of the 500 training samples, after the epoch and without dropout; loss is "
        "of all"
    )
    assert second.startswith("Epoch 1/1  loss ")
    assert len(said(100)) == 1 and len(said(500, "number")) == 1  # all of them, and none


def test_they_are_what_scikit_learn_computes() -> None:
    judge = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(4)
    p = rng.random((60, 3))
    p /= p.sum(axis=1, keepdims=True)
    y, said = np.concatenate([[0, 1, 2], rng.integers(0, 3, 57)]), p.argmax(axis=1)
    for name in ("precision", "recall", "f1"):
        expected = getattr(judge, f"{name}_score")(y, said, average="macro")
        assert of(name, "label", y, p) == pytest.approx(expected)
        one = (y > 0).astype(int)
        expected = getattr(judge, f"{name}_score")(one, p[:, 0] > 0.5)
        assert of(name, "side", one, p[:, :1]) == pytest.approx(expected)
        several = np.eye(3)[y] + np.eye(3)[::-1][y] > 0
        expected = getattr(judge, f"{name}_score")(several, p > 0.5, average="macro")
        assert of(name, "each", several.astype(float), p) == pytest.approx(expected)
    assert of("auc", "label", y, p) == pytest.approx(judge.roc_auc_score(y, p, multi_class="ovr"))
    assert of("top2", "label", y, p) == pytest.approx(judge.top_k_accuracy_score(y, p, k=2))
    t, o = rng.random((2, 60, 3))
    for name, function in (("r2", "r2_score"), ("mae", "mean_absolute_error"),
                           ("mse", "mean_squared_error")):  # fmt: skip
        assert of(name, "numbers", t, o) == pytest.approx(getattr(judge, function)(t, o))
    # one of scikit-learn's own is a metric too, kept by its name
    kept = metrics.to_json(resolve([judge.r2_score], "here"), SourceCapture())
    assert kept[0]["import"] == "sklearn.metrics._regression:r2_score"


def test_labels_by_name_are_scored_as_their_codes() -> None:
    x, y = samples("label")
    names = np.array(["cat", "dog", "eel"])
    run = horn.train(job(data=(x[40:], names[y[40:]]), validation=(x[:40], names[y[:40]])))
    plain = horn.train(job())
    assert run.metrics == plain.metrics
    assert run.model.evaluate(x[:40], names[y[:40]])["f1"] == plain.metrics["validation"]["f1"]


def test_a_stream_is_not_scored_but_what_is_beside_it() -> None:
    x, y = samples("label")
    stream = horn.data.Stream(lambda: iter([(x, y)]), samples=120)
    with pytest.raises(JobError, match="a stream does not have them; give validation="):
        horn.train(horn.Job(network(), stream, epochs=1, metrics=["f1"]))
    run = horn.train(horn.Job(network(), stream, epochs=1, metrics=["f1"], validation=(x, y)))
    assert run.metrics["validation"]["f1"] == run.model.evaluate(x, y)["f1"]


def test_a_metric_has_no_name_that_evaluate_prints_beside_it():
    """It replaced the number of samples in  horn evaluate --json."""

    def samples(y_true, y_pred):
        return 0.25

    with pytest.raises(ModelError, match='horn evaluate --json has "samples" already'):
        resolve(samples, "Job")
