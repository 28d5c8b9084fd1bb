"""A soft maximum over messages, smooth everywhere.

Source: Calafiore, Gaubert, Possieri, "Log-Sum-Exp Neural Networks", 2019.
"""

import horn
from horn import math


class SoftMaximum(horn.Neuron):
    def forward(self, messages):
        self.feedforward(math.log(sum(math.exp(m.input * m.weight) for m in messages)))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=SoftMaximum, init=horn.Normal(1.0))
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
