"""A morphological perceptron: the largest of sums instead of the sum of products.

Source: Ritter, Sussner, "An Introduction to Morphological Neural Networks", 1996.
"""

import horn


class Dilation(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input + m.weight for m in messages))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(100, neuron=Dilation, bias=False, init=horn.Uniform(-1.0, 0.0))
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.02),
        epochs=8,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
