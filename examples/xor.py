"""XOR, the smallest problem that needs a hidden layer.

horn submit examples/xor.py, or python examples/xor.py
"""

import numpy as np

import horn

X = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
Y = np.array([[0], [1], [1], [0]], np.float32)


def job():
    net = horn.Network(seed=1)
    net.input(2)
    net.layer(4, activation="tanh")
    net.output(1, activation="sigmoid", loss="binary_cross_entropy")
    # The four cases, 100 times each: an epoch is then 100 updates.
    data = np.tile(X, (100, 1)), np.tile(Y, (100, 1))
    return horn.Job(net, data, optimizer=horn.SGD(0.5, momentum=0.9), batch_size=4, epochs=5)


def report(run):
    for (a, b), (y,) in zip(X, run.model.predict(X), strict=True):
        print(f"{a:.0f} xor {b:.0f} = {y:.3f}")


if __name__ == "__main__":
    report(horn.train(job(), progress=True))
