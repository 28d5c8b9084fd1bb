"""A sigmoid whose saturated side is noisy, so that gradients find a way out.

Source: Gulcehre, Moczulski, Denil, Bengio, "Noisy Activation Functions", 2016.
"""

import horn


class Noisy(horn.Neuron):
    scale = 0.5

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        hard = max(min(0.25 * total + 0.5, 1.0), 0.0)
        beyond = 0.25 * total + 0.5 - hard
        noise = self.normal() if self.training else 0.0
        self.feedforward(hard + self.scale * beyond * noise)


def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Noisy)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.1, momentum=0.9),
        epochs=6,
    )


if __name__ == "__main__":
    print(horn.train(job(), progress=True).test)
