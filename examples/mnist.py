"""MNIST with 784-512-10, relu and softmax: 0.98 of the test set right within 10 epochs.

HORN_DATA=folder horn submit examples/mnist.py, where folder/mnist has the four IDX files.
"""

import horn


def job():
    data = horn.data.mnist()
    net = horn.Network(seed=7)
    net.input(784)
    net.layer(512, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data,
        test=horn.data.mnist("test"),
        optimizer=horn.SGD(horn.Cosine(0.1, iterations=10 * len(data) // 100), momentum=0.9),
        batch_size=100,
        epochs=10,
    )


if __name__ == "__main__":
    run = horn.train(job(), progress=True)
    print(run.test)
