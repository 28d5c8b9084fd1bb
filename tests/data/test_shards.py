"""Folders of shards: joined in order, or the file that does not fit is named."""

import numpy as np
import pytest

import horn
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


@pytest.mark.parametrize("targets", [("3.5", "3", "-1"), ("3", "3.5", "4"), ("3", "4", "-1")])
def test_whole_targets_of_one_csv_shard_are_those_of_all(tmp_path, targets):
    for number, target in enumerate(targets):
        (tmp_path / f"{number}.csv").write_text(f"1.5,2,{target}\n2.5,2,{target}\n")
    dataset = load(str(tmp_path))
    assert dataset.y.dtype == np.float64
    assert dataset.y.tolist() == [[float(one)] for one in targets for _ in range(2)]


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


def test_csv_shards_keep_the_names_of_their_columns_and_samples(tmp_path):
    (tmp_path / "1.csv").write_text("plant,a,b,y\nr1,1,2,0\n")
    (tmp_path / "2.csv").write_text("plant,a,b,y\nr2,3.5,4,1\nr3,5,6,0\n")
    found = load(str(tmp_path))
    assert (found.feature_names, found.id_name) == (("a", "b"), "plant")
    assert found.ids.tolist() == ["r1", "r2", "r3"]
    assert found.x.tolist() == [[1, 2], [3.5, 4], [5, 6]]
    (tmp_path / "3.csv").write_text("r4,7,8,1\n")  # by place, as an array
    found = load(str(tmp_path))
    assert (found.feature_names, found.id_name, len(found.ids)) == ((), "id", 4)


def test_csv_shards_with_other_kinds_of_labels_are_refused(tmp_path):
    (tmp_path / "1.csv").write_text("1,2,cat\n")
    (tmp_path / "2.csv").write_text("1,2,0\n")
    with pytest.raises(DataError, match=r"2.csv: its labels are numbers, but those of 1.csv are n"):
        load(str(tmp_path))


def test_lengths_and_weights_of_npz_shards_are_refused(tmp_path):
    """They were left out: sequences had all steps, samples one weight."""
    for name, array in (("lengths", [1, 2]), ("sample_weight", [1.0, 2.0])):
        np.savez(tmp_path / "1.npz", x=np.ones((2, 3)), y=np.array([0, 1]), **{name: array})
        with pytest.raises(DataError, match=f"1.npz: {name} is read from one .npz file, not from"):
            load(str(tmp_path))


@pytest.mark.parametrize(
    "header, words",
    [
        ("b,a,y", "another order, 'b' where 'a' was. Its header is 'b', 'a', 'y', that of 1.csv "
         "'a', 'b', 'y'; give all shards the same columns, in the same order"),
        ("a,c,y", "'c' instead of 'b'. Its header is 'a', 'c', 'y', that of 1.csv"),
        ("a,b,c", "'c' instead of 'y'. Its header is"),
        ("a,y,b", "another order, 'y' where 'b' was. "),
        ("a,b,b,y", "4 columns instead of 3. "),
    ],
)  # fmt: skip
def test_csv_shards_with_other_headers_are_refused(tmp_path, header, words):
    """They were joined by place, so a column was learned from as another."""
    (tmp_path / "0.csv").write_text("5,6,1\n")  # without a header
    (tmp_path / "1.csv").write_text("a,b,y\n1,2,0\n")
    (tmp_path / "2.csv").write_text(header + "\n" + "3," * header.count(",") + "1\n")
    with pytest.raises(DataError) as caught:
        load(str(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path / '2.csv'}: other columns than 1.csv has: ")
    assert words in str(caught.value)


def test_names_of_samples_are_of_all_csv_shards_or_none(tmp_path):
    (tmp_path / "1.csv").write_text("1,2,0\n")
    (tmp_path / "2.csv").write_text("r2,3,4,1\n")
    with pytest.raises(DataError, match=r"2.csv: has names of samples, but 1.csv has none; give"):
        load(str(tmp_path))


def test_a_folder_of_other_columns_is_no_validation_data(tmp_path):
    for folder, header in (("train", "a,b,y"), ("other", "b,a,y")):
        (tmp_path / folder).mkdir()
        for name in ("1.csv", "2.csv"):
            (tmp_path / folder / name).write_text(f"{header}\n1,2,0\n3,4,1\n")
    net = horn.Network()
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    train, other = (load(str(tmp_path / folder)) for folder in ("train", "other"))
    with pytest.raises(DataError, match=r"other: other columns than the training data has: anoth"):
        horn.Job(net, train, validation=other)
    model = horn.train(horn.Job(net, train, epochs=1), progress=False).model
    assert model.feature_names == ("a", "b")
    with pytest.raises(DataError, match="other columns than this model has: another order, 'b'"):
        model.evaluate(other)
