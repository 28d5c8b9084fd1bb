"""k-max pooling: of all that the synapses say the neuron adds the k largest.

Source: Kalchbrenner, Grefenstette, Blunsom, "A Convolutional Neural Network for Modelling
Sentences", 2014, section 3.3 (k-max pooling), here of the messages of one neuron.
"""

import horn
from horn import math


class LargestFew(horn.Neuron):
    k = 5

    def forward(self, messages):
        self.feedforward(math.top_sum(self.k, (m.input * m.weight for m in messages)))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(24, neuron=LargestFew, init=horn.Normal(0.3))
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
