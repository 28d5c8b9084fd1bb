"""Losses: values, edges, and names."""

import math

import numpy as np
import pytest

from horn.errors import ModelError
from horn.losses import LOSSES, Loss, resolve


@pytest.mark.parametrize(
    "name, output, target, expected",
    [
        ("squared_error", 3.0, 1.0, 2.0),
        ("cross_entropy", 0.25, 1.0, math.log(4)),
        ("cross_entropy", 0.25, 0.0, 0.0),
        ("cross_entropy", 0.25, 0.5, 0.5 * math.log(4)),
        ("binary_cross_entropy", 0.25, 1.0, math.log(4)),
        ("binary_cross_entropy", 0.25, 0.0, math.log(4 / 3)),
        ("binary_cross_entropy", 0.5, 0.3, math.log(2)),
    ],
)
def test_values(name, output, target, expected):
    assert LOSSES[name].f(output, target) == pytest.approx(expected, rel=1e-14)
    got = LOSSES[name].f(np.array([output]), np.array([target]))
    np.testing.assert_allclose(got, [expected], rtol=1e-14)


@pytest.mark.parametrize(
    "name, output, target",
    [("cross_entropy", 0.0, 0.0), ("binary_cross_entropy", 0.0, 0.0),
     ("binary_cross_entropy", 1.0, 1.0)],
)  # fmt: skip
def test_a_certain_and_right_output_costs_nothing_and_no_logarithm_of_zero_is_taken(
    name, output, target
):
    assert LOSSES[name].f(output, target) == 0.0
    with np.errstate(all="raise"):
        assert LOSSES[name].f(np.array(output), np.array(target)) == 0.0


def test_names_functions_and_objects_resolve():
    def hinge(output, target):
        return max(0.0, 1.0 - output * target)

    assert resolve(None, "output") is None
    assert resolve("squared_error", "output") is LOSSES["squared_error"]
    assert resolve(hinge, "output") == Loss("hinge", hinge)
    assert resolve(LOSSES["cross_entropy"], "output") is LOSSES["cross_entropy"]
    with pytest.raises(ModelError, match="unknown loss 'squared_eror'; did you mean 'squared_err"):
        resolve("squared_eror", "output")
