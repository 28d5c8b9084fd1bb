"""What comes tomorrow? Daily numbers with a week in them, in series of different lengths.

The series are made up: seven days that are each series' own, a slow wave, and noise. To say what
was a week ago has the noise of both days.
"""

import numpy as np

import horn
from horn.math import sigmoid, tanh

LONGEST, WEEK = 60, 7


class MGU(horn.Neuron):
    f, n = horn.Weight(), horn.Weight()  # how much of what is new replaces what is known
    h = horn.State(0.0, per="sample")

    def forward(self, messages):
        f = sigmoid(sum(m.input * m.f for m in messages))
        h = (1.0 - f) * self.h + f * tanh(sum(m.input * m.n for m in messages))
        self.h = h
        self.feedforward(h)


def series(n, seed):
    """What was (a list of (days, 1)), 20 to 60 days long, and the next day's number at each."""
    rng, today, tomorrow = np.random.default_rng(seed), [], []
    for days in rng.integers(20, LONGEST + 1, n) + 1:
        t = np.arange(days)
        y = 0.6 * rng.standard_normal(WEEK)[t % WEEK] + 0.3 * rng.standard_normal(days)
        y += 0.5 * np.sin(2 * np.pi * t / rng.uniform(40, 80) + rng.uniform(0, 6))
        today.append(y[:-1, None])
        tomorrow.append(y[1:, None])
    return today, tomorrow


def job():
    net = horn.Network(seed=7)
    numbers = net.input(1, steps=LONGEST)
    heard = {"x": numbers, "week": horn.Delayed(numbers, steps=WEEK - 1), "h": horn.Delayed()}
    net.layer(32, neuron=MGU, inputs=heard, name="memory")
    net.output(1, loss="squared_error", each_step=True)
    return horn.Job(net, series(2000, 1), test=series(300, 2), optimizer=horn.Adam(0.01), epochs=15)


def report(run):
    errors = []
    given, asked = series(300, 2)
    for x, y, said in zip(given, asked, run.model.predict(given), strict=True):
        then, known = y[WEEK - 1 :], x[: len(x) - WEEK + 1]  # days a week later, that day
        errors.append(np.hstack([said[WEEK - 1 :] - then, known - then]))
    ours, naive = np.sqrt((np.concatenate(errors) ** 2).mean(axis=0))
    print(f"error {ours:.3f}, of last week's number {naive:.3f}")


if __name__ == "__main__":
    report(horn.train(job(), progress=True))
