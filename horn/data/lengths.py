"""Sequences that end early: their own steps, and those that only fill them up."""

from __future__ import annotations

import numpy as np


def within(lengths: np.ndarray, steps: int) -> np.ndarray:
    """(n, steps): whether a step lies within its sequence, by the lengths (n,) of all."""
    return np.asarray(np.arange(steps) < lengths[:, None])
