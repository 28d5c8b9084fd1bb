"""The XOR experiment of Akka's DistBelief: 25 replicas of 2-2-1, 50,000 examples, rate 0.5.

python examples/akka_xor.py, or horn submit examples/akka_xor.py --groups 25 --strategy downpour
--set strategy.server_optimizer=job

Each replica reads its own 2,000 of 50,000 random examples, one by one, and a server holds the
parameters. 25 processes take some seconds to start.
Source: "Implementing a Distributed Deep Learning Network over Spark's rival: Akka" 2015, section 5.
"""

import numpy as np

import horn

X = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
Y = np.array([[0], [1], [1], [0]], np.float32)


def job(examples: int = 50_000, seed: int = 1):
    net = horn.Network(seed=seed)
    net.input(2)
    net.layer(2, activation="sigmoid", init=horn.Uniform(-1.0, 1.0))
    net.output(1, activation="sigmoid", loss="squared_error", init=horn.Uniform(-1.0, 1.0))
    cases = np.random.default_rng(seed).integers(0, 4, examples)
    return horn.Job(net, (X[cases], Y[cases]), optimizer=horn.SGD(0.5), batch_size=1, epochs=1)


def report(run):
    for (a, b), (y,) in zip(X, run.model.predict(X), strict=True):
        print(f"{a:.0f} xor {b:.0f} = {y:.4f}")


if __name__ == "__main__":
    strategy = horn.Downpour(server_optimizer="job")
    report(horn.train(job(), groups=25, strategy=strategy, progress=True))
