"""The delta rule (LMS): the weights move by the error of the sum, sample by sample's input.

Source: Widrow, Hoff, "Adaptive Switching Circuits", 1960.
"""

import horn


class Adaline(horn.Neuron):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push((z - self.target) * m.input)
        self.feedforward(z)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.output(10, neuron=Adaline, loss="squared_error")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.02),
        epochs=8,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
