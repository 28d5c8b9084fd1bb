"""An interval neuron: weights are intervals, middle and radius, and so is what they sum to.

It sends the middle of the interval that its activation makes of its sum.
Source: Ishibuchi, Tanaka, "An Extension of the BP-Algorithm to Interval Input Vectors", 1991.
"""

import horn
from horn import math


class Interval(horn.Neuron):
    middle = horn.Weight()
    radius = horn.Weight(init=horn.Constant(0.05), bias=0.05)

    def forward(self, messages):
        centre = sum(m.input * m.middle for m in messages)
        spread = sum(abs(m.input) * abs(m.radius) for m in messages)
        low, high = math.tanh(centre - spread), math.tanh(centre + spread)
        self.feedforward(0.5 * (low + high))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Interval)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.1, momentum=0.9),
        epochs=8,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
