"""What users give as a dataset, and its bytes in the units of the model that hears them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from horn.data import arrays, targets, units
from horn.data.checks import check_finite
from horn.data.dataset import Dataset
from horn.errors import DataError
from horn.formats import tables
from horn.mistakes import shown


def as_dataset(data: Any, what: str = "data", *, scale: float | None = None) -> Dataset:
    """A checked dataset, from a Dataset, a pair (x, y) of arrays, or an array x alone.

    x (n, ...) any real numbers: further axes are flattened (``Dataset.shape`` is theirs); uint8,
    float32 and float64 are kept without a copy where rows are contiguous, booleans become bytes, 8-
    and 16-bit numbers float32, all others float64.
    y (n,) whole numbers are labels; text, truth values and other distinguishable values are
    labels too, coded by their sorted order (``Dataset.classes``) · (n, n_targets) numbers are
    targets, and those of a layer with a shape (n, *shape), which is flattened
    (``Dataset.target_shape``) · {name: either} of several outputs, which are its columns then
    (``Dataset.targets``) · None. Tables and columns of pandas are taken as their values,
    row by row as they lie; an index in another order is warned of.
    scale : the value of one unit of x; None means 1/255 for uint8 and 1 for everything else, also
    in tables. A Dataset keeps its own.

    ``what`` names the data in messages. Contents are checked once per dataset: no NaN or infinity
    (one pass over floating-point data, none over bytes). Labels below 0 are refused by a job, and
    by a model that has no such classes.

    Raises
    ------
    DataError : the data are empty, of other types or shapes, of different lengths, or hold what no
    network can learn.
    """
    if not isinstance(what, str):
        raise DataError(
            f"as_dataset: what is the name of the data, got {shown(what)}; a pair is one argument, "
            f"as_dataset((x, y))"
        )
    if isinstance(data, (str, os.PathLike)):
        raise DataError(
            f"{what}: got the path {os.fspath(data)!r}, but arrays or a dataset are expected; read "
            f"the file with horn.data.load({os.fspath(data)!r})"
        )
    if data is None:
        raise DataError(f"{what}: got None, but the pair (x, y), or x alone, is expected")
    arrays.refuse_pairs(data, what)
    if any(each.__module__.startswith("torch.utils.data") for each in type(data).__mro__):
        raise DataError(
            f"{what}: got a {type(data).__name__}, a Dataset of PyTorch, of single samples; pass "
            "torch.utils.data.DataLoader(it, batch_size=32, shuffle=True)"
        )
    if isinstance(data, tuple) and len(data) != 2:
        raise DataError(
            f"{what}: got a tuple of {len(data)}, but data are the pair (x, y), or (x, None)"
        )
    if not isinstance(data, Dataset):
        x, y = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
        tables.warn_of_order(x, y, what)
        if getattr(x, "ndim", 0) == 1 and y is not None and getattr(y, "ndim", 0) == 2:
            raise DataError(
                f"{what}: x has shape {x.shape} and y {y.shape}, but x is (samples, features) and "
                "comes first; write (y, x) if they are exchanged, x.reshape(-1, 1) for one feature"
            )
        features, unit = arrays.as_features(x, what)
        shape, names = arrays.sample_shape(x), tables.names_of(x)
        labels, named = None, None
        parts: targets.Parts = ()
        of_targets: tuple[int, ...] = ()
        if isinstance(y, Mapping):
            labels, parts = targets.side_by_side(y, what)
        elif y is not None:
            labels, named = arrays.as_labels_or_targets(y, what)
            of_targets = arrays.target_shape(y, labels)
        worth, why = unit if scale is None else (scale, units.SAID)
        dataset = Dataset(features, labels, worth, what, named, shape=shape, targets=parts,
                          feature_names=names, scale_is=why,
                          target_shape=of_targets)  # fmt: skip
    else:
        dataset = data
    if not dataset._checked:
        check_finite(dataset)
        object.__setattr__(dataset, "_checked", True)
    return dataset


def as_heard(dataset: Dataset, learned: float | None, knows_columns: bool) -> Dataset:
    """The dataset with bytes that are worth what ``unit_heard`` says."""
    if dataset.x.dtype != np.uint8:
        return dataset
    unit = units.Unit(dataset.scale, dataset.scale_is)
    scale = units.unit_heard(unit, learned, knows_columns)
    return dataset if scale == dataset.scale else dataset.with_fields(scale=scale)
