"""A hybrid of rank and sum: the median of what the synapses shift, and a weighted sum; how much of
either is learned. Single inputs that are far off do not move the median.

Source: Pessoa, Maragos, "Neural Networks with Hybrid Morphological/Rank/Linear Nodes: A Unifying
Framework with Applications to Handwritten Character Recognition", 2000 (MRL nodes, rank n / 2).
"""

import horn
from horn import math


class RankLinear(horn.Neuron):
    shift, weight = horn.Weight(horn.Normal(0.3)), horn.Weight()
    part = horn.Parameter(0.5)

    def forward(self, messages):
        middle = math.median(m.input + m.shift for m in messages)
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(self.part * middle + (1.0 - self.part) * math.tanh(total))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(24, neuron=RankLinear)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.01),
        epochs=4,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
