"""Momentum, weight decay and a limit inside a neuron, in what it pushes to each outgoing synapse.

The update before is the batch's, and so is what it decays by; each sample's own part is limited.
Source: Rumelhart, Hinton, Williams, "Learning representations by back-propagating errors", 1986
(momentum); Krogh, Hertz, "A Simple Weight Decay Can Improve Generalization", 1992; Pascanu,
Mikolov, Bengio, "On the difficulty of training recurrent neural networks", 2013 (clipping).
"""

import horn


class Heavy(horn.Neuron):
    rate, momentum, decay, limit = 0.1, 0.9, 1e-4, 0.5

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            gradient = max(-self.limit, min(self.limit, m.delta * self.output))
            step = self.rate * (gradient + self.decay * m.weight)
            self.push(self.momentum * m.previous_update - step)
        self.backpropagate(error * self.activation.derivative(self.output))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Heavy, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Direct(0.1),  # what is pushed is the update
        check=False,  # and no gradient
        epochs=6,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
