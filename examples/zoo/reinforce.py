"""REINFORCE: a neuron fires by chance, and what it did is made likelier where the loss was smaller
than of late.

Source: Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
Learning", 1992 (Bernoulli-logistic units, section 4).
"""

import horn
from horn import math


class Trying(horn.Neuron):
    fired, likely, usual = horn.State(0.0), horn.State(0.5), horn.State(2.3)

    def forward(self, messages):
        p = math.sigmoid(sum(m.input * m.weight for m in messages))
        self.likely = p
        self.fired = self.bernoulli(p) if self.training else p
        self.feedforward(self.fired)

    def backward(self, messages):
        better = self.loss - self.usual
        self.usual = 0.9 * self.usual + 0.1 * self.loss
        for m in messages:
            self.push(m.delta * self.output)
        self.backpropagate(better * (self.fired - self.likely))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(20, neuron=Trying)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.1),
        batch_size=20,
        epochs=10,
        check=False,  # it is the gradient in the mean
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
