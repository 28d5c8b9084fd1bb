"""Whole arrays of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from horn.checkpoint import CheckpointReader


def whole_array(
    opened: CheckpointReader, kind: str, name: str, shape: Sequence[int], dtype: npt.DTypeLike
) -> np.ndarray:
    return opened.cut(kind, name, tuple(slice(0, n) for n in shape), dtype)
