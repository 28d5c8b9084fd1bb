"""IDX files: what is written is read, and damage is told exactly."""

import gzip
import math
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from horn.errors import DataError, NotFound
from horn.formats import idx

CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def pack(array: np.ndarray) -> bytes:
    code = CODES[array.dtype.str[1:]]
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("idx")


@settings(max_examples=50)
@given(
    array=st.sampled_from(sorted(CODES)).flatmap(
        lambda code: arrays.arrays(code, arrays.array_shapes(min_side=0, max_side=5))
    ),
    packed=st.booleans(),
)
def test_what_is_written_is_read(folder, array, packed):
    path = folder / "array"
    path.write_bytes(gzip.compress(pack(array), 1) if packed else pack(array))

    got = idx.read(path)

    assert got.dtype == array.dtype and got.dtype.isnative
    np.testing.assert_array_equal(got, array)


@settings(max_examples=40)
@given(cut=st.integers(1, 40), packed=st.booleans())
def test_a_truncated_file_says_bytes_got_and_expected(folder, cut, packed):
    values = np.arange(40, dtype=np.uint8).reshape(5, 8)
    whole, path = pack(values), folder / "cut"
    path.write_bytes(gzip.compress(whole[:-cut]) if packed else whole[:-cut])
    with pytest.raises(DataError) as caught:
        idx.read(path)
    assert str(caught.value) == (
        f"{path}: is cut short: got {40 - cut} bytes of values, expected 40 by its header; "
        "fetch the file again"
    )


def test_a_torn_gzip_file_says_bytes_got_and_expected(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "images.gz"
    whole = gzip.compress(pack(rng.integers(0, 256, (1000, 784), np.uint8)))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cut short: got 39[0-9],[0-9]{3} bytes.* expected 784,000"):
        idx.read(path)


def test_a_header_that_promises_too_much_allocates_nothing(tmp_path):
    path = tmp_path / "huge.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 2]) + b"\xff" * 8 + bytes(100)))
    with pytest.raises(DataError, match="got 100 bytes of values, expected 18,446,744,065,119,617"):
        idx.read(path)


@pytest.mark.parametrize("packed", [False, True])
def test_bytes_after_the_values_are_told(tmp_path, packed):
    path = tmp_path / "long"
    whole = pack(np.zeros((2, 3), np.uint8)) + b"??"
    path.write_bytes(gzip.compress(whole) if packed else whole)
    with pytest.raises(DataError, match="has 8 bytes of values, but its header says 6; fetch"):
        idx.read(path)


@pytest.mark.parametrize(
    "content, begins",
    [
        (b"", "begins with nothing"),
        (b"\x00\x00", "begins with 00 00"),
        (b"\x89PNG\r\n", "begins with 89 50 4e 47"),
        (b"\x00\x00\x07\x01\x00\x00\x00\x01a", "begins with 00 00 07 01"),
        (b"\x00\x00\x08\x00a", "begins with 00 00 08 00"),
    ],
)
def test_wrong_magic(tmp_path, content, begins):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        idx.read(path)
    assert f"{begins}, but an IDX file begins with 00 00, a type code" in str(caught.value)


def test_a_header_that_is_cut_short(tmp_path):
    (tmp_path / "cut").write_bytes(b"\x00\x00\x08\x03\x00\x00")
    with pytest.raises(DataError, match="6 bytes, but its header alone takes 16; fetch the file"):
        idx.read(tmp_path / "cut")


def test_a_wrong_gzip_checksum_is_found(tmp_path):
    packed = bytearray(gzip.compress(pack(np.arange(50, dtype=np.uint8))))
    packed[-5] ^= 1  # in the checksum
    (tmp_path / "bad.gz").write_bytes(packed)
    with pytest.raises(DataError, match="the gzip data are damaged .* fetch the file again"):
        idx.read(tmp_path / "bad.gz")


def test_missing_file(tmp_path):
    with pytest.raises(NotFound, match="images: no such file"):
        idx.read(tmp_path / "images")


def test_a_plain_file_is_mapped_and_a_packed_one_is_unpacked_without_a_second_copy(tmp_path):
    values = np.zeros((4000, 1000), np.uint8)
    (tmp_path / "plain").write_bytes(pack(values))
    (tmp_path / "packed").write_bytes(gzip.compress(pack(values), 1))
    peaks = {}
    for name in ("plain", "packed"):
        tracemalloc.start()
        idx.read(tmp_path / name)
        peaks[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks["plain"] < 200_000
    assert peaks["packed"] < 1.3 * math.prod(values.shape)


@pytest.mark.parametrize(
    "axes", [[0, *[2**32 - 1] * 3], [1] * 65], ids=["empty, of huge axes", "65 axes"]
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_axes_that_no_array_has(tmp_path, axes, packed):
    path, content = tmp_path / "odd", bytes([0, 0, 8, len(axes)])
    content += np.array(axes, ">u4").tobytes() + bytes(math.prod(axes))
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(
        DataError, match=f"its header says {len(axes)} axes of .* no array has; fet"
    ):
        idx.read(path)
