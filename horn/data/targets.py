"""Targets of several outputs by name, {"digit": labels, "side": numbers}: they are side by side in
the columns of y, so that they are shuffled, split and shared as the targets of one output are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from horn.data import arrays
from horn.data.classes import Classes, recode
from horn.errors import DataError

EXACT_IN_FLOAT32 = 1 << 24  # labels above are kept in double


@dataclass(frozen=True)
class OutputTargets:
    """The place of one output's targets in y: ``size`` columns from ``first``.

    is_labels : whole numbers, in one column, or ``by_step`` one for each step of a sequence.
    classes, shape : as ``Dataset.classes`` and ``Dataset.target_shape``.
    """

    name: str
    first: int
    size: int
    is_labels: bool = False
    classes: Classes | None = None
    by_step: bool = False
    shape: tuple[int, ...] = ()

    @property
    def columns(self) -> slice:
        return slice(self.first, self.first + self.size)


Parts = tuple[OutputTargets, ...]


def side_by_side(given: Mapping[Any, Any], what: str) -> tuple[np.ndarray, Parts]:
    """The targets of all outputs, each as of one, as the columns of one array (n, columns).

    Raises
    ------
    DataError : none, lengths that differ, or targets that one output could not have.
    """
    given, found = columns_of(given, what), {}
    for name, y in given.items():
        found[name] = arrays.as_labels_or_targets(y, f"{what}: {name}")
    whole, parts = put_together(found, what)
    shapes = {name: arrays.target_shape(y, found[name][0]) for name, y in given.items()}
    return whole, tuple(replace(part, shape=shapes[part.name]) for part in parts)


def columns_of(given: Mapping[Any, Any], what: str) -> dict[str, Any]:
    """The targets by their names, checked. Raises DataError."""
    for name, y in given.items():
        if not isinstance(name, str):
            raise DataError(
                f'{what}: targets are named by outputs, as {{"digit": labels}}; got {name!r}'
            )
        if y is None:
            raise DataError(f"{what}: targets of {name!r} are None; give them, or leave it out")
    if not given:
        raise DataError(f"{what}: y is an empty dict; name the targets of each output")
    return dict(given)


def put_together(
    found: Mapping[str, tuple[np.ndarray, Classes | None]], what: str
) -> tuple[np.ndarray, Parts]:
    """The columns, as ``side_by_side``, from targets as a ``Dataset`` has them, with classes."""
    lengths = {name: len(array) for name, (array, _) in found.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{n:,} ({name!r})" for name, n in lengths.items())
        raise DataError(f"{what}: the outputs have {said} targets; give each of them the same")
    parts, first, is_small = [], 0, True
    for name, (array, classes) in found.items():
        is_labels = array.dtype.kind == "i"
        size = 1 if array.ndim == 1 else array.shape[1]
        by_step = is_labels and array.ndim > 1
        parts.append(OutputTargets(name, first, size, is_labels, classes, by_step))
        first += size
        most = EXACT_IN_FLOAT32
        is_exact = is_labels and -most < array.min(initial=0) <= array.max(initial=0) < most
        is_small &= is_exact or array.dtype == np.float32
    columns = [a.reshape(len(a), -1) for a, _ in found.values()]
    whole = np.concatenate(columns, axis=1, dtype=np.float32 if is_small else np.float64)
    return whole, tuple(parts)


def by_part(
    y: np.ndarray, parts: Parts, f: Callable[[np.ndarray, str], np.ndarray]
) -> tuple[np.ndarray, Parts]:
    """The targets with f applied to the columns of each output, with its name as the second."""
    made = [f(y[:, part.columns], part.name) for part in parts]
    found, first = [], 0
    for part, own_columns in zip(parts, made, strict=True):
        found.append(replace(part, first=first, size=own_columns.shape[1]))
        first += own_columns.shape[1]
    return np.concatenate(made, axis=1), tuple(found)


def own(y: np.ndarray, part: OutputTargets) -> np.ndarray:
    """The targets of one output as if it were the only one: (n,) or (n, steps) int64 labels, or
    (n, size).
    """
    columns = y[:, part.columns]
    if part.is_labels:
        return (columns if part.by_step else columns[:, 0]).astype(np.int64)
    return columns


def recoded(
    y: np.ndarray, parts: Parts, classes: Mapping[str, Classes | None], what: str, owner: str
) -> tuple[np.ndarray, Parts]:
    """The labels of each output coded as an ``owner``'s classes. Raises DataError."""
    found = []
    for part in parts:
        wanted = classes.get(part.name)
        if part.is_labels and part.name in classes and part.classes != wanted:
            new = recode(own(y, part), part.classes, wanted, f"{what}: {part.name}", owner)
            y = y.astype(np.float64) if new.max(initial=0) >= EXACT_IN_FLOAT32 else y.copy()
            y[:, part.columns] = new.reshape(len(new), -1)
            part = replace(part, classes=wanted)
        found.append(part)
    return y, tuple(found)


def named(data: Any, names: Sequence[str], what: str) -> Any:
    """The pair (x, y) with targets by the names of the outputs that have some, where y is a tuple
    or a list of them in that order; anything else unchanged.

    Raises DataError: too many, or too few.
    """
    if len(names) < 2 or not isinstance(data, tuple) or len(data) != 2:
        return data
    x, y = data
    if isinstance(y, Mapping) or not isinstance(y, (tuple, list)):
        return data
    is_rows = any(isinstance(k, str) or getattr(k, "ndim", hasattr(k, "__len__")) == 0 for k in y)
    if is_rows or len(y) != len(names):
        got = "a list of numbers" if is_rows else f"{len(y)} arrays"
        raise DataError(
            f"{what}: y is {got}, but the network has the outputs {', '.join(names)}; "
            f"give a dict by these names, or a tuple of {len(names)} in this order"
        )
    return x, dict(zip(names, y, strict=True))
