"""A Hopfield network: patterns are stored in symmetric weights by Hebb's rule, and one parallel
step from a pattern with flipped signs comes nearer to it.

A sample is a damaged pattern, its target the whole one: in training the neuron hears the target's
share through ``self.target`` and stores what was sent together. Several steps are several passes:
feed what comes out in again.

Source: Hopfield, "Neural Networks and Physical Systems with Emergent Collective Computational
Abilities", 1982.
"""

import numpy as np

import horn
from horn import math


class Stores(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(self.target * m.input / len(messages))
        self.feedforward(math.sign(total))


def patterns():
    """Six patterns of 64 signs; 30 copies of each, in which every fifth sign is another."""
    rng = np.random.default_rng(1)
    whole = np.repeat(np.sign(rng.standard_normal((6, 64))), 30, axis=0)
    return whole * np.where(rng.random(whole.shape) < 0.2, -1.0, 1.0), whole


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.output(64, neuron=Stores, init=0.0, bias=False, loss="squared_error")
    return horn.Job(net, data=patterns(), optimizer=horn.Direct(1.0), batch_size=30, epochs=1)


def learned(run):
    """Nine signs of ten that were flipped are right."""
    damaged, whole = patterns()
    return np.mean(run.model.predict(damaged) == whole) > 0.98


if __name__ == "__main__":
    print(learned(horn.train(job(), progress=True)))
