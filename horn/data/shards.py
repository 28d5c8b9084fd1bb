"""Folders of shards: files of one format and one shape, joined in the order of their names.

``horn.formats.FORMATS`` says which; a file ``x*`` of one array goes with ``y*``, if there is one,
and with ``x*.names.txt``. Numbers in names count as numbers: shard-2 comes before shard-10.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from horn import formats
from horn.data import arrays, units
from horn.errors import DataError
from horn.formats import FileFormat, csv, npy, parts, tables
from horn.formats.parts import SampleTable


def read(folder: Path, *, labels: bool = True) -> tuple[SampleTable, units.Unit]:
    """Read (what a table of all shards has, the unit of x); its y is None if they have none, or
    without ``labels``; it has names of columns where all shards have them. A single .npy shard
    stays memory-mapped; several files are copied into one array, which takes their own size and
    that of one shard more. Raises DataError, which names the file.
    """
    kind, files = _shards(folder)
    xs: list[np.ndarray] = []
    ys: list[np.ndarray] = []
    ids: list[np.ndarray] = []
    headers: dict[Path, tuple[str, ...]] = {}
    unit = units.NUMBERS
    for path in files:
        found = _read(kind, path, labels)
        x, own = arrays.as_features(found.x, str(path))
        own = own if kind.scale is None else units.Unit(kind.scale, units.ASSUMED)
        y, classes = None, None
        if found.y is not None:
            y, classes = arrays.as_labels_or_targets(found.y, str(path))
        arrays.check_shapes(x, y, str(path))
        if classes is not None:  # coded after all are read: a shard may lack some
            y = np.asarray(found.y)
        _check_header(found.header, path, headers)
        for what, given, others in (("labels", y, ys), ("names of samples", found.ids, ids)):
            if xs and (given is not None) != bool(others):
                raise DataError(
                    f"{path}: has {'no ' * (given is None)}{what}, but {files[0].name} has "
                    f"{what if others else 'none'}; give {what} to all shards or to none"
                )
        _check_same("x", x, xs, path, files[0], kind.scale is not None)
        if xs and own != unit:  # bytes beside truth values
            raise DataError(
                f"{path}: x is {found.x.dtype}, worth {own.scale:g} each, but that of "
                f"{files[0].name} is worth {unit.scale:g}; give all shards one type"
            )
        unit = own
        xs.append(x)
        if y is not None:
            if kind.reader is csv and ys and {y.dtype.kind, ys[0].dtype.kind} == {"i", "f"}:
                # the numbers of one file may happen to be whole: those of all are targets
                y = y.reshape(len(y), 1).astype(np.float64)
                ys = [each.reshape(len(each), 1).astype(np.float64) for each in ys]
            _check_same("y", y, ys, path, files[0], y.dtype.kind == "U")
            ys.append(y)
        if found.ids is not None:
            ids.append(found.ids)
    names = found.names if all(headers.values()) else ()
    return SampleTable(
        parts.join(xs),
        parts.join(ys) if ys else None,
        parts.join(ids) if ids else None,
        found.id_name if names else "id",
        names,
    ), unit


def _shards(folder: Path) -> tuple[FileFormat, list[Path]]:
    """The format of a folder's shards, and the files in order."""
    there = list(folder.iterdir())
    found = {
        kind: files
        for kind in formats.FORMATS
        if (files := [path for path in there if kind.is_shard(path.name)])
    }
    if not found:
        raise DataError(
            f"{folder}: is a folder without shards; put {formats.shards()} there, or a folder of "
            f"pictures for each class, or name a data set that horn knows, as in mnist:test"
        )
    if len(found) > 1:
        several = ", ".join(kind.shards[0] for kind in found)
        raise DataError(f"{folder}: has shards of several formats ({several}); keep one of them")
    [(kind, files)] = found.items()
    return kind, sorted(files, key=_by_name_and_number)


def _read(kind: FileFormat, path: Path, labels: bool) -> SampleTable:
    if kind.reader is csv:
        return csv.table(path, labels=labels)
    if kind.is_pair:
        x, y = kind.reader.read(path, labels=labels)
        if isinstance(y, dict):
            raise DataError(
                f"{path}: targets of several outputs ({', '.join(y)}) are read from one .npz "
                "file, not from shards; put all samples in one"
            )
        return SampleTable(x, y, None)
    beside, read = path.with_name("y" + path.name[1:]), kind.reader.read
    x, y = read(path), read(beside) if labels and beside.exists() else None
    names = npy.names(path, x)
    return SampleTable(x, y, None, names=names, header=names)


def _by_name_and_number(path: Path) -> list[tuple[int, int, str]]:
    pieces = re.split(r"([0-9]+)", path.name)
    return [(1, int(p), "") if p.isdigit() else (0, 0, p) for p in pieces]


def _check_header(
    header: tuple[str, ...], path: Path, headers: dict[Path, tuple[str, ...]]
) -> None:
    """Note a shard's header, which is that of all that have one: columns are joined by place."""
    first = next((other for other in headers if headers[other]), path)
    headers[path] = header
    expected = headers[first]
    if header and header != expected:
        raise DataError(
            f"{path}: other columns than {first.name} has: {tables.difference(header, expected)}. "
            f"Its header is {tables.first_few(header)}, that of {first.name} "
            f"{tables.first_few(expected)}; give all shards the same columns, in the same order"
        )


def _check_same(
    letter: str, array: np.ndarray, others: list[np.ndarray], path: Path, first: Path, mixed: bool
) -> None:
    if not others:
        return
    expected = others[0]
    kinds = ["names" if each.dtype.kind == "U" else "numbers" for each in (array, expected)]
    if kinds[0] != kinds[1]:
        raise DataError(
            f"{path}: its labels are {kinds[0]}, but those of {first.name} are {kinds[1]}; give "
            "all shards labels of one kind"
        )
    # A table of whole numbers is kept as bytes, so two .csv shards may differ in type only; their
    # bytes are worth what numbers are.
    if array.shape[1:] != expected.shape[1:] or (array.dtype != expected.dtype and not mixed):
        raise DataError(
            f"{path}: {letter} is {array.dtype} with {array.shape[1:]} numbers per sample, but "
            f"{first.name} has {expected.dtype} with {expected.shape[1:]}; give all one shape"
        )
