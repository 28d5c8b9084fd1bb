"""Maxout with two pieces: the larger of two sums, each with weights of its own.

Source: Goodfellow, Warde-Farley, Mirza, Courville, Bengio, "Maxout Networks", 2013.
"""

import horn


class Maxout(horn.Neuron):
    a, b = horn.Weight(), horn.Weight()

    def forward(self, messages):
        first = sum(m.input * m.a for m in messages)
        second = sum(m.input * m.b for m in messages)
        self.feedforward(max(first, second))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Maxout)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.1, momentum=0.9),
        epochs=8,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
