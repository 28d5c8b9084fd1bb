"""A neuron with a backward of one's own: it leaks below zero, by a constant that the class sets.

Before the first step horn compares this backward with finite differences: put a mistake in and see.
horn submit examples/own_neuron.py, or python examples/own_neuron.py
"""

import horn


class Leaky(horn.Neuron):
    leak = 0.1

    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input * m.weight
        self.feedforward(total if total > 0.0 else self.leak * total)

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            self.push(m.delta * self.output)  # d loss / d weight of this synapse
        # The output has the sign of the sum, so it says which slope it was.
        self.backpropagate(error * (1.0 if self.output > 0.0 else self.leak))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(64, neuron=Leaky, init="he")
    net.layer(32, neuron=Leaky, init="he")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.05, momentum=0.9),
        epochs=15,
    )


if __name__ == "__main__":
    run = horn.train(job(), progress=True)
    print(run.test)
