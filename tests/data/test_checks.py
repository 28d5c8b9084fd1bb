"""What must hold before a network meets the data, and the sentence when it does not."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import horn
from horn import data
from horn.data import Normalization, as_dataset, check_range, checks, conversion
from horn.errors import DataError


@pytest.mark.parametrize("value, called", [(np.nan, "NaN"), (np.inf, "infinity")])
def test_the_first_bad_value_is_named_and_all_are_counted(value, called, monkeypatch):
    monkeypatch.setattr(checks, "CHUNK_VALUES", 8)  # several chunks
    x = np.zeros((9, 3), np.float32)
    x[4, 2] = value
    x[8, 0] = -np.inf
    with pytest.raises(DataError) as caught:
        data.as_dataset(x, "rows.npy")
    assert str(caught.value) == (
        f"rows.npy: x has {called} at row 4, column 2, the first of 2 NaN or infinite values; "
        "drop those rows or fill them in"
    )


def test_a_single_bad_target_is_named():
    y = np.ones((3, 2))
    y[2, 1] = np.nan
    with pytest.raises(DataError, match="y has NaN at row 2, column 1, the only such value; drop"):
        data.as_dataset((np.ones((3, 1)), y))
    with pytest.raises(DataError, match="y of 'size' has NaN at row 2, column 1, the only such"):
        data.as_dataset((np.ones((3, 1)), {"kind": [0, 1, 0], "size": y}))


def test_what_is_missing_in_a_sequence_is_named_by_its_step_and_feature():
    x = np.ones((3, 5, 2))
    x[1, 2, 0] = np.nan
    with pytest.raises(DataError, match=r"x has NaN at row 1, x\[1, 2, 0\], the only such value"):
        data.as_dataset((x, np.ones((3, 1))))


def test_what_fills_a_sequence_up_is_not_counted():
    x, each = [np.ones((1, 2)), np.ones((6, 2))], [np.zeros(1, int), np.zeros(6, int)]
    bad = [np.array([[np.nan, 1.0]]), x[1]]
    with pytest.raises(DataError, match=r"x has NaN at row 0, x\[0, 0, 0\], the only such value"):
        data.sequences(bad)
    with pytest.raises(DataError, match="y has NaN at row 0, column 0, the only such value"):
        data.sequences(x, bad)
    with pytest.raises(DataError, match="y of 'a' has NaN at row 0, column 0, the only such value"):
        data.sequences(x, {"a": bad, "b": each})
    large = data.sequences([np.array([[1e300, 1.0]]), x[1]])
    with pytest.raises(DataError, match="x has 1e.300 at row 0, column 0, the only such value"):
        check_range(large, "float32")
    negative = data.sequences(x, [np.array([-1]), np.array([0, 0, -2, 0, 0, -3])])
    with pytest.raises(DataError, match=r"label -1 in row 0, step 0 is negative \(3 such labels"):
        checks.check_counted(negative)
    one = data.sequences(x, {"a": [each[0], each[1] - (np.arange(6) == 5)], "b": each})
    with pytest.raises(DataError, match=r"a: label -1 in row 1, step 5 .* \(1 such label in all\)"):
        checks.check_counted(one)
    high = data.sequences(x, [each[0], np.array([0, 0, 0, 0, 7, 0])])
    with pytest.raises(DataError, match=r"labels contain 7 \(row 1, step 4\)"):
        data.check_labels(high, 2, "output(2, softmax)")


def test_a_second_array_is_no_name_of_the_data():
    with pytest.raises(DataError, match=r"got ndarray of shape \(3,\); a pair is one argument"):
        as_dataset(np.ones((3, 2)), np.arange(3))


def test_contents_are_looked_at_once_per_dataset(monkeypatch):
    dataset = data.as_dataset(np.ones((3, 2)))
    monkeypatch.setattr(conversion, "check_finite", lambda _: pytest.fail("looked again"))
    assert data.as_dataset(dataset) is dataset
    assert data.as_dataset(dataset[1:]).n_features == 2
    fresh = data.Dataset(np.ones((3, 2)), None)
    with pytest.raises(pytest.fail.Exception, match="looked again"):
        data.as_dataset(fresh)


def far(value: float) -> np.ndarray:
    x = np.random.default_rng(0).random((6, 3))
    x[3, 1] = x[4, 2] = value
    return x


@pytest.mark.parametrize("value", [1e300, -1e39, 3.5e38])
def test_doubles_that_are_infinity_in_float32_are_named(value: float):
    """A model answered NaN, and training diverged by a gradient of unknown reason."""
    data = as_dataset(far(value), "rows.npy")
    said = (
        f"rows.npy: x has {value:g} at row 3, column 1, the first of 2 such values: above 3.4e+38 "
        "it is infinity in float32, in which this network computes; if it marks what is missing "
        'drop those rows or fill them in, else divide the column, or train with Job(..., dtype="'
        'float64")'
    )
    with pytest.raises(DataError, match=f"^{re.escape(said)}$"):
        check_range(data, "float32")
    check_range(data, "float64")
    with pytest.raises(DataError, match="y has .* at row 3, column 1"):
        check_range(as_dataset((np.ones((6, 2)), far(value))), "float32")


def test_what_counts_is_what_the_network_sees():
    check_range(as_dataset(far(3e38)), "float32")
    check_range(as_dataset(far(1e300), scale=1e-270), "float32")
    with pytest.raises(DataError, match="x has 1e\\+30 times 1e\\+20 at row 3"):
        check_range(as_dataset(far(1e30), scale=1e20), "float32")
    mean, std = np.full(3, 1e40), np.full(3, 1e39)
    near = as_dataset(far(1.2e40)).with_fields(normalization=Normalization(mean, std))
    check_range(near, "float32")
    small = near.with_fields(normalization=Normalization(np.zeros(3), np.full(3, 1e-5)))
    with pytest.raises(DataError, match="x has 1.2e\\+40 at row 3, column 1"):
        check_range(small, "float32")


def test_rows_behind_the_first_chunk_are_checked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks, "CHUNK_VALUES", 6)
    with pytest.raises(DataError, match="x has 1e\\+300 at row 3, column 1, the first of 2 such"):
        check_range(as_dataset(far(1e300)), "float32")


def test_large_finite_values_pass():
    data.check_finite(data.Dataset(np.full((2, 2), np.finfo(np.float32).max, np.float32), None))


def test_as_many_labelled_rows_as_features_are_not_taken_for_one_sample():
    dataset = data.as_dataset((np.ones((2, 1)), np.array([0, 1])), "x.csv")
    with pytest.raises(DataError, match="Pass the same 2 features in the same order$"):
        data.check_features(dataset, 2, "this model", (2,))


def test_wrong_feature_count():
    dataset = data.as_dataset(np.ones((5, 784)), "mnist:train")
    data.check_features(dataset, 784)
    with pytest.raises(DataError) as caught:
        data.check_features(dataset, 64)
    assert str(caught.value) == (
        "mnist:train: input has 784 features per sample, but the network declares input(64); "
        "x.shape is (5, 784). Use net.input(784) or pass matching data"
    )
    pictures = data.as_dataset(np.ones((5, 6, 6, 3)), "x")
    with pytest.raises(DataError, match=r"Use net.input\(\(6, 6, 3\)\) or pass matching data"):
        data.check_features(pictures, 64)


@pytest.mark.parametrize(
    "shape, sample, remedy",
    [
        ((5, 63), (64,), "Pass the same 64 features in the same order"),
        ((5, 65), (64,), "Pass the same 64 features in the same order; if the column too many has "
         "labels, or numbers the rows, leave it out (of a .csv file: --label, --ids)"),
        ((4, 4, 4), (4, 4, 4), "It is one sample: pass x[None]"),
        ((4, 5), (4, 5, 1), "It is one sample: pass x[None]"),
        ((2, 6, 6, 3), (8, 8, 1), "Pass samples of shape (8, 8, 1), as horn.data.images(..., "
         "size=(8, 8))"),
        ((2, 8, 8, 1), (8, 8, 3), "Pass samples of shape (8, 8, 3): with 3 channels each, as "
         "Pillow's image.convert('RGB') makes them"),
        ((2, 8, 8, 3), (8, 8, 1), "Pass samples of shape (8, 8, 1): with 1 channel each, as "
         "Pillow's image.convert('L') makes them"),
    ],
)  # fmt: skip
def test_what_a_model_has_not_learned_is_answered_with_other_data(
    shape: tuple[int, ...], sample: tuple[int, ...], remedy: str
):
    dataset = data.as_dataset(np.ones(shape), "x")
    with pytest.raises(DataError) as caught:
        data.check_features(dataset, np.prod(sample), "this model", sample)
    assert str(caught.value) == (
        f"x: {dataset.n_features} features per sample, but this model learned from "
        f"{np.prod(sample)}; "
        f"x.shape is {shape}. {remedy}"
    )


def test_labels_outside_the_output_range():
    dataset = data.as_dataset((np.ones((4, 2)), [0, 10, 3, 3]))
    data.check_labels(dataset, 11, "output(11, softmax)")
    with pytest.raises(DataError) as caught:
        data.check_labels(dataset, 10, "output(10, softmax)")
    assert str(caught.value) == (
        "data: labels contain 10 (row 1), but output(10, softmax) has classes 0..9; "
        "found 3 distinct labels. Use net.output(11, ...) or remap y"
    )


def test_labels_that_are_missing_negative_or_one_hot():
    x = np.ones((2, 2))
    with pytest.raises(DataError, match="there are no labels, but output.* pass the pair"):
        data.check_labels(data.Dataset(x, None), 3, "output(3, softmax)")
    with pytest.raises(DataError, match="label -2 in row 0 is negative"):
        data.check_labels(data.Dataset(x, np.array([-2, 1])), 3, "output(3, softmax)")
    with pytest.raises(DataError, match=r"for one-hot rows write y.argmax\(axis=1\)"):
        data.check_labels(data.Dataset(x, np.eye(2)), 2, "output(2, softmax)")


def test_labels_that_a_network_counts_are_not_negative():
    net = horn.Network()
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    x, y, z = np.ones((3, 2)), np.array([0, -1, -1]), np.array([0, 1, 1])
    for what, given in (("data", {"data": (x, y)}), ("data", {"data": (x, y), "validation": 0.4}),
                        ("test", {"data": (x, z), "test": (x, y)})):  # fmt: skip
        with pytest.raises(DataError) as caught:
            horn.Job(net, **given)
        assert str(caught.value) == (
            f"{what}: label -1 in row 1 is negative (2 such labels in all); classes count from 0, "
            "so remap y; numbers to be learned are a column, y.reshape(-1, 1)"
        )
    with pytest.raises(DataError, match="^data: label -1 in row 1 is negative"):
        horn.Model(net, net.initial_parameters()).evaluate(x, y)


def test_targets_of_another_width():
    dataset = data.as_dataset((np.ones((2, 2)), np.ones((2, 3))))
    data.check_targets(dataset, 3, "output(3, identity)")
    with pytest.raises(DataError, match=r"y has shape \(2, 3\), .* of shape \(2, 1\); use a match"):
        data.check_targets(dataset, 1, "output(1, identity)")
    with pytest.raises(DataError, match="there are no targets, but output.* needs 1 numbers"):
        data.check_targets(data.Dataset(dataset.x, None), 1, "output(1, identity)")


@pytest.mark.parametrize("path", ["rows.npz", Path("rows.npz")])
def test_a_path_is_no_data_and_says_how_to_read_it(path):
    with pytest.raises(DataError) as caught:
        data.as_dataset(path)
    assert str(caught.value) == (
        "data: got the path 'rows.npz', but arrays or a dataset are expected; read the file with "
        "horn.data.load('rows.npz')"
    )


def masked(*places, shape=(4, 3), of=0.0):
    array = np.ma.array(np.full(shape, of), mask=np.zeros(shape, bool))
    for place in places:
        array[place] = np.ma.masked
    return array


def of_sequences():
    net = horn.Network(seed=1)
    below = net.input(3, steps=2)
    net.output(2, activation="softmax", loss="cross_entropy", inputs=[below, horn.Delayed()])
    return net


def test_masked_values_are_not_read_through_their_mask():
    with pytest.raises(DataError) as caught:
        data.as_dataset((masked((1, 2), (3, 0)), np.arange(4)))
    assert str(caught.value) == (
        "data: x is masked at row 1, column 2, the first of 2 masked values; drop those rows or "
        "fill them in, as .filled(number) does"
    )
    assert data.as_dataset(masked()).x.shape == (4, 3)  # nothing is


@pytest.mark.parametrize(
    "given, place",
    [
        ((np.zeros((4, 3)), masked(2, shape=4, of=1)), "data: y is masked at row 2, the only such"),
        ((np.zeros((4, 3)), {"a": masked(0, shape=4, of=1)}), "data: a: y is masked at row 0, the"),
        (
            [masked(1, shape=3), masked(shape=3), masked(shape=3)],
            r"data: x\[0\] is masked at row 1, the only such",
        ),
        ([[1.0, np.ma.masked]], "data: x has NaN at row 0, column 1"),
        (masked((1, 1, 0), shape=(2, 2, 2)), r"data: x is masked at \(1, 1, 0\), the only such"),
    ],
)
@pytest.mark.filterwarnings("ignore:Warning. converting a masked element:UserWarning")
def test_nor_of_labels_and_lists(given, place):
    with pytest.raises(DataError, match=place):
        data.as_dataset(given)


@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_numbers_that_a_scale_makes_infinite_are_refused_in_any_type(kind):
    x = np.full((2, 2), 200, kind)
    check_range(as_dataset(x, scale=1e36), "float32")
    with pytest.raises(
        DataError, match=r"x has 200 times 1e\+37 at row 0, column 0, the first of 4"
    ):
        check_range(as_dataset(x, scale=1e37), "float32")


def test_nor_of_sequences_streams_weights_and_datasets():
    x, y = masked((1, 1, 0), shape=(4, 2, 3)), np.arange(4) % 2
    with pytest.raises(DataError, match=r"x is masked at \(1, 1, 0\), the only such value"):
        horn.Job(of_sequences(), (x, y))
    with pytest.raises(DataError, match="y is masked at row 3"):
        horn.Job(of_sequences(), (np.zeros((4, 2, 3)), masked(3, shape=4).astype(int)))
    with pytest.raises(DataError, match="sequences: x is masked at"):
        data.sequences(x, y)
    with pytest.raises(DataError, match=r"sequences: x\[1\] is masked at row 1, column 0"):
        data.sequences([*x], y)
    with pytest.raises(DataError, match="pieces: x is masked at"):
        data.lanes.whole(x, 3, {"": (True, 2)}, "pieces")
    with pytest.raises(DataError, match="x is masked at row 1, column 2"):
        data.stream.as_stream(lambda: iter([masked((1, 2))]), "stream")
    with pytest.raises(DataError, match="data: x is masked at row 1, column 2"):
        data.Dataset(masked((1, 2)), None, 1.0, "data")
    model = horn.train(horn.Job(of_sequences(), (x.filled(), y), epochs=1), progress=False).model
    with pytest.raises(DataError, match="stream: x is masked at row 0, the only such value"):
        model.stream()(masked(0, shape=3))


def test_nor_by_the_estimators_of_scikit_learn():
    estimators = pytest.importorskip("horn.sklearn")
    with pytest.raises(ValueError, match="X is masked at row 1, column 2, the only such value"):
        estimators.HornClassifier().fit(masked((1, 2)), np.arange(4) % 2)


def test_tuples_are_labels_where_numpy_keeps_them_together():
    x, pairs = np.zeros((2, 3)), [("b", 2), ("a", 1)]
    assert data.as_dataset((x, np.fromiter(pairs, object))).classes == (("a", 1), ("b", 2))
    with pytest.raises(DataError, match=r"for tuples as labels write np.fromiter\(y, object\)"):
        data.as_dataset((x, pairs))
    assert data.as_dataset((x, [(1, 2), (3, 4)])).y.shape == (2, 2)


@pytest.mark.cluster
def test_nobody_imports_masked_arrays_to_look_for_masks():
    """Each task would, at its start."""
    code = (
        "import sys; from horn.data import as_dataset; as_dataset(([[0.0, 1.0]], [1])); "
        "print('numpy.ma' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


MOVES = "numpy.transpose, which moves axes, and x.reshape only after it"


@pytest.mark.parametrize(
    ("given", "expected", "own", "learned"),
    [
        ((4, 4, 3), (3, 4, 4), "net.input((4, 4, 3))", "x.transpose(0, 3, 1, 2)"),
        ((5, 4, 3), (3, 5, 4), "net.input((5, 4, 3))", "x.transpose(0, 3, 1, 2)"),
        ((3, 4, 4), (4, 4, 3), "x.transpose(0, 2, 3, 1)", "x.transpose(0, 2, 3, 1)"),
        ((5, 3, 4), (5, 4, 3), "x.transpose(0, 1, 3, 2)", "x.transpose(0, 1, 3, 2)"),
        ((2, 8), (4, 4), "net.input((2, 8)), or x.reshape(-1, 4, 4)", "x.reshape(-1, 4, 4)"),
        ((1, 5, 4), (4, 5), MOVES, MOVES),
    ],
)  # fmt: skip
def test_moved_axes_are_never_answered_with_a_reshape_that_mixes_them(
    given: tuple[int, ...], expected: tuple[int, ...], own: str, learned: str
) -> None:
    for by, remedy in (("", own), ("this model", learned)):
        with pytest.raises(DataError, match=f"; write {re.escape(remedy)}$"):
            checks.check_sample_shape(given, expected, "x", by)
    if "transpose" in learned and "numpy" not in learned:
        axes = [int(n) for n in learned[len("x.transpose(") : -1].split(",")]
        assert np.ones((2, *given)).transpose(axes).shape == (2, *expected)
