"""A product unit: inputs to learned powers, multiplied.

Source: Durbin, Rumelhart, "Product Units: A Computationally Powerful Extension", 1989.
"""

import horn
from horn import math


class Product(horn.Neuron):
    def forward(self, messages):
        logs = sum(m.weight * math.log(1.0 + abs(m.input)) for m in messages)
        self.feedforward(math.exp(logs))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Product, bias=False)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.03, momentum=0.9),
        epochs=6,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
