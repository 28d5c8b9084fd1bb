"""Small colour photographs: three convolutions, pooling, normalisation over neighbouring channels.

HORN_DATA=folder horn submit examples/cifar10.py, where the folder has a cifar10*.npz.

Source: A. Krizhevsky, cuda-convnet, "layers-18pct.cfg", 2011, which SINGA's example follows (2015).
Their alpha, 5e-5 of bytes, is 0.2 of values whose standard deviation is 1.
"""

import horn


class MaxPool(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input for m in messages))


class MeanPool(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input for m in messages) / len(messages))


class Normalised(horn.Neuron):
    """What it hears, less of it the more the neighbouring channels send at the same position."""

    def forward(self, messages):
        energy = sum(m.input * m.input for m in messages.near)
        own = sum(m.input for m in messages.own)
        self.feedforward(own * (1.0 + 0.2 / 3 * energy) ** -0.75)


def job(seed=1, epochs=10):
    data = horn.data.cifar10()
    net = horn.Network(seed=seed)
    net.input((32, 32, 3))
    near = {"own": horn.OneToOne(), "near": horn.Window(1, channels=3)}
    for k, (maps, neuron) in enumerate([(32, MaxPool), (32, MeanPool), (64, MeanPool)], 1):
        conv = horn.Convolution(maps, 5, padding="same")
        net.layer(connect=conv, activation="relu", name=f"conv{k}")
        pool = net.layer(connect=horn.Window(3, stride=2, padding="same"), neuron=neuron)
        if k < 3:
            net.layer(connect=near, neuron=Normalised, inputs={"own": pool, "near": pool})
    net.output(10, activation="softmax", loss="cross_entropy")
    rate = horn.Cosine(0.05, iterations=epochs * len(data) // 100)
    sgd = horn.SGD(rate, momentum=0.9, weight_decay=0.001)
    test = horn.data.cifar10("test")
    more = {"batch_size": 100, "epochs": epochs, "normalize": "channel"}
    return horn.Job(net, data, test=test, optimizer=sgd, **more)


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
