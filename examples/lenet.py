"""LeNet on MNIST: two convolutions with pooling, 500 neurons, 0.99 of the test set right.

HORN_DATA=folder horn submit examples/lenet.py, where folder/mnist has the four IDX files.

Source: LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to Document Recognition",
1998; the sizes are those of Caffe's example.
"""

import horn


class MaxPool(horn.Neuron):
    """The largest message; it reads no weight, so its synapses have none."""

    def forward(self, messages):
        self.feedforward(max(m.input for m in messages))


def job():
    data = horn.data.mnist()
    net = horn.Network(seed=7)
    net.input((28, 28, 1))
    net.layer(connect=horn.Convolution(20, 5), activation="relu", name="maps1")
    net.layer(connect=horn.Window(2, stride=2), neuron=MaxPool)
    net.layer(connect=horn.Convolution(50, 5), activation="relu", name="maps2")
    net.layer(connect=horn.Window(2, stride=2), neuron=MaxPool)
    net.layer(500, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    epochs = 10
    rate = horn.Cosine(0.05, iterations=epochs * len(data) // 100)
    return horn.Job(
        net,
        data,
        test=horn.data.mnist("test"),
        optimizer=horn.SGD(rate, momentum=0.9),
        batch_size=100,
        epochs=epochs,
    )


if __name__ == "__main__":
    run = horn.train(job(), progress=True)
    print(run.test)
