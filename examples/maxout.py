"""Maxout: a neuron that sends the largest of what it hears. No matrix product says that.

Source: Goodfellow et al., "Maxout Networks", 2013.
horn submit examples/maxout.py, or python examples/maxout.py
"""

import horn

PIECES = 3


class Maxout(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


def pieces(neuron):
    """Each neuron listens to its own few linear neurons below."""
    return range(PIECES * neuron, PIECES * (neuron + 1))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(PIECES * 40)
    net.layer(40, neuron=Maxout, connect=horn.Sparse(sources=pieces), init=1.0, bias=False)
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
