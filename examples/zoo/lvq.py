"""Learning vector quantisation: the nearest prototype moves to samples of its class, else away.

Source: Kohonen, "Learning Vector Quantization", in "Self-Organizing Maps", 1995 (LVQ1).
"""

import numpy as np

import horn


class Prototype(horn.Neuron):
    def forward(self, messages):
        far = sum((m.input - m.weight) ** 2 for m in messages)
        wins = 1.0 if self.rank(-far, over="layer") == 0 else 0.0
        toward = 1.0 if self.target > 0.5 else -1.0
        for m in messages:
            self.push(wins * toward * (m.weight - m.input))
        self.feedforward(-far)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.output(10, neuron=Prototype, bias=False, loss="squared_error", init=horn.Uniform(0.3, 0.35))
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.3),
        epochs=10,
    )


def learned(run):
    data = horn.data.digits("test")
    x = data.read(np.arange(len(data)), np.empty((len(data), 64)))
    return (run.model.predict(x).argmax(axis=1) == data.y).mean() > 0.7


if __name__ == "__main__":
    print(learned(horn.train(job(), progress=True)))
