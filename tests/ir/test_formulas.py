"""Formulas of an optimizer: what is wrong in them is told before a backend has them."""

import functools
import itertools
import math
import re

import numpy as np
import pytest

import horn
from horn.errors import CompileError
from horn.ir import Scalar, load
from horn.ir.formulas import check, trace_update
from horn.strategies.downpour import PUSHED, Moving

W, G = load("w", "o"), load("g", "o")
CALLS = itertools.count(1)


class Counting(horn.SGD):
    def update(self, w, g, slots, lr, t):
        self.n = getattr(self, "n", 0) + 1
        return super().update(w, g if self.n < 100 else 0.0, slots, lr, t)


class Noisy(horn.SGD):
    def prepared(self, g, w=None):
        return g + next(CALLS)


class Hoarding(horn.SGD):
    hoard: list = []

    def update(self, w, g, slots, lr, t):
        self.hoard.append(g)
        return super().update(w, sum(self.hoard), slots, lr, t)


class Undeclared(horn.SGD):
    def update(self, w, g, slots, lr, t):
        return w - lr * g, {"mine": g}


class Asking(horn.SGD):
    def update(self, w, g, slots, lr, t):
        return w - lr * slots["mine"], {}


class Unreturned(horn.SGD):
    slots = ("mine",)

    def update(self, w, g, slots, lr, t):
        slots["mine"] = 0.9 * slots["mine"] + g
        return w - lr * slots["mine"], {}


class Alone(horn.SGD):
    def update(self, w, g, slots, lr, t):
        return w - lr * g


class Nothing(horn.SGD):
    def update(self, w, g, slots, lr, t):
        w - lr * g


class Fewer(horn.SGD):
    def update(self, w, g, lr):
        return w - lr * g


class Centred(horn.SGD):
    def update(self, w, g, slots, lr, t):
        return w - lr * (g - abs(g).mean(axis=0)), {}


class Summed(horn.SGD):
    def prepared(self, g, w=None):
        return g / sum(g)


class Normed(horn.SGD):
    def update(self, w, g, slots, lr, t):
        g = g / np.linalg.norm(g)
        return w - lr * g, {}


class OneText(horn.SGD):
    slots = "velocity"


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "python"])
@pytest.mark.parametrize(
    ("kind", "said", "line"),
    [
        (Counting, "Counting.update changes self.n: it is read once", "def update("),
        (Noisy, "Noisy.prepared is another each time", "def prepared(self, g, w=None):"),
        (Hoarding, "Hoarding.update is another each time", "def update("),
        (Undeclared, "returns 'mine', but the slots of Undeclared are velocity; write in the class:"
                     "  slots = ('velocity', 'mine')", "def update("),
        (Asking, "Asking asks for 'mine', but", 'return w - lr * slots["mine"], {}'),
        (Unreturned, "reads the slot 'mine', and does not return it", "def update("),
        (Alone, "the new weight and the new slots, as  return w - lr * g, {} ; got a number",
         "def update("),
        (Nothing, "as  return w - lr * g, {} ; got None", "def update("),
        (Fewer, "write  def update(self, w, g, slots, lr, t):", "def update(self, w, g, lr):"),
        (Centred, "an optimizer's formula is of one weight", "abs(g).mean(axis=0)"),
        (Summed, "an optimizer's formula is of one weight", "return g / sum(g)"),
        (Normed, "an optimizer's formula is of one weight", "g = g / np.linalg.norm(g)"),
        (OneText, "OneText.slots is a tuple of names, got 'velocity'; write ('velocity',)", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_in_an_optimizer_is_told_at_its_line(kind, said, line, is_compiled):
    optimizer = kind(0.1)
    with pytest.raises(CompileError, match=re.escape(said)) as caught:
        check(optimizer, is_compiled)
    assert line in caught.value.text
    assert not hasattr(optimizer, "n")  # what the check set is gone


class Kept(horn.SGD):
    """It remembers what it has computed, and is the same each time."""

    @functools.cached_property
    def twice(self):
        return 2.0 * self.momentum

    def update(self, w, g, slots, lr, t):
        return w - lr * self.twice * g, {}


def test_a_formula_that_is_the_same_each_time_may_keep_what_it_computed():
    check(Kept(0.1, momentum=0.25), True)
    slots = {"velocity": load("v", "o")}
    new, memory = trace_update(Kept(0.1, momentum=0.25), W, G, slots)
    assert new is W - Scalar("learning_rate") * 0.5 * G and memory == slots
    moving = Moving.of(Kept(0.1, momentum=0.25), keep=False)  # of a group with servers
    new, memory = trace_update(moving, W, G, slots | {PUSHED: load("p", "o")})
    assert memory == slots | {PUSHED: W - new}


class Whole(horn.SGD):
    """Python that is not in the language."""

    def update(self, w, g, slots, lr, t):
        return super().update(w, g if int(t) == 1 else 0.0 * g, slots, lr, t)


class Plain(horn.SGD):
    def update(self, w, g, slots, lr, t):
        return super().update(w, math.tanh(g), slots, lr, t)


def train(optimizer):
    net = horn.Network(seed=2)
    net.input(2)
    net.output(1, loss="squared_error")
    x = np.random.default_rng(1).normal(size=(4, 2))
    job = horn.Job(net, (x, x[:, :1]), optimizer, batch_size=4, iterations=3, dtype="float64")
    return horn.train(job, backend="python", progress=False)


def test_the_interpreter_runs_formulas_that_cannot_be_compiled_and_tells_the_line_of_others():
    with pytest.raises(CompileError, match="int\\(\\) argument"):
        check(Whole(0.1), True)
    np.testing.assert_array_equal(
        train(Whole(0.1)).model.parameters["layer1.weight"],
        train(horn.SGD(lambda k: 0.1 if k == 0 else 0.0)).model.parameters["layer1.weight"],
    )
    with pytest.raises(CompileError, match="write it with") as caught:
        train(Plain(0.1))
    assert "math.tanh(g)" in caught.value.text
