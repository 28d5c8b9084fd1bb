"""Adam inside a neuron: each outgoing synapse keeps its two running means, and steps by them.

The first weights, below which no neuron writes a rule, go by plain gradients. The mean square is
that of each sample's gradient: with batches of one sample this is Adam to the last digit.
Source: Kingma, Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1.
"""

import horn
from horn import math


class Adam(horn.Neuron):
    mean, square = horn.SynapseState(0.0), horn.SynapseState(0.0)
    rate, slow, slower = 0.005, 0.9, 0.999

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        step, error = self.iteration + 1, 0.0
        for m in messages:
            error += m.delta * m.weight
            g = m.delta * self.output
            m.mean = self.slow * m.mean + (1.0 - self.slow) * g
            m.square = self.slower * m.square + (1.0 - self.slower) * g * g
            first = m.mean / (1.0 - self.slow**step)
            second = m.square / (1.0 - self.slower**step)
            self.push(-self.rate * first / (math.sqrt(second) + 1e-8))
        self.backpropagate(error * self.activation.derivative(self.output))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(30, neuron=Adam, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Direct(0.1),  # what is pushed is the update
        check=False,  # and no gradient
        batch_size=16,
        epochs=8,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
