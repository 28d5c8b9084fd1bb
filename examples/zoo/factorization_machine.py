"""A factorization machine: all pairs of messages, in one pass.

Source: Rendle, "Factorization Machines", 2010.
"""

import horn


class Pairs(horn.Neuron):
    def forward(self, messages):
        whole = sum(m.input * m.weight for m in messages)
        alone = sum((m.input * m.weight) ** 2 for m in messages)
        self.feedforward(0.5 * (whole * whole - alone))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Pairs)
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
