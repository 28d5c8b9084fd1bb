"""Spiking neurons that read MNIST a row of pixels at a time, 28 steps to an image.

HORN_DATA=folder horn submit examples/spiking.py, where folder/mnist has the four IDX files.

A pixel is a current. Where a neuron fires, the slope of a sigmoid stands in for that of a step.
Source: Neftci, Mostafa, Zenke, "Surrogate Gradient Learning in Spiking Neural Networks", 2019.
"""

import horn
from horn.math import sigmoid, stop_gradient


class LIF(horn.Neuron):
    """Leaks, integrates, fires above 1 and is reset by what firing takes."""

    v = horn.State(0.0, per="sample")

    def forward(self, messages):
        v = 0.7 * self.v + sum(m.input * m.weight for m in messages)
        soft = sigmoid(2.0 * (v - 1.0))
        spike = soft + stop_gradient((1.0 if v > 1.0 else 0.0) - soft)
        self.v = v - stop_gradient(spike)
        self.feedforward(spike)


class Leaky(horn.Neuron):
    """Never fires: what it has gathered at the end is what it says."""

    v = horn.State(0.0, per="sample")

    def forward(self, messages):
        v = 0.95 * self.v + sum(m.input * m.weight for m in messages)
        self.v = v
        self.feedforward(self.activation(v))


def rows(which):
    """Images as sequences (n, 28, 28) of bytes, and their labels."""
    data = horn.data.mnist(which)
    return data.x.reshape(-1, 28, 28), data.y


def job():
    epochs = 8
    net = horn.Network(seed=7)
    pixels = net.input(28, steps=28)
    net.layer(128, neuron=LIF, inputs=[pixels, horn.Delayed()], name="spiking")
    net.output(10, neuron=Leaky, activation="softmax", loss="cross_entropy")
    rate = horn.Cosine(0.005, iterations=epochs * 600)
    optimizer = horn.Adam(rate, clip_norm=1.0)
    return horn.Job(
        net, rows("train"), test=rows("test"), optimizer=optimizer, batch_size=100, epochs=epochs
    )


if __name__ == "__main__":
    run = horn.train(job(), progress=True)
    print(run.test)
