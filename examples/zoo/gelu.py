"""A Gaussian error linear unit, by the error function itself.

Source: Hendrycks, Gimpel, "Gaussian Error Linear Units", 2016.
"""

import horn
from horn import math


class Gelu(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(0.5 * total * (1.0 + math.erf(total / math.sqrt(2.0))))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Gelu)
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
