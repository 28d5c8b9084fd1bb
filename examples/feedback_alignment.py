"""Feedback alignment: the error comes back through fixed random weights, and learning works anyway.

Source: Lillicrap et al., "Random synaptic feedback weights support error backpropagation", 2016.
horn submit examples/feedback_alignment.py, or python examples/feedback_alignment.py
"""

import horn


class Aligned(horn.Neuron):
    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.normal(0.0, 0.1)  # this synapse's own number; not m.weight
            self.push(m.delta * self.output)
        self.backpropagate(error * self.activation.derivative(self.output))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(100, neuron=Aligned, activation="tanh")
    net.layer(50, neuron=Aligned, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.1, momentum=0.9),
        epochs=20,
        check=False,  # this backward is not the gradient, and means not to be
    )


if __name__ == "__main__":
    run = horn.train(job(), progress=True)
    print(run.test)
