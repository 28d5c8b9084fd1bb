"""Numbers from elsewhere: the Akka write-up's network and the Java test suite's neuron."""

import numpy as np

import horn
from horn.data import Dataset
from tests.api.running import engine, probe, step

W1 = np.array([[0.341232, 0.129952, -0.923123], [-0.115223, 0.570345, -0.328932]])
W2 = np.array([[-0.993423, 0.164732, 0.752621]])  # the bias is first in both


class Written(horn.Neuron):
    """The sigmoid neuron with the paper's backward, written out."""

    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input * m.weight
        self.feedforward(self.activation(total))

    def backward(self, messages):
        gradient = 0.0
        for m in messages:
            gradient += m.delta * m.weight
            self.push(m.delta * self.output)
        self.backpropagate(gradient * self.activation.derivative(self.output))


class Direct(Written):
    """The Java test's neuron: it pushes the change of the weight itself."""

    def backward(self, messages):
        gradient = 0.0
        for m in messages:
            gradient += m.delta * m.weight
            self.push(self.learning_rate * self.output * m.delta)
        self.backpropagate(self.output * (1 - self.output) * gradient)


def akka(neuron):
    net = horn.Network()
    net.input(2)
    net.layer(2, neuron=neuron, activation="sigmoid")
    net.output(1, neuron=neuron, activation="sigmoid", loss="squared_error")
    return net


def test_akka_network_learns_what_the_write_up_says(backend):
    for neuron in (horn.Standard, Written):
        data = Dataset(np.zeros((1, 2)), np.array([[0.0]]))
        made = engine(akka(neuron), data, horn.SGD(0.1), backend=backend)
        made.load({
            "layer1.weight": W1[:, 1:], "layer1.bias": W1[:, 0],
            "layer2.weight": W2[:, 1:], "layer2.bias": W2[:, 0],
        })  # fmt: skip

        y = probe(made, 1)["layer2.output"]
        step(made, 1)
        new = made.parameters()

        np.testing.assert_allclose(y, [[0.3676098854895219]], rtol=0, atol=1e-12)
        got = [new["layer2.bias"][0], *new["layer2.weight"][0]]
        expected = [-1.001968932055437, 0.15973699022915824, 0.7485939339604513]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)
        # W1 by hand: x is 0, so only the biases move, by eta * delta.
        h = 1 / (1 + np.exp(-W1[:, 0]))
        delta = 0.3676098854895219**2 * (1 - 0.3676098854895219) * W2[0, 1:] * h * (1 - h)
        np.testing.assert_allclose(new["layer1.bias"], W1[:, 0] - 0.1 * delta, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(new["layer1.weight"], W1[:, 1:])


def pull(output, target):
    """A loss whose slope is the delta that the Java test hands to its neuron."""
    return -0.1274 * output


def test_java_neuron_feeds_forward_propagates_and_updates_as_its_suite_says(backend):
    # given a neuron of weights 0.5 and 0.4 and threshold 0.8, inputs 1 and 1
    net = horn.Network()
    net.input(2)
    net.layer(1, neuron=Direct, activation="sigmoid")
    net.output(1, loss=pull, bias=False)
    data = Dataset(np.ones((1, 2)), np.array([[0.0]]))
    made = engine(net, data, horn.Direct(0.1), backend=backend)
    made.load({
        "layer1.weight": np.array([[0.5, 0.4]]), "layer1.bias": np.array([-0.8]),
        "layer2.weight": np.array([[-1.2]]),
    })  # fmt: skip

    found = probe(made, 1)
    step(made, 1)

    np.testing.assert_allclose(found["layer1.output"], [[0.5249791874789399]], atol=1e-12)
    y = 0.5249791874789399
    np.testing.assert_allclose(
        found["layer1.delta"], [[y * (1 - y) * -0.1274 * -1.2]], rtol=0, atol=1e-12
    )
    update = made.parameters()["layer2.weight"][0, 0] + 1.2
    np.testing.assert_allclose(update, -0.006688234848481696, rtol=0, atol=1e-12)
