"""A hidden layer that competes: the softmax of its sums, as one neuron writes it.

Source: Bridle, "Training Stochastic Model Recognition Algorithms as Networks can Lead to Maximum
Mutual Information Estimation of Parameters", 1990.
"""

import horn
from horn import math


class Competing(horn.Neuron):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        e = math.exp(z - self.max(z, over="layer"))
        self.feedforward(10.0 * e / self.sum(e, over="layer"))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Competing)
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
