"""Data in the place of files that examples read."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

import horn
from horn.data.characters import text


def fake_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace MNIST, CIFAR-10 and a book by 20 to 40 samples."""
    rng = np.random.default_rng(0)

    def mnist(*_: Any, **__: Any) -> horn.data.Dataset:
        return horn.data.Dataset(rng.random((40, 784)), np.arange(40) % 10)

    def cifar10(*_: Any, **__: Any) -> horn.data.Dataset:
        return horn.data.as_dataset((rng.random((20, 32, 32, 3)), np.arange(20) % 10))

    def book(_: Any, steps: int, **settings: Any) -> horn.data.Dataset:
        return text(io.StringIO("the quick brown fox. " * steps), steps, **settings)

    for name, made in (("mnist", mnist), ("cifar10", cifar10), ("text", book)):
        monkeypatch.setattr(horn.data, name, made, raising=False)
