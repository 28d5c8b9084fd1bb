"""Losses: values, edges, and names."""

import itertools
import math
import re

import numpy as np
import pytest

import horn
from horn.errors import CompileError, DataError, ModelError
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
    with pytest.raises(ModelError, match="output: Loss is a class of losses; write one of them"):
        resolve(Loss, "output")


def of_nothing(output, target):
    (output - target) ** 2


def test_a_loss_that_returns_nothing_is_refused_at_its_line():
    net = horn.Network()
    net.input(2)
    net.output(1, loss=of_nothing)
    job = horn.Job(net, (np.ones((4, 2)), np.ones(4)), epochs=1)
    with pytest.raises(horn.CompileError, match="def of_nothing.*\n.*\nof_nothing must return"):
        horn.train(job, progress=False)


def test_a_logarithm_of_another_base_and_a_hidden_target_are_told_what_to_write():
    class Based(horn.Neuron):
        def forward(self, messages):
            self.feedforward(horn.math.log(sum(m.input for m in messages), 2))

    class Aimed(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.input * m.weight for m in messages) - self.target)

    for cls, said in ((Based, r"log\(x\) / log\(base\)"), (Aimed, "label as an input of its own")):
        net = horn.Network()
        net.input(2)
        net.layer(2, neuron=cls)
        net.output(1, loss="squared_error")
        with pytest.raises(horn.CompileError, match=said):
            horn.train(horn.Job(net, (np.ones((4, 2)), np.ones(4)), epochs=1), progress=False)


def test_no_data_is_called_so():
    net = horn.Network()
    net.input(2)
    net.output(1, loss="squared_error")
    with pytest.raises(DataError, match="x is None, but an array of numbers is expected"):
        horn.Job(net, (None, np.ones(3)), epochs=1)


COUNT = itertools.count(1)


def counted():
    return next(COUNT)


def of_the_first(output, target):
    return (output[0] - target) ** 2


def along_an_axis(output):
    return output - output.mean(axis=-1)


def of_one(output):
    return output**2


def net_with(loss="squared_error", activation="tanh", interlayer=None):
    net = horn.Network(seed=2)
    net.input(2)
    net.layer(2, activation=activation, interlayer=interlayer)
    net.output(1, loss=loss)
    return net


def train_with(backend, net, **settings):
    x = np.eye(2)
    return horn.train(horn.Job(net, (x, x[:, :1]), **settings), backend=backend, progress=False)


@pytest.mark.parametrize("backend", ["kernels", "reference", "python"])
@pytest.mark.parametrize(
    "given",
    [
        {"loss": lambda output, target: counted() * (output - target) ** 2},
        {"activation": lambda z: counted() * z},
        {"interlayer": lambda output: counted() * output},
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_function_that_is_another_each_time_is_refused_on_every_backend(given, backend):
    with pytest.raises(CompileError, match="this is another formula each time") as caught:
        train_with(backend, net_with(**given), check=False)
    assert "counted()" in caught.value.text


@pytest.mark.parametrize(
    ("given", "said", "line"),
    [
        ({"loss": of_the_first}, "a number is not subscriptable", "return (output[0] - target)"),
        ({"loss": of_one}, "of_one() takes 1 positional argument but 2", "def of_one(output):"),
        ({"interlayer": along_an_axis}, "write  x.mean()  of the whole layer",
         "return output - output.mean(axis=-1)"),
    ],
)  # fmt: skip
def test_the_interpreter_tells_the_line_of_a_mistake(given, said, line):
    with pytest.raises(CompileError, match=re.escape(said)) as caught:
        train_with("python", net_with(**given))
    assert line in caught.value.text


def test_the_interpreter_tells_the_line_of_a_mistake_in_an_aggregate():
    aggregate = horn.Aggregate("layer1", along_an_axis)
    with pytest.raises(CompileError, match="write  x.mean\\(\\)  of the whole layer") as caught:
        train_with("python", net_with(), aggregates={"mine": aggregate})
    assert caught.value.where == "along_an_axis"


@pytest.mark.parametrize(
    "loss",
    [
        lambda y_true, y_pred: max(y_true - y_pred, 0.0),
        lambda target, y: max(target - y, 0.0),
        lambda t, output: max(t - output, 0.0),
        lambda labels, pred: max(labels - pred, 0.0),
    ],
)
def test_a_loss_that_takes_the_target_first_is_refused(loss):
    """It was trained with the two exchanged."""
    said = "called with the output first.* write  lambda output, target: ...$"
    for each in (loss, Loss("asymmetric", loss)):
        with pytest.raises(ModelError, match=said):
            horn.Network().output(1, loss=each)
    # Names that say neither are the user's own.
    assert resolve(lambda a, b: a - b, "output") and resolve(lambda y, t: y - t, "output")


def test_a_defined_loss_that_takes_the_target_first_is_told_its_own_first_line():
    def pinball(y_true, y_pred):
        return max(0.9 * (y_true - y_pred), -0.1 * (y_true - y_pred))

    with pytest.raises(ModelError, match=r"write  def pinball\(output, target\):$"):
        horn.Network().output(1, loss=pinball)
