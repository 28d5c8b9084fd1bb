"""A radial basis function: a bump around a learned centre, with a learned width.

Source: Broomhead, Lowe, "Multivariable Functional Interpolation and Adaptive Networks", 1988.
"""

import horn
from horn import math


class Gaussian(horn.Neuron):
    narrow = horn.Parameter(0.3)

    def forward(self, messages):
        far = sum((m.input - m.weight) ** 2 for m in messages)
        self.feedforward(math.exp(-self.narrow * far))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Gaussian, bias=False, init=horn.Uniform(0.0, 1.0))
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.02),
        epochs=6,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
