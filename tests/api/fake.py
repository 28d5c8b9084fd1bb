"""A backend that computes nothing: the losses and scores of a run are written down before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from horn.backends import Setup


class Scripted:
    """An engine whose ``step`` returns the next loss, and whose ``losses`` the next score.

    Every step adds 1 to every parameter, so that a test can see which step an array is from.
    """

    def __init__(self, losses: Iterable[float], scores: Iterable[tuple[float, int]] = ()) -> None:
        self.losses_written = losses
        self.script: Iterator[float] = iter(losses)
        self.scores = iter(scores)
        self.calls: list[tuple[list[int], int, int]] = []
        self.loaded_updates: int | None = None

    def __call__(self, backend: str, setup: Setup) -> Scripted:
        """Stands in for ``horn.backends.make``."""
        self.setup, self.backend, self.updates = setup, backend, 0
        self.script = iter(self.losses_written)  # made again, it does the same
        self.arrays = setup.network.initial_parameters(setup.dtype)
        return self

    def bind(self, data: Any) -> None:
        self.data = data

    def step(self, rows: np.ndarray, *, iteration: int, first_sample: int) -> float:
        self.calls.append((rows.tolist(), iteration, first_sample))
        for array in self.arrays.values():
            array += 1
        return next(self.script)

    def losses(self, data: Any) -> tuple[float, int]:
        if data.name == "data":  # of the training data, not of validation or test
            return 0.5 * len(data), len(data) // 2
        loss, right = next(self.scores)
        return loss * len(data), right

    def parameters(self) -> dict[str, np.ndarray]:
        return {name: array.copy() for name, array in self.arrays.items()}

    def states(self) -> dict[str, np.ndarray]:
        return {}

    def memory(self) -> dict[str, dict[str, np.ndarray]]:
        return {"parameter": self.arrays, "state": {}, "slot": {}}

    def recall(self, memory: Any, updates: int) -> None:
        self.arrays.update({n: a.copy() for n, a in memory["parameter"].items()})

    def probe(self, rows: np.ndarray, **_: Any) -> dict[str, np.ndarray]:
        layers = self.setup.network.layers
        found = {f"{k.name}.output": np.full((len(rows), k.size), 0.5) for k in layers}
        return {**found, "loss": np.asarray(0.7)}

    def load(
        self, parameters: Any, states: Any = None, slots: Any = None, updates: int = 0
    ) -> None:
        for name, array in parameters.items():
            self.arrays[name][...] = array
        self.loaded_updates = updates
