"""Models in other libraries: onnxruntime computes what predict does, and so does PyTorch.

Every built-in neuron, every example and the whole zoo; what cannot be exported is named.
"""

import importlib
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import horn
from horn import activations, neurons
from horn.cli import horn as commands
from horn.cli._end import ending
from horn.errors import CompileError, DataError
from tests.parity import programs, recurrent
from tests.support.examples import fake_data
from tests.support.functions import ONE, RANGES, neuron_of

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted([*EXAMPLES.glob("*.py"), *(EXAMPLES / "zoo").glob("*.py")])
REFUSED = {"eprop": "a SynapseState of a network of sequences"}


def module_of(path, monkeypatch):
    spec = importlib.util.spec_from_file_location(f"export_{path.stem}", path)
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, found.__name__, found)
    spec.loader.exec_module(found)
    return found


def model_of(network, dtype="float32"):
    """As if it had learned something: all arrays differ, and from 0."""
    rng = np.random.default_rng(7)

    def moved(arrays):
        return {k: v + 0.05 * rng.standard_normal(v.shape) for k, v in arrays.items()}

    kind = np.dtype(dtype)
    learned, states = network.initial_parameters(kind), network.initial_states(kind)
    return horn.Model(network, moved(learned), moved(states), dtype=dtype)


@pytest.mark.parametrize("name", ["a.pt", "a.horn", "a"])
def test_a_file_of_another_kind_is_not_written(name, tmp_path):
    net = horn.Network()
    net.input(2)
    net.output(1, loss="squared_error")
    with pytest.raises(
        horn.ModelError, match=rf"{name}: a model is exported as .onnx; name such a"
    ):
        model_of(net).export(tmp_path / name)
    assert not [*tmp_path.iterdir()]


def run_onnx(path, x, names=("y",)):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_outputs()] == [*names]
    found = session.run([*names], {"x": x})
    return found[0] if len(names) == 1 else dict(zip(names, found, strict=True))


def samples(network, n=20, dtype="float32"):
    return np.random.default_rng(3).standard_normal((n, network.n_inputs)).astype(dtype)


def check_onnx(model, folder, x=None, tolerance=1e-5):
    model.export(path := str(folder / "m.onnx"))
    x = samples(model.network, dtype=model.dtype) if x is None else x
    names = tuple(model.network.columns) if model.network.has_several else ("y",)
    for found, wanted in pairs(run_onnx(path, x, names), model.predict(x)):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def pairs(found, wanted):
    """What two libraries say, of each output."""
    if not isinstance(wanted, dict):
        return [(found, wanted)]
    assert list(found) == list(wanted)
    return [(found[name], wanted[name]) for name in wanted]


def check_torch(model, x=None, tolerance=1e-5):
    torch = pytest.importorskip("torch")
    x = samples(model.network, dtype=model.dtype) if x is None else x
    with torch.no_grad():
        found = model.to_torch()(torch.tensor(x))
    for mine, wanted in pairs(found, model.predict(x)):
        np.testing.assert_allclose(mine.numpy(), wanted, rtol=tolerance, atol=tolerance)


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def example(request, monkeypatch):
    fake_data(monkeypatch)
    job = module_of(request.param, monkeypatch).job()
    x = np.asarray(job.data.x[:20], np.float32) * np.float32(job.data.scale)
    if job.network.steps:
        x = x[:3].reshape(3, -1, job.network.n_inputs)
    return request.param.stem, model_of(job.network), x


def test_examples_and_the_zoo_in_onnxruntime(example, tmp_path):
    name, model, x = example
    if name in REFUSED:
        with pytest.raises(horn.CompileError, match=REFUSED[name]):
            model.export(tmp_path / "m.onnx")
    else:
        check_onnx(model, tmp_path, x)


def test_examples_and_the_zoo_in_pytorch(example):
    name, model, x = example
    if name not in REFUSED:
        check_torch(model, x)


class HeardAny(horn.Neuron):
    """Asks its layer a question that is yes or no."""

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(z + self.max(z > 0.2, over="layer"))


def test_a_truth_of_a_layer_is_a_number(tmp_path):
    check_onnx(model_of(network(HeardAny)), tmp_path)


class Nearest(horn.Neuron):
    """Passes on one input: that which differs least from its weight."""

    def forward(self, messages):
        nearest = min(messages, key=lambda m: abs(m.input - m.weight))
        self.feedforward(nearest.input * nearest.weight)


@pytest.mark.parametrize("connect", [None, horn.Sparse(fan_in=3), horn.Sparse(fan_in=1)])
def test_the_message_with_the_smallest_key(connect, tmp_path):
    check_onnx(model_of(network(Nearest, connect=connect), "float64"), tmp_path, tolerance=1e-12)


def network(neuron=neurons.Standard, activation="tanh", **settings):
    net = horn.Network(seed=3)
    x = net.input(6, keep=0.8)
    a = net.layer(5, neuron=neuron, activation=activation, **settings)
    b = net.layer(4, neuron=neuron, activation=activation, inputs=[x, a], bias=False)
    net.output(3, inputs=[a, b], activation="softmax", loss="cross_entropy")
    return net


class Product(horn.Neuron):
    """No sum: what is missing in a sparse table must count as 1."""

    def forward(self, messages):
        product = 1.0
        for m in messages:
            product *= 1.0 + m.input * m.weight
        largest = max(m.input for m in messages)
        self.feedforward(self.activation(product + largest))


class Counting(horn.Neuron):
    """Draws that belong to a synapse, places, truth values, whole divisions, angles."""

    gain = horn.Parameter(1.5)
    trace = horn.State(0.2)

    def forward(self, messages):
        total, n = 0.0, 0
        for m in messages:
            total += m.input * m.weight * m.normal(1.0, 0.1) + 0.01 * m.index
            if m.input > 0 and not m.weight > 0.1:
                n += 1
        angle = horn.math.atan2(total, n - 1.5) + horn.math.asin(0.1 * total % 1)
        whole = (7.3 * total) // 2 + horn.math.erfc(total) + horn.math.expm1(0.1 * total)
        self.trace = total
        self.feedforward(self.gain * angle + 0.1 * whole + (n == 2) + self.trace * (self.index % 2))


SPARSE = {
    "dense": None,
    "three": horn.Sparse(fan_in=3),
    "uneven": horn.Sparse(sources=lambda o: range(o % 4 + 1)),
}
NEURONS = [neurons.Standard, neurons.Dropout, neurons.BatchDropout, Product, Counting]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("connect", SPARSE)
@pytest.mark.parametrize("neuron", NEURONS, ids=lambda c: c.__name__)
def test_neurons_with_every_connection(neuron, connect, dtype, tmp_path):
    model = model_of(network(neuron, "relu", connect=SPARSE[connect]), dtype)
    check_onnx(model, tmp_path)


@pytest.mark.parametrize("connect", SPARSE)
@pytest.mark.parametrize("neuron", NEURONS, ids=lambda c: c.__name__)
def test_neurons_in_pytorch(neuron, connect):
    check_torch(model_of(network(neuron, "relu", connect=SPARSE[connect]), "float64"))


@pytest.mark.parametrize("activation", activations.ACTIVATIONS)
def test_every_activation(activation, tmp_path):
    check_onnx(model_of(network(activation=activation)), tmp_path)
    check_onnx(model_of(network(activation=activation), "float64"), tmp_path)


def test_softplus_of_large_numbers_in_double(tmp_path):
    net = horn.Network(seed=1)
    net.input(6)
    net.output(3, activation="softplus", loss="squared_error")
    model = model_of(net, "float64")
    check_onnx(model, tmp_path, 1e4 * samples(net, dtype="float64"), 1e-12)


UNEVEN = np.array([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1]])


@pytest.mark.parametrize(
    ("shape", "size", "connect", "transposed"),
    [
        (4, 3, UNEVEN, True),
        ((3, 3, 1), None, horn.Window(2, padding="same"), True),
        ((3, 3, 1), None, horn.Window(2, padding="same"), False),
        ((3, 3, 1), None, horn.Local(2, 2, padding="same"), True),
    ],
    ids=["sparse", "window", "window again", "local"],
)
def test_tied_weights_of_unlike_numbers_of_synapses(shape, size, connect, transposed, tmp_path):
    net = horn.Network(seed=2)
    net.input(shape)
    own = net.layer(size, connect=connect)
    net.layer(connect=horn.Tied(own, transposed=transposed))
    net.output(2, loss="squared_error")
    check_onnx(model_of(net), tmp_path)
    check_torch(model_of(net))


class Strongest(horn.Neuron):
    def forward(self, messages):
        best = max(messages, key=lambda m: m.input)
        self.feedforward(best.input * best.weight)


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        (4, {"size": 4, "connect": np.vstack([UNEVEN, np.zeros(4)])}),
        ((3, 3, 1), {"connect": horn.Convolution(2, 2, padding="same")}),
        ((3, 3, 1), {"connect": horn.Window(2, padding="same")}),
    ],
    ids=["sparse", "convolution", "window"],
)
@pytest.mark.parametrize("neuron", [Strongest, Nearest], ids=lambda c: c.__name__)
def test_the_message_with_the_largest_key_at_borders(neuron, shape, settings, tmp_path):
    net = horn.Network(seed=2)
    net.input(shape)
    net.layer(neuron=neuron, **settings)
    net.output(2, loss="squared_error")
    check_onnx(model_of(net), tmp_path)
    check_torch(model_of(net))


class Shrinking(horn.Neuron):
    def forward(self, messages):
        product = 1.0
        for m in messages:
            product *= 1.0 + m.input * m.weight
        self.feedforward(product)


@pytest.mark.parametrize("neuron", [neurons.Standard, Shrinking, Strongest])
def test_a_link_without_any_synapse(neuron, tmp_path):
    net = horn.Network(seed=2)
    net.input(4)
    net.layer(3, neuron=neuron, connect=np.zeros((3, 4)))
    net.output(3, loss="squared_error")
    check_onnx(model_of(net), tmp_path)
    check_torch(model_of(net))


def test_a_model_without_learned_arrays_in_pytorch():
    class Lightest(horn.Neuron):
        def forward(self, messages):
            self.feedforward(max(m.input for m in messages))

    net = horn.Network()
    net.input((4, 4, 1))
    net.layer(connect=horn.Window(2, stride=2), neuron=Lightest, name="pool")
    net.output(2, loss="squared_error")
    check_torch(model_of(net).cut("pool"))


@pytest.mark.parametrize("name", ["add_4", "whole_0", "number_1", "number_inf", "y", "shape_1"])
def test_an_output_may_be_named_as_nodes_were(name, tmp_path):
    net = horn.Network(seed=2)
    net.input(4)
    hidden = net.layer(3)
    net.output(3, loss="cross_entropy", activation="softmax", name="kind", inputs=hidden)
    net.output(2, loss="squared_error", name=name, inputs=hidden)
    check_onnx(model_of(net), tmp_path)


def test_an_output_named_as_the_input_is_refused(tmp_path):
    net = horn.Network(seed=2)
    net.input(4)
    hidden = net.layer(3)
    net.output(2, loss="squared_error", name="x", inputs=hidden)
    net.output(2, loss="squared_error", name="z", inputs=hidden)
    with pytest.raises(horn.ModelError, match="named 'x'.*give that layer another name"):
        model_of(net).export(tmp_path / "m.onnx")
    assert not [*tmp_path.iterdir()]


def of_one_number(neuron, dtype="float32"):
    """A model of one neuron that hears one number, by a weight of 1."""
    net = horn.Network()
    net.input(1)
    net.output(1, neuron=neuron, bias=False)
    return horn.Model(net, {"layer1.weight": np.ones((1, 1))}, dtype=dtype)


class Largest(horn.Neuron):
    def forward(self, messages):
        z = horn.math.log(sum(m.input * m.weight for m in messages))
        self.feedforward(max(0.5, z))


class Smallest(horn.Neuron):
    def forward(self, messages):
        z = horn.math.log(sum(m.input * m.weight for m in messages))
        self.feedforward(min(0.5, z))


class Signed(horn.Neuron):
    def forward(self, messages):
        z = horn.math.log(sum(m.input * m.weight for m in messages))
        self.feedforward(horn.math.sign(z))


@pytest.mark.parametrize("neuron", [Largest, Smallest, Signed], ids=lambda c: c.__name__)
def test_what_is_no_number_stays_none(neuron, tmp_path):
    model, x = of_one_number(neuron), np.array([[-1], [0], [0.5], [1], [3]], np.float32)
    assert np.isnan(model.predict(x)[0, 0])
    check_onnx(model, tmp_path, x)
    check_torch(model, x)


class Clock(horn.Neuron):
    """0.1 is a little more than a tenth: 1 // 0.1 is 9, as in Python."""

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(10 * (z // 0.1) + z % 0.1 - z % -0.3)


class Rate(horn.Neuron):
    """Such quotients of small numbers are in the gates of Hodgkin and Huxley's."""

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(z / horn.math.expm1(z) + horn.math.log1p(z) / z)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_whole_divisions_of_what_no_number_is_exactly(dtype, tmp_path):
    x = np.array([[1.0], [0.5], [2.0], [-1.0], [-0.3], [0.0], [0.1], [-2.5]], dtype)
    check_onnx(of_one_number(Clock, dtype), tmp_path, x)
    check_torch(of_one_number(Clock, dtype), x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_numbers_keep_their_digits(dtype, tmp_path):
    x = np.array([[1e-20], [1e-9], [-1e-9], [1e-4], [-0.5], [3.0], [80.0]], dtype)
    check_onnx(of_one_number(Rate, dtype), tmp_path, x)
    check_torch(of_one_number(Rate, dtype), x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", RANGES)
def test_every_function_of_the_language_is_exported(name, dtype, tmp_path):
    args = [f"sum(m.input for m in messages if m.index == {k})" for k in range(len(RANGES[name]))]
    net = horn.Network()
    net.input(len(args))
    net.output(1, neuron=neuron_of(name, args, tmp_path), bias=False)
    model = horn.Model(net, {"layer1.weight": np.ones((1, len(args)))}, dtype=dtype)
    x = np.random.default_rng(5).uniform(*np.transpose(RANGES[name]), (200, len(args)))
    check_onnx(model, tmp_path, x.astype(dtype))
    check_torch(model, x.astype(dtype))


TAILS = {
    **{name: getattr(horn.math, name, horn.math.abs_) for name in ONE},
    "atan2": lambda z: horn.math.atan2(z, -0.7),
    "asin": horn.math.asin,
    "acos": horn.math.acos,
    "infinite": lambda z: horn.math.atan2(z / 0.0, 1.0 / -horn.math.abs_(z * 0.0)),
    "minus zero": lambda z: horn.math.atan2(-0.0 * horn.math.abs_(z), -1.0),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", TAILS)
def test_every_function_keeps_its_digits_far_out(name, dtype, tmp_path):
    x = np.array([0.0, *np.geomspace(1e-30, 9.0, 80), *range(10, 80, 5), 1e3, 1e30])
    x = np.concatenate([-x, x, np.linspace(-2.0, 2.0, 41)])
    check_digits(TAILS[name], x, dtype, tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "of, x",
    [("sigmoid", [-1.0, -10.0, -15.0, -17.0, -20.0, -40.0, -85.0]), ("erfc", [1.0, 3.5, 5.0, 9.0])],
)
def test_a_logarithm_of_what_is_next_to_nothing(of, x, dtype, tmp_path):
    check_digits(lambda z: horn.math.log(TAILS[of](z)), np.array(x), dtype, tmp_path)


def check_digits(activation, x, dtype, folder):
    net = horn.Network()
    net.input(1)
    net.output(1, activation=activation, bias=False)
    model = horn.Model(net, {"layer1.weight": np.ones((1, 1))}, dtype=dtype)
    model.export(path := str(folder / "m.onnx"))
    rtol, tiny = (1e-12, 1e-300) if dtype == "float64" else (1e-5, 1e-37)
    x = x[:, None].astype(dtype)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(run_onnx(path, x), model.predict(x), rtol=rtol, atol=tiny)


def test_names_that_differ_in_a_sign_are_two_parameters():
    net = horn.Network(seed=1)
    net.input(6)
    for name in ("h-1", "h_1", "h 1"):
        net.layer(6, name=name, neuron=Counting)
    net.output(3, loss="squared_error")
    check_torch(model_of(net))


WINDOWS = {
    "same": ((5, 4, 2), {"kernel": (3, 2), "stride": 2, "padding": "same"}),
    "some hear nothing": ((7, 6, 2), {"kernel": 2, "stride": 3}),
    "1-D": ((8, 2), {"kernel": 3, "stride": 2, "dilation": 2, "padding": 1}),
    "groups": ((5, 4, 6), {"kernel": 2, "padding": 1, "groups": 3}),
    "pairs": ((6, 5, 2), {"kernel": 3, "stride": 2, "padding": ((0, 2), (1, 0))}),
    "before": ((7, 2), {"kernel": 3, "dilation": 2, "padding": ((4, 0),)}),
    "after a stride": ((5, 6, 2), {"kernel": 2, "stride": 3, "padding": ((0, 1), (1, 0))}),
}


@pytest.mark.parametrize(("below", "told"), WINDOWS.values(), ids=WINDOWS)
def test_the_way_back_of_a_convolution(below, told, tmp_path):
    net = horn.Network(seed=1)
    net.input(below)
    maps = net.layer(connect=horn.Convolution(3, **told), activation="tanh")
    net.output(connect=horn.Tied(maps, transposed=True), loss="squared_error")
    model = model_of(net)
    check_onnx(model, tmp_path)
    with pytest.raises(CompileError, match="the way back .* float64, .* of float32 alone. Export"):
        model_of(net, "float64").export(tmp_path / "m.onnx")
    check_torch(model)


@pytest.mark.parametrize(("below", "told"), WINDOWS.values(), ids=WINDOWS)
def test_a_transposed_convolution(below, told, tmp_path):
    net = horn.Network(seed=1)
    net.input(below)
    maps = net.layer(connect=horn.TransposedConvolution(3, **told), activation="tanh")
    net.layer(connect=horn.Tied(maps, transposed=True), activation="tanh")
    net.output(2, loss="squared_error")
    model = model_of(net)
    check_onnx(model, tmp_path)
    with pytest.raises(CompileError, match="the way back .* float64, .* of float32 alone. Export"):
        model_of(net, "float64").export(tmp_path / "m.onnx")
    check_torch(model)


@pytest.mark.parametrize(("below", "told"), WINDOWS.values(), ids=WINDOWS)
def test_a_convolution_in_double(below, told, tmp_path):
    net = horn.Network(seed=1)
    net.input(below)
    net.layer(connect=horn.Convolution(6, **told), activation="relu")
    net.output(2, activation="softmax", loss="cross_entropy")
    check_onnx(model_of(net, "float64"), tmp_path, tolerance=1e-12)


def test_neurons_without_synapses_and_outputs_that_hear_nothing(tmp_path):
    edges = horn.Sparse(edge_list=[(0, 1), (2, 2), (2, 4)])
    check_onnx(model_of(network(connect=edges)), tmp_path)

    class Deaf(horn.Neuron):
        level = horn.Parameter(0.3)

        def forward(self, messages):
            self.feedforward(self.level * self.index)

    net = horn.Network()
    net.input(2)
    net.output(3, neuron=Deaf)
    model = model_of(net)
    check_onnx(model, tmp_path)
    check_torch(model)


# In float32 a sample may stand where a program has a step, as those of program 10 do.
@pytest.mark.parametrize(
    ("seed", "dtype"),
    [*((seed, "float64") for seed in range(12)), *((seed, "float32") for seed in range(0, 10, 2))],
)
def test_programs_of_the_whole_grammar(seed, dtype, tmp_path):
    net = programs.load(programs.program(seed), seed, tmp_path).network()
    model = model_of(net, dtype)
    tolerance = 1e-5 if dtype == "float64" else 5e-4  # powers enlarge the last digit of float32
    with np.errstate(all="ignore"):
        check_onnx(model, tmp_path, tolerance=tolerance)
        check_torch(model, tolerance=tolerance)


def test_what_cannot_be_exported_is_named(tmp_path):
    class Noisy(horn.Neuron):
        def forward(self, messages):
            total = sum(m.input * m.weight for m in messages)
            self.feedforward(total + self.normal(0.0, 0.1))

    class NoisySynapse(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.input * m.weight * self.bernoulli(0.5) for m in messages))

    @horn.interpreted
    class Slow(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.input * m.weight for m in messages))

    for neuron, reason in (
        (Noisy, r"self\.normal draws a number per sample"),
        (NoisySynapse, r"self\.uniform \(or bernoulli\) draws a number per message"),
        (Slow, "@horn.interpreted runs it message by message"),
    ):
        net = horn.Network()
        net.input(3)
        net.layer(2, neuron=neuron)
        net.output(2)
        said = f"layer 1 'layer1': {neuron.__name__} cannot be exported: .*{reason}"
        with pytest.raises(horn.CompileError, match=said):
            model_of(net).export(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


# --- sequences

CELLS = tuple(cell for cell in recurrent.CELLS if cell is not recurrent.Masked)  # it draws always


SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 45)]


@pytest.mark.parametrize("seed", [3, 4, *SLOW])
def test_generated_recurrent_nets_of_any_number_of_steps(seed, tmp_path):
    """Several delays and layers, States, gates, sparse links; judged by each step or the last."""
    net, (x, _) = recurrent.generated(seed, CELLS)
    model = model_of(net, "float64")
    check_onnx(model, tmp_path, x, 1e-9)
    longer = np.concatenate([x, x[::-1]], axis=1)
    found = run_onnx(str(tmp_path / "m.onnx"), longer)
    np.testing.assert_allclose(found, model.predict(longer), atol=1e-9)


@pytest.mark.parametrize("seed", [3, 4])
def test_generated_recurrent_nets_in_pytorch(seed):
    net, (x, _) = recurrent.generated(seed, CELLS)
    check_torch(model_of(net, "float64"), x, 1e-9)


@pytest.mark.parametrize("each_step", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_no_sequences_have_no_answers(late, each_step, tmp_path):
    net = horn.Network(seed=1)
    x = net.input(2, steps=3)
    net.layer(4, activation="tanh", inputs=[x, horn.Delayed()] if late else x)
    net.output(1, loss="squared_error", each_step=each_step)
    check_onnx(model_of(net), tmp_path, np.zeros((0, 3, 2), np.float32))
    check_onnx(model_of(net), tmp_path, np.zeros((2, 3, 2), np.float32))


def test_several_outputs_of_a_sequence_that_is_normalized(tmp_path):
    net = horn.Network(seed=1)
    a = net.layer(4, activation="tanh", inputs=[net.input(2, steps=5), horn.Delayed(steps=3)])
    net.output(3, inputs=a, activation="softmax", loss="cross_entropy", name="kind", each_step=True)
    net.output(1, inputs=a, loss="squared_error", name="all")
    rng = np.random.default_rng(1)
    x = rng.normal(3.0, 9.0, (12, 5, 2)).astype(np.float32)
    y = {"kind": rng.integers(0, 3, (12, 5)), "all": rng.normal(size=(12, 1))}
    model = horn.train(horn.Job(net, (x, y), epochs=1, normalize=True)).model
    check_onnx(model, tmp_path, x)


def test_what_of_sequences_is_refused(tmp_path):
    class Traces(horn.Neuron):
        trace = horn.SynapseState(0.0, per="sample")

        def forward(self, messages):
            total = 0.0
            for m in messages:
                m.trace = 0.5 * m.trace + m.input
                total += m.trace * m.weight
            self.feedforward(total)

    for neuron, hears, said in (
        (neurons.Standard, horn.Reversed, r"horn.Reversed\) cannot be exported.*without it"),
        (Traces, lambda x: x, r"SynapseState of .* cannot be exported.*in a horn.State"),
        (Drawing, lambda x: x, "draws a number per sequence.*where self.training is False"),
    ):
        net = horn.Network()
        net.layer(2, neuron=neuron, inputs=hears(net.input(3, steps=4)))
        net.output(2, loss="squared_error")
        with pytest.raises(horn.CompileError, match=said):
            model_of(net).export(tmp_path / "m.onnx")


class Drawing(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages) * self.normal(per="sequence"))


def test_a_trained_model_is_a_file_of_the_standard(tmp_path):
    net = horn.Network(seed=1)
    net.input(64)
    net.layer(30, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    digits = horn.data.digits()
    model = horn.train(horn.Job(net, digits, epochs=3)).model
    model.export(tmp_path / "digits.onnx")
    made = onnx.load(tmp_path / "digits.onnx")
    onnx.checker.check_model(made, full_check=True)
    assert made.ir_version == 10 and made.opset_import[0].version == 17
    assert made.producer_name == "horn"
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in made.graph.initializer}
    np.testing.assert_array_equal(weights["layer1.weight"], model.parameters["layer1.weight"])
    kinds = [node.op_type for node in made.graph.node]
    assert kinds.count("MatMul") == 2
    for n in (1, 500):  # batches of any length
        x = np.asarray(digits.x[:n], np.float32) * np.float32(digits.scale)
        found = run_onnx(str(tmp_path / "digits.onnx"), x)
        np.testing.assert_allclose(found, model.predict(x), atol=1e-5)
    model.export(tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "digits.onnx").read_bytes()


def test_features_are_normalized_in_the_file(tmp_path):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((60, 6)) * [1, 10, 100, 1, 1, 0.1] + 50).astype(np.float32)
    job = horn.Job(network(), (x, np.arange(60) % 3), epochs=2, normalize=True)
    model = horn.train(job).model
    assert model.normalization is not None
    check_onnx(model, tmp_path, x)
    check_torch(model, x)


def test_the_command_writes_it_and_says_what_it_takes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = model_of(network())
    model.facts["scale"] = 1 / 255
    model.save("net.horn")
    assert ending(commands, ["export", "net.horn"]) == 0
    said = capsys.readouterr().err
    assert "Wrote net.onnx: x (batch, 6) to y (batch, 3), float32." in said
    assert "bytes times 0.00392157" in said
    np.testing.assert_allclose(
        run_onnx("net.onnx", samples(model.network)), model.predict(samples(model.network)),
        atol=1e-5,
    )  # fmt: skip
    assert ending(commands, ["export", "net.horn", "-o", "other.onnx", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["output"] == "other.onnx"
    assert ending(commands, ["export", "net.horn", "-o", "net.pb"]) == 2
    assert "a model is exported as .onnx" in capsys.readouterr().err
    assert ending(commands, ["export", "net.horn", "-o", "none/m.onnx"]) == 2
    assert "the folder none does not exist" in capsys.readouterr().err
    assert ending(commands, ["export", "nothing.horn"]) == 4


def test_the_command_names_steps_and_every_output(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = horn.Network(seed=1)
    h = net.layer(3, activation="tanh", inputs=[net.input(5, steps=4), horn.Delayed()])
    net.output(2, activation="softmax", loss="cross_entropy", each_step=True, name="tag")
    net.output(1, activation="sigmoid", loss="binary_cross_entropy", inputs=h, name="whole")
    model_of(net).save("net.horn")
    assert ending(commands, ["export", "net.horn"]) == 0
    said = "x (batch, steps, 5) to tag (batch, steps, 2) and whole (batch, 1), float32."
    assert f"Wrote net.onnx: {said}" in capsys.readouterr().err
    assert ending(commands, ["export", "net.horn", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    shapes = found["shapes"]
    assert found["outputs"] == 3
    session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
    assert {
        one.name: one.shape for one in (*session.get_inputs(), *session.get_outputs())
    } == shapes


def test_without_onnx_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(horn.ModelError, match="pip install onnx"):
        model_of(network()).export(tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(horn.ModelError, match="needs PyTorch"):
        model_of(network()).to_torch()


def test_gradients_of_pytorch_are_those_of_horn():
    torch = pytest.importorskip("torch")
    from horn.backends import Setup, make

    net = horn.Network(seed=3)
    net.input(6)
    net.layer(5, neuron=Product, activation="tanh", connect=horn.Sparse(fan_in=3))
    net.layer(4, activation="relu")
    net.output(3, activation="softmax", loss="cross_entropy")
    model = model_of(net, "float64")
    x, y = samples(net, dtype="float64"), np.arange(20) % 3
    engine = make("reference", Setup(net, horn.SGD(), "labels", 20, "float64"))
    engine.load(model.parameters)
    engine.bind(horn.data.Dataset(x, y))
    probed = engine.probe(np.arange(20), iteration=0, first_sample=0)

    module = model.to_torch()
    loss = torch.nn.functional.nll_loss(module(torch.tensor(x)).log(), torch.tensor(y))
    loss.backward()
    assert abs(loss.item() - float(probed["loss"])) < 1e-12
    names = dict(module.named_parameters())
    assert set(names) == {name.replace(".", "_") for name in model.parameters}
    for name, parameter in names.items():
        wanted = probed[name.replace("_", ".") + ".gradient"]
        np.testing.assert_allclose(parameter.grad.numpy(), wanted, rtol=1e-9, atol=1e-12)


def test_a_module_takes_images_as_they_were_declared_and_says_what_it_takes():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    net = horn.Network(seed=1)
    net.input((6, 5, 2))
    net.layer(connect=horn.Convolution(2, 3))
    net.output(2, activation="softmax", loss="cross_entropy")
    module, model = model_of(net).to_torch(), model_of(net)
    x = rng.random((4, 6, 5, 2), np.float32)
    for each in (x, x.reshape(4, -1)):
        found = module(torch.tensor(each)).detach().numpy()
        np.testing.assert_allclose(found, model.predict(x), atol=1e-6)
    said = r"x of shape \(batch, 60\) or \(batch, 6, 5, 2\), got \(4, 2, 6, 5\)"
    with pytest.raises(DataError, match=said):
        module(torch.tensor(x.transpose(0, 3, 1, 2)))
    with pytest.raises(DataError, match=r"got \(6, 5, 2\)"):
        module(torch.tensor(x[0]))

    net = horn.Network(seed=1)
    net.input((4, 3), steps=5)
    net.layer(3)
    net.output(2, activation="softmax", loss="cross_entropy")
    module, model = model_of(net).to_torch(), model_of(net)
    x = rng.random((2, 5, 4, 3), np.float32)
    for each in (x, x.reshape(2, 5, 12)):
        found = module(torch.tensor(each)).detach().numpy()
        np.testing.assert_allclose(found, model.predict(x), atol=1e-6)
    with pytest.raises(DataError, match=r"\(batch, steps, 12\) or \(batch, steps, 4, 3\), got"):
        module(torch.tensor(x.reshape(2, 60)))


class Brightest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


def test_the_gradient_of_equals_is_that_of_horn():
    torch = pytest.importorskip("torch")
    from horn.backends import Setup, make

    net = horn.Network()
    net.input(2)
    net.output(1, neuron=Brightest, loss="squared_error", bias=False)
    model = horn.Model(net, {"layer1.weight": np.zeros((1, 2))}, dtype="float64")
    x, y = np.array([[2.0, 3.0]]), np.array([[5.0]])
    engine = make("reference", Setup(net, horn.SGD(), "values", 1, "float64"))
    engine.load(model.parameters)
    engine.bind(horn.data.Dataset(x, y))
    probed = engine.probe(np.arange(1), iteration=0, first_sample=0)

    module = model.to_torch()
    (0.5 * (module(torch.tensor(x)) - torch.tensor(y)) ** 2).sum().backward()
    found = module.layer1_weight.grad.numpy()
    assert found[0, 0] and not found[0, 1]  # of equals the first has it
    np.testing.assert_allclose(found, probed["layer1.weight.gradient"], rtol=1e-12)


def unbounded(x):
    return x if abs(x) < 1e38 else x**9  # predict refuses infinite features


class Middle(horn.Neuron):
    def forward(self, messages):
        self.feedforward(horn.math.median(unbounded(m.input) for m in messages))


class SecondSmallest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(horn.math.smallest(2, (unbounded(m.input) for m in messages)))


class TwoLargest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(horn.math.top_sum(2, (unbounded(m.input) for m in messages)))


FAR_APART = np.array([
    [0.001, 0.002, 1e10], [-1e10, 1e-3, 1e10], [1e-6, 2e-6, 1.0], [-1e30, 0.001, 2.0],
    [-2e38, 0.5, 2.0], [0.5, 2.0, 2e38], [-2e38, 3e-39, 2e38], [-2e38, -2e38, -1.0],
    [1.0, 1.0, 2e38], [0.0, 0.0, 1e-30], [-1e-30, -2e-30, -1e30], [0.0, -1e-7, 1e-7],
    [2.0, 2.0000002, 2.0000005], [-1.0, -9e37, 9e37], [1.0, 2.0, 2.0], [-3.0, -3.0, -3.0],
])  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("neuron", [Middle, SecondSmallest, TwoLargest])
def test_orders_of_messages_that_are_far_apart(neuron, dtype, tmp_path):
    net = horn.Network()
    net.input(3)
    net.output(1, neuron=neuron, bias=False, loss="squared_error")
    model, x = model_of(net, dtype), FAR_APART.astype(dtype)
    model.export(path := str(tmp_path / "m.onnx"))
    np.testing.assert_allclose(run_onnx(path, x), model.predict(x), rtol=1e-7)


class RootsDown(horn.Neuron):
    def forward(self, messages):
        self.feedforward(min(horn.math.sqrt(m.input) for m in messages))


class RootsUp(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(horn.math.sqrt(m.input) for m in messages))


@pytest.mark.parametrize("neuron", [RootsDown, RootsUp])
def test_a_message_that_is_no_number_is_not_lost(neuron, tmp_path):
    net = horn.Network()
    net.input(3)
    net.output(1, neuron=neuron, bias=False, loss="squared_error")
    model = model_of(net)
    check_onnx(model, tmp_path, np.array([[-1, 4, 9], [4, -1, 9], [4, 9, -1]], np.float32))


def test_the_gradient_of_softplus_at_zero():
    torch = pytest.importorskip("torch")
    net = horn.Network()
    net.input(1)
    net.output(1, activation="softplus", loss="squared_error", bias=False)
    module = horn.Model(net, {"layer1.weight": np.ones((1, 1))}).to_torch()
    module(x := torch.zeros((1, 1), requires_grad=True)).sum().backward()
    assert x.grad.item() == 0.5


def test_a_module_is_saved_and_loaded_as_those_of_pytorch_are(tmp_path):
    torch = pytest.importorskip("torch")
    net = network(Counting)
    first, second = model_of(net), horn.Model(net, net.initial_parameters(np.dtype("float32")),
                                              model_of(net).states)  # fmt: skip
    x = torch.tensor(samples(net))
    wanted, other = first.to_torch(), second.to_torch()
    wanted(x)  # constants that it made on the way are not saved
    torch.save(wanted.state_dict(), tmp_path / "net.pt")
    assert not torch.allclose(wanted(x), other(x))
    other.load_state_dict(torch.load(tmp_path / "net.pt"))
    assert torch.allclose(wanted(x), other(x))


@pytest.mark.parametrize("neuron", [*NEURONS, Strongest, Nearest], ids=lambda c: c.__name__)
@pytest.mark.parametrize(
    "connect", [SPARSE["uneven"], horn.Sparse(sources=lambda o: range(3 * (o == 1)))]
)
def test_neurons_in_tables_by_their_number_of_synapses(neuron, connect, monkeypatch, tmp_path):
    monkeypatch.setattr("horn.export.program.MOSTLY_EMPTY", 0)
    model = model_of(network(neuron, "relu", connect=connect), "float64")
    check_onnx(model, tmp_path, tolerance=1e-12)
    check_torch(model, tolerance=1e-12)


class Loudest(horn.Neuron):
    """Numbers at each synapse that several loops read."""

    def forward(self, messages):
        largest = max(m.input * m.weight for m in messages)
        share = sum(horn.math.exp(m.input * m.weight - largest) for m in messages)
        told = sum(m.input * horn.math.exp(m.input * m.weight - largest) for m in messages)
        self.feedforward(told / share)


@pytest.mark.parametrize("neuron", [neurons.Standard, Loudest])
def test_a_neuron_that_hears_all_takes_the_places_of_its_own_synapses(neuron, tmp_path):
    n = 10_000
    net = horn.Network(seed=1)
    net.input(n)
    heard = horn.Sparse(sources=lambda o: range(n) if o == 7 else range(o, o + 10))
    net.layer(n - 10, neuron=neuron, connect=heard)
    net.output(2, loss="squared_error", connect=horn.Sparse(fan_in=100))
    model = model_of(net)
    check_onnx(model, tmp_path, samples(net, 2))
    assert (tmp_path / "m.onnx").stat().st_size < 8_000_000  # tables of n * n places have 800 MB
    check_torch(model, samples(net, 2))


def test_several_inputs_with_channels_are_normalized_in_the_file(tmp_path):
    def job(side, **settings):
        net = horn.Network(seed=1)
        both = [net.input((side, side, 2), name="image"), net.input((side, side, 1), name="depth")]
        maps = net.layer(inputs=both, connect=horn.Convolution(3, 3), name="maps")
        net.output(2, activation="softmax", loss="cross_entropy", inputs=maps, name=f"of{side}")
        rng = np.random.default_rng(side)
        x = {layer.name: rng.normal(3, 5, (8, layer.size)) for layer in both}
        return horn.Job(net, (x, np.arange(8) % 2), epochs=1, **settings)

    model = horn.train(job(5, normalize="channel")).model
    larger = horn.train(job(6, initial=model)).model  # by the means of the smaller ones
    for each in (model, larger):
        check_onnx(each, tmp_path, 9.0 * samples(each.network) + np.float32(3.0))
    check_torch(larger, 9.0 * samples(larger.network) + np.float32(3.0))
