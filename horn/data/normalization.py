"""Mean and standard deviation per feature: measured once on the training data, applied where rows
are read. They describe x after ``Dataset.scale``, as a network would see it without them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn.data.lengths import within
from horn.errors import DataError

Shapes = Mapping[str, tuple[int, ...]]  # of a sample of each input, in the order of its columns

# 256 Ki values a chunk: large enough to hide Python's cost, small enough to stay in a cache.
CHUNK_VALUES = 262_144


@dataclass(frozen=True, eq=False)
class Normalization:
    """The map of each feature to (value - mean) / std.

    mean, std (features,) float64; std is above 0, and 1 for a feature that is constant, or whose
    deviation is too small to divide by.
    by_step : for sequences, the features are those of a step, and the same at every step.
    """

    mean: np.ndarray
    std: np.ndarray
    by_step: bool = False

    def __post_init__(self) -> None:
        mean, std = self.mean, self.std
        is_good = mean.ndim == 1 and mean.shape == std.shape and mean.dtype == std.dtype == "f8"
        if not is_good or not np.isfinite(mean).all() or not (np.isfinite(std) & (std > 0)).all():
            raise DataError(
                "normalization: mean and std are float64 (features,), finite, std above 0; got "
                f"{mean.dtype} {mean.shape} and {std.dtype} {std.shape}"
            )

    def steps(self, scale: float, stored: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """The (center, factor) of the network's values: (stored - center) * factor.

        stored : the type of the values. For doubles both are doubles, and the result is rounded to
        ``dtype`` once: float32 has no digits left for the difference of a time in seconds from its
        mean. For others both are of ``dtype``, as the values then are.
        """
        dtype = stored if stored == np.float64 else dtype
        return (self.mean / scale).astype(dtype), (scale / self.std).astype(dtype)

    def fits(self, features: int) -> bool:
        """Whether a sample of so many features can be normalized."""
        return features % len(self.mean) == 0 if self.by_step else features == len(self.mean)

    def of_size(self, features: int, channels: int) -> Normalization:
        """The same for samples of another size, if it is one mean and deviation for each channel,
        which are last, at all positions; else itself.
        """
        if self.by_step or self.fits(features) or features % channels:
            return self
        if len(self.mean) % channels:
            return self
        mean, std = (each.reshape(-1, channels) for each in (self.mean, self.std))
        if not ((mean == mean[:1]) & (std == std[:1])).all():
            return self
        n = features // channels
        return Normalization(np.tile(mean[0], n), np.tile(std[0], n))

    def of_inputs(self, before: Shapes, now: Shapes) -> Normalization:
        """The same for several inputs of other sizes, each as of ``of_size``, or in another order;
        itself where they have other names. before, now : the shape of a sample of each input.
        """
        if before.keys() != now.keys() or list(before.items()) == list(now.items()):
            return self
        found, first = {}, 0
        for name, shape in before.items():
            own = slice(first, first := first + math.prod(shape))
            found[name] = Normalization(self.mean[own], self.std[own])
        return together(
            found[name].of_size(math.prod(shape), shape[-1]) if len(shape) > 1 else found[name]
            for name, shape in now.items()
        )

    def as_json(self) -> dict[str, Any]:
        step = {"by_step": True} if self.by_step else {}
        return {"mean": self.mean.tolist(), "std": self.std.tolist(), **step}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Normalization:
        mean, std = (np.array(found[name], np.float64) for name in ("mean", "std"))
        return cls(mean, std, found.get("by_step") is True)


def together(of_inputs: Iterable[Normalization]) -> Normalization:
    """That of several inputs, whose features are side by side."""
    each = [*of_inputs]
    mean, std = (np.concatenate([getattr(own, it) for own in each]) for it in ("mean", "std"))
    return Normalization(mean, std)


def measure(
    x: np.ndarray, scale: float, channels: int | None = None, step: int | None = None,
    lengths: np.ndarray | None = None,
) -> Normalization:  # fmt: skip
    """Measure all samples x (n, features) in one pass, in double precision, about 1 MiB at a time.

    channels : their number, if they are last; the results are then per channel, over all positions.
    step : for sequences the number of features of one step; the results are then over all steps.
    lengths (n,) : the number of steps of each sequence; later ones do not count.

    Source: Chan, Golub & LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances", 1979.
    """
    features = step or x.shape[1]
    width = channels or features
    n, mean = 0, np.zeros(width)
    squares, low, high = np.zeros_like(mean), np.full_like(mean, np.inf), mean - np.inf
    at_once = max(CHUNK_VALUES // x.shape[1], 1)
    for start in range(0, len(x), at_once):
        chunk = x[start : start + at_once].astype(np.float64).reshape(-1, x.shape[1])
        if lengths is not None:
            steps = chunk.reshape(len(chunk), -1, features)
            chunk = steps[within(lengths[start : start + at_once], steps.shape[1])]
        chunk = chunk.reshape(-1, width)
        low, high = np.minimum(low, chunk.min(axis=0)), np.maximum(high, chunk.max(axis=0))
        with np.errstate(over="ignore", invalid="ignore"):  # refused below
            m, own = len(chunk), chunk.mean(axis=0)
            chunk -= own
            squares += (chunk * chunk).sum(axis=0) + (own - mean) ** 2 * (n * m / (n + m))
            mean += (own - mean) * (m / (n + m))
        n += m
    if not (good := np.isfinite(squares)).all():
        column = int(np.argmin(good))
        raise DataError(
            f"normalize: the values of column {column:,} go from {low[column]:g} to "
            f"{high[column]:g}, whose squares no number holds; if that marks what is missing drop "
            "those rows or fill them in, else divide the column"
        )
    constant = low == high
    std = np.sqrt(squares / n)
    # rounding leaves a constant feature a tiny deviation; one of the smallest numbers may have 0,
    # or one by which nothing can be divided in the type of x
    too_small = std <= 1.0 / np.finfo(np.float32 if x.dtype == np.float32 else np.float64).max
    std *= abs(scale)
    std[constant | too_small | (std == 0)] = 1.0
    mean = np.where(constant, low, mean) * scale
    mean, std = (np.tile(each, features // width) for each in (mean, std))
    return Normalization(mean, std, by_step=step is not None)
