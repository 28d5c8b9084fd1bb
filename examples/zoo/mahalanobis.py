"""A radial neuron with a metric: each synapse has a centre, and a width that is learned.

Source: Poggio, Girosi, "Networks for Approximation and Learning", 1990 (weighted norms, section 5).
"""

import horn
from horn import math


class Mahalanobis(horn.Neuron):
    centre = horn.Weight(init=horn.Uniform(0.0, 1.0))
    scale = horn.Weight(init=horn.Constant(0.5))

    def forward(self, messages):
        distance = sum(((m.input - m.centre) * m.scale) ** 2 for m in messages)
        self.feedforward(math.exp(-0.5 * distance))


def job():
    net = horn.Network(seed=3)
    net.input(64)
    net.layer(60, neuron=Mahalanobis, bias=False)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.01),
        epochs=12,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
