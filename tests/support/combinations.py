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
    values = [list(axis) for axis in axes]
    assert one_in <= sorted(map(len, values))[-2], "some value would never be tried"
    return [
        pytest.param(
            *(axis[k] for axis, k in zip(values, place, strict=True)),
            marks=pytest.mark.slow if sum(place) % one_in else (),
        )
        for place in itertools.product(*(range(len(axis)) for axis in values))
    ]
