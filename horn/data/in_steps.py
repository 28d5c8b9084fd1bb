"""Sequences as rows: (n, steps, features) with what is asked of the last step, or of each.

Of sequences that end early the steps behind the end hold what the last one held: no number that is
not among the data, and nothing is learned from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from horn.data import arrays
from horn.data.checks import as_dataset
from horn.data.dataset import Dataset
from horn.errors import DataError
from horn.formats import parts

Array = np.ndarray[Any, Any]


def sequences(x: Any, y: Any = None, *, lengths: Any = None, steps: int | None = None) -> Dataset:
    """Sequences of any lengths as a dataset, for ``net.input(features, steps=...)``.

    x : a list of arrays, one per sequence: (steps, features), or (steps,) of one feature; or an
    array (n, steps, features), or (n, steps), of which sequence k has ``lengths[k]`` steps (what
    is behind them is not read). y : of each sequence labels (n,) or targets (n, size); of each step
    a list of arrays, (steps,) or (steps, size) as long as the sequences, or of arrays (n, steps) or
    (n, steps, size). steps : to how many they are filled up, by default the longest's; networks
    with more take them, too.

    Raises
    ------
    DataError : an empty sequence, lengths beyond the array, features or lengths that differ.
    """
    if isinstance(x, Dataset):
        raise DataError(f"{x.name}: is a dataset already; pass the arrays that it was made from")
    what = "sequences"
    if _is_list(x):
        if lengths is not None:
            raise DataError(
                f"{what}: a list of arrays says how long each is; leave lengths out, or pass one "
                "array (n, steps, features)"
            )
        whole, ends = _of_list(x, what, "x")
    else:
        whole = _numbers(x, what)
        if whole.ndim not in (2, 3):
            raise DataError(
                f"{what}: x has shape {whole.shape}, but (n, steps, features) is expected, or a "
                "list of arrays (steps, features)"
            )
        whole = whole[:, :, None] if whole.ndim == 2 else whole
        ends = _checked_lengths(lengths, len(whole), whole.shape[1], what)
    given = None if y is None else _targets(y, ends, what)
    if not len(ends):
        raise DataError(f"{what}: there are none; pass at least one")
    longest = int(ends.max())
    if steps is not None and (type(steps) is not int or steps < longest):
        k = int(ends.argmax())
        raise DataError(
            f"{what}: sequence {k} has {longest:,} steps, but steps={steps!r}; take "
            f"steps={longest}, or cut it"
        )
    return _dataset(whole, given, ends, steps or longest, what)


def _dataset(x: Array, y: Array | None, ends: Array, steps: int, what: str) -> Dataset:
    """x (n, any steps, features) · y as it is, by step where it has the steps of x."""
    n_before, is_whole = x.shape[1], bool((ends == steps).all())
    shape = (steps, x.shape[2])
    x = _filled(x, ends, steps).reshape(len(x), -1)
    if y is not None and len(y) != len(x):
        raise DataError(
            f"{what}: there are {len(x):,} sequences, but {len(y):,} in y; pass as many"
        )
    if y is not None and _by_step(y, n_before, steps):
        y = _filled(y, ends, steps)
    elif y is not None and y.dtype.kind == "f" and y.ndim == 2 and y.shape[1] == steps:
        behind = (
            np.arange(steps) >= ends[:, None]
        )  # if they are of steps; what is there is not read
        y = np.where(behind & ~np.isfinite(y), 0.0, y)
    found, scale = arrays.as_features(x, what)
    labels, classes = None, None
    if y is not None and y.ndim == 2 and y.dtype.kind in "iub" and y.shape[1] == steps:
        labels = np.ascontiguousarray(y, np.int64)
    elif y is not None:
        flat = y.reshape(len(y), -1) if y.ndim > 1 else y
        labels, classes = arrays.as_labels_or_targets(flat, what)
    lengths = None if is_whole else ends
    made = Dataset(found, labels, scale, what, classes, shape=shape, lengths=lengths)
    return as_dataset(made, what)


def _by_step(y: Array, n_before: int, steps: int) -> bool:
    """Whether y is taken to have an entry for each step. Numbers may be of the whole sequence."""
    may_be = y.ndim == 2 and y.shape[1] == n_before
    return y.ndim == 3 or (may_be and (y.dtype.kind in "iub" or steps != n_before))


def _filled(array: Array, ends: Array, steps: int) -> Array:
    """The same with so many steps, those behind the end of a sequence as its last one."""
    n_before = array.shape[1]
    if n_before == steps and (ends == steps).all():
        return array
    places = np.minimum(np.arange(steps), ends[:, None] - 1)
    return np.asarray(array[np.arange(len(array))[:, None], places])


def _is_list(x: Any) -> bool:
    return isinstance(x, (list, tuple)) or (isinstance(x, np.ndarray) and x.dtype == object)


def _numbers(x: Any, what: str) -> Array:
    try:
        found = np.asarray(x)
    except ValueError as error:
        raise DataError(f"{what} is not a rectangular array ({error})") from error
    if found.dtype.kind not in "biuf":
        raise DataError(
            f"{what} holds {parts.kind_name(found.dtype)}, but numbers are expected; convert it "
            "to a numeric type first"
        )
    return found


def _of_list(x: Any, what: str, letter: str) -> tuple[Array, Array]:
    """(n, longest, features) and how long each is."""
    each = [_numbers(one, f"{what}: {letter}[{k}]") for k, one in enumerate(x)]
    if not each:
        raise DataError(f"{what}: there are none; pass at least one")
    for k, one in enumerate(each):
        if one.ndim not in (1, 2):
            raise DataError(
                f"{what}: {letter}[{k}] has shape {one.shape}, but a sequence is (steps, "
                "features), or (steps,) of one feature"
            )
    each = [one[:, None] if one.ndim == 1 else one for one in each]
    width = each[0].shape[1]
    for k, one in enumerate(each):
        if not one.size:
            raise DataError(f"{what}: {letter}[{k}] is empty; leave the sequence out")
        if one.shape[1] != width:
            raise DataError(
                f"{what}: {letter}[{k}] has {one.shape[1]} numbers per step, but {letter}[0] has "
                f"{width}; give all of them the same"
            )
    ends = np.array([len(one) for one in each])
    found = np.zeros((len(each), int(ends.max()), width), np.result_type(*each))
    for row, one in zip(found, each, strict=True):
        row[: len(one)] = one
    return found, ends


def _checked_lengths(lengths: Any, n: int, steps: int, what: str) -> Array:
    if lengths is None:
        return np.full(n, steps)
    found = np.asarray(lengths)
    if found.shape != (n,) or found.dtype.kind not in "iu":
        raise DataError(
            f"{what}: lengths is {found.dtype} of shape {found.shape}, but ({n},) whole numbers "
            "are expected: how many steps each sequence has"
        )
    wrong = np.flatnonzero((found < 1) | (found > steps))
    if len(wrong):
        k = wrong[0]
        remedy = "leave the sequence out" if found[k] < 1 else "give the steps that are there"
        raise DataError(
            f"{what}: lengths[{k}] is {found[k]}, but the array has 1 to {steps:,} steps; {remedy}"
        )
    return found.astype(np.int64)


def _targets(y: Any, ends: Array, what: str) -> Array:
    """y as one array: of each sequence, or (n, longest, ...) of each step."""
    if not _is_list(y):
        return np.asarray(y)
    if not len(y) or all(np.ndim(one) == 0 for one in y):
        return np.asarray(y)
    each = [np.asarray(one) for one in y]
    if len({one.shape for one in each}) == 1:
        return np.asarray(each)
    if len(each) == len(ends):
        for k, (one, n) in enumerate(zip(each, ends, strict=True)):
            if one.ndim == 0 or len(one) != n:
                got = f"{len(one):,} entries" if one.ndim else "one number"
                raise DataError(
                    f"{what}: y[{k}] has {got}, but sequence {k} has {n:,} steps; give one entry "
                    "for each step, or one for each sequence"
                )
    found, _ = _of_list(y, what, "y")
    return found[:, :, 0] if all(one.ndim == 1 for one in each) else found


def of_steps(data: Any, steps: int, features: int, each: bool, size: int, what: str) -> Any:
    """A dataset of sequences, or of (x, y); what is no array, as it is.

    x (n, steps, features), or (n, steps) of one feature, or a list of such of any lengths, or of
    fewer steps · y, of the last step: labels (n,) or targets (n, size); of ``each`` step: labels
    (n, steps), targets (n, steps, size), or (n, steps) of one; or a list of arrays. Labels stay
    whole numbers, bytes stay bytes.

    Raises
    ------
    DataError : other shapes; labels of each step for a network that answers by its last, and the
    other way round.
    """
    x, y = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    if isinstance(x, Dataset):
        return _of_dataset(x, steps, features, each, what)
    if isinstance(x, str) or not hasattr(x, "__array__") and not _is_list(x):
        return data
    ends = None
    x = list(x) if _is_list(x) else x
    if isinstance(x, list) and is_ragged(x):
        x, ends = _of_list(x, what, "x")
        if y is not None and not each and _is_list(y) and is_ragged(y):
            raise DataError(
                f"{what}: y has an entry for each step, but the network answers by its last step: "
                "pass one of each sequence, or ask each step: net.output(..., each_step=True)"
            )
        y = None if y is None else _targets(y, ends, what)
    x = np.asarray(x)
    y = None if y is None else np.asarray(y)
    is_flat = x.ndim == 2 and x.shape[1] == steps * features and ends is None
    if x.ndim == 2 and features == 1 and not is_flat:
        x = x[:, :, None]
    if not is_flat and (x.ndim != 3 or x.shape[2] != features or not 1 <= x.shape[1] <= steps):
        longest = "" if ends is None else f" (x[{int(ends.argmax())}] is the longest)"
        raise DataError(
            f"{what}: x has shape {x.shape}{longest}, but net.input({features}, steps={steps}) "
            f"takes (n, {steps}, {features}), or shorter ones; cut every sequence to {steps} "
            "steps, or take more steps"
        )
    here = steps if is_flat else x.shape[1]
    if y is not None:
        y = _answers(x, y, here, each, size, what)
    if is_flat:
        x = x.reshape(len(x), steps, features)
    ends = np.full(len(x), here) if ends is None else ends
    if y is not None and not each:  # of sequences, however many numbers they have
        _check_count(x, y, what)
        made = _dataset(x, None, ends, steps, what)
        return as_dataset(_with_targets(made, y, what), what)
    return _dataset(x, y, ends, steps, what)


def _with_targets(made: Dataset, y: Array, what: str) -> Dataset:
    labels, classes = arrays.as_labels_or_targets(y, what)
    lengths, shape = made.lengths, made.shape
    return Dataset(made.x, labels, made.scale, what, classes, shape=shape, lengths=lengths)


def _check_count(x: Array, y: Array, what: str) -> None:
    if len(x) != len(y):
        raise DataError(
            f"{what}: there are {len(x):,} sequences, but {len(y):,} in y; pass as many"
        )


def is_ragged(x: Any) -> bool:
    return len({len(one) if hasattr(one, "__len__") else 0 for one in x}) > 1


def _answers(x: Array, y: Array, steps: int, each: bool, size: int, what: str) -> Array:
    """y of a network that answers at each step, or at the last; checked."""
    if y.ndim > 1 and y.dtype.kind in "iub" and not each and y.shape[1:] == (steps,) != (size,):
        raise DataError(
            f"{what}: y has shape {y.shape}, a label for each step, but the network answers by its "
            "last step: pass labels (n,) as y[:, -1], or ask each step: net.output(..., "
            "each_step=True)"
        )
    if not each and y.ndim > 2:
        raise DataError(
            f"{what}: y has shape {y.shape}, but the network answers by its last step: targets "
            f"({len(x)}, {size}), as y[:, -1], or ask each step: net.output(..., each_step=True)"
        )
    if not each:
        return y
    if y.shape[1:2] != (steps,):
        raise DataError(
            f"{what}: y has shape {y.shape}, but each step is asked (each_step=True): labels "
            f"({len(x)}, {steps}) or targets ({len(x)}, {steps}, {size}); of one answer per "
            "sequence leave each_step out"
        )
    if y.ndim == 2 and y.dtype.kind in "iub" and size > 1:
        return y
    if y.shape[2:] not in ((size,), () if size == 1 else (size,)):
        raise DataError(
            f"{what}: y has shape {y.shape}, but each of {steps} steps is answered by {size} "
            f"neuron{'s' * (size != 1)}: ({len(x)}, {steps}, {size})"
        )
    y = y if y.dtype.kind == "f" else y.astype(np.float64)
    return y.reshape(len(y), steps, -1)


def _of_dataset(data: Dataset, steps: int, features: int, each: bool, what: str) -> Dataset:
    """The same, filled up to the steps of the network."""
    if len(data.shape) != 2 or data.shape[1] != features or data.shape[0] == steps:
        return data
    here = data.shape[0]
    if here > steps:
        raise DataError(
            f"{what}: the longest of the sequences has {here:,} steps, but net.input({features}, "
            f"steps={steps}) takes at most {steps:,}; cut them, or take more steps"
        )
    ends = np.full(len(data), here) if data.lengths is None else data.lengths
    x = _filled(data.images, ends, steps).reshape(len(data), -1)
    y = data.y
    if each and y is not None and y.ndim == 2 and y.shape[1] % here == 0:
        y = _filled(y.reshape(len(y), here, -1), ends, steps).reshape(len(y), -1)
    return data.with_fields(x=x, y=y, shape=(steps, features), lengths=ends)


def check_answers(data: Dataset, steps: int, each: bool, what: str) -> None:
    """Labels are of each step, or of the last, as the network answers. Raises DataError."""
    if data.y is None or not data.has_labels:
        return
    if each and data.y.shape[1:] != (steps,):
        raise DataError(
            f"{what}: labels have shape {data.y.shape}, but each of {steps} steps is asked "
            f"(each_step=True): ({len(data)}, {steps}); of one answer per sequence leave each_step "
            "out"
        )
    if not each and data.y.ndim != 1:
        raise DataError(
            f"{what}: labels have shape {data.y.shape}, one for each step, but the network answers "
            "by its last step: pass labels (n,), or net.output(..., each_step=True)"
        )
