"""A thin plate spline: r * r * log(r) of the distance from a learned centre.

Source: Duchon, "Splines Minimizing Rotation-Invariant Semi-Norms in Sobolev Spaces", 1977.
"""

import horn
from horn import math


class ThinPlate(horn.Neuron):
    def forward(self, messages):
        far = sum((m.input - m.weight) ** 2 for m in messages)
        self.feedforward(0.5 * far * math.log(far + 1e-6) / len(messages))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=ThinPlate, bias=False, init=horn.Uniform(0.0, 1.0))
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
