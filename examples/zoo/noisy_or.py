"""A noisy or: on unless every cause that is there fails.

Source: Pearl, "Probabilistic Reasoning in Intelligent Systems", 1988.
"""

import horn
from horn import math


class NoisyOr(horn.Neuron):
    def forward(self, messages):
        off = math.prod(1.0 - m.input * 0.2 * math.sigmoid(m.weight) for m in messages)
        self.feedforward(1.0 - off)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(20, neuron=NoisyOr, bias=False, init=horn.Normal(2.0))
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.1),
        epochs=8,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
