"""The adding problem: two of many numbers are marked, somewhere in a sequence; what is their sum?

horn submit examples/adding.py. To answer 1 always has a mean squared error of 0.167; an LSTM
remembers the first number until the second comes.

Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, experiment 4.
"""

import numpy as np

import horn
from horn.math import sigmoid, tanh

STEPS = 100


class LSTM(horn.Neuron):
    i, f, g, o = horn.Weight(), horn.Weight(bias=2.0), horn.Weight(), horn.Weight()
    cell = horn.State(0.0, per="sample")

    def forward(self, messages):
        i = sigmoid(sum(m.input * m.i for m in messages))
        f = sigmoid(sum(m.input * m.f for m in messages))
        g = tanh(sum(m.input * m.g for m in messages))
        o = sigmoid(sum(m.input * m.o for m in messages))
        self.cell = f * self.cell + i * g
        self.feedforward(o * tanh(self.cell))


def marked(n, seed):
    """Sequences of (number, mark), two marks in each, and the sums (n, 1)."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, STEPS, 2), np.float32)
    x[:, :, 0] = rng.random((n, STEPS))
    rows = np.arange(n)
    x[rows, rng.integers(0, STEPS // 2, n), 1] = 1.0
    x[rows, rng.integers(STEPS // 2, STEPS, n), 1] = 1.0
    return x, (x[:, :, 0] * x[:, :, 1]).sum(axis=1, keepdims=True)


def job():
    net = horn.Network(seed=1)
    sequence = net.input(2, steps=STEPS)
    net.layer(24, neuron=LSTM, inputs={"x": sequence, "h": horn.Delayed()}, name="memory")
    net.output(1, loss="squared_error")
    return horn.Job(
        net,
        data=marked(4000, seed=1),
        test=marked(500, seed=2),
        optimizer=horn.Adam(0.01, clip_norm=1.0),
        batch_size=50,
        epochs=20,
        metrics=["rmse"],
    )


if __name__ == "__main__":
    run = horn.train(job(), progress=True)
    print(run.test)
