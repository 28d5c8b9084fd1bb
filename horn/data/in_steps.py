"""Sequences as rows: (n, steps, features), with an answer at the last step, or at each.

For sequences that end early the steps after the end repeat the last one: the numbers all occur in
the data, and nothing is learned from them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from horn.data import arrays, units
from horn.data.checks import check_targets_finite, read_of_steps
from horn.data.classes import LABELS, NAMED, Classes, code
from horn.data.conversion import as_dataset
from horn.data.dataset import Dataset
from horn.data.targets import columns_of, put_together
from horn.errors import DataError, is_whole
from horn.formats import parts
from horn.formats.tables import names_of_all
from horn.formats.tensors import apart

Array = np.ndarray[Any, Any]
Coded = tuple[Array, Classes | None]  # labels or targets as a Dataset has them, and their classes
Reads = Callable[[Any, str, str], Coded]  # y, the output's name, and its name in messages
TargetShapes = Mapping[str, tuple[bool, int]]  # by output: whether each step answers, and its size

logger = logging.getLogger(__name__)

MANY_BYTES, MANY_TIMES = 64 << 20, 10  # of sequences filled up, and as many times the given ones


def sequences(
    x: Any, y: Any = None, *, lengths: Any = None, steps: int | None = None, name: str = "sequences"
) -> Dataset:
    """Sequences of any lengths as a dataset, for ``net.input(features, steps=...)``.

    x : a list or iterator of arrays: (steps, features), or (steps,) for one feature; or an
    array (n, steps, features), or (n, steps), in which sequence k has ``lengths[k]`` steps (later
    ones are not read). Features may have several axes, as those of pictures. y : for each sequence
    labels (n,) or targets (n, size); for each step a list of arrays, (steps,) or (steps, size) as
    long as the sequences, or arrays (n, steps) or (n, steps, size); labels may be text. For several
    outputs {name: either}. steps : the number
    that they are filled up to, by default the longest's; networks with more take them, too. name :
    of the dataset, for messages.

    Raises
    ------
    DataError : an empty sequence, lengths beyond the array, features or lengths that differ.
    """
    if isinstance(x, Dataset):
        raise DataError(f"{x.name}: is a dataset already; pass the arrays that it was made from")
    what, x = name, apart(list(x) if isinstance(x, Iterator) else x)
    is_filled = False
    names = names_of_all(x, what)
    if _is_list(x):
        if lengths is not None:
            raise DataError(
                f"{what}: a list of arrays says how long each is; leave lengths out, or pass one "
                "array (n, steps, features)"
            )
        whole, ends = _of_list(_in_rows(x, what), what, "x", steps=steps)
        is_filled = True
    else:
        whole = _numbers(x, f"{what}: x")
        if whole.ndim > 3:
            whole = whole.reshape(*whole.shape[:2], math.prod(whole.shape[2:]))
        if whole.ndim not in (2, 3):
            raise DataError(
                f"{what}: x has shape {whole.shape}, but (n, steps, features) is expected, or a "
                "list of arrays (steps, features)"
            )
        whole = whole[:, :, None] if whole.ndim == 2 else whole
        ends = _checked_lengths(lengths, len(whole), whole.shape[1], what)
    unit = units.unit_of(x, whole, what)
    if not len(ends):
        raise DataError(f"{what}: there are no sequences; pass at least one")
    longest = int(ends.max())
    if steps is not None and not is_whole(steps, 1):
        raise DataError(f"{what}: steps is how many there are at most, from 1; got {steps!r}")
    steps = longest if steps is None else int(steps)
    if steps < longest:
        k = int(ends.argmax())
        raise DataError(
            f"{what}: sequence {k} has {longest:,} steps, but steps={steps!r}; take "
            f"steps={longest}, or cut it"
        )
    n_before = whole.shape[1]

    def own(y: Any, name: str, where: str) -> Coded:
        return _coded(*_targets(y, ends, where), n_before, steps, where)

    return with_answers(_dataset(whole, unit, ends, steps, what, names, is_filled), y, own, what)


def _in_rows(x: Iterable[Any], what: str) -> list[Any]:
    """The sequences of a list, with the features of a step on one axis. Raises DataError: they have
    other shapes in one sequence than in another.
    """
    each = [_numbers(one, f"{what}: x[{k}]") for k, one in enumerate(x)]
    for k, one in enumerate(each):
        if one.ndim > 2 and one.shape[1:] != each[0].shape[1:]:
            raise DataError(
                f"{what}: a step of x[{k}] has the shape {one.shape[1:]}, but one of x[0] "
                f"{each[0].shape[1:]}; give all of them the same"
            )
    return [
        one.reshape(len(one), math.prod(one.shape[1:])) if one.ndim > 2 else one for one in each
    ]


def flat(data: Any, shape: tuple[int, ...]) -> Any:
    """x, or (x, y), with the numbers of a step on one axis where a step is a picture of this shape:
    arrays and datasets, and lists of arrays. Anything else is unchanged.
    """
    if len(shape) == 1:
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return flat(data[0], shape), data[1]
    features = math.prod(shape)
    if isinstance(data, Dataset):
        before, of_step = data.shape[: -len(shape)], data.shape[-len(shape) :]
        if of_step != shape or len(before) > 1:
            return data
        return data.with_fields(shape=(*before, features) if before else ())
    x = apart(data)
    if _is_list(x):
        return [_flat(one, shape, 2) for one in x]
    return _flat(x, shape, 3)


def in_a_row(data: Any, shape: tuple[int, ...]) -> Any:
    """x, or (x, y), with an array (k, 1, c) as (k, c) where a step has the shape (1, c): one
    sequence of k steps, as of any other shape, and not k of one step. Anything else is unchanged.
    """
    if isinstance(data, tuple) and len(data) == 2:
        return in_a_row(data[0], shape), data[1]
    data = apart(data)
    found = tuple(getattr(data, "shape", ()))
    if isinstance(data, Dataset) or len(shape) != 2 or found[1:] != shape or found[0] < 2:
        return data
    return _flat(data, shape, 2)


def _flat(x: Any, shape: tuple[int, ...], n_axes: int) -> Any:
    """n_axes : of arrays whose last axis may be that of features already."""
    found, features = tuple(getattr(x, "shape", ())), math.prod(shape)
    is_flat = len(found) == n_axes and found[-1] == features
    if is_flat or found[-len(shape) :] != shape or len(found) < n_axes - 2 + len(shape):
        return x
    return x.reshape(*found[: -len(shape)], features)


def _dataset(
    x: Array, unit: units.Unit, ends: Array, steps: int, what: str, names: tuple[str, ...],
    is_filled: bool,
) -> Dataset:  # fmt: skip
    """The dataset of sequences x (n, any steps, features). is_filled : behind their ends, too."""
    is_whole, shape = bool((ends == steps).all()), (steps, x.shape[2])
    given = np.full(len(x), x.shape[1]) if is_filled else ends
    rows = filled(x, given, steps).reshape(len(x), math.prod(shape))
    found, _ = arrays.as_features(rows, what, unit)
    return Dataset(found, None, unit.scale, what, shape=shape, lengths=None if is_whole else ends,
                   feature_names=names, scale_is=unit.why)  # fmt: skip


def with_answers(made: Dataset, y: Any, own: Reads, what: str) -> Dataset:
    """The dataset with its targets, for several outputs by name; ``own`` reads those of one."""
    if isinstance(y, Mapping):
        given = columns_of(y, what)
        coded = {name: own(each, name, f"{what}: {name}") for name, each in given.items()}
        found, targets = put_together(coded, what)
        made = made.with_fields(y=found, targets=targets)
    elif y is not None:
        found, classes = own(y, "", what)
        made = made.with_fields(y=found, classes=classes)
    return as_dataset(made, what)


def _coded(y: Array, ends: Array, n_before: int, steps: int, what: str) -> Coded:
    """y as a Dataset has it: by step where it has the steps that x had before it was filled up.
    ends : behind which it is not, yet.
    """
    _check_count(ends, y, what)
    if y.ndim == 3 and y.shape[1] not in (n_before, steps):
        raise DataError(
            f"{what}: y has {y.shape[1]:,} steps, but x {n_before:,}; give an entry for each step"
        )
    if _by_step(y, n_before, steps):
        y = filled(y, ends, steps)
    if y.ndim == 2 and y.dtype.kind in LABELS and y.shape[1] == steps:
        return labels_of(y, what)
    return arrays.as_labels_or_targets(y.reshape(len(y), -1) if y.ndim > 1 else y, what)


def labels_of(y: Array, what: str) -> Coded:
    """The labels of each step (n, steps), and the classes of labels that are text."""
    if y.dtype.kind in "iu":
        return np.ascontiguousarray(y, np.int64), None
    codes, classes = code(y.ravel(), what)
    return codes.reshape(y.shape), classes


def filled(array: Array, ends: Array, steps: int) -> Array:
    """An array (n, any steps, ...) with so many steps: a sequence's last value fills those behind
    its end.
    """
    n_before = array.shape[1]
    if n_before == steps and (ends == steps).all():
        return array
    if n_before < steps and (ends == n_before).all():  # no index of every step
        found = np.empty((len(array), steps, *array.shape[2:]), array.dtype)
        found[:, :n_before], found[:, n_before:] = array, array[:, -1:]
        return found
    places = np.minimum(np.arange(steps), ends[:, None] - 1)
    return np.asarray(array[np.arange(len(array))[:, None], places])


def _by_step(y: Array, n_before: int, steps: int) -> bool:
    """Whether y is taken to have an entry for each step. Numbers may be of the whole sequence."""
    may_be = y.ndim == 2 and y.shape[1] == n_before
    return y.ndim == 3 or (may_be and (y.dtype.kind in LABELS or steps != n_before))


def _is_list(x: Any) -> bool:
    return isinstance(x, (list, tuple))


def _numbers(x: Any, what: str, is_y: bool = False) -> Array:
    try:
        found = arrays.plain(x, what)
    except ValueError as error:
        raise DataError(f"{what} is not a rectangular array ({error})") from error
    if found.dtype.kind not in (f"f{LABELS}" if is_y else "biuf"):
        raise DataError(
            f"{what} holds {parts.kind_name(found.dtype)}, but numbers are expected; convert it "
            "to a numeric type first"
        )
    return found


def _of_list(
    x: Any, what: str, letter: str, shape: tuple[int, ...] = (), steps: int | None = None
) -> tuple[Array, Array]:
    """The sequences of a list as (n, longest, features), each filled up with its last step, and the
    length of each. shape : of a step, where it is known. steps : the most that one may have; where
    one has more nothing is filled up.
    """
    each = [_numbers(one, f"{what}: {letter}[{k}]", letter == "y") for k, one in enumerate(x)]
    if not each:
        raise DataError(f"{what}: there are no sequences; pass at least one")
    for k, one in enumerate(each):
        if one.ndim not in (1, 2):
            expected = "(steps, features), or (steps,) of one feature"
            if len(shape) > 1:
                expected = f"(steps, {', '.join(map(str, shape))}), or (steps, {math.prod(shape)})"
            raise DataError(
                f"{what}: {letter}[{k}] has shape {one.shape}, but a sequence is {expected}"
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
    longest, dtype = int(ends.max()), np.result_type(*each)
    fits = steps is None or longest <= steps
    if letter == "x" and fits:
        _warn_of_room(ends, steps or longest, width * dtype.itemsize, what)
    found = np.zeros((len(each), longest, width), dtype)
    for row, one in zip(found, each, strict=True):
        row[: len(one)] = one
        if fits:
            row[len(one) :] = one[-1]
    return found, ends


def _warn_of_room(ends: Array, steps: int, step_bytes: int, what: str) -> None:
    """Warn where sequences take much more memory filled up than as they are."""
    given, room, k = int(ends.sum()), len(ends) * steps, int(ends.argmax())
    if room * step_bytes < MANY_BYTES or room < MANY_TIMES * given:
        return
    remedy = f"the network takes {steps:,} steps, which may be fewer"
    if 2 * ends[k] > steps:
        remedy = f"sequence {k:,} has {ends[k]:,}; cut or split it, or train with stateful=True"
    logger.warning(
        "%s: sequences of %s MB take %s MB, as each is filled up to %s steps: %s",
        what, f"{given * step_bytes / 2**20:,.3g}", f"{room * step_bytes / 2**20:,.0f}",
        f"{steps:,}", remedy,
    )  # fmt: skip


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


def _targets(y: Any, ends: Array, what: str) -> tuple[Array, Array]:
    """The targets as one array: of each sequence, or (n, longest, ...) of each step, and the ends
    behind which it is to be filled up: its own, if it is.
    """
    y = apart(y)
    if not _is_list(y):
        return arrays.plain(y, f"{what}: y"), ends
    if not len(y) or all(np.ndim(one) == 0 for one in y):
        return np.asarray(y), ends
    each = [arrays.plain(one, f"{what}: y[{k}]") for k, one in enumerate(y)]
    if len({one.shape for one in each}) == 1:
        return np.asarray(each), ends
    if len(each) == len(ends):
        for k, (one, n) in enumerate(zip(each, ends, strict=True)):
            if one.ndim == 0 or len(one) != n:
                got = f"{len(one):,} entries" if one.ndim else "one number"
                raise DataError(
                    f"{what}: y[{k}] has {got}, but sequence {k} has {n:,} steps; give one entry "
                    "for each step, or one for each sequence"
                )
    found, _ = _of_list(y, what, "y")
    found = found[:, :, 0] if all(one.ndim == 1 for one in each) else found
    return found, np.full(len(ends), found.shape[1])


def of_steps(data: Any, steps: int, shape: tuple[int, ...], shapes: TargetShapes, what: str) -> Any:
    """The dataset of sequences, or of (x, y); anything but arrays unchanged.

    x (n, steps, *shape), or (n, steps, features), or (n, steps) for one feature, or a list of such
    of any lengths, or of fewer steps · y, for the last step: labels (n,) or targets (n, size); for
    each step: labels (n, steps), targets (n, steps, size), or (n, steps) for one; or a list of
    arrays; for several outputs {name: either}. Labels stay whole numbers, bytes stay bytes. shapes
    : the network's outputs.

    Raises
    ------
    DataError : other shapes; labels of each step for an output that answers by its last, and the
    other way round.
    """
    x, y = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    if isinstance(x, Dataset):
        return _of_dataset(x, steps, math.prod(shape), shapes, what)
    x = apart(x)
    if isinstance(x, str) or not hasattr(x, "__array__") and not _is_list(x):
        return data
    names = names_of_all(x, what)
    given, (x, ends, is_filled) = x, _samples(x, steps, shape, what)
    unit = units.unit_of(given, x, what)
    here = x.shape[1]

    def own(y: Any, name: str, where: str) -> Coded:
        if name not in shapes and (name or len(shapes) != 1):  # the caller complains
            return _coded(*_targets(y, ends, where), here, steps, where)
        (each, size), y = shapes[name] if name else next(iter(shapes.values())), apart(y)
        if not each and _is_list(y) and is_ragged(y):
            raise DataError(
                f"{where}: y has an entry for each step, but the network answers by its last step: "
                "pass one of each sequence, or ask each step: net.output(..., each_step=True)"
            )
        found, behind = _targets(y, ends, where)
        found = _answers(len(x), found, here, each, size, where)
        if each:
            return _coded(found, behind, here, steps, where)
        _check_count(ends, found, where)  # of sequences, however many numbers they have
        return arrays.as_labels_or_targets(found, where)

    return with_answers(_dataset(x, unit, ends, steps, what, names, is_filled), y, own, what)


def _samples(x: Any, steps: int, shape: tuple[int, ...], what: str) -> tuple[Array, Array, bool]:
    """The samples (n, any steps, features), the number of steps of each sequence, and whether they
    are filled up behind these.
    """
    ends, features, is_listed = None, math.prod(shape), _is_list(x)
    x = list(x) if is_listed else x
    if isinstance(x, list) and (not x or is_ragged(x)):
        x, ends = _of_list(x, what, "x", shape, steps)
    x = arrays.plain(x, f"{what}: x")
    if x.shape[2:] == shape:  # of lists of numbers
        x = x.reshape(*x.shape[:2], features)
    is_flat = x.ndim == 2 and x.shape[1] == steps * features and ends is None
    if not is_listed and x.ndim == 2 and x.shape[1] == features == 1 < min(steps, len(x)):
        raise DataError(
            f"{what}: x has shape {x.shape}: pass x[None] if it is one sequence of {len(x):,} "
            f"steps, x[:, :, None] if it is {len(x):,} sequences of one step"
        )
    if x.ndim == 2 and features == 1 and not is_flat:
        x = x[:, :, None]
    if not is_flat and (x.ndim != 3 or x.shape[2] != features or not 1 <= x.shape[1] <= steps):
        if x.ndim == 3 and not x.shape[1]:
            raise DataError(f"{what}: the sequences have no steps; leave out those that are empty")
        longest = "" if ends is None else f" (x[{int(ends.argmax())}] is the longest)"
        remedy = f"cut every sequence to {steps} steps, or let the network take more"
        if x.ndim != 3 or x.shape[2] != features:
            of_step = "" if len(shape) == 1 else f" in the shape {shape}"
            remedy = f"pass {features} features{of_step} at each step"
        raise DataError(
            f"{what}: x has shape {x.shape}{longest}, but (n, {steps}, {features}) is expected, "
            f"sequences of at most {steps} steps of {features} features; {remedy}"
        )
    if is_flat:
        x = x.reshape(len(x), steps, features)
    return x, np.full(len(x), x.shape[1]) if ends is None else ends, ends is not None


def _check_count(ends: Array, y: Array, what: str) -> None:
    if y.ndim == 0 or len(ends) != len(y):
        got = f"{len(y):,}" if y.ndim else "one"
        raise DataError(f"{what}: there are {len(ends):,} sequences, but {got} in y; pass as many")


def is_ragged(x: Any) -> bool:  # a text is one label, however long
    return len({0 if isinstance(y, str) or not hasattr(y, "__len__") else len(y) for y in x}) > 1


def _answers(n: int, y: Array, steps: int, each: bool, size: int, what: str) -> Array:
    """The checked y of an output that answers at each step, or at the last."""
    are_labels = y.dtype.kind in LABELS
    if y.ndim > 1 and are_labels and not each and y.shape[1:] == (steps,) != (size,):
        raise DataError(
            f"{what}: y has shape {y.shape}, a label for each step, but the network answers by its "
            "last step: pass labels (n,) as y[:, -1], or ask each step: net.output(..., "
            "each_step=True)"
        )
    if not each and y.ndim > 2:
        raise DataError(
            f"{what}: y has shape {y.shape}, but the network answers by its last step: targets "
            f"({n}, {size}), as y[:, -1], or ask each step: net.output(..., each_step=True)"
        )
    if not each:
        return y
    if y.shape[1:2] != (steps,):
        raise DataError(
            f"{what}: y has shape {y.shape}, but each step is asked (each_step=True): labels "
            f"({n}, {steps}) or targets ({n}, {steps}, {size}); of one answer per "
            "sequence leave each_step out"
        )
    if y.ndim == 2 and are_labels and (size > 1 or y.dtype.kind in NAMED):
        return y
    check_no_floats(y, size, what)
    if y.shape[2:] not in ((size,), () if size == 1 else (size,)):
        raise DataError(
            f"{what}: y has shape {y.shape}, but each of {steps} steps is answered by {size} "
            f"neuron{'s' * (size != 1)}: ({n}, {steps}, {size})"
        )
    y = y if y.dtype.kind == "f" else y.astype(np.float64)
    return y.reshape(len(y), steps, -1)


def check_no_floats(y: Array, size: int, what: str) -> None:
    """Raise DataError for floating point (n, steps) where labels of ``size`` classes are asked."""
    if y.ndim != 2 or y.dtype.kind != "f" or size == 1:
        return
    if len(places := np.argwhere(np.isnan(y))):
        row, step = map(int, places[0])
        raise DataError(
            f"{what}: y has NaN at row {row:,}, step {step:,}, which is no label; leave the "
            "sequence out, or give the step a label and the weight 0 (sample_weight), and all "
            "labels as whole numbers"
        )
    raise DataError(
        f"{what}: y is {y.dtype} of shape {y.shape}, but each step is answered by {size} neurons: "
        "pass labels as whole numbers, y.astype(int), of a list [one.astype(int) for one in y], or "
        f"targets {(*y.shape, size)}"
    )


def _of_dataset(
    data: Dataset, steps: int, features: int, shapes: TargetShapes, what: str
) -> Dataset:
    """The dataset, filled up to the steps of the network."""
    data = as_asked(_read(data, shapes, what), features, shapes, what)
    of_step = data.shape[-1] if data.shape else data.n_features
    if len(data.shape) in (0, 2) and of_step != features and data.n_features != steps * features:
        raise DataError(
            f"{what}: {'a step' if data.shape else 'a row'} has {of_step:,} features, but a step "
            f"of net.input({features}, steps={steps}) has {features:,}; pass as many at each step"
        )
    if len(data.shape) != 2 or data.shape[1] != features or data.shape[0] == steps:
        return data
    here = data.shape[0]
    if here > steps:
        raise DataError(
            f"{what}: the longest of the sequences has {here:,} steps, but net.input({features}, "
            f"steps={steps}) takes at most {steps:,}; cut them, or take more steps"
        )
    ends = np.full(len(data), here) if data.lengths is None else data.lengths

    def longer(y: Array, name: str | None) -> Array:
        each = name is None or (shapes.get(name) or next(iter(shapes.values()), (False, 0)))[0]
        if not each or y.ndim != 2 or y.shape[1] % here:
            return y
        return filled(y.reshape(len(y), here, -1), ends, steps).reshape(len(y), -1)

    return data.mapped(
        filled(data.images, ends, steps).reshape(len(data), -1),
        of_rows=lambda each: each,
        of_steps=longer,
        shape=(steps, features),
        lengths=ends,
    )


def _read(data: Dataset, shapes: TargetShapes, what: str) -> Dataset:
    """The dataset, without the numbers behind the ends of sequences where each step is answered.
    Raises DataError where such that are not finite are of an answer to the whole sequence.
    """
    if data.lengths is None or data.y is None or data.has_labels:
        return data

    def read(y: Array, name: str) -> Array:
        each, _ = shapes.get(name) or next(iter(shapes.values()), (True, 0))
        if each:
            return read_of_steps(y, data.lengths, data.shape[0])
        check_targets_finite(y, f"{what}: {name}" if name else what)
        return y

    return data.mapped(
        data.x,
        of_rows=lambda each: each,
        of_steps=lambda y, name: y if name is None else read(y, name),
    )


def as_asked(data: Dataset, features: int, shapes: TargetShapes, what: str) -> Dataset:
    """The dataset with what a file has as numbers, (n, steps), as labels, where these are asked.
    Raises DataError where the features of a sequence come before its steps.
    """
    if len(data.shape) == 2 and 1 < features == data.shape[0] != data.shape[1]:
        raise DataError(
            f"{what}: a sequence has the shape {data.shape}, but a step has {features} features, "
            "which come last; write x.transpose(0, 2, 1)"
        )
    y, asked = data.y, [size > 1 for each, size in shapes.values() if each]
    is_number = y is not None and y.shape[1:] == (data.n_features // features,) and not data.targets
    if y is not None and is_number and asked == [True] and (np.floor(y) == y).all():
        return data.with_fields(y=y.astype(np.int64))
    return data


def check_answers(data: Dataset, steps: int, each: bool, what: str) -> None:
    """Check that labels are per step, or of the last, as the network answers. Raises DataError."""
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
