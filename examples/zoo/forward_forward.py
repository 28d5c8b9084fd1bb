"""Forward-forward: a layer learns to answer loudly to what is real and softly to what is not; there
is no backward pass. A sample is a digit beside a label, true or false; which it is every neuron
hears as its target. The label that makes the layer loudest is what a digit is taken for.

Source: Hinton, "The Forward-Forward Algorithm: Some Preliminary Investigations", 2022 (one layer).
"""

import numpy as np

import horn
from horn import math


class Goodness(horn.Neuron):
    def forward(self, messages):
        size = math.sqrt(sum(m.input**2 for m in messages) + 1e-6)
        y = math.relu(sum(m.input * m.weight for m in messages) / size)
        real = math.sigmoid(8.0 * (self.mean(y * y, over="layer") - 0.5))
        for m in messages:
            self.push((real - self.target) * y * m.input / size)
        self.feedforward(y)


def beside(x, labels):
    return np.hstack([x, 3.0 * np.eye(10)[labels]])


def read(part):
    data = horn.data.digits(part)
    return data.read(np.arange(len(data)), np.empty((len(data), 64))), np.asarray(data.y)


def job():
    x, y = read("train")
    wrong = (y + np.random.default_rng(1).integers(1, 10, len(y))) % 10
    kinds = np.repeat([1.0, 0.0], len(x))[:, None] * np.ones(60)
    net = horn.Network(seed=7)
    net.input(74)
    net.output(60, neuron=Goodness, loss="squared_error")
    both = np.vstack([beside(x, y), beside(x, wrong)])
    return horn.Job(net, data=(both, kinds), optimizer=horn.Adam(0.01), epochs=30)


def learned(run):
    """Of ten labels the right one makes the layer loudest, for most digits."""
    x, y = read("test")
    loud = [(run.model.predict(beside(x, np.full(len(x), k))) ** 2).mean(axis=1) for k in range(10)]
    return np.mean(np.argmax(loud, axis=0) == y) > 0.8


if __name__ == "__main__":
    print(learned(horn.train(job(), progress=True)))
