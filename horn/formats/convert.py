"""Conversion of a large CSV file, in pieces, to arrays on disk that are memory-mapped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from horn.errors import DataError
from horn.formats import csv, npy

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
    room, 4 bytes a number, and rounds to 7 digits. Needs memory for the labels and 1,024 lines.

    Raises
    ------
    NotFound, DataError : as ``load``; or the folder has such a file already, or cannot be written.
    """
    if dtype not in ("float32", "float64"):
        raise DataError(f'convert: dtype is "float32" or "float64", got {dtype!r}')
    target = Path(folder)
    for file_name in ("x.npy", "y.npy", npy.names_file(target / "x.npy").name):
        if (target / file_name).exists():  # one that is not written now would be read with it
            raise DataError(
                f"{target / file_name} is there already; name another folder, or remove it"
            )
    part, n, n_features, ys = target / ".x.npy.part", 0, 0, []
    reader = csv.CsvReader(Path(source), labels, label, ids)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            file.write(bytes(HEADER_BYTES))
            for chunk in reader:
                chunk.x.astype(dtype).tofile(file)
                n, n_features = n + len(chunk.x), chunk.x.shape[1]
                if chunk.labels is not None:
                    ys.append(chunk.labels)
            file.seek(0)
            file.write(_header((n, n_features), np.dtype(dtype)))
        if ys:
            np.save(target / "y.npy", csv.as_labels(np.concatenate(ys)))
        names = reader.columns.feature_names
        if names and len(set(names)) == len(names):
            npy.names_file(target / "x.npy").write_text("\n".join(names) + "\n", "utf-8")
        os.replace(part, target / "x.npy")
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error.strerror or error})") from error
    finally:
        part.unlink(missing_ok=True)
    return str(target)


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The header of a .npy file, version 1.0, in ``HEADER_BYTES``."""
    said = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    size = HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + said.ljust(size - 1) + b"\n"
