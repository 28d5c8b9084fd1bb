"""Any net of windows, named inputs and ties, of neurons of any kind: interpreter = reference =
kernels, derived gradients = finite differences, 1 task = 2 = 3 tasks however it is placed.

``-m slow`` runs 300 nets; HORN_EXAMPLES=2000 as many, other ones in every run.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

import horn
from horn.backends import Setup
from horn.compiler.lower import training_program
from horn.errors import CompileError, ModelError
from horn.partition.placement import PLACES, Placement
from horn.partition.share import Share, count
from horn.program import base
from tests.parity.differences import check_gradients
from tests.parity.test_compiled_equals_interpreted import compare, samples
from tests.parity.test_tasks import compare as compare_tasks
from tests.parity.test_tasks import of_group, of_one
from tests.support.neurons import RBF, Counting, Gated, MaxPool, Mean, Product, Silenced, Written
from tests.transport.groups import good

MOST_SYNAPSES = 900  # of a layer: the interpreter visits each for every sample


class TwoWays(horn.Neuron):
    """Tells two inputs apart, and looks at both."""

    gain = horn.Parameter(0.5)

    def forward(self, messages):
        near = sum(m.input * m.weight for m in messages.x)
        far = sum((m.input - m.weight) ** 2 for m in messages.y)
        every = sum(m.input * m.weight for m in messages)
        self.feedforward(horn.math.tanh(near) + self.gain * horn.math.exp(-far) * every)


NEURONS = [horn.neurons.Standard, RBF, Product, Gated, Written, Silenced, Counting, MaxPool, Mean]


@st.composite
def windows(draw: Any, n_dims: int, channels: int) -> Any:
    """A connection through windows, told anything: it may not fit."""
    padding: Any = draw(st.sampled_from(["same", "valid", "same", 0, 1, 2, "pairs", "pairs"]))
    if padding == "pairs":
        padding = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(n_dims))
    told: dict[str, Any] = {"padding": padding}
    for name, most in (("kernel", 4), ("stride", 3), ("dilation", 2)):
        values = tuple(draw(st.integers(1, most)) for _ in range(n_dims))
        told[name] = values if draw(st.booleans()) else values[0]
    kinds = ["convolution", "local", "window", "convolution", "transposed", "one to one"]
    kind = draw(st.sampled_from(kinds))
    if kind in ("convolution", "transposed"):
        groups = draw(st.sampled_from([1, 1, channels]))
        through = horn.Convolution if kind == "convolution" else horn.TransposedConvolution
        return through(groups * draw(st.integers(1, 2)), groups=groups, **told)
    if kind == "local":
        return horn.Local(draw(st.integers(1, 2)), **told)
    return horn.Window(channels=draw(st.sampled_from([1, 3])), **told) if kind == "window" else (
        horn.OneToOne()
    )  # fmt: skip


@st.composite
def nets(draw: Any) -> horn.Network:
    n_dims = draw(st.sampled_from([1, 2]))
    shape = (*(draw(st.integers(1, 5)) for _ in range(n_dims)), draw(st.integers(1, 3)))
    net = horn.Network(seed=draw(st.integers(0, 9)))
    net.input(shape)
    for _ in range(draw(st.integers(1, 3))):
        below = net.layers[-1]
        channels = below.shape[-1]
        told: dict[str, Any] = {"neuron": draw(st.sampled_from(NEURONS)), "activation": "tanh"}
        way = draw(st.sampled_from(["through", "through", "through", "two", "tied"]))
        tied = [x for x in net.layers[1:] if len(x.links) == 1 and x.links[0].tie is None]
        if way == "two":
            told |= {"neuron": TwoWays, "inputs": {"x": below, "y": below}}
            one = draw(windows(n_dims, channels))
            other = draw(st.sampled_from([one, horn.OneToOne()]))
            told["connect"] = {"x": one, "y": other}
        elif way == "tied" and tied:
            told["connect"] = horn.Tied(draw(st.sampled_from(tied)), draw(st.booleans()))
        else:
            told["connect"] = draw(windows(n_dims, channels))
        try:
            net.layer(**told)
        except ModelError:
            continue
        edges = [link.edges for link in net.layers[-1].links if link.edges is not None]
        assume(sum(len(each.indices) for each in edges) <= MOST_SYNAPSES)
        # of no message at all a mean is no number, and a maximum infinite
        assume(all(np.diff(each.indptr).min() > 0 for each in edges))
    assume(len(net.layers) > 1)
    net.output(draw(st.integers(2, 3)), activation="softmax", loss="cross_entropy")
    try:  # what a written backward and its receivers do not agree on
        training_program(net, horn.SGD(), "label")
    except CompileError:
        assume(False)
    return net


OPTIMIZERS = st.sampled_from([horn.SGD(0.1, momentum=0.5), horn.Adam(0.01)])
SIZES = st.sampled_from([1, 3, 4])


def in_words(net: horn.Network) -> str:
    return "; ".join(
        f"{x.name} {x.shape} {x.neuron.__name__} "
        + ", ".join(f"{k.heard} {k.connection}" for k in x.links)
        for x in net.layers
    )


def the_law(net: horn.Network, optimizer: Any, batch: int) -> None:
    note(in_words(net))
    compare(net, optimizer, batch, steps=1)


def slopes(net: horn.Network) -> None:
    """Who draws, sits out or takes a maximum has no slope that a difference of losses shows."""
    note(in_words(net))
    assume(not any(x.neuron in (Silenced, MaxPool) for x in net.layers))
    setup = Setup(net, horn.SGD(0.1), "labels", 3, "float64", 1)
    check_gradients("kernels", setup, samples(net), 2)


def placed(net: horn.Network, optimizer: Any, splits: Any, n_tasks: int) -> None:
    note(in_words(net))
    n_links = sum(len(x.links) for x in net.layers)
    words = iter([*splits, *["receiver"] * n_links])
    links = {(x.index, k): next(words) for x in net.layers for k in range(len(x.links))}
    works = ("neurons", "rows", "channels") if n_links % 2 else ("channels", "rows")
    layers = {x.index: works[k % len(works)] for k, x in enumerate(net.layers) if k}
    setup, data = Setup(net, optimizer, "labels", 4, "float64", 1), samples(net)
    batches = [np.array([0, 3, 4, 9]), np.array([1, 2, 5])]  # the last one is short
    placement = Placement(links, {0: "all", **layers})
    try:
        group = good(of_group("kernels", setup, data, batches, placement, n_tasks))
    except CompileError as error:  # a place of a maximum that is divided: no planner chooses it
        assert "cannot be combined" in str(error)
        return
    compare_tasks(group, of_one("kernels", setup, data, batches), str(links))


EXAMPLES = os.environ.get("HORN_EXAMPLES")
ANY = list(HealthCheck)
FEW = settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=ANY)
MANY = settings(
    max_examples=int(EXAMPLES or 300), deadline=None, derandomize=not EXAMPLES,
    suppress_health_check=ANY,
)  # fmt: skip
SPLITS = st.lists(st.sampled_from(PLACES), min_size=6, max_size=6)
TASKS = st.sampled_from([2, 3])

test_any_net = FEW(given(nets(), OPTIMIZERS, SIZES)(the_law))
test_any_gradient = FEW(given(nets())(slopes))
test_any_placement = FEW(given(nets(), OPTIMIZERS, SPLITS, TASKS)(placed))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@MANY
@given(nets(), OPTIMIZERS, SIZES)
def test_many_nets(net, optimizer, batch):
    the_law(net, optimizer, batch)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@MANY
@given(nets())
def test_many_gradients(net):
    slopes(net)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@MANY
@given(nets(), OPTIMIZERS, SPLITS, TASKS)
def test_many_placements(net, optimizer, splits, n_tasks):
    placed(net, optimizer, splits, n_tasks)


# traps, by their lines


def cifar_net() -> horn.Network:
    net = horn.Network(seed=1)
    net.input((32, 32, 3))
    for maps in (32, 32, 64):
        net.layer(connect=horn.Convolution(maps, 5, padding="same"), activation="relu")
        net.layer(connect=horn.Window(3, stride=2), neuron=MaxPool)
    net.output(10, activation="softmax", loss="cross_entropy")
    return net


def test_a_convolution_is_neither_a_sparse_layer_nor_an_unfolded_product():
    """Trap 1: the weights are the window's, and no buffer is as large as what windows see."""
    net = horn.Network()
    net.input((28, 28, 1))
    assert net.layer(connect=horn.Convolution(20, 5)).shapes["layer1.weight"] == (20, 5, 5, 1)
    net, batch = cifar_net(), 100
    program, share = training_program(net, horn.SGD(0.01, momentum=0.9), "label"), Share(net)
    sizes = {}
    for name, buffer in program.buffers.items():
        axes = [batch if base(axis) == "b" else count(share.places(axis)) for axis in buffer.axes]
        sizes[name] = 4 * int(np.prod(axes))
    assert max(sizes.values()) <= 20e6, max(sizes.items(), key=lambda item: item[1])


@pytest.mark.parametrize("neuron", [horn.neurons.Standard, RBF, Product, Gated, MaxPool, Mean])
@pytest.mark.parametrize(
    "shape, connection, batch",
    [
        ((3, 3, 1), horn.Convolution(2, 5, padding=2), 1),
        ((5, 5, 1), horn.Convolution(1, 2, stride=3, padding=1), 3),
        ((3, 2, 17), horn.Convolution(1, 2, padding="same"), 3),
        ((3, 1), horn.Convolution(2, 2, padding="same"), 33),
    ],
    ids=["kernel larger than the image", "stride larger", "17 channels", "33 samples"],
)
def test_other_neurons_are_right_at_borders(shape, connection, batch, neuron):
    """Trap 2: only sum(x w) is right by accident where a tap lies outside."""
    net = horn.Network(seed=3)
    net.input(shape)
    net.layer(connect=connection, neuron=neuron, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1, momentum=0.5), batch, steps=1)


def test_three_tasks_on_28_rows_move_the_rows_between_them():
    """Trap 8: by positions; what a task hears from others is one row on each side."""
    net = horn.Network(seed=1)
    net.input((28, 28, 1))
    for _ in range(2):
        net.layer(connect=horn.Convolution(4, 3, padding="same"), activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    row = 28 * 4
    rows = [((0, 9), (0, 10)), ((9, 18), (8, 19)), ((18, 28), (17, 28))]
    for task, (own, heard) in enumerate(rows):
        share = Share(net, task, 3)
        assert share.places("n1@own") == slice(own[0] * row, own[1] * row)
        assert share.places("n1@in2.0") == slice(heard[0] * row, heard[1] * row)
    links = {(1, 0): "receiver", (2, 0): "receiver", (3, 0): "sender"}
    placement = Placement(links, {0: "all", 1: "neurons", 2: "neurons", 3: "all"})
    setup = Setup(net, horn.SGD(0.1, momentum=0.5), "labels", 4, "float64", 1)
    data, batches = samples(net), [np.array([0, 3, 4, 9]), np.array([1, 2, 5])]
    group = good(of_group("kernels", setup, data, batches, placement, 3))
    compare_tasks(group, of_one("kernels", setup, data, batches), "by positions")


def test_a_parameter_beside_weights_and_inputs_is_the_neurons():
    """A net of the law: a factor of the receiver was taken for one of the weights."""
    net = horn.Network(seed=0)
    net.input((1, 1))
    below = net.layer(connect=horn.Convolution(2, 1), activation="tanh")
    for connection in (horn.Convolution(1, 1), horn.OneToOne()):
        both = {"x": below, "y": below}
        below = net.layer(connect=connection, neuron=TwoWays, inputs=both, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1, momentum=0.5), 1, steps=1)
