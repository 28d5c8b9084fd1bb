"""Blocks that do not fit are refused before any kernel runs."""

from __future__ import annotations

import numpy as np
import pytest

from horn.runtime import blocks
from horn.runtime.messages import BadFrame


def test_packing_combining_and_unpacking_is_indexing(rng):
    x, columns = rng.standard_normal((3, 8)), np.array([5, 1, 2])
    first, second, total = np.empty((3, 3)), rng.standard_normal((3, 3)), np.empty((3, 3))
    blocks.gather(x, columns, first)
    blocks.combine([first, second], "sum", total)
    np.testing.assert_array_equal(total, x[:, columns] + second)
    expected = x.copy()
    expected[:, columns] = total
    blocks.scatter(total, columns, x)
    np.testing.assert_array_equal(x, expected)
    expected[:, columns] = np.maximum(expected[:, columns], second)
    blocks.combine_at(second, columns, "max", x)
    np.testing.assert_array_equal(x, expected)


def test_what_does_not_fit_is_refused():
    x, ok = np.zeros((3, 8)), np.array([1, 2])
    for columns, block in [
        (ok, np.zeros((3, 3))),
        (ok, np.zeros((2, 2))),
        (ok, np.zeros((3, 2), np.float32)),
        (np.array([1, 8]), np.zeros((3, 2))),
        (np.array([-1, 2]), np.zeros((3, 2))),
        (ok.astype(np.int32), np.zeros((3, 2))),
    ]:
        for call in (
            lambda b=block, c=columns: blocks.gather(x, c, b),
            lambda b=block, c=columns: blocks.scatter(b, c, x),
            lambda b=block, c=columns: blocks.combine_at(b, c, "sum", x),
        ):
            with pytest.raises(BadFrame, match="block"):
                call()
    for several, out in [
        ([], np.zeros(3)),
        ([np.zeros(3), np.zeros(4)], np.zeros(3)),
        ([np.zeros(3, np.float32)], np.zeros(3)),
        ([np.zeros(3)], np.zeros(6)[::2]),
        ([np.zeros(6)[::2]], np.zeros(3)),
    ]:
        with pytest.raises(BadFrame, match="combine"):
            blocks.combine(several, "sum", out)
