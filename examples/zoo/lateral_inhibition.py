"""Lateral inhibition: every neuron is held back by what all others of its layer say.

Source: Hartline, Ratliff, "Inhibitory Interaction of Receptor Units in the Eye of Limulus", 1957.
"""

import horn


class Inhibited(horn.Neuron):
    strength = 0.02

    def forward(self, messages):
        drive = max(sum(m.input * m.weight for m in messages), 0.0)
        others = self.sum(drive, over="layer") - drive
        self.feedforward(max(drive - self.strength * others, 0.0))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Inhibited, init="he")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.05, momentum=0.9),
        epochs=6,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
