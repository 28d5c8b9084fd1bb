"""Derived gradients against finite differences of the loss."""

from __future__ import annotations

import numpy as np
import pytest

from horn.backends import Setup, make
from horn.data import Dataset

AT = {"iteration": 0, "first_sample": 0}
STEP = 1e-6


def check_gradients(backend: str, setup: Setup, data: Dataset, n_each: int = 4) -> None:
    """Of some numbers of every learned array, in the first batch of the data."""
    engine, rows = make(backend, setup), np.arange(setup.batch_size)
    engine.bind(data)
    found, arrays = engine.probe(rows, **AT), engine.parameters()
    rng = np.random.default_rng(0)
    for name, array in arrays.items():
        for flat in rng.choice(array.size, min(n_each, array.size), replace=False):
            where = np.unravel_index(flat, array.shape)
            losses = []
            for h in (STEP, -STEP):
                moved = array.copy()
                moved[where] += h
                engine.load({**arrays, name: moved})
                losses.append(float(engine.probe(rows, **AT)["loss"]))
            engine.load(arrays)
            slope = (losses[0] - losses[1]) / (2 * STEP)
            gradient = found.get(f"{name}.gradient", np.zeros(array.shape))  # none reaches it
            assert gradient[where] == pytest.approx(slope, rel=1e-4, abs=1e-8)
