"""Data by a short text: names, files, pairs, and what is said about the rest."""

import gzip
import sys
import types

import numpy as np
import pytest

from horn import data, formats
from horn.errors import DataError, NotFound


def test_known_names_and_their_parts():
    assert len(data.load("digits")) == len(data.load("digits:train")) == 3823
    assert data.load("digits:test").name == "digits:test"
    assert data.load("digits:test", labels=False).y is None


def test_a_known_name_wins_over_a_folder_and_dot_slash_is_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    np.savez(tmp_path / "digits" / "1.npz", x=np.ones((2, 2)))
    assert len(data.load("digits")) == 3823
    assert len(data.load("./digits")) == 2


def test_a_pair_of_files(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
    np.save(tmp_path / "y.npy", np.array([0, 1, 2]))
    spec = f"{tmp_path / 'x.npy'},{tmp_path / 'y.npy'}"
    assert data.load(spec).y.tolist() == [0, 1, 2]
    assert data.load(spec, labels=False).y is None
    assert data.load(str(tmp_path / "x.npy")).y is None


def test_a_pair_of_idx_files(tmp_path):
    head = bytes([0, 0, 8])
    (tmp_path / "a-images-idx2-ubyte").write_bytes(head + b"\x02\0\0\0\x02\0\0\0\x03" + bytes(6))
    (tmp_path / "b.idx.gz").write_bytes(gzip.compress(head + b"\x01\0\0\0\x02" + b"\x07\x08"))
    dataset = data.load(f"{tmp_path / 'a-images-idx2-ubyte'},{tmp_path / 'b.idx.gz'}")
    assert dataset.x.shape == (2, 3) and dataset.scale == 1 / 255
    assert dataset.y.tolist() == [7, 8]


def test_a_file_whose_name_has_a_comma_or_a_colon(tmp_path):
    for name in ("a,b.npy", "a:test.npy"):
        np.save(tmp_path / name, np.ones((3, 2)))
        assert len(data.load(str(tmp_path / name))) == 3


@pytest.mark.parametrize(
    "spec, words",
    [
        ("digit", "no data set 'digit'; did you mean 'digits'?"),
        ("minst:test", "no data set 'minst'; did you mean 'mnist:test'?"),
        ("Digits", "no data set 'Digits'; did you mean 'digits'?"),
        ("faces", "faces: no such file or data set; give a path, or one of digits, mnist, cifar10"),
        ("", "no data are named; give a path, or one of digits, mnist, cifar10"),
        ("digits:valid", "digits has no part 'valid'; write digits:train or digits:test"),
        ("nowhere/x.npy", "nowhere/x.npy: no such file or data set"),
        ("digitz.csv", "digitz.csv: no such file or data set; give a path, or one of digits"),
        ("rows.npy", "rows.npy: no such file; did you mean 'row.npy'?"),
        ("row.npy,labels.npy", "labels.npy: no such file or data set; give a path"),
    ],
)
def test_names_that_are_not_there(tmp_path, monkeypatch, spec, words):
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "row.npy", np.ones((3, 2)))
    with pytest.raises(NotFound) as caught:
        data.load(spec)
    assert str(caught.value).startswith(words)
    assert caught.value.exit_code == 4


def test_formats_that_are_not_read(tmp_path):
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError) as caught:
        data.load(str(tmp_path / "rows.parquet"))
    assert str(caught.value).endswith(
        "rows.parquet: is of no format that horn reads; known are .npz, .npy, .csv and .tsv, also "
        ".gz, IDX (.idx, -ubyte), also .gz, and folders of shards or of pictures by class"
    )
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    (tmp_path / "y.csv").write_text("1,2\n")
    with pytest.raises(DataError, match="y.csv: has x and y in one file; name it alone"):
        data.load(f"{tmp_path / 'x.npy'},{tmp_path / 'y.csv'}")
    with pytest.raises(DataError, match="only .npz files have parts; leave out :test"):
        data.load(f"{tmp_path / 'x.npy'}:test")


def test_a_format_is_a_row_of_the_table(tmp_path, monkeypatch):
    """And a reader: its files are loaded, alone and as shards, and it is named where it may be."""

    def read(path, labels=True):
        rows = np.loadtxt(path)
        return rows[:, :-1], rows[:, -1].astype(int) if labels else None

    reader = types.ModuleType("horn.formats.plain")
    reader.read = read
    monkeypatch.setitem(sys.modules, "horn.formats.plain", reader)
    row = formats.FileFormat("plain", r"\.txt", ".txt", "rows.txt", shards=("*.txt",), scale=1.0)
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, row))
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("1 2 0\n3 4 1\n")
    assert data.load(str(tmp_path / "a.txt")).y.tolist() == [0, 1]
    assert data.load(str(tmp_path / "a.txt"), labels=False).y is None
    assert data.load(str(tmp_path)).x.tolist() == [[1, 2], [3, 4]] * 2
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="known are .*, .txt, and folders of shards"):
        data.load(str(tmp_path / "rows.parquet"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"put .*, \*.txt there, or a folder of pictures"):
        data.load(str(tmp_path / "empty"))
    assert formats.examples().endswith(", rows.txt")


def test_the_case_of_an_ending_does_not_matter(tmp_path):
    text = b"1,2,0\n3,4,1\n"
    (tmp_path / "A.CSV").write_bytes(text)
    (tmp_path / "A.Csv.GZ").write_bytes(gzip.compress(text))
    (tmp_path / "shards").mkdir()
    for name in ("a.csv", "b.CSV"):
        (tmp_path / "shards" / name).write_bytes(text)
    for name, n in (("A.CSV", 2), ("A.Csv.GZ", 2), ("shards", 4)):
        found = data.load(tmp_path / name)
        assert found.x.tolist() == [[1, 2], [3, 4]] * (n // 2)
        assert found.y.tolist() == [0, 1] * (n // 2)
    with open(tmp_path / "X.NPY", "wb") as file:
        np.save(file, np.ones((2, 2)))
    assert data.load(tmp_path / "X.NPY").x.tolist() == [[1, 1], [1, 1]]
