"""An oscillator: the pull of its neighbours is the sine of the difference of phases.

Source: Kuramoto, "Self-Entrainment of a Population of Coupled Non-Linear Oscillators", 1975.
"""

import horn
from horn import math


class Oscillator(horn.Neuron):
    def forward(self, messages):
        pull = sum(math.sin(m.input - m.weight) for m in messages)
        self.feedforward(pull / math.sqrt(len(messages)))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Oscillator, init=horn.Uniform(-3.0, 3.0))
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
