"""An LSTM that reads Shakespeare character by character, and writes some.

HORN_DATA=folder horn submit examples/shakespeare.py, where folder has tinyshakespeare.txt.

Source: Hochreiter, Schmidhuber, "Long Short-Term Memory", Neural Computation 9, 1997, with the
forget gate of Gers, Schmidhuber, Cummins, 2000; the text is Karpathy's, of char-rnn, 2015.
"""

import os
from pathlib import Path

import horn
from horn.math import log, sigmoid, tanh


class LSTM(horn.Neuron):
    """What one cell does in one step. Its four gates are one matrix product."""

    i, f, g, o = horn.Weight(), horn.Weight(bias=1.0), horn.Weight(), horn.Weight()
    cell = horn.State(0.0, per="sample")

    def forward(self, messages):
        i = sigmoid(sum(m.input * m.i for m in messages))
        f = sigmoid(sum(m.input * m.f for m in messages))
        g = tanh(sum(m.input * m.g for m in messages))
        o = sigmoid(sum(m.input * m.o for m in messages))
        self.cell = f * self.cell + i * g
        self.feedforward(o * tanh(self.cell))


def job():
    text = horn.data.text(Path(os.environ.get("HORN_DATA", ".")) / "tinyshakespeare.txt", 100)
    n, n_letters = int(0.9 * len(text)), len(text.classes)
    net = horn.Network(seed=7)
    letters = net.input(n_letters, steps=100)
    net.layer(200, neuron=LSTM, inputs=[letters, horn.Delayed()])
    net.output(n_letters, activation="softmax", loss="cross_entropy", each_step=True)
    return horn.Job(
        net,
        text[:n],
        test=text[n:],
        optimizer=horn.Adam(0.005, clip_norm=5.0),
        batch_size=32,
        epochs=5,
    )


def report(run):
    print(f"{run.test['loss'] / log(2.0):.3f} bits per character of the last tenth\n")
    print(run.model.generate("ROMEO:\n", 300, temperature=0.7, seed=1))


if __name__ == "__main__":
    report(horn.train(job(), progress=True))
