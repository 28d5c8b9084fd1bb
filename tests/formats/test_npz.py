""".npz files: x and y, by part, never unpickled."""

import numpy as np
import pytest

from horn.data import load
from horn.errors import DataError, NotFound
from horn.formats import npz


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_x_and_y_are_read(tmp_path, save):
    path = tmp_path / "rows.npz"
    save(path, x=np.ones((3, 2), np.float32), y=np.array([2, 1, 0], np.uint8))
    dataset = load(str(path))
    assert (dataset.x.dtype, dataset.y.dtype) == (np.float32, np.int64)
    assert dataset.y.tolist() == [2, 1, 0]
    assert load(str(path), labels=False).y is None


def test_parts_are_chosen_by_name(tmp_path):
    path = tmp_path / "rows.npz"
    np.savez(path, x_train=np.ones((3, 2)), x_test=np.zeros((1, 2)), y_test=np.array([5]))
    assert len(load(str(path))) == len(load(f"{path}:train")) == 3
    assert load(f"{path}:test").y.tolist() == [5]


def test_an_archive_without_x(tmp_path):
    np.savez(tmp_path / "rows.npz", images=np.ones((3, 2)))
    with pytest.raises(
        DataError, match=r"has no array 'x' \(it has images\); write it with np.sav"
    ):
        load(str(tmp_path / "rows.npz"))


def test_weights_of_samples_are_those_of_the_loss(tmp_path):
    """They were left out, and every sample counted as much."""
    weight, path = np.array([1.0, 0.0, 2.5], np.float32), tmp_path / "rows.npz"
    np.savez(path, x=np.ones((3, 2)), y=np.arange(3), sample_weight=weight,
             x_test=np.ones((1, 2)), sample_weight_test=[1, 2])  # fmt: skip
    np.testing.assert_array_equal(load(str(path)).weight, weight)
    assert load(str(path), labels=False).weight is None
    with pytest.raises(DataError, match=r"sample_weight is float64 of shape \(2,\), but \(1,\)"):
        load(f"{path}:test")


def test_inputs_by_name_are_one_array(tmp_path):
    np.savez(tmp_path / "rows.npz", **{"x.a": np.ones((3, 2)), "x.b": np.ones((3, 1))})
    with pytest.raises(DataError, match=r"no array 'x' .*all inputs side by side in the order of"):
        load(str(tmp_path / "rows.npz"))


def test_objects_are_refused_and_never_unpickled(tmp_path):
    np.savez(tmp_path / "rows.npz", x=np.array([[None]], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="array 'x' holds Python objects, which horn never unpickl"):
        load(str(tmp_path / "rows.npz"))


def test_damaged_archives(tmp_path):
    path = tmp_path / "rows.npz"
    path.write_bytes(b"PK, but no zip archive")
    with pytest.raises(DataError, match="is damaged or no .npz file"):
        npz.read(path)
    np.savez(path, x=np.zeros((50, 50)))
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="is damaged or no .npz file .Bad CRC"):
        npz.read(path)


def changed(content, place, value):
    """An archive with a byte of its first entry in the directory changed."""
    found = bytearray(content)
    found[found.index(b"PK\1\2") + place] = value
    return bytes(found)


@pytest.mark.parametrize(
    ("place", "value"),
    [(6, 99), (8, 1), (8, 32), (10, 99)],
    ids=["version", "key", "patch", "kind"],
)
def test_an_archive_that_asks_for_what_no_reader_has_is_damaged(tmp_path, place, value):
    path = tmp_path / "rows.npz"
    np.savez(path, x=np.ones((3, 2)), y=np.zeros(3, int))
    path.write_bytes(changed(path.read_bytes(), place, value))
    with pytest.raises(DataError, match=r"is damaged or no .npz file"):
        npz.read(path)


def test_missing_file(tmp_path):
    with pytest.raises(NotFound, match="no such file"):
        npz.read(tmp_path / "rows.npz")
