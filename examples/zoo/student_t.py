"""A Student t kernel: one over one and the squared distance from a learned centre.

Source: van der Maaten, Hinton, "Visualizing Data Using t-SNE", 2008.
"""

import horn


class StudentT(horn.Neuron):
    def forward(self, messages):
        far = sum((m.input - m.weight) ** 2 for m in messages)
        self.feedforward(1.0 / (1.0 + far))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=StudentT, bias=False, init=horn.Uniform(0.0, 1.0))
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.03),
        epochs=8,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
