"""Direct feedback alignment: the output's error comes to every hidden neuron through fixed weights.

Source: Nokland, "Direct Feedback Alignment Provides Learning in Deep Neural Networks", 2016.
"""

import horn


class Direct(horn.Neuron):
    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = sum(e.delta * e.normal(0.0, 0.3) for e in self.error)
        for m in messages:
            self.push(m.delta * self.output)
        self.backpropagate(error * self.activation.derivative(self.output))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(30, neuron=Direct, activation="tanh")
    net.layer(30, neuron=Direct, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.1, momentum=0.9),
        epochs=8,
        check=False,  # it is not the gradient
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
