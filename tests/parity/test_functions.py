"""Every function of the neuron language: its slope, and that it is the same compiled and not."""

import math as python_math
import re
from pathlib import Path

import numpy as np
import pytest

import horn
from horn import math
from horn.autodiff.tape import RULES, Traced, adjoints
from horn.backends import Setup, make
from tests.parity import expressions
from tests.parity.test_compiled_equals_interpreted import compare, samples
from tests.support.functions import FLAT, RANGES, neuron_of


def test_the_list_of_functions_is_that_of_the_language():
    numbers = {name: len(places) for name, places in RANGES.items()}
    assert {**numbers, "where": 3} == math.OPS


def test_random_programs_have_every_function():
    """tests/parity/expressions.py; operators are in it as operators."""
    text = Path(expressions.__file__).read_text()
    called = set(re.findall(r"\b(?:hm|math)\.(\w+)\(", text))
    of_messages = {"median", "largest", "smallest", "top_sum", "isinf", "isnan"}
    operators = {"floordiv", "mod"}
    assert called >= {*math.FUNCTIONS} - of_messages - operators


def test_functions_of_pythons_math_are_those_of_horn(rng):
    for python, ours in math.OF_PYTHON.items():
        numbers = rng.uniform(0.1, 0.9, (5, 2))
        for a, b in numbers:
            args = {"atan2": (a, b), "pow": (a, b), "prod": ([a, b],)}.get(python.__name__, (a,))
            assert ours(*args) == pytest.approx(python(*args), rel=1e-12)
    assert {python_math.fabs, python_math.pow, python_math.prod, python_math.exp} <= {
        *math.OF_PYTHON
    }


@pytest.mark.parametrize("name", RANGES)
def test_the_interpreters_slopes_are_finite_differences(name, rng):
    assert len(RULES[name]) == len(RANGES[name])
    low, high = np.transpose(RANGES[name])
    for values in rng.uniform(low, high, (50, len(low))):
        args = [Traced(v, variable=True) for v in values]
        table = adjoints([(math.apply(name, *args), 1.0)])
        for place, arg in enumerate(args):
            step = 1e-6 * np.eye(len(args))[place]
            above, below = (math.apply(name, *(values + s)) for s in (step, -step))
            slope = 0.0 if name in FLAT else (above - below) / 2e-6
            found = table.get(arg.serial, 0.0)
            assert found == pytest.approx(slope, rel=1e-6, abs=1e-8), (name, values, place)


@pytest.mark.parametrize("name", RANGES)
def test_a_neuron_with_it_learns_the_same_compiled_and_interpreted(name, tmp_path):
    sums = ("sum(m.input * m.weight for m in messages)", "sum(m.input for m in messages)")
    args = [
        f"{low} + {high - low} * horn.math.sigmoid({each})"
        for (low, high), each in zip(RANGES[name], sums, strict=False)
    ]
    neuron = neuron_of(name, args, tmp_path, f" + 0.1 * {sums[0]}")
    net = horn.Network(seed=1)
    net.input(5)
    net.layer(6, neuron=neuron)
    net.layer(4, neuron=neuron)
    net.output(3, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1), 4)


def gelu(z):
    return 0.5 * z * (1.0 + math.erf(z / python_math.sqrt(2.0)))


def bent(z):
    return 3.0 * z if z > 0.0 else z / 4.0


def both(z):
    return (z and 2.0 * z) - z / (1.0 + z * z)


def slope_at(where, f):
    """A neuron whose output is the slope of f at a multiple of its sum."""

    class Slope(horn.Neuron):
        def forward(self, messages):
            z = sum(m.input * m.weight for m in messages)
            self.feedforward(self.activation.derivative_at(where(z)))

    net = horn.Network(seed=1)
    net.input(5)
    net.layer(4, neuron=Slope, activation=f)
    net.output(3, loss="squared_error")
    return net


@pytest.mark.parametrize(
    "f",
    [gelu, bent, both, lambda z: 3.0 * z, lambda z: z / 8.0],
    ids=["gelu", "bent", "both", "3 z", "z / 8"],
)
@pytest.mark.parametrize(
    "where",
    [lambda z: z, lambda z: 2.0 * z, lambda z: -z, lambda z: z / 2.0, lambda z: 0.7],
    ids=["z", "2 z", "-z", "z / 2", "0.7"],
)
def test_the_slope_at_a_multiple_of_the_sum_is_the_finite_difference(where, f):
    """What the sum is multiplied by may be one factor with the formula's own."""
    net = slope_at(where, f)
    compare(net, horn.SGD(0.1), 4)
    data = samples(net)
    for backend in ("kernels", "python"):
        made = make(backend, Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1))
        made.bind(data)
        found = made.probe(np.arange(4), iteration=0, first_sample=0)
        own = made.parameters()
        at = where(data.x[:4] @ own["layer1.weight"].T + own["layer1.bias"])
        at = np.broadcast_to(at, (4, 4))
        expected = [[(f(z + 1e-6) - f(z - 1e-6)) / 2e-6 for z in row] for row in at.tolist()]
        np.testing.assert_allclose(found["layer1.output"], expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["sigmoid", "softplus"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int8, bool])
def test_of_arrays_of_whole_numbers_they_are_those_of_the_numbers(name, dtype):
    z = np.array([0, 1, 3, 100]).astype(dtype)
    np.testing.assert_allclose(
        math.apply(name, z), [math.apply(name, float(each)) for each in z], rtol=1e-15
    )
