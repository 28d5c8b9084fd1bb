"""Labels that are no numbers: text, truth values, dates, any distinguishable values.

Their sorted order is their coding: class k is the k-th of them. Whole numbers are never coded, as
they count from 0 already.
"""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np

from horn.errors import DataError, ModelError

logger = logging.getLogger(__name__)

Classes = tuple[Any, ...]
NAMED = "bUSOM"  # kinds of arrays of labels that are no whole numbers: truth values, text, dates
LABELS = "iu" + NAMED
LARGEST = int(np.iinfo(np.int64).max)
SHOWN = 5  # classes that a message names


def code(y: np.ndarray, what: str) -> tuple[np.ndarray, Classes | None]:
    """The codes (n,) int64 and the classes of labels of any kind; whole numbers stay, with None.

    Raises
    ------
    DataError : a label is missing (None or NaN), or is a list or another thing without a hash.
    """
    if y.dtype.kind == "b":  # both, also where only one occurs: False is always 0
        return y.astype(np.int64), (False, True)
    if y.dtype.kind in "USM":
        found, codes = np.unique(y, return_inverse=True)
        if y.dtype.kind == "M" and np.isnat(y).any():
            raise missing(int(np.isnat(y).sum()), int(np.isnat(y).argmax()), what)
        return codes.astype(np.int64), values(found)
    labels = [as_python(label) for label in y.tolist()]
    empty = [row for row, label in enumerate(labels) if _is_missing(label)]
    if empty:
        raise missing(len(empty), empty[0], what)
    if all(isinstance(label, int) and not isinstance(label, bool) for label in labels):
        if far := [row for row, label in enumerate(labels) if not -LARGEST <= label <= LARGEST]:
            raise DataError(
                f"{what}: label {labels[far[0]]} in row {far[0]:,} is too far from 0 for a whole "
                "number of 64 bits; give labels as text, as str(label)"
            )
        return np.array(labels, np.int64), None
    numbers = {
        isinstance(label, bool): label for label in labels if isinstance(label, (int, float))
    }
    if len(numbers) > 1:
        raise DataError(
            f"{what}: y holds truth values and numbers, such as {numbers[True]} and "
            f"{numbers[False]}, but True is 1: these would be one class; give one kind of them"
        )
    try:
        distinct = set(labels)
    except TypeError as error:
        raise DataError(
            f"{what}: y holds labels that cannot be told apart ({error}); give one text or number "
            "per sample, or rows of numbers as an array of two axes"
        ) from None
    if all(isinstance(label, bool) for label in distinct):
        return np.array(labels, np.int64), (False, True)
    classes = _sorted(distinct)
    lookup = {label: k for k, label in enumerate(classes)}
    return np.array([lookup[label] for label in labels], np.int64), classes


def missing(n: int, row: int, what: str) -> DataError:
    return DataError(
        f"{what}: y has no label in row {row:,} ({n:,} such row{'s' * (n != 1)} in all); leave "
        "those samples out, or give them a class of their own"
    )


def values(found: np.ndarray) -> Classes:
    """Labels (n,) as Python's values. Its dates count to the microsecond: where some are finer, or
    in years that it does not have, dates are text.
    """
    if found.dtype.kind != "M":
        return tuple(found.tolist())
    in_us = found.astype("datetime64[us]")
    for dates in (found, in_us) if (in_us == found).all() else ():
        labels = tuple(dates.tolist())
        if not any(isinstance(label, int) for label in labels):
            return labels
    return tuple(map(str, found))


def as_python(label: Any) -> Any:
    """A label with Python's own values in place of NumPy's, also within a tuple."""
    if isinstance(label, tuple):
        return tuple(map(as_python, label))
    return label.item() if isinstance(label, np.generic) else label


def _is_missing(label: Any) -> bool:
    # pandas.NA and NaT are told by their types: horn does not import pandas
    return (
        label is None
        or type(label).__name__ in ("NAType", "NaTType")
        or (isinstance(label, float) and label != label)
        or (isinstance(label, Decimal) and label.is_nan())
    )


def _sorted(distinct: set[Any]) -> Classes:
    with suppress(TypeError):  # of several types
        if not any(map(_is_set, distinct)):  # ``<`` of two sets says which is part of the other
            return tuple(sorted(distinct))
    return tuple(sorted(distinct, key=lambda label: (type(label).__name__, _text(label))))


def _is_set(label: Any) -> bool:
    return isinstance(label, Set) or (isinstance(label, tuple) and any(map(_is_set, label)))


def _text(label: Any) -> str:
    """The representation of a label, that of a set with its members in order: its own has the order
    of their hashes, which another process draws anew.
    """
    if isinstance(label, Set):
        return ", ".join(sorted(map(_text, label)))
    return f"({', '.join(map(_text, label))})" if type(label) is tuple else repr(label)


def recode(
    y: np.ndarray, own: Classes | None, classes: Classes | None, what: str, owner: str
) -> np.ndarray:
    """Labels (n,) int64, or (n, steps), of ``own`` classes (None: whole numbers), recoded as those
    of other ``classes``.

    Raises
    ------
    DataError : a label is none of the ``owner``'s ``classes``; all such labels are named.
    """
    if classes is None:
        if own is not None and all(isinstance(label, bool) for label in own):
            return y
        if own is None:
            return y
        raise DataError(
            f"{what}: its labels are {said(own)}, but {owner} has whole numbers; give the same "
            "kind of labels to both"
        )
    numbers = np.unique(y)
    labels = [int(k) if own is None else own[k] for k in numbers.tolist()]
    lookup = {label: k for k, label in enumerate(_read_as(labels, classes))}
    lookup |= {label: k for k, label in enumerate(classes)}
    alike = zip(labels, _read_as(classes, labels), strict=True)
    codes = [lookup.get(label, lookup.get(read, -1)) for label, read in alike]
    if unknown := [k for k, found in enumerate(codes) if found < 0]:
        bad = np.isin(y, numbers[unknown]).reshape(len(y), -1).any(axis=1)
        n = int(bad.sum())
        remedy = "Leave those samples out, or train with all classes"
        if len(unknown) == len(labels):
            remedy = (
                f"None is known: if they are the same in another code, write them as {owner} does"
            )
        raise DataError(
            f"{what}: has labels that {owner} does not have: "
            f"{said([labels[k] for k in unknown])} ({n:,} sample{'s' * (n != 1)}, the first in row "
            f"{int(bad.argmax()):,}); it has {said(classes)}. {remedy}"
        )
    table: np.ndarray = np.array(codes, np.int64)
    coded: np.ndarray = table[np.searchsorted(numbers, y)]
    return coded


def _read_as(others: Sequence[Any], labels: Sequence[Any]) -> list[Any]:
    """Labels as values of the kind that all ``others`` are: text that files have for truth values
    and dates, as True and 2020-01-01, is read; beside text, what a model file keeps as text is
    that. Days are their midnights. Labels of which two would then be equal stay as they are.
    """
    are_text = all(isinstance(other, str) for other in others)
    read: Callable[[str], Any] = str
    if all(isinstance(other, bool) for other in others):
        read = {"True": True, "False": False, "true": True, "false": False}.__getitem__
    elif all(isinstance(other, datetime.date) for other in others):
        read = datetime.datetime.fromisoformat
    found = []
    for label in labels:
        if type(label) is datetime.date:
            label = datetime.datetime(label.year, label.month, label.day)
        elif isinstance(label, str):
            with suppress(KeyError, ValueError):  # other text stays text
                label = read(label)
        elif are_text and not _is_plain(label):
            label = _from_json(_to_json(label))
        found.append(label)
    return found if len(set(found)) == len(found) else list(labels)


def said(classes: Iterable[Any]) -> str:
    """Some of the classes, in words."""
    names = [repr(label) for label in classes]
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def as_array(classes: Sequence[Any]) -> np.ndarray:
    """The classes as an array of one axis, of text, truth values or numbers, or else of objects."""
    kinds = {type(label) for label in classes}
    if len(kinds) == 1 and kinds <= {str, bool, int, float}:
        array = np.array(list(classes))
        if array.tolist() == list(classes):  # integers up to 2**64 beside small ones become floats
            return array
    array = np.empty(len(classes), object)
    array[:] = list(classes)
    return array


# in a model file

_SURROGATE = re.compile("[\ud800-\udfff]")


def to_json(classes: Classes) -> list[Any]:
    """The classes as plain JSON values; others are kept as text, with a warning."""
    odd = [label for label in classes if not _is_plain(label)]
    if odd:
        logger.warning(
            "a model file keeps classes of type %s as text: %s is %r there",
            type(odd[0]).__name__, odd[0], str(odd[0]),
        )  # fmt: skip
    return [_to_json(label) for label in classes]


def check_kept(classes: Classes | Mapping[str, Classes | None] | None, what: str) -> None:
    """Raise DataError where a model file could not tell two of the classes apart."""
    each = classes.values() if isinstance(classes, Mapping) else [classes]
    for own in each:
        kept: dict[Any, Any] = {}
        for label in own or ():
            as_kept = _from_json(_to_json(label))
            if as_kept in kept:
                raise DataError(
                    f"{what}: the classes {kept[as_kept]!r:.80} and {label!r:.80} are both "
                    f"{as_kept!r:.80} in a model file, which keeps classes of type "
                    f"{type(label).__name__} as text; give labels that differ as text, too"
                )
            kept[as_kept] = label


def all_to_json(classes: Classes | Mapping[str, Classes | None]) -> Any:
    """The classes for JSON, as ``to_json``; of several outputs by name, for those with labels."""
    if not isinstance(classes, Mapping):
        return to_json(classes)
    return {name: None if own is None else to_json(own) for name, own in classes.items()}


def all_from_json(found: Any) -> Classes | dict[str, Classes | None]:
    """The classes that ``all_to_json`` wrote. Raises ModelError."""
    if not isinstance(found, Mapping):
        return from_json(found)
    return {str(name): None if own is None else from_json(own) for name, own in found.items()}


def _is_plain(label: Any) -> bool:
    if isinstance(label, tuple):
        return all(map(_is_plain, label))
    return type(label) in (str, bool, int, float, bytes, datetime.date, datetime.datetime)


def _to_json(label: Any) -> Any:
    if isinstance(label, tuple):
        return {"tuple": [_to_json(part) for part in label]}
    if type(label) is bytes:
        return {"bytes": label.hex()}
    if type(label) in (datetime.date, datetime.datetime):
        return {type(label).__name__: label.isoformat()}
    if type(label) in (bool, int, float):
        return label
    text = str(label)
    if _SURROGATE.search(text):  # half a character has no bytes in UTF-8, nor in a model file
        return {"utf-16": text.encode("utf-16-le", "surrogatepass").hex()}
    return text


def from_json(found: Any) -> Classes:
    """The classes that ``to_json`` wrote. Raises ModelError."""
    if not isinstance(found, list) or not found:
        raise ModelError(f"classes are a list, not {found!r:.80}")
    classes = tuple(_from_json(label) for label in found)
    if len(set(classes)) != len(classes):
        raise ModelError(f"classes are named twice: {said(classes)}")
    return classes


def _from_json(found: Any) -> Any:
    if not isinstance(found, Mapping):
        if isinstance(found, (str, bool, int, float)):
            return found
        raise ModelError(f"{found!r:.80} is no class")
    [(kind, value)] = found.items()
    if kind == "tuple":
        return tuple(_from_json(part) for part in value)
    if kind == "bytes":
        return bytes.fromhex(value)
    if kind == "utf-16":
        return bytes.fromhex(value).decode("utf-16-le", "surrogatepass")
    if kind in ("date", "datetime"):
        return getattr(datetime, kind).fromisoformat(value)
    raise ModelError(f"{kind!r:.80} is no kind of class")
