"""A restricted Boltzmann machine: what it hears with the data less what it hears with what it makes
of them (contrastive divergence, one step). The way down, and the second way up, are layers with the
same weights.

Source: Hinton, "Training Products of Experts by Minimizing Contrastive Divergence", 2002.
"""

import horn
from horn import math


class Up(horn.Neuron):
    def forward(self, messages):
        p = math.sigmoid(sum(m.input * m.weight for m in messages))
        for m in messages:
            self.push(-p * m.input)
        self.feedforward(self.bernoulli(p) if self.training else p)


class Down(horn.Neuron):
    def forward(self, messages):
        self.feedforward(math.sigmoid(sum(m.input * m.weight for m in messages)))


class UpAgain(horn.Neuron):
    def forward(self, messages):
        p = math.sigmoid(sum(m.input * m.weight for m in messages))
        for m in messages:
            self.push(p * m.input)
        self.feedforward(p)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    up = net.layer(40, neuron=Up, bias=False, init=horn.Normal(0.0, 0.1), name="up")
    net.layer(neuron=Down, connect=horn.Tied(up), bias=False, name="down")
    net.layer(neuron=UpAgain, connect=horn.Tied(up), bias=False, name="again")
    return horn.Job(net, horn.data.digits(), optimizer=horn.SGD(0.1, momentum=0.5), epochs=10,
                    target=None)  # fmt: skip


def learned(run):
    """What it makes of digits is nearer to them than their mean is."""
    x = horn.data.digits("test").x
    return ((run.model.cut("down").predict(x) - x) ** 2).sum() < 0.4 * x.var(axis=0).sum() * len(x)


if __name__ == "__main__":
    print(learned(horn.train(job(), progress=True)))
