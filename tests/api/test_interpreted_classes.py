"""The interpreter runs copies of the user's classes: what a class is, and what its constants are,
stays as it was when the run began."""

from __future__ import annotations

import abc
import math
import numbers
from dataclasses import dataclass

import numpy as np
import pytest

import horn
from tests.conftest import EXISTING

X = np.random.default_rng(0).normal(size=(8, 2))
made: list[str] = []


class Keyed(horn.Neuron):
    k = 1.0

    def __init_subclass__(cls, k=2.0, **named):
        super().__init_subclass__(**named)
        made.append(cls.__name__)
        cls.k = k

    def forward(self, messages):
        self.feedforward(self.k * sum(m.input * m.weight for m in messages))


class Five(Keyed, k=5.0):
    pass


def network(neuron=horn.Standard, **more):
    net = horn.Network(seed=1)
    net.input(2)
    net.layer(2, neuron=neuron, name="a", **more)
    net.output(1, loss="squared_error")
    return net


def loss(net, backend, **more):
    """The losses of two epochs."""
    settings = {"optimizer": horn.SGD(0.1), "epochs": 2, "dtype": "float64"} | more
    job = horn.Job(net, (X, X[:, :1]), **settings)
    return horn.train(job, backend=backend, progress=False).history["loss"]


def test_a_class_is_made_once():
    made.clear()
    compiled, interpreted = (loss(network(Five), backend) for backend in ("kernels", "python"))
    np.testing.assert_allclose(interpreted, compiled, rtol=1e-12)
    assert not made


class Helper:
    def twice(self, z):
        return 2.0 * math.tanh(z)


class Abstract(Helper, horn.Neuron, abc.ABC):
    __slots__ = ("unused",)
    seen: dict = {}

    @abc.abstractmethod
    def forward(self, messages): ...

    def base(self, z):
        return self.twice(z)


@horn.interpreted
class Concrete(Abstract):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.seen.update(
            type=type(self) is Concrete,
            method=type(self).forward is Concrete.forward,
            instances=isinstance(self, (Concrete, Abstract, Helper)),
            number=isinstance(z, numbers.Number) and isinstance(z, float),
        )
        self.feedforward(super().base(z) + super(Abstract, self).twice(z) - Helper.twice(self, z))


def test_inside_a_neuron_its_class_is_the_class_that_its_name_means():
    compiled = loss(network(activation=horn.Activation("2 tanh", lambda z: 2 * horn.math.tanh(z))),
                    "kernels")  # fmt: skip
    np.testing.assert_allclose(loss(network(Concrete), "kernels"), compiled, rtol=1e-12)
    assert set(Concrete.seen) == {"type", "method", "instances", "number"}
    assert all(Concrete.seen.values())


K = 1.0


def closed_over(k):
    def change():
        nonlocal k
        k *= 0.5

    class Closed(horn.Neuron):
        def forward(self, messages):
            self.feedforward(k * sum(m.input * m.weight for m in messages))

    return Closed, change


Closed, change = closed_over(1.0)


class Constant(Keyed, k=1.0):
    pass


class Global(horn.Neuron):
    def forward(self, messages):
        self.feedforward(K * sum(m.input * m.weight for m in messages))


def annealed(z):
    return K * horn.math.tanh(z)


def between(output):
    return K * (output - output.mean())


def anneal(context):
    global K
    K *= 0.5
    Constant.k *= 0.5
    Decays.share *= 0.5
    change()


def scaled(g):
    return K * g


@dataclass(frozen=True)
class Scales(horn.SGD):
    def update(self, w, g, slots, lr, t):
        return super().update(w, max(scaled(g), -1.0), slots, lr, t)


@dataclass(frozen=True)
class Decays(horn.Direct):
    share = 1.0

    def of_derived(self, g, lr):
        return -lr * self.share * g


NETS = {
    "attribute": lambda: network(Constant),
    "global": lambda: network(Global),
    "closure": lambda: network(Closed),
    "activation": lambda: network(activation=annealed),
    "interlayer": lambda: network(interlayer=between),
}


@pytest.mark.parametrize("backend", EXISTING)
@pytest.mark.parametrize("what", NETS)
def test_a_run_has_the_constants_of_its_start(what, backend):
    still, moved = (loss(NETS[what](), backend, callbacks=c) for c in ((), (anneal,)))
    assert moved == still


@pytest.mark.parametrize("backend", EXISTING)
@pytest.mark.parametrize("optimizer", [Scales(0.1), Decays(0.1)], ids=["global", "attribute"])
def test_a_run_has_the_constants_of_its_optimizer_of_its_start(optimizer, backend):
    """The interpreter followed their change."""
    still, moved = (
        loss(network(), backend, callbacks=c, optimizer=optimizer, epochs=3)
        for c in ((), (anneal,))
    )
    assert moved == still
