"""Handwritten digits (8x8 pixels, in the package) with a neuron of one's own: 96 % right.

horn submit examples/digits.py, or python examples/digits.py
"""

import horn


class MyNeuron(horn.Neuron):
    """What one neuron does. horn derives the backward and makes matrix code of both."""

    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input * m.weight
        self.feedforward(self.activation(total))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(100, neuron=MyNeuron, activation="relu")
    net.output(10, neuron=MyNeuron, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),  # written by other people
        optimizer=horn.SGD(0.1, momentum=0.9),
        batch_size=32,
        epochs=20,
    )


if __name__ == "__main__":
    run = horn.train(job(), progress=True)
    print(run.test)
