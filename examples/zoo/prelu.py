"""A rectifier whose slope below zero each neuron learns.

Source: He, Zhang, Ren, Sun, "Delving Deep into Rectifiers", 2015.
"""

import horn


class PRelu(horn.Neuron):
    slope = horn.Parameter(0.25)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total if total > 0.0 else self.slope * total)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=PRelu)
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
