"""Sanger's rule: neurons find the principal components one after another, each in what the ones
before it leave. What is left is a layer of its own: it hears the input, and what the component said
through the same weights.

Source: Sanger, "Optimal Unsupervised Learning in a Single-Layer Linear Feedforward Neural Network",
1989; Oja, "A simplified neuron model as a principal component analyzer", 1982 (each by itself).
"""

import numpy as np

import horn


class Component(horn.Neuron):
    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(-y * (m.input - y * m.weight))
        self.feedforward(y)


class Left(horn.Neuron):
    def forward(self, messages):
        heard = sum(m.input for m in messages.heard)
        self.feedforward(heard - sum(m.input * m.weight for m in messages.said))


def cloud():
    """2,000 points in 8 dimensions, and along how many they are long."""
    rng = np.random.default_rng(3)
    axes = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    return rng.standard_normal((2000, 8)) * [2, 1.4, 1, 0.3, 0.3, 0.2, 0.2, 0.1] @ axes


def job():
    net = horn.Network(seed=1)
    left = net.input(8)
    for k in range(3):
        one = net.layer(1, neuron=Component, bias=False, inputs=left, name=f"component{k}")
        left = net.layer(
            8, neuron=Left, bias=False, inputs={"heard": left, "said": one},
            connect={"heard": horn.OneToOne(), "said": horn.Tied(one)}, name=f"left{k}",
        )  # fmt: skip
    return horn.Job(net, (cloud(), None), optimizer=horn.SGD(0.02), batch_size=10, epochs=6,
                    target=None)  # fmt: skip


def learned(run):
    """Each is a principal component, to 2 % of its length."""
    found = [run.model.parameters[f"component{k}.weight"][0] for k in range(3)]
    axes = np.linalg.svd(cloud(), full_matrices=False)[2][:3]
    return all(abs(w @ axis) > 0.98 for w, axis in zip(found, axes, strict=True))


if __name__ == "__main__":
    print(learned(horn.train(job(), progress=True)))
