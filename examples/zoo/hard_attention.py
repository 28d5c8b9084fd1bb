"""Hard attention: the message with the largest key is heard, the others are not.

Each synapse has a key and a value. The key learns through what the chosen message is worth:
forward the factor is 1, backward it is the sigmoid of the key.

Source: Xu et al., "Show, Attend and Tell: Neural Image Caption Generation with Visual Attention",
2015, section 4.1 (the argmax in place of the sample).
"""

import horn
from horn import math


class Attends(horn.Neuron):
    key, value = horn.Weight(horn.Normal(0.5)), horn.Weight(horn.Normal(0.5))

    def forward(self, messages):
        best = max(messages, key=lambda m: m.input * m.key)
        trust = math.sigmoid(best.input * best.key)
        passed = trust + math.stop_gradient(1.0 - trust)
        self.feedforward(best.input * best.value * passed)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Attends)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.02),
        epochs=10,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
