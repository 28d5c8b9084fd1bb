"""Neurons that the interpreter is tested with, and a network of one kind."""

import math
from math import tanh

import horn


class WeightedSum(horn.Neuron):
    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input * m.weight
        self.feedforward(self.activation(total))


class Maximum(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


class Product(horn.Neuron):
    def forward(self, messages):
        product = 1.0
        for m in messages:
            product *= 1.0 + 0.3 * m.input * m.weight
        self.feedforward(product)


class Radial(horn.Neuron):
    def forward(self, messages):
        self.feedforward(math.exp(-sum((m.input - m.weight) ** 2 for m in messages)))


class TanhInside(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(tanh(m.input * m.weight) for m in messages))


class Gain(horn.Neuron):
    gain = horn.Parameter(1.5)
    shift = horn.Parameter(horn.Normal(0.2, 0.1))

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(self.gain * self.activation(total + self.shift))


class GainPerMessage(horn.Neuron):
    """A Parameter inside the sum: it is there once for every message."""

    gain = horn.Parameter(0.8)

    def forward(self, messages):
        self.feedforward(sum(self.gain**2 + tanh(m.input) * m.weight for m in messages))


class Conditional(horn.Neuron):
    slope = horn.Parameter(0.3)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        if total > 0:
            self.feedforward(total)
        else:
            self.feedforward(self.slope * total)


def squash(z):
    return math.log1p(abs(z)) / (1.0 + math.exp(-z))


class Base(horn.Neuron):
    def combine(self, messages):
        return sum(squash(m.input) * m.weight for m in messages)


class Helpers(Base):
    """Helper functions and methods, ``super()``, and mathematics imported on the spot."""

    def combine(self, messages):
        from math import sqrt

        return sqrt(1.0 + super().combine(messages) ** 2)

    def forward(self, messages):
        self.feedforward(self.combine(messages))


class Everything(horn.Neuron):
    power = horn.Parameter(1.7)

    def forward(self, messages):
        s = sum(m.input * m.weight for m in messages)
        a = horn.math.maximum(s, 0.1) + horn.math.minimum(s, 2.0) - horn.math.abs_(s)
        b = horn.math.softplus(s) * horn.math.sigmoid(-s) + horn.math.expm1(0.1 * s)
        c = (2.0 + math.sin(s)) ** self.power + 2.0 ** math.cos(s)
        d = horn.math.where(s > 0.2, horn.math.sqrt(horn.math.where(s > 0.2, s, 1.0)), s * s)
        self.feedforward(0.1 * (a + b + c + d + math.floor(s) + horn.math.sign(s)))


class Noisy(horn.Neuron):
    spread = horn.Parameter(0.4)

    def forward(self, messages):
        keep = self.bernoulli(0.7)
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(keep * (total + self.normal(0.0, self.spread)) + self.uniform(-1, 1))


class Remembering(horn.Neuron):
    trace = horn.State(0.5)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.trace = 0.5 * self.trace + total
        self.feedforward(self.activation(self.trace))


class Reweighted(horn.Neuron):
    """Each synapse has a fixed random factor of its own."""

    def forward(self, messages):
        self.feedforward(sum(m.normal() * m.input * m.weight + m.uniform() for m in messages))


def network(neuron, size=3, **settings):
    net = horn.Network(seed=4)
    net.input(3)
    net.layer(size, neuron=neuron, activation="tanh", **settings)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net
