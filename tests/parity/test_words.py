"""The words of the language mean the same compiled, interpreted and in Python."""

import math

import numpy as np
import pytest

import horn
from horn import math as hm
from horn.autodiff.tape import Traced
from horn.backends import Setup, make
from horn.errors import CompileError
from horn.interpreter import layerwise
from tests.parity.test_compiled_equals_interpreted import compare, samples
from tests.support.combinations import share


def second(messages):
    best = 0.0
    for m in messages:
        if m.index == 1:
            best += m.input * m.weight
    return best


class Words(horn.Neuron):
    taps = (0.5, -0.25, 0.125)
    pairs = ((1.0, 0.3), (2.0, -0.4))
    steps = 3
    gain = horn.Parameter(0.7)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        a = hm.erf(z) + math.erfc(0.3 * z) + math.atan(z) + hm.atan2(z, 0.5 + z * z)
        a += z // 0.3 + (z * 3) % 0.7 + (-z) % -0.4 + 7 // 2 * z + z % (0.5 + self.gain)
        a //= 0.4 + self.gain
        bounded = 0.9 * hm.tanh(z)
        b = math.ceil(z) + hm.tan(0.3 * z) + math.asin(bounded) + math.acos(bounded)
        c = 1.0 if math.isfinite(z) and not math.isnan(z) and not hm.isinf(z) else 0.0
        d = math.prod(1.0 + 0.1 * m.input * m.weight for m in messages)
        d *= hm.prod((m.input + 2.0 for m in messages), start=0.5)
        e = sum(self.taps) * max(self.taps) + len(self.taps)
        for k in range(self.steps):
            e += self.taps[k] * z**k
        for t in self.taps:
            e += hm.tanh(t * z)
        for k, (p, q) in enumerate(self.pairs):
            e += p * q * z * k
        f = 0.0
        for m in messages:
            for k in range(3):
                f += m.input * hm.tanh(k * m.weight)
            f += (m.index % 3) * 0.1 * m.input
        g = sum(m.input * m.weight * k for m in messages for k in range(2))
        g += sum(k * z for k in (1, 2)) + max(hm.sin(k * z) for k in range(1, 4))
        h = max(m.index * m.input for m in messages) + second(messages)
        h += sum(hm.stop_gradient(m.input) * m.weight for m in messages)
        soft = hm.sigmoid(z)
        s = soft + hm.stop_gradient((1.0 if z > 0 else 0.0) - soft)
        self.feedforward(hm.tanh(0.1 * (a + b + c + d + e + f + g + h + s + self.early(z))))

    def early(self, z):
        for k in range(4):
            if z > 1.0 - 0.5 * k:
                return z * k
        return -z


SOME = [None, horn.Sparse(fan_in=2), horn.Sparse(sources=lambda o: [0, 4][: 1 + o % 2])]


@pytest.mark.parametrize("connect, bias", share(2, SOME, [True, False]))
def test_words_are_the_interpreters(connect, bias):
    net = horn.Network(seed=1)
    x = net.input(5)
    a = net.layer(6, activation="tanh")
    net.layer(6, neuron=Words, inputs=[x, a], connect=connect, bias=bias)
    net.layer(3, neuron=Words, bias=bias)
    net.output(3, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1), 4)


class Places(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(10.0**m.index * m.input for m in messages))


@pytest.mark.parametrize("backend", ["python", "reference", "kernels"])
def test_the_index_of_a_message_is_its_place_among_the_neurons_own(backend):
    net = horn.Network(seed=1)
    x = net.input(3)
    some = horn.Sparse(sources=lambda o: [1, 2] if o else [2])
    net.output(2, neuron=Places, inputs=[x], connect=some, loss="squared_error")
    engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 1, "float64", 1))
    found = engine.outputs(np.array([[1.0, 2.0, 3.0]]))
    # neuron 0: input 2 and the bias; neuron 1: inputs 1 and 2 and the bias
    np.testing.assert_allclose(found, [[3 + 10, 2 + 30 + 100]])


class Straight(horn.Neuron):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(z + hm.stop_gradient(3.0 * z))


@pytest.mark.parametrize("backend", ["python", "reference", "kernels"])
def test_nothing_flows_back_through_stop_gradient(backend):
    found = []
    for neuron in (Straight, horn.neurons.Standard):
        net = horn.Network(seed=1)
        net.input(4)
        net.output(2, neuron=neuron, loss=lambda output, target: output * (1.0 + target))
        engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 3, "float64", 1))
        engine.bind(samples(net))
        probe = engine.probe(np.arange(3), iteration=0, first_sample=0)
        found.append((probe["layer1.output"], probe["layer1.weight.gradient"]))
    np.testing.assert_allclose(found[0][0], 4.0 * found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1])


class Plain(horn.Neuron):
    """Functions of plain numbers out of their domain are infinite or NaN, as those of messages."""

    low = 0.0

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        beyond, huge = math.sqrt(self.low - 1.0), math.exp(1000.0 + self.low)
        y = z if math.log(self.low) < -9e9 else 0.0
        y += 0.5 if beyond != beyond else 0.0
        y += 0.25 if math.floor(huge) > 9e9 and horn.math.expm1(huge) > 9e9 else 0.0
        y += 0.125 if horn.math.asin(2.0 + self.low) != 0.0 else 0.0
        self.feedforward(horn.math.tanh(y))


@pytest.mark.parametrize("backend", ["python", "reference", "kernels"])
def test_functions_of_plain_numbers_raise_nothing(backend):
    net = horn.Network(seed=1)
    net.input(4)
    net.output(3, neuron=Plain, loss="squared_error")
    compare(net, horn.SGD(0.1), 4, backend)
    engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 1, "float64", 1))
    found = engine.outputs(np.zeros((1, 4)))
    np.testing.assert_allclose(found, np.tanh([[0.875] * 3]))


OUT_OF_DOMAIN = [
    ("log", (0.0,), -math.inf), ("log", (-1,), math.nan), ("sqrt", (-1,), math.nan),
    ("exp", (1000,), math.inf), ("expm1", (1e3,), math.inf), ("log1p", (-1,), -math.inf),
    ("floor", (math.inf,), math.inf), ("ceil", (math.nan,), math.nan),
    ("sin", (math.inf,), math.nan),
    ("asin", (2,), math.nan), ("acos", (-2.0,), math.nan), ("floordiv", (1, 0), math.inf),
    ("mod", (1, 0), math.nan), ("pow_", (0.0, -1), math.inf), ("pow_", (-8, 1 / 3), math.nan),
]  # fmt: skip


@pytest.mark.parametrize("name, args, expected", OUT_OF_DOMAIN)
def test_a_plain_number_out_of_a_functions_domain(name, args, expected):
    np.testing.assert_equal(getattr(hm, name)(*args), expected)


class Counts(horn.Neuron):
    def forward(self, messages):
        total, n = 0.0, 0
        for m in messages:
            if m.input > 1e9:
                total += m.input
                n += 1
        self.feedforward(total / n)


def test_a_division_of_plain_numbers_by_zero_says_what_to_do():
    net = horn.Network(seed=1)
    net.input(4)
    net.output(3, neuron=Counts, loss="squared_error")
    engine = make("python", Setup(net, horn.SGD(0.1), "labels", 1, "float64", 1))
    with pytest.raises(horn.CompileError) as caught:
        engine.outputs(np.zeros((1, 4)))
    assert "compare before dividing: x / y if y else 0.0" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@horn.interpreted
class Third(horn.Neuron):
    raised: type[BaseException] = IndexError

    def forward(self, messages):
        heard = [m.input * m.weight for m in messages]
        if self.index == 1 and heard[0] > 50.0:
            raise self.raised("there is no third")
        self.feedforward(sum(heard))


@horn.interpreted
class Stopped(Third):
    raised = KeyboardInterrupt


def test_what_a_neurons_own_python_raises_is_said_with_its_line_neuron_and_sample():
    def engine(cls):
        net = horn.Network(seed=1)
        net.input(1)
        net.layer(2, neuron=cls, init=1.0)
        net.output(1, loss="squared_error")
        return make("python", Setup(net, horn.SGD(0.1), "values", 1, "float64", 1))

    x = np.array([[1.0], [2.0], [60.0]])
    with pytest.raises(horn.CompileError, match="in Third.forward\n.*raise self.raised") as caught:
        engine(Third).outputs(x)
    said = "IndexError: there is no third; neuron 1 of layer1, sample 2"
    assert said in str(caught.value) and isinstance(caught.value.__cause__, IndexError)
    with pytest.raises(KeyboardInterrupt):
        engine(Stopped).outputs(x)


# --- interlayers and losses: one grammar


def whole(output, target):
    return ((output - target) ** 2).sum()


def mean_and_peak(output, target):
    return ((output - target) ** 2).mean() + 0.1 * output.max()


def divided(output, target):
    return (output / (1.0 + (output * output).sum()) - target) ** 2


def branches(output, target):
    if output > 0.0:
        return (output - target) ** 2
    return abs(output - target) * len_of(target)


def len_of(target):
    return 3.0


def with_len(output, target):
    n = len(output)
    return (output - target) ** 2 / n if output > target else abs(output) * n


def by_builtins(output, target):
    share = abs(output) / sum(abs(output))
    return -target * hm.log(0.1 + share) + max(output) - min(output) * 0.3


def rounds(output, target):
    total = 0.0
    for k in range(3):
        total += (output - target) ** (k + 1) / (k + 1)
    return total * math.prod(1.0 + 0.1 * output)


def of_targets(output, target):
    return (output - output.min()) * target.sum() - output * target.mean()


def masked(output, target):
    return (output * (target > 0)).sum()


def masked_by_if(output, target):
    kept = 1.0 if target > 0 else 0.0
    return (output * kept).sum() - (output * hm.where(target > 0, 1.0, 0.0)).mean()


def highest_of_the_others(output, target):
    return max(output - 10.0 * (target > 0))


def hinge_of_classes(output, target):
    right = sum(output * (target > 0))
    return max(0.0, 1.0 + max(output - 10 * (target > 0)) - right)


def hits(output, target):
    return sum(target > 0) * output + len(target > 0) * ((target > 0) * (output > 0)).mean()


def one_of_two(output, target):
    """Of each neuron, though every one chooses the same."""
    total, square = output.sum(), (output * output).sum()
    return total if output > -2.0 else square


def share_of_the_layer(output, target):
    return output.max() * (0.5 + (target > -1.0))


def larger_of_two(output, target):
    """Of the layer: the condition is."""
    total, square = output.sum(), (output * output).sum()
    return total if total > square else square


def alike_on_both_sides(output, target):
    return output.sum() * (2.0 if output > 0 else 2.0)


same = horn.Activation("same", lambda z: z)


def through_an_activation(output, target):
    return output.sum() * same(2.0 if output > -2.0 else 3.0)


OF_COMPARISONS = [masked, masked_by_if, highest_of_the_others, hinge_of_classes, hits, one_of_two,
                  through_an_activation, share_of_the_layer, larger_of_two,
                  alike_on_both_sides]  # fmt: skip
LOSSES = [whole, mean_and_peak, divided, branches, with_len, by_builtins, rounds, of_targets,
          lambda output, target: (output - target) ** 2 / (output * output).sum(),
          *OF_COMPARISONS]  # fmt: skip


@pytest.mark.parametrize("size", [3, 1])
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_that_ask_the_layer(loss, size):
    net = horn.Network(seed=1)
    net.input(4)
    net.layer(5, activation="tanh")
    net.output(size, activation="tanh", loss=loss)
    compare(net, horn.SGD(0.1), 4)


def test_one_number_for_the_layer_is_the_loss():
    found = []
    for loss in (whole, lambda output, target: (output - target) ** 2):
        net = horn.Network(seed=1)
        net.input(4)
        net.output(3, activation="tanh", loss=loss)
        engine = make("kernels", Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1))
        engine.bind(samples(net))
        found.append(engine.probe(np.arange(4), iteration=0, first_sample=0))
    for name in found[0]:
        np.testing.assert_allclose(found[0][name], found[1][name])


WHOLE = {masked, masked_by_if, highest_of_the_others, hinge_of_classes, larger_of_two,
         alike_on_both_sides}  # fmt: skip


@pytest.mark.parametrize("loss", OF_COMPARISONS)
def test_a_loss_is_of_the_layer_whatever_is_compared_on_the_way(loss):
    rows = [(Traced(y, varies=True), Traced(t, varies=True)) for y, t in ((0.5, 0), (0.9, 1))]
    assert layerwise.run(loss, rows)[1] is (loss in WHOLE)


def louder(output):
    if output > output.mean():
        return output * 2.0
    return output / len(output)


def loudest(output):
    return output.max()


def leaky(output):
    return output if output > 0 else 0.1 * output


def bounded(output):
    return output / max(1.0, sum(abs(output)))


def stepped(output):
    return output % 0.5 + (output // 0.3) * output.sum() + hm.stop_gradient(output.mean())


def product(output):
    return output * (output * 0.5).prod()


@pytest.mark.parametrize("f", [louder, loudest, leaky, bounded, stepped, product])
def test_interlayers_of_the_same_grammar(f):
    net = horn.Network(seed=1)
    net.input(4)
    net.layer(5, activation="tanh", interlayer=f)
    net.output(3, activation="tanh", loss="squared_error", interlayer=f)
    compare(net, horn.SGD(0.1), 4)


def partly(output):
    return output / output.sum() if output > 0 else output


def partly_by_and(output):
    return (output > 0) and output.sum()


def of_one_number(z):
    return z / z.sum()


@pytest.mark.parametrize("backend", ["python", "reference", "kernels"])
@pytest.mark.parametrize(
    "words, problem",
    [
        ({"interlayer": partly}, "is of the whole layer, but stands where only some"),
        ({"interlayer": partly_by_and}, "is of the whole layer, but stands where only some"),
        ({"activation": horn.Activation("a", of_one_number)}, "a number has no 'sum'"),
        ({"activation": horn.Activation("a", lambda z: z / z.sum())}, "a neuron has one number"),
    ],
)
def test_what_is_of_the_layer_is_asked_by_all(backend, words, problem):
    net = horn.Network(seed=1)
    net.input(4)
    net.output(3, **{"loss": "squared_error", **words})
    with pytest.raises(CompileError, match=problem):
        engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1))
        engine.bind(samples(net))
        engine.probe(np.arange(4), iteration=0, first_sample=0)


def test_neurons_that_ask_hear_the_same_answer():
    rows = [(Traced(float(k), varies=True),) for k in range(4)]
    found, is_whole = layerwise.run(lambda y: y.sum() - y.mean() * len(y) + y.max(), rows)
    assert is_whole and [x.value for x in found] == [3.0] * 4


class Many(horn.Neuron):
    def forward(self, messages):
        total = 0.0
        for k in range(2000):
            total += k
        self.feedforward(total * sum(m.input * m.weight for m in messages))


def test_too_many_rounds_are_refused():
    net = horn.Network(seed=1)
    net.input(4)
    net.output(3, neuron=Many, loss="squared_error")
    with pytest.raises(CompileError, match="2000 rounds; a neuron may have 1000"):
        make("kernels", Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1)).bind(samples(net))
