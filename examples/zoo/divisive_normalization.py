"""Divisive normalisation: a neuron's drive over what the whole layer has, as in visual cortex.

Source: Carandini, Heeger, "Normalization as a canonical neural computation", 2012.
"""

import horn


class Divisive(horn.Neuron):
    floor = 0.5

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        drive = max(z, 0.0) ** 2
        self.feedforward(drive / (self.floor + self.mean(drive, over="layer")))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Divisive)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.05, momentum=0.9),
        epochs=8,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
