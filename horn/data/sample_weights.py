"""The weights of samples, and of the steps of sequences, in the training loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from horn.data.arrays import as_numbers
from horn.errors import DataError


def as_weight(
    weight: Any, n: int, name: str, steps: int = 0, ends: np.ndarray | None = None
) -> np.ndarray:
    """Weights of n samples as ``Dataset`` needs them. steps : of sequences whose steps may have
    weights of their own, (n, steps) or a list of arrays (steps,); 0: of anything else. ends (n,) :
    how many steps each has; None: all. Raises DataError.
    """
    try:
        if steps and isinstance(weight, (list, tuple)) and any(map(np.ndim, weight)):
            found = _of_steps(weight, np.full(n, steps) if ends is None else ends, steps, name)
        else:
            found = as_numbers(weight, f"{name}: sample_weight")
    except DataError:
        if not steps and isinstance(weight, (list, tuple)) and any(map(np.ndim, weight)):
            raise DataError(
                f"{name}: sample_weight has several numbers for a sample, but one per sample is "
                "expected; a sequence has one for all its steps, unless each is answered "
                "(each_step=True)"
            ) from None
        raise
    if found.dtype not in (np.float32, np.float64):
        found = found.astype(np.float64)
    if ends is not None and found.ndim == 2 and ends.max() <= found.shape[1] < steps:
        found = np.pad(found, ((0, 0), (0, steps - found.shape[1])))  # as x is filled up
    found = checked_weight(found, n, name, steps, ends)
    if not found.any():
        raise DataError(f"{name}: sample_weight is 0 for every sample; nothing would be learned")
    return np.ascontiguousarray(found)


def _of_steps(each: Sequence[Any], ends: np.ndarray, steps: int, name: str) -> np.ndarray:
    """The weights of the steps of sequences, (n, steps); 0 behind their ends."""
    if len(each) != len(ends):
        raise DataError(
            f"{name}: there are {len(ends):,} sequences, but {len(each):,} in sample_weight; pass "
            "as many"
        )
    found = np.zeros((len(ends), steps))
    for k, (one, n) in enumerate(zip(each, ends, strict=True)):
        one = as_numbers(one, f"{name}: sample_weight[{k}]")
        if one.shape != (n,):
            raise DataError(
                f"{name}: sample_weight[{k}] has shape {one.shape}, but sequence {k} has {n:,} "
                "steps; give one number for each step, or one for each sequence"
            )
        found[k, :n] = one
    return found


def checked_weight(
    weight: np.ndarray, n: int, name: str, steps: int | None = None, ends: np.ndarray | None = None
) -> np.ndarray:
    """The weights, if there is one number from 0 for each sample, or for each of its steps. What is
    no such number behind the ``ends`` (n,) of sequences is 0 then. steps : that there may be
    weights of: any number; 0: none. Raises DataError.
    """
    is_shaped = weight.shape in ((n,), (n, steps)) or steps is None and weight.ndim == 2
    if not is_shaped or len(weight) != n or weight.dtype not in (np.float32, np.float64):
        of_steps = f", or ({n}, {steps}): one for each step" if steps else ""
        raise DataError(
            f"{name}: sample_weight is {weight.dtype} of shape {weight.shape}, but ({n},) is "
            f"expected: one number per sample{of_steps}"
        )
    is_wrong = ~((weight >= 0.0) & np.isfinite(weight))
    if not is_wrong.any():
        return weight
    if weight.ndim == 2 and ends is not None:
        behind = np.arange(weight.shape[1]) >= ends[:, None]
        weight, is_wrong = np.where(is_wrong & behind, 0, weight), is_wrong & ~behind
    if is_wrong.any():
        place = tuple(map(int, np.unravel_index(is_wrong.argmax(), is_wrong.shape)))
        what = "sample" if weight.ndim == 1 else "step"
        raise DataError(
            f"{name}: sample_weight{[*place]} is {weight[place]:g}; weights are finite numbers "
            f"from 0 (0: the {what} is not learned from)"
        )
    return weight
