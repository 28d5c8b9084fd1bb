"""Rprop on handwritten digits: a learning rule that remembers three numbers for each synapse.

Only the sign of a gradient counts; a step grows while the sign stays and shrinks when it changes.
The sign is the whole batch's: a synapse keeps the gradient, of which the batch leaves the mean, and
takes its step in the next one. Synapses from the pixels learn by plain gradients.

Source: Igel, Hüsken, "Improving the Rprop Learning Algorithm", 2000: iRprop-.
"""

import horn
from horn.math import sign


class Rprop(horn.Neuron):
    """``m`` in backward is a synapse to a neuron above."""

    now, before = horn.SynapseState(0.0), horn.SynapseState(0.0)
    size = horn.SynapseState(0.01)

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            gradient, agreed = m.now, m.now * m.before
            if agreed > 0.0:
                m.size = min(1.2 * m.size, 0.02)
            elif agreed < 0.0:
                m.size = max(0.5 * m.size, 1e-6)
                gradient = 0.0
            m.before = gradient
            m.now = m.delta * self.output
            self.push(-sign(gradient) * m.size)
        self.backpropagate(error * self.activation.derivative(self.output))


def job():
    data = horn.data.digits()
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, neuron=Rprop, activation="tanh")
    net.layer(40, neuron=Rprop, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data,
        test=horn.data.digits("test"),
        optimizer=horn.Direct(),  # what is pushed is the update
        check=False,  # and no gradient
        batch_size=len(data),
        epochs=150,
    )


if __name__ == "__main__":
    run = horn.train(job(), progress=True)
    print(run.test)
