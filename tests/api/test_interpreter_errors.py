"""Every broken rule is one sentence at the user's own line.

The line that is meant is marked ``# here``.
"""

import math
import re

import numpy as np
import pytest

import horn
from horn.backends import Setup, make
from horn.data import Dataset
from horn.errors import CompileError, HornError, ModelError
from tests.api.running import dataset, engine, probe


def run(neuron, **settings):
    """Train and predict with a hidden layer of this neuron."""
    net = horn.Network(seed=4)
    net.input(3)
    net.layer(2, neuron=neuron, activation="tanh", **settings)
    net.output(2, activation="softmax", loss="cross_entropy")
    made = engine(net, dataset(2, 3, 2))
    probe(made, 2)
    made.outputs(np.zeros((1, 3)))


def complaint(neuron, **settings):
    """What is said about a neuron that breaks a rule; it must point at the marked line."""
    with pytest.raises(CompileError) as caught:
        run(neuron, **settings)
    error = caught.value
    assert error.file == __file__ and error.exit_code == 2
    assert "# here" in error.text, f"points at line {error.line}: {error.text}"
    assert re.match(rf"{re.escape(__file__)}:{error.line}, in \w+\.\w+\n", str(error))
    assert "^" in str(error)
    return error.problem


class Sum(horn.Neuron):
    """A correct forward, for those that break backward."""

    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input * m.weight
        self.feedforward(self.activation(total))


# --- feedforward and backpropagate


def test_never_calling_feedforward():
    class Mute(horn.Neuron):
        def forward(self, messages):  # here
            total = sum(m.input * m.weight for m in messages)
            self.activation(total)

    assert complaint(Mute) == (
        "Mute.forward never called self.feedforward(...), so the neuron has no output. "
        "End forward with self.feedforward(value), on every path"
    )


def test_calling_feedforward_twice():
    class Echo(horn.Neuron):
        def forward(self, messages):
            total = sum(m.input * m.weight for m in messages)
            self.feedforward(total)
            self.feedforward(total)  # here

    assert "self.feedforward is called a second time" in complaint(Echo)


def test_feedforward_inside_the_loop():
    class Eager(horn.Neuron):
        def forward(self, messages):
            for m in messages:
                self.feedforward(m.input * m.weight)  # here

    assert "inside the loop over messages; call it once, after the loop" in complaint(Eager)


def test_feeding_forward_what_is_no_number():
    class Odd(horn.Neuron):
        def forward(self, messages):
            self.feedforward([m.input for m in messages])  # here

    assert complaint(Odd).startswith("self.feedforward takes a number, got [")


def test_never_calling_backpropagate():
    class Mute(Sum):
        def backward(self, messages):  # here
            for m in messages:
                self.push(m.delta * self.output)

    assert "Mute.backward never called self.backpropagate(...)" in complaint(Mute)


def test_calling_backpropagate_twice():
    class Echo(Sum):
        def backward(self, messages):
            self.backpropagate(0.0)
            self.backpropagate(0.0)  # here

    assert "self.backpropagate is called a second time" in complaint(Echo)


def test_backpropagate_in_forward():
    class Confused(horn.Neuron):
        def forward(self, messages):
            self.backpropagate(0.0)  # here

    assert complaint(Confused) == "self.backpropagate belongs in backward, not in forward"


# --- push


def test_pushing_outside_the_loop():
    class Once(Sum):
        def backward(self, messages):
            gradient = 0.0
            for m in messages:
                gradient += m.gradient
            self.push(gradient)  # here
            self.backpropagate(gradient)

    assert complaint(Once) == (
        "push outside the loop over messages: Once.backward pushed 1 weight update for 2 outgoing "
        "synapses. Call self.push(...) once per message, inside the loop over messages"
    )


def test_pushing_for_some_messages_only():
    class Choosy(Sum):
        def backward(self, messages):  # here
            for m in messages:
                if m.delta > 0:
                    self.push(m.delta * self.output)
            self.backpropagate(0.0)

    assert "Choosy.backward pushed 1 weight update for 2 outgoing synapses" in complaint(Choosy)


def test_pushing_twice_for_a_message():
    class Double(Sum):
        def backward(self, messages):
            for m in messages:
                self.push(m.delta)
                self.push(m.delta)  # here
            self.backpropagate(0.0)

    assert "a second time for the same message" in complaint(Double)


def test_pushing_on_one_path_only():
    class Moody(Sum):
        def backward(self, messages):  # here
            if self.output > 100:
                for m in messages:
                    self.push(m.delta)
            self.backpropagate(0.0)

    assert "this path pushes nothing, another does" in complaint(Moody)


def test_a_local_rule_that_pushes_once_for_all():
    class Once(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.input * m.weight for m in messages))
            self.push(self.output)  # here

    assert "Once.forward pushed 1 weight update for 4 incoming synapses" in complaint(Once)


class WithGain(horn.Neuron):
    gain = horn.Parameter(1.0)

    def forward(self, messages):
        self.feedforward(self.gain * sum(m.input * m.weight for m in messages))


def test_forgetting_the_gradient_of_a_parameter():
    class Forgetful(WithGain):
        def backward(self, messages):  # here
            self.backpropagate(0.0)

    assert complaint(Forgetful) == (
        "Forgetful.backward does not push the gradient of its Parameter 'gain'; call "
        'self.push(gradient, to="gain") once on every path, outside the loop'
    )


def test_pushing_twice_to_a_parameter():
    class Double(WithGain):
        def backward(self, messages):
            self.push(0.0, to="gain")
            self.push(0.0, to="gain")  # here
            self.backpropagate(0.0)

    assert "a second time" in complaint(Double)


def test_pushing_to_an_unknown_parameter():
    class Typo(WithGain):
        def backward(self, messages):
            self.push(0.0, to="gian")  # here
            self.backpropagate(0.0)

    assert complaint(Typo) == (
        "Typo has no Parameter 'gian'. Did you mean 'gain'? Parameters: gain"
    )


def test_pushing_to_a_parameter_inside_the_loop():
    class Loop(WithGain):
        def backward(self, messages):
            for m in messages:
                self.push(m.gradient, to="gain")  # here
            self.backpropagate(0.0)

    assert "stands inside the loop over messages" in complaint(Loop)


def test_pushing_to_a_parameter_in_forward():
    class Early(WithGain):
        def forward(self, messages):
            self.feedforward(self.gain)
            self.push(1.0, to="gain")  # here

    assert complaint(Early) == 'push(..., to="gain") belongs in backward'


# --- messages


def test_an_unknown_field():
    class Typo(Sum):
        def backward(self, messages):
            gradient = sum(m.detla * m.weight for m in messages)  # here
            self.backpropagate(gradient)

    assert complaint(Typo) == (
        "message has no field 'detla'. Did you mean 'delta'? "
        "Fields: delta, weight, gradient, previous_update"
    )


def test_a_field_of_the_other_direction():
    class Back(Sum):
        def backward(self, messages):
            self.backpropagate(sum(m.input for m in messages))  # here

    class Forth(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.delta for m in messages))  # here

    assert "what this neuron sent is self.output" in complaint(Back)
    assert "in forward a message has no 'delta' yet" in complaint(Forth)


def test_assigning_to_a_message():
    class Writer(horn.Neuron):
        def forward(self, messages):
            for m in messages:
                m.weight = 0.0  # here

    assert "a weight changes by self.push(...)" in complaint(Writer)


def test_indexing_messages():
    class Peeking(horn.Neuron):
        def forward(self, messages):
            self.feedforward(messages[1].input)  # here

    assert "loop over them (for m in messages) instead of indexing" in complaint(Peeking)


def test_a_loop_inside_the_loop_over_messages():
    class Pairs(horn.Neuron):
        def forward(self, messages):
            total = 0.0
            for a in messages:
                total += sum(a.input * b.input for b in messages)  # here
            self.feedforward(total)

    assert "a loop inside the loop over messages" in complaint(Pairs)


def test_an_interpreted_class_may_index_and_nest_but_keeps_the_other_rules():
    @horn.interpreted
    class Pairs(horn.Neuron):
        def forward(self, messages):
            total = messages[0].input
            for a in messages:
                total += sum(a.input * b.weight for b in messages)
            self.feedforward(total)

    @horn.interpreted
    class Mute(horn.Neuron):
        def forward(self, messages):  # here
            pass

    run(Pairs)
    assert "never called self.feedforward" in complaint(Mute)


def test_previous_update_without_direct():
    class Back(Sum):
        def backward(self, messages):
            self.backpropagate(sum(m.previous_update for m in messages))  # here

    assert complaint(Back).endswith(
        "m.previous_update is what horn.Direct() last added to the weight; this job's optimizer is "
        "SGD: keep what you need of each synapse in a horn.SynapseState"
    )


# --- attributes


def test_assigning_an_undeclared_attribute():
    class Keeper(horn.Neuron):
        def forward(self, messages):
            self.z = sum(m.input * m.weight for m in messages)  # here
            self.feedforward(self.z)

    problem = complaint(Keeper)
    assert "self.z is not declared" in problem and "z = horn.State(0.0)  in Keeper" in problem


def test_assigning_a_parameter_a_readable_or_a_state_in_the_loop():
    class ToParameter(WithGain):
        def forward(self, messages):
            self.gain = 2.0  # here

    class ToOutput(horn.Neuron):
        def forward(self, messages):
            self.output = 2.0  # here

    class InLoop(horn.Neuron):
        last = horn.State(0.0)

        def forward(self, messages):
            for m in messages:
                self.last = m.input  # here

    assert "self.gain is a Parameter: it is learned" in complaint(ToParameter)
    assert "call self.feedforward(value)" in complaint(ToOutput)
    assert "its value depends on their order" in complaint(InLoop)


def test_reading_an_unknown_attribute():
    class Typo(horn.Neuron):
        threshold = 0.5

        def forward(self, messages):
            self.feedforward(self.treshold)  # here

    assert complaint(Typo).startswith("Typo has no 'treshold'. Did you mean 'threshold'? ")


def test_reading_output_before_feedforward():
    class Early(horn.Neuron):
        def forward(self, messages):
            self.feedforward(self.output)  # here

    assert complaint(Early) == "self.output is read before self.feedforward(...) has set it"


def test_a_constructor():
    class Made(Sum):
        def __init__(self):
            self.z = 0.0

    with pytest.raises(ModelError, match="'layer1': Made has an __init__, which nothing calls"):
        run(Made)


def test_a_derivative_that_an_activation_does_not_have():
    class Back(Sum):
        def backward(self, messages):
            self.backpropagate(self.activation.derivative(self.output))  # here

    net = horn.Network()
    net.input(2)
    net.layer(2, neuron=Back, activation=horn.Activation("square", lambda z: z * z))
    net.output(2, loss="squared_error")
    with pytest.raises(CompileError, match="use self.activation.derivative_at") as caught:
        probe(engine(net, dataset(2, 2, 2)), 2)
    assert "# here" in caught.value.text


# --- draws


def test_drawing_the_same_number_twice():
    class Noise(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(self.uniform() for _ in range(3)))  # here

    assert "write each draw on its own" in complaint(Noise)


def test_drawing_per_something_unknown():
    class Noise(horn.Neuron):
        def forward(self, messages):
            self.feedforward(self.uniform(per="epoch"))  # here

    known = "'sample', 'sequence', 'batch', 'run'"
    assert complaint(Noise) == f"per must be one of {known}, got 'epoch'"


# --- what does not fit together


def test_a_written_backward_with_an_interlayer():
    class Written(Sum):
        def backward(self, messages):  # here
            self.backpropagate(0.0)

    problem = complaint(Written, interlayer=horn.activations.softmax)
    assert "layer1 has an interlayer, which mixes its neurons: leave backward out" in problem


class Written(Sum):
    def backward(self, messages):
        self.backpropagate(0.0)


class Asks(Written):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(z - self.mean(z, over="layer"))


class Extreme(Written):
    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


class Two(Written):
    a, b = horn.Weight(), horn.Weight()

    def forward(self, messages):
        self.feedforward(sum(m.input * m.a for m in messages))


@pytest.mark.parametrize(
    ("neuron", "interlayer"),
    [(Written, horn.activations.softmax), (Asks, None), (Extreme, None), (Two, None)],
)
def test_a_written_backward_is_refused_in_the_words_of_the_compiler(neuron, interlayer):
    found = []
    for backend in ("python", "kernels"):
        net = horn.Network(seed=1)
        net.input(3)
        net.layer(2, neuron=neuron, interlayer=interlayer)
        net.output(2, activation="softmax", loss="cross_entropy")
        with pytest.raises(CompileError) as caught:
            engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 2, "float64", 1))
            engine.bind(Dataset(np.ones((2, 3)), np.array([0, 1])))
            engine.step(np.arange(2), iteration=0, first_sample=0)
        found.append(caught.value.problem)
    assert found[0] == found[1]
    assert f"{neuron.__name__} writes backward, but " in found[0]


class Rounds(horn.SGD):
    def update(self, w, g, slots, lr, t):
        return w - lr * round(g), slots


@pytest.mark.parametrize("backend", ["python", "kernels"])
def test_a_number_of_a_formula_is_called_a_number(backend):
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, activation="softmax", loss="cross_entropy")
    with pytest.raises(HornError, match="type number doesn't define __round__"):
        engine = make(backend, Setup(net, Rounds(0.1), "labels", 2, "float64", 1))
        engine.bind(Dataset(np.ones((2, 3)), np.array([0, 1])))
        engine.step(np.arange(2), iteration=0, first_sample=0)


def test_a_written_backward_on_a_forward_that_is_no_weighted_sum():
    class Written(horn.Neuron):
        def forward(self, messages):
            self.feedforward(max(m.input * m.weight for m in messages))

        def backward(self, messages):  # here
            self.backpropagate(0.0)

    assert "so it has no one delta: leave backward out" in complaint(Written)


class Largest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


def toward(sender, receiver):
    net = horn.Network(seed=4)
    net.input(3)
    net.layer(2, neuron=sender, activation="tanh")
    net.layer(2, neuron=receiver)
    net.output(2, activation="softmax", loss="cross_entropy")
    with pytest.raises(CompileError) as caught:
        probe(engine(net, dataset(2, 3, 2)), 2)
    assert "# here" in caught.value.text
    return caught.value.problem


def test_delta_of_a_receiver_that_has_none():
    class Reader(Sum):
        def backward(self, messages):
            self.backpropagate(sum(m.delta for m in messages))  # here

    problem = toward(Reader, Largest)
    assert "the receiver layer2 (Largest)" in problem and "read m.gradient" in problem


def test_push_toward_a_receiver_that_derives_its_own():
    class Pusher(Sum):
        def backward(self, messages):
            for m in messages:
                self.push(m.gradient)  # here
            self.backpropagate(0.0)

    assert "do not push, and read m.gradient" in toward(Pusher, Largest)


def test_push_toward_a_local_rule():
    class Oja(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.input * m.weight for m in messages))
            for m in messages:
                self.push(self.output * (m.input - self.output * m.weight))

    class Pusher(Sum):
        def backward(self, messages):
            for m in messages:
                self.push(m.delta)  # here
            self.backpropagate(0.0)

    assert "learns from its own push in forward (a local rule)" in toward(Pusher, Oja)


def test_a_backward_that_reads_gradients_alone_may_face_any_receiver():
    class Reader(Sum):
        def backward(self, messages):
            gradient = sum(m.gradient for m in messages)
            self.backpropagate(gradient * self.activation.derivative(self.output))

    net = horn.Network(seed=4)
    net.input(3)
    net.layer(2, neuron=Reader, activation="tanh")
    net.layer(2, neuron=Largest)
    net.output(2, activation="softmax", loss="cross_entropy")
    probe(engine(net, dataset(2, 3, 2)), 2)


# --- outside the language


def test_a_c_function_that_would_lose_the_derivative():
    class Gamma(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(math.gamma(m.input) * m.weight for m in messages))  # here

    assert "take them from horn.math, or from math" in complaint(Gamma)


@pytest.mark.parametrize("whole", [int, round, math.trunc])
def test_a_number_made_whole_that_would_lose_the_derivative(whole):
    class Whole(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(whole(m.input) * m.weight for m in messages))  # here

    assert "take them from horn.math, or from math" in complaint(Whole)


def test_numpy_functions_work_where_the_language_has_them():
    class Array(horn.Neuron):
        def forward(self, messages):
            self.feedforward(np.tanh(sum(np.float64(0.5) * m.input * m.weight for m in messages)))

    class Strange(horn.Neuron):
        def forward(self, messages):
            self.feedforward(np.cbrt(sum(m.input * m.weight for m in messages)))  # here

    run(Array)
    assert "numpy.cbrt of this is not in the neuron language" in complaint(Strange)


@pytest.mark.parametrize("name", ["any", "all", "max", "min", "prod"])
def test_a_function_of_numpy_that_knows_no_generator(name):
    own = getattr(np, name)

    class ByName(horn.Neuron):
        def forward(self, messages):
            self.feedforward(0.0 + own(m.input > 0.0 for m in messages))  # here

    class OfModule(horn.Neuron):
        def forward(self, messages):
            self.feedforward(0.0 + getattr(np, name)(m.input > 0.0 for m in messages))  # here

    class OfList(horn.Neuron):
        def forward(self, messages):
            self.feedforward(own([m.input for m in messages]) + 0.0)

    said = f"numpy.{name} takes {name}(... for m in messages) for one object"
    for neuron in (ByName, OfModule):
        assert said in complaint(neuron)
    run(OfList)


def test_a_forward_that_yields_its_number():
    class Yields(horn.Neuron):
        def forward(self, messages):  # here
            yield sum(m.input * m.weight for m in messages)

    class Waits(horn.Neuron):
        async def forward(self, messages):  # here
            self.feedforward(sum(m.input * m.weight for m in messages))

    for neuron in (Yields, Waits):
        assert "gives its number with self.feedforward(value)" in complaint(neuron)


def test_a_number_added_to_a_text():
    class Adds(horn.Neuron):
        def forward(self, messages):
            z = sum(m.input * m.weight for m in messages)
            self.feedforward(z + "1")  # here

    assert "unsupported operand type(s) for +: 'number' and 'str'" in complaint(Adds)


def test_an_interlayer_that_returns_no_number():
    def total(output):  # here
        return (output, output.sum())

    with pytest.raises(CompileError, match="must return one number per neuron") as caught:
        run(Sum, interlayer=total)
    assert "# here" in caught.value.text


def test_a_loss_that_writes_into_what_it_is_given():
    def squared(y, t):
        y[0] = 1.0  # here
        return (y - t) ** 2

    net = horn.Network(seed=4)
    net.input(3)
    net.output(2, loss=squared)
    with pytest.raises(CompileError, match="one number, of which no place can be assigned") as said:
        probe(engine(net, dataset(2, 3, 2)), 2)
    assert "# here" in said.value.text


def test_an_error_of_the_users_own_is_told_with_its_line_and_neuron():
    class Broken(horn.Neuron):
        table = [1.0]

        def forward(self, messages):
            self.feedforward(self.table[3])

    with pytest.raises(CompileError, match="IndexError: .*; neuron 0 of layer1, sample 0") as told:
        run(Broken)
    assert "self.table[3]" in told.value.text and isinstance(told.value.__cause__, IndexError)


def test_a_step_needs_an_optimizer_and_data():
    net = horn.Network()
    net.input(2)
    net.output(2, loss="squared_error")
    from horn.backends import Setup, make

    with pytest.raises(HornError, match="made without an optimizer"):
        make("python", Setup(net)).step(np.arange(1), iteration=0, first_sample=0)
    with pytest.raises(HornError, match="bind"):
        engine(net).step(np.arange(1), iteration=0, first_sample=0)
    with pytest.raises(HornError, match="no backend is called 'numba'; known: kernels"):
        make("numba", Setup(net))


class Followed(horn.Neuron):
    average = horn.State(0.0)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total - self.sum(total, over="batch", running="average"))  # here


def test_a_statistic_that_has_no_such_argument():
    """It was Python's TypeError."""
    said = 'self.sum takes a number, and over="layer"'
    assert complaint(Followed).startswith(said)
    assert "running= is of self.mean and self.var" in complaint(Followed)
