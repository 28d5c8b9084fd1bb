"""Data sets by name: digits (in this package), mnist and cifar10 (files of the user, or fetched).

Nothing is fetched unless asked for.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from horn.data.dataset import Dataset
from horn.data.units import ASSUMED, BYTE_SCALE
from horn.errors import DataError, NotFound
from horn.formats import idx, npz

PARTS = ("train", "test")


def digits(part: str = "train") -> Dataset:
    """Handwritten digits, 8x8 pixels, 10 classes; in this package, no network needed.

    part : "train", 3,823 images by 30 writers · "test", 1,797 images by 13 other writers.
    x (n, 64) float32, sixteenths 0..1, of shape (8, 8, 1) · y (n,) int64. So (x, y) means the same
    as the dataset.

    Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
    Learning Repository, 1998, CC BY 4.0; the whole of both parts, in their order. See
    horn/data/digits/SOURCE.txt.
    """
    _check_part("digits", part)
    folder = Path(__file__).parent / "digits"
    images = idx.read(folder / f"{part}-images-idx3-ubyte.gz")
    labels = idx.read(folder / f"{part}-labels-idx1-ubyte.gz")
    found = _images(images, labels, 1.0, f"digits:{part}")
    return found.with_fields(x=found.x.astype(np.float32) / np.float32(16))


def mnist(part: str = "train", *, download: bool = False) -> Dataset:
    """Handwritten digits, 28x28 bytes, 10 classes, from the four IDX files, plain or gzipped.

    part : "train", 60,000 images · "test", 10,000 images.
    x (n, 784) uint8, scale 1/255, of shape (28, 28, 1) · y (n,) int64. Plain files are
    memory-mapped.
    The files are searched for in HORN_DATA/mnist, then in HORN_DATA (default ~/.cache/horn).
    ``download`` fetches the missing ones of this part into the former, and keeps them only if their
    checksum is right.

    Raises
    ------
    NotFound : the files are not there, or could not be fetched whole; the message says what to do.
    DataError : a file is damaged.

    Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document
    recognition", 1998.
    """
    _check_part("mnist", part)
    stem = {"train": "train", "test": "t10k"}[part]
    images, labels = (
        idx.read(_mnist_file(name, download))
        for name in (f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte")
    )
    return _images(images, labels, BYTE_SCALE, f"mnist:{part}")


def cifar10(part: str = "train") -> Dataset:
    """Small colour photographs, 32x32x3 bytes, 10 classes, from a .npz file.

    part : "train" · "test". x (n, 3072) uint8, scale 1/255, red green blue of each pixel together,
    of shape (32, 32, 3), so ``images`` is (n, 32, 32, 3); y (n,) int64. The file is the first of
    HORN_DATA/cifar10*.npz (default ~/.cache/horn), with the arrays x_train (n, 32, 32, 3), y_train
    (n,), x_test and y_test, all bytes.

    Raises
    ------
    NotFound : there is no such file; the message says how to get one.
    DataError : the file is damaged or lacks an array.

    Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    _check_part("cifar10", part)
    found = sorted(data_folder().glob("cifar10*.npz"))
    if not found:
        raise NotFound(
            f"CIFAR-10 is not in {data_folder()} (no cifar10*.npz). Set HORN_DATA to the folder "
            "that has it, or make it from the files of "
            "https://www.cs.toronto.edu/~kriz/cifar.html with np.savez('cifar10.npz', "
            "x_train=..., y_train=..., x_test=..., y_test=...), x of shape (n, 32, 32, 3)"
        )
    images, labels = npz.read(found[0], part)
    labels = None if isinstance(labels, dict) else labels
    return _images(images, labels, BYTE_SCALE, f"cifar10:{part}")


def data_folder() -> Path:
    """The folder of data sets: HORN_DATA, or ~/.cache/horn. Raises NotFound: there is no home."""
    found = os.path.expanduser(os.environ.get("HORN_DATA") or "~/.cache/horn")
    if found.startswith("~"):
        raise NotFound(f"{found}: this user has no home folder; set HORN_DATA to one with the data")
    return Path(found)


def _images(images: np.ndarray, labels: np.ndarray | None, scale: float, name: str) -> Dataset:
    if labels is None:
        raise DataError(f"{name}: the file has no labels; fetch it again")
    are_labels = labels.ndim == 1 and labels.dtype.kind in "iu"
    if images.dtype != np.uint8 or images.ndim < 2 or not are_labels:
        raise DataError(
            f"{name}: images are {images.dtype} of shape {images.shape} and labels "
            f"{labels.dtype} of shape {labels.shape}, but bytes (n, ...) and integers (n,) are "
            "expected; is it another set's file?"
        )
    x, shape = images.reshape(len(images), -1), images.shape[1:]
    shape = shape if len(shape) == 3 else (*shape, 1) if len(shape) == 2 else ()
    return Dataset(x, labels.astype(np.int64), scale, name, shape=shape, scale_is=ASSUMED)


def _check_part(name: str, part: str) -> None:
    if part not in PARTS:
        raise NotFound(f"{name} has no part {part!r}; write {name}:train or {name}:test")


def _mnist_file(name: str, download: bool) -> Path:
    root = data_folder()
    for folder in (root / "mnist", root):
        for spelling in (name, name.replace("-idx", ".idx")):  # the original site has dots
            for path in (folder / spelling, folder / f"{spelling}.gz"):
                if path.is_file():
                    return path
    if not download:
        raise NotFound(
            f"MNIST is not in {root / 'mnist'} nor in {root} (no {name}, plain or .gz). Set "
            'HORN_DATA to the folder that has it, or fetch it once:  python -c "import '
            "horn.data as d; d.mnist('train', download=True); d.mnist('test', download=True)\""
        )
    from horn.formats.download import fetch  # the network's modules double the import time

    return fetch(name, root / "mnist")
