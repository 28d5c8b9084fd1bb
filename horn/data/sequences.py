"""Sequences as rows: (n, steps, features) with what is asked of the last step, or of each."""

from __future__ import annotations

from typing import Any

import numpy as np

from horn.data import arrays
from horn.data.checks import as_dataset
from horn.data.dataset import Dataset
from horn.errors import DataError


def of_steps(data: Any, steps: int, features: int, each: bool, size: int, what: str) -> Any:
    """A dataset of sequences, or of (x, y); a Dataset, and what is no array, as it is.

    x (n, steps, features), or (n, steps) of one feature · y, of the last step: labels (n,) or
    targets (n, size); of ``each`` step: labels (n, steps), targets (n, steps, size), or (n, steps)
    of one. Labels stay whole numbers, bytes stay bytes.

    Raises
    ------
    DataError : other shapes; labels of each step for a network that answers by its last, and the
    other way round.
    """
    x, y = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    if isinstance(x, (Dataset, str)) or not hasattr(x, "__array__") and not isinstance(x, list):
        return data
    x = np.asarray(x)
    wanted = (steps, features)
    is_flat = x.shape[1:] == (steps * features,)
    if x.shape[1:] != wanted and not is_flat:
        raise DataError(
            f"{what}: x has shape {x.shape}, but net.input({features}, steps={steps}) takes (n, "
            f"{steps}, {features}); cut or fill every sequence to {steps} steps"
        )
    x = x.reshape(len(x), -1)
    if y is None:
        return as_dataset(x, what)
    y = np.asarray(y)
    if y.ndim > 1 and y.dtype.kind in "iub" and not each and y.shape[1:] == (steps,) != (size,):
        raise DataError(
            f"{what}: y has shape {y.shape}, a label for each step, but the network answers by its "
            "last step: pass labels (n,) as y[:, -1], or ask each step: net.output(..., "
            "each_step=True)"
        )
    if not each:
        return as_dataset((x, y), what)
    if y.shape[1:2] != (steps,):
        raise DataError(
            f"{what}: y has shape {y.shape}, but each step is asked (each_step=True): labels "
            f"({len(x)}, {steps}) or targets ({len(x)}, {steps}, {size}); of one answer per "
            "sequence leave each_step out"
        )
    if y.ndim == 2 and y.dtype.kind in "iub" and size > 1:
        found, scale = arrays.as_features(x, what)
        labels = np.ascontiguousarray(y, np.int64)
        return as_dataset(Dataset(found, labels, scale, what), what)
    if y.shape[2:] not in ((size,), () if size == 1 else (size,)):
        raise DataError(
            f"{what}: y has shape {y.shape}, but each of {steps} steps is answered by {size} "
            f"neuron{'s' * (size != 1)}: ({len(x)}, {steps}, {size})"
        )
    y = y if y.dtype.kind == "f" else y.astype(np.float64)
    return as_dataset((x, y.reshape(len(y), -1)), what)


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
