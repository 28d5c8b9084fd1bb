"""A hyperbox: the neuron fires inside a box whose two corners each synapse learns.

Membership falls along a soft ramp outside the box, and is the mean over the sides.
Source: Simpson, "Fuzzy Min-Max Neural Networks, Part 1: Classification", 1992, eq. 4.
"""

import horn
from horn import math


class Box(horn.Neuron):
    low = horn.Weight(init=horn.Uniform(0.0, 0.4))
    high = horn.Weight(init=horn.Uniform(0.6, 1.0))
    slope = 2.0

    def forward(self, messages):
        outside = sum(max(0.0, m.input - m.high) + max(0.0, m.low - m.input) for m in messages)
        self.feedforward(math.exp(-self.slope * outside / len(messages)))


def job():
    net = horn.Network(seed=3)
    net.input(64)
    net.layer(60, neuron=Box, bias=False)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.02),
        epochs=12,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
