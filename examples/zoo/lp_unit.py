"""An L_p unit: a norm of the messages whose order is learned.

Source: Gulcehre, Cho, Pascanu, Bengio, "Learned-Norm Pooling for Deep Feedforward Networks", 2014.
"""

import horn
from horn import math


class Lp(horn.Neuron):
    order = horn.Parameter(1.0)

    def forward(self, messages):
        p = 1.0 + math.log1p(math.exp(self.order))
        total = sum((abs(m.input * m.weight) + 1e-3) ** p for m in messages)
        self.feedforward(total ** (1.0 / p))


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(20, neuron=Lp, bias=False)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.Adam(0.03),
        epochs=6,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
