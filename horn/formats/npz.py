""".npz files: several arrays in a zip archive, as ``numpy.savez`` writes them.

It expects x and y, or x_train, y_train, x_test, y_test; for several outputs y.NAME of each instead
of y; for sequences that end early (n, steps, features) also lengths, which may be None; for weights
of the samples in the training loss (n,) sample_weight, or (n, steps) of sequences. Objects are
never unpickled.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path

import numpy as np

from horn.errors import DataError
from horn.formats import npy
from horn.formats.files import missing
from horn.formats.parts import kind_name

Targets = np.ndarray | dict[str, np.ndarray] | None

# Errors for damaged data; a changed byte may ask for a method, version or encryption that
# zipfile does not know.
DAMAGES: tuple[type[Exception], ...] = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, UnicodeDecodeError,
)  # fmt: skip
try:
    from lzma import LZMAError
except ImportError:  # a Python that was built without it
    pass
else:
    DAMAGES += (LZMAError,)


def read(path: Path, part: str | None = None, *, labels: bool = True) -> tuple[np.ndarray, Targets]:
    """Read (x, y) of a file, as ``read_all``. DataError : it has lengths or weights, too."""
    x, y, *others = read_all(path, part, labels=labels)
    for what, array in zip(("lengths", "sample_weight"), others, strict=True):
        if array is not None:
            raise DataError(
                f"{path}: {what} is read from one .npz file, not from shards; put all samples in "
                "one"
            )
    return x, y


def read_all(
    path: Path, part: str | None = None, *, labels: bool = True
) -> tuple[np.ndarray, Targets, np.ndarray | None, np.ndarray | None]:
    """Read (x, y, lengths, sample_weight) of a file; y and weights are None if the file has none,
    or without ``labels``; for several outputs, y is the arrays "y.digit" and so on, by name.

    part : None for x and y, or "train" or "test" for x_train and so on. A file that has only such
    pairs is read as its train part. Raises NotFound or DataError.
    """
    if not path.is_file():
        raise missing(path)
    try:
        with zipfile.ZipFile(path) as archive:
            files = [name for name in archive.namelist() if name.endswith(".npy")]
            names = {name.removesuffix(".npy") for name in files}
            suffix = f"_{part}" if part else ""
            if not part and "x" not in names and "x_train" in names:
                suffix = "_train"
            if f"x{suffix}" not in names:
                inputs = [name for name in names if name.startswith(f"x{suffix}.")]
                raise DataError(
                    f"{path}: has no array 'x{suffix}' (it has "
                    f"{', '.join(sorted(names)) or 'none'}); write it with np.savez(path, "
                    f"x{suffix}=..., y{suffix}=...)"
                    + ", the columns of all inputs side by side in the order of net.input: "
                    "x=np.hstack([a, b])" * bool(inputs)
                )
            x = _array(archive, path, f"x{suffix}")
            y: Targets = None
            several = sorted(name for name in names if name.startswith(f"y{suffix}."))
            if labels and several:
                y = {name.partition(".")[2]: _array(archive, path, name) for name in several}
            elif labels and f"y{suffix}" in names:
                y = _array(archive, path, f"y{suffix}")
            own, weights = f"lengths{suffix}", f"sample_weight{suffix}"
            lengths = _lengths(archive, path, own) if own in names else None
            is_weighed = labels and weights in names
            return x, y, lengths, _array(archive, path, weights) if is_weighed else None
    except DAMAGES as error:
        raise DataError(
            f"{path}: is damaged or no .npz file ({error}); write it again with np.savez"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _lengths(archive: zipfile.ZipFile, path: Path, name: str) -> np.ndarray | None:
    """The lengths; None where they are an object without axes: numpy.savez writes None as one."""
    try:
        with archive.open(f"{name}.npy") as file:
            shape, _, dtype = npy.header(file)
    except ValueError:
        return _array(archive, path, name)  # which raises the error
    return None if dtype.hasobject and not shape else _array(archive, path, name)


def _array(archive: zipfile.ZipFile, path: Path, name: str) -> np.ndarray:
    entry = archive.getinfo(f"{name}.npy")
    try:
        with archive.open(entry) as file:
            shape, _, dtype = npy.header(file)
            got = entry.file_size - file.tell()
        if dtype.hasobject:
            raise DataError(
                f"{path}: array {name!r} holds {kind_name(dtype)}, which horn never unpickles; "
                f"save plain numbers, np.array(values, dtype='float32')"
            )
        expected = math.prod(shape) * dtype.itemsize
        if got < expected:  # a size from a wrong header is not allocated
            raise ValueError(f"got {got:,} bytes of values, expected {expected:,} by its header")
        with archive.open(entry) as file:
            # read_array fills the array piece by piece: no second copy.
            return np.lib.format.read_array(file, allow_pickle=False)
    except MemoryError:
        raise DataError(
            f"{path}: array {name!r} takes {expected:,} bytes, more memory than there is; write "
            "each array with np.save: .npy files are read in pieces, as they are needed"
        ) from None
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise DataError(
            f"{path}: array {name!r} is damaged ({error}); write it again with np.savez"
        ) from error
