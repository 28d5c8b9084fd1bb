"""What a user's own file may contain: test_model.py copies it to a temporary folder."""

import random as noise
from pathlib import Path

from helper_of_userland import steep

import horn
from horn import math

SLOPE = 0.25 * 4
TABLE = [0.0, 1.0]
TABLE.append(noise.random())
raise_if_run_again = Path("this-file-is-removed").read_text()


def swish(z):
    return z * math.sigmoid(steep(SLOPE * z))


SQUARE = horn.Activation("square", lambda z: z * z, None, lambda z: 2.0 * z)


class Base(horn.Neuron):
    slope = SLOPE

    def total(self, messages):
        return sum(m.input * m.weight for m in messages)


class Leaky(Base):
    gain = horn.Parameter(1.5)
    trace = horn.State(0.0)

    def forward(self, messages):
        z = self.total(messages)
        self.trace = z
        self.feedforward(self.gain * self.activation(z if z > 0.0 else self.slope * z))


def halved(output, target):
    return 0.25 * (output - target) ** 2


def unit(output):
    return output / output.sum()


def network():
    net = horn.Network(seed=3)
    a = net.input(5, keep=0.5)
    b = net.layer(4, neuron=Leaky, activation=horn.Activation("swish", swish), name="first")
    c = net.layer(3, activation=SQUARE, inputs=b, connect=horn.Sparse(fan_in=2), init=horn.He())
    net.output(2, inputs=[a, c], activation="sigmoid", interlayer=unit, loss=halved, bias=False)
    return net


def nested(k=2.0):
    def scaled(z):
        return k * z

    class Inner(horn.Neuron):
        def forward(self, messages):
            self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    net = horn.Network(seed=1)
    net.input(5)
    net.output(2, neuron=Inner, activation=horn.Activation("scaled", scaled), loss="squared_error")
    return net
