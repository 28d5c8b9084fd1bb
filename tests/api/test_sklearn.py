"""Estimators of scikit-learn: what it demands of its own, and what people do with them."""

import copy
import datetime
import pickle
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import horn
from examples.zoo.batch_normalization import BatchNormalized
from horn.sklearn import HornClassifier, HornRegressor
from horn.training.progress import LineProgress


class Leaky(horn.Neuron):
    slope = 0.1

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total if total > 0 else self.slope * total)


@parametrize_with_checks([HornClassifier(), HornRegressor()])
def test_it_is_an_estimator_in_every_point(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return train_test_split(x / 16, y, test_size=0.25, random_state=0, stratify=y)


def test_digits_are_learned_with_a_neuron_of_ones_own(digits):
    x, held_x, y, held_y = digits
    model = HornClassifier(neuron=Leaky, hidden_layer_sizes=(50,), activation="identity",
                           epochs=20, random_state=0)  # fmt: skip
    model.fit(x, y)
    assert model.score(held_x, held_y) > 0.95
    assert model.n_features_in_ == 64 and model.n_outputs_ == 10 and model.n_iter_ == 20
    assert len(model.loss_curve_) == 20 and model.loss_curve_[-1] < model.loss_curve_[0] / 5
    assert model.history_["epoch"][-1] == 20
    assert isinstance(model.model_, horn.Model)
    assert model.model_.network.layers[1].neuron is Leaky


def test_classes_may_be_words_and_the_columns_are_in_their_order():
    x, y = load_iris(return_X_y=True)
    words = np.array(["setosa", "versicolor", "virginica"])[y]
    model = make_pipeline(StandardScaler(), HornClassifier(random_state=0))
    model.fit(x, words)
    last = model[-1]
    assert list(last.classes_) == ["setosa", "versicolor", "virginica"]
    proba = model.predict_proba(x)
    assert (last.classes_[proba.argmax(axis=1)] == model.predict(x)).all()
    np.testing.assert_allclose(np.exp(model[-1].predict_log_proba(x)).sum(axis=1), 1)
    assert model.score(x, words) > 0.95


def test_cross_validation_and_several_targets():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5)).astype(np.float32)
    y = np.stack([x[:, 0] * x[:, 1], x.sum(axis=1)], axis=1)
    model = HornRegressor(hidden_layer_sizes=(32, 32), epochs=60, learning_rate=0.003,
                          random_state=0)  # fmt: skip
    assert cross_val_score(model, x, y, cv=3).min() > 0.8
    model.fit(x, y)
    assert model.predict(x).shape == (300, 2)
    assert model.predict(x).dtype == np.float32 and model.model_.dtype == "float32"
    assert model.fit(x, y[:, 0]).predict(x).shape == (300,)


SCRIPT = """
import pickle
import sys

import horn
from horn.sklearn import HornClassifier
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


class Twice(horn.Neuron):
    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += 2.0 * m.input * m.weight
        self.feedforward(self.activation(total))


if __name__ == "__main__":
    x, y = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), HornClassifier(neuron=Twice, random_state=0))
    grid = {"hornclassifier__epochs": [1, 80],
            "hornclassifier__neuron": [Twice, horn.Standard]}
    search = GridSearchCV(model, grid, n_jobs=2, cv=3, error_score="raise").fit(x, y)
    assert len(search.cv_results_["params"]) == 4
    assert search.best_params_["hornclassifier__epochs"] == 80
    model.set_params(hornclassifier__neuron=Twice)
    fitted = cross_validate(model, x, y, cv=2, n_jobs=2, return_estimator=True)["estimator"]
    with open(sys.argv[1], "wb") as file:
        pickle.dump(fitted[0], file)
    print(search.best_score_)
"""


@pytest.mark.cluster
def test_a_grid_is_searched_by_two_processes_with_a_neuron_of_the_script(tmp_path):
    (script := tmp_path / "search.py").write_text(SCRIPT)
    saved = tmp_path / "best.pickle"
    done = subprocess.run([sys.executable, script, saved], capture_output=True, text=True,
                          timeout=100)  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert float(done.stdout) > 0.8
    script.unlink()  # the neuron is in the pickle
    x, y = load_iris(return_X_y=True)
    best = pickle.loads(saved.read_bytes())
    assert best.score(x, y) > 0.8
    again = pickle.loads(pickle.dumps(best))
    assert again[-1].neuron.__name__ == "Twice"
    assert again[-1].neuron.__module__ == best[-1].neuron.__module__
    assert clone(best).fit(x, y).score(x, y) > 0.8


FACTOR = 0.5
BENT = horn.Activation("bent", lambda z: FACTOR * z, df_at=lambda z: FACTOR)


@pytest.mark.parametrize("activation", [lambda z: z * horn.math.sigmoid(FACTOR * z), BENT])
def test_an_activation_and_a_neuron_without_names_are_pickled(activation):
    """As their sources, again and again; Python's own pickles have names alone."""
    x, y = load_iris(return_X_y=True)

    class Doubled(Leaky):
        def forward(self, messages):
            self.feedforward(self.activation(sum(2.0 * m.input * m.weight for m in messages)))

    model = HornClassifier(Doubled, (8,), activation, epochs=2, random_state=0, warm_start=True)
    expected = model.fit(x, y).predict_proba(x)
    for _ in range(2):
        model = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(model.predict_proba(x), expected)
        anew = clone(model).fit(x, y).predict_proba(x)
        np.testing.assert_allclose(anew, expected, rtol=1e-9)
    model.fit(x, y).partial_fit(x, y)


def test_a_learning_rate_without_a_name_is_pickled():
    """It trained, and was cloned, but neither pickled nor went through joblib.dump."""
    x, y = load_iris(return_X_y=True)
    model = HornClassifier(optimizer="sgd", learning_rate=lambda t: 0.1 / (1 + t), random_state=0)
    model.partial_fit(x, y, classes=range(3))
    twin = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(model))))
    assert [twin.learning_rate(t) for t in (0, 1)] == [0.1, 0.05]
    np.testing.assert_array_equal(
        twin.partial_fit(x, y).predict_proba(x), model.partial_fit(x, y).predict_proba(x)
    )


def test_a_search_changes_optimizers_and_rates():
    x, y = load_iris(return_X_y=True)
    grid = {"optimizer": ["sgd", horn.SGD(momentum=0.9)], "learning_rate": [1e-6, 0.1]}
    model = HornClassifier(epochs=15, random_state=0)
    search = GridSearchCV(model, grid, cv=3, error_score="raise").fit(x, y)
    assert search.best_params_["learning_rate"] == 0.1
    assert search.best_score_ > 0.8


def test_partial_fit_is_an_epoch_with_the_optimizers_memory(digits):
    x, _, y, _ = digits
    whole = HornClassifier(epochs=3, random_state=0).fit(x, y)
    parts = HornClassifier(random_state=0)
    for _ in range(3):
        parts.partial_fit(x, y, classes=np.arange(10))
    np.testing.assert_array_equal(whole.predict_proba(x), parts.predict_proba(x))
    np.testing.assert_allclose(whole.loss_curve_, parts.loss_curve_, rtol=1e-12)
    assert parts.n_iter_ == 3


def test_a_model_of_partial_fit_has_the_facts_of_fits(digits):
    """horn show said that its file is damaged."""
    x, y = digits[0][:100], digits[2][:100]
    whole = HornClassifier(random_state=0, epochs=1).fit(x, y).model_
    parts = HornClassifier(random_state=0).partial_fit(x, y, classes=np.unique(y)).model_
    measured = {"date", "seconds"}
    found, expected = (
        {k: fact for k, fact in model.facts.items() if k not in measured}
        for model in (parts, whole)
    )
    assert found == expected and parts.facts.keys() == whole.facts.keys()


def test_partial_fit_goes_on_from_a_pickle(digits):
    x, _, y, _ = digits
    straight = HornClassifier(random_state=0).partial_fit(x, y, classes=np.arange(10))
    broken = pickle.loads(pickle.dumps(straight))
    for rows in (slice(0, 500), slice(500, 520), slice(520, None)):  # the second: a smaller batch
        straight.partial_fit(x[rows], y[rows])
        broken = pickle.loads(pickle.dumps(broken.partial_fit(x[rows], y[rows])))
    np.testing.assert_array_equal(straight.predict_proba(x), broken.predict_proba(x))


@pytest.mark.parametrize("change", [
    {"learning_rate": 0.0},
    {"learning_rate": 0.05},
    {"optimizer": "rmsprop"},
    {"optimizer": horn.SGD(0.1, momentum=0.9)},
    {"backend": "reference"},
    {"backend": "python", "optimizer": "sgd"},
    {"batch_size": 16},
], ids=str)  # fmt: skip
def test_partial_fit_obeys_what_was_set_since_as_its_pickle_does(change):
    """The engine of the first call went on with the rate of the first call."""
    x, y = load_iris(return_X_y=True)
    model = HornClassifier(hidden_layer_sizes=(8,), random_state=0, threads=1)
    model.partial_fit(x, y, classes=range(3))
    before = model.predict_proba(x)
    model.set_params(**change)
    twin = pickle.loads(pickle.dumps(model))
    for each in (model, twin):
        each.partial_fit(x, y)
    np.testing.assert_array_equal(model.predict_proba(x), twin.predict_proba(x))
    still = (model.predict_proba(x) == before).all()
    assert still == (change.get("learning_rate") == 0.0)
    for each in (model, twin):
        each.set_params(optimizer="adam", learning_rate=None, batch_size=32).partial_fit(x, y)
    np.testing.assert_array_equal(model.predict_proba(x), twin.predict_proba(x))


def test_partial_fit_with_another_optimizer_begins_with_its_empty_memory():
    """Squares of Adam are no squares of RMSProp, and Adam's t counts its own updates."""
    x, y = load_iris(return_X_y=True)
    model = HornClassifier(hidden_layer_sizes=(8,), optimizer="rmsprop", random_state=0)
    model.partial_fit(x, y, classes=range(3))
    model.set_params(optimizer="adam").partial_fit(x, y)
    assert model._updates == 5
    assert {name.rsplit("/")[1] for name in model._slots} == {"mean", "squares"}


def test_partial_fit_keeps_the_engine_while_nothing_of_it_changes():
    x, y = load_iris(return_X_y=True)
    model = HornClassifier(hidden_layer_sizes=(8,), random_state=0)
    model.partial_fit(x, y, classes=range(3))
    engine = model._live[1]
    assert model.partial_fit(x, y)._live[1] is engine
    assert model.set_params(threads=1).partial_fit(x, y)._live[1] is not engine


@pytest.mark.parametrize("backend", ["kernels", "reference"])
def test_partial_fit_takes_other_numbers_of_rows_with_the_same_engine(backend):
    """As if each call had an engine for its own: statistics of a batch count the rows there are."""
    x, y = load_iris(return_X_y=True)
    settings = {"hidden_layer_sizes": (8,), "random_state": 0, "backend": backend, "threads": 1}
    model, anew = (HornClassifier(BatchNormalized, **settings) for _ in range(2))
    engines = set()
    for n in (20, 21, 20, 3, 32, 40):
        engines.add(model.partial_fit(x[-n:], y[-n:], classes=range(3))._live[1])
        anew.set_params(batch_size=min(n, 32)).partial_fit(x[-n:], y[-n:], classes=range(3))
    assert len(engines) == 1
    for name, array in anew.model_.parameters.items():
        np.testing.assert_allclose(model.model_.parameters[name], array, rtol=1e-9, atol=1e-12)
    for name, array in anew.model_.states.items():
        np.testing.assert_allclose(model.model_.states[name], array, rtol=1e-9)


def test_partial_fit_adds_to_the_history_and_copies_have_their_own(monkeypatch):
    x, y = load_iris(return_X_y=True)
    model = HornRegressor(hidden_layer_sizes=(4,), random_state=0).partial_fit(x, y)
    history, first, curve = model.history_, model.history_[0], model.loss_curve_
    twin = copy.copy(model)
    model.partial_fit(x, y).partial_fit(x, y)
    assert model.history_ is history and history[0] is first and model.loss_curve_ is curve
    assert [row["epoch"] for row in history] == [1, 2, 3] == [1, 2, model.model_.facts["epochs"]]
    assert curve == history["loss"] and len(set(curve)) == model.n_iter_ == 3
    assert len(twin.history_) == len(twin.loss_curve_) == 1
    assert twin.partial_fit(x, y).loss_curve_ == curve[:2]
    monkeypatch.delattr(
        "horn.training.history.named"
    )  # names of further columns are not looked for
    assert history["loss"] == curve


@pytest.mark.parametrize("backend", ["kernels", "reference"])
def test_the_model_of_each_partial_fit_has_its_own_weights_and_the_engine_of_the_last(backend):
    x, y = load_iris(return_X_y=True)
    model = HornRegressor(hidden_layer_sizes=(4,), random_state=0, backend=backend, batch_size=150)
    learned, expected = [], []
    for _ in range(4):
        learned.append(model.partial_fit(x, y).model_)
        if len(learned) != 2:  # of one nothing is asked meanwhile
            expected.append(model.predict(x[:5]))
            engine = learned[-1]._engines._engine
    assert learned[2]._engines._engine is None and engine is not None
    anew = [horn.Model(m.network, m.parameters, m.states, dtype=m.dtype, facts={},
                       backend=backend) for m in learned]  # fmt: skip
    for each, other in zip(learned[::-1], anew[::-1], strict=True):
        np.testing.assert_array_equal(each.predict(x[:5]), other.predict(x[:5]))
    asked = [learned[k].predict(x[:5])[:, 0] for k in (0, 2, 3)]
    np.testing.assert_array_equal(asked, expected)
    assert len({tuple(each) for each in asked}) == 3 and learned[3]._engines._engine is engine


def test_partial_fit_says_what_it_needs(digits):
    x, _, y, _ = digits
    with pytest.raises(ValueError, match="the first partial_fit needs classes="):
        HornClassifier().partial_fit(x, y)
    model = HornClassifier().partial_fit(x, y % 5, classes=range(5))
    with pytest.raises(ValueError, match=r"y has \[5, 6, 7, 8, 9\], which are not among the class"):
        model.partial_fit(x, y)
    with pytest.raises(ValueError, match="are not those of before"):
        model.partial_fit(x, y, classes=range(10))


def stopped_in_epoch_two(self, row):
    if row["epoch"] == 2:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("kind", [HornClassifier, HornRegressor])
def test_ctrl_c_ends_a_fit_and_the_search_around_it_and_keeps_what_was_learned(
    kind, digits, monkeypatch
):
    """A search went on, and compared a candidate of two epochs with others of all."""
    x, _, y, _ = digits
    model = kind(hidden_layer_sizes=(4,), epochs=5, random_state=0, verbose=True)
    monkeypatch.setattr(LineProgress, "epoch", stopped_in_epoch_two)
    with pytest.raises(KeyboardInterrupt, match="fit was stopped after 2 of 5 epochs; model_ is"):
        model.fit(x, y)
    assert model.n_iter_ == 2 and len(model.predict(x[:3])) == 3
    model.set_params(epochs=2, verbose=False)
    np.testing.assert_array_equal(clone(model).fit(x, y).predict(x), model.predict(x))
    with pytest.raises(KeyboardInterrupt):
        GridSearchCV(model.set_params(epochs=5, verbose=True), {"epochs": [5, 6]}).fit(x, y)


def test_early_stopping_keeps_the_best(digits):
    x, held_x, y, held_y = digits
    model = HornClassifier(optimizer="adam", learning_rate=0.02, early_stopping=True, patience=3,
                           random_state=0).fit(x, y)  # fmt: skip
    assert model.n_iter_ < 100
    assert model.score(held_x, held_y) > 0.95
    losses = model.history_["val_loss"]
    assert model.model_.facts["best_epoch"] == 1 + int(np.argmin(losses))


@pytest.mark.parametrize("kind", [HornClassifier, HornRegressor])
def test_a_warm_start_with_other_columns_leaves_the_estimator_as_it_was(kind):
    """It took their number before it refused them, and then predicted nothing any more."""
    x = np.random.default_rng(0).random((40, 4))
    y = (x[:, 0] > 0.5).astype(int)
    model = kind(epochs=2, warm_start=True).fit(x, y)
    with pytest.raises(ValueError, match=f"5 features, but {kind.__name__} is expecting 4"):
        model.fit(np.ones((40, 5)), y)
    assert len(model.predict(x)) == 40
    model.set_params(warm_start=False).fit(np.ones((40, 5)), y)
    assert model.n_features_in_ == 5


def _failing(x, y):
    yield ValueError, "1 class", {}, lambda model: model.fit(x[:, :2], np.zeros(len(x)))
    yield horn.HornError, "batch_size", {"batch_size": -1}, lambda model: model.fit(x[:, :2], y > 1)
    yield ValueError, "features", {}, lambda model: model.partial_fit(x[:, :2], y)
    yield horn.HornError, "backend", {"backend": "none"}, lambda model: model.partial_fit(x, y)


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("kind", [HornClassifier, HornRegressor])
def test_learning_that_fails_leaves_what_was_learned(kind, which):
    """A fit that failed had set columns and classes, and predict then wanted its columns."""
    x, y = load_iris(return_X_y=True)
    error, said, settings, learn = list(_failing(x, y))[which]
    if kind is HornRegressor and which == 0:
        said, learn = "nan|NaN", lambda model: model.fit(x[:, :2], np.full(len(x), np.nan))
    model = kind(hidden_layer_sizes=(8,), random_state=0)
    extra = {"classes": range(3)} if kind is HornClassifier else {}
    model.partial_fit(x, y, **extra)
    before, had = model.predict(x), set(vars(model))
    with pytest.raises(error, match=said):
        learn(model.set_params(**settings))
    assert set(vars(model)) == had and model.n_features_in_ == 4
    assert model.n_outputs_ == (3 if extra else 1)
    np.testing.assert_array_equal(model.predict(x), before)
    straight = kind(hidden_layer_sizes=(8,), random_state=0).partial_fit(x, y, **extra)
    model.set_params(batch_size=32, backend="kernels").partial_fit(x, y)
    np.testing.assert_array_equal(model.predict(x), straight.partial_fit(x, y).predict(x))


def test_a_first_fit_that_fails_leaves_nothing():
    x, y = load_iris(return_X_y=True)
    model = HornClassifier()
    with pytest.raises(ValueError, match="y has 1 class"):
        model.fit(x, np.zeros(len(x)))
    assert vars(model) == vars(HornClassifier())


def test_training_that_breaks_off_leaves_the_epochs_before(monkeypatch):
    """The engine of partial_fit had gone on, and the model had not."""
    x, y = load_iris(return_X_y=True)
    model, straight = (HornRegressor(random_state=0).partial_fit(x, y) for _ in range(2))

    def finish(loop):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("horn.sklearn.TrainingLoop.finish", finish)
        model.partial_fit(x, y)
    model.partial_fit(x, y)
    np.testing.assert_array_equal(model.predict(x), straight.partial_fit(x, y).predict(x))
    assert model.n_iter_ == 2


@pytest.mark.parametrize("dtype", ["string", "category", "Int64", "boolean"])
def test_a_column_with_missing_labels_is_told_the_first_row(dtype):
    """It was pandas' TypeError: boolean value of NA is ambiguous."""
    pandas = pytest.importorskip("pandas")
    labels = pandas.Series(["0", None, "1", "0", None, "1"], dtype="string")
    kinds = {"string": labels, "category": labels.astype("category"),
             "Int64": labels.astype("Int64"), "boolean": labels == "1"}  # fmt: skip
    with pytest.raises(ValueError, match=r"y has no label in row 1, but .* \(2 in all\); leave"):
        HornClassifier(epochs=1).fit(np.ones((6, 2)), kinds[dtype])
    assert HornClassifier(epochs=1).fit(np.ones((4, 2)), kinds[dtype].dropna()).n_iter_ == 1


@pytest.mark.parametrize("third, said", [
    (None, r"y has no label in row 2, but None \(2 in all\); leave those samples out"),
    (1, r"y has labels of several types, int, str, which have no order; .* y\.astype\(str\)"),
])  # fmt: skip
def test_labels_without_an_order_are_named(third, said):
    """They were a TypeError of NumPy's, that < is not supported."""
    x, y = np.ones((6, 2)), np.array(["a", "b", third] * 2, object)
    with pytest.raises(ValueError, match=said):
        HornClassifier().fit(x, y)
    with pytest.raises(ValueError, match=said):
        HornClassifier().partial_fit(x, y, classes=["a", "b"])
    with pytest.raises(ValueError, match=said.replace("y has", "classes has", 1)):
        HornClassifier().partial_fit(x, ["a", "b"] * 3, classes=y)


def test_texts_are_compared_with_classes_of_another_kind():
    x, words = np.ones((4, 2)), np.array(["a", "b"] * 2, object)
    for y, classes in ((words, [0, 1]), (words.astype(str), [0, 1])):
        with pytest.raises(ValueError, match=r"y has \['a', 'b'\], which are not among .* \[0 1\]"):
            HornClassifier().partial_fit(x, y, classes=classes)
    with pytest.raises(ValueError, match=r"y has \[0, 1\], which are not among the classes \['a'"):
        HornClassifier().partial_fit(x, [0, 1] * 2, classes=words)
    for y, classes in ((words, ["a", "b"]), (words.astype(str), words)):
        model = HornClassifier(random_state=0).partial_fit(x, y, classes=classes)
        assert list(model.classes_) == ["a", "b"]


def test_the_model_knows_classes_that_are_dates_or_large_numbers():
    """Dates were nanoseconds there, and large numbers floats, of which two were equal."""
    x = np.random.default_rng(0).normal(size=(9, 2))
    days = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], "datetime64[ns]")
    large = np.array([1, 2**63, 2**63 + 1], np.uint64)
    times = [datetime.datetime(2020, 1, k) for k in (1, 2, 3)]
    for classes, expected in ((days, times), (large, [1, 2**63, 2**63 + 1])):
        model = HornClassifier(epochs=1, random_state=0).fit(x, np.repeat(classes, 3)).model_
        assert model.classes_.tolist() == expected
        assert set(model.predict(x, labels=True).tolist()) <= {*expected}


def test_the_model_takes_its_whole_numbers_everywhere(tmp_path):
    """Those below 0 were refused, of arrays and of files, and as floating-point numbers all."""
    rng = np.random.default_rng(0)
    x, sides = rng.normal(size=(40, 2)), np.repeat([0, 1], 20)
    for first, second in ((-1, 1), (1, 2), (-3, -7)):
        y = np.array([first, second])[sides]
        model = HornClassifier(epochs=3, random_state=0).fit(x, y).model_
        found = model.evaluate(x, y)
        assert found["acc"] == (model.predict(x, labels=True) == y).mean()
        table = "".join(f"{a!r},{b!r},{k}\n" for (a, b), k in zip(x.tolist(), y, strict=True))
        (tmp_path / "y.csv").write_text("a,b,y\n" + table)
        np.savez(tmp_path / "y.npz", x=x, y=y)
        for data in (str(tmp_path / "y.csv"), str(tmp_path / "y.npz")):
            assert model.evaluate(horn.data.load(data)) == found
        assert model.evaluate(x, y.astype(float)) == model.evaluate(x, {"layer2": y}) == found
        for given in (y, y.astype(float)):
            job = horn.Job(model.network, (x, given), initial=model, validation=(x, given))
            assert job.data.classes == tuple(sorted((first, second)))
            np.testing.assert_array_equal(job.data.y, sides if first < second else 1 - sides)
            np.testing.assert_array_equal(job.validation.y, job.data.y)
        with pytest.raises(horn.DataError, match="labels that this model does not have: 5 "):
            model.evaluate(x, np.where(sides, 5, first))


def test_a_warm_start_with_other_classes_leaves_those_that_were_learned():
    x = np.random.default_rng(0).random((40, 4))
    model = HornClassifier(epochs=1, warm_start=True).fit(x, [0, 1] * 20)
    with pytest.raises(ValueError, match="were learned before"):
        model.fit(x, [0, 7] * 20)
    assert list(model.classes_) == [0, 1]


def test_a_warm_start_goes_on(digits):
    x, _, y, _ = digits
    model = HornClassifier(epochs=2, warm_start=True, random_state=0).fit(x, y)
    before = model.loss_curve_
    model.fit(x, y)
    assert max(model.loss_curve_) < min(before)
    with pytest.raises(ValueError, match="were learned before"):
        model.fit(x, y % 5)


@pytest.mark.parametrize("change, said", [
    ({"hidden_layer_sizes": (20, 20)}, r"hidden_layer_sizes=\(8,\), now \(20, 20\)\. Set it back"),
    ({"activation": "tanh"}, "activation='relu', now 'tanh'"),
    ({"neuron": Leaky}, "neuron='?Standard'?, now Leaky"),
    ({"hidden_layer_sizes": (), "activation": "tanh"}, r"=\(8,\), now \(\); act.*Set them back"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("is_pickled", [False, True])
def test_to_go_on_with_another_network_is_refused(change, said, is_pickled):
    """The old network was kept without a word, though get_params told of the new one."""
    x, y = load_iris(return_X_y=True)
    model = HornClassifier(hidden_layer_sizes=(8,), epochs=1, warm_start=True).fit(x, y)
    model.set_params(random_state=3, **change)
    if is_pickled:
        model = pickle.loads(pickle.dumps(model))
    for learn in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=f"{said}.*or begin anew: fit with warm_start=False"):
            learn(x, y)
    assert clone(model).fit(x, y).score(x, y) > 0
    sizes = np.ravel(model.hidden_layer_sizes).tolist()
    model.set_params(warm_start=False).fit(x, y).set_params(warm_start=True).fit(x, y)
    assert [layer.size for layer in model.model_.network.layers[1:-1]] == sizes


def test_to_go_on_with_the_same_network_is_not_refused():
    x, y = load_iris(return_X_y=True)
    model = HornClassifier(neuron=Leaky, hidden_layer_sizes=(8,), activation="identity", epochs=1)
    model.set_params(warm_start=True).fit(x, y)
    for sizes in (8, [8], np.array([8])):
        model = pickle.loads(pickle.dumps(model.set_params(hidden_layer_sizes=sizes)))
        model.set_params(random_state=1).fit(x, y).partial_fit(x, y)
    model.set_params(hidden_layer_sizes=(9,))
    model = pickle.loads(pickle.dumps(model)).set_params(hidden_layer_sizes=(8,))
    model.fit(x, y)


@pytest.mark.cluster
def test_two_tasks_give_the_answer_of_one(digits):
    x, held_x, y, _ = digits
    one = HornClassifier(epochs=2, random_state=0).fit(x, y)
    two = HornClassifier(epochs=2, random_state=0, tasks=2).fit(x, y)
    np.testing.assert_allclose(one.predict_proba(held_x), two.predict_proba(held_x), atol=1e-9)


def test_threads_are_those_that_joblib_allows(monkeypatch):
    assert HornClassifier(threads=3)._threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert HornClassifier()._threads() == 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert HornClassifier()._threads() is None


@pytest.mark.parametrize("name, said", [
    ("max_iter", "write epochs=100, instead of max_iter"),
    ("learning_rate_init", "write learning_rate=0.001"),
    ("alpha", r"write optimizer=horn.Adam\(0.001, weight_decay=1e-4\)"),
    ("class_weight", "leave it out, or write a horn.Network and a horn.Job, which have it"),
])  # fmt: skip
def test_a_parameter_of_its_mlp_is_answered_with_that_of_here(name, said):
    call = r"HornRegressor.__init__\(\) got an unexpected keyword argument"
    with pytest.raises(TypeError, match=f"{call} '{name}'; {said}"):
        HornRegressor(**{name: 1})
    with pytest.raises(ValueError, match=f"HornClassifier: unexpected .* '{name}'; {said}"):
        make_pipeline(HornClassifier()).set_params(**{f"hornclassifier__{name}": 1})


def test_what_else_is_taken_from_its_mlp():
    x, y = np.zeros((4, 2)), [0, 1, 0, 1]
    with pytest.raises(horn.ModelError, match=r"got \(5,\); .* hidden_layer_sizes=\(5,\)"):
        HornClassifier((5,)).fit(x, y)
    for sizes in (2.5, "20", (3, 0)):
        with pytest.raises(horn.ModelError, match="must be a whole number from 1, got "):
            HornClassifier(hidden_layer_sizes=sizes).fit(x, y)
    with pytest.raises(TypeError, match=r"fit\(\) got .* 'sample_weight'; leave it out, or write"):
        HornClassifier().fit(x, y, sample_weight=np.ones(4))
    with pytest.raises(AttributeError, match="has no attribute 'coefs_'; model_.parameters holds"):
        _ = HornClassifier().coefs_
    assert not hasattr(HornClassifier(), "nothing")


def test_the_model_knows_classes_and_columns_by_name():
    pandas = pytest.importorskip("pandas")
    digits = horn.data.digits().take(300)
    x = pandas.DataFrame(digits.x / 16.0).rename(columns="p{}".format)
    for y in (digits.y * 3, np.array([f"of {label}" for label in digits.y])):
        learned = HornClassifier(hidden_layer_sizes=(), epochs=2, random_state=0).fit(x, y)
        more = HornClassifier(hidden_layer_sizes=(), random_state=0).partial_fit(x, y, np.unique(y))
        for found in (learned, more, learned.set_params(warm_start=True).fit(x, y)):
            assert found.model_.feature_names == tuple(x.columns)
            assert (found.model_.predict(x, labels=True) == found.predict(x)).all()
            assert found.model_.evaluate(x, y)["acc"] == pytest.approx(found.score(x, y))
            with pytest.raises(horn.DataError, match="another order"):
                found.model_.predict(x[x.columns[::-1]])


@pytest.mark.parametrize("of", [lambda y: y > 0, lambda y: y * 1.0, lambda y: (y > 0) * 1.0,
                                lambda y: y.astype(np.float32)])  # fmt: skip
def test_the_model_knows_classes_that_equal_whole_numbers(of, tmp_path):
    """Truth values and floats were taken for 0, 1, 2: (False, True) == (0, 1) in Python."""
    x, number = load_iris(return_X_y=True)
    y = of(number)
    learned = HornClassifier(epochs=2, random_state=0).fit(x, y)
    more = HornClassifier(random_state=0).partial_fit(x, y, np.unique(y))
    learned.model_.save(tmp_path / "model.horn")
    for model, estimator in (
        (learned.model_, learned),
        (more.model_, more),
        (horn.Model.load(tmp_path / "model.horn"), learned),
    ):
        assert model.classes_.dtype.kind == y.dtype.kind
        assert list(model.classes_) == list(np.unique(y))
        found = model.predict(x, labels=True)
        assert found.dtype.kind == y.dtype.kind and (found == estimator.predict(x)).all()
        assert model.evaluate(x, y)["acc"] == pytest.approx(estimator.score(x, y))
        if y.dtype.kind == "f":
            with pytest.raises(horn.DataError, match=r"this model does not have: 7\.0"):
                model.evaluate(x, np.full(len(y), 7.0))
    assert HornClassifier(epochs=1).fit(x, number).model_.classes_ is None


def test_a_run_that_diverges_is_scikit_learns_warning_with_what_the_estimator_has(caplog):
    x = np.random.default_rng(0).normal(size=(100, 1)) * 1e5
    model = HornClassifier(epochs=2, random_state=0)
    with pytest.warns(ConvergenceWarning, match="HornClassifier diverged: the loss is ") as caught:
        model.fit(x, x[:, 0] > 0)
    assert "horn.Adam(..., clip_norm=1.0)" in str(caught[0].message)
    assert "StandardScaler() before an estimator" in str(caught[0].message)
    assert caught[0].filename == __file__ and "diverged" not in caplog.text
    assert model.n_iter_ == 2
    with pytest.raises(ConvergenceWarning):  # where warnings are errors
        clone(model).fit(x, x[:, 0] > 0)


@pytest.mark.filterwarnings("error")
def test_targets_that_single_precision_does_not_have_are_named():
    """NumPy warned of an overflow, and infinity was said to be in y."""
    x = np.ones((4, 2), np.float32)
    for learn in ("fit", "partial_fit"):
        with pytest.raises(horn.DataError, match=r"y has 1e\+300 at row 2, .* only such"):
            getattr(HornRegressor(epochs=1), learn)(x, [0.0, 1.0, 1e300, 2.0])
    single, double = (np.array([0.1, 0.2, 0.3, 0.4], kind) for kind in ("f4", "f8"))
    first, second = (HornRegressor(epochs=2, random_state=0).fit(x, y) for y in (single, double))
    np.testing.assert_array_equal(first.predict(x), second.predict(x))


def test_sequences_and_pictures_are_told_where_to_go():
    x = np.zeros((4, 5, 2))
    with pytest.raises(ValueError, match=r"dim 3.*tables \(n_samples.*net\.input\(features, steps"):
        HornRegressor().fit(x, np.arange(4.0))
    fitted = HornRegressor(epochs=1).fit(x.reshape(4, -1), np.arange(4.0))
    with pytest.raises(ValueError, match=r"X\.reshape\(len\(X\), -1\)"):
        fitted.predict(x)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"early_stopping": "no"}, "early_stopping is True or False, got 'no'"),
        ({"early_stopping": 0.1}, "early_stopping is True or False, got 0.1"),
        ({"warm_start": "x"}, "warm_start is True or False, got 'x'"),
        ({"hidden_layer_sizes": (10, True)}, "layer 2 .*, got True"),
        ({"hidden_layer_sizes": (10, "a")}, "layer 2 .*, got 'a'"),
        ({"hidden_layer_sizes": (10, 2.5)}, "layer 2 .*, got 2.5"),
        (
            {"validation_fraction": 2.0, "early_stopping": True},
            "validation_fraction is the share .* between 0 and 1, got 2.0",
        ),
    ],
)
def test_parameters_that_would_be_taken_for_others_are_refused(given, said):
    with pytest.raises(horn.HornError, match=said):
        HornRegressor(epochs=1, **given).fit(np.zeros((4, 2)), np.arange(4.0))


@pytest.mark.parametrize(
    ("estimator", "y", "share", "said"),
    [
        (HornClassifier, [0, 1] * 4, 0.1, "holds out 1 of n_samples=8 and learns from 7, but each "
         "part needs a sample of every class (2 classes, the smallest of 4)"),
        (HornClassifier, ["a"] + ["b"] * 39, 0.1, "(2 classes, the smallest of 1)"),
        (HornRegressor, [1.0, 2.0, 3.0], 0.9, "holds out 3 of n_samples=3 and learns from 0, but "
         "each part needs a sample;"),
    ],
)  # fmt: skip
def test_too_few_samples_to_hold_out_are_told_by_the_estimators_own_names(
    estimator, y, share, said
):
    model = estimator(epochs=1, early_stopping=True, validation_fraction=share)
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        model.fit(np.zeros((len(y), 2)), y)
    assert "test_size" not in str(caught.value)


def test_a_wrong_random_state_is_not_told_as_too_few_samples():
    model = HornClassifier(epochs=1, early_stopping=True, random_state="abc")
    with pytest.raises(ValueError, match="'abc' cannot be used to seed"):
        model.fit(np.zeros((40, 2)), [0, 1] * 20)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number from 1, got 0"),
        ({"batch_size": "auto"}, "batch_size must be a whole number from 1, got 'auto'"),
        ({"batch_size": True}, "batch_size must be a whole number from 1, got True"),
        ({"early_stopping": "no"}, "early_stopping is True or False, got 'no'"),
        ({"early_stopping": True}, "early_stopping=True is of fit, .* set early_stopping=False"),
    ],
)
def test_partial_fit_refuses_parameters_too(given, said):
    """Some were divisions by zero, and early stopping was ignored."""
    model = HornRegressor(**given)
    with pytest.raises(horn.HornError, match=f"^HornRegressor: {said}"):
        model.partial_fit(np.zeros((4, 2)), np.arange(4.0))
    assert not hasattr(model, "model_")
