"""Activations: names, what they compute, and what they refuse."""

import math

import numpy as np
import pytest

import horn
from horn.activations import ACTIVATIONS, Activation, resolve, softmax
from horn.errors import CompileError, ModelError

PLAIN = {
    "identity": lambda z: z,
    "sigmoid": lambda z: 1 / (1 + math.exp(-z)),
    "tanh": math.tanh,
    "scaled_tanh": lambda z: 1.7159 * math.tanh(2 / 3 * z),
    "relu": lambda z: max(z, 0.0),
    "leaky_relu": lambda z: z if z > 0 else 0.01 * z,
    "softplus": lambda z: math.log(1 + math.exp(z)),
}


def test_every_activation_is_in_this_table():
    assert PLAIN.keys() == ACTIVATIONS.keys()


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("z", [-3.0, -0.5, 0.0, 0.5, 3.0])
def test_values_on_numbers_and_on_arrays(name, z):
    f = ACTIVATIONS[name]
    assert f(z) == pytest.approx(PLAIN[name](z), abs=1e-15)
    np.testing.assert_allclose(f(np.array([z, z])), [PLAIN[name](z)] * 2, atol=1e-15)


@pytest.mark.parametrize("f", [horn.math.sign, *ACTIVATIONS.values()])
def test_what_is_no_number_stays_none(f):
    assert np.isnan([f(np.nan), *f(np.array([np.nan, np.nan]))]).all()


@pytest.mark.parametrize(
    "name, low, high",
    [("sigmoid", 0.0, 1.0), ("softplus", 0.0, 800.0), ("tanh", -1.0, 1.0),
     ("scaled_tanh", -1.7159, 1.7159)],
)  # fmt: skip
def test_large_inputs_do_not_overflow(name, low, high):
    f = ACTIVATIONS[name]
    with np.errstate(over="raise", invalid="raise"):
        np.testing.assert_array_equal(f(np.array([-800.0, 800.0])), [low, high])
    assert [f(-800.0), f(800.0)] == [low, high]


def test_slopes_at_the_kink_are_those_of_note_1():
    assert ACTIVATIONS["relu"].derivative(0.0) == 0.0
    assert ACTIVATIONS["leaky_relu"].derivative(0.0) == 0.01


def test_softmax_is_positive_sums_to_one_and_does_not_overflow():
    y = softmax(np.array([1000.0, 1001.0, -1000.0]))
    np.testing.assert_allclose(y, [1 / (1 + math.e), math.e / (1 + math.e), 0.0], atol=1e-15)


def test_an_activation_of_the_users_own():
    square = Activation("square", lambda z: z * z, df_at=lambda z: 2 * z)
    assert square(3.0) == 9.0 and square.derivative_at(3.0) == 6.0
    with pytest.raises(ModelError, match="use self.activation.derivative_at"):
        square.derivative(9.0)
    bare = Activation("bare", lambda z: z)
    with pytest.raises(ModelError, match="was given no derivative; horn derives it"):
        bare.derivative_at(1.0)


def test_names_resolve_and_softmax_is_an_interlayer():
    assert resolve("tanh", "layer 1") == (ACTIVATIONS["tanh"], None)
    assert resolve("softmax", "layer 1") == (ACTIVATIONS["identity"], softmax)
    mine = Activation("mine", abs)
    assert resolve(mine, "layer 1") == (mine, None)
    with pytest.raises(ModelError, match="layer 1: unknown activation 'sigmod'; did you mean 'sig"):
        resolve("sigmod", "layer 1")


def bent(z):
    return z * horn.math.sigmoid(z)


def test_a_function_is_an_activation_whose_slope_is_derived(tmp_path):
    """Trained, divided among tasks, written and read as the same function with a name is."""
    data = horn.data.digits()

    def trained(activation, **how):
        net = horn.Network(seed=1)
        net.input(64)
        net.layer(12, activation=activation)
        net.output(10, activation="softmax", loss="cross_entropy")
        job = horn.Job(net, data, dtype="float64", iterations=20, batch_size=16)
        return horn.train(job, progress=False, **how).model

    named = trained(Activation("bent", bent))
    for activation in (bent, lambda z: z * horn.math.sigmoid(z)):
        found = trained(activation)
        np.testing.assert_array_equal(found.predict(data.x), named.predict(data.x))
    found.save(tmp_path / "bent.horn")
    read = horn.Model.load(tmp_path / "bent.horn")
    np.testing.assert_array_equal(read.predict(data.x), named.predict(data.x))


@pytest.mark.parametrize(
    ("activation", "said"),
    [
        (lambda z: z * nowhere, "NameError: name 'nowhere' is not defined"),  # noqa: F821
        (lambda z: z * (1 / 0), "ZeroDivisionError: division by zero"),
        (lambda z: z * (1.0,)[3], "IndexError: tuple index out of range"),
    ],
    ids=["name", "division", "index"],
)
def test_a_mistake_in_a_lambda_is_told_with_its_line(activation, said):
    net = horn.Network()
    net.input(2)
    net.output(1, activation=activation, loss="squared_error")
    job = horn.Job(net, (np.ones((2, 2)), np.ones((2, 1))), iterations=1, batch_size=2)
    with pytest.raises(CompileError, match=said) as caught:
        horn.train(job, progress=False)
    assert caught.value.line == activation.__code__.co_firstlineno


def test_functions_that_have_a_name_are_meant_by_it():
    assert resolve(bent, "layer 1") == (Activation("bent", bent), None)
    assert resolve(horn.math.tanh, "layer 1") == (ACTIVATIONS["tanh"], None)
    assert resolve(softmax, "layer 1") == (ACTIVATIONS["identity"], softmax)
    with pytest.raises(ModelError, match="<ufunc 'tanh'>; did you mean 'tanh'.*a function f"):
        resolve(np.tanh, "layer 1")


def test_of_another_library_none_is_taken():
    def relu(z):
        return z

    relu.__module__ = "torch.nn.functional"
    with pytest.raises(ModelError, match="unknown activation <function .*; did you mean 'relu'"):
        resolve(relu, "layer 1")
