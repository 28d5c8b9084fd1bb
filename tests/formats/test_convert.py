"""A CSV file becomes mapped arrays without being in memory."""

import numpy as np
import pytest

from horn import data
from horn.errors import DataError, NotFound
from horn.formats import csv


@pytest.mark.parametrize("label, kind", [("cat", "U"), ("1", "i"), ("0.5", "f")])
def test_what_is_converted_is_what_is_loaded(tmp_path, monkeypatch, label, kind):
    monkeypatch.setattr(csv, "CHUNK_LINES", 3)
    path = tmp_path / "rows.csv"
    path.write_text("id,a,b,y\n" + "".join(f"r{k},{k},{k / 8},{label}\n" for k in range(10)))
    folder = data.convert(path, tmp_path / "rows")
    found, expected = data.load(folder), data.load(str(path))
    assert isinstance(np.load(tmp_path / "rows" / "x.npy", mmap_mode="r"), np.memmap)
    assert found.x.dtype == np.float32 and not found.x.flags.writeable
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.y, expected.y)
    assert found.classes == expected.classes
    assert found.y.dtype.kind == ("i" if kind == "U" else kind)
    with pytest.raises(DataError, match="x.npy is there already; name another folder"):
        data.convert(path, tmp_path / "rows")


def test_a_wrong_line_leaves_nothing(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("1,2,0\n1,x,0\n")
    with pytest.raises(DataError, match="line 2: column 2 is 'x'"):
        data.convert(path, tmp_path / "rows")
    assert list((tmp_path / "rows").iterdir()) == []
    with pytest.raises(NotFound, match="no such file"):
        data.convert(tmp_path / "other.csv", tmp_path / "rows")
    with pytest.raises(DataError, match='dtype is "float32" or "float64", got .int8'):
        data.convert(path, tmp_path / "rows", dtype="int8")


def test_doubles_are_kept(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("0.1\n0.2\n")
    found = data.load(data.convert(path, tmp_path / "rows", labels=False, dtype="float64"))
    assert found.x.tolist() == [[0.1], [0.2]] and found.y is None
