"""Checks of data; they repair nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from horn.data import classes, targets
from horn.data.dataset import Dataset
from horn.data.lengths import within
from horn.data.normalization import CHUNK_VALUES
from horn.errors import DataError
from horn.formats import tables

_PAIR = "pass the pair (x, y), in a file as of np.savez(path, x=x, y=y)"


def check_counted(dataset: Dataset) -> None:
    """Check that labels count from 0, as far as they are coded as the classes of a model or not at
    all. Raises DataError.
    """
    ends = dataset.lengths
    if not dataset.targets:
        check_not_negative(dataset.y, dataset.name, ends)
    for part in dataset.targets:
        if part.is_labels and dataset.y is not None:
            check_not_negative(targets.own(dataset.y, part), f"{dataset.name}: {part.name}", ends)


def check_not_negative(y: np.ndarray | None, name: str, ends: np.ndarray | None = None) -> None:
    """Check labels (n,), or (n, steps) of sequences with ``ends`` steps each; None: with all."""
    if y is not None and y.dtype.kind == "i" and y.min() < 0:
        is_wrong = y < 0
        n, place = _n_given(is_wrong, ends, y.shape[-1]), _first(is_wrong)
        raise DataError(
            f"{name}: label {y[place]} in {_at(place)} is negative ({n:,} such "
            f"label{'s' * (n != 1)} in all); classes count from 0, so remap y; numbers to be "
            "learned are a column, y.reshape(-1, 1)"
        )


def _n_given(is_wrong: np.ndarray, ends: np.ndarray | None, steps: int) -> int:
    """How many values (n, steps * size) are wrong, without those behind the ``ends`` of sequences
    that repeat a wrong one of the last step.
    """
    n = int(np.count_nonzero(is_wrong))
    if ends is None or is_wrong.ndim < 2 or is_wrong.shape[1] % steps:
        return n
    each = is_wrong.reshape(len(ends), steps, -1)
    behind = ~within(ends, steps)
    last = each[np.arange(len(ends)), ends - 1]
    return n - int(np.count_nonzero(each & behind[:, :, None] & last[:, None]))


def _first(is_wrong: np.ndarray) -> tuple[int, ...]:
    """The first place that is True: the row, and the step of labels of steps."""
    return tuple(map(int, np.unravel_index(is_wrong.argmax(), is_wrong.shape)))


def _at(place: tuple[int, ...]) -> str:
    return f"row {place[0]:,}" + "".join(f", step {step:,}" for step in place[1:])


def check_rows(x: np.ndarray, y: np.ndarray | None, name: str) -> None:
    """Check samples of a stream: no negative labels, no NaN and no infinity. Raises DataError."""
    check_not_negative(y, name)
    _check_finite(x, "x", name)
    if y is not None and y.ndim == 2:
        _check_finite(y, "y", name)


def check_finite(dataset: Dataset) -> None:
    """Check that x and the targets have no NaN and no infinity; bytes, labels and datasets that
    ``as_dataset`` has checked are skipped. Reads in chunks of about 1 MiB.

    DataError : names the first row and column (from 0), the place in samples of a shape, such as
    sequences, and how many such values there are.
    """
    if dataset._checked:
        return
    ends, steps = dataset.lengths, (dataset.shape or (1,))[0]
    _check_finite(dataset.x, "x", dataset.name, dataset.shape, ends, steps)
    if dataset.y is None:
        return
    for part in dataset.targets:
        y = read_of_steps(dataset.y[:, part.columns], ends, steps)
        _check_finite(y, f"y of {part.name!r}", dataset.name, (), ends, steps)
    if not dataset.targets:
        y = read_of_steps(dataset.y, ends, steps)
        _check_finite(y, "y", dataset.name, (), ends, steps)


def read_of_steps(y: np.ndarray, ends: np.ndarray | None, steps: int) -> np.ndarray:
    """Targets (n, columns) with 0 behind the ``ends`` of sequences, where they are numbers
    (n, steps): nobody reads these, if they are of steps, which the network says.
    """
    if ends is None or y.dtype.kind != "f" or y.shape[1:] != (steps,):
        return y
    return np.where(within(ends, steps), y, 0.0)


def check_targets_finite(y: np.ndarray, name: str) -> None:
    """Check that targets (n, size) have no NaN and no infinity. Raises DataError."""
    _check_finite(y, "y", name)


def _check_finite(
    array: np.ndarray, letter: str, name: str, shape: tuple[int, ...] = (),
    ends: np.ndarray | None = None, steps: int = 1,
) -> None:  # fmt: skip
    if array.dtype.kind != "f":
        return
    n_rows, n_columns = array.shape
    step = max(CHUNK_VALUES // n_columns, 1)
    good = np.empty((min(step, n_rows), n_columns), dtype=bool)
    first: tuple[int, int, float] | None = None
    count = 0
    for start in range(0, n_rows, step):
        chunk = array[start : start + step]
        ok = np.isfinite(chunk, out=good[: len(chunk)])
        if not ok.all():
            count += int(ok.size - np.count_nonzero(ok))
            if first is None:
                row, column = divmod(int(np.argmin(ok)), n_columns)
                first = (start + row, column, chunk[row, column])
    if first is not None:
        row, column, value = first
        if ends is not None:
            count = _n_given(~np.isfinite(array), ends, steps)
        found = "NaN" if np.isnan(value) else "infinity"
        others = f"the first of {count:,} NaN or infinite values"
        if count == 1:
            others = "the only such value"
        where = f"column {column:,}"
        if len(shape) > 1:  # as (steps, features): where it is in the array that was given
            where = f"{letter}{[row, *map(int, np.unravel_index(column, shape))]}"
        raise DataError(
            f"{name}: {letter} has {found} at row {row:,}, {where}, {others}; "
            f"drop those rows or fill them in"
        )


def check_range(dataset: Dataset, dtype: str) -> None:
    """Check that doubles of x, as they are read (scaled, normalized), fit a network's float32, and
    so other numbers that a scale makes larger. Two passes without a copy.

    DataError : names the first row and column (from 0) and how many there are.
    """
    if dtype != "float32":
        return
    most, normal = float(np.finfo(np.float32).max), dataset.normalization
    reach, add = abs(dataset.scale), 0.0
    if normal is not None:  # a bound of the values read: they are read only where it is not enough
        reach /= float(normal.std.min())
        add = float(np.abs(normal.mean / normal.std).max())
    for array, letter in ((dataset.x, "x"), (dataset.y, "y")):
        if letter == "y":
            reach, add = 1.0, 0.0
        if array is None or (
            array.dtype != np.float64 and (letter == "y" or abs(dataset.scale) <= 1)
        ):
            continue
        first, count = "", 0
        step = max(CHUNK_VALUES // array.shape[1], 1)
        for start in range(0, len(array), step):
            chunk = array[start : start + step]
            largest = max(float(chunk.max()), -float(chunk.min()))
            if largest * reach + add < most:
                continue
            rows = np.arange(start, start + len(chunk))
            seen = dataset.read(rows, np.empty(chunk.shape)) if letter == "x" else chunk
            if (bad := np.abs(seen) > most).any():
                row, column = _first(bad)
                ends = dataset.lengths
                of_rows = None if ends is None else ends[rows]
                count += _n_given(bad, of_rows, (dataset.shape or (1,))[0])
                times = f" times {dataset.scale:g}" * (letter == "x" and dataset.scale != 1)
                first = first or (
                    f"{chunk[row, column]:g}{times} at row {start + row:,}, column {column:,}"
                )
        if first:
            others = f"the first of {count:,} such values" if count > 1 else "the only such value"
            raise DataError(
                f"{dataset.name}: {letter} has {first}, {others}: above {most:.2g} it is infinity "
                "in float32, in which this network computes; if it marks what is missing drop "
                "those rows or fill them in, else divide the column, or train with "
                'Job(..., dtype="float64")'
            )


def check_weights(dataset: Dataset, dtype: str) -> None:
    """Check that no weight of the training data is infinity in the type of a network, and that not
    all are 0 there. Raises DataError.
    """
    if dataset.weight is None:
        return
    most, largest = float(np.finfo(dtype).max), float(dataset.weight.max())
    if largest > most:
        place = _first(dataset.weight == largest)
        raise DataError(
            f"{dataset.name}: the weight in {_at(place)} is {largest:g}: above {most:.2g} it is "
            f"infinity in {dtype}, in which this network computes; divide all weights "
            "(sample_weight, class_weight) by one number"
        )
    if np.asarray(largest, dtype) == 0:
        raise DataError(
            f"{dataset.name}: all weights are 0 in {dtype}, in which this network computes (the "
            f"largest is {largest:g}): nothing would be learned; give larger ones (sample_weight, "
            "class_weight)"
        )


def other_units(dataset: Dataset, learned: Mapping[str, Any]) -> str:
    """What to say where data seem to count in other units than the training data, whose
    ``Dataset.units`` are ``learned``, else "": bytes that are worth 1/255 each, and numbers that
    are themselves. dataset : ``as_heard``.
    """
    scale, highest = learned.get("scale"), learned.get("highest", 0.0)
    if dataset.x.dtype == np.uint8 and dataset.scale != 1.0:
        limit = 255.0 * abs(dataset.scale)
        if highest > 2.0 * limit:
            return (
                f"bytes count {dataset.scale:g} each, {limit:g} at most, but the training data "
                f"have numbers up to {highest:g}: pass x.astype(float), or x in this unit"
            )
    if not scale or dataset.highest <= 2.0 * (limit := 255.0 * abs(scale)):
        return ""
    return (
        f"has numbers up to {dataset.highest:g}, but the bytes of the training data count "
        f"{scale:g} each, {limit:g} at most: pass bytes, or x in this unit"
    )


def check_features(
    dataset: Dataset, expected: int, learned_by: str = "", sample: tuple[int, ...] = ()
) -> None:
    """Check that the network takes as many numbers per sample as the data have.

    learned_by : the owner that learned from so many, such as "this model": then the remedy is other
    data, else another network. sample : the shape of a sample that it learned from.
    """
    got = dataset.n_features
    if got == expected:
        return
    is_row = len(dataset.shape) < 2
    shape = dataset.x.shape if is_row else (len(dataset), *dataset.shape)
    has, n = f"{got:,} feature{'s' * (got != 1)} per sample", f"{expected:,}"
    said = f"input has {has}, but the network declares input({expected}); "
    use = dataset.shape if len(dataset.shape) > 2 else got
    remedy = f"Use net.input({use}) or pass matching data"
    if learned_by:
        said = f"{has}, but {learned_by} learned from {n}; "
        remedy = f"Pass the same {n} features in the same order"
        has_labels = dataset.y is not None  # one of each row, so the rows are samples
        if not has_labels and [n for n in shape if n != 1] == [n for n in sample if n != 1]:
            remedy = "It is one sample: pass x[None]"
        elif len(sample) > 1 and not is_row:
            remedy = f"Pass samples of shape {sample}"
            if len(sample) == 3 and dataset.shape[:2] != sample[:2]:
                remedy += f", as horn.data.images(..., size={sample[:2]})"
            elif len(sample) == len(dataset.shape) == 3:
                mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(sample[2])
                remedy += f": with {sample[2]} channel{'s' * (sample[2] != 1)} each"
                remedy += f", as Pillow's image.convert({mode!r}) makes them" if mode else ""
    if got == expected + 1:
        remedy += "; if the column too many has labels, or numbers the rows, leave it out"
        remedy += " (of a .csv file: --label, --ids)" * bool(learned_by)
    raise DataError(f"{dataset.name}: {said}x.shape is {shape}. {remedy}")


def check_names(dataset: Dataset, expected: tuple[str, ...], owner: str) -> None:
    """Check that the features have the names of the ``owner``'s, in their order; where one of the
    two has no names, only that numbers from 0 are in order.
    """
    got, learned = dataset.feature_names, expected
    numbered = tuple(map(str, range(len(got))))
    if not learned and sorted(got) == sorted(numbered):
        expected = numbered
    if not got or got == expected or len(got) != len(expected):
        return
    write = ""
    if owner == "this model" and learned:
        write = " (x[list(model.feature_names)] of pandas and polars, if columns are named by text)"
    raise DataError(
        f"{dataset.name}: other columns than {owner} has: "
        f"{tables.difference(got, expected)}. Pass "
        f"{tables.first_few(expected)}, in this order{write}; "
        "an array has no names, and is taken as it is"
    )


def check_columns(names: tuple[str, ...], expected: tuple[str, ...], what: str, by: str) -> None:
    """Check that a table with named columns has as many as the model. by : what takes those that
    the model learned from. Raises DataError, and names those that are missing, or too many.
    """
    if not names or not expected or len(names) == len(expected):
        return
    more = [name for name in names if name not in expected]
    absent = [name for name in expected if name not in names]
    said = [f"no column {tables.first_few(absent)}"] if absent else []
    said += [f"{tables.first_few(more)}, which this model has not learned from"] if more else []
    remedy = f"pass {by}" if not absent else f"pass {tables.first_few(expected)}, in this order"
    raise DataError(f"{what}: x has {', but '.join(said)}; {remedy}")


def check_shape(dataset: Dataset, expected: tuple[int, ...], learned_by: str = "") -> None:
    """Check that samples with a shape have that of the network's input, except axes of length 1.
    learned_by : as for ``check_features``.

    Raises DataError, as of images with their channels first.
    """
    check_sample_shape(dataset.shape, expected, dataset.name, learned_by)


def check_sample_shape(
    given: tuple[int, ...], expected: tuple[int, ...], what: str, learned_by: str = ""
) -> None:
    """``check_shape`` of samples with the shape ``given``, () if they have none."""
    wanted = [n for n in expected if n != 1]
    if len(given) < 2 or len(expected) < 2 or [n for n in given if n != 1] == wanted:
        return
    remedy = f"x.reshape(-1, {', '.join(map(str, expected))})"
    layout = "channels last"
    if sorted(n for n in given if n != 1) == sorted(wanted):  # to reshape would mix the axes
        order = ", ".join(map(str, (0, *_moved(given, expected))))
        remedy = f"x.transpose({order})"
        if sorted(given) != sorted(expected):
            remedy = "numpy.transpose, which moves axes, and x.reshape only after it"
        elif len(given) == 2:  # either may be what was meant
            layout = "{} positions of {} channels".format(*expected)
            if not learned_by:
                positions, channels = given
                remedy += f"; if x has {positions} positions of {channels} channels, it is "
                remedy += f"net.input({given})"
        elif (given[-1], *given[:-1]) == expected and not learned_by:
            remedy = f"net.input({given})"
    elif not learned_by:
        remedy = f"net.input({given}), or {remedy}"
    raise DataError(
        f"{what}: a sample has the shape {given}, but "
        f"{f'{learned_by} learned from' if learned_by else 'the network declares'} "
        f"input({expected}), {layout}; write {remedy}"
    )


def check_target_shape(dataset: Dataset, expected: tuple[int, ...], what: str, name: str) -> None:
    """Check that targets with a shape have that of the output layer called ``name``, except axes of
    length 1. Raises DataError, as of targets with their channels first.
    """
    given, wanted = dataset.target_shape, [n for n in expected if n != 1]
    if math.prod(given) != math.prod(expected) or len(expected) < 2:  # or the count is wrong
        return
    if len(given) < 2 or [n for n in given if n != 1] == wanted:
        return
    remedy = f"pass y of shape {(len(dataset), *expected)}"
    if sorted(given) == sorted(expected):  # to reshape would mix the axes
        remedy = f"write y.transpose({', '.join(map(str, (0, *_moved(given, expected))))})"
    raise DataError(
        f"{what}: the targets of a sample have the shape {given}, but {name} has {expected}, "
        f"channels last; {remedy}"
    )


def _moved(given: tuple[int, ...], expected: tuple[int, ...]) -> list[int]:
    """The axes of x that give the lengths ``expected``, of those with one length in their order."""
    left, found = [*enumerate(given, 1)], []
    for n in expected:
        at = next((each for each in left if each[1] == n), None)
        if at is not None:
            left.remove(at)
            found.append(at[0])
    return found


def check_classes(dataset: Dataset, n_outputs: int, layer_name: str) -> None:
    """Check that there are as many named classes as outputs, and more than one; two classes may
    share one output.

    layer_name : as in ``check_labels``.
    """
    found = dataset.classes
    if found is not None and len(found) == 1:
        raise DataError(
            f"{dataset.name}: all labels are {found[0]!r}, and nothing is told apart; take samples "
            "of other classes, too"
        )
    if found is None or len(found) == n_outputs or (len(found) == 2 and n_outputs == 1):
        return
    raise DataError(
        f"{dataset.name}: the labels are {len(found):,} classes ({classes.said(found)}), but "
        f"{layer_name} has {n_outputs} neuron{'s' * (n_outputs != 1)}, one per class; use "
        f"net.output({len(found)}, ...)"
    )


def check_labels(dataset: Dataset, n_classes: int, layer_name: str) -> None:
    """Check that labels exist and lie in 0 .. n_classes - 1.

    layer_name : the name of the output layer in the message, such as ``output(10, softmax)``.
    """
    y = dataset.y
    if y is None:
        raise DataError(
            f"{dataset.name}: there are no labels, but {layer_name} needs one per sample; {_PAIR}"
        )
    if not dataset.has_labels:
        raise DataError(
            f"{dataset.name}: y has shape {y.shape}, but {layer_name} needs integer labels, one "
            "per sample; for one-hot rows write y.argmax(axis=1)"
        )
    check_not_negative(y, dataset.name)
    highest = int(y.max())
    if highest >= n_classes:
        distinct = len(np.unique(y))
        from_one = highest == n_classes and int(y.min()) == 1
        remedy = (
            "They begin at 1: give y - 1"
            if from_one
            else f"Use net.output({highest + 1}, ...) or remap y"
        )
        raise DataError(
            f"{dataset.name}: labels contain {highest} ({_at(_first(y == highest))}), but "
            f"{layer_name} has classes 0..{n_classes - 1}; found {distinct:,} distinct "
            f"label{'s' * (distinct != 1)}. {remedy}"
        )


def check_targets(dataset: Dataset, n_outputs: int, layer_name: str) -> None:
    """Check that targets exist, one number per output neuron.

    layer_name : as in ``check_labels``.
    """
    y = dataset.y
    if y is None:
        raise DataError(
            f"{dataset.name}: there are no targets, but {layer_name} needs {n_outputs} numbers "
            f"per sample; {_PAIR}"
        )
    if y.ndim != 2 or y.shape[1] != n_outputs:
        labels = ", or pass labels as whole numbers, y.ravel().astype(int)"
        labels = labels if y.shape[1:] == (1,) else ""
        raise DataError(
            f"{dataset.name}: y has shape {y.shape}, but {layer_name} needs targets of shape "
            f"({len(y)}, {n_outputs}); use a matching net.output(...) or reshape y{labels}"
        )
