"""The length of the weights is a number of its own.

Source: Salimans, Kingma, "Weight Normalization: A Simple Reparameterization", 2016.
"""

import horn
from horn import math


class WeightNorm(horn.Neuron):
    length = horn.Parameter(1.0)
    shift = horn.Parameter(0.0)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        norm = math.sqrt(sum(m.weight * m.weight for m in messages) + 1e-6)
        self.feedforward(max(self.length * total / norm + self.shift, 0.0))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=WeightNorm, bias=False)
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
