"""Mish: the sum times the tangent of its softplus.

Source: Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", 2019.
"""

import horn
from horn import math


class Mish(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total * math.tanh(math.log1p(math.exp(total))))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Mish)
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
