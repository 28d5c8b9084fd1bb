"""An inverse multiquadric: falls with the distance from a learned centre, slowly.

Source: Hardy, "Multiquadric Equations of Topography and Other Irregular Surfaces", 1971.
"""

import horn
from horn import math


class Multiquadric(horn.Neuron):
    def forward(self, messages):
        far = sum((m.input - m.weight) ** 2 for m in messages)
        self.feedforward(1.0 / math.sqrt(1.0 + far))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Multiquadric, bias=False, init=horn.Uniform(0.0, 1.0))
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.02),
        epochs=6,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
