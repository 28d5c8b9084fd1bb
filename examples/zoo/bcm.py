"""BCM: what is above a sliding threshold grows, what is below shrinks.

Source: Bienenstock, Cooper, Munro, "Theory for the Development of Neuron Selectivity", 1982.
"""

import numpy as np

import horn


class Bcm(horn.Neuron):
    threshold = horn.State(1.0)

    def forward(self, messages):
        y = max(sum(m.input * m.weight for m in messages), 0.0)
        threshold = self.threshold
        for m in messages:
            self.push(0.1 * m.weight - y * (y - threshold) * m.input)
        self.threshold = 0.9 * threshold + 0.1 * y * y
        self.feedforward(y)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.output(20, neuron=Bcm, bias=False, init=horn.Uniform(0.0, 0.1))
    return horn.Job(net, data=horn.data.digits(), optimizer=horn.SGD(0.01), epochs=15)


def learned(run):
    """Neurons answer to few samples: the response is more peaked than that of random weights."""
    answers = run.model.predict(horn.data.digits())
    first = run.model.network.initial_parameters()[f"{run.model.network.last.name}.weight"]
    data = horn.data.digits()
    x = data.read(np.arange(len(data)), np.empty((len(data), 64)))
    return peaked(answers) > 1.25 * peaked(np.maximum(x @ first.T, 0.0))


def peaked(answers):
    """The mean of squares over the square of the mean: 1 where all samples are answered alike."""
    return float(np.mean((answers**2).mean(axis=0) / (answers.mean(axis=0) ** 2 + 1e-12)))


if __name__ == "__main__":
    print(learned(horn.train(job(), progress=True)))
