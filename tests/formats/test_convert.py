"""A CSV file becomes mapped arrays without being in memory."""

import numpy as np
import pytest

import horn
from horn import data
from horn.errors import DataError, NotFound
from horn.formats import csv
from tests.support.room import no_room


@pytest.mark.parametrize("label, kind", [("cat", "U"), ("1", "i"), ("0.5", "f")])
def test_what_is_converted_is_what_is_loaded(tmp_path, monkeypatch, label, kind):
    monkeypatch.setattr(csv, "CHUNK_LINES", 3)
    path = tmp_path / "rows.csv"
    path.write_text("id,a,b,y\n" + "".join(f"r{k},{k},{k / 8},{label}\n" for k in range(10)))
    folder = data.convert(path, tmp_path / "rows")
    found, expected = data.load(folder), data.load(str(path))
    assert isinstance(np.load(tmp_path / "rows" / "x.npy", mmap_mode="r"), np.memmap)
    assert found.x.dtype == np.float64 and not found.x.flags.writeable
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.y, expected.y)
    assert found.classes == expected.classes
    assert found.feature_names == expected.feature_names == ("a", "b")
    assert data.load(f"{folder}/x.npy,{folder}/y.npy").feature_names == ("a", "b")
    assert data.load(f"{folder}/x.npy").feature_names == ("a", "b")
    assert found.y.dtype.kind == ("i" if kind == "U" else kind)
    with pytest.raises(DataError, match="x.npy is there already; name another folder"):
        data.convert(path, tmp_path / "rows")


def test_the_home_folder_is_meant_by_a_tilde_as_it_is_of_load(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "rows.csv").write_text("1,2,0\n3,4,1\n")
    assert data.convert("~/rows.csv", "~/rows") == str(tmp_path / "rows")
    assert data.load("~/rows").y.tolist() == data.load("~/rows.csv").y.tolist() == [0, 1]
    (tmp_path / "a.txt").write_text("hello world")
    assert data.text("~/a.txt").name == "a.txt"


def test_a_wrong_line_leaves_nothing(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("1,2,0\n1,x,0\n")
    with pytest.raises(DataError, match="line 2: column 2 is 'x'"):
        data.convert(path, tmp_path / "rows")
    with pytest.raises(DataError, match="line 2: column 2 is 'x'"):
        data.convert(path, tmp_path / "new" / "rows")
    (tmp_path / "old").mkdir()
    with pytest.raises(DataError, match="line 2: column 2 is 'x'"):
        data.convert(path, tmp_path / "old")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["old", "rows.csv"]
    with pytest.raises(NotFound, match="no such file"):
        data.convert(tmp_path / "other.csv", tmp_path / "rows")
    with pytest.raises(DataError, match='dtype is "float32" or "float64", got .int8'):
        data.convert(path, tmp_path / "rows", dtype="int8")


def test_a_number_too_large_for_the_type_is_refused_with_its_line(tmp_path):
    """It was infinity in the file, which was written all the same."""
    path = tmp_path / "rows.csv"
    path.write_text("a,b,label\nname,1.0,x\nother,1e300,y\n")
    with pytest.raises(DataError, match=r"rows.csv, line 3: column 2 is 1e\+300, which is infinit"):
        data.convert(path, tmp_path / "rows", dtype="float32")
    assert not (tmp_path / "rows").exists()
    assert data.load(data.convert(path, tmp_path / "rows")).x[1] == 1e300


def test_digits_are_kept_unless_half_the_room_is_asked_for(tmp_path):
    """Times in seconds were 128 seconds apart or the same."""
    path, times = tmp_path / "rows.csv", [[1.7e9], [1.7e9 + 3], [0.1]]
    path.write_text("".join(f"{time!r}\n" for [time] in times))
    found = data.load(data.convert(path, tmp_path / "rows", labels=False))
    assert found.x.tolist() == times and found.y is None and found.feature_names == ()
    found = data.load(data.convert(path, tmp_path / "half", labels=False, dtype="float32"))
    assert found.x.dtype == np.float32
    np.testing.assert_array_equal(found.x, np.array(times, np.float32))


@pytest.mark.parametrize("size_bytes", [0, 250, 400])
def test_a_full_disk_leaves_nothing_and_a_second_try_works(tmp_path, size_bytes):
    """It left y.npy, and then: y.npy is there already. x.npy takes 672 bytes, y.npy 288."""
    path = tmp_path / "rows.csv"
    path.write_text("a,b,c,y\n" + "1,2,3,0\n" * 20)
    with (
        no_room(size_bytes),
        pytest.raises(DataError, match=r"rows: cannot be written \(File too large\)"),
    ):
        data.convert(path, tmp_path / "rows")
    assert not (tmp_path / "rows").exists()
    found = data.load(data.convert(path, tmp_path / "rows"))
    assert found.feature_names == ("a", "b", "c") and found.x.tolist() == [[1, 2, 3]] * 20


@pytest.mark.parametrize("name", ["y.npy", "x.names.txt"])
def test_what_would_be_read_with_the_arrays_is_not_mixed_with_them(tmp_path, name):
    (tmp_path / name).write_text("old")
    (tmp_path / "rows.csv").write_text("1,2\n")
    with pytest.raises(DataError, match=f"{name} is there already; name another folder"):
        data.convert(tmp_path / "rows.csv", tmp_path, labels=False)


def test_a_model_of_converted_data_knows_the_columns(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,y\n1,2.5,0\n3,4,1\n")
    (tmp_path / "swapped.csv").write_text("b,a,y\n2.5,1,0\n4,3,1\n")
    net = horn.Network()
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    folder = data.convert(tmp_path / "rows.csv", tmp_path / "rows")
    model = horn.train(horn.Job(net, data.load(folder), epochs=1), progress=False).model
    with pytest.raises(DataError, match="another order, 'b' where 'a' was. Pass 'a', 'b', in this"):
        model.evaluate(data.load(str(tmp_path / "swapped.csv")))
