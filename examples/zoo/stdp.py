"""Spike-timing-dependent plasticity: who spikes with the neuron grows, who spikes alone shrinks.

A sample is a millisecond, so batches have one. A synapse keeps a trace of the spikes that came, the
neuron one of those that it sent. Half of the inputs spike together: those win. (Samples are
shuffled, so that here time is what is kept between any two of them.)
Source: Song, Miller, Abbott, "Competitive Hebbian Learning through Spike-Timing-Dependent Synaptic
Plasticity", 2000 (pair rule with exponential traces).
"""

import numpy as np

import horn

INPUTS, TOGETHER = 40, 20


class Spiking(horn.Neuron):
    came = horn.SynapseState(0.0)
    membrane, sent = horn.State(0.0), horn.State(0.0)

    def forward(self, messages):
        v = 0.9 * self.membrane + sum(m.input * m.weight for m in messages)
        spike = 1.0 if v > 1.0 else 0.0
        for m in messages:
            m.came = 0.9 * m.came + m.input
            soft = m.weight * (0.3 - m.weight)  # the nearer to a bound, the slower
            self.push(soft * (m.came * spike - 1.5 * self.sent * m.input))
        self.sent = 0.9 * self.sent + spike
        self.membrane = v * (1.0 - spike)
        self.feedforward(spike)


def spikes(n, seed):
    """Of n milliseconds: (n, INPUTS) of 0 and 1, each 2 % of the time, half of them in common."""
    rng = np.random.default_rng(seed)
    found = rng.random((n, INPUTS)) < 0.02
    bursts = rng.random(n) < 0.02
    found[:, :TOGETHER] = bursts[:, None] & (rng.random((n, TOGETHER)) < 0.9)
    return found.astype(np.float32), None


def job():
    net = horn.Network(seed=7)
    net.input(INPUTS)
    net.layer(4, neuron=Spiking, init=0.15, bias=False)
    return horn.Job(net, spikes(4000, 1), optimizer=horn.Direct(), batch_size=1, epochs=2)


def learned(run):
    w = run.model.parameters["layer1.weight"]
    return w[:, :TOGETHER].mean() > 1.5 * w[:, TOGETHER:].mean()


if __name__ == "__main__":
    run = horn.train(job(), progress=True)
    w = run.model.parameters["layer1.weight"]
    print(f"together {w[:, :TOGETHER].mean():.3f}, alone {w[:, TOGETHER:].mean():.3f}")
