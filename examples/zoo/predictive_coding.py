"""Predictive coding: causes predict what is heard, and what they cannot predict corrects them, for
twelve steps of each sample, while weights learn from what is left. Those of the way up are not
those of the way down: both learn from the same two neurons, and become the same.

Source: Rao, Ballard, "Predictive coding in the visual cortex", 1999, eq. 7 and 9.
"""

import numpy as np

import horn

STEPS = 12


class Error(horn.Neuron):
    def forward(self, messages):
        heard = sum(m.input for m in messages.heard)
        left = heard - sum(m.input * m.weight for m in messages.causes)
        for m in messages.causes:
            self.push(-left * m.input + 0.001 * m.weight)
        self.feedforward(left)


class Cause(horn.Neuron):
    r = horn.State(0.0, per="sample")

    def forward(self, messages):
        r = 0.95 * self.r + 0.2 * sum(m.input * m.weight for m in messages)
        self.r = r
        for m in messages:
            self.push(-r * m.input + 0.001 * m.weight)
        self.feedforward(r)


def still(n):
    """Each digit for all steps."""
    return np.repeat(horn.data.digits().x[:n, None], STEPS, axis=1)


def job():
    net = horn.Network(seed=7)
    x = net.input(64, steps=STEPS)
    shape = {"bias": False, "init": horn.Normal(0.0, 0.1)}
    causes = net.layer(16, neuron=Cause, inputs=horn.Delayed("errors"), name="causes", **shape)
    heard = {"heard": x, "causes": causes}
    shape["connect"] = {"heard": horn.OneToOne()}
    net.layer(64, neuron=Error, inputs=heard, name="errors", **shape)
    return horn.Job(net, still(800), optimizer=horn.SGD(0.003), epochs=10, target=None)


def learned(run):
    """At the end of a sample less is left than the mean digit leaves."""
    x = still(200)
    left = run.model.record(x, "errors")["errors"][:, -1]
    return (left**2).sum() < 0.5 * x[:, 0].var(axis=0).sum() * len(x)


if __name__ == "__main__":
    print(learned(horn.train(job(), progress=True)))
