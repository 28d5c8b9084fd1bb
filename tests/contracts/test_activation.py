"""Every activation: its slopes are those of its function, and all kinds of numbers work."""

import numpy as np
import pytest

from horn.activations import ACTIVATIONS, INTERLAYERS
from horn.autodiff.tape import Traced, adjoints, derivative, number
from horn.interpreter import layerwise

POINTS = [-2.3, -0.7, -0.05, 0.05, 0.7, 2.3]  # away from the kink at 0


@pytest.fixture(params=ACTIVATIONS)
def activation(request):
    return ACTIVATIONS[request.param]


@pytest.mark.parametrize("z", POINTS)
def test_slopes_are_those_of_finite_differences(activation, z):
    h = 1e-6
    expected = (activation(z + h) - activation(z - h)) / (2 * h)
    assert activation.derivative(activation(z)) == pytest.approx(expected, rel=1e-8, abs=1e-10)
    assert activation.derivative_at(z) == pytest.approx(expected, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("z", [*POINTS, 0.0])
def test_what_is_derived_equals_what_is_written(activation, z):
    derived = derivative(activation.f, Traced(z))
    assert number(derived) == pytest.approx(float(activation.derivative_at(z)), rel=1e-14)


def test_arrays_give_the_same_as_numbers(activation):
    got = np.broadcast_to(activation(np.array(POINTS)), len(POINTS))
    np.testing.assert_allclose(got, [activation(z) for z in POINTS], rtol=1e-15)
    slopes = np.broadcast_to(activation.derivative(activation(np.array(POINTS))), len(POINTS))
    numbers = [activation.derivative(activation(z)) for z in POINTS]
    np.testing.assert_allclose(slopes, numbers, rtol=1e-14)


def test_arrays_keep_single_precision(activation):
    z = np.array(POINTS, np.float32)
    assert activation(z).dtype == np.float32
    assert np.asarray(activation.derivative(activation(z))).dtype in (np.float32, np.float64)


@pytest.mark.parametrize("name", INTERLAYERS)
def test_an_interlayer_has_the_jacobian_of_finite_differences(name):
    f, z, h = INTERLAYERS[name], np.array(POINTS), 1e-6
    for k in range(len(z)):
        leaves = [Traced(v, variable=True, varies=True) for v in z]
        made, _ = layerwise.run(f, [(leaf,) for leaf in leaves])
        table = adjoints([(made[k], 1.0)])
        for j, leaf in enumerate(leaves):
            shift = np.eye(len(z))[j] * h
            expected = (f(z + shift)[k] - f(z - shift)[k]) / (2 * h)
            assert table.get(leaf.serial, 0.0) == pytest.approx(expected, rel=1e-7, abs=1e-10)
