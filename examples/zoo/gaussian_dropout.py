"""Multiplicative Gaussian noise instead of silence.

Source: Srivastava et al., "Dropout: A Simple Way to Prevent Overfitting", 2014.
"""

import horn


class GaussianDropout(horn.Neuron):
    spread = 0.5

    def forward(self, messages):
        total = max(sum(m.input * m.weight for m in messages), 0.0)
        factor = self.normal(1.0, self.spread) if self.training else 1.0
        self.feedforward(total * factor)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=GaussianDropout)
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
