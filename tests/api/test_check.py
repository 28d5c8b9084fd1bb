"""horn check: written backwards against finite differences."""

import inspect
import re

import numpy as np
import pytest

import horn
import horn.check
from horn.check import check_job, check_network
from horn.errors import ModelError


class Sum(horn.Neuron):
    """A forward for those that write backward."""

    gain = horn.Parameter(1.2)

    def forward(self, messages):
        total = self.gain * 1.0
        for m in messages:
            total += m.input * m.weight
        self.feedforward(self.activation(total))


class Right(Sum):
    def backward(self, messages):
        g = 0.0
        for m in messages:
            g += m.delta * m.weight
            self.push(m.delta * self.output)
        slope = self.activation.derivative(self.output)
        self.push(g * slope, to="gain")
        self.backpropagate(g * slope)


class WrongPush(Sum):
    def backward(self, messages):
        g = 0.0
        for m in messages:
            g += m.delta * m.weight
            self.push(2.0 * m.delta * self.output)
        slope = self.activation.derivative(self.output)
        self.push(g * slope, to="gain")
        self.backpropagate(g * slope)


class WrongDelta(Sum):
    def backward(self, messages):
        g = sum(m.gradient for m in messages)
        self.push(g * self.activation.derivative(self.output), to="gain")
        self.backpropagate(g)  # without the activation's slope


class WrongParameter(Sum):
    def backward(self, messages):
        g = sum(m.gradient for m in messages)
        self.push(g, to="gain")
        self.backpropagate(g * self.activation.derivative(self.output))


class PushesUpdates(horn.Neuron):
    """As the paper writes it, for horn.Direct: the pushed value is the update."""

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        g = 0.0
        for m in messages:
            g += m.delta * m.weight
            self.push(-self.learning_rate * m.delta * self.output + 0.9 * m.previous_update)
        self.backpropagate(g * self.activation.derivative(self.output))


def job(neuron, optimizer=None, activation="tanh", **settings):
    net = horn.Network(seed=5)
    net.input(4)
    net.layer(3, neuron=neuron, activation=activation)
    net.output(2, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((10, 4)), np.arange(10) % 2
    return horn.Job(net, (x, y), optimizer=optimizer or horn.SGD(0.1), epochs=1, **settings)


def row(neuron, **settings):
    return check_network(job(neuron, **settings))[0]


def test_a_right_backward_passes():
    found = row(Right)
    assert found.ok and found.backward == "written" and found.kind == "weighted sum"
    assert found.worst is not None and found.worst.error < 1e-6 and found.compared >= 10
    check_job(job(Right))


@pytest.mark.parametrize(
    ("neuron", "what", "array"),
    [
        (WrongPush, "self.push(...)", "layer2.weight"),
        (WrongDelta, "self.backpropagate(...)", "layer1."),
        (WrongParameter, 'self.push(..., to="gain")', "layer1.gain"),
    ],
)
def test_a_wrong_backward_is_named_with_its_word_and_array(neuron, what, array):
    found = row(neuron)
    assert not found.ok and found.worst.what == what and found.worst.array.startswith(array)
    with pytest.raises(ModelError) as caught:
        check_job(job(neuron))
    text, first = inspect.getsourcelines(neuron.backward)
    word = what.replace("...", "2.0" if neuron is WrongPush else "g")
    line = first + next(k for k, each in enumerate(text) if word.rstrip(")") in each)
    message = str(caught.value)
    assert message.startswith(f"{__file__}:{line}, in {neuron.__name__}.backward: {what} is not")
    assert "Correct it, leave backward out and horn derives it, or pass check=False" in message


class Helped(WrongPush):
    def backward(self, messages):
        g = sum(m.gradient for m in messages)
        self.gain_by(g)
        self.backpropagate(g * self.activation.derivative(self.output))

    def gain_by(self, g):
        self.push(g, to="gain")


def test_where_another_method_pushes_the_line_is_that_of_backward():
    line = Helped.backward.__code__.co_firstlineno
    with pytest.raises(ModelError, match=f"^{re.escape(__file__)}:{line}, in Helped.backward"):
        check_job(job(Helped))


class AlmostRight(Sum):
    def backward(self, messages):
        g = sum(m.gradient for m in messages)
        slope = self.activation.derivative(self.output)
        self.push(1.001 * g * slope, to="gain")
        self.backpropagate(g * slope)


class TimesRate(Sum):
    def backward(self, messages):
        g = sum(m.gradient for m in messages)
        slope = self.activation.derivative(self.output)
        self.push(self.learning_rate * g * slope, to="gain")
        self.backpropagate(g * slope)


@pytest.mark.parametrize(
    "neuron, factor", [(WrongPush, "2"), (AlmostRight, "1.001"), (TimesRate, "0.1")]
)
def test_a_factor_is_said(neuron, factor):
    with pytest.raises(ModelError, match=rf"\({factor} times what it should be\)"):
        check_job(job(neuron))


def test_training_checks_first_unless_told_not_to():
    with pytest.raises(ModelError, match="is not the gradient"):
        horn.train(job(WrongPush))
    assert horn.train(job(WrongPush, check=False)).state == "SUCCEEDED"


PLACES = {
    "dense": None,
    "conv": horn.Convolution(2, 3, padding="same"),
    "conv of groups": horn.Convolution(2, 2, groups=2),
    "local": horn.Local(2, 2),
    "window": horn.Window(2),
    "one to one": horn.OneToOne(),
    "sparse": horn.Sparse(fan_in=3),
}
CONVOLVED = [(a, b) for a in PLACES for b in PLACES if "conv" in a + b]


def placed(neuron, own, receivers, steps=None):
    """A layer that hears two maps through one connection, and is heard through another."""
    net = horn.Network(seed=5)
    net.input((4, 4, 2), steps=steps)
    for connect, its in ((own, neuron), (receivers, Sum)):
        shape = None if hasattr(connect, "at") else (4, 4, 2)
        net.layer(shape, connect=connect, neuron=its, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((10, steps, 32) if steps else (10, 4, 4, 2))
    return horn.Job(net, (x, np.arange(10) % 3), optimizer=horn.SGD(0.1), epochs=1)


@pytest.mark.parametrize("own, receivers", CONVOLVED)
def test_a_right_backward_passes_where_synapses_share_weights(own, receivers):
    found = check_network(placed(Right, PLACES[own], PLACES[receivers]))[0]
    assert found.ok and found.worst.error < 1e-5 and found.compared >= 10


@pytest.mark.parametrize("own, receivers", [("conv", "conv"), ("conv", "dense"), ("local", "conv")])
@pytest.mark.parametrize(
    ("neuron", "what", "array"),
    [
        (WrongPush, "self.push(...)", r"layer2.weight"),
        (WrongDelta, "self.backpropagate(...)", r"layer1\.(weight|bias)"),
        (WrongParameter, 'self.push(..., to="gain")', "layer1.gain"),
    ],
)
def test_a_wrong_backward_is_refused_where_synapses_share_weights(
    own, receivers, neuron, what, array
):
    at = placed(neuron, PLACES[own], PLACES[receivers])
    said = f"{re.escape(what)} is not the gradient of the loss. d loss / d {array}"
    with pytest.raises(ModelError, match=said) as caught:
        check_job(at)
    worst = check_network(at)[0].worst
    shape = next(x.shapes[worst.array] for x in at.network.layers if worst.array in x.shapes)
    assert len(worst.place) == len(shape) and all(np.array(worst.place) < shape)
    assert "Correct it, leave backward out and horn derives it" in str(caught.value)


def test_a_place_is_one_of_the_array_that_synapses_share():
    with pytest.raises(ModelError, match=r"layer2.weight\[\d, \d, \d, \d\] is .* \(2 times"):
        check_job(placed(WrongPush, PLACES["dense"], PLACES["conv"]))


@pytest.mark.parametrize("own, receivers", [("conv", "conv"), ("conv", "dense"), ("dense", "conv")])
def test_weights_that_are_shared_over_steps_too_are_compared(own, receivers):
    check_job(placed(Right, PLACES[own], PLACES[receivers], steps=3))
    with pytest.raises(ModelError, match="is not the gradient of the loss"):
        check_job(placed(WrongPush, PLACES[own], PLACES[receivers], steps=3))


def test_training_with_a_backward_above_a_convolution_checks_first():
    at = placed(Right, PLACES["conv"], PLACES["conv"])
    assert horn.train(at).state == "SUCCEEDED"
    with pytest.raises(ModelError, match="is not the gradient"):
        horn.train(placed(WrongPush, PLACES["conv"], PLACES["conv"]))


def test_a_derived_backward_has_nothing_to_compare():
    found = row(Sum)
    assert found.ok and found.worst is None and found.backward == "derived"


def test_kinks_are_not_taken_for_mistakes():
    assert row(Right, activation="relu").ok


def test_without_a_target_there_is_no_loss_to_compare_with():
    data = (np.random.default_rng(0).random((10, 4)), None)
    untold = job(Right).with_settings(data=data, target=None)
    assert [r.compared for r in check_network(untold)] == [0, 0]
    check_job(untold)


def test_rounding_is_not_taken_for_a_mistake():
    """Inputs so small that gradients are near what rounding makes of the loss."""

    def of(neuron):
        small = job(neuron)
        return small.with_settings(data=(small.data.x * 1e-6, small.data.y))

    assert row(Right).compared > check_network(of(Right))[0].compared > 0
    check_job(of(Right))
    with pytest.raises(ModelError, match="is not the gradient"):
        check_job(of(WrongPush))


def test_a_check_runs_one_whole_step_for_each_layer_and_else_the_loss(monkeypatch):
    """Its time is a small multiple of that of a step."""
    steps, ran = [], horn.check._Loss.run

    def counted(self, runner):
        steps.append(any(name.endswith(".gradient") for name in runner.program.probes))
        before = {name: array.copy() for name, array in self.arrays.items()}
        ran(self, runner)
        assert steps[-1] or all((self.arrays[k] == a).all() for k, a in before.items())

    monkeypatch.setattr(horn.check._Loss, "run", counted)
    n = row(Right).compared
    assert sum(steps) == 1 and n >= 10 and steps.count(False) == 2 * n


def test_updates_pushed_for_direct_are_no_gradients():
    """What is pushed under Direct is the update; what is backpropagated is still checked."""
    settings = {"optimizer": horn.Direct(0.1)}
    found = row(PushesUpdates, **settings)
    assert found.ok and found.worst.what == "self.backpropagate(...)"
    assert horn.train(job(PushesUpdates, **settings)).state == "SUCCEEDED"

    class Unsloped(PushesUpdates):
        def backward(self, messages):
            g = 0.0
            for m in messages:
                g += m.delta * m.weight
                self.push(-self.learning_rate * m.delta * self.output)
            self.backpropagate(g)

    assert not row(Unsloped, **settings).ok


def test_a_local_rule_says_what_it_learns_from():
    class Hebb(horn.Neuron):
        def forward(self, messages):
            y = sum(m.input * m.weight for m in messages)
            for m in messages:
                self.push(y * m.input)
            self.feedforward(y)

    found = row(Hebb)
    assert (found.kind, found.backward) == ("local rule", "none (learns from its push)")


def test_an_interpreted_neuron_is_left_alone():
    @horn.interpreted
    class Odd(WrongPush):
        pass

    rows = check_network(job(Odd))
    assert {r.runs_as for r in rows} == {"message by message"}
    assert rows[0].kind == "interpreted" and rows[0].ok


def bent(z):
    return horn.math.tanh(z) + 0.5 * z


def with_activation(activation, neuron=horn.Standard, **given):
    rng = np.random.default_rng(0)
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(4, neuron=neuron, activation=activation)
    net.output(2, activation="softmax", loss="cross_entropy")
    x = rng.standard_normal((20, 3))
    return horn.Job(net, (x, (x[:, 0] > 0).astype(int)), epochs=1, **given)


@pytest.mark.parametrize(
    "activation, said",
    [
        (horn.Activation("bent", bent, lambda y: 1.0 - y * y), "but f has the slope"),
        (horn.Activation("bent", bent, None, lambda z: 1.0 - horn.math.tanh(z) ** 2), "df_at"),
        # of z, where the output was meant
        (horn.Activation("s", horn.math.sigmoid, lambda z: horn.math.sigmoid(z)), "df takes the"),
    ],
)
def test_a_wrong_derivative_of_an_activation_is_refused(activation, said):
    with pytest.raises(ModelError, match=f"layer1: activation .*{said}") as caught:
        horn.train(with_activation(activation))
    assert "leave it out and horn derives it, or pass check=False" in str(caught.value)
    assert horn.train(with_activation(activation, check=False)).state == "SUCCEEDED"


@pytest.mark.parametrize(
    "activation",
    [
        horn.Activation("bent", bent, None, lambda z: 1.5 - horn.math.tanh(z) ** 2),
        horn.Activation("s", horn.math.sigmoid, lambda y: y * (1.0 - y)),
        horn.Activation("kink", horn.math.relu, lambda y: horn.math.where(y > 0.0, 1.0, 0.0)),
        horn.Activation("bare", bent),
        horn.Activation("logs", lambda z: horn.math.log(1.0 + z * z)),
    ],
    ids=lambda a: a.name,
)
def test_a_right_derivative_of_an_activation_is_let_through(activation):
    assert horn.train(with_activation(activation)).state == "SUCCEEDED"


def test_a_backward_that_nobody_would_call_is_refused():
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, neuron=Right, activation="softmax", loss="cross_entropy")
    with pytest.raises(ModelError, match="layer1: Right writes backward, .* nobody would call it"):
        horn.Job(net, (np.ones((4, 3)), np.array([0, 1, 0, 1])))
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(4, neuron=Right, activation="tanh")
    net.output(2, neuron=Right, activation="softmax", loss="cross_entropy")
    horn.Job(net, (np.ones((4, 3)), np.array([0, 1, 0, 1])))  # it is called for layer1
