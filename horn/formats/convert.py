"""Conversion of a large CSV file, in pieces, to arrays on disk that are memory-mapped."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from io import BufferedRandom
from pathlib import Path
from typing import Any

import numpy as np

from horn.atomic_write import atomic_write
from horn.errors import DataError
from horn.formats import csv, npy
from horn.mistakes import shown

HEADER_BYTES = 192  # room for any shape; .npy needs a multiple of 64


def convert(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    labels: bool = True,
    label: str | int | None = None,
    ids: str | int | None = None,
    dtype: str = "float64",
) -> str:
    """Write x.npy and y.npy of a .csv file into a folder, and x.names.txt, the names of its
    columns, if it has a header. Returns the folder, from which ``horn.data.load`` reads them as
    mapped files, with the numbers and names that it would read from the .csv file.

    labels, label, ids : as for ``load``; ids are not kept. dtype : of x; "float32" takes half the
    room, 4 bytes a number up to 3.4e38, and rounds to 7 digits. Needs memory for the labels and
    1,024 lines.

    Raises
    ------
    NotFound, DataError : as ``load``; or the folder has such a file already, or cannot be written.
    """
    if dtype not in ("float32", "float64"):
        raise DataError(f'convert: dtype is "float32" or "float64", got {dtype!r}')
    for what, path in (("a .csv file", source), ("a folder", folder)):
        if not isinstance(path, (str, os.PathLike)):
            raise DataError(f"convert takes the path of {what}, got {shown(path)}")
    target = Path(os.path.expanduser(folder))
    for file_name in ("x.npy", "y.npy", npy.names_file(target / "x.npy").name):
        if (target / file_name).exists():  # one that is not written now would be read with it
            raise DataError(
                f"{target / file_name} is there already; name another folder, or remove it"
            )
    made = [each for each in (target, *target.parents) if not each.exists()]
    n, n_features, ys = 0, 0, []
    reader = csv.CsvReader(Path(os.path.expanduser(source)), labels, label, ids)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            files: list[BufferedRandom] = []

            def new(path: Path) -> BufferedRandom:  # not synced: its source is there still
                files.append(stack.enter_context(atomic_write(path, is_synced=False)))
                return files[-1]

            of_x = new(target / "x.npy")
            of_x.write(bytes(HEADER_BYTES))
            for chunk in reader:
                of_x.write(_as_dtype(chunk, reader, dtype).data)
                n, n_features = n + len(chunk.x), chunk.x.shape[1]
                if chunk.labels is not None:
                    ys.append(chunk.labels)
            of_x.seek(0)
            of_x.write(_header((n, n_features), np.dtype(dtype)))
            if ys:
                np.save(new(target / "y.npy"), csv.as_labels(np.concatenate(ys)))
            names = reader.columns.feature_names
            if names and len(set(names)) == len(names):
                of_names = new(npy.names_file(target / "x.npy"))
                of_names.write(("\n".join(names) + "\n").encode())
            for file in files:  # a full disk is met before one of them has its name
                file.flush()
    except BaseException as error:
        for each in made:  # what was made for the files, which are not there
            with suppress(OSError):
                each.rmdir()
        if not isinstance(error, OSError):
            raise
        raise DataError(f"{target}: cannot be written ({error.strerror or error})") from error
    return str(target)


def _as_dtype(chunk: csv.Chunk, reader: csv.CsvReader, dtype: str) -> np.ndarray:
    """The numbers of some lines, C-contiguous. Raises DataError: one is too large for the type."""
    with np.errstate(over="ignore"):  # it is found out here
        found = chunk.x.astype(dtype, order="C")
    if dtype != "float64" and (lost := np.isinf(found) & np.isfinite(chunk.x)).any():
        row, column = map(int, np.argwhere(lost)[0])
        raise DataError(
            f"{reader.path}, line {chunk.lines[row][0]}: column "
            f"{reader.columns.features[column] + 1} is {chunk.x[row, column]:g}, which is infinity "
            f'in {dtype}; leave dtype out ("float64"), or divide the column'
        )
    return found


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The header of a .npy file, version 1.0, in ``HEADER_BYTES``."""
    said = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    size = HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + said.ljust(size - 1) + b"\n"
