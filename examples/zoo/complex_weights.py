"""Complex weights as two real ones: a real input is turned into the plane, and its length sent.

Source: Hirose, "Complex-Valued Neural Networks", 2006 (amplitude-phase neurons, chapter 3).
"""

import horn
from horn import math


class Complex(horn.Neuron):
    re, im = horn.Weight(), horn.Weight()

    def forward(self, messages):
        x = sum(m.input * m.re for m in messages)
        y = sum(m.input * m.im for m in messages)
        self.feedforward(math.tanh(math.sqrt(x * x + y * y + 1e-3)))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Complex)
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
