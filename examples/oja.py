"""Oja's rule: a neuron that learns from what it hears alone finds the first principal component.

No labels, no loss, no backward: push in forward says how each incoming weight changes.
Source: Oja, "A simplified neuron model as a principal component analyzer", 1982.
horn submit examples/oja.py, or python examples/oja.py
"""

import numpy as np

import horn


class Oja(horn.Neuron):
    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(self.learning_rate * y * (m.input - y * m.weight))
        self.feedforward(y)


def cloud():
    """2,000 points in 8 dimensions, longest along one random direction."""
    rng = np.random.default_rng(3)
    axes = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    return rng.standard_normal((2000, 8)) * [3, 1.5, 1, 1, 0.5, 0.5, 0.2, 0.1] @ axes


def job():
    net = horn.Network(seed=1)
    net.input(8)
    net.layer(1, neuron=Oja, bias=False)
    return horn.Job(
        net, (cloud(), None), optimizer=horn.Direct(0.01), batch_size=10, epochs=4, target=None
    )


def report(run):
    w = run.model.parameters["layer1.weight"][0]
    first = np.linalg.svd(cloud())[2][0]
    print(f"length of the weights {np.linalg.norm(w):.3f} (Oja's rule makes it 1)")
    print(f"|cosine| with the first principal component {abs(w @ first) / np.linalg.norm(w):.4f}")


if __name__ == "__main__":
    report(horn.train(job(), progress=True))
