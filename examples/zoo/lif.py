"""A leaky integrate-and-fire neuron; where it fires the slope of a sigmoid stands in for that of a
step. A digit is eight steps, a row of pixels at each.

Source: Lapicque, "Recherches quantitatives sur l'excitation electrique des nerfs traitee comme une
polarisation", 1907; Neftci, Mostafa, Zenke, "Surrogate Gradient Learning in Spiking Neural
Networks", 2019.
"""

import horn
from horn.math import sigmoid, stop_gradient


class LIF(horn.Neuron):
    v = horn.State(0.0, per="sample")

    def forward(self, messages):
        v = 0.8 * self.v + sum(m.input * m.weight for m in messages)
        soft = sigmoid(2.0 * (v - 1.0))
        spike = soft + stop_gradient((1.0 if v > 1.0 else 0.0) - soft)
        self.v = v - stop_gradient(spike)
        self.feedforward(spike)


class Leaky(horn.Neuron):
    """Never fires: what it has gathered at the end is what it says."""

    v = horn.State(0.0, per="sample")

    def forward(self, messages):
        v = 0.9 * self.v + sum(m.input * m.weight for m in messages)
        self.v = v
        self.feedforward(self.activation(v))


def job():
    net = horn.Network(seed=7)
    rows = net.input(8, steps=8)
    net.layer(40, neuron=LIF, inputs=[rows, horn.Delayed()], init="he")
    net.output(10, neuron=Leaky, activation="softmax", loss="cross_entropy")
    data = horn.data.digits()
    x = data.x.reshape(-1, 8, 8)
    return horn.Job(net, (x, data.y), optimizer=horn.Adam(0.01), epochs=6)


if __name__ == "__main__":
    print(horn.train(job(), progress=True).history[-1])
