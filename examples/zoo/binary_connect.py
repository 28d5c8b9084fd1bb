"""Weights that are +-1 where they are used and real where they learn.

Source: Courbariaux, Bengio, David, "BinaryConnect: Training with Binary Weights", 2015.
"""

import horn
from horn import math


def binary(w):
    """The sign, with the derivative of the number itself (straight through)."""
    return w + math.stop_gradient((1.0 if w > 0.0 else -1.0) - w)


class Binary(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * binary(m.weight) for m in messages)
        self.feedforward(math.tanh(total / math.sqrt(len(messages))))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Binary)
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
