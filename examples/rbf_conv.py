"""A neuron that no library has a layer for, in a window: how near a patch is to a pattern.

horn submit examples/rbf_conv.py
"""

import horn


class Pattern(horn.Neuron):
    """1 where the patch below is the pattern that its weights are, less the further it is away."""

    sharpness = horn.Parameter(0.2)

    def forward(self, messages):
        distance = sum((m.input - m.weight) ** 2 for m in messages)
        self.feedforward(horn.math.exp(-self.sharpness * distance))


def job():
    net = horn.Network(seed=3)
    net.input((8, 8, 1))
    net.layer(
        connect=horn.Convolution(16, 3), neuron=Pattern, init=horn.Uniform(0.0, 1.0), bias=False
    )
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.005),
        epochs=20,
    )


if __name__ == "__main__":
    run = horn.train(job(), progress=True)
    print(run.test)
