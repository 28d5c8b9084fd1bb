"""A neuron that is on or off by chance, and learns as if it sent the probability.

Source: Bengio, Leonard, Courville, "Estimating Gradients Through Stochastic Neurons", 2013.
"""

import horn
from horn import math


class Spiking(horn.Neuron):
    def forward(self, messages):
        p = math.sigmoid(sum(m.input * m.weight for m in messages))
        on = self.bernoulli(p) if self.training else p
        self.feedforward(p + math.stop_gradient(on - p))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Spiking)
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
