"""One head of attention over a neuron's messages: query and key say which count, value what of.

Each synapse has three weights. The query is made of all messages, the keys and values one by one:
as much of attention as one neuron that sends one number can be.
Source: Vaswani et al., "Attention Is All You Need", 2017, eq. 1; Bahdanau et al., 2014.
"""

import horn
from horn import math


class Attention(horn.Neuron):
    query, key, value = horn.Weight(), horn.Weight("normal"), horn.Weight(horn.Normal(0.0, 1.0))

    def forward(self, messages):
        q = sum(m.input * m.query for m in messages)
        top = max(q * m.input * m.key for m in messages)
        total = sum(math.exp(q * m.input * m.key - top) for m in messages)
        heard = sum(math.exp(q * m.input * m.key - top) * m.input * m.value for m in messages)
        self.feedforward(heard / total)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Attention)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.01),
        epochs=10,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
