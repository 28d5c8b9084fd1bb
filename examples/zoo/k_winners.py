"""k winners take all: the largest of a layer send, the others are silent.

Source: Ahmad, Scheinkman, "How Can We Be So Dense? The Benefits of Using Highly Sparse
Representations", 2019.
"""

import horn


class Winner(horn.Neuron):
    k = 12

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(z if self.rank(z, over="layer") < self.k else 0.0)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Winner)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.1, momentum=0.9),
        epochs=8,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
