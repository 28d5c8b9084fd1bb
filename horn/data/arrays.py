"""Conversion of arrays to the shapes and types of a dataset.

It converts what keeps its meaning, and copies only where it must.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from horn.data import classes
from horn.data.units import Unit, unit_of
from horn.errors import DataError
from horn.formats import parts, tables
from horn.formats.tensors import is_tensor, of_tensor


def as_features(x: Any, what: str, unit: Unit | None = None) -> tuple[np.ndarray, Unit]:
    """x as ``Dataset`` needs it, and its unit; ``as_dataset`` lists the conversions. unit : of an
    array that was made from what the user gave.
    """
    if tables.is_pandas(x) and not hasattr(x, "columns"):
        raise DataError(
            f"{what}: x is a column, or a row, of a table; pass a table: df[['a']] for the samples "
            "of one feature, df.iloc[[0]] for one sample"
        )
    given, x = x, as_numbers(tables.of_table(x, what), f"{what}: x")
    if x.ndim == 0:
        raise DataError(
            f"{what}: got the number {x.item()!r}, but data are arrays, the pair (x, y)"
            + ("; what is held out is a fraction: validation=0.1" if what == "test" else "")
        )
    if x.ndim < 2:
        remedy = "write x.reshape(1, -1) for one sample, x.reshape(-1, 1) for one feature"
        if isinstance(given, (list, tuple)):
            remedy = "write [x] for one sample, [[number] for number in x] for one feature"
        raise DataError(
            f"{what}: x has shape {x.shape}, but (samples, features) is expected; {remedy}"
        )
    unit = unit or unit_of(given, x, what)
    _check_not_empty(x, what)
    if x.ndim > 2:
        x = x.reshape(len(x), -1)
    kind, size = x.dtype.kind, x.dtype.itemsize
    dtype: np.dtype[Any]
    if kind == "b":
        dtype = np.dtype(np.uint8)
    elif x.dtype == np.uint8 or (kind == "f" and size in (4, 8)):
        dtype = x.dtype.newbyteorder("=")
    else:
        dtype = np.dtype(np.float32 if size <= 2 else np.float64)
    x = x.astype(dtype, copy=False)
    if not _has_contiguous_rows(x) or not x.flags.aligned:
        x = np.ascontiguousarray(x) if x.flags.aligned else x.copy()
    return x, unit


def sample_shape(x: Any) -> tuple[int, ...]:
    """The shape of one sample before ``as_features`` flattens it; () for a row of numbers."""
    shape = getattr(x, "shape", None)
    if isinstance(x, list) and x and is_tensor(x[0]):
        shape = (len(x), *x[0].shape)
    if not isinstance(shape, tuple):
        try:
            shape = np.shape(x)
        except ValueError:  # lists of different lengths, which as_features refuses
            return ()
    return tuple(map(int, shape[1:])) if len(shape) > 2 else ()


def target_shape(y: Any, found: np.ndarray) -> tuple[int, ...]:
    """The shape of one sample's targets before ``as_labels_or_targets`` made ``found`` of y."""
    return sample_shape(y) if found.ndim == 2 else ()


def _check_not_empty(x: np.ndarray, name: str) -> None:
    if x.size == 0:
        raise DataError(
            f"{name}: x has shape {x.shape}, so it is empty; "
            f"pass at least one sample with one feature"
        )


def _has_contiguous_rows(x: np.ndarray) -> bool:
    return x.shape[1] <= 1 or x.strides[1] == x.itemsize  # one column has any stride at all


def as_labels_or_targets(y: Any, what: str) -> tuple[np.ndarray, classes.Classes | None]:
    """y as ``Dataset`` needs it, and the classes of labels that are no whole numbers. Floats are
    numbers to be learned: (n,) is (n, 1).
    """
    is_category = str(getattr(y, "dtype", "")) == "category"
    y = as_numbers(tables.of_column(y, what), f"{what}: y", may_be_labels=True)
    if y.dtype == object and not is_category:  # that of a mixed table
        y = _as_floats(y)
    if y.ndim == 1 and y.dtype.kind in "iu":
        largest = np.iinfo(np.int64).max
        if y.dtype.kind == "u" and y.max(initial=0) > largest:
            row = int(np.argmax(y > largest))
            raise DataError(
                f"{what}: label {y[row]} in row {row} is above {largest:,}; classes count from 0, "
                "so remap y: np.unique(y, return_inverse=True)[1]"
            )
        labels: np.ndarray = y.astype(np.int64, copy=False)
        return labels, None
    if y.ndim == 1 and y.dtype.kind in classes.NAMED:
        return classes.code(y, what)
    if y.ndim == 1 and y.dtype.kind == "f":
        y = y[:, None]  # numbers to be learned, one for each sample
    if y.ndim < 1:
        raise DataError(
            f"{what}: y is one number, but (samples,) labels or numbers, or (samples, targets) "
            "numbers, of which a sample's may have a shape, are expected"
        )
    y = y.reshape(len(y), math.prod(y.shape[1:]))
    if y.dtype.kind == "f" and y.dtype.itemsize in (4, 8):
        return np.ascontiguousarray(y, dtype=y.dtype.newbyteorder("=")), None
    return np.ascontiguousarray(y, dtype=np.float64), None


def _as_floats(y: np.ndarray) -> np.ndarray:
    """Objects (n,) as doubles where all are numbers and some of them floats; else as they are."""
    values = [classes.as_python(one) for one in y.tolist()]
    are_numbers = all(isinstance(one, (int, float)) and type(one) is not bool for one in values)
    is_any_float = any(isinstance(one, float) for one in values)
    return np.array(values, float) if are_numbers and is_any_float else y


def plain(value: Any, what: str) -> np.ndarray:
    """The array of ``numpy.asarray``, but masked arrays and sparse matrices are refused, also in a
    list: it would drop masks, and make one object of a sparse matrix. Raises DataError.
    """
    if type(value) is np.ndarray:
        return value
    value = of_tensor(value, what)
    if isinstance(value, list) and value and is_tensor(value[0]):
        value = [of_tensor(one, f"{what}[{k}]") for k, one in enumerate(value)]
    refuse_masked(value, what)
    if is_sparse(value):
        raise DataError(f"{what} is a sparse matrix, but an array is expected; pass x.toarray()")
    for k, one in enumerate(value if isinstance(value, (list, tuple)) else ()):
        if is_masked(one):
            refuse_masked(one, f"{what}[{k}]")
        elif is_sparse(one):
            raise DataError(
                f"{what}[{k}] is a sparse matrix, but arrays are expected; pass "
                "scipy.sparse.vstack(x).toarray()"
            )
    try:
        array: np.ndarray = np.asarray(value)
    except (RuntimeError, TypeError) as error:  # what is like a tensor, and says why it is no array
        raise DataError(f"{what} cannot be read as an array: {error}") from error
    return array


def is_sparse(value: Any) -> bool:
    """Whether a value is a sparse matrix of scipy, without importing it."""
    return callable(getattr(value, "toarray", None))


def is_masked(value: Any) -> bool:
    """Whether a value is an array of numpy.ma. If that is not imported, there is none: importing it
    here would cost each task time.
    """
    ma = sys.modules.get("numpy.ma")
    return ma is not None and isinstance(value, ma.MaskedArray)


def refuse_masked(value: Any, what: str) -> None:
    """Raise DataError for a masked array of NumPy in which something is masked."""
    if not is_masked(value) or not np.ma.is_masked(value):
        return
    mask = np.ma.getmaskarray(value)
    n, place = int(mask.sum()), [int(k) for k in np.unravel_index(mask.argmax(), mask.shape)]
    where = {
        0: "", 1: " at row {:,}", 2: " at row {:,}, column {:,}",
    }.get(len(place), f" at {tuple(place)}").format(*place)  # fmt: skip
    others = (
        f", the first of {n:,} masked values"
        if n > 1
        else ", the only such value" * (mask.ndim > 0)
    )
    raise DataError(
        f"{what} is masked{where}{others}; drop those rows or fill them in, as .filled(number) does"
    )


def as_numbers(value: Any, what: str, may_be_labels: bool = False) -> np.ndarray:
    if value is None:
        raise DataError(f"{what} is None, but an array of numbers is expected")
    if isinstance(value, Iterator) and not hasattr(value, "__array__"):
        raise DataError(
            f"{what} is a {type(value).__name__}, which has no length; write a list, "
            f"[... for ... in ...], or list(it)"
        )
    try:
        array = plain(value, what)
    except ValueError as error:  # ragged nested lists
        raise DataError(f"{what} is not a rectangular array: {_odd_one(value, error)}") from error
    if may_be_labels and array.ndim == 1 and array.dtype.kind in "USOM":
        return array
    if array.dtype.kind not in "biuf":
        are_tuples = may_be_labels and isinstance(value, list) and isinstance(value[0], tuple)
        raise DataError(
            f"{what} holds {parts.kind_name(array.dtype)}, but numbers are expected; "
            + ("for tuples as labels write np.fromiter(y, object)" if are_tuples else
               "for labels, one per sample, write y.ravel()" if may_be_labels and
               array.ndim == 2 and array.shape[1] == 1 and array.dtype.kind in "USM" else
               "take the real part, or the absolute value" if array.dtype.kind == "c" else
               f"pass the array itself, as df[{value!r}] of a table" if isinstance(value, str)
               else "convert it to a numeric type first")
        )  # fmt: skip
    return array


def _odd_one(value: Any, error: ValueError) -> str:
    """The complaint about the first sample of another shape than the first."""
    try:
        shapes = [np.shape(one) for one in value]
    except ValueError:  # a sample is ragged itself
        return f"{error}; make every sample the same length"
    odd = next((k for k, shape in enumerate(shapes) if shape != shapes[0]), 0)
    of_steps = "; sequences of different lengths are horn.data.sequences([...], y)"
    return (
        f"sample 0 has shape {shapes[0]}, sample {odd} {shapes[odd]}; make every sample the same "
        f"length{of_steps if len(shapes[0]) == len(shapes[odd]) > 0 else ''}"
    )


def refuse_pairs(data: Any, what: str) -> None:
    """Raise DataError for a list [(x, y), ...], as PyTorch's Datasets give samples, or [x, y]: they
    are not the pair of all inputs and all targets.
    """
    pair = "data are the pair (x, y) of all inputs and all targets"
    if not isinstance(data, list) or not data:
        return
    first = data[0]
    if isinstance(first, Mapping):
        names = ", ".join(map(repr, first))
        raise DataError(
            f"{what}: got a list of {len(data)} dicts with {names}, a sample each, but {pair}; "
            f"write (np.array([one[...] for one in data]), ...) with the names of both"
        )
    if len(data) == 2 and _are_unlike(*data) and np.shape(data[0])[:1] == np.shape(data[1])[:1]:
        raise DataError(f"{what}: got a list of two arrays, but {pair}; write (x, y), not [x, y]")
    if is_pair(first):
        raise DataError(
            f"{what}: got a list of {len(data)} pairs, a sample each, but {pair}; write  x, y = "
            f"zip(*data)  and then (np.array(x), np.array(y))"
        )


def is_pair(item: Any) -> bool:
    """Whether an item is a sample and its answer, (x, y), rather than a row of two numbers."""
    return isinstance(item, (tuple, list)) and len(item) == 2 and _are_unlike(*item)


def _are_unlike(a: Any, b: Any) -> bool:
    """Whether these two cannot be rows of one array, or are arrays of their own."""
    try:
        return np.shape(a) != np.shape(b) or (_is_array(a) and _is_array(b) and np.ndim(a) > 0)
    except ValueError:
        return False


def _is_array(thing: Any) -> bool:
    return hasattr(thing, "__array__") and hasattr(thing, "shape")


def check_shapes(x: np.ndarray, y: np.ndarray | None, name: str) -> None:
    """Check the shapes and types of a ``Dataset``'s arrays, and that nothing is masked."""
    refuse_masked(x, f"{name}: x")
    refuse_masked(y, f"{name}: y")
    if (
        x.ndim != 2
        or x.dtype not in (np.uint8, np.float32, np.float64)
        or not _has_contiguous_rows(x)
    ):
        raise DataError(
            f"{name}: x is {x.dtype} of shape {x.shape}, but (samples, features) of uint8, "
            "float32 or float64 with contiguous rows is expected; horn.data.as_dataset((x, y)) "
            "converts it"
        )
    _check_not_empty(x, name)
    if y is None:
        return
    kinds = {1: (np.int64,), 2: (np.int64, np.float32, np.float64)}  # whole numbers of each step
    if y.dtype not in kinds.get(y.ndim, ()):
        raise DataError(
            f"{name}: y is {y.dtype} of shape {y.shape}, but (samples,) int64 labels or "
            "(samples, targets) of float32 or float64 is expected; horn.data.as_dataset((x, y)) "
            "converts it"
        )
    if len(x) != len(y):
        raise DataError(
            f"{name}: x has {len(x):,} samples, but y has {len(y):,}; "
            f"pass one label or one row of targets per sample"
        )
    if y.size == 0:
        raise DataError(
            f"{name}: y has shape {y.shape}, so there is nothing to learn; "
            f"give at least one target per sample, or y=None"
        )


def check_lengths(lengths: np.ndarray, n: int, shape: tuple[int, ...], name: str) -> None:
    """Check the number of steps, from 1, of each of n sequences of this shape."""
    if len(shape) != 2 or lengths.shape != (n,) or lengths.dtype != np.int64:
        raise DataError(
            f"{name}: lengths is {lengths.dtype} of shape {lengths.shape}, for samples of shape "
            f"{shape}; int64 ({n},) and (steps, features) are expected: use horn.data.sequences"
        )
    if len(lengths) and not 1 <= lengths.min() <= lengths.max() <= shape[0]:
        row = int(np.argmax((lengths < 1) | (lengths > shape[0])))
        raise DataError(
            f"{name}: lengths[{row}] is {lengths[row]}, but the sequences have 1 to {shape[0]:,} "
            "steps"
        )
