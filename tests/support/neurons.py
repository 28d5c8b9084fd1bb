"""Neurons for several tests of windows, links and ties."""

from __future__ import annotations

import horn


class MaxPool(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input for m in messages))


class Mean(horn.Neuron):
    """The mean of its messages: positions outside send none."""

    def forward(self, messages):
        self.feedforward(sum(m.input for m in messages) / len(messages))


class RBF(horn.Neuron):
    gain = horn.Parameter(0.7)

    def forward(self, messages):
        distance = sum((m.input - m.weight) ** 2 for m in messages)
        self.feedforward(self.gain * horn.math.exp(-distance))


class Product(horn.Neuron):
    def forward(self, messages):
        p = 1.0
        for m in messages:
            p *= 1.0 + 0.1 * m.input * m.weight
        self.feedforward(p)


class Gated(horn.Neuron):
    gate = horn.Weight(bias=1.0)
    value = horn.Weight()

    def forward(self, messages):
        open_ = sum(m.input * m.gate for m in messages)
        self.feedforward(horn.math.tanh(open_) * sum(m.input * m.value for m in messages))


class Written(horn.Neuron):
    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            self.push(m.delta * self.output)
        self.backpropagate(error * self.activation.derivative(self.output))


class Silenced(horn.Neuron):
    """A neuron that sits whole batches out."""

    def forward(self, messages):
        here = self.bernoulli(0.6, per="batch")
        z = horn.math.tanh(sum(m.input * m.weight for m in messages))
        self.feedforward(z * here if self.training else 0.6 * z)


class Counting(horn.Neuron):
    seen = horn.State(0.0)

    def forward(self, messages):
        self.seen = self.seen + 1.0
        self.feedforward(horn.math.tanh(sum(m.input * m.weight for m in messages)))


class Half(horn.Neuron):
    """Sits out every second batch or so."""

    gain = horn.Parameter(1.0)

    def forward(self, messages):
        if self.training and self.bernoulli(0.5, per="batch") == 0:
            self.feedforward(0.0)
        else:
            total = sum(m.input * m.weight for m in messages)
            self.feedforward(self.gain * self.activation(total))


class WrittenHalf(Half):
    """Its delta and its pushes would not be 0 if its backward ran while it sits out."""

    def backward(self, messages):
        gradient = 0.0
        for m in messages:
            gradient += m.gradient
            self.push(m.delta * self.output + 0.1 * m.weight)
        self.push(gradient * self.output / self.gain, to="gain")
        slope = self.activation.derivative(self.output / self.gain)
        self.backpropagate(0.1 + self.gain * gradient * slope)
