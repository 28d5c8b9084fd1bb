"""Several inputs by name, {"x": a, "z": b}: their columns side by side, in the network's order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from horn.data import arrays, units
from horn.data.checks import check_sample_shape
from horn.data.conversion import as_dataset
from horn.errors import DataError
from horn.formats import tables

Shapes = Mapping[str, tuple[int, ...]]  # of a sample of each input, in the order of net.input


def side_by_side(data: Any, shapes: Shapes, what: str, learned_by: str = "") -> Any:
    """The dataset of {"x": a, "z": b}, or of ({...}, y); anything else unchanged.

    shapes : of the network's inputs. learned_by : as for ``check_features``.
    Bytes stay bytes if all inputs are bytes, else they become floating point, scaled.

    Raises
    ------
    DataError : an input is missing or unknown, of another size or shape, or has another number of
    samples; or they are several arrays without names.
    """
    x, y = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    for given in (data, x):
        _refuse_unnamed(given, shapes, what)
    if not isinstance(x, Mapping):
        return data
    names = list(shapes)
    if sorted(map(str, x)) != sorted(names):
        missing = [repr(name) for name in names if name not in x]
        unknown = [repr(name) for name in x if name not in names]
        said = [f"{', '.join(missing)} missing"] * bool(missing)
        said += [f"{', '.join(unknown)} not known"] * bool(unknown)
        raise DataError(
            f"{what}: the inputs of the network are {', '.join(map(repr, names))}, but of the data "
            f"{' and '.join(said)}; they are named by net.input(n, name=...)"
            + ("; of inputs and targets write the pair (x, y)" if len(names) == 1 < len(x) else "")
            + ("; of scikit-learn's Bunch (bunch.data, bunch.target)" * ("target" in x))
            + ("; of one input pass the array itself" if len(names) == 1 == len(x) else "")
        )
    tables.warn_of_order(x, y, what)
    found = {}
    for name, shape in shapes.items():
        where, size = f"{what}: input {name!r}", math.prod(shape)
        array, unit = arrays.as_features(x[name], where)
        if array.shape[1] != size:
            raise DataError(
                f"{where} has {array.shape[1]:,} features per sample, but the network declares "
                f"input({shape if len(shape) > 1 else size}, name={name!r}); x.shape is "
                f"{array.shape}"
            )
        check_sample_shape(arrays.sample_shape(x[name]), shape, where, learned_by)
        found[name] = array, unit
    counts = {name: len(array) for name, (array, _) in found.items()}
    if len(set(counts.values())) > 1:
        raise DataError(
            f"{what}: the inputs have {', '.join(f'{n:,} ({k!r})' for k, n in counts.items())} "
            "samples; give each of them the same"
        )
    if len({(array.dtype == np.uint8, unit.scale) for array, unit in found.values()}) > 1:
        found = {name: (_real(*pair), units.NUMBERS) for name, pair in found.items()}
    whole = np.concatenate([array for array, _ in found.values()], axis=1)
    unit = next(iter(found.values()))[1]
    made = as_dataset(whole if y is None else (whole, y), what, scale=unit.scale)
    return made.with_fields(scale_is=unit.why)


def _refuse_unnamed(given: Any, shapes: Shapes, what: str) -> None:
    """Raise DataError for (image, facts), as Keras takes them: a pair is x and y. With several
    inputs none has as many numbers as a sample, so that (x, y) is never meant.
    """
    if len(shapes) < 2 or not isinstance(given, (tuple, list)) or len(given) != len(shapes):
        return
    shaped = [one.shape for one in given if len(getattr(one, "shape", ())) > 1]
    sizes = sorted(math.prod(shape[1:]) for shape in shaped)
    if sizes == sorted(math.prod(shape) for shape in shapes.values()):
        named = ", ".join(f"{name!r}: ..." for name in shapes)
        raise DataError(
            f"{what}: got a {type(given).__name__} of {len(given)} arrays, but several inputs are "
            f"given by their names: x = {{{named}}}"
        )


def _real(array: np.ndarray, unit: units.Unit) -> np.ndarray:
    return array.astype(np.float32) * np.float32(unit.scale) if array.dtype == np.uint8 else array
