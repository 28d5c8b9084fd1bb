"""print in a neuron: left out of the program with one warning, there in the interpreter."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import horn


class Silent(horn.Neuron):
    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input * m.weight
        self.feedforward(self.activation(total))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            self.push(m.delta * self.output)
        self.backpropagate(error * self.activation.derivative(self.output))


def say(x: Any) -> Any:
    print("helper", x)
    return x


class Talking(horn.Neuron):
    def forward(self, messages):
        total = 0.0
        for m in messages:
            print("message", m.input, m.weight)
            total += m.input * m.weight
        if total > 0.0:
            print(f"positive {total:.3f}", {"neuron": [self.index]}, sep="\t")
        self.feedforward(say(self.activation(total)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            self.push(m.delta * self.output)
        print(error)
        self.backpropagate(error * self.activation.derivative(self.output))


def job(neuron: type[horn.Neuron]) -> horn.Job:
    rng = np.random.default_rng(0)
    net = horn.Network(seed=3)
    net.input(3)
    net.layer(4, neuron=neuron, activation="tanh")
    net.layer(2, neuron=neuron, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    x = rng.standard_normal((20, 3)).astype("float32")
    return horn.Job(net, (x, (x[:, 0] > 0).astype(int)), batch_size=10, iterations=3)


def test_it_is_left_out_with_one_warning_for_the_class(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING):
        said = horn.train(job(Talking))
    assert [r.message for r in caplog.records] == [
        "Talking prints, which is left out where neurons are compiled: horn trace shows what one "
        'neuron does, backend="python" runs all of it'
    ]
    assert capsys.readouterr().out == ""
    quiet = horn.train(job(Silent))
    for name, array in quiet.model.parameters.items():
        np.testing.assert_array_equal(said.model.parameters[name], array)


def test_the_interpreter_prints(capsys: pytest.CaptureFixture[str]) -> None:
    horn.train(job(Talking).with_settings(iterations=1, check=False), backend="python")
    out = capsys.readouterr().out
    n_seen = 10 + 20 + 20  # one batch, acc, and the loss at the end
    assert out.count("message ") == n_seen * (4 * 4 + 2 * 5) and "positive 0." in out


def test_what_print_gives_is_no_number() -> None:
    class Wrong(horn.Neuron):
        def forward(self, messages):
            self.feedforward(print(1.0))

    with pytest.raises(horn.CompileError, match="write it on a line of its own, which is left out"):
        horn.train(job(Wrong))
