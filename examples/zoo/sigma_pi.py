"""Sigma-pi units: products of a few inputs, a synapse on each product, and their sum.

The products are a layer of their own, which reads no weights (horn says that they never learn);
the next layer is the sum.
Source: Rumelhart, Hinton, McClelland, "A General Framework for Parallel Distributed Processing",
1986.
"""

import horn


class Conjunct(horn.Neuron):
    def forward(self, messages):
        product = 1.0
        for m in messages:
            product *= m.input
        self.feedforward(product)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(300, neuron=Conjunct, connect=horn.Sparse(fan_in=2), bias=False)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.3, momentum=0.9),
        epochs=8,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
