"""A sine of the sum: the unit of implicit representations.

Source: Sitzmann et al., "Implicit Neural Representations with Periodic Activation Functions", 2020.
"""

import horn
from horn import math


class Siren(horn.Neuron):
    omega = 3.0

    def forward(self, messages):
        self.feedforward(math.sin(self.omega * sum(m.input * m.weight for m in messages)))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Siren, init=horn.Uniform(-0.1, 0.1))
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.01),
        epochs=6,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
