"""Feedback alignment: the error comes back through fixed random weights, and learning works anyway.

Source: Lillicrap, Cownden, Tweed, Akerman, "Random synaptic feedback weights support error
backpropagation for deep learning", 2016.
"""

import horn


class Aligned(horn.Neuron):
    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.normal(0.0, 0.3)  # this synapse's own number; not m.weight
            self.push(m.delta * self.output)
        self.backpropagate(error * self.activation.derivative(self.output))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(30, neuron=Aligned, activation="tanh")
    net.layer(30, neuron=Aligned, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.1, momentum=0.9),
        epochs=6,
        check=False,  # it is not the gradient
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
