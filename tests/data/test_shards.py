"""Folders of shards: joined in order, or the file that does not fit is named."""

import numpy as np
import pytest

from horn.data import load
from horn.errors import DataError


def test_shards_are_joined_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 2, 1):
        rows = np.full((number, 3), number, np.uint8)
        np.savez(tmp_path / f"shard-{number}.npz", x=rows, y=np.full(number, number))

    dataset = load(str(tmp_path))

    assert dataset.y.tolist() == [1] + [2] * 2 + [10] * 10
    np.testing.assert_array_equal(dataset.x[:, 0], dataset.y)
    assert (dataset.x.dtype, dataset.scale) == (np.uint8, 1 / 255)


def test_npy_shards_find_their_labels(tmp_path):
    for part in ("a", "b"):
        np.save(tmp_path / f"x-{part}.npy", np.ones((2, 2, 2), np.float32))
        np.save(tmp_path / f"y-{part}.npy", np.array([0, 1]))
    assert load(str(tmp_path)).x.shape == (4, 4)
    assert load(str(tmp_path)).y.tolist() == [0, 1, 0, 1]
    assert load(str(tmp_path), labels=False).y is None


def test_a_single_npy_shard_stays_in_its_file(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 2), np.float32))
    assert not load(str(tmp_path)).x.flags.writeable


def test_csv_shards_may_differ_in_whole_numbers(tmp_path):
    (tmp_path / "1.csv").write_text("1,2,0\n")
    (tmp_path / "2.csv").write_text("1.5,2,1\n")
    dataset = load(str(tmp_path))
    assert dataset.x.tolist() == [[1, 2], [1.5, 2]]
    assert dataset.scale == 1.0


def test_shards_may_be_tab_separated(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.tsv").write_text("1\t2\t0\n")
    assert load(str(tmp_path)).x.tolist() == [[1, 2]] * 2


def test_a_folder_without_shards(tmp_path):
    (tmp_path / "readme.txt").write_text("nothing here")
    with pytest.raises(DataError) as caught:
        load(str(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path}: is a folder without shards; put *.npz, x*.npy with y*.npy, *.csv, *.tsv "
        f"there, or a folder of pictures for each class, or name a data set that horn knows, as in "
        f"mnist:test"
    )


def test_several_formats(tmp_path):
    (tmp_path / "1.csv").write_text("1,2,0\n")
    np.savez(tmp_path / "2.npz", x=np.ones((1, 2)))
    with pytest.raises(DataError, match=r"several formats \(\*\.npz, \*\.csv\); keep one of them"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    "second, words",
    [
        (
            {"x": np.ones((2, 4)), "y": [0, 1]},
            "x is float64 with (4,) numbers per sample, but 1.npz",
        ),
        ({"x": np.ones((2, 3), "u1"), "y": [0, 1]}, "x is uint8 with (3,) numbers per sample"),
        ({"x": np.ones((2, 3))}, "has no labels, but 1.npz has labels; give labels to all shards"),
        ({"x": np.ones((2, 3)), "y": np.ones((2, 1))}, "y is float64 with (1,) numbers per"),
        ({"x": np.ones((2, 3)), "y": [0]}, "x has 2 samples, but y has 1; pass one label"),
        ({"x": np.ones((0, 3)), "y": []}, "so it is empty"),
    ],
)
def test_the_shard_that_does_not_fit_is_named(tmp_path, second, words):
    np.savez(tmp_path / "1.npz", x=np.ones((2, 3)), y=np.array([0, 1]))
    np.savez(tmp_path / "2.npz", **second)
    with pytest.raises(DataError) as caught:
        load(str(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path / '2.npz'}: ")
    assert words in str(caught.value)
