"""Cosine normalisation: the angle between inputs and weights.

Source: Luo, Zhan, Xue, Wang, Ren, Yang, "Cosine Normalization", 2018.
"""

import horn
from horn import math


class Cosine(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        squares = sum(m.input * m.input for m in messages) * sum(
            m.weight * m.weight for m in messages
        )
        self.feedforward(total / math.sqrt(squares + 1e-6))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Cosine, bias=False)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.03),
        epochs=6,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
