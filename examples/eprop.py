"""E-prop: recurrent neurons learn by traces of their synapses and an error that all of them hear.

Was the sign at step 15 that of step 0? Nothing flows back through time: a synapse keeps a trace of
what it heard, times its neuron's slope, and hears the error a step late by a weight drawn once.
Those between the neurons stay as they are drawn, too; learned so, not every seed gets it right.
Source: Bellec et al., "A solution to the learning dilemma for recurrent networks of spiking
neurons", 2020, for rates. horn submit examples/eprop.py
"""

import numpy as np

import horn
from horn.math import tanh


class Eprop(horn.Neuron):
    v, slope = horn.State(0.0, per="sample"), horn.State(0.0, per="sample")
    trace = horn.SynapseState(0.0, per="sample")

    def forward(self, messages):
        told = sum(m.input * m.weight for m in messages.error)
        v = 0.95 * self.v + sum(m.input * m.weight for m in messages) - told
        for m in messages.x:
            self.push(told * self.slope * m.trace)  # as they were a step ago, as the error is
            m.trace = 0.95 * m.trace + m.input
        self.v, self.slope = v, 1.0 - tanh(v) ** 2
        self.feedforward(tanh(v))


class Error(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input for m in messages) - self.target if self.training else 0.0)


def signs(n, seed):  # x (n, 20, 3): one of two signs at steps 0 and 15; when to answer
    rng = np.random.default_rng(seed)
    x, y = rng.normal(0.0, 0.05, (n, 20, 3)), np.zeros((n, 20, 1))
    a, b = rng.integers(0, 2, (2, n))
    x[np.arange(n), 0, a], x[np.arange(n), 15, b], x[:, 16:, 2] = 2.0, 2.0, 1.0
    y[:, 16:, 0] = np.where(a == b, 1.0, -1.0)[:, None]
    return x, {"answer": y, "error": y}


def job():
    net, ends = horn.Network(seed=7), {"loss": "squared_error", "each_step": True}
    heard = {"x": net.input(3, steps=20), "h": horn.Delayed(), "error": horn.Delayed("error")}
    net.layer(64, neuron=Eprop, inputs=heard, bias=False)
    said = net.output(1, name="answer", **ends)
    one = {"inputs": said, "connect": horn.OneToOne(), "bias": False, "weight": 0}
    net.output(1, neuron=Error, name="error", **one, **ends)
    rate = horn.Cosine(0.003, iterations=40 * 60)  # 60 epochs
    return horn.Job(net, signs(2000, 1), horn.Adam(rate), batch_size=50, epochs=60)


def report(run):
    x, y = signs(1000, 2)
    right = run.model.predict(x)["answer"][:, -1, 0] * y["answer"][:, -1, 0] > 0
    print(f"{right.mean():.3f} of 1,000 answers are right")
