"""Compiled equals interpreted for every neuron that horn brings and that the examples write."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import horn
from horn import neurons
from horn.activations import ACTIVATIONS
from horn.data import Dataset
from horn.neuron import Neuron
from horn.schedules import Step
from tests.parity.test_compiled_equals_interpreted import compare
from tests.support.examples import fake_data

# tests/parity/test_time.py, test_time_torch.py
OF_SEQUENCES = {"adding", "eprop", "gru", "seasons", "shakespeare", "spiking", "stdp"}
EXAMPLES = sorted(
    path
    for path in (Path(__file__).parents[2] / "examples").glob("*.py")
    if path.stem not in OF_SEQUENCES
)
BUILT_IN = [
    c for c in vars(neurons).values()
    if isinstance(c, type) and c.__module__ == neurons.__name__ and not c.__name__.startswith("_")
    and c is not neurons.Comparison  # of a loss between two layers: tests/parity/test_outputs.py
]  # fmt: skip
OPTIMIZERS = (
    horn.SGD(0.1),
    horn.SGD(0.1, momentum=0.9),
    horn.SGD(0.05, momentum=0.9, nesterov=True),
    horn.SGD(0.1, weight_decay=0.01),
    horn.SGD(0.1, momentum=0.5, clip_value=0.02),
    horn.SGD(0.1, clip_norm=0.1),
    horn.Adagrad(0.1),
    horn.RMSProp(0.01),
    horn.AdaDelta(),
    horn.Adam(0.01),
    horn.Direct(0.1),
    horn.SGD(Step(0.2, every=1, factor=0.5)),
)
HEADS = (
    ("softmax", "cross_entropy"),
    ("softmax", "squared_error"),
    ("sigmoid", "binary_cross_entropy"),
    ("tanh", "squared_error"),
)


class Halfway(Neuron):
    """Pushes and backpropagates by hand, as the paper writes it."""

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        g = 0.0
        for m in messages:
            g += m.delta * m.weight
            self.push(m.delta * self.output)
        self.backpropagate(g * self.activation.derivative(self.output))


def network(
    neuron: type[Neuron], activation: Any, head: tuple[str, Any], **settings: Any
) -> horn.Network:
    """4 inputs, two layers of this neuron, 3 outputs."""
    net = horn.Network(seed=3)
    net.input(4)
    for _ in range(2):
        net.layer(4, neuron=neuron, activation=activation, **settings)
    net.output(3, activation=head[0], loss=head[1])
    return net


@pytest.mark.parametrize("neuron", [*BUILT_IN, Halfway], ids=lambda c: c.__name__)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(neuron, activation):
    head = HEADS[list(ACTIVATIONS).index(activation) % len(HEADS)]
    compare(network(neuron, activation, head), horn.SGD(0.1, momentum=0.9), 3)


@pytest.mark.parametrize("head", HEADS, ids=" ".join)
@pytest.mark.parametrize("neuron", BUILT_IN, ids=lambda c: c.__name__)
def test_every_loss(neuron, head):
    net = network(neuron, "tanh", head)
    rng = np.random.default_rng(2)
    compare(net, horn.SGD(0.1), 3)
    if head[1] != "cross_entropy":  # several targets per sample
        data = Dataset(rng.standard_normal((6, 4)), rng.random((6, 3)))
        compare(net, horn.SGD(0.1), 3, data=data)


def pinball(output, target):
    """A loss in the user's own words."""
    error = target - output
    return horn.math.where(error > 0.0, 0.7 * error, -0.3 * error)


def test_one_output_and_a_loss_of_ones_own():
    net = horn.Network(seed=1)
    net.input(4)
    net.layer(3, activation="softplus")
    net.output(1, loss=pinball)
    rng = np.random.default_rng(2)
    compare(net, horn.SGD(0.1), 4, data=Dataset(rng.random((8, 4)), rng.random((8, 1))))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize(
    "neuron", [neurons.Standard, neurons.BatchDropout, Halfway], ids=lambda c: c.__name__
)
def test_every_optimizer(neuron, optimizer):
    compare(network(neuron, "tanh", HEADS[0]), optimizer, 4, steps=3)


EDGES = [(0, 1), (0, 3), (1, 0), (2, 2), (2, 1), (3, 0)]
CONNECTIONS = {
    "dense": None,
    "random": horn.Sparse(fan_in=2),
    "function": horn.Sparse(sources=lambda o: [o, (o + 1) % 4]),
    "edges": horn.Sparse(edge_list=EDGES),
    "csr": horn.Sparse(csr=(np.array([0, 1, 3, 3, 4]), np.array([2, 0, 3, 1]))),
}


@pytest.mark.parametrize("connect", CONNECTIONS)
@pytest.mark.parametrize("neuron", [*BUILT_IN, Halfway], ids=lambda c: c.__name__)
def test_every_connection(neuron, connect):
    net = network(neuron, "sigmoid", HEADS[0], connect=CONNECTIONS[connect])
    compare(net, horn.Adam(0.01), 3)


@pytest.mark.parametrize("per", ["sample", "batch"])
@pytest.mark.parametrize("neuron", BUILT_IN, ids=lambda c: c.__name__)
def test_a_dropped_input_and_a_graph(neuron, per):
    net = horn.Network(seed=4)
    x = net.input(5, keep=0.6, per=per)
    a = net.layer(4, neuron=neuron, activation="relu", bias=0.1)
    b = net.layer(3, neuron=neuron, activation="tanh", inputs=[x, a], bias=False)
    net.output(3, inputs=[a, b], activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1, momentum=0.5), 3, steps=3)


class Guarded(Neuron):
    """Silent if any message is: it must see the inputs of 0 of neurons that sit out."""

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total if min(abs(m.input) for m in messages) > 0.0 else 0.0)


def test_a_guard_sees_the_neurons_that_sit_out():
    net = horn.Network(seed=4)
    net.input(4)
    net.layer(4, neuron=neurons.BatchDropout, activation="sigmoid")
    net.layer(3, neuron=Guarded)
    net.output(3, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1, momentum=0.5), 4, steps=4)


@pytest.mark.parametrize("neuron", BUILT_IN, ids=lambda c: c.__name__)
def test_an_autoencoder(neuron):
    net = horn.Network(seed=2)
    net.input(5, keep=0.7)
    net.layer(3, neuron=neuron, activation="tanh")
    net.output(5, activation="sigmoid", loss="squared_error")
    data = Dataset(np.random.default_rng(0).random((7, 5)), None)
    compare(net, horn.SGD(0.1), 3, target="input", data=data)


def test_a_network_without_a_loss():
    net = horn.Network(seed=2)
    net.input(4)
    net.layer(3, neuron=_class("oja", "Oja"), bias=False)
    net.layer(2, activation="tanh")
    data = Dataset(np.random.default_rng(0).standard_normal((7, 4)), None)
    compare(net, horn.Direct(0.1), 3, target=None, data=data)


# --- the examples


def load(path: Path) -> ModuleType:
    name = f"example_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def classes() -> list[tuple[str, str]]:
    """The neuron classes that the examples write: (file, class)."""
    found = []
    for path in EXAMPLES:
        module = load(path)
        for name, thing in vars(module).items():
            if (
                isinstance(thing, type)
                and issubclass(thing, Neuron)
                and thing.__module__ == module.__name__
            ):
                found.append((path.stem, name))
    return found


def _class(stem: str, name: str) -> type[Neuron]:
    return getattr(load(Path(__file__).parents[2] / "examples" / f"{stem}.py"), name)


@pytest.mark.parametrize(("stem", "name"), classes())
@pytest.mark.parametrize("connect", [None, horn.Sparse(fan_in=2)], ids=["dense", "sparse"])
def test_neurons_of_the_examples(stem, name, connect):
    neuron = _class(stem, name)
    if neuron.interpreted:
        pytest.skip("its class asks for the interpreter")
    net = horn.Network(seed=3)
    net.input(4)
    below = net.layer(3, activation="tanh")
    inputs = dict.fromkeys(re.findall(r"messages\.(\w+)", inspect.getsource(neuron)), below)
    net.layer(4, neuron=neuron, activation="sigmoid", connect=connect, inputs=inputs or below)
    net.output(3, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1, momentum=0.9), 3)
    compare(net, horn.Direct(0.1), 2, steps=1)


def cut(network: horn.Network, largest: int) -> horn.Network | None:
    """The example's network with few neurons, where its connections allow it; inputs too."""
    sizes = {layer.name: {"size": min(layer.size, largest)} for layer in network.layers}
    try:
        return network.rebuilt(changes=sizes)
    except (horn.HornError, IndexError, ValueError):
        return None  # wired by hand for its own sizes


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_networks_of_the_examples(path, monkeypatch):
    made = _job(path, monkeypatch)
    network = cut(made.network, 5)
    if network is None:
        if max(layer.size for layer in made.network.layers) > 150:
            pytest.skip("its connections fit its own size only, which is large for the interpreter")
        network = made.network
    rng = np.random.default_rng(0)
    n_out = network.last.size
    x = rng.standard_normal((4, network.n_inputs))
    if made.target == "input":  # what some losses compare with is from 0 to 1
        x = rng.random((4, network.n_inputs))
    labels = None if made.target is None else np.arange(4) % max(n_out, 2)
    data = Dataset(x, labels)
    if network.has_several:
        data = data.with_targets({name: np.arange(4) % 2 for name in network.compared})
    compare(network, made.optimizer, 1, steps=1, target=made.target, data=data)


def _job(path: Path, monkeypatch: pytest.MonkeyPatch) -> horn.Job:
    """The example's job; what it would read from disk is not needed."""
    fake_data(monkeypatch)
    return load(path).job()


def test_every_example_is_looked_at():
    assert len(EXAMPLES) >= 8 and len(classes()) >= 4
    assert len(BUILT_IN) >= 3
