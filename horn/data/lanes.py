"""Long sequences cut into pieces: the lanes of a stateful job, and sequences longer than a
network's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from horn.data import arrays, in_steps, units
from horn.data.classes import NAMED
from horn.data.conversion import as_dataset
from horn.data.dataset import Dataset
from horn.data.in_steps import (
    Coded,
    TargetShapes,
    as_asked,
    check_no_floats,
    is_ragged,
    labels_of,
    with_answers,
)
from horn.errors import DataError
from horn.formats.tables import names_of_all
from horn.formats.tensors import apart


def whole(data: Any, features: int, shapes: TargetShapes, what: str) -> Dataset:
    """Sequences of any length as one dataset, a row each. Each may have more steps than a network
    takes at a time.

    data : x, or (x, y), or a dataset whose rows are the steps of one sequence (as
    ``horn.data.text(path)``). x (steps, features) is one sequence, (n, steps, features) are n; for
    one feature also (steps,) and (n, steps). y, for each step: labels (steps,) or (n, steps),
    targets (steps, size) or (n, steps, size), for one number also without the last axis; for
    several outputs {name: either}. shapes : as for ``of_steps``.

    Raises
    ------
    DataError : other shapes.
    """
    if isinstance(data, Dataset):
        if data.lengths is not None:
            raise _differ(what)
        return _of_rows(as_asked(data, features, shapes, what), features, what)
    x, y = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    if isinstance(x, (Dataset, str)):
        return as_dataset(data, what)  # which raises the error
    x = apart(x)
    names = names_of_all(x, what)
    if isinstance(x, list) and is_ragged(x):
        raise _differ(what)
    found = arrays.plain(x, f"{what}: x")
    unit, x, given = units.unit_of(x, found, what), found, found.shape
    if x.ndim == 1 and features == 1:
        x = x[:, None]
    is_one = x.ndim == 2 and x.shape[1] == features
    if is_one:
        x = x[None]
    elif x.ndim == 2 and features == 1:
        x = x[:, :, None]
    if x.ndim != 3 or x.shape[2] != features or not x.size:
        raise DataError(
            f"{what}: x has shape {given}, but sequences in pieces are one of shape (steps, "
            f"{features}), or several (n, steps, {features})"
        )
    n, steps, _ = x.shape
    found, _ = arrays.as_features(x.reshape(n, -1), what, unit)

    def own(y: Any, name: str, where: str) -> Coded:
        _, size = shapes.get(name or next(iter(shapes), ""), (True, 0))
        y = arrays.plain(y, f"{where}: y")
        y = y[None] if is_one else y
        if y.shape == (n, steps) and (y.dtype.kind in NAMED or y.dtype.kind in "iu" and size > 1):
            return labels_of(y, where)
        if y.shape == (n, steps):
            check_no_floats(y, size, where)
        if y.shape not in ((n, steps, size), *([(n, steps)] if size == 1 else [])):
            raise DataError(
                f"{where}: y has shape {y.shape}, but of sequences in pieces each step is asked: "
                f"labels ({n}, {steps}) or targets ({n}, {steps}, {size}), of one sequence without "
                f"the {n}"
            )
        y = y if y.dtype.kind == "f" else y.astype(np.float64)
        return arrays.as_labels_or_targets(y.reshape(n, -1), where)

    made = Dataset(found, None, unit.scale, what, feature_names=names, scale_is=unit.why)
    return with_answers(made, y, own, what)


def _differ(what: str) -> DataError:
    return DataError(
        f"{what}: sequences of different lengths are not cut into pieces: give one long sequence, "
        "or several of one length; of these, leave stateful=True out, and horn takes each as it is"
    )


def joined(data: Dataset) -> Dataset:
    """The whole sequences of a dataset of pieces; views."""
    n = len(data) // data.pieces
    return data.mapped(
        data.x.reshape(n, -1),
        of_rows=lambda each: each[:: data.pieces],
        of_steps=lambda each, _: each.reshape(n, -1),
        pieces=1,
    )


def _of_rows(data: Dataset, features: int, what: str) -> Dataset:
    """A dataset of steps as one with a single sequence, one of sequences, without shapes."""
    if data.n_features % features:
        raise DataError(
            f"{what}: has {data.n_features:,} numbers in a row, which are no steps of {features}"
        )
    if not is_alone(data, features):
        steps, y = data.n_features // features, data.y
        sizes = [part.size for part in data.targets] or [0 if y is None else y[0].size]
        if y is not None and any(size % steps for size in sizes):
            raise DataError(
                f"{what}: y has shape {y.shape}, but each of {steps:,} steps is asked: labels "
                f"({len(data)}, {steps}), or targets ({len(data)}, {steps}, size)"
            )
        return data.with_fields(ids=None, shape=())  # pieces have others
    found = data.mapped(  # weights, too, are of steps
        data.x.reshape(1, -1), of_rows=lambda each: each.reshape(1, -1), ids=None, shape=()
    )
    parts = tuple(replace(each, by_step=each.is_labels) for each in found.targets)
    return found.with_fields(targets=parts)


def ending(data: Dataset, features: int, fraction: float) -> tuple[Dataset, Dataset]:
    """Split a single sequence: without its end, and the end: about a fraction of its steps."""
    n = data.n_features // features
    at = n - round(n * fraction)
    return _steps(data, features, 0, at), _steps(data, features, at, n)


def _steps(data: Dataset, features: int, first: int, last: int) -> Dataset:
    n = data.n_features // features

    def cut(each: np.ndarray, _: str | None) -> np.ndarray:
        per = each.shape[1] // n
        return each[:, first * per : last * per]

    x = data.x[:, first * features : last * features]
    return data.mapped(x, of_rows=lambda each: each, of_steps=cut)


def pieces(
    data: Dataset, features: int, steps: int, lanes: int, what: str, *, least: int = 1
) -> Dataset:
    """Cut sequences into pieces of so many steps, one after the other (``Dataset.pieces``). A
    single sequence is cut into lanes first, which are then the sequences. Steps at the end of each
    that fill no piece are left out. least : how many pieces each must have; 2 of training data, for
    something to go on from piece to piece.

    Raises
    ------
    DataError : there are fewer.
    """
    n, length = len(data), data.n_features // features
    if n == 1 and lanes > 1:
        n, length = lanes, length // lanes
    count = length // steps
    long = f"{n:,} lanes of {length:,} steps" if len(data) == 1 else f"{length:,} steps each"
    if count < least == 1:
        raise DataError(f"{what}: has {long}, which fill no piece of {steps:,}; give longer ones")
    if count < least:
        raise DataError(
            f"{what}: nothing goes on from piece to piece: {long}, and pieces of {steps:,}. Pass "
            "one long sequence, as horn.data.text(path) without steps, fewer lanes (batch_size) or "
            "shorter pieces (truncate); sequences that end with a piece need no stateful=True"
        )
    taken = _steps(data, features, 0, (n // len(data)) * length)
    x = _cut(taken.x, n, length * features, count, steps * features)

    def cut(each: np.ndarray, _: str | None) -> np.ndarray:
        per = each.shape[1] // (taken.n_features // features)
        return _cut(each, n, length * per, count, steps * per)

    def of_each(each: np.ndarray) -> np.ndarray:
        return np.repeat(each, len(x) // len(taken), axis=0)

    return taken.mapped(x, of_rows=of_each, of_steps=cut, pieces=count)


def to_the_end(data: Dataset, features: int, steps: int) -> Dataset:
    """Cut sequences into pieces, as ``pieces``; the last of each ends where the sequence does."""
    n, length = len(data), data.n_features // features
    count, ends = -(-length // steps), np.full(n, length)

    def longer(each: np.ndarray, _: str | None = None) -> np.ndarray:
        found = in_steps.filled(each.reshape(n, length, -1), ends, count * steps)
        return found.reshape(n, -1)

    full = data.mapped(longer(data.x), of_rows=lambda each: each, of_steps=longer)
    found = pieces(full, features, steps, 1, "x")
    of_pieces = np.minimum(length - steps * np.arange(count), steps)
    return found.with_fields(lengths=np.tile(of_pieces, n), shape=(steps, features))


def longer(data: Dataset, features: int, steps: int) -> Dataset:
    """The sequences of a dataset of pieces in longer ones, of so many steps; the last of each ends
    where the sequence does. Each has one length.
    """
    whole = joined(data.with_fields(lengths=None, shape=()))
    length = whole.n_features // features
    if data.lengths is not None:
        length = int(data.lengths[: data.pieces].sum())
        whole = _steps(whole, features, 0, length)
    if length % steps:
        return to_the_end(whole, features, steps)
    return pieces(whole, features, steps, 1, data.name)


def _cut(array: np.ndarray, n: int, whole_row: int, count: int, row: int) -> np.ndarray:
    """The first pieces of n sequences, (n * count, row); a view where the memory allows."""
    found = array.reshape(n, whole_row)[:, : count * row].reshape(n * count, row)
    return np.ascontiguousarray(found)


def is_alone(x: Any, features: int) -> bool:
    """Whether x is one sequence, and not several; of a dataset, whose rows are plain."""
    if isinstance(x, Dataset):
        return x.n_features == features and not x.shape
    shape = np.shape(x)
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == features)
