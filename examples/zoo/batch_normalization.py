"""Batch normalisation: the sum less the batch's mean, over its deviation; running values later.

Source: Ioffe, Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing
Internal Covariate Shift", 2015.
"""

import horn
from horn import math


class BatchNormalized(horn.Neuron):
    gain, shift = horn.Parameter(1.0), horn.Parameter(0.0)
    average, spread = horn.State(0.0), horn.State(1.0)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        mean = self.mean(z, over="batch", running="average")
        var = self.var(z, over="batch", running="spread")
        normal = (z - mean) / math.sqrt(var + 1e-3)
        self.feedforward(self.activation(self.gain * normal + self.shift))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(30, neuron=BatchNormalized, activation="relu")
    net.layer(30, neuron=BatchNormalized, activation="relu")
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
