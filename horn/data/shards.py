"""Folders of shards: files of one format and one shape, joined in the order of their names.

Either ``*.npz`` with x and y, or ``*.csv`` with the label last, or ``x*.npy`` with ``y*.npy``.
Numbers in names count as numbers: shard-2 comes before shard-10.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from horn.data import arrays
from horn.errors import DataError
from horn.formats import csv, npy, npz, parts

Pair = tuple[np.ndarray, np.ndarray | dict[str, np.ndarray] | None]


def read(folder: Path, *, labels: bool = True) -> tuple[np.ndarray, np.ndarray | None, float]:
    """Read (x, y, scale) of all shards; y is None if they have none, or without ``labels``.
    A single .npy shard stays memory-mapped; several files are copied into one array, which takes
    their own size and that of one shard more. Raises DataError, which names the file.
    their own size and that of one shard more. Raises DataError, which names the file.
    """
    files, read_shard = _shards(folder, labels)
    xs: list[np.ndarray] = []
    ys: list[np.ndarray] = []
    scale = 1.0
    for path in files:
        raw_x, raw_y = read_shard(path)
        x, natural_scale = arrays.as_features(raw_x, str(path))
        scale = scale if path.suffix == ".csv" else natural_scale
        y, classes = None, None
        if isinstance(raw_y, dict):
            raise DataError(
                f"{path}: targets of several outputs ({', '.join(raw_y)}) are read from one .npz "
                "file, not from shards; put all samples in one"
            )
        if raw_y is not None:
            y, classes = arrays.as_labels_or_targets(raw_y, str(path))
        arrays.check_shapes(x, y, str(path))
        if classes is not None:  # coded after all are read: a shard may lack some
            y = np.asarray(raw_y)
        if xs and (y is not None) != bool(ys):
            raise DataError(
                f"{path}: has {'no labels' if y is None else 'labels'}, but {files[0].name} has "
                f"{'labels' if ys else 'none'}; give labels to all shards or to none"
            )
        _check_same("x", x, xs, path, files[0], path.suffix == ".csv")
        xs.append(x)
        if y is not None:
            _check_same("y", y, ys, path, files[0], y.dtype.kind == "U")
            ys.append(y)
    return parts.join(xs), parts.join(ys) if ys else None, scale


def _shards(folder: Path, labels: bool) -> tuple[list[Path], Callable[[Path], Pair]]:
    def read_npy(path: Path) -> Pair:
        beside = path.with_name("y" + path.name[1:])
        return npy.read(path), npy.read(beside) if labels and beside.exists() else None

    readers: dict[str, Callable[[Path], Pair]] = {
        "*.npz": partial(npz.read, labels=labels),
        "*.csv": partial(csv.read, labels=labels),
        "x*.npy": read_npy,
    }
    found = {pattern: files for pattern in readers if (files := list(folder.glob(pattern)))}
    if not found:
        raise DataError(
            f"{folder}: is a folder without shards; put *.npz, *.csv, or x*.npy with y*.npy there, "
            f"or a folder of pictures for each class, or name a data set that horn knows, as in "
            f"mnist:test"
        )
    if len(found) > 1:
        raise DataError(
            f"{folder}: has shards of several formats ({', '.join(found)}); keep one of them"
        )
    [(pattern, files)] = found.items()
    return sorted(files, key=_by_name_and_number), readers[pattern]


def _by_name_and_number(path: Path) -> list[tuple[int, int, str]]:
    pieces = re.split(r"([0-9]+)", path.name)
    return [(1, int(p), "") if p.isdigit() else (0, 0, p) for p in pieces]


def _check_same(
    letter: str, array: np.ndarray, others: list[np.ndarray], path: Path, first: Path, mixed: bool
) -> None:
    if not others:
        return
    expected = others[0]
    # A table of whole numbers is kept as bytes, so two .csv shards may differ in type only.
    if array.shape[1:] != expected.shape[1:] or (array.dtype != expected.dtype and not mixed):
        raise DataError(
            f"{path}: {letter} is {array.dtype} with {array.shape[1:]} numbers per sample, but "
            f"{first.name} has {expected.dtype} with {expected.shape[1:]}; give all one shape"
        )
