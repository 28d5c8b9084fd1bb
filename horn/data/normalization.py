"""Mean and standard deviation per feature: measured once on the training data, applied where rows
are read. The numbers are of what a network would see without it, after ``Dataset.scale``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn.errors import DataError

CHUNK_VALUES = 262_144  # as in ``checks``


@dataclass(frozen=True, eq=False)
class Normalization:
    """Each feature becomes (value - mean) / std.

    mean, std (features,) float64; std is above 0, and 1 for a feature that is constant.
    """

    mean: np.ndarray
    std: np.ndarray

    def __post_init__(self) -> None:
        mean, std = self.mean, self.std
        is_good = mean.ndim == 1 and mean.shape == std.shape and mean.dtype == std.dtype == "f8"
        if not is_good or not np.isfinite(mean).all() or not (np.isfinite(std) & (std > 0)).all():
            raise DataError(
                "normalization: mean and std are float64 (features,), finite, std above 0; got "
                f"{mean.dtype} {mean.shape} and {std.dtype} {std.shape}"
            )

    def steps(self, scale: float, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """(center, factor) of ``dtype``: (stored - center) * factor is what the network sees."""
        return (self.mean / scale).astype(dtype), (scale / self.std).astype(dtype)

    def as_json(self) -> dict[str, list[float]]:
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Normalization:
        return cls(*(np.array(found[name], np.float64) for name in ("mean", "std")))


def measure(x: np.ndarray, scale: float, channels: int | None = None) -> Normalization:
    """Of all samples x (n, features), in one pass of double precision, in chunks of about 1 MiB.

    channels : how many there are, last; then the numbers are of each of them over all positions.

    Source: Chan, Golub & LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances", 1979.
    """
    width = channels or x.shape[1]
    n, mean = 0, np.zeros(width)
    squares, low, high = np.zeros_like(mean), np.full_like(mean, np.inf), mean - np.inf
    step = max(CHUNK_VALUES // x.shape[1], 1)
    for start in range(0, len(x), step):
        chunk = x[start : start + step].astype(np.float64).reshape(-1, width)
        low, high = np.minimum(low, chunk.min(axis=0)), np.maximum(high, chunk.max(axis=0))
        m, own = len(chunk), chunk.mean(axis=0)
        chunk -= own
        squares += (chunk * chunk).sum(axis=0) + (own - mean) ** 2 * (n * m / (n + m))
        mean += (own - mean) * (m / (n + m))
        n += m
    constant = low == high
    std = np.sqrt(squares / n) * abs(scale)
    # rounding leaves a constant feature a tiny deviation; one of the smallest numbers may have 0
    std[constant | (std == 0)] = 1.0
    mean = np.where(constant, low, mean) * scale
    return Normalization(*(np.tile(each, x.shape[1] // width) for each in (mean, std)))
