"""Spiking neurons find the shapes of digits by STDP: no labels, no loss, one local rule.

A pixel spikes the oftener the brighter it is, and a synapse's current is the trace of its spikes.
Who has the highest membrane fires and silences the others. Its synapses move to their traces: what
spiked shortly before grows, all else shrinks. Who fires often tires. horn submit examples/stdp.py
Source: Diehl, Cook, "Unsupervised Learning of Digit Recognition Using STDP", 2015, made smaller.
"""

import numpy as np

import horn


class Trace(horn.Neuron):
    trace = horn.State(0.0, per="sample")

    def forward(self, messages):
        self.trace = 0.7 * self.trace + 0.3 * sum(m.input for m in messages)
        self.feedforward(self.trace)


class Spiking(horn.Neuron):
    v, tired = horn.State(0.0, per="sample"), horn.State(0.0)

    def forward(self, messages):  # with strong synapses it takes more to fire
        v = 0.7 * self.v + sum(m.weight * (m.input - 0.5 * m.weight) for m in messages) - self.tired
        spike = (v > 0.0) * (1.0 if self.rank(v, over="layer") < 1 else 0.0)
        for m in messages:
            self.push(self.learning_rate * spike * (m.input - m.weight))
        self.v = v * (1.0 - self.max(spike, over="layer"))
        self.tired = self.tired + 0.02 * (spike - self.mean(spike, over="layer"))
        self.feedforward(spike)


def spikes(which, seed):  # (n, 12, 64) of 0 and 1; labels, which nobody learns from
    data = horn.data.digits(which)
    drawn = np.random.default_rng(seed).random((len(data), 12, 64)) < data.x[:, None] / data.x.max()
    return drawn.astype(np.float32), data.y


def job():
    net = horn.Network(seed=7)
    net.input(64, steps=12)
    net.layer(connect=horn.OneToOne(), neuron=Trace)
    net.output(36, neuron=Spiking, init=horn.Uniform(0.2, 0.4), bias=False, each_step=True)
    data, own = (spikes("train", 1)[0], None), horn.Direct(0.1)
    return horn.Job(net, data, optimizer=own, target=None, batch_size=20, epochs=4)


def report(run):
    (x, y), (new, wanted) = spikes("train", 1), spikes("test", 2)
    seen, heard = (run.model.predict(each).sum(axis=1) for each in (x, new))
    likes = np.array([seen[y == k].mean(axis=0) for k in range(10)]).argmax(axis=0)
    votes = np.array([heard[:, likes == k].sum(axis=1) for k in range(10)])
    print(f"{(votes.argmax(axis=0) == wanted).mean():.3f} of the digits are told by who fires most")


if __name__ == "__main__":
    report(horn.train(job(), progress=True))
