"""DropConnect with one mask for the whole batch: the masked weights make one matrix product.

Source: Wan, Zeiler, Zhang, LeCun, Fergus, "Regularization of Neural Networks using DropConnect",
2013, section 4 (a mask per sample; one per batch is the cheap variant).
"""

import horn


class SharedMask(horn.Neuron):
    keep = 0.7

    def forward(self, messages):
        total = 0.0
        for m in messages:
            here = self.bernoulli(self.keep, per="batch") if self.training else self.keep
            total += m.input * m.weight * here
        self.feedforward(self.activation(total))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=SharedMask, activation="relu")
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
