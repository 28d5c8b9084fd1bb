"""Rprop: each outgoing synapse has a step size of its own, and only the gradient's sign counts.

The sign is the batch's: a synapse keeps the gradient, whose mean over the batch is the batch's, and
steps by it in the next batch, where every sample reads the same number.
Source: Riedmiller, Braun, "A Direct Adaptive Method for Faster Backpropagation Learning: The RPROP
Algorithm", 1993.
"""

import horn
from horn import math


class Rprop(horn.Neuron):
    now, before = horn.SynapseState(0.0), horn.SynapseState(0.0)
    size = horn.SynapseState(0.02)

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            gradient, agreed = m.now, m.now * m.before
            if agreed > 0.0:
                m.size = min(1.2 * m.size, 0.5)
            elif agreed < 0.0:
                m.size = max(0.5 * m.size, 1e-6)
                gradient = 0.0
            m.before = gradient
            m.now = m.delta * self.output
            self.push(-math.sign(gradient) * m.size)
        self.backpropagate(error * self.activation.derivative(self.output))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Rprop, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    data = horn.data.digits()
    return horn.Job(
        net,
        data=data,
        test=horn.data.digits("test"),
        optimizer=horn.Direct(0.3),  # what is pushed is the update
        check=False,  # and no gradient
        batch_size=len(data),
        epochs=60,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
