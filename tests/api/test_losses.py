"""Losses: values, edges, and names."""

import math

import numpy as np
import pytest

import horn
from horn.errors import DataError, ModelError
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
