"""A soft threshold, learned: what is small becomes nothing (one step of LISTA).

Source: Gregor, LeCun, "Learning Fast Approximations of Sparse Coding", 2010.
"""

import horn


class Shrinkage(horn.Neuron):
    threshold = horn.Parameter(0.1)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        above = max(total - self.threshold, 0.0)
        below = min(total + self.threshold, 0.0)
        self.feedforward(above + below)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Shrinkage)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.1, momentum=0.9),
        epochs=6,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
