"""A scaled exponential linear unit, whose outputs keep mean 0 and variance 1.

Source: Klambauer, Unterthiner, Mayr, Hochreiter, "Self-Normalizing Neural Networks", 2017.
"""

import horn
from horn import math


class Selu(horn.Neuron):
    alpha, scale = 1.6732632423543772, 1.0507009873554805

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        below = self.alpha * (math.exp(min(total, 0.0)) - 1.0)
        self.feedforward(self.scale * (total if total > 0.0 else below))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Selu, init="lecun")
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
