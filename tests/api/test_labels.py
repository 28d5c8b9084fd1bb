"""Labels that are no numbers: trained with, given back, saved, evaluated, refused."""

from __future__ import annotations

import datetime
import enum
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import DataError

RNG = np.random.default_rng(5)
CENTERS = np.array([[2.0, 0, 0], [0, 2, 0], [0, 0, 2]])
CODES = RNG.integers(0, 3, 240)
X = (CENTERS[CODES] + RNG.normal(0, 0.4, (240, 3))).astype(np.float32)


def network(n: int = 3, loss: str = "cross_entropy", activation: str = "softmax") -> horn.Network:
    net = horn.Network(seed=2)
    net.input(3)
    net.layer(6, activation="tanh")
    net.output(n, activation=activation, loss=loss)
    return net


def trained(y: Any, x: Any = X, net: horn.Network | None = None, **more: Any) -> horn.Run:
    more = {"optimizer": horn.SGD(0.5), "epochs": 8} | more
    return horn.train(horn.Job(net or network(), (x, y), **more))


class Kind(enum.Enum):
    A, B, C = 1, 2, 3


DAYS = [datetime.date(2024, 1, day) for day in (1, 2, 3)]
KINDS: dict[str, list[Any]] = {
    "text": ["cat", "dog", "eel"],
    "tuples": [("a", 1), ("a", 2), ("b", 0)],
    "dates": DAYS,
    "mixed": [3, "three", (3,)],
    "bytes": [b"a", b"b", b"c"],
    "halves of characters": ["a?", "a\udce9", "b"],
    "tuples of NumPy's": [(np.str_("a"), np.int64(1)), (np.str_("a"), np.int64(2)), ("b", 1)],
}


def objects(labels: list[Any]) -> np.ndarray:
    array = np.empty(len(labels), object)
    array[:] = labels
    return array


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_any_kind_are_given_back_also_by_the_file(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    y = objects([KINDS[kind][code] for code in CODES])
    run = trained(y, validation=0.2)
    model = run.model
    assert model.evaluate(X, y)["acc"] > 0.95 and run.history[-1]["val_acc"] > 0.9
    assert (model.predict(X, labels=True) == y).mean() > 0.95
    model.save(tmp_path / "m.horn")
    assert "as text" not in caplog.text
    again = horn.Model.load(tmp_path / "m.horn")
    assert again.classes == model.classes and set(again.classes or ()) == set(KINDS[kind])
    assert again.evaluate(X, y) == model.evaluate(X, y)
    np.testing.assert_array_equal(again.predict(X, labels=True), model.predict(X, labels=True))


def test_classes_are_sorted_and_weights_are_those_of_their_numbers() -> None:
    """The same bits as with the numbers that the sorted order gives."""
    y = np.array(["dog", "eel", "cat"])[CODES]
    with_text, with_numbers = trained(y).model, trained(np.array([1, 2, 0])[CODES]).model
    assert with_text.classes_ is not None and with_text.classes_.tolist() == ["cat", "dog", "eel"]
    assert with_numbers.classes_ is None
    for name, array in with_numbers.parameters.items():
        np.testing.assert_array_equal(with_text.parameters[name], array)
    codes = with_numbers.predict(X, labels=True)
    assert codes.dtype == np.int64
    np.testing.assert_array_equal(with_text.classes_[codes], with_text.predict(X, labels=True))


@pytest.mark.parametrize("kind", [list, np.array, objects])
def test_truth_values_come_back_as_such(kind: Any) -> None:
    y = [bool(code == 1) for code in CODES]
    model = trained(kind(y), net=network(2)).model
    assert model.classes_ is not None and model.classes_.tolist() == [False, True]
    found = model.predict(X, labels=True)
    assert found.dtype == bool and (found == np.array(y)).mean() > 0.95
    assert model.evaluate(X, np.array(y).astype(int)) == model.evaluate(X, y)
    plain = trained(np.array(y).astype(int), net=network(2)).model
    np.testing.assert_array_equal(plain.predict(X), model.predict(X))


def test_two_classes_may_share_an_output() -> None:
    y = np.where(CODES == 1, "yes", "no")
    model = trained(y, net=network(1, "binary_cross_entropy", "sigmoid"), epochs=20).model
    assert (model.predict(X, labels=True) == y).mean() > 0.95


def test_one_output_says_0_or_1() -> None:
    y = (CODES == 1).astype(int)
    model = trained(y, net=network(1, "binary_cross_entropy", "sigmoid"), epochs=20).model
    found = model.predict(X, labels=True)
    assert found.dtype == np.int64 and (found == y).mean() == model.evaluate(X, y)["acc"] > 0.95


def test_outputs_of_which_each_answers_by_itself_are_told_no_largest(tmp_path: Path) -> None:
    """Of several labels per sample the largest output was said to be the label."""
    rows = np.eye(3, dtype=int)[CODES] | np.eye(3, dtype=int)[0]
    model = trained(rows, net=network(3, "binary_cross_entropy", "sigmoid")).model
    model.save(tmp_path / "model.horn")
    for each in (model, horn.Model.load(tmp_path / "model.horn")):
        with pytest.raises(horn.ModelError, match=r"write  model.predict\(x\) > 0.5"):
            each.predict(X, labels=True)
        with pytest.raises(horn.ModelError, match="each output of this model answers by itself"):
            each.labels_of(each.predict(X))
    codes = trained(CODES, net=network(3, "binary_cross_entropy", "sigmoid")).model
    np.testing.assert_array_equal(codes.predict(X, labels=True), codes.predict(X).argmax(axis=1))


def test_a_cut_that_ends_with_an_output_has_its_classes(tmp_path: Path) -> None:
    """It told numbers of classes; and of several labels per sample the largest output."""
    y = np.array(["cat", "dog", "eel"])[CODES]
    model = trained(y, epochs=1).model
    model.cut("layer2").save(tmp_path / "m.horn")
    for cut in (model.cut("layer2"), horn.Model.load(tmp_path / "m.horn")):
        assert cut.classes == ("cat", "dog", "eel")
        np.testing.assert_array_equal(cut.predict(X, labels=True), model.predict(X, labels=True))
    assert model.cut("layer1").classes_ is None
    both = network()
    both.output(1, loss="squared_error", inputs=both.layers[1], name="size")
    model = trained({"layer2": y, "size": X[:, :1]}, net=both, epochs=1).model
    labels = model.predict(X, labels=True)["layer2"]
    np.testing.assert_array_equal(model.cut("layer2").predict(X, labels=True), labels)
    assert model.cut("size").classes is None
    rows = np.eye(3, dtype=int)[CODES] | np.eye(3, dtype=int)[0]
    model = trained(rows, net=network(3, "binary_cross_entropy", "sigmoid"), epochs=1).model
    with pytest.raises(horn.ModelError, match="each output of this model answers by itself"):
        model.cut("layer2").predict(X, labels=True)


@pytest.mark.parametrize("several", [False, True])
def test_one_that_ends_with_a_single_output_tells_its_two_classes(
    several: bool, tmp_path: Path
) -> None:
    net = network(1, "binary_cross_entropy", "sigmoid")
    if several:
        net.output(1, loss="squared_error", inputs=net.layers[1], name="size")
    y = (CODES > 0).astype(float)
    model = trained({"layer2": y, "size": X[:, 0]} if several else y, net=net, epochs=2).model
    found = model.predict(X, labels=True, layer="layer2")
    assert found.dtype == np.int64 and {*found.tolist()} == {0, 1}
    model.cut("layer2").save(tmp_path / "m.horn")
    cuts = model.cut("layer2"), model.cut("layer2").cut("layer2")
    for cut in (*cuts, horn.Model.load(tmp_path / "m.horn")):
        np.testing.assert_array_equal(cut.predict(X, labels=True), found)
    for number in ("layer1", *(["size"] if several else [])):
        with pytest.raises(horn.ModelError) if number == "size" else nullcontext():
            model.cut(number).predict(X, labels=True)


def test_an_output_that_is_a_number_is_no_label() -> None:
    """It was said to be 0, whatever it was."""
    model = trained(X[:, :1], net=network(1, "squared_error", "identity")).model
    with pytest.raises(horn.ModelError, match="the only output of this model is a number"):
        model.predict(X, labels=True)


def test_labels_of_bytes_are_labels_as_text_is(tmp_path: Path) -> None:
    """Of an array of bytes horn said that numbers were expected."""
    y = np.array([b"cat", b"dog", b"eel"])[CODES]
    model = trained(y).model
    assert model.classes == (b"cat", b"dog", b"eel")
    model.save(tmp_path / "model.horn")
    found = horn.Model.load(tmp_path / "model.horn").predict(X, labels=True)
    assert (found == y).mean() > 0.95
    np.testing.assert_array_equal(found, model.predict(X, labels=True))


@pytest.mark.parametrize(
    "y, said",
    [
        (objects([1, True] * 120), "truth values and numbers, such as True and 1, but True is 1"),
        (np.array([["a"], ["b"]] * 120), r"for labels, one per sample, write y.ravel\(\)"),
        (CODES.astype(complex), "complex numbers, but .*; take the real part, or the absolute"),
    ],
)
def test_labels_that_were_taken_for_others_are_refused(y: np.ndarray, said: str) -> None:
    with pytest.raises(DataError, match=said):
        horn.Job(network(1, "squared_error", "identity"), (X, y))


def test_numbers_as_objects_are_numbers() -> None:
    """Those of a row of a mixed table were learned as 0 and 1."""
    for y in ([1.5, 2.5], [1, 2.5]):
        job = horn.Job(network(1, "squared_error", "identity"), (X, objects(y * 120)))
        assert job.data.y.shape == (240, 1) and job.data.y[:2, 0].tolist() == y


@pytest.mark.parametrize(
    "y",
    [
        [np.float32(1.5), np.float32(2.5), np.float32(0.5)],
        [1.5, np.int64(2), 3],
        [np.float64(0.5), np.uint8(1), np.float16(2)],
    ],
)
def test_so_are_those_of_numpy_as_objects(y: list[Any]) -> None:
    data = horn.data.as_dataset((X[:3], np.array(y, object)))
    assert data.y is not None and data.classes is None
    assert data.y.dtype == np.float64 and data.y.tolist() == [[float(one)] for one in y]


@pytest.mark.parametrize("truth", [True, np.True_])
def test_truth_values_among_numbers_are_no_numbers(truth: Any) -> None:
    with pytest.raises(DataError, match="y holds truth values and numbers, such as True and 1.5"):
        horn.data.as_dataset((X[:3], np.array([truth, 2.5, 1.5], object)))


def test_sets_are_in_an_order_that_no_process_draws_anew() -> None:
    given = [frozenset(word) for word in ("ca", "bc", "a", "abc", "b")]
    y = np.empty(5, object)
    y[:] = given
    expected = ["a", "abc", "ac", "b", "bc"]
    for order in (slice(None), slice(None, None, -1)):
        found = horn.data.as_dataset((X[:5], y[order])).classes
        assert ["".join(sorted(one)) for one in found or ()] == expected
    y[:] = [(k % 2, one) for k, one in enumerate(given)]  # also within tuples
    found = horn.data.as_dataset((X[:5], y)).classes or ()
    assert [(k, "".join(sorted(one))) for k, one in found] == [
        (0, "a"), (0, "ac"), (0, "b"), (1, "abc"), (1, "bc"),
    ]  # fmt: skip


def test_numbers_that_pandas_calls_categories_are_classes() -> None:
    pandas = pytest.importorskip("pandas")
    y = pandas.Series(np.array([1.5, 2.5, 4.0])[CODES], dtype="category")
    assert horn.Job(network(), (X, y)).data.classes == (1.5, 2.5, 4.0)


def test_objects_that_are_whole_numbers_stay_numbers() -> None:
    job = horn.Job(network(), (X, objects(CODES.tolist())))
    assert job.data.classes is None
    np.testing.assert_array_equal(job.data.y, CODES)


def test_what_a_file_cannot_keep_is_kept_as_text(tmp_path: Path, caplog: Any) -> None:
    model = trained(objects([list(Kind)[code] for code in CODES])).model
    assert model.predict(X[:1], labels=True)[0] in Kind
    model.save(tmp_path / "m.horn")
    assert "keeps classes of type Kind as text: Kind.A is 'Kind.A' there" in caplog.text
    assert horn.Model.load(tmp_path / "m.horn").classes == ("Kind.A", "Kind.B", "Kind.C")


def test_labels_that_a_file_has_as_text_are_still_its_classes(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for y in (
        pandas.Series(pandas.period_range("2020-01", periods=3, freq="M"))[CODES],
        pandas.cut(X[:, 0], 3),
        objects([list(Kind)[code] for code in CODES]),
    ):
        model = trained(y).model
        model.save(tmp_path / "m.horn")
        assert horn.Model.load(tmp_path / "m.horn").evaluate(X, y) == model.evaluate(X, y)


class Said:
    """Of a text that does not tell what it is of."""

    def __init__(self, place: int) -> None:
        self.place = place

    def __str__(self) -> str:
        return "said"


def test_labels_that_a_file_could_not_tell_apart_are_refused_before_training() -> None:
    said = [Said(0), Said(1), Said(2)]
    for each, text in ((said, "said"), (["Kind.A", Kind.A, Kind.B], "Kind.A")):
        with pytest.raises(DataError, match=f"classes .* are both '{text}' in a model file, .* as"):
            horn.Job(network(), (X, objects([each[code] for code in CODES])))


def test_whole_numbers_of_more_than_64_bits_are_refused() -> None:
    y = objects([10**30 + int(code) for code in CODES])
    with pytest.raises(DataError, match=r"label 10+\d in row 0 is too far from 0 .* str\(label\)"):
        horn.Job(network(), (X, y))


def test_pandas_categories_and_text_are_labels() -> None:
    pandas = pytest.importorskip("pandas")
    names = np.array(["cat", "dog", "eel"])[CODES]
    plain = trained(names).model
    columns = [
        pandas.Series(names),
        pandas.Series(names).astype("category"),
        pandas.Categorical(names, categories=["eel", "dog", "cat", "unused"]),
        pandas.DataFrame({"label": names}),
    ]
    for column in columns:
        model = trained(column).model
        assert model.classes == ("cat", "dog", "eel")
        np.testing.assert_array_equal(model.predict(X), plain.predict(X))
        assert model.evaluate(X, column)["acc"] > 0.95
    numbers = pandas.Series(CODES, dtype="Int64")
    assert horn.Job(network(), (X, numbers)).data.classes is None
    numbers[3] = pandas.NA
    with pytest.raises(DataError, match=r"data: y has no label in row 3 \(1 such row in all\)"):
        horn.Job(network(), (X, numbers))


def test_a_table_and_labels_whose_index_has_another_order_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pandas = pytest.importorskip("pandas")
    x, y = pandas.DataFrame(X), pandas.Series(CODES)
    for pair in [(x, y), (x[::-1], y[::-1]), (x, y.set_axis(y.index + 1)), (x, CODES), (X, y[::-1]),
                 (x.set_axis([0] * 240), y), (x[:120], y[120:])]:  # fmt: skip
        horn.Job(network(), pair)
    assert not caplog.records
    found = horn.Job(network(), (x, y[::-1]))
    np.testing.assert_array_equal(found.data.y, CODES[::-1])  # by position, as without pandas
    (record,) = caplog.records
    assert record.getMessage() == (
        "data: x and y have the same index in different orders, and their rows are paired as they "
        "lie; to pair them by the index pass y.loc[x.index], and y.to_numpy() if it means nothing"
    )


def test_labels_that_training_has_not_are_named() -> None:
    y = np.array(["cat", "dog", "eel"])[CODES]
    said = (
        "validation: has labels that the training data does not have: 'asp', 'bee' (3 samples, the "
        "first in row 1); it has 'cat', 'dog', 'eel'. Leave those samples out, or train with all "
        "classes"
    )
    with pytest.raises(DataError) as caught:
        horn.Job(network(), (X, y), validation=(X[:4], ["cat", "asp", "asp", "bee"]))
    assert str(caught.value) == said
    with pytest.raises(DataError, match="^test: has labels that the training data does not have"):
        horn.Job(network(), (X, y), test=(X[:1], ["asp"]))
    with pytest.raises(DataError, match="^data: has labels that this model does not have: 'asp'"):
        trained(y, epochs=1).model.evaluate(X[:1], ["asp"])
    known = "write them as the training data does"
    with pytest.raises(
        DataError, match=f"does not have: 0, 1 .2 samples.* None is known: .*{known}"
    ):
        horn.Job(network(), (X, y), test=(X[:2], [0, 1]))
    with pytest.raises(DataError, match="labels are 'a', 'b', but the training data has whole"):
        horn.Job(network(), (X, CODES), test=(X[:2], ["a", "b"]))


def test_validation_may_lack_classes() -> None:
    y = np.array(["cat", "dog", "eel"])[CODES]
    job = horn.Job(network(), (X, y), validation=(X[:2], ["eel", "dog"]))
    assert job.validation.y.tolist() == [2, 1]


@pytest.mark.parametrize("unit", ["ns", "us", "s"])
def test_times_of_numpy_are_those_of_python_in_any_unit(unit: str, tmp_path: Path) -> None:
    """Those in nanoseconds became whole numbers."""
    y = np.array(["2020-01-01T06", "2020-01-02", "2020-01-03"], f"datetime64[{unit}]")[CODES]
    model = trained(y, epochs=1).model
    times = [datetime.datetime(2020, 1, 1, 6), *(datetime.datetime(2020, 1, k) for k in (2, 3))]
    assert model.classes_ is not None and model.classes_.tolist() == times
    assert model.predict(X[:3], labels=True).tolist()[0] in times
    model.save(tmp_path / "m.horn")
    again = horn.Model.load(tmp_path / "m.horn")
    for other in ("datetime64[ns]", "datetime64[ms]"):
        assert again.evaluate(X, y.astype(other)) == model.evaluate(X, y)


def test_times_that_python_does_not_have_are_text() -> None:
    for y, said in (
        (np.array([1, 0, 2], "datetime64[ns]")[CODES], "1970-01-01T00:00:00.00000000{}"),
        (np.array([18031, 18030, 18032], "datetime64[Y]")[CODES], "2000{}"),
    ):
        job = horn.Job(network(), (X, y))
        assert job.data.classes == tuple(said.format(k) for k in range(3))
        np.testing.assert_array_equal(job.data.y, np.array([1, 0, 2])[CODES])


def test_truth_values_and_dates_are_known_as_files_write_them() -> None:
    """What ``df.to_csv`` wrote was refused, and by a model of the file what it was written of."""
    odd, day = CODES == 1, np.array(DAYS, "datetime64[D]")
    words, small = np.where(odd, "True", "False"), np.where(odd, "true", "false")
    dates = [np.array(DAYS, "datetime64[ns]")[CODES], objects([DAYS[k] for k in CODES])]
    written = [day.astype(str)[CODES], np.char.add(day.astype(str), " 00:00:00")[CODES]]
    for alike, n in (([odd, words, small], 2), ([*dates, *written], 3)):
        for given in alike:
            model = trained(given, net=network(n), epochs=1).model
            others = [y for y in alike if y.dtype.kind != "U" or given.dtype.kind != "U"]
            found = [model.evaluate(X, y) for y in others]
            assert found == [model.evaluate(X, given)] * len(others)


def test_text_that_is_no_single_date_or_truth_value_stays_text() -> None:
    day = datetime.datetime(2020, 1, 1)
    for y, other in (
        ([True, False], ["yes", "False"]),
        ([True, False], ["True", "true"]),
        ([day, DAYS[0]], ["2020-01-01", "2020-01-01 00:00"]),
        (["Dog", "eel"], ["dog", "eel"]),
    ):
        job = horn.Job(network(2), (X[:2], objects(y)))
        with pytest.raises(DataError, match=f"does not have: '{other[0]}'"):
            horn.Job(network(2), (X[:2], objects(y)), test=(X[:2], other))
        again = horn.Job(network(2), (X[:2], objects(y)), test=(X[:2], objects(y)))
        np.testing.assert_array_equal(again.test.y, job.data.y)


def test_as_many_outputs_as_classes() -> None:
    y = np.array(["cat", "dog", "eel"])[CODES]
    for n in (2, 4):
        with pytest.raises(DataError, match=rf"3 classes \('cat', 'dog', 'eel'\), but layer2 has "
                           rf"{n} neurons, one per class; use net.output\(3, ...\)"):  # fmt: skip
            horn.train(horn.Job(network(n), (X, y)))
    with pytest.raises(DataError, match="but layer2 has 1 neuron, one per class"):
        horn.train(horn.Job(network(1, "squared_error", "identity"), (X, y)))


def test_a_job_that_begins_with_a_model_keeps_its_classes() -> None:
    y = np.array(["cat", "dog", "eel"])[CODES]
    first = trained(y).model
    few = np.isin(y, ["dog", "eel"])
    more = horn.Job(first.network, (X[few], y[few]), initial=first, epochs=1)
    assert more.data.classes == ("cat", "dog", "eel")
    assert horn.train(more).model.evaluate(X, y)["acc"] > 0.9
    with pytest.raises(DataError, match="the model that it begins with does not have: 'asp'"):
        horn.Job(first.network, (X[:1], ["asp"]), initial=first)
    net = horn.Network()
    net.input(3)
    net.layer(6, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy", name="head")
    assert horn.Job(net, (X[few], y[few]), initial=first).data.classes == ("dog", "eel")


def test_nor_are_they_lost_where_an_output_is_added_or_left_out() -> None:
    y = np.array(["cat", "dog", "eel"])[CODES]
    few = y != "cat"
    both = network()
    both.output(1, loss="squared_error", inputs=both.layers[1], name="size")
    of_one = trained(y).model
    of_two = horn.Model(both, both.initial_parameters(), classes={"layer2": of_one.classes})
    pair = {"layer2": y[few], "size": X[few, :1]}
    found = horn.Job(both, (X[few], pair), initial=of_one).data.all_classes
    assert found == {"layer2": ("cat", "dog", "eel")}
    found = horn.Job(of_one.network, (X[few], y[few]), initial=of_two).data.classes
    assert found == ("cat", "dog", "eel")
    for net, given in ((both, of_one), (of_one.network, of_two)):
        answers = ["asp"] if given is of_two else {"layer2": ["asp"], "size": X[:1, :1]}
        with pytest.raises(DataError, match="the model that it begins with does not have: 'asp'"):
            horn.Job(net, (X[:1], answers), initial=given)


@pytest.mark.cluster
def test_tasks_and_groups_train_with_text() -> None:
    y = np.array(["cat", "dog", "eel"])[CODES]
    job = horn.Job(network(), (X, y), epochs=2, validation=(X[:5], y[:5]), dtype="float64")
    alone = horn.train(job).model
    for settings in ({"tasks": 2}, {"groups": 2}):
        model = horn.train(job, **settings).model
        assert model.classes == alone.classes
        np.testing.assert_allclose(model.predict(X), alone.predict(X), rtol=1e-9)


def test_floats_for_one_neuron_need_no_column(rng):
    x = rng.normal(size=(30, 3))
    numbers = x.sum(axis=1)

    def trained(y, steps=None):
        net = horn.Network(seed=1)
        net.input(3 if steps is None else 1, steps=steps)
        net.output(1, loss="squared_error")
        given = x if steps is None else x[:, :, None]
        job = horn.Job(net, (given, y), validation=(given, y), iterations=4, batch_size=6)
        return horn.train(job, progress=False), given

    for steps in (None, 3):
        (flat, given), (column, _) = trained(numbers, steps), trained(numbers[:, None], steps)
        assert flat.history["val_loss"] == column.history["val_loss"]
        asked = [flat.model.evaluate((given, y)) for y in (numbers, numbers[:, None])]
        assert asked[0] == asked[1]


def test_floats_are_no_labels_of_several_neurons(rng):
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, activation="softmax", loss="cross_entropy")
    x, y = rng.normal(size=(8, 3)), np.arange(8) % 2
    with pytest.raises(DataError, match=r"\(8, 1\), but layer1 has 2.*y\.ravel\(\)\.astype\(int\)"):
        horn.train(horn.Job(net, (x, y.astype(float)), epochs=1), progress=False)
    model = horn.train(horn.Job(net, (x, y), epochs=1), progress=False).model
    with pytest.raises(DataError, match=r"labels as whole numbers, y\.ravel\(\)\.astype\(int\)"):
        model.evaluate((x, y.astype(float)))


@pytest.mark.parametrize("size", [1, 3])
def test_labels_of_one_class_are_refused(size: int) -> None:
    """One neuron learned them, and its labels ended with an IndexError."""
    net = horn.Network(seed=1)
    net.input(2)
    kind = "cross_entropy" if size > 1 else "binary_cross_entropy"
    net.output(size, activation="softmax" if size > 1 else "sigmoid", loss=kind)
    job = horn.Job(net, (np.zeros((4, 2)), ["cat"] * 4))
    with pytest.raises(DataError, match="all labels are 'cat', .*take samples of other classes"):
        horn.train(job)
