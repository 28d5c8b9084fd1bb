"""Combinations of several parameters: all in the slow suite, a share of them in the gate."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def share(one_in: int, *axes: Iterable[Any]) -> list[Any]:
    """Parameters for ``pytest.mark.parametrize``: of the combinations of the axes' values every
    ``one_in``-th is for the gate, along diagonals: each value is in one of them, and each
    pair of values of two axes that have as many as that. The others are slow.

    one_in : at most as many as the second longest axis has values.
    """
    values = [[_param(value) for value in axis] for axis in axes]
    assert one_in <= sorted(map(len, values))[-2], "some value would never be tried"
    found = []
    for place in itertools.product(*(range(len(axis)) for axis in values)):
        here = [axis[k] for axis, k in zip(values, place, strict=True)]
        marks = [mark for param in here for mark in param.marks]
        marks += [pytest.mark.slow] if sum(place) % one_in else []
        found.append(pytest.param(*(param.values[0] for param in here), marks=marks))
    return found


def _param(value: Any) -> Any:
    """A value in a pytest.param; a marked one stays as it is."""
    return value if hasattr(value, "marks") and hasattr(value, "values") else pytest.param(value)
