"""A gated linear unit: a sum, times the sigmoid of another over weights of its own.

Source: Dauphin, Fan, Auli, Grangier, "Language Modeling with Gated Convolutional Networks", 2016.
"""

import horn
from horn import math


class GatedLinear(horn.Neuron):
    value, gate = horn.Weight(), horn.Weight()

    def forward(self, messages):
        total = sum(m.input * m.value for m in messages)
        gate = sum(m.input * m.gate for m in messages)
        self.feedforward(total * math.sigmoid(gate))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=GatedLinear)
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
