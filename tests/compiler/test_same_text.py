"""One program for one source, whatever the process: tasks of a group compile for themselves."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

import horn
from horn.compiler import lower


class Branches(horn.Neuron):
    """Many names that are merged after a branch, in two layers of ifs."""

    a, b, c, d = (horn.Parameter(x) for x in (0.1, 0.2, 0.3, 0.4))
    first, second, third = (horn.State(x) for x in (0.0, 0.1, 0.2))

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        if z > self.a:
            alpha, beta, gamma, delta = z, 2.0 * z, self.b * z, self.c
            self.first = z
            self.second = 0.5 * z
        else:
            alpha, beta, gamma, delta = self.d, z - 1.0, 0.5, z * z
            self.third = z
        if alpha > beta:
            epsilon, zeta, eta = gamma, delta, alpha
        else:
            epsilon, zeta, eta = delta, beta, gamma
        self.feedforward(alpha * epsilon + beta * zeta + gamma * eta + delta + self.first)


def text() -> str:
    """The steps of training and of prediction, as they would run."""
    net = horn.Network(seed=1)
    net.input(5)
    net.layer(7, neuron=Branches)
    net.output(3, neuron=Branches, activation="softmax", loss="cross_entropy")
    return repr(lower.training_program(net, horn.SGD(0.1, momentum=0.9), "label"))


# Of two names in an order of chance, eight processes all find the same one once in 128 runs.
@pytest.mark.cluster
@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 20), marks=pytest.mark.slow)])
def test_the_text_of_a_program_is_that_of_every_process(seeds):
    expected = hashlib.sha256(text().encode()).hexdigest()
    code = "import hashlib; from tests.compiler.test_same_text import text; "
    code += "print(hashlib.sha256(text().encode()).hexdigest())"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
        )
        for seed in seeds
    ]  # fmt: skip
    found = [process.communicate(timeout=100)[0].strip() for process in processes]
    assert set(found) == {expected}
