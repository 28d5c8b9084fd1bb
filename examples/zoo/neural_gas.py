"""Neural gas: every neuron moves toward the sample, the less the more neurons are nearer.

Source: Martinetz, Schulten, "A 'Neural-Gas' Network Learns Topologies", 1991.
"""

import numpy as np

import horn
from horn import math


class Gas(horn.Neuron):
    reach = 3.0

    def forward(self, messages):
        far = sum((m.input - m.weight) ** 2 for m in messages)
        order = self.rank(-far, over="layer")
        for m in messages:
            self.push(math.exp(-order / self.reach) * (m.weight - m.input))
        self.feedforward(far)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.output(20, neuron=Gas, bias=False, init=horn.Uniform(0.0, 0.5))
    return horn.Job(net, data=horn.data.digits(), optimizer=horn.SGD(0.5), epochs=6)


def learned(run):
    """The nearest neuron is much nearer than the mean of all samples, and all are used."""
    data = horn.data.digits()
    far = run.model.predict(data.read(np.arange(len(data)), np.empty((len(data), 64))))
    used = set(far.argmin(axis=1))
    return far.min(axis=1).mean() < 0.65 * data.x.var(axis=0).sum() and len(used) == 20


if __name__ == "__main__":
    print(learned(horn.train(job(), progress=True)))
