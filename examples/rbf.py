"""Radial basis neurons: each has a place in the plane, and answers to what is near it.

They sum (input - weight) ** 2, not input * weight: a loop over the messages is compiled for that.
horn submit examples/rbf.py, or python examples/rbf.py
"""

import numpy as np

import horn
from horn import math


class RBF(horn.Neuron):
    """exp(-sharpness * squared distance); the sharpness is learned, one number per neuron."""

    sharpness = horn.Parameter(4.0)

    def forward(self, messages):
        distance = sum((m.input - m.weight) ** 2 for m in messages)
        self.feedforward(math.exp(-self.sharpness * distance))


def spirals(n, seed):
    """Two spirals that no straight line separates: x (2n, 2), y (2n,)."""
    rng = np.random.default_rng(seed)
    t = np.sqrt(rng.uniform(0.02, 1.0, n)) * 3 * np.pi
    arm = np.stack([t * np.cos(t), t * np.sin(t)], axis=1) / (3 * np.pi)
    x = np.concatenate([arm, -arm]) + rng.normal(0, 0.01, (2 * n, 2))
    return x.astype(np.float32), np.repeat([0, 1], n)


def job():
    net = horn.Network(seed=1)
    net.input(2)
    net.layer(60, neuron=RBF, init=horn.Uniform(-1, 1), bias=False)
    net.output(2, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net, spirals(1000, 1), test=spirals(500, 2), optimizer=horn.Adam(0.02), epochs=30
    )


def report(run):
    axis = np.linspace(-1, 1, 41, dtype=np.float32)
    grid = np.stack(np.meshgrid(axis, axis[::2]), axis=-1).reshape(-1, 2)
    for row in run.model.predict(grid, labels=True).reshape(21, 41):
        print("".join(".#"[k] for k in row))


if __name__ == "__main__":
    run = horn.train(job(), progress=True)
    print(run.test)
    report(run)
