"""A self-organising map: the nearest neuron and its neighbours on a line move toward the sample.

Source: Kohonen, "Self-Organized Formation of Topologically Correct Feature Maps", 1982.
"""

import numpy as np

import horn
from horn import math


class OnTheMap(horn.Neuron):
    reach = 2.0

    def forward(self, messages):
        far = sum((m.input - m.weight) ** 2 for m in messages)
        steps = (self.index - self.argmax(-far, over="layer")) / self.reach
        for m in messages:
            self.push(math.exp(-0.5 * steps * steps) * (m.weight - m.input))
        self.feedforward(far)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.output(20, neuron=OnTheMap, bias=False, init=horn.Uniform(0.0, 0.5))
    return horn.Job(net, data=horn.data.digits(), optimizer=horn.SGD(0.5), epochs=6)


def learned(run):
    """The nearest neuron is nearer than the mean of all samples, and neighbours are alike."""
    data = horn.data.digits()
    x = data.read(np.arange(len(data)), np.empty((len(data), 64)))
    nearest = run.model.predict(x).min(axis=1).mean()
    weights = run.model.parameters[f"{run.model.network.last.name}.weight"]
    beside = np.square(np.diff(weights, axis=0)).sum(axis=1).mean()
    return nearest < 0.8 * x.var(axis=0).sum() and beside < x.var(axis=0).sum()


if __name__ == "__main__":
    print(learned(horn.train(job(), progress=True)))
