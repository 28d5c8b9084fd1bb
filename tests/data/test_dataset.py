"""The dataset contract: what is kept as it is, what becomes what, and how a batch is read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horn import data
from horn.errors import DataError


def test_float_arrays_are_kept_without_a_copy():
    x = np.ones((5, 3), np.float32)
    y = np.arange(5)

    dataset = data.as_dataset((x, y))

    assert np.shares_memory(dataset.x, x) and np.shares_memory(dataset.y, y)
    assert (len(dataset), dataset.n_features, dataset.scale) == (5, 3, 1.0)


def test_a_dataset_is_returned_itself():
    digits = data.digits("test")
    assert data.as_dataset(digits) is digits


def test_memory_mapped_rows_stay_in_the_file(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((4, 2), np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")

    dataset = data.as_dataset(mapped)

    assert dataset.y is None
    assert np.shares_memory(dataset.x, mapped) and not dataset.x.flags.writeable


@pytest.mark.parametrize(
    "given_type, kept, scale",
    [
        ("u1", "u1", 1 / 255),
        ("?", "u1", 1.0),
        ("i2", "f4", 1.0),
        ("f2", "f4", 1.0),
        ("i8", "f8", 1.0),
        (">f4", "f4", 1.0),
        ("f8", "f8", 1.0),
    ],
)
def test_types_and_scale(given_type, kept, scale):
    dataset = data.as_dataset(np.ones((2, 3), given_type))
    assert (dataset.x.dtype, dataset.scale) == (np.dtype(kept), scale)
    np.testing.assert_array_equal(dataset.x, np.ones((2, 3)))


def test_a_given_scale_wins_over_that_of_bytes():
    assert data.as_dataset(np.ones((2, 3), np.uint8), scale=1 / 16).scale == 1 / 16


def test_the_arrays_of_digits_mean_the_same_as_digits():
    digits = data.digits("test")
    again = data.as_dataset((digits.x, digits.y))
    rows = np.arange(len(digits))
    read = [d.read(rows, np.empty((len(d), 64))) for d in (digits, again)]
    assert np.array_equal(*read) and (read[0].min(), read[0].max()) == (0, 1)
    assert np.array_equal(read[0] * 16, np.round(read[0] * 16))


def test_a_single_column_may_have_any_stride():
    column = np.arange(6.0)[::2, None]
    dataset = data.as_dataset(column)
    assert np.shares_memory(dataset.x, column)
    assert dataset[::2].x.tolist() == [[0], [4]]


def test_further_axes_are_flattened():
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(data.as_dataset(images).x, images.reshape(2, 12))


def test_columns_that_are_not_contiguous_are_made_so():
    x = np.asfortranarray(np.arange(12.0).reshape(4, 3))
    dataset = data.as_dataset(x)
    assert dataset.x.strides == (24, 8)
    np.testing.assert_array_equal(dataset.x, x)


def test_two_axes_of_integers_are_targets():
    dataset = data.as_dataset((np.ones((2, 3)), np.array([[1, 0], [0, 1]])))
    assert dataset.y.dtype == np.float64


def test_one_axis_of_floats_is_one_target_per_sample():
    for y in (np.array([0.0, 1.0, 2.0], np.float32), [0.5, 1.0, 2.0], np.array([0.5, 1, 2], "f2")):
        found = data.as_dataset((np.ones((3, 2)), y))
        assert found.y.shape == (3, 1) and not found.has_labels and found.y.dtype.kind == "f"
        np.testing.assert_array_equal(found.y[:, 0], y)


def test_slices_are_views_that_keep_scale_and_name():
    digits = data.digits("test").with_fields(scale=1 / 3)
    part = digits[10:30:2]
    assert (len(part), part.scale, part.name) == (10, 1 / 3, "digits:test")
    assert np.shares_memory(part.x, digits.x) and np.shares_memory(part.y, digits.y)
    assert len(digits.take(7)) == 7


@settings(max_examples=40)
@given(st.integers(2, 60), st.floats(0.05, 0.95), st.integers(0, 2**64 - 1))
def test_split_gives_each_sample_to_exactly_one_part(n, fraction, seed):
    n_held_out = round(n * fraction)
    if not 0 < n_held_out < n:
        return
    whole = data.as_dataset((np.arange(n, dtype=np.float32)[:, None], np.arange(n)))

    first, second = whole.split(fraction, seed)

    assert len(second) == n_held_out
    assert sorted([*first.y, *second.y]) == list(range(n))
    np.testing.assert_array_equal(first.x[:, 0], first.y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("stored", [np.uint8, np.float32, np.float64])
def test_read_converts_then_scales_once(dtype, stored):
    x = np.arange(20).reshape(5, 4).astype(stored)
    dataset = data.Dataset(x, None, scale=1 / 3)
    rows, out = np.array([4, 0, 4]), np.full((3, 4), np.nan, dtype)

    assert dataset.read(rows, out) is out

    np.testing.assert_array_equal(out, x[rows].astype(dtype) * dtype(1 / 3))


@pytest.mark.parametrize(
    "x, y, words",
    [
        ([], None, "data: x has shape (0,), but (samples, features) is expected"),
        (np.ones((0, 3)), None, "so it is empty; pass at least one sample"),
        (np.ones((3, 0)), None, "so it is empty; pass at least one sample"),
        (np.ones(4), None, "write x.reshape(1, -1) for one sample"),
        ([[1, 2], [3]], None, "data: x is not a rectangular array"),
        (np.array([["a", "b"]]), None, "data: x holds text, but numbers are expected"),
        (np.array([[None, 1]]), None, "data: x holds Python objects, but numbers are expected"),
        (np.ones((2, 2), complex), None, "data: x holds complex numbers, but numbers are"),
        (np.ones((3, 2)), [0, 1], "data: x has 3 samples, but y has 2; pass one label or"),
        (np.ones((2, 2)), [0, np.nan], "data: y has NaN at row 1, column 0"),
        (np.ones((2, 2)), ["cat", None], "data: y has no label in row 1 (1 such row in all)"),
        (np.ones((2, 2)), [[1], [2, 3]], "data: y is not a rectangular array"),
        (np.ones((2, 2)), np.ones(()), "data: y is one number, but (samples,) labels or"),
        (np.ones((2, 2)), np.ones((2, 0)), "data: y has shape (2, 0), so there is nothing to"),
        (np.ones((2, 2)), np.array([0, 2**63], np.uint64), "label 9223372036854775808 in row 1 is"),
    ],
)
def test_what_does_not_fit_is_named(x, y, words):
    with pytest.raises(DataError) as caught:
        data.as_dataset((x, y))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"x": [[1.0]]}, "data: x is .*, but an array is expected; write numpy.array"),
        ({"y": [1, 2]}, "data: y is .*, but an array"),
        ({"weight": [1, 2]}, "data: weight is .*, but an array"),
        ({"scale": "1"}, "data: scale is '1'; give what one unit of x is worth"),
        ({"scale": np.ones(2)}, r"data: scale is array\(\[1., 1.\]\); give what one"),
    ],
)
def test_what_is_no_array_and_no_number_is_said_to_be_none(fields, said):
    with pytest.raises(DataError, match=said):
        data.Dataset(**{"x": np.ones((2, 1)), "y": None} | fields)


def test_arrays_that_need_converting_are_refused_by_the_constructor():
    with pytest.raises(DataError, match=r"as_dataset\(\(x, y\)\) converts it"):
        data.Dataset(np.ones((2, 2), int), None)
    with pytest.raises(DataError, match=r"as_dataset\(\(x, y\)\) converts it"):
        data.Dataset(np.ones((2, 2)), np.ones(2))
    with pytest.raises(DataError, match="scale is 0; give what one unit of x is worth"):
        data.Dataset(np.ones((2, 2)), None, scale=0)


def test_taking_more_than_there_is_is_refused():
    dataset = data.as_dataset(np.ones((5, 1)))
    with pytest.raises(DataError, match="asked for the first 6 samples of 5; take 1 to 5"):
        dataset.take(6)
    with pytest.raises(DataError, match="asked for the first '2' samples of 5"):
        dataset.take("2")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"split\(half\) of 5 samples leaves one part empty"):
        dataset.split("half")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"split\(1\) of 5 samples leaves one part empty"):
        dataset.split(1)
    with pytest.raises(DataError, match="it is empty"):
        dataset[5:]
    with pytest.raises(TypeError, match="index with a slice"):
        dataset[0]


def test_tensors_with_gradients_and_of_bfloat16_are_their_numbers():
    torch = pytest.importorskip("torch")
    x = torch.arange(24.0).reshape(4, 2, 3)
    wanted = data.as_dataset((x, torch.tensor([0, 1, 0, 1])))
    flows = x.clone().requires_grad_()
    others = flows, torch.nn.Parameter(x), x.bfloat16(), torch._neg_view(-x), list(flows)
    for other in (*others, list(x.bfloat16())):
        found = data.as_dataset((other, list(torch.tensor([0, 1, 0, 1]))))
        np.testing.assert_array_equal(found.x, wanted.x)
        assert found.x.dtype == np.float32 and found.shape == (2, 3)
        np.testing.assert_array_equal(found.y, wanted.y)
    stream = data.Stream(lambda: iter([(x.bfloat16(), torch.tensor([0, 1, 0, 1]))]), samples=4)
    np.testing.assert_array_equal(stream.whole().x, wanted.x)
    with pytest.raises(DataError, match="Sparse layout tensor .*to_dense"):
        data.as_dataset(x.to_sparse())


def test_a_seed_of_more_than_64_bits_is_refused():
    """It gave the parts of its lower 64 bits: 2**64 those of 0."""
    digits = data.digits("test").take(20)
    for seed in (-1, 2**64):
        with pytest.raises(
            DataError, match=rf"split with seed {seed}: it is a whole number from 0, below 2\*\*64"
        ):
            digits.split(0.5, seed)
