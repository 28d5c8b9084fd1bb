"""Every optimizer: pure, one formula for numbers and arrays, and downhill."""

import inspect

import numpy as np
import pytest

import horn
from horn import optimizers
from horn.optimizers import Optimizer

CLASSES = [
    value
    for _, value in inspect.getmembers(optimizers, inspect.isclass)
    if issubclass(value, Optimizer) and value is not Optimizer
]


@pytest.fixture(params=CLASSES, ids=lambda cls: cls.__name__)
def optimizer(request):
    return request.param(learning_rate=0.05)


def fresh(optimizer, like):
    return {name: np.zeros_like(like) for name in optimizer.slots}


def test_update_does_not_write_its_inputs_and_keeps_shape_and_type(optimizer, rng):
    for dtype in (np.float32, np.float64):
        w, g = (rng.normal(size=(3, 4)).astype(dtype) for _ in "wg")
        slots = fresh(optimizer, w)
        for array in (w, g, *slots.values()):
            array.flags.writeable = False
        new, memory = optimizer.update(w, g, slots, 0.05, 1)
        assert new.shape == w.shape and new.dtype == dtype
        assert memory.keys() == slots.keys() == set(optimizer.slots)
        assert all(m.shape == w.shape and m.dtype == dtype for m in memory.values())


def test_arrays_are_updated_number_by_number(optimizer, rng):
    w, slots = rng.normal(size=3), fresh(optimizer, np.zeros(3))
    numbers = [(float(v), dict.fromkeys(optimizer.slots, 0.0)) for v in w]
    for t in range(1, 4):
        g = rng.normal(size=3)
        w, slots = optimizer.update(w, g, slots, 0.05, t)
        numbers = [
            optimizer.update(v, float(d), s, 0.05, t) for (v, s), d in zip(numbers, g, strict=True)
        ]
    np.testing.assert_allclose(w, [v for v, _ in numbers], rtol=1e-14)
    for name in optimizer.slots:
        np.testing.assert_allclose(slots[name], [s[name] for _, s in numbers], rtol=1e-14)


def test_steps_go_downhill_unless_the_neuron_says_the_step_itself(optimizer):
    w, slots = np.array([1.0, -2.0]), fresh(optimizer, np.zeros(2))
    for t in range(1, 101):
        w, slots = optimizer.update(w, w, slots, 0.05, t)  # the slope of w^2 / 2
    smaller = np.all(np.abs(w) < [1.0, 2.0])
    assert smaller != isinstance(optimizer, horn.Direct)


def test_nothing_happens_without_a_gradient(optimizer):
    w = np.array([1.0, -2.0])
    new, memory = optimizer.update(w, np.zeros(2), fresh(optimizer, w), 0.05, 1)
    np.testing.assert_array_equal(new, w)
    assert all(np.all(m == 0) for m in memory.values())


def test_settings_cannot_be_changed(optimizer):
    with pytest.raises(AttributeError):
        optimizer.learning_rate = 1.0


def test_every_optimizer_is_public(optimizer):
    assert getattr(horn, type(optimizer).__name__) is type(optimizer)
