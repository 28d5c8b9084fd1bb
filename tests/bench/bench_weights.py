"""Neurons with k weights against one weight and k times the neurons: the same products.

python tests/bench/bench_weights.py
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

import horn
from horn import math
from horn.backends import Setup, make
from horn.data import Dataset


class Two(horn.Neuron):
    a, b = horn.Weight(), horn.Weight()

    def forward(self, messages):
        x = sum(m.input * m.a for m in messages)
        y = sum(m.input * m.b for m in messages)
        self.feedforward(x * math.sigmoid(y))


class Four(horn.Neuron):
    a, b, c, d = horn.Weight(), horn.Weight(), horn.Weight(), horn.Weight()

    def forward(self, messages):
        x = sum(m.input * m.a for m in messages)
        y = sum(m.input * m.b for m in messages)
        z = sum(m.input * m.c for m in messages)
        w = sum(m.input * m.d for m in messages)
        self.feedforward(x * math.sigmoid(y) + z * math.sigmoid(w))


class Plain(horn.Neuron):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(z * math.sigmoid(z))


CASES = [
    (Two, 2, 16, 64, 40), (Two, 2, 32, 784, 128), (Two, 2, 100, 784, 512),
    (Four, 4, 32, 265, 200), (Four, 4, 100, 784, 128),
]  # fmt: skip


def engine(neuron, size, batch, fan_in, hidden):
    net = horn.Network(seed=1)
    net.input(fan_in)
    if hidden:
        net.layer(fan_in, activation="tanh")
    net.output(size, neuron=neuron, loss="squared_error")
    optimizer = horn.SGD(0.01, momentum=0.9)
    found = make("kernels", Setup(net, optimizer, "labels", batch, "float32", 1))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((batch, fan_in)), rng.standard_normal((batch, size))
    found.bind(Dataset(x.astype(np.float32), y.astype(np.float32)))
    return found


def main():
    print("weights batch fan_in neurons below      ms  one of k times the size  ratio")
    for hidden in (False, True):
        for neuron, k, batch, fan_in, size in CASES:
            pair = [
                engine(neuron, size, batch, fan_in, hidden),
                engine(Plain, k * size, batch, fan_in, hidden),
            ]
            times: list[list[float]] = [[], []]
            for step in range(300):
                for each, found in zip(pair, times, strict=True):
                    begun = perf_counter()
                    each.step(np.arange(batch), iteration=step, first_sample=0)
                    found.append(perf_counter() - begun)
            ours, theirs = (1e3 * float(np.percentile(found, 5)) for found in times)
            below = "tanh" if hidden else "input"
            print(
                f"{k:7} {batch:5} {fan_in:6} {size:7} {below:5} {ours:7.3f} {theirs:24.3f}"
                f" {ours / theirs:6.3f}"
            )


if __name__ == "__main__":
    main()
