"""CSV files, plain or gzipped: one sample a line, the label in the last column.

The separator is a comma, a semicolon or a tab: of those that the first line has outside quotes the
one by which the next lines have as many cells. Whether the first line is a header is seen from it
and the second, by ``_is_header``. Numbers are kept as they are, without a scale; where all are
whole and lie in 0..255 they are stored as bytes, an eighth of the memory. Text in the first column
is the sample's name, and in the last column the label's name: the first line of samples decides.
Names do not repeat: a column of categories is no such column.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from horn.errors import DataError
from horn.formats import parts, tables
from horn.formats.files import reading
from horn.formats.parts import SampleTable

# Lines that are parsed at a time: enough to hide Python's cost, at most some MiB of text.
CHUNK_LINES = 1024
MOST_CHARACTERS = 1 << 26  # of a line: three million columns; a small .gz may hold one without end
SEPARATORS = ",;\t"
LOOK_LINES = 10  # of a file, to see its separator by
STDIN = Path("-")
YEARS = range(1800, 2101)  # names of columns that count on from one of these
# What stands for a value that is not known: no name of a column. NaN is a number.
MISSING = frozenset(("", "?", "-", ".", "na", "n/a", "null", "none", "missing"))

logger = logging.getLogger(__name__)

Line = tuple[int, str]  # line number from 1, text
Column = str | int  # a name of the header, or a number from 1


@dataclass(frozen=True)
class Columns:
    """The roles of columns. label : the column of y, or one to leave out. Columns count from 0."""

    names: tuple[str, ...]  # of the header, () without one
    features: tuple[int, ...]
    label: int | None
    ids: int | None
    is_text: bool  # whether labels are text

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The header of the features; () without one."""
        return tuple(self.names[k] for k in self.features) if self.names else ()


@dataclass(frozen=True)
class Chunk:
    """Some lines: x (n, features) float64 · labels (n,) float64 or text, or None · ids."""

    lines: list[Line]
    x: np.ndarray
    labels: np.ndarray | None
    ids: list[str]


def read(path: Path, *, labels: bool = True) -> tuple[np.ndarray, np.ndarray | None]:
    """Read (x, y) of a file, as in ``SampleTable``."""
    found = table(path, labels=labels)
    return found.x, found.y


def table(
    path: Path, *, labels: bool = True, label: Column | None = None, ids: Column | None = None
) -> SampleTable:
    """Read a whole file; "-" is the standard input. label, ids : their columns, by name or number.

    y are whole numbers or text, the labels, or else target numbers: if one is no whole number, or
    below 0. Without ``labels`` y is None: every column of numbers belongs to x except the one that
    ``label`` names. Raises NotFound or DataError, which names the line.
    """
    reader = CsvReader(path, labels, label, ids)
    xs, ys, ids_found = [], [], []
    for chunk in reader:
        xs.append(_as_bytes_if_whole(chunk.x))
        if chunk.labels is not None:
            ys.append(chunk.labels)
        ids_found += chunk.ids
    y = as_labels(np.concatenate(ys)) if ys else None
    columns = reader.columns
    has_name = columns.ids is not None and columns.names
    name = columns.names[columns.ids] if has_name and columns.ids is not None else "id"
    called = np.array(ids_found) if columns.ids is not None else None
    return SampleTable(parts.join(xs), y, called, name, columns.feature_names, columns.names)


def as_labels(column: np.ndarray) -> np.ndarray:
    """The labels of a column: text as it is · whole numbers from 0 int64 (n,) · others (n, 1)."""
    if column.dtype.kind == "U":
        return column
    whole = (np.floor(column) == column) & (column >= 0) & (column < 2**53)
    return column.astype(np.int64) if whole.all() else column[:, None]


@dataclass
class CsvReader:
    """The chunks of a file, in order: each iteration reads it once, with little memory.

    is_live : each line is a chunk when it comes, and there may be spaces between its cells.
    """

    path: Path
    has_labels: bool = True
    label: Column | None = None
    ids: Column | None = None
    is_live: bool = False
    columns: Columns = field(init=False)

    def __iter__(self) -> Iterator[Chunk]:
        path = self.path
        try:
            with reading(path), _open(path) as file:
                yield from self._chunks(file)
        except csv.Error as error:  # a cell of more than csv.field_size_limit()
            raise DataError(
                f"{_name(path)}: has a cell of more than {csv.field_size_limit():,} characters; "
                "is a quotation mark missing? Else leave the column out"
            ) from error
        except UnicodeDecodeError as error:
            raise DataError(
                f"{_name(path)}: is not UTF-8 text ({error.reason}); save it as UTF-8"
            ) from error

    def _chunks(self, file: IO[str]) -> Iterator[Chunk]:
        where = _name(self.path)
        lines: Iterator[Line] = (line for line in _lines(file, where) if line[1].strip())
        if self.is_live:
            lines = ((number, _with_commas(text)) for number, text in lines)
        first = next(lines, None)
        if first is None:
            raise DataError(
                f"{where}: is empty; give one sample a line"
                + ", its label in the last column" * self.has_labels
            )
        # a line that is answered before the next one comes stands alone
        near = [first, *itertools.islice(lines, 0 if self.is_live else LOOK_LINES - 1)]
        lines = itertools.chain(near[1:], lines)
        separator = _separator([text for _, text in near])
        cells = _cells(first[1], separator)
        n_columns, sample = len(cells), first
        names: tuple[str, ...] = ()
        is_header, lines = self._look(first, cells, separator, lines)
        if is_header:
            names = tuple(cell.strip() for cell in cells)
            if (second := next(lines, None)) is None:
                raise DataError(f"{where}: has a header but no samples; give one sample a line")
            sample, cells = second, _cells(second[1], separator)
            lines = itertools.chain([second], lines)
        else:
            lines = itertools.chain([first], lines)
        for line in (first, sample):
            if _goes_on(line[1], separator):
                raise self._open_quote(line[0])
        if len(cells) != n_columns:
            raise self._uneven(sample[0], len(cells), first[0], n_columns)
        self.columns = self._columns(names, cells, first[0], sample[0])
        is_index, n = bool(names) and not names[0] and 0 in self.columns.features, 0
        while chunk := list(itertools.islice(lines, 1 if self.is_live else CHUNK_LINES)):
            parsed = self._parse(chunk, separator, n_columns, first[0])
            if is_index:
                is_index = np.array_equal(parsed.x[:, 0], np.arange(n, n + len(chunk)))
            n += len(chunk)
            yield parsed
        if is_index and n > 1:
            logger.warning(
                "%s: column 1 has no name and counts the lines, and is read as a feature; write "
                "the table without it, df.to_csv(path, index=False), or name it with ids=1 "
                "(--ids 1)", where,
            )  # fmt: skip

    def _look(
        self, first: Line, cells: list[str], separator: str, lines: Iterator[Line]
    ) -> tuple[bool, Iterator[Line]]:
        """Whether the first line is a header, and the lines after it. Warns if it may be none."""
        if not any(map(_is_number, cells)):
            return True, lines
        is_sure = False
        if self.is_live:  # the first line is answered before the second comes
            is_header = _is_counted(cells)
        elif (second := next(lines, None)) is None:
            return False, lines
        else:
            following = _cells(second[1], separator)
            is_header = _is_header(cells, following)
            is_sure = _is_counted(cells) and _has_text_above_numbers(cells, following)
            lines = itertools.chain([second], lines)
        if is_header and not is_sure:
            logger.warning(
                "%s: line %d, %.60s, is read as a header, not as a sample; if it is a sample, "
                "write a line of names above it", _name(self.path), first[0], first[1].strip(),
            )  # fmt: skip
        return is_header, lines

    def _columns(
        self, names: tuple[str, ...], cells: list[str], first_line: int, line: int
    ) -> Columns:
        """The roles of the columns: given by name or number, else found from the first sample."""
        n = len(cells)
        is_text = [bool(cell.strip()) and not _is_number(cell) for cell in cells]
        label = None if self.label is None else self._place(self.label, names, n)
        ids = None if self.ids is None else self._place(self.ids, names, n)
        if label is None and (self.has_labels or (is_text[-1] and ids != n - 1 and n > 1)):
            label = n - 1
        if self.has_labels and ids is not None and label == ids:
            raise DataError(
                f"{_name(self.path)}: column {names[ids] if names else ids + 1} is to be the "
                "label and the names of the samples; name the other with label (--label) or ids "
                "(--ids), or say that there is no label (labels=False)"
            )
        if ids is None and is_text[0] and label != 0 and cells[0].strip().lower() not in MISSING:
            ids = 0
            if _DECIMAL_COMMA.fullmatch(cells[0]):
                raise self._no_name(line, names, f"{cells[0]!r}; {DECIMAL_COMMAS}")
            if _is_value(cells[0]):
                raise self._no_name(
                    line, names, f"{cells[0]!r}, a value and no name of a sample; write it as a "
                    "number (True as 1, 10% as 0.1, 1,000 as 1000), or leave it out",
                )  # fmt: skip
        features = tuple(k for k in range(n) if k not in (label, ids))
        if not features:
            raise DataError(
                f"{_name(self.path)}, line {first_line}: has one column, which would be the label; "
                "add features, or say that there is no label (labels=False, --no-label)"
                if n == 1
                else f"{_name(self.path)}, line {first_line}: has no column of features besides "
                "the label and the names of the samples; add features"
            )
        found = Columns(names, features, label, ids, label is not None and is_text[label])
        self._warn_of_names(found)
        return found

    def _warn_of_names(self, columns: Columns) -> None:
        """Warn of the label's name on a feature, and of a name that two features have: names of
        columns are kept where all differ.
        """
        names, of_features = columns.names, columns.feature_names
        if names and columns.label is not None and (name := names[columns.label]) in of_features:
            logger.warning(
                "%s: columns %s are all called %r, as the label, column %d: a copy of the label "
                "among the features is learned from; leave it out", _name(self.path),
                _numbered(names, name), name, columns.label + 1,
            )  # fmt: skip
        for name in [name for name, n in Counter(of_features).most_common(1) if n > 1]:
            logger.warning(
                "%s: columns %s are all called %r: models know the columns by their places and "
                "not by their names, where two features have one name; give each its own",
                _name(self.path), _numbered(names, name), name,
            )  # fmt: skip

    def _place(self, column: Column, names: tuple[str, ...], n: int) -> int:
        if isinstance(column, str) and column in names:
            if names.count(column) > 1:
                places = _numbered(names, column)
                raise DataError(
                    f"{_name(self.path)}: has {names.count(column)} columns {column!r} ({places}); "
                    "give the number of the one that is meant, and leave a copy of the label out, "
                    "which would be a feature"
                )
            return names.index(column)
        if (number := str(column)).isdecimal() and 1 <= int(number) <= n:
            return int(number) - 1
        known = ", ".join(names[:10]) + (" ..." if len(names) > 10 else "")
        raise DataError(
            f"{_name(self.path)}: has no column {column!r}; give a number from 1 to {n}"
            + (f", or a name of its header: {known}" if names else ", since it has no header")
        )

    def _parse(self, chunk: list[Line], separator: str, n_columns: int, first_line: int) -> Chunk:
        columns, texts = self.columns, [text for _, text in chunk]
        wanted = list(columns.features)
        has_numbers = self.has_labels and not columns.is_text
        if has_numbers and columns.label is not None:
            wanted.append(columns.label)
        is_whole = len(wanted) == n_columns
        if is_whole:
            wanted = list(range(n_columns))
        rows: list[list[str]] = []
        has_quotes = any('"' in text for text in texts)
        if not is_whole or has_quotes:
            rows = list(csv.reader(texts, delimiter=separator, skipinitialspace=True))
            if len(rows) != len(chunk) or any(len(row) != n_columns for row in rows):
                raise self._trouble(chunk, separator, n_columns, first_line, "read unevenly")
        if has_quotes:  # one parser reads them, by which the roles of the columns were found, too
            texts = [separator.join([row[k] for k in wanted]) for row in rows]
        try:
            numbers = np.loadtxt(
                texts,
                dtype=np.float64,
                delimiter=separator,
                comments=None,
                usecols=None if is_whole or has_quotes else wanted,
                ndmin=2,
            )
            problem = "" if numbers.shape == (len(chunk), len(wanted)) else f"{numbers.shape}"
        except ValueError as error:
            problem = str(error)
        if problem:
            raise self._trouble(chunk, separator, n_columns, first_line, problem)
        labels: np.ndarray | None = None
        if self.has_labels and columns.is_text and columns.label is not None:
            names = [row[columns.label].strip() for row in rows]
            for (number, _), name in zip(chunk, names, strict=True):
                if not name:
                    raise self._no_label(number, columns.label, "empty")
            labels = np.array(names)
        elif has_numbers and columns.label is not None:
            at = wanted.index(columns.label)
            labels = numbers[:, at].copy()
            numbers = np.delete(numbers, at, axis=1) if at != len(wanted) - 1 else numbers[:, :-1]
            bad = ~np.isfinite(labels)
            if bad.any():
                row = int(bad.argmax())
                raise self._no_label(chunk[row][0], columns.label, f"{labels[row]:g}")
        ids = [] if columns.ids is None else [row[columns.ids].strip() for row in rows]
        if self.ids is None and len(set(ids)) < len(ids):  # of these lines: nobody keeps all names
            k = next(k for k, name in enumerate(ids) if name in ids[:k])
            raise self._no_name(
                chunk[k][0], columns.names, f"{ids[k][:40]!r} a second time, and so does not name "
                "the samples; write a column of 0 and 1 per category, or leave it out",
            )  # fmt: skip
        return Chunk(chunk, numbers, labels, ids)

    def _no_name(self, line: int, names: tuple[str, ...], has: str) -> DataError:
        column = names[0] if names and names[0] else 1
        called = f"column {column!r}" if isinstance(column, str) else "column 1"
        label = f"the label, label={column!r} (--label {column}), or " if self.label is None else ""
        return DataError(
            f"{_name(self.path)}, line {line}: {called} has {has}, or say what it holds: {label}"
            f"names all the same, ids={column!r} (--ids {column})"
        )

    def _no_label(self, line: int, column: int, found: str) -> DataError:
        return DataError(
            f"{_name(self.path)}, line {line}: the label, column {column + 1}, is {found}; give "
            "every sample one, or say that there is no label (labels=False, --no-label)"
        )

    def _open_quote(self, line: int) -> DataError:
        return DataError(
            f"{_name(self.path)}, line {line}: has a quotation mark too many or too few, or a cell "
            "that goes on in the next line; give every cell none or two, and each sample one line: "
            "df.replace(r'\\s+', ' ', regex=True) takes line breaks out of a table"
        )

    def _uneven(self, line: int, got: int, first: int, expected: int) -> DataError:
        return DataError(
            f"{_name(self.path)}, line {line}: has {got} cells, but line {first} has {expected}; "
            "give every line the same number of cells"
        )

    def _trouble(
        self, chunk: list[Line], separator: str, n_columns: int, first_line: int, problem: str
    ) -> DataError:
        """The complaint about unreadable lines, with the place of the first: slow, but precise."""
        where, columns = _name(self.path), self.columns
        is_left = columns.is_text or not self.has_labels
        skipped = {columns.ids, columns.label if is_left else None}
        for number, text in chunk:
            cells = _cells(text, separator)
            if _goes_on(text, separator):
                return self._open_quote(number)
            if len(cells) != n_columns:
                return self._uneven(number, len(cells), first_line, n_columns)
            for column, cell in enumerate(cells):
                is_number = _is_number(cell)
                if column in skipped or (is_number and cell.strip().isascii()):
                    continue
                if column == columns.label and not cell.strip():
                    return self._no_label(number, column, "empty")
                found = f"is {cell[:40]!r}" if cell.strip() else "is empty"
                remedy = (
                    DECIMAL_COMMAS
                    if _DECIMAL_COMMA.fullmatch(cell)
                    else f"write {tables.DAYS}, or leave the column out"
                    if _DATE.fullmatch(cell)
                    else "replace text by numbers, or leave the column out"
                    if cell.strip()
                    else "fill it in, or leave the line or the column out"
                )
                if is_number:
                    remedy = "write it with the digits 0 to 9"
                elif column == columns.label:
                    remedy = "the labels of the lines before are numbers, so give all one kind"
                return DataError(
                    f"{where}, line {number}: column {column + 1} {found}, but a number is "
                    f"expected; {remedy}"
                )
        lines = f"lines {chunk[0][0]} to {chunk[-1][0]}"
        return DataError(f"{where}, {lines}: {problem.rstrip('.')}; give numbers only")


def _numbered(names: tuple[str, ...], name: str) -> str:
    """The numbers of the columns of this name, in words."""
    return ", ".join(str(k) for k, each in enumerate(names, 1) if each == name)


def _name(path: Path) -> str:
    return "standard input" if path == STDIN else str(path)


@contextmanager
def _open(path: Path) -> Iterator[IO[str]]:
    if path == STDIN:
        if isinstance(sys.stdin, io.TextIOWrapper):
            with suppress(io.UnsupportedOperation):  # a script has read some of it
                sys.stdin.reconfigure(encoding="utf-8-sig", newline="")  # as files are read
        yield sys.stdin
    elif path.suffix.lower() == ".gz":
        with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    else:
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield file


def _lines(file: IO[str], where: str) -> Iterator[Line]:
    read = iter(partial(file.readline, MOST_CHARACTERS), "")
    for number, text in enumerate(read, 1):
        if len(text) == MOST_CHARACTERS and not text.endswith(("\n", "\r")):
            raise DataError(
                f"{where}, line {number}: has more than {MOST_CHARACTERS:,} characters; give one "
                "sample a line"
            )
        yield number, text


def _with_commas(line: str) -> str:
    """A line with commas between its cells, where there are only spaces."""
    return line if any(mark in line for mark in SEPARATORS) else ",".join(line.split())


def _as_bytes_if_whole(table: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # NaN does not become a byte, and is found out here
        whole = table.clip(0, 255).astype(np.uint8)
    return whole if np.array_equal(whole, table) else table.copy()


def _cells(text: str, separator: str) -> list[str]:
    return next(csv.reader([text], delimiter=separator, skipinitialspace=True), [])


def _goes_on(text: str, separator: str) -> bool:
    """Whether a quotation mark begins a cell that this line does not end."""
    try:
        _ = list(csv.reader([text], delimiter=separator, skipinitialspace=True, strict=True))
    except csv.Error as error:
        return str(error) == "unexpected end of data"
    return False


def _separator(lines: list[str]) -> str:
    """The mark by which most lines have as many cells as the first, which it divides into the most:
    a name of a column, or of a class, may hold another mark.
    """
    first, *others = lines

    def agrees(mark: str) -> tuple[int, int]:
        n = len(_cells(first, mark))
        return sum(len(_cells(line, mark)) == n for line in others), n

    marks = [mark for mark in SEPARATORS if mark in first and len(_cells(first, mark)) > 1]
    return max(marks, key=agrees) if len(marks) > 1 else (*marks, ",")[0]


def _is_header(first: list[str], second: list[str]) -> bool:
    """Whether the first of two lines holds names.

    It does if it has no number; if its numbers count on, as years or from 0, and those below do
    not go on from them; or if it has text above a number, and its numbers rise from left to
    right, or fall, three or more, as those of names do, of wavelengths too. A sample with text
    for its name or label has text below it, too.
    """
    numbers = [k for k, cell in enumerate(first) if _is_number(cell)]
    if not numbers:
        return True
    if len(first) != len(second):
        return False
    if _is_counted(first):
        shifts = {
            float(second[k]) - float(first[k]) if _is_number(second[k]) else None for k in numbers
        }
        goes_on = len(shifts) == 1 and (shift := shifts.pop()) is not None and shift > 0
        if not goes_on:
            return True
    pairs = list(itertools.pairwise(float(first[k]) for k in numbers))
    rises, falls = all(a < b for a, b in pairs), all(a > b for a, b in pairs) and len(pairs) > 1
    return (rises or falls) and _has_text_above_numbers(first, second)


def _has_text_above_numbers(first: list[str], second: list[str]) -> bool:
    return any(
        not _is_number(name) and name.strip().lower() not in MISSING and _is_number(cell)
        for name, cell in zip(first, second, strict=False)
    )


def _is_counted(cells: list[str]) -> bool:
    """Whether the cells are 0, 1, 2 and so on, as pandas and polars number columns, three at least,
    since a sample may well have 0 and 1; or three years that follow one another, or two beside
    text. There may be text at the ends, or nothing above an index.
    """
    named = [cell.strip() for cell in cells]
    numbers = [cell for cell in named if _is_number(cell)]
    inner = named[not _is_number(named[0]) : len(named) - (not _is_number(named[-1]))]
    if len(numbers) < 2 or inner != numbers or not (numbers[0] == "0" or len(numbers[0]) == 4):
        return False
    if not MISSING.isdisjoint(cell.lower() for cell in (named[0] or "index", named[-1])):
        return False
    if not numbers[0].isdecimal():
        return False
    begin = int(numbers[0])
    if numbers != [str(begin + k) for k in range(len(numbers))]:
        return False
    has_text = any(cell and not _is_number(cell) for cell in named)
    return len(numbers) >= (2 if has_text and begin else 3) and (begin == 0 or begin in YEARS)


# Not 1,000, which is a thousand to many.
_DECIMAL_COMMA = re.compile(r"\s*[-+]?(0,\d+|\d+,(\d{1,2}|\d{4,}))\s*")
DECIMAL_COMMAS = (
    "decimal commas are not read: write points, as 1.5, or read the file with "
    'pandas.read_csv(decimal=",")'
)


_DATE = re.compile(r"\s*(\d{4}([-/.])\d\d?\2\d\d?|\d\d?([-/.])\d\d?\3\d{4})([T ][\d:.Z+-]*)?\s*")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python's own digit separator is no number in a file


def _is_value(cell: str) -> bool:
    """Whether a text is a number to people: a truth value, 10%, $5, 1,000."""
    return cell.strip().lower() in ("true", "false") or _is_number(re.sub("[%$€£, ]", "", cell))
