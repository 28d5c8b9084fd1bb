"""The perceptron: where it is wrong, the weights move by the input; it is right or it is not.

Source: Rosenblatt, "The Perceptron: A Probabilistic Model for Information Storage and Organization
in the Brain", 1958.
"""

import horn


class Perceptron(horn.Neuron):
    def forward(self, messages):
        fires = 1.0 if sum(m.input * m.weight for m in messages) > 0.0 else 0.0
        for m in messages:
            self.push((fires - self.target) * m.input)
        self.feedforward(fires)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.output(10, neuron=Perceptron, loss="squared_error")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.1, momentum=0.9),
        epochs=8,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
