"""CSV files, plain or gzipped: one sample a line, the label in the last column.

The separator is a comma, a semicolon or a tab, whichever the first line has. A first line without
any number is a header. Numbers are taken as they are, without a scale; where all are whole and lie
in 0..255 they are kept as bytes, an eighth of the memory.
"""

from __future__ import annotations

import csv
import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from horn.data import arrays
from horn.data.files import reading
from horn.errors import DataError

# Lines that are parsed at a time: enough to hide Python's cost, at most some MiB of text.
CHUNK_LINES = 1024

Line = tuple[int, str]  # line number from 1, text


def read(path: Path, *, labels: bool = True) -> tuple[np.ndarray, np.ndarray | None]:
    """(x, y) of a file: x (n, columns - 1) uint8 or float64, y (n,) int64.

    Without ``labels`` every column belongs to x, and y is None. Raises NotFound or DataError, which
    names the line.
    """
    try:
        with reading(path), _open(path) as file:
            return _read(file, path, labels)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text ({error.reason}); save it as UTF-8") from error


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def _read(file: IO[str], path: Path, labels: bool) -> tuple[np.ndarray, np.ndarray | None]:
    lines: Iterator[Line] = (line for line in enumerate(file, 1) if line[1].strip())
    first = next(lines, None)
    if first is None:
        raise DataError(f"{path}: is empty; give one sample a line, its label in the last column")
    separator = next((mark for mark in ",;\t" if mark in first[1]), ",")
    cells = _cells(first[1], separator)
    if labels and len(cells) < 2:
        raise DataError(
            f"{path}, line {first[0]}: has one column, which would be the label; "
            "add features, or say that there is no label (labels=False, --no-label)"
        )
    if any(map(_is_number, cells)):
        lines = itertools.chain([first], lines)
    tables, all_labels = [], []
    while chunk := list(itertools.islice(lines, CHUNK_LINES)):
        table = _parse(chunk, separator, len(cells), first[0], path)
        if labels:
            all_labels.append(_labels(table[:, -1], chunk, path))
            table = table[:, :-1]
        tables.append(_as_bytes_if_whole(table))
    if not tables:
        raise DataError(f"{path}: has a header but no samples; give one sample a line")
    return arrays.join(tables), np.concatenate(all_labels) if labels else None


def _parse(
    chunk: list[Line], separator: str, n_columns: int, first_line: int, path: Path
) -> np.ndarray:
    try:
        table: np.ndarray = np.loadtxt(
            [text for _, text in chunk],
            dtype=np.float64,
            delimiter=separator,
            comments=None,
            quotechar='"',
            ndmin=2,
        )
        if table.shape == (len(chunk), n_columns):
            return table
        problem = f"read as {table.shape}"
    except ValueError as error:
        problem = str(error)
    for number, text in chunk:  # slow, but it finds the place
        cells = _cells(text, separator)
        if len(cells) != n_columns:
            raise DataError(
                f"{path}, line {number}: has {len(cells)} cells, but line {first_line} has "
                f"{n_columns}; give every line the same number of cells"
            )
        for column, cell in enumerate(cells, 1):
            if not _is_number(cell):
                found = f"is {cell[:40]!r}" if cell.strip() else "is empty"
                raise DataError(
                    f"{path}, line {number}: column {column} {found}, but a number is expected; "
                    "replace text by numbers, or leave the column out"
                )
    raise DataError(f"{path}, lines {chunk[0][0]} to {chunk[-1][0]}: {problem}; give numbers only")


def _labels(column: np.ndarray, chunk: list[Line], path: Path) -> np.ndarray:
    whole = np.floor(column) == column
    whole &= np.abs(column) < 2**53
    if not whole.all():
        row = int(np.argmin(whole))
        raise DataError(
            f"{path}, line {chunk[row][0]}: the label, its last cell, is {column[row]:g}, but "
            "labels must be integers; correct it, or say that there is no label (labels=False, "
            "--no-label)"
        )
    return column.astype(np.int64)


def _as_bytes_if_whole(table: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # NaN does not become a byte, and is found out here
        whole = table.clip(0, 255).astype(np.uint8)
    return whole if np.array_equal(whole, table) else table.copy()


def _cells(text: str, separator: str) -> list[str]:
    return next(csv.reader([text], delimiter=separator), [])


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python's own digit separator is no number in a file
