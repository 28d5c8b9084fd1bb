"""Swish: the sum times a sigmoid of it, whose slope is learned.

Source: Ramachandran, Zoph, Le, "Searching for Activation Functions", 2017.
"""

import horn
from horn import math


class Swish(horn.Neuron):
    slope = horn.Parameter(1.0)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total * math.sigmoid(self.slope * total))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Swish)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.1, momentum=0.9),
        epochs=6,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
