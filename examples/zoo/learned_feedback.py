"""Learned feedback: errors come back by weights of their own, which change as the others do and
decay as they do, so that the two become the same.

Source: Kolen, Pollack, "Backpropagation without Weight Transport", 1994; Akrout et al., "Deep
Learning without Weight Transport", 2019.
"""

import horn


class TwoWay(horn.Neuron):
    back = horn.SynapseState(horn.Uniform(-0.3, 0.3))

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            change = 0.3 * m.delta * self.output
            error += m.delta * m.back
            self.push(change + 0.01 * m.weight)
            m.back = 0.99 * m.back - change
        self.backpropagate(error * self.activation.derivative(self.output))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(30, neuron=TwoWay, activation="tanh")
    net.layer(30, neuron=TwoWay, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(1.0),
        epochs=8,
        check=False,  # it is not the gradient
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
