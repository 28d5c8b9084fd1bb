"""An adder: how far, summed over the axes, instead of a product.

Source: Chen et al., "AdderNet: Do We Really Need Multiplications in Deep Learning?", 2020.
"""

import horn


class Adder(horn.Neuron):
    def forward(self, messages):
        self.feedforward(1.0 - sum(abs(m.input - m.weight) for m in messages) / len(messages))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Adder, bias=False, init=horn.Uniform(0.0, 1.0))
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.03),
        epochs=6,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
