"""Tables of pandas: what is taken, and what is refused with the names of the columns."""

import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest

import horn
from horn.data import as_dataset
from horn.errors import DataError

pandas = pytest.importorskip("pandas")


def table(**columns):
    return pandas.DataFrame(columns)


@pytest.mark.parametrize(
    "columns, dtype",
    [
        ({"a": [1.5, 2], "b": [3, 4]}, "f8"),
        ({"a": [True, False], "b": pandas.Series([1, 2], dtype="Int16")}, "f4"),
        ({"a": pandas.Series([1, 2], dtype="Int64"), "b": [0.5, 1]}, "f8"),
        ({"a": np.float32([1, 2]), "b": np.float32([3, 4])}, "f4"),
        ({"a": np.uint8([1, 2]), "b": np.uint8([3, 4])}, "u1"),
    ],
    ids=str,
)
def test_numbers_are_taken(columns, dtype):
    frame = table(**columns)
    dataset = as_dataset(frame)
    assert dataset.x.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(dataset.x, frame.to_numpy(dtype=float))
    assert dataset.scale == 1.0  # also of bytes, which in an array are worth 1/255


def test_columns_that_are_no_numbers_are_named():
    days = pandas.to_datetime(["2024-01-01"] * 2)
    frame = table(size=[1.0, 2], colour=["red", "blue"], made=days)
    frame["kind"] = pandas.Categorical(["a", "b"])
    with pytest.raises(DataError) as caught:
        as_dataset((frame, [0, 1]), "data")
    said = str(caught.value)
    assert said.startswith("data: x has columns that hold no numbers: 'colour' (")
    assert "'kind' (category). Write a column of 0 and 1 per category: pandas.get_dummies(" in said
    assert "columns=['colour', 'kind'])" in said
    assert "days since a date: (df[column] - start) / pandas.Timedelta(days=1)" in said
    assert "df.drop(columns=['colour', 'made', 'kind'])" in said
    helped = pandas.get_dummies(frame, columns=["colour", "kind"]).drop(columns=["made"])
    assert as_dataset((helped, [0, 1])).n_features == 5


@pytest.mark.parametrize(
    "column, words",
    [
        ([1j, 2], "'q' (complex128). Write the absolute value: df[column].abs(), or the real part: "
         "numpy.real(df[column]); or leave them out: df.drop(columns=['q'])"),
        (pandas.interval_range(0, 2), "'q' (interval[int64, right]). Leave them out: "
         "df.drop(columns=['q'])"),
    ],
)  # fmt: skip
def test_the_remedy_is_a_sentence(column, words):
    with pytest.raises(DataError) as caught:
        as_dataset(table(a=[1.0, 2], q=column))
    assert str(caught.value) == f"data: x has columns that hold no numbers: {words}"


def test_lengths_of_time_and_decimals_become_numbers():
    days = pandas.to_timedelta(["1 days", "36 hours"])
    frame = table(wait=days, price=[Decimal("1.5"), None], colour=["red", "blue"])
    with pytest.raises(DataError) as caught:
        as_dataset(frame)
    said = str(caught.value)
    assert "'wait' (timedelta64" in said and "'price'" not in said
    assert "days: df[column] / pandas.Timedelta(days=1);" in said and "since a date" not in said
    assert "columns=['colour']);" in said
    helped = table(wait=frame["wait"] / pandas.Timedelta(days=1), price=frame["price"])
    assert as_dataset(helped[:1]).x.tolist() == [[1.0, 1.5]]
    with pytest.raises(DataError, match=r"missing values in columns 'price' \(1 of 2\)"):
        as_dataset(helped)


def test_objects_that_are_all_numbers_are_taken():
    frame = table(a=[1.5, 2], b=np.array([1, True], object), c=np.uint8([3, 4]))
    for given in (frame, frame.astype(object)):
        found = as_dataset(given)
        assert (found.x.dtype, found.scale) == (np.float64, 1.0)
        assert found.x.tolist() == [[1.5, 1, 3], [2, 1, 4]]
    for other in ("5", 1j, [1]):
        with pytest.raises(DataError, match=r"hold no numbers: 'b' \(object\)"):
            as_dataset(frame.assign(b=pandas.Series([1, other], dtype=object)))
    with pytest.raises(DataError, match=r"hold no numbers: 'b' \(category\). Write a column of 0"):
        as_dataset(frame.astype({"b": "category"}))


@pytest.mark.parametrize("kind", ["uint64", "UInt64"])
def test_labels_above_those_of_an_integer_are_refused(kind: str) -> None:
    """18446744073709551615 was -1, in the type of pandas that may have gaps."""
    large = pandas.Series([2**64 - 1, 1], dtype=kind)
    with pytest.raises(DataError, match="label 18446744073709551615 in row 0 is above"):
        as_dataset((np.zeros((2, 1)), large))
    assert as_dataset((np.zeros((2, 1)), pandas.Series([3, 1], dtype=kind))).y.dtype == np.int64


def test_missing_values_are_named_by_column():
    whole = pandas.Series([1, 2, None], dtype="Int64")
    frame = table(a=[1.0, np.nan, np.nan], b=[1, 2, 3], c=whole)
    with pytest.raises(DataError, match=r"data: x has missing values in columns 'a' \(2 of 3\), "
                       r"'c' \(1 of 3\). Drop those rows, df.dropna\(\), or fill"):  # fmt: skip
        as_dataset(frame)
    assert len(as_dataset(frame.dropna())) == 1
    assert len(as_dataset(frame.astype(float).fillna(frame.mean()))) == 3


def test_many_columns_are_not_all_named():
    frame = table(**{f"c{k}": ["x"] for k in range(30)})
    with pytest.raises(DataError, match="'c7' .* and 22 more. Write"):
        as_dataset(frame)


def test_columns_of_labels_and_targets():
    x = np.ones((3, 2))
    assert as_dataset((x, pandas.Series([2, 0, 1]))).y.tolist() == [2, 0, 1]
    assert as_dataset((x, pandas.Series([2, 0, 1], dtype="Int8"))).classes is None
    assert as_dataset((x, pandas.Series(["b", "a", "b"]))).classes == ("a", "b")
    assert as_dataset((x, table(y=["b", "a", "b"]))).y.tolist() == [1, 0, 1]
    assert as_dataset((x, table(y=[1, 0, 1]))).y.shape == (3,)
    assert as_dataset((x, table(y=[1.5, 0, 1]))).y.shape == (3, 1)
    assert as_dataset((x, table(a=[1, 2, 3], b=[4, 5, 6]))).y.shape == (3, 2)
    boolean = pandas.Series([True, False, True], dtype="boolean")
    assert as_dataset((x, boolean)).classes == (False, True)
    for bad in (pandas.Series(["a", None, "b"]), boolean.where([True, False, True])):
        with pytest.raises(DataError, match=r"data: y has no label in row 1 \(1 such row in all\)"):
            as_dataset((x, bad))
    assert as_dataset((x, pandas.Series([1.5, 0, 1]))).y.shape == (3, 1)


@pytest.mark.cluster
def test_horn_does_not_import_it():
    done = subprocess.run(
        [sys.executable, "-c", "import horn, sys, numpy; horn.data.as_dataset((numpy.ones((2, 2)), "
         "['a', 'b'])); print([m for m in ('pandas', 'scipy', 'networkx', 'torch') if m in "
         "sys.modules])"], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"


def test_sparse_matrices_as_data_say_how_to_make_an_array():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(DataError, match=r"x is a sparse matrix, .* pass x.toarray\(\)"):
        as_dataset((sparse.eye(3, format="csr"), np.array([0, 1, 0])), "data")
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, activation="softmax", loss="cross_entropy")
    x = sparse.csr_matrix(np.eye(3))
    model = horn.train(horn.Job(net, (np.eye(3), [0, 1, 0]), epochs=1), progress=False).model
    with pytest.raises(DataError, match=r"x is a sparse matrix, .* pass x.toarray\(\)"):
        model.predict(x)
    with pytest.raises(DataError, match=r"x is a sparse matrix, .* pass x.toarray\(\)"):
        horn.Job(net, x)
    with pytest.raises(DataError, match=r"x\[0\] is a sparse .* scipy.sparse.vstack\(x\).toarray"):
        as_dataset([x[0], x[1]])


def job_of(data, **how):
    net = horn.Network(seed=1)
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    return horn.Job(net, data=data, epochs=1, batch_size=4, **how)


def samples():
    size, weight = np.random.default_rng(1).standard_normal((2, 12))
    return table(size=size, weight=weight), (size > weight).astype(int)


def test_a_model_knows_the_columns_it_learned_from(tmp_path):
    frame, y = samples()
    run = horn.train(job_of((frame, y)))
    run.model.save(tmp_path / "m.horn")
    for model in (run.model, horn.Model.load(tmp_path / "m.horn")):
        assert model.feature_names == ("size", "weight")
        right = model.predict(frame)
        np.testing.assert_array_equal(model.predict(frame.to_numpy()), right)
        other = frame[["weight", "size"]]
        np.testing.assert_array_equal(model.predict(other[list(model.feature_names)]), right)
        for ask in (model.predict, lambda x, m=model: m.evaluate(x, y)):
            with pytest.raises(DataError, match="other columns than this model has: another "
                               r"order, 'weight' where 'size' was. .* \(x\[list\(m"):  # fmt: skip
                ask(other)
        with pytest.raises(DataError, match="model has: 'mass' instead of 'weight'. Pass "
                           "'size', 'weight', in this order"):  # fmt: skip
            model.predict(frame.rename(columns={"weight": "mass"}))
        with pytest.raises(DataError, match="x has 'mass', which this model has not"):
            model.predict(frame.assign(mass=1.0))


def test_all_data_of_a_job_have_the_columns_of_its_training_data():
    frame, y = samples()
    other = frame[["weight", "size"]]
    for name in ("validation", "test"):
        with pytest.raises(DataError, match=f"{name}: other columns than the training data has"):
            job_of((frame, y), **{name: (other, y)})
    model = horn.train(job_of((frame, y))).model
    with pytest.raises(DataError, match="than the model that it begins with has: another order"):
        job_of((other, y), initial=model)
    job_of((other.to_numpy(), y), initial=model)  # which has no names


def test_columns_of_a_csv_file_are_known_by_its_header(tmp_path):
    frame, y = samples()
    frame.assign(y=y).to_csv(tmp_path / "a.csv", index=False)
    frame[["weight", "size"]].assign(y=y).to_csv(tmp_path / "b.csv", index=False)
    data = horn.data.load(str(tmp_path / "a.csv"))
    assert data.feature_names == ("size", "weight")
    model = horn.train(job_of(data)).model
    assert model.evaluate(frame, y) == model.evaluate(data)
    with pytest.raises(DataError, match="b.csv: other columns than this model has"):
        model.evaluate(horn.data.load(str(tmp_path / "b.csv")))


@pytest.mark.parametrize(
    "columns", [[2020, 2021], [("size", "mean"), ("size", "largest")], ["a", 3]], ids=str
)
def test_names_that_are_no_text_are_names(columns, tmp_path):
    """A table with the same columns in another order passed."""
    frame, y = samples()
    frame.columns = pandas.Index(columns)
    horn.train(job_of((frame, y))).model.save(tmp_path / "m.horn")
    model = horn.Model.load(tmp_path / "m.horn")
    assert model.feature_names == tuple(map(str, columns))
    model.predict(frame)
    with pytest.raises(DataError, match="other columns than this model has: another order"):
        model.predict(frame.iloc[:, ::-1])


def test_columns_with_numbers_are_in_order():
    frame, y = samples()
    numbered = frame.set_axis([0, 1], axis=1)
    model = horn.train(job_of((numbered, y))).model
    assert model.feature_names == ()
    np.testing.assert_array_equal(model.predict(frame), model.predict(numbered))
    with pytest.raises(DataError, match="another order, '1' where '0' was. Pass '0', '1', in this "
                       "order; an array"):  # fmt: skip
        model.predict(numbered[[1, 0]])


def test_columns_with_numbers_or_one_name_twice_have_no_names():
    frame, y = samples()
    assert as_dataset(frame).feature_names == ("size", "weight")
    assert as_dataset(frame.set_axis([0, 1], axis=1)).feature_names == ()
    assert as_dataset(frame.set_axis(["a", "a"], axis=1)).feature_names == ()
    assert as_dataset(frame.to_numpy()).feature_names == ()


@pytest.mark.parametrize(
    ("column", "remedy"),
    [
        (["1.5", "?", "-2e3"], "numbers of text: pandas.to_numeric(df[column], errors='coerce')"),
        (["1,5", "2,25", "3"], "numbers of text with decimal commas: pandas.to_numeric("
         "df[column].str.replace(',', '.'), errors='coerce')"),
    ],
)  # fmt: skip
def test_numbers_of_text_are_made_numbers_and_not_categories(column: list[str], remedy: str):
    frame = table(a=[1.0, 2.0, 3.0], q=column)
    with pytest.raises(DataError) as caught:
        as_dataset(frame)
    assert remedy in str(caught.value) and "get_dummies" not in str(caught.value)
    text = frame["q"].str.replace(",", ".")
    helped = frame.assign(q=pandas.to_numeric(text, errors="coerce"))
    assert as_dataset(helped.dropna()).n_features == 2


def test_a_column_or_a_row_of_a_table_is_told_how_to_stay_one():
    frame = table(a=[1.0, 2.0], kind=["x", "y"])
    for one in (frame["a"], frame.iloc[0], frame[["a"]].iloc[0]):
        with pytest.raises(DataError, match=r"pass a table: df\[\['a'\]\] .* df.iloc\[\[0\]\]"):
            as_dataset(one)
    assert as_dataset(frame[["a"]]).x.shape == (2, 1)
    assert as_dataset(frame[["a"]].iloc[[0]]).x.shape == (1, 1)


def test_a_model_names_the_columns_that_are_missing_or_too_many():
    frame = table(a=[1.0, 2.0], b=[3.0, 4.0], kind=["x", "y"], more=[5.0, 6.0])
    net = horn.Network(seed=1)
    net.input(2)
    net.output(1, loss="squared_error")
    model = horn.train(horn.Job(net, (frame[["a", "b"]], [0.0, 1.0])), progress=False).model
    too_many = r"x has 'kind', 'more', which .* pass x\[list\(model.feature_names\)\]"
    for asked in (model.predict, lambda x: model.evaluate(x, [0.0, 1.0])):
        with pytest.raises(DataError, match=too_many):
            asked(frame)
        with pytest.raises(DataError, match="x has no column 'b'; pass 'a', 'b', in this order"):
            asked(frame[["a"]])
    assert model.predict(frame[list(model.feature_names)]).shape == (2, 1)
