"""Node perturbation: a neuron tries noise, and keeps what made the loss less than it was of late.

Source: Fiete, Seung, "Gradient Learning in Spiking Neural Networks by Dynamic Perturbation of
Conductances", 2006.
"""

import horn


class Trying(horn.Neuron):
    size = 0.3
    noise, usual = horn.State(0.0), horn.State(2.3)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.noise = self.normal(0.0, self.size) if self.training else 0.0
        self.feedforward(self.activation(z + self.noise))

    def backward(self, messages):
        better = self.loss - self.usual
        self.usual = 0.9 * self.usual + 0.1 * self.loss
        for m in messages:
            self.push(m.delta * self.output)
        self.backpropagate(better * self.noise / self.size**2)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(10, neuron=Trying, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.02),
        batch_size=20,
        epochs=10,
        check=False,  # it is the gradient in the mean
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
