"""Snake: a line with a wave on it, for what is periodic.

Source: Ziyin, Hartwig, Ueda, "Neural Networks Fail to Learn Periodic Functions", 2020.
"""

import horn
from horn import math


class Snake(horn.Neuron):
    rate = horn.Parameter(1.0)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total + math.sin(self.rate * total) ** 2 / self.rate)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Snake)
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
