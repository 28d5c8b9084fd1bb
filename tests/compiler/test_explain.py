"""How layers run, in words."""

import numpy as np
import pytest

import horn
from horn import explain, math
from horn.neurons import BatchDropout, Dropout, Standard


class Radial(horn.Neuron):
    def forward(self, messages):
        self.feedforward(horn.math.exp(-sum((m.input - m.weight) ** 2 for m in messages)))


class Saturating(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(horn.math.tanh(m.input * m.weight) for m in messages))


class Hebb(horn.Neuron):
    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(y * m.input)
        self.feedforward(y)


class Momentum(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages))

    def backward(self, messages):
        g = 0.0
        for m in messages:
            g += m.gradient
            self.push(0.9 * m.previous_update - self.learning_rate * m.delta * self.output)
        self.backpropagate(g)


@horn.interpreted
class Slow(Standard):
    pass


def network(neuron, **settings):
    net = horn.Network(seed=1)
    through_windows = "connect" in settings and hasattr(settings["connect"], "at")
    net.input((6, 1) if through_windows else 6)
    size = () if through_windows else (4,)
    net.layer(*size, neuron=neuron, **settings)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize(
    ("neuron", "settings", "way"),
    [
        (Standard, {}, "matrix products"),
        (Dropout, {}, "matrix products"),
        (Radial, {}, "matrix products + fused loop"),
        (Hebb, {}, "matrix products"),
        (Momentum, {}, "matrix products"),
        (Saturating, {}, "fused loop"),
        (BatchDropout, {}, "matrix products, live neurons only"),
        (Standard, {"connect": horn.Sparse(fan_in=2)}, "loop over edges"),
        (Slow, {}, "message by message"),
        (Standard, {"connect": horn.Convolution(2, 3)}, "windows"),
        (Saturating, {"connect": horn.Convolution(2, 3)}, "loop over windows"),
    ],
)
def test_runs_as(neuron, settings, way):
    assert explain.runs_as(network(neuron, **settings))["layer1"] == way


@pytest.mark.parametrize(
    "connect, way",
    [
        (None, "matrix products + loop over edges"),
        (horn.Sparse(fan_in=2), "loop over edges"),
        (horn.OneToOne(), "loop over windows + loop over edges"),
    ],
)
def test_each_connection_of_a_layer_says_how_it_runs(connect, way):
    """A sparse one beside a dense one was called a fused loop."""
    net = horn.Network(seed=1)
    x = net.input(6)
    a = net.layer(6, inputs=[x], name="a")
    ways = {"b": horn.Sparse(fan_in=3)} | ({"a": connect} if connect else {})
    net.layer(6, inputs={"a": x, "b": a}, connect=ways, name="mixed")
    net.output(2, loss="squared_error")
    assert explain.runs_as(net)["mixed"] == way


def test_one_interpreted_layer_slows_them_all():
    assert set(explain.runs_as(network(Slow)).values()) == {"message by message"}


@pytest.mark.parametrize(
    ("neuron", "kind"),
    [(Standard, "weighted sum"), (Radial, "other"), (Saturating, "other"), (Hebb, "local rule")],
)
def test_kind(neuron, kind):
    assert explain.kind(network(neuron).layers[1]) == kind


class Step(horn.Neuron):
    """No gradient passes."""

    def forward(self, messages):
        self.feedforward(math.sign(sum(m.input * m.weight for m in messages)))


class StraightThrough(horn.Neuron):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(z + math.stop_gradient(math.sign(z) - z))


class Rounded(horn.Neuron):
    """Its messages learn, its Parameter does not."""

    size = horn.Parameter(1.0)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total * math.floor(self.size))


def test_layers_below_a_step_never_learn():
    net = horn.Network(seed=1)
    net.input(4)
    net.layer(3, neuron=Standard)
    net.layer(3, neuron=Step)
    net.output(2, activation="softmax", loss="cross_entropy")
    below, step = explain.never_learn(net)
    assert "layer 1 'layer1': layer1.weight, layer1.bias will never learn" in below
    assert "no gradient comes back" in below
    assert "layer 2 'layer2': layer2.weight, layer2.bias will never learn" in step
    assert "Step.forward" in step and "stop_gradient" in step


def test_layers_that_lead_to_no_loss_never_learn():
    net = horn.Network(seed=1)
    x = net.input(4, steps=3)
    net.layer(3, inputs=[x, horn.Delayed()], name="forgotten")
    deaf = net.layer(3, inputs=x, name="deaf")
    net.layer(3, inputs=deaf, name="end")
    watched = net.layer(3, inputs=x, name="watched")
    h = net.layer(3, inputs=x, name="used")
    net.output(2, loss="squared_error", inputs=h)
    net.output(2, inputs=h, name="free")
    net.loss(watched, f=abs)
    forgotten, deaf, end, free = explain.never_learn(net)
    assert forgotten == (
        "layer 1 'forgotten': forgotten.weight.layer0, forgotten.weight.forgotten, forgotten.bias "
        "will never learn: no layer listens to it. Name it among inputs=[...] of one, or leave it "
        "out"
    )
    assert "'deaf'" in deaf and "those that listen to it (end) lead to no loss. Name it" in deaf
    assert "'end'" in end and "no layer listens to it" in end
    assert "'free'" in free and free.endswith("an output without a loss. Give it one, as "
                                              'loss="squared_error"')  # fmt: skip


def test_a_layer_that_only_an_earlier_one_hears_late_learns():
    """Excitation hears inhibition, which comes later: gradients come back through the delay."""
    net = horn.Network(seed=1)
    excitation = net.layer(3, inputs=[net.input(4, steps=5), horn.Delayed("inhibition")])
    net.layer(2, inputs=[excitation, horn.Delayed()], name="inhibition")
    net.output(2, activation="softmax", loss="cross_entropy", inputs=excitation)
    assert explain.never_learn(net) == []


def test_weights_that_nobody_reads_are_said_to_be_unread_not_flat():
    net = horn.Network(seed=1)
    net.input(4)
    net.layer(4, neuron=horn.neurons.Relay, connect=horn.Sparse(fan_in=1), bias=False)
    net.output(2, activation="softmax", loss="cross_entropy")
    (said,) = explain.never_learn(net)
    assert "layer1.weight will never learn: Relay.forward reads no m.weight." in said
    assert "stop_gradient" not in said
    with_bias = horn.Network(seed=1)
    with_bias.input(4)
    with_bias.layer(4, neuron=horn.neurons.Relay, connect=horn.Sparse(fan_in=1))
    with_bias.output(2, activation="softmax", loss="cross_entropy")
    (said,) = explain.never_learn(with_bias)
    assert "reads no m.weight (the 1 of the bias is among its messages: bias=False" in said


def test_a_parameter_that_no_gradient_reaches_never_learns():
    (said,) = explain.never_learn(network(Rounded))
    assert "layer1.size will never learn" in said and "weight" not in said.partition(" will")[0]


@pytest.mark.parametrize(
    "neuron",
    [Standard, StraightThrough, Radial, Momentum, Saturating, BatchDropout, Hebb, Slow],
)
def test_what_learns_is_not_complained_of(neuron):
    assert explain.never_learn(network(neuron)) == []


class HalfRead(horn.Neuron):
    read, unread = horn.Weight(), horn.Weight()

    def forward(self, messages):
        self.feedforward(sum(m.input * m.read for m in messages))


def test_a_weight_that_is_not_read_never_learns():
    (said,) = explain.never_learn(network(HalfRead))
    assert "layer1.weight.unread, layer1.bias.unread will never learn" in said
    assert said.endswith(
        "what HalfRead feeds forward is made without m.unread. Use it there, or leave its "
        "declaration out"
    )
    assert "layer1.weight.read" not in said and "stop_gradient" not in said


class EachItsOwn(horn.Neuron):
    """Reads one weight of each input, and none of the bias."""

    u, v = horn.Weight(), horn.Weight()

    def forward(self, messages):
        heard = sum(m.input * m.u for m in messages.x)
        self.feedforward(heard + sum(m.input * m.v for m in messages.y))


def test_a_weight_that_other_messages_are_read_by_is_not_said_to_be_flat():
    net = horn.Network()
    x = net.input(3)
    net.layer(2, neuron=EachItsOwn, inputs={"x": x, "y": x}, name="own")
    net.output(2, activation="softmax", loss="cross_entropy")
    (said,) = explain.never_learn(net)
    assert "own.weight.y.u, own.bias.u, own.weight.x.v, own.bias.v will never learn" in said
    assert "learns by m.u, m.v of other messages, not of these" in said
    assert "bias=False" in said and "floor" not in said


class Forgotten(horn.Neuron):
    """Its Parameter is declared, and no more."""

    scale = horn.Parameter(1.0)

    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages))


def test_a_parameter_that_is_not_read_never_learns():
    (said,) = explain.never_learn(network(Forgotten))
    assert "layer1.scale will never learn: what Forgotten feeds forward" in said
    assert "without self.scale." in said and "stop_gradient" not in said


class HebbWithGain(horn.Neuron):
    gain = horn.Parameter(1.0)

    def forward(self, messages):
        y = self.gain * sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(y * m.input)
        self.feedforward(y)


class TaughtGain(HebbWithGain):
    def backward(self, messages):
        g = sum(m.delta * m.weight for m in messages)
        self.push(g * self.output, to="gain")
        self.backpropagate(g)


class KeptGain(HebbWithGain):
    gain = horn.State(1.0)

    def forward(self, messages):
        y = self.gain * sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(y * m.input)
        self.gain = 0.9 * self.gain + 0.1 * y
        self.feedforward(y)


def test_a_parameter_beside_a_local_rule_is_told_what_teaches_it():
    """It was told of floor and sign, and to push in forward, which is refused for a Parameter."""
    (said,) = explain.never_learn(network(HebbWithGain))
    assert said.endswith(
        "layer1.gain will never learn: HebbWithGain pushes in forward, a rule of its own that no "
        "gradient passes, and a Parameter has no other. Write backward with self.push(..., "
        'to="gain"), or make it a horn.State, which forward assigns, or a constant'
    )
    for remedy in TaughtGain, KeptGain:
        assert explain.never_learn(network(remedy)) == []
    net = horn.Network(seed=1)
    net.input(4)
    net.output(2, neuron=HebbWithGain, loss="squared_error")
    (said,) = explain.never_learn(net)
    assert "no other. Make it a horn.State" in said and "backward" not in said


class TwoWeightsWithGain(horn.Neuron):
    gain = horn.Parameter(1.0)
    a, b = horn.Weight(), horn.Weight()

    def forward(self, messages):
        y = self.gain * sum(m.input * (m.a + m.b) for m in messages)
        for m in messages:
            self.push(y * m.input, to="a")
            self.push(y * m.input, to="b")
        self.feedforward(y)


class ByNameWithGain(horn.Neuron):
    gain = horn.Parameter(1.0)

    def forward(self, messages):
        y = self.gain * sum(m.input * m.weight for m in messages.x)
        for m in messages:
            self.push(y * m.input)
        self.feedforward(y)


class GoingOnWithGain(horn.Neuron):
    gain = horn.Parameter(1.0)
    v = horn.State(0.0, per="sample")

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(z * m.input)
        self.v = 0.5 * self.v + z
        self.feedforward(self.gain * self.v)


def in_steps(neuron, late=False):
    net = horn.Network(seed=1)
    inputs = [net.input(4, steps=3), *([horn.Delayed()] if late else [])]
    net.layer(3, neuron=neuron, inputs=inputs, name="layer1")
    net.output(2, loss="squared_error")
    return net


def of_an_input(neuron):
    net = horn.Network(seed=1)
    net.layer(3, neuron=neuron, inputs={"x": net.input(4)}, name="layer1")
    net.output(2, loss="squared_error")
    return net


@pytest.mark.parametrize("made", [
    lambda: network(TwoWeightsWithGain),
    lambda: of_an_input(ByNameWithGain),
    lambda: in_steps(GoingOnWithGain),
    lambda: in_steps(HebbWithGain, late=True),
], ids=["several weights", "messages by name", "a State of sequences", "heard late"])  # fmt: skip
def test_a_backward_is_not_offered_where_it_would_be_refused(made):
    (said,) = explain.never_learn(made())
    assert "layer1.gain will never learn" in said
    assert "no other. Make it a horn.State" in said and "backward" not in said


def test_a_backward_is_offered_in_steps_where_it_is_accepted():
    (said,) = explain.never_learn(in_steps(HebbWithGain))
    assert "Write backward with self.push(..., " in said
    assert explain.never_learn(in_steps(TaughtGain)) == []


class TaughtGoingOn(GoingOnWithGain):
    def backward(self, messages):
        self.backpropagate(sum(m.delta * m.weight for m in messages))


class TaughtByName(ByNameWithGain):
    def backward(self, messages):
        self.push(self.output, to="gain")
        self.backpropagate(sum(m.delta * m.weight for m in messages))


def by(backend):
    data = np.ones((2, 4)), np.ones((2, 2))
    return horn.train(horn.Job(of_an_input(TaughtByName), data, epochs=1), backend=backend)


@pytest.mark.parametrize("made", [
    lambda: in_steps(TaughtGoingOn).check(), lambda: by("kernels"), lambda: by("python"),
], ids=["steps", "kernels", "python"])  # fmt: skip
def test_without_its_backward_a_class_that_pushes_in_forward_learns_by_that(made):
    with pytest.raises(horn.HornError, match="eave backward out: its weights learn by its push in"):
        made()
