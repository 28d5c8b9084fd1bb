"""Every synapse saturates by itself before the soma adds.

Source: Poirazi, Brannon, Mel, "Pyramidal Neuron as Two-Layer Neural Network", 2003.
"""

import horn
from horn import math


class Dendritic(horn.Neuron):
    def forward(self, messages):
        self.feedforward(math.tanh(sum(math.tanh(m.input * m.weight) for m in messages)))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Dendritic)
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
