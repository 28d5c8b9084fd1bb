"""A GRU that reads handwritten digits row by row, eight steps of eight pixels.

horn submit examples/gru.py

Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014, with the two
biases of PyTorch's.
"""

import horn
from horn.math import sigmoid, tanh


class GRU(horn.Neuron):
    """Three weights per synapse: what to reset, what to keep, what is new."""

    r, z, n = horn.Weight(), horn.Weight(), horn.Weight()
    h = horn.State(0.0, per="sample")
    second = horn.Parameter(0.0)  # the bias of what it remembers

    def forward(self, messages):
        r = sigmoid(sum(m.input * m.r for m in messages))
        z = sigmoid(sum(m.input * m.z for m in messages))
        heard = sum(m.input * m.n for m in messages.h)
        new = sum(m.input * m.n for m in messages) - heard
        h = (1.0 - z) * tanh(new + r * (heard + self.second)) + z * self.h
        self.h = h
        self.feedforward(h)


def rows(which):
    data = horn.data.digits(which)
    return data.x.reshape(-1, 8, 8), data.y


def job():
    net = horn.Network(seed=7)
    pixels = net.input(8, steps=8)
    net.layer(48, neuron=GRU, inputs={"x": pixels, "h": horn.Delayed()}, name="memory")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        rows("train"),
        test=rows("test"),
        optimizer=horn.Adam(0.01, clip_norm=1.0),
        batch_size=32,
        epochs=12,
    )


if __name__ == "__main__":
    run = horn.train(job(), progress=True)
    print(run.test)
