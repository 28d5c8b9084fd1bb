"""Layer normalisation: the sum less the layer's mean, over the layer's deviation, sample by sample.

Source: Ba, Kiros, Hinton, "Layer Normalization", 2016.
"""

import horn
from horn import math


class LayerNormalized(horn.Neuron):
    gain, shift = horn.Parameter(1.0), horn.Parameter(0.0)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        deviation = math.sqrt(self.var(z, over="layer") + 1e-3)
        normal = (z - self.mean(z, over="layer")) / deviation
        self.feedforward(self.activation(self.gain * normal + self.shift))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=LayerNormalized, activation="relu")
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
