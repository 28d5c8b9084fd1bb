""".npy files: mapped, never unpickled."""

import io
import struct
import zipfile

import numpy as np
import pytest

from horn.data import load
from horn.errors import DataError, NotFound
from horn.formats import npy, npz

HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
ODD = {
    "cut in a bracket": HEADER[:-5],
    "cut in a text": "'''" + HEADER,
    "uneven lines": "  x\n y\n  z",
    "deep": "-" * 9000 + "1",
    "a list as a key": "{[]: 1}",
    "mixed keys": "{1: 2, 'a': 3}",
    "truth as a shape": HEADER.replace("(2, 3)", "(True, True)"),
    "more than memory": HEADER.replace("(2, 3)", f"({10**12}, 3)"),
    "more than 64 bits": HEADER.replace("(2, 3)", f"({2**64}, 3)"),
    "empty, of huge axes": HEADER.replace("(2, 3)", f"(0, {2**40}, {2**40})"),
    "300 axes": HEADER.replace("(2, 3)", f"({'1, ' * 300})"),
    "a huge type": HEADER.replace("<f4", "V2147483647"),
}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "f4", ">f8", "i8"])
def test_what_is_saved_is_read(tmp_path, dtype, order):
    array = np.asarray(np.arange(12).reshape(3, 4), dtype, order=order)
    np.save(tmp_path / "x.npy", array)

    got = npy.read(tmp_path / "x.npy")

    assert got.dtype == array.dtype and not got.flags.writeable
    np.testing.assert_array_equal(got, array)
    np.testing.assert_array_equal(load(str(tmp_path / "x.npy")).x, array)


def test_the_second_header_version_is_read(tmp_path):
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array(file, np.ones((2, 2)), version=(2, 0))
    np.testing.assert_array_equal(npy.read(tmp_path / "x.npy"), np.ones((2, 2)))


def test_objects_are_refused_and_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("it was unpickled",))

    np.save(tmp_path / "x.npy", np.array([[Bomb()]], dtype=object), allow_pickle=True)
    with pytest.raises(DataError) as caught:
        load(str(tmp_path / "x.npy"))
    assert str(caught.value) == (
        f"{tmp_path / 'x.npy'}: holds Python objects, which horn never unpickles; "
        "save plain numbers, np.array(values, dtype='float32')"
    )


def test_a_truncated_file_says_bytes_got_and_expected(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((10, 10)))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="cut short: got 799 bytes of values, expected 800 by its"):
        npy.read(path)


@pytest.mark.parametrize("content", [b"", b"hello, world", b"\x93NUMPY\x01\x00\x08\x00nonsense"])
def test_what_is_no_npy_file(tmp_path, content):
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(DataError, match="is no .npy file, or its header is damaged"):
        npy.read(tmp_path / "x.npy")


def test_an_empty_array_is_told_by_the_dataset(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((0, 4)))
    with pytest.raises(DataError, match=r"x has shape \(0, 4\), so it is empty"):
        load(str(tmp_path / "x.npy"))


def test_missing_file(tmp_path):
    with pytest.raises(NotFound, match=r"x\.npy: no such file"):
        npy.read(tmp_path / "x.npy")


def written(header):
    text = header.encode() + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + VALUES.tobytes()


def test_the_header_is_one_that_numpy_reads():
    assert np.array_equal(np.load(io.BytesIO(written(HEADER))), VALUES)


@pytest.mark.parametrize("header", ODD.values(), ids=ODD.keys())
def test_an_odd_header_is_damage_and_allocates_nothing(tmp_path, header):
    path = tmp_path / "x.npy"
    path.write_bytes(written(header))
    with pytest.raises(DataError, match="its header is damaged|is cut short: got 24 by"):
        npy.read(path)
    path = tmp_path / "rows.npz"
    np.savez(path, y=np.zeros(2, int))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x.npy", written(header))
    with pytest.raises(DataError, match=r"array 'x' is damaged .*; write it again with np.savez"):
        npz.read(path)


@pytest.mark.parametrize(
    "names, words",
    [
        (b"a\nb\n", "x.names.txt: has 2 names, one a line, but the samples of x.npy have the shape "
         r"\(3,\); give each column a name, or remove the file"),
        (b"a\nb\n\xff", r"x.names.txt: is not UTF-8 text \(invalid start byte\); save it as"),
    ],
)  # fmt: skip
def test_names_of_columns_that_do_not_fit_are_refused(tmp_path, names, words):
    np.save(tmp_path / "x.npy", np.ones((4, 3)))
    (tmp_path / "x.names.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\r\n \xc3\xa4\r\n")  # of an editor
    assert load(str(tmp_path)).feature_names == ("a", "b", " ä")
    (tmp_path / "x.names.txt").write_bytes(names)
    with pytest.raises(DataError, match=words):
        load(str(tmp_path))
