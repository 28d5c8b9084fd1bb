"""A rectifier squared, found by a search over programs.

Source: So et al., "Primer: Searching for Efficient Transformers for Language Modeling", 2021.
"""

import horn


class SquaredRelu(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(max(total, 0.0) ** 2)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=SquaredRelu)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.03, momentum=0.9),
        epochs=6,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
