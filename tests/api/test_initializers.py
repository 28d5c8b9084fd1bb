"""Initial weights: their spread, and that they depend on nothing else in the network."""

import math
import random

import numpy as np
import pytest

import horn
from horn import initializers
from horn.errors import HornError, ModelError
from horn.initializers import INITIALIZERS, Constant, Glorot, He, LeCun, Normal, Uniform

SHAPE, FAN_IN, FAN_OUT = (300, 200), 200, 300


@pytest.mark.parametrize(
    "init, mean, std, limit",
    [
        (Glorot(), 0.0, math.sqrt(2 / 500), math.sqrt(6 / 500)),
        (He(), 0.0, math.sqrt(2 / 200), None),
        (LeCun(), 0.0, math.sqrt(1 / 200), None),
        (Uniform(1.0, 3.0), 2.0, 2 / math.sqrt(12), None),
        (Normal(0.5, 0.1), 0.5, 0.1, None),
        (Constant(0.7), 0.7, 0.0, 0.7),
    ],
    ids=lambda x: type(x).__name__,
)
def test_mean_and_spread(init, mean, std, limit, rng):
    values = init.values(SHAPE, FAN_IN, FAN_OUT, rng)
    assert values.shape == SHAPE
    assert values.mean() == pytest.approx(mean, abs=0.02)
    assert values.std() == pytest.approx(std, rel=0.02, abs=1e-12)
    assert limit is None or np.abs(values).max() <= limit


@pytest.mark.parametrize("name", INITIALIZERS)
def test_no_synapses_is_no_error(name, rng):
    assert INITIALIZERS[name].values((0,), 0, 0, rng).shape == (0,)


def test_names_numbers_and_objects_resolve():
    assert initializers.resolve("he", "layer 1") == He()
    assert initializers.resolve(0.5, "layer 1") == Constant(0.5)
    assert initializers.resolve(Glorot(), "layer 1") == Glorot()
    with pytest.raises(ModelError, match=r"got <class 'horn.initializers.He'>; write He\(...\)"):
        initializers.resolve(horn.He, "x")
    with pytest.raises(ModelError, match=r"or an initialiser, got ndarray of shape \(2, 3\)"):
        initializers.resolve(np.ones((2, 3)), "x")
    with pytest.raises(ModelError, match="unknown initialiser 'glorott'; did you mean 'glorot'"):
        initializers.resolve("glorott", "layer 1")
    with pytest.raises(ModelError, match="init must be a name, a number or an initialiser"):
        initializers.resolve([1, 2], "layer 1")


def test_each_thing_has_a_generator_of_its_own():
    a, b = (initializers.generator(7, 1, 0, 0).random(4) for _ in "ab")
    assert np.array_equal(a, b)
    others = [(8, 1, 0, 0), (7, 2, 0, 0), (7, 1, 1, 0), (7, 1, 0, 1)]
    assert not any(np.array_equal(a, initializers.generator(*o).random(4)) for o in others)


class Kept(horn.Constant):
    """Gives an array that it keeps."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.array = np.arange(6.0).reshape(2, 3)

    def values(self, *_: object) -> np.ndarray:
        return self.array


def test_what_training_writes_into_is_nobody_elses():
    kept = Kept()
    matrix = np.array([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0]])
    net = horn.Network(seed=1)
    below = net.input(3)
    net.layer(2, connect=horn.Sparse(matrix=matrix, values=True), name="sparse")
    net.layer(2, inputs=below, init=kept, name="kept")
    for dtype in (np.float64, np.float32):
        first = net.initial_parameters(dtype)
        for array in first.values():
            array[...] = 7.0
        again = net.initial_parameters(dtype)
        assert again["sparse.weight"].tolist() == [2.0, 1.0, 3.0]
        assert again["kept.weight"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


class Ramp:
    """0, step, 2 step, ... in reading order."""

    def __init__(self, step):
        self.step = step

    def values(self, shape, fan_in, fan_out, rng):
        return [[self.step * (k * shape[1] + n) for n in range(shape[1])] for k in range(shape[0])]


class Returns:
    def __init__(self, make):
        self.make = make

    def values(self, shape, fan_in, fan_out, rng):
        return self.make(shape)


class WithoutGenerator:
    def values(self, shape, fan_in, fan_out):
        return np.zeros(shape)


def of(init):
    net = horn.Network(seed=1)
    net.input(4)
    net.layer(3, activation="tanh", init=init)
    net.output(2, loss="squared_error")
    return net


@pytest.mark.parametrize(
    "draw",
    [
        lambda shape: np.random.normal(size=shape),
        lambda shape: np.full(shape, random.random()),
    ],
)
def test_one_that_draws_from_what_the_program_shares_is_refused(draw):
    """The same seed gave other weights in each run."""
    with pytest.raises(ModelError, match=r"layer1.weight: .* it drew from np.random .* from rng"):
        of(Returns(draw)).initial_parameters()


class Changes:
    """Not the same when it is asked again."""

    def __init__(self):
        self.kept = np.zeros((3, 4))

    def values(self, shape, fan_in, fan_out, rng):
        self.kept += 1.0
        return self.kept


@pytest.mark.parametrize(
    "init",
    [
        Changes(),
        Returns(lambda shape: np.random.default_rng().normal(size=shape)),
        Returns(lambda shape: np.full(shape, random.SystemRandom().random())),
    ],
    ids=["counts", "default_rng", "SystemRandom"],
)
def test_one_that_gives_others_when_it_is_asked_again_is_refused(init):
    with pytest.raises(ModelError, match=r"layer1.weight: .* another when it .* from rng, as"):
        of(init).initial_parameters()


def test_one_of_your_own_may_draw_from_its_generator():
    class Drawn:
        def values(self, shape, fan_in, fan_out, rng):
            return rng.normal(size=shape)

    one, two = (of(Drawn()).initial_parameters()["layer1.weight"] for _ in range(2))
    np.testing.assert_array_equal(one, two)


def test_one_of_your_own_gives_the_weights():
    found = of(Ramp(0.5)).initial_parameters()["layer1.weight"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, 0.5 * np.arange(12.0).reshape(3, 4))
    turned = of(Returns(lambda shape: np.arange(12.0).reshape(4, 3).T)).initial_parameters()
    np.testing.assert_array_equal(turned["layer1.weight"], np.arange(12.0).reshape(4, 3).T)
    assert turned["layer1.weight"].flags.c_contiguous


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda shape: 0.25, "it returned the number 0.25"),
        (lambda shape: np.ones(3), "it returned shape (3,)"),
        (lambda shape: np.full(shape, "a"), "it returned text"),
        (lambda shape: None, "it returned None"),
        (lambda shape: np.ones(shape) * 1j, "it returned complex numbers"),
        (lambda shape: np.where(np.eye(*shape) > 0, np.inf, 0), "it returned inf at (0, 0)"),
        (lambda shape: np.full(shape, 1e300), "it returned 1e+300 at (0, 0)"),
        (lambda shape: 1 / 0, "it raised ZeroDivisionError: division by zero"),
    ],
)
def test_one_of_your_own_that_gives_no_such_array_is_named(make, told):
    """These were errors of NumPy's and bare exceptions, or the imaginary part was dropped."""
    with pytest.raises(HornError) as caught, np.errstate(over="ignore"):
        of(Returns(make)).initial_parameters()
    first, line = str(caught.value).split("\n")
    assert first == (
        "layer1.weight: Returns.values((3, 4), 4, 3, rng) must return an array of finite numbers, "
        f"of shape (3, 4), but {told}"
    )
    assert "test_initializers.py" in line


def test_one_of_your_own_with_other_arguments_is_named():
    told = r"layer1.weight: .*rng\) must return .*takes 4 positional arguments but 5 were given"
    with pytest.raises(HornError, match=told):
        of(WithoutGenerator()).initial_parameters()


@pytest.mark.parametrize("groups", [1, 4])
def test_fans_of_a_convolution_are_those_of_pytorch(groups: int) -> None:
    """fan_in has the groups, fan_out has not: torch.nn.init._calculate_fan_in_and_fan_out."""
    net = horn.Network(seed=1)
    net.input((9, 9, 8))
    layer = net.layer(connect=horn.Convolution(120, 3, groups=groups), init=horn.Glorot())
    assert (layer.typical_fan_in, layer.links[0].fan_out(layer.size)) == (72 // groups, 1080)
    largest = np.abs(net.initial_parameters()["layer1.weight"]).max()
    assert 0.99 < largest / np.sqrt(6 / (72 // groups + 1080)) <= 1.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Normal(0.0, -0.1), "Normal: std must be 0 or more, got -0.1"),
        (lambda: Normal(math.nan), "Normal: mean must be a finite number, got nan"),
        (lambda: Uniform(0.3, -0.3), "Uniform: low must not be above high, got low=0.3, high=-0.3"),
        (lambda: Uniform(0.0, math.inf), "Uniform: high must be a finite number, got inf"),
        (lambda: Constant(math.nan), "Constant: value must be a finite number, got nan"),
        (lambda: Constant("1"), "Constant: value must be a finite number, got '1'"),
    ],
)
def test_what_gives_no_weights_is_refused_where_it_is_made(make, said):
    with pytest.raises(ModelError, match=said):
        make()


@pytest.mark.parametrize("array", [np.full(10, 0.5), np.ones((5, 4)), [0.5] * 10])
def test_an_array_is_told_where_it_is_given(array):
    net = horn.Network(seed=1)
    net.input(4)
    with pytest.raises(ModelError, match=r'initial=\{"layer1\.weight": array\}\).*values=True'):
        net.layer(5, connect=horn.Sparse(fan_in=2), init=array)


def test_what_the_refusal_of_an_array_says_begins_sparse_connections():
    sparse = pytest.importorskip("scipy.sparse")

    def network(**settings):
        net = horn.Network(seed=1)
        net.input(4)
        net.layer(5, **{"connect": horn.Sparse(fan_in=2), **settings})
        net.output(2, loss="squared_error")
        return net

    data, numbers = (np.ones((2, 4)), np.ones((2, 2))), np.arange(10.0)
    by_name = horn.Job(network(), data, initial={"layer1.weight": numbers}).network
    np.testing.assert_array_equal(by_name.initial_parameters()["layer1.weight"], numbers)
    edges = network().layers[1].links[0].edges
    matrix = sparse.csr_array((numbers, edges.indices, edges.indptr), (5, 4))
    as_matrix = horn.Job(network(), data, initial={"layer1.weight": matrix}).network
    np.testing.assert_array_equal(as_matrix.initial_parameters()["layer1.weight"], numbers)
    own = network(connect=horn.Sparse(matrix=matrix, values=True))
    assert own.initial_parameters()["layer1.weight"].sum() == numbers.sum()
