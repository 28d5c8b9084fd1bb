"""The neuron's words, before any engine runs them."""

import re

import numpy as np
import pytest

import horn
from horn.errors import CompileError, ModelError
from horn.neuron import READABLE, check_class, declared, has_backward, mentions, reads_weights
from horn.neurons import BatchDropout, Dropout, SequenceDropout


class Gain(horn.Neuron):
    gain = horn.Parameter(1.0)
    trace = horn.State(0.5)

    def forward(self, messages):
        self.feedforward(self.gain)


class Wider(Gain):
    shift = horn.Parameter(0.0)


class Fixed(Wider):
    gain = 2.0


def test_parameters_and_states_are_found_in_the_order_of_definition_bases_first():
    assert list(declared(Wider, horn.Parameter)) == ["gain", "shift"]
    assert list(declared(Wider, horn.State)) == ["trace"]
    assert declared(Wider, horn.Parameter)["shift"].name == "shift"


def test_a_constant_in_a_subclass_takes_a_parameter_away():
    assert list(declared(Fixed, horn.Parameter)) == ["shift"]


HELD = [
    ([horn.Weight(), horn.Weight()], "holds a Weight in a list", "gates0 = horn.Weight"),
    ((horn.Parameter(1.0), 2.0), "holds a Parameter in a tuple", "gates0 = horn.Parameter"),
    ({"a": horn.State(0.0)}, "holds a State in a dict", "gates0 = horn.State"),
    ([0.5, horn.SynapseState(0.0)], "holds a SynapseState in a list", "gates0 = horn.SynapseState"),
    (horn.Weight, "is horn.Weight, the class; call it", "gates = horn.Weight"),
    (horn.State, "is horn.State, the class; call it", "gates = horn.State"),
]


@pytest.mark.parametrize(("value", "said", "remedy"), HELD, ids=[each[1] for each in HELD])
def test_a_declaration_that_declares_nothing_is_refused(value, said, remedy):
    with pytest.raises(ModelError, match=rf"^Lister\.gates {said}.* {remedy}\(\)$"):
        type("Lister", (horn.Neuron,), {"gates": value})


@pytest.mark.parametrize("word", [*READABLE, "bernoulli", "push", "feedforward"])
def test_a_class_may_not_take_a_word_of_the_neuron(word):
    with pytest.raises(ModelError, match=f"Thief defines {word}, which every neuron already has"):
        type("Thief", (horn.Neuron,), {word: 1.0})


@pytest.mark.parametrize("kind", [horn.Parameter, horn.State, horn.SynapseState])
@pytest.mark.parametrize("word", ["weight", "bias"])
def test_a_class_may_not_take_the_name_of_an_array_of_every_layer(word, kind):
    said = f"Thief defines {word}, which every layer already has, .*; use .*, as own_{word}$"
    with pytest.raises(ModelError, match=said):
        type("Thief", (horn.Neuron,), {word: kind(0.5)})
    type("Owner", (horn.Neuron,), {word: horn.Weight()})  # m.weight, m.bias


def test_backward_counts_as_written_in_a_base_too():
    class Written(Gain):
        def backward(self, messages):
            self.backpropagate(0.0)

    class Heir(Written):
        pass

    assert has_backward(Written) and has_backward(Heir)
    assert not has_backward(Gain) and not has_backward(horn.Standard)


def test_interpreted_marks_the_class_and_its_heirs_alone():
    marked = horn.interpreted(type("Marked", (Gain,), {}))
    assert marked.interpreted and type("Heir", (marked,), {}).interpreted
    assert not Gain.interpreted


def test_a_neuron_class_is_needed_and_it_needs_a_forward():
    with pytest.raises(ModelError, match="layer 1: neuron must be a subclass of horn.Neuron"):
        check_class("Standard", "layer 1")
    with pytest.raises(ModelError, match="must be a subclass of horn.Neuron, got <class 'int'>"):
        check_class(int, "layer 1")
    with pytest.raises(ModelError, match=r"Bare has no forward\(self, messages\); write one"):
        check_class(type("Bare", (horn.Neuron,), {}), "layer 1")


def test_a_backward_that_is_misspelt_is_no_silent_helper():
    class Misspelt(horn.Standard):
        def backwards(self, messages):
            self.backpropagate(0.0)

    class Helped(horn.Neuron):
        def forward(self, messages):
            self.feedforward(self.backwards(sum(m.input * m.weight for m in messages)))

        def backwards(self, z):
            return -z

    with pytest.raises(ModelError, match="Misspelt has a 'backwards', which nothing calls; rename"):
        check_class(Misspelt, "layer 1")
    assert check_class(Helped, "layer 1") is Helped


class Foreign:
    def forward(self, messages):
        return sum(m.input * m.weight for m in messages)


@pytest.mark.parametrize(
    "given, remedy",
    [
        ([horn.Standard] * 100, r"Standard'>, \.\.\.\]; a layer has one class: .*inputs=\[a, b\]"),
        ((8, 4), r"hidden_layer_sizes=\(8, 4\)"),
        (Foreign, r"write class Foreign\(horn.Neuron\)"),
        (lambda z: z, r"write a class with forward\(self, messages\); .*activation=f"),
    ],
)
def test_what_is_no_class_of_neurons_is_told_what_to_be(given, remedy):
    with pytest.raises(ModelError, match=remedy):
        check_class(given, "layer 1")
    with pytest.raises(ModelError, match="has no forward"):
        horn.Neuron().forward([])


def test_the_base_class_is_no_neuron_of_a_layer():
    with pytest.raises(ModelError, match="leave neuron= out for the weighted sum, or write a cl"):
        check_class(horn.Neuron, "layer 1")


def said(messages):  # as the input of Told
    print(messages)


class Told(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input for m in messages.said))


class Weighing(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages))


class Again(Weighing):
    def forward(self, messages):
        Weighing.forward(self, messages)


def test_a_function_that_is_called_as_an_attribute_is_not_what_the_class_names():
    """Told was said to print."""
    assert not mentions(Told, "forward", "print")


def test_a_base_that_is_called_by_its_name_is_read_too():
    """Through windows the class was taken to read no weights: a KeyError in the compiler."""
    assert reads_weights(Again)
    net = horn.Network(seed=1)
    net.input((4, 4, 1))
    net.layer(neuron=Again, connect=horn.Local(2, 3), name="windows")
    net.output(2, activation="softmax", loss="cross_entropy")
    data = np.random.default_rng(0).random((6, 16)), np.arange(6) % 2
    model = horn.train(horn.Job(net, data, epochs=1), progress=False).model
    assert model.parameters["windows.weight"].shape == (4 * 2 * 9,)


def test_a_base_that_is_called_by_its_name_where_both_are_in_a_function():
    class Near(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.input * m.weight for m in messages))

    class Nearer(Near):
        def forward(self, messages):
            Near.forward(self, messages)

    assert reads_weights(Nearer)


@pytest.mark.parametrize("name", ["foward", "Forward", "forwards", "farward", "backwrd"])
def test_an_override_that_is_misspelt_is_refused(name):
    Made = type("Made", (horn.Standard,), {name: lambda self, messages: None})
    with pytest.raises(ModelError, match=f"Made has a {name!r}, which nothing calls; rename it"):
        check_class(type("Below", (Made,), {}), "layer1")


def test_a_method_with_nearly_the_name_of_forward_may_be_called():
    class Made(horn.Standard):
        def forwards(self, z):
            return 2.0 * z

        def forward(self, messages):
            self.feedforward(self.forwards(sum(m.input * m.weight for m in messages)))

    class Below(Made):
        def forwards(self, z):
            return 3.0 * z

    assert check_class(Below, "layer1") is Below


@pytest.mark.parametrize("base", [Dropout, SequenceDropout, BatchDropout])
@pytest.mark.parametrize("keep", [80, 1.5, 0.0, -0.5, float("nan")])
def test_a_share_to_keep_that_is_none_is_refused(base, keep):
    with pytest.raises(ModelError, match=f"Mine: keep is the probability to keep.*got {keep!r}"):
        type("Mine", (base,), {"keep": keep})
    assert type("Mine", (base,), {"keep": 1}).keep == 1


class Certain(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total * self.bernoulli(1.7))


class Narrow(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total + self.normal(0.0, -1.0))


class Turned(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight * m.uniform(1.0, 0.0) for m in messages))


@pytest.mark.parametrize("backend", ["kernels", "python"])
@pytest.mark.parametrize(
    ("neuron", "said", "line"),
    [
        (Certain, "bernoulli takes a probability, from 0 to 1; got 1.7", "self.bernoulli(1.7)"),
        (Narrow, "a standard deviation from 0; got std=-1", "self.normal(0.0, -1.0)"),
        (Turned, "uniform takes low and high, in this order; got 1 and 0", "m.uniform(1.0, 0.0)"),
    ],
)
def test_a_draw_outside_of_its_domain_is_refused_at_its_line(neuron, said, line, backend):
    net = horn.Network()
    net.input(2)
    net.layer(2, neuron=neuron)
    net.output(1, loss="squared_error")
    x = np.eye(2)
    with pytest.raises(CompileError, match=re.escape(said)) as caught:
        horn.train(horn.Job(net, (x, x[:, :1])), backend=backend, progress=False)
    assert line in caught.value.text
