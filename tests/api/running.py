"""What the tests of engines share: small data, an engine on them, and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np

import horn
from horn.backends import Engine, Setup, make
from horn.data import Dataset


def dataset(n: int, features: int, classes: int, seed: int = 0) -> Dataset:
    """Normal features and labels 0 .. classes - 1."""
    rng = np.random.default_rng(seed)
    return Dataset(rng.normal(size=(n, features)), np.arange(n, dtype=np.int64) % classes)


def engine(
    net: horn.Network, data: Dataset | None = None, optimizer: Any = None, *,
    backend: str = "python", target: str | None = "labels", dtype: str = "float64",
) -> Engine:  # fmt: skip
    """An engine in double precision, with plain gradient descent unless told otherwise."""
    setup = Setup(net, optimizer or horn.SGD(0.1), target, 32, dtype)
    made = make(backend, setup)
    if data is not None:
        made.bind(data)
    return made


def probe(made: Engine, n: int, iteration: int = 0, first_sample: int = 0) -> dict[str, Any]:
    return made.probe(np.arange(n), iteration=iteration, first_sample=first_sample)


def step(made: Engine, n: int, iteration: int = 0, first_sample: int = 0) -> float:
    return made.step(np.arange(n), iteration=iteration, first_sample=first_sample)


def numeric_gradients(made: Engine, n: int, h: float = 1e-5) -> dict[str, np.ndarray]:
    """d mean loss / d every learned number, by central differences."""
    start = made.parameters()
    found = {}
    for name, array in start.items():
        gradient = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            losses = []
            for shift in (h, -h):
                moved = {k: v.copy() for k, v in start.items()}
                moved[name][place] += shift
                made.load(moved)
                losses.append(float(probe(made, n)["loss"]))
            gradient[place] = (losses[0] - losses[1]) / (2 * h)
        found[name] = gradient
    made.load(start)
    return found


def assert_gradients_are_true(made: Engine, n: int) -> None:
    """What the engine says of every array's gradient is what the loss does."""
    got = probe(made, n)
    for name, expected in numeric_gradients(made, n).items():
        np.testing.assert_allclose(
            got[f"{name}.gradient"], expected, rtol=1e-6, atol=1e-9, err_msg=name
        )
