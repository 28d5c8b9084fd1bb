"""What people get wrong with sequences: each is told with its place, what was got, and a remedy."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import ModelError

X, LAST, EACH = np.ones((6, 5, 2)), np.zeros(6, int), np.zeros((6, 5), int)
TEXT = horn.data.text(io.StringIO("abcab" * 20), 5)


class Twice(horn.Neuron):
    level = horn.State(0.0, per="sample")

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        if z > 0:
            self.level = z
        self.level = 0.5 * self.level
        self.feedforward(self.level)


class Writes(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages))

    def backward(self, messages):
        total = 0.0
        for m in messages:
            total += m.delta * m.weight
            self.push(m.delta * self.output)
        self.backpropagate(total)


def net(each: bool = False, cell: Any = horn.Standard) -> horn.Network:
    made = horn.Network(seed=1)
    made.layer(3, neuron=cell, inputs=[made.input(2, steps=5), horn.Delayed()], name="memory")
    made.output(2, activation="softmax", loss="cross_entropy", each_step=each, name="out")
    return made


def circle() -> None:
    made = horn.Network()
    x = made.input(2, steps=5)
    made.layer(3, inputs=[x, horn.Delayed("above", steps=0)], name="below")
    made.layer(3, name="above")


def ahead() -> None:
    made = horn.Network()
    x = made.input(2, steps=5)
    made.layer(3, inputs=[x, horn.Delayed("above", steps=0)], name="below")
    made.layer(3, inputs=[x], name="above")


def trained(cell: Any) -> None:
    horn.train(horn.Job(net(cell=cell), (X, LAST), epochs=1), progress=False)


def model() -> horn.Model:
    made = horn.Network(seed=1)
    made.layer(3, inputs=[made.input(3, steps=5), horn.Delayed()])
    made.output(3, activation="softmax", loss="cross_entropy", each_step=True)
    return horn.train(horn.Job(made, TEXT, epochs=1), progress=False).model


class Rewarded(horn.Neuron):
    def forward(self, messages: Any) -> None:
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages: Any) -> None:
        for m in messages:
            self.push(self.loss * m.delta)
        self.backpropagate(self.loss * self.output)


def rewarded() -> horn.Job:
    made = horn.Network(seed=1)
    made.layer(3, neuron=Rewarded, activation="tanh", inputs=made.input(1, steps=5))
    made.output(2, activation="softmax", loss="cross_entropy")
    return horn.Job(made, (X, LAST), check=False)


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a later layer without a delay": (
        ahead, r"^above is heard without a delay by a layer before it; add above first, .*"
        r"horn.Delayed\('above', steps=1\)"),
    "a circle without a delay": (
        circle, r"without a delay: below -> above -> below; .*horn.Delayed\('above', steps=1\)"),
    "lengths beyond the array": (
        lambda: horn.data.sequences(X, LAST, lengths=[5, 5, 9, 5, 5, 5]),
        r"lengths\[2\] is 9, but the array has 1 to 5 steps; give the steps that are there"),
    "labels of each step for the last": (
        lambda: horn.Job(net(), (X, EACH)),
        r"data: y has shape \(6, 5\), a label for each step.*y\[:, -1\], or .*each_step=True"),
    "labels of the last step for each": (
        lambda: horn.Job(net(each=True), (X, LAST)),
        r"data: y has shape \(6,\), but each step is asked.*\(6, 5\).*leave each_step out"),
    "the loss of all steps at one": (
        lambda: rewarded(), r"self.loss, which is of all steps.*self.error tells of the outputs"),
    "an unknown character": (
        lambda: horn.data.text(io.StringIO("cababz"), 3, alphabet=TEXT.classes),
        r"text: character 'z' \(line 1, in .*is not among the 3 of the alphabet.*leave it out"),
    "an unknown character to go on from": (
        lambda: model().generate("aZ", 2), r"prefix: character 'Z'.*train with an alphabet that"),
    "a State assigned twice on one path": (
        lambda: trained(Twice),
        r"test_time_mistakes.py:26, in Twice.forward\n.*\n.*\nself.level is .*assigned a second "
        r"time on this path.*compute in a variable and assign once"),
    "stateful with shuffled samples": (
        lambda: horn.Job(net(each=True), (X, EACH), stateful=True),
        r"data: nothing goes on from piece to piece: 5 steps each.*need no stateful=True"),
    "a written backward toward a delayed link": (
        lambda: trained(Writes),
        r"memory \(Writes\): writes backward, but memory hears it late.*Leave backward out and"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_place_and_a_remedy(mistake: str) -> None:
    made, said = MISTAKES[mistake]
    with pytest.raises(horn.HornError, match=said):
        made()


@pytest.mark.parametrize(
    "heard, name",
    [
        (lambda x: [x, horn.Delayed(), horn.Delayed(steps=2)], "memory"),
        (lambda x: [x, horn.Delayed("memory"), horn.Delayed(steps=2)], "memory"),
        (lambda x: [x, horn.Delayed("above"), horn.Delayed("above", steps=2)], "above"),
        (lambda x: [x, horn.Delayed(x)], "layer0"),
    ],
)
def test_two_delays_of_one_layer_need_names(heard: Callable[[Any], Any], name: str) -> None:
    """Without, they had one array, which both updated."""
    made = horn.Network(seed=1)
    x = made.input(3, steps=5)
    with pytest.raises(ModelError, match=f"'memory': {name} is named twice in inputs; give each"):
        made.layer(3, inputs=heard(x), name="memory")
    named = dict(zip("abc", heard(x), strict=False))
    layer = made.layer(3, inputs=named, name="memory")
    arrays = [array for link in layer.links for array in link.weights.values()]
    assert len(set(arrays)) == len(arrays) == len(named)


@pytest.mark.parametrize("steps", [-1, True, 1.5, 65_536, 2**70])
def test_a_delay_that_no_sequence_has_is_refused(steps):
    with pytest.raises(ModelError, match=f"from 1 to 65,535; got {steps}"):
        horn.Delayed(steps=steps)
    assert horn.Delayed(steps=65_535).steps == 65_535
