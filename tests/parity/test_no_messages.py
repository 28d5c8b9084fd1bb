"""A neuron that nobody sends to: what it makes of no messages is the same, whoever computes."""

import numpy as np
import pytest

import horn
from horn.backends import Setup, make
from tests.parity.test_compiled_equals_interpreted import COMPILED, compare, samples


class Largest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


class Smallest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(min(m.input * m.weight for m in messages))


class Mean(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages) / len(messages))


class Mean2(horn.Neuron):
    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input
        self.feedforward(total / len(messages))


class Default(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max((m.input * m.weight for m in messages), default=2.0))


class Counts(horn.Neuron):
    def forward(self, messages):
        self.feedforward(1.0 if len(messages) == 0 else float(len(messages)))


class OwnLargest(horn.Neuron):
    gain = horn.Parameter(1.5)

    def forward(self, messages):
        best = -3.0
        for _ in messages:
            if self.gain > best:
                best = self.gain
        self.feedforward(best)


class OwnSmallest(horn.Neuron):
    gain = horn.Parameter(1.5)

    def forward(self, messages):
        self.feedforward(min(self.gain for m in messages))


class OwnAny(horn.Neuron):
    gain = horn.Parameter(1.5)

    def forward(self, messages):
        found = False
        for _ in messages:
            if self.gain > 0.0:
                found = True
        self.feedforward(1.0 if found else 0.0)


class OwnAll(horn.Neuron):
    gain = horn.Parameter(-1.5)

    def forward(self, messages):
        self.feedforward(1.0 if all(self.gain > 0.0 for m in messages) else 0.0)


class OwnSome(horn.Neuron):
    gain = horn.Parameter(1.5)

    def forward(self, messages):
        self.feedforward(max((m.input for m in messages if self.gain > 0.0), default=2.0))


class OwnSum(horn.Neuron):
    gain = horn.Parameter(-1.0)

    def forward(self, messages):
        finite = sum(m.input * m.weight for m in messages)
        each = sum(1.0 / (self.gain + 1.0) for m in messages)  # infinite
        self.feedforward(finite if len(messages) else each)


class OwnProduct(horn.Neuron):
    gain = horn.Parameter(-2.0)

    def forward(self, messages):
        self.feedforward(horn.math.prod(self.gain for m in messages))


class OwnMedian(horn.Neuron):
    gain = horn.Parameter(1.5)

    def forward(self, messages):
        self.feedforward(horn.math.median(self.gain for m in messages))


class OwnSecond(horn.Neuron):
    gain = horn.Parameter(1.5)

    def forward(self, messages):
        self.feedforward(horn.math.largest(2, (self.gain for m in messages)))


class OwnKey(horn.Neuron):
    gain = horn.Parameter(1.5)

    def forward(self, messages):
        best = max(messages, key=lambda m: self.gain)
        self.feedforward(best.index + best.input)


class Share(horn.Neuron):
    """A factor that is infinite where nobody sends."""

    def forward(self, messages):
        share = 1.0 / len(messages)
        self.feedforward(sum(m.input * m.weight * share for m in messages))


class TopShare(horn.Neuron):
    def forward(self, messages):
        top = max(m.input for m in messages)
        self.feedforward(sum(-m.input * (m.weight * top) for m in messages))


@pytest.mark.parametrize(
    "neuron, none",
    [(Largest, -np.inf), (Smallest, np.inf), (Mean, np.nan), (Mean2, np.nan), (Default, 2.0),
     (Counts, 1.0), (OwnLargest, -3.0), (OwnSmallest, np.inf), (OwnAny, 0.0), (OwnAll, 1.0),
     (OwnSome, 2.0), (OwnSum, 0.0), (OwnProduct, 1.0), (OwnMedian, np.nan),
     (OwnSecond, -np.inf), (OwnKey, 0.0), (Share, 0.0), (TopShare, 0.0)],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["python", *COMPILED])
def test_what_comes_of_no_messages(backend, neuron, none):
    net = horn.Network(seed=1)
    net.input(3)
    some = horn.Sparse(sources=lambda o: [0, 1] if o else [])
    net.layer(2, neuron=neuron, connect=some, bias=False)
    net.output(2, activation="softmax", loss="cross_entropy")
    data = samples(net)
    engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 3, "float64", 1))
    engine.bind(data)
    sent = engine.probe(np.arange(3), iteration=0, first_sample=0)["layer1.output"]
    np.testing.assert_array_equal(sent[:, 0], [none] * 3)
    assert np.isfinite(sent[:, 1]).all()


@pytest.mark.parametrize("neuron", [Share, TopShare])
@pytest.mark.parametrize(
    "connect",
    [
        horn.Sparse(sources=lambda o: [0, 1] if o % 4 else []),
        horn.Local(2, 2, padding=2),
        horn.Convolution(2, 2, padding=2),
    ],
    ids=["sparse", "local", "convolution"],
)
def test_an_infinite_factor_of_a_sum_of_no_messages_leaves_no_nan(neuron, connect):
    net = horn.Network(seed=1)
    net.input((4, 1))
    size = () if isinstance(connect, (horn.Local, horn.Convolution)) else (8,)
    net.layer(*size, neuron=neuron, connect=connect, bias=False)
    net.output(2, loss="squared_error")
    compare(net, horn.SGD(0.1), 3)
