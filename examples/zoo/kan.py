"""A piece of a KAN: on every synapse a function, a spline of five hats, and the neuron adds them.

The hats stand on a grid over 0 to 1; each synapse learns its height at every knot.
Source: Liu et al., "KAN: Kolmogorov-Arnold Networks", 2024, section 2.2 (splines of order 1).
"""

import horn


class Spline(horn.Neuron):
    c0, c1, c2 = horn.Weight("normal"), horn.Weight("normal"), horn.Weight("normal")
    c3, c4 = horn.Weight("normal"), horn.Weight("normal")

    def forward(self, messages):
        self.feedforward(sum(self.curve(m) for m in messages))

    def curve(self, m):
        heights = (m.c0, m.c1, m.c2, m.c3, m.c4)
        total = 0.0
        for k in range(5):
            total += heights[k] * max(0.0, 1.0 - abs(4.0 * m.input - k))
        return total


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.output(10, neuron=Spline, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.02),
        epochs=8,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
