"""Layers with shapes, and connections through windows: who listens to whom, the law, tasks."""

from __future__ import annotations

import ast
import itertools
import math
import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import horn
from horn.backends import Setup, make
from horn.compiler import storage
from horn.compiler.lower import training_program
from horn.connections import Edges
from horn.connections.placed import PLACED
from horn.data import Dataset
from horn.errors import DataError, JobError, ModelError
from horn.ir import load
from horn.partition.placement import CHANNELS, PLACES, Placement
from horn.program import Convolve
from tests.parity.differences import check_gradients
from tests.parity.test_compiled_equals_interpreted import compare, samples
from tests.parity.test_groups import of_groups
from tests.parity.test_tasks import compare as compare_tasks
from tests.parity.test_tasks import of_group, of_one, place
from tests.support.neurons import RBF, Counting, Gated, MaxPool, Mean, Product, Silenced, Written
from tests.transport.groups import good

WEIGHING = [horn.Neuron, RBF, Product, Gated, Written, Silenced, Counting]

# who listens to whom


def outside_in(windows: Any, below: tuple[int, ...]) -> list[tuple[tuple[int, ...], list[Any]]]:
    """Of each position of the windows the taps that lie inside, each with its source's position:
    written for one dimension at a time, as the books have it.
    """
    space = below[:-1]

    def each(name: str, axis: int) -> int:
        value = getattr(windows, name)
        return int(value[axis] if isinstance(value, tuple) else value)

    axes = []
    for axis, n in enumerate(space):
        k, s, d = each("kernel", axis), each("stride", axis), each("dilation", axis)
        if windows.padding == "same":
            n_out = math.ceil(n / s)
            before = max((n_out - 1) * s + (k - 1) * d + 1 - n, 0) // 2
        else:
            given = 0 if windows.padding == "valid" else windows.padding
            ends = given[axis] if isinstance(given, tuple) else given
            before, after = ends if isinstance(ends, tuple) else (ends, ends)
            n_out = (n + before + after - (k - 1) * d - 1) // s + 1
        axes.append([[(t, p * s - before + t * d) for t in range(k)] for p in range(n_out)])
    found = []
    for at in itertools.product(*(range(len(axis)) for axis in axes)):
        taps = []
        for pairs in itertools.product(*(axes[j][p] for j, p in enumerate(at))):
            source = tuple(s for _, s in pairs)
            if all(0 <= s < n for s, n in zip(source, space, strict=True)):
                taps.append((tuple(t for t, _ in pairs), source))
        found.append((at, taps))
    return found


@st.composite
def geometries(draw: Any) -> tuple[dict[str, Any], tuple[int, ...]]:
    n_dims = draw(st.sampled_from([1, 2]))
    space = tuple(draw(st.integers(1, 7)) for _ in range(n_dims))
    padding: Any = draw(st.sampled_from(["valid", "same", 0, 1, 3, "pairs", "pairs"]))
    if padding == "pairs":
        ends = st.tuples(st.integers(0, 4), st.integers(0, 4))
        padding = tuple(draw(st.one_of(ends, st.integers(0, 3))) for _ in range(n_dims))
    told: dict[str, Any] = {"padding": padding}
    for name, most in (("kernel", 9), ("stride", 4), ("dilation", 3)):
        values = tuple(draw(st.integers(1, most)) for _ in range(n_dims))
        told[name] = values if draw(st.booleans()) else values[0]
    return told, (*space, draw(st.integers(1, 4)))


@settings(max_examples=200, deadline=None)
@given(geometries(), st.integers(1, 3), st.sampled_from([1, 2]))
def test_windows_are_those_of_the_books(geometry, maps, groups):
    told, below = geometry
    below = (*below[:-1], below[-1] * groups)
    maps *= groups
    connection = horn.Convolution(maps, groups=groups, **told)
    expected = outside_in(connection, below)
    if not any(taps for _, taps in expected):
        said = "no window hears a neuron" if expected else "does not fit|no window hears a neuron"
        with pytest.raises(ModelError, match=said):
            connection.at(below, "here")
        return
    found = connection.at(below, "here")
    channels, each = below[-1], below[-1] // groups
    assert found.shape == (
        *(max(p[j] for p, _ in expected) + 1 for j in range(len(below) - 1)),
        maps,
    )
    assert found.kinds == maps
    edges = found.edges
    weight = np.arange(math.prod(edges.weight_shape)).reshape(edges.weight_shape)
    o = 0
    for _, taps in expected:
        for k in range(maps):
            first = k // (maps // groups) * each
            rows = [
                (
                    np.ravel_multi_index(source, below[:-1]) * channels + first + c,
                    weight[(k, *t, c)],
                )
                for t, source in taps
                for c in range(each)
            ]
            mine = slice(edges.indptr[o], edges.indptr[o + 1])
            assert edges.indices[mine].tolist() == [int(r[0]) for r in rows]
            assert edges.weight[mine].tolist() == [int(r[1]) for r in rows]
            o += 1
    assert o == math.prod(found.shape)


@settings(max_examples=60, deadline=None)
@given(geometries())
def test_nothing_is_shared_by_local_and_a_window_stays_in_its_channel(geometry):
    told, below = geometry
    try:
        local = horn.Local(2, **told).at(below, "here")
    except ModelError:
        return
    shared = horn.Convolution(2, **told).at(below, "here")
    assert local.edges.weight is None and local.kinds is None and local.shape == shared.shape
    np.testing.assert_array_equal(local.edges.indices, shared.edges.indices)
    pool = horn.Window(**told).at(below, "here")
    assert pool.shape == (*local.shape[:-1], below[-1])
    receivers = np.repeat(np.arange(math.prod(pool.shape)), np.diff(pool.edges.indptr))
    assert (receivers % below[-1] == pool.edges.indices % below[-1]).all()
    near = horn.Window(channels=3, **told).at(below, "here")
    receivers = np.repeat(np.arange(math.prod(near.shape)), np.diff(near.edges.indptr))
    apart = np.abs(receivers % below[-1] - near.edges.indices % below[-1])
    assert apart.max(initial=0) <= 1


def test_a_convolution_needs_no_list_of_its_synapses(monkeypatch, tmp_path):
    """Of a large picture it takes gigabytes."""

    def refuse(edges: Any) -> Any:
        raise AssertionError("the synapses were listed")

    monkeypatch.setattr(Edges, "indices", property(refuse))
    monkeypatch.setattr(Edges, "weight", property(refuse))
    net = horn.Network(seed=3)
    net.input((12, 12, 3))
    net.layer(connect=horn.Convolution(4, 3, padding="same", stride=2), activation="relu")
    net.layer(connect=horn.Convolution(2, 3, dilation=2), activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 12, 12, 3)), rng.integers(0, 3, 8)
    run = horn.train(horn.Job(net, (x, y), batch_size=4, epochs=1))
    run.model.save(tmp_path / "m.horn")
    again = horn.Model.load(tmp_path / "m.horn")
    np.testing.assert_array_equal(again.predict(x), run.model.predict(x))
    assert again.summary() == run.model.summary()


def test_a_softmax_over_positions_is_no_class_of_each():
    net = horn.Network()
    net.input((6, 5, 2))
    net.output(connect=horn.Convolution(3, 1), activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((4, 6, 5, 2)), rng.integers(0, 3, (4, 30))
    each = (
        r"softmax is over all its 90 neurons together; classes of each of its 30 positions take a "
        r"neuron that hears its position"
    )
    hot = np.eye(3)[labels].reshape(4, -1)
    with pytest.raises(DataError, match=f"row 0 sum to 30, but those of a softmax to 1.*{each}"):
        horn.train(horn.Job(net, (x, hot), epochs=1))
    with pytest.raises(DataError, match=rf"shape \(4, 30\), but layer1 has 90 neurons. .*{each}"):
        horn.train(horn.Job(net, (x, labels), epochs=1))
    horn.train(horn.Job(net, (x, hot / 30), epochs=1))  # one distribution over all of them


def test_too_many_synapses_are_refused_before_they_are_listed():
    net = horn.Network()
    net.input((512, 512, 64))
    said = r"layer 1 'layer1': 9,\d{3},\d{3},\d{3} synapses; there may be 2,147,483,647"
    with pytest.raises(ModelError, match=said):
        net.layer(connect=horn.Convolution(64, 3, padding="same"))


@pytest.mark.parametrize(
    "connection", [horn.Convolution(10**7, 3), horn.Local(10**7, 3), horn.Convolution(2**31 - 1, 3)]
)
def test_too_many_maps_are_refused_before_anything_is_made_of_them(connection):
    net = horn.Network()
    net.input((28, 28, 1))
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="synapses; there may be 2,147,483,647"):
            net.layer(connect=connection)
        assert tracemalloc.get_traced_memory()[1] < 10**7  # a number for each map is 80 MB
    finally:
        tracemalloc.stop()


def test_more_maps_than_there_may_be_synapses_are_refused():
    with pytest.raises(ModelError, match="channels must be a .* to 2,147,483,647, got 10000000000"):
        horn.Convolution(10**10, 3)


def test_channels_beyond_all_there_are_change_nothing():
    def sources(channels: int) -> Any:
        net = horn.Network()
        net.input((5, 3))
        return net.layer(connect=horn.Window(2, channels=channels)).links[0].edges.indices

    assert sources(2**31 - 1).tolist() == sources(7).tolist() == sources(5).tolist()


@pytest.mark.parametrize("padding", [((0, 0), (3, 3)), ((1, 0), 3), 0], ids=str)
def test_the_padding_that_is_said_to_fit_does_and_keeps_that_of_other_dimensions(padding):
    kernel = (7, 7) if padding else (7, 1)

    def layer(padding: Any) -> None:
        net = horn.Network()
        net.input((4, 1, 1))
        net.layer(connect=horn.Convolution(1, kernel, padding=padding))

    with pytest.raises(ModelError, match="does not fit 4 positions") as caught:
        layer(padding)
    said = re.search(r"padding=(.*) or padding=", str(caught.value))[1]  # type: ignore[index]
    layer(ast.literal_eval(said))
    assert said == ("2" if padding == 0 else "(2, 3)")


# the law


def through(neuron: Any, connection: Any, below: Any = (4, 4, 2), **more: Any) -> horn.Network:
    net = horn.Network(seed=3)
    net.input(below)
    if neuron is not horn.Neuron:
        more["neuron"] = neuron
    net.layer(connect=connection, activation="tanh", name="space", **more)
    if neuron is Written:  # its pushes need receivers that are weighted sums
        net.layer(connect=horn.Convolution(2, 2, padding="same"))
    else:
        net.layer(connect=horn.Window(2, padding="same"), neuron=MaxPool)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


CONNECTIONS = {
    "same": horn.Convolution(2, (3, 2), padding="same"),
    "far": horn.Convolution(2, 2, stride=2, dilation=2, padding=1),
    "kernel larger than the layer": horn.Convolution(2, 5, padding=2),
    "pairs": horn.Convolution(2, (3, 2), padding=((2, 0), (0, 1))),
    "stride larger than the kernel": horn.Convolution(2, 1, stride=3),
    "groups": horn.Convolution(4, 2, groups=2),
    "local": horn.Local(2, 2),
    "one to one": horn.OneToOne(),
    "window": horn.Window(2, padding=1, channels=3),
}


LAW = [(name, neuron) for name in CONNECTIONS for neuron in WEIGHING]


@pytest.mark.parametrize(
    "name, neuron",
    [
        pytest.param(*case, marks=() if case[0] == "same" or RBF in case else pytest.mark.slow)
        for case in LAW
    ],
)
def test_the_interpreter_is_the_law(name, neuron):
    compare(through(neuron, CONNECTIONS[name]), horn.SGD(0.1, momentum=0.5), 3, steps=1)


@pytest.mark.parametrize(
    "optimizer",
    [horn.Adam(0.01), horn.SGD(0.1, clip_norm=0.1, weight_decay=0.01),
     horn.SGD(0.1, clip_value=0.01)],
    ids=["adam", "clipped", "clipped by value"],
)  # fmt: skip
@pytest.mark.parametrize("neuron", [horn.Neuron, Gated, pytest.param(RBF, marks=pytest.mark.slow)])
def test_the_optimizer_sees_one_number_for_what_is_shared(neuron, optimizer):
    compare(through(neuron, CONNECTIONS["same"]), optimizer, 3)


@settings(max_examples=25, deadline=None)
@given(geometries(), st.sampled_from([horn.Neuron, RBF, Product, Gated]), st.sampled_from([1, 3]))
def test_the_law_holds_for_any_window(geometry, neuron, maps):
    told, below = geometry
    below = (*(min(n, 4) for n in below[:-1]), min(below[-1], 2))
    try:
        net = through(neuron, horn.Convolution(maps, **told), below)
    except ModelError:
        return
    compare(net, horn.SGD(0.1, momentum=0.5), 3, steps=1)


@pytest.mark.parametrize("neuron", [horn.Neuron, RBF, Product, Gated])
@pytest.mark.parametrize("name", ["same", "far", "kernel larger than the layer", "pairs", "groups",
                                  "local"])  # fmt: skip
def test_derived_gradients_are_finite_differences(name, neuron):
    net = through(neuron, CONNECTIONS[name])
    setup = Setup(net, horn.SGD(0.1), "labels", 5, "float64", 1)
    check_gradients("kernels", setup, samples(net))


def test_forward_is_the_sum_over_taps():
    """17 channels, and a batch that is no multiple of anything."""
    net = horn.Network(seed=1)
    net.input((5, 6, 17))
    net.layer(connect=horn.Convolution(3, (2, 3), stride=(1, 2), padding=1), name="conv")
    arrays = net.initial_parameters("float64")
    arrays["conv.bias"] = np.array([0.5, -1.0, 2.0])
    engine = make("kernels", Setup(net, None, None, 33, "float64", 1))
    engine.load(arrays)
    x = np.random.default_rng(0).standard_normal((33, 5, 6, 17))
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = np.zeros((33, 6, 3, 3)) + arrays["conv.bias"]
    for r, c in itertools.product(range(6), range(3)):
        window = padded[:, r : r + 2, 2 * c : 2 * c + 3]
        expected[:, r, c] += np.einsum("bhwc,ohwc->bo", window, arrays["conv.weight"])
    np.testing.assert_allclose(engine.outputs(x.reshape(33, -1)).reshape(expected.shape), expected)


PAIRS = [(3, 1), ((2, 0), (0, 1)), ((0, 3), 1)]


@pytest.mark.parametrize("padding", PAIRS, ids=str)
@pytest.mark.parametrize("backend", ["python", "reference", "kernels"])
def test_any_padding_is_a_sum_over_a_picture_in_zeros(backend, padding):
    """NumPy's own: with stride 2, so that what is outside before decides where windows begin."""
    net = horn.Network(seed=1)
    net.input((5, 6, 2))
    layer = net.layer(connect=horn.Convolution(3, (3, 2), 2, padding), name="conv")
    ends = [p if isinstance(p, tuple) else (p, p) for p in padding]
    engine = make(backend, Setup(net, None, None, 4, "float64", 1))
    weight = engine.parameters()["conv.weight"]
    x = np.random.default_rng(0).standard_normal((4, 5, 6, 2))
    views = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, ((0, 0), *ends, (0, 0))), (3, 2), axis=(1, 2)
    )[:, ::2, ::2]
    expected = np.einsum("bhwcij,oijc->bhwo", views, weight)
    assert layer.shape == expected.shape[1:]
    found = engine.outputs(x.reshape(4, -1)).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", ["python", "reference", "kernels"])
@pytest.mark.parametrize("neuron, empty, fold", [(MaxPool, -np.inf, "max"), (Mean, np.nan, "mean")])
def test_pooling_counts_nothing_outside(neuron, empty, fold, backend):
    """Of negative numbers: a zero outside would be the largest, and would pull a mean up."""
    net = horn.Network()
    net.input((4, 5, 2))
    net.layer(connect=horn.Window(3, 2, padding=((0, 1), (2, 1))), neuron=neuron)
    x = -1.0 - np.random.default_rng(0).random((3, 4, 5, 2))
    padded = np.pad(x, ((0, 0), (0, 1), (2, 1), (0, 0)), constant_values=empty)
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::2, ::2]
    expected = getattr(np, f"nan{fold}")(views, axis=(-2, -1))
    engine = make(backend, Setup(net, None, None, 3, "float64", 1))
    found = engine.outputs(x.reshape(3, -1)).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))
def test_same_is_that_of_tensorflow_and_any_padding_is_pairs(n, kernel, stride, dilation):
    total = max((-(-n // stride) - 1) * stride + (kernel - 1) * dilation + 1 - n, 0)
    pair = total // 2, total - total // 2  # tf.nn's padding="SAME": the odd one is after

    def spans(padding: Any) -> Any:
        return horn.Convolution(1, kernel, stride, padding, dilation).spans((n, 1), "here")

    try:
        same = spans("same")
    except ModelError:  # no window hears anything
        return
    assert same == spans((pair,)) and same[0].n_out == -(-n // stride)


def test_a_padding_before_alone_hears_no_later_position():
    """A causal convolution along a signal, with a stride and dilation."""
    net = horn.Network(seed=1)
    net.input((9, 1))
    net.layer(connect=horn.Convolution(1, 3, 2, ((4, 0),), dilation=2), name="causal")
    engine = make("kernels", Setup(net, None, None, 9, "float64", 1))
    touched = engine.outputs(np.eye(9)) != 0  # (position touched, neuron)
    heard = [[int(i) for i in np.flatnonzero(column)] for column in touched.T]
    assert heard == [[0], [0, 2], [0, 2, 4], [2, 4, 6], [4, 6, 8]]


def test_equal_ends_are_one_number_and_lists_are_tuples():
    pairs = horn.Convolution(2, 3, padding=[[1, 1], [2, 0]])
    assert pairs == horn.Convolution(2, 3, padding=(1, (2, 0)))
    assert hash(pairs) == hash(horn.Convolution(2, 3, padding=((1, 1), (np.int64(2), 0))))
    assert "padding=(1, (2, 0))" in repr(pairs)
    assert horn.Window(2, padding=((1, 1), (2, 2))) == horn.Window(2, padding=(1, 2))


@pytest.mark.parametrize("geometry", [
    {"kernel": 3}, {"kernel": (2, 3), "stride": 2}, {"kernel": 3, "padding": 2, "dilation": 2},
    {"kernel": 2, "groups": 2}], ids=str)  # fmt: skip
def test_forward_is_that_of_pytorch(geometry):
    torch = pytest.importorskip("torch")
    net = horn.Network(seed=1)
    net.input((7, 8, 4))
    net.layer(connect=horn.Convolution(6, **geometry), name="conv")
    arrays = net.initial_parameters("float64")
    engine = make("kernels", Setup(net, None, None, 5, "float64", 1))
    x = np.random.default_rng(0).standard_normal((5, 7, 8, 4))
    theirs = torch.nn.functional.conv2d(
        torch.tensor(x.transpose(0, 3, 1, 2)),
        torch.tensor(arrays["conv.weight"].transpose(0, 3, 1, 2)),
        stride=geometry.get("stride", 1), padding=geometry.get("padding", 0),
        dilation=geometry.get("dilation", 1), groups=geometry.get("groups", 1),
    ).numpy().transpose(0, 2, 3, 1)  # fmt: skip
    ours = engine.outputs(x.reshape(5, -1)).reshape(theirs.shape)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


# what has no weight, and what is shared


def test_a_window_whose_class_reads_no_weight_has_none_and_no_bias():
    net = through(MaxPool, horn.Window(2))
    layer = net.layers[1]
    assert layer.shapes == {} and layer.bias is None and layer.links[0].weights == {}
    engine = make("kernels", Setup(net, None, None, 2, "float64", 1))
    x = -1.0 - np.random.default_rng(0).random((2, 4, 4, 2))
    pooled = horn.Network()
    pooled.input((4, 4, 2))
    pooled.layer(connect=horn.Window(2, stride=2), neuron=MaxPool)
    engine = make("kernels", Setup(pooled, None, None, 2, "float64", 1))
    expected = x.reshape(2, 2, 2, 2, 2, 2).max(axis=(2, 4))
    assert (expected < 0).all()
    np.testing.assert_array_equal(engine.outputs(x.reshape(2, -1)).reshape(2, 2, 2, 2), expected)


def test_what_lies_outside_is_no_message():
    net = horn.Network()
    net.input((3, 1))
    net.layer(connect=horn.Window(3, padding="same"), neuron=Mean)
    engine = make("kernels", Setup(net, None, None, 1, "float64", 1))
    np.testing.assert_allclose(engine.outputs(np.array([[1.0, 2.0, 6.0]])), [[1.5, 3.0, 4.0]])


class ResponseNormalized(horn.Neuron):
    """Over neighbouring channels; itself by its name."""

    def forward(self, messages):
        energy = sum(m.input**2 for m in messages.near)
        x = sum(m.input for m in messages.x)
        self.feedforward(x / (2.0 + 0.3 * energy) ** 0.75)


def response_normalized(net: horn.Network, maps: Any) -> None:
    net.layer(
        neuron=ResponseNormalized,
        inputs={"x": maps, "near": maps},
        connect={"x": horn.OneToOne(), "near": horn.Window(1, channels=5)},
        name="lrn",
    )


def test_local_response_normalization_is_that_of_the_books():
    """Krizhevsky, Sutskever & Hinton 2012, section 3.3; past the last channel nothing is summed."""
    net = horn.Network(seed=1)
    response_normalized(net, net.input((3, 2, 7)))
    assert net.layers[1].shape == (3, 2, 7) and net.layers[1].shapes == {}
    x = np.random.default_rng(0).standard_normal((4, 3, 2, 7))
    engine = make("kernels", Setup(net, None, None, 4, "float64", 1))
    padded = np.pad(x**2, ((0, 0), (0, 0), (0, 0), (2, 2)))
    energy = sum(padded[..., k : k + 7] for k in range(5))
    expected = x / (2.0 + 0.3 * energy) ** 0.75
    np.testing.assert_allclose(engine.outputs(x.reshape(4, -1)).reshape(x.shape), expected)


def test_gradients_flow_through_local_response_normalization():
    net = horn.Network(seed=1)
    net.input((3, 3, 1))
    response_normalized(net, net.layer(connect=horn.Convolution(6, 2)))
    net.output(3, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1), 3, steps=1)
    check_gradients("kernels", Setup(net, horn.SGD(0.1), "labels", 5, "float64", 1), samples(net))


def test_all_positions_of_a_map_share_weights_biases_and_parameters():
    net = through(RBF, CONNECTIONS["same"])
    shapes = {name: array.shape for name, array in net.initial_parameters().items()}
    assert shapes["space.weight"] == (2, 3, 2, 2)
    assert shapes["space.bias"] == shapes["space.gain"] == (2,)
    assert [layer.shape for layer in net.layers] == [(4, 4, 2), (4, 4, 2), (4, 4, 2), (3,)]
    assert net.layers[1].size == 32 and net.layers[1].typical_fan_in == 12


def test_initial_weights_go_by_the_window():
    net = horn.Network(seed=0)
    net.input((20, 20, 3))
    net.layer(connect=horn.Convolution(50, 5), init="he", name="conv")
    spread = net.initial_parameters()["conv.weight"].std()
    assert spread == pytest.approx(math.sqrt(2 / 75), rel=0.05)


def test_squared_distances_are_summed_as_written_and_their_gradients_are_products():
    net = horn.Network(seed=3)
    net.input((5, 5, 2))
    net.layer(connect=horn.Convolution(3, 2), activation="tanh")
    net.layer(connect=horn.Convolution(2, 3, padding="same"), neuron=RBF)
    net.output(2, activation="softmax", loss="cross_entropy")
    program = training_program(net, horn.SGD(0.1), "label")
    found = [s for s in program.statements if isinstance(s, Convolve) and s.frame.layer == 2]
    assert [s.axis for s in found] == ["o", "b", "b"]


def test_what_senders_alone_have_is_not_taken_for_shared():
    """Of a sum over the batch and positions weights are outside, a factor of each sender is not."""
    flows, weight, sender = load("d", "bo"), load("w.each", "oi"), load("s", "i")
    sides = storage._sides((flows, weight), "b", {"w.each": "w"})
    assert sides == {"bo": flows, "oi": weight}
    assert storage._sides((flows, weight, sender), "b", {"w.each": "w"}) is None


# tasks, groups, files


BATCHES = [np.array([0, 3, 4, 9]), np.array([1, 2, 5])]  # the last one is short


@pytest.mark.parametrize("n_tasks", [2, 3])
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("neuron", [horn.Neuron, RBF, Gated, Silenced])
def test_tasks_do_what_one_does(neuron, where, n_tasks):
    net = through(neuron, horn.Convolution(3, 3, padding="same"), (6, 4, 2))
    work = CHANNELS if CHANNELS in where else "neurons"
    placement = place(net, [where, "receiver", "sender"], ["all", work, "neurons", "rows"])
    setup = Setup(net, horn.SGD(0.1, momentum=0.5), "labels", 4, "float64", 1)
    data = samples(net)
    group = good(of_group("kernels", setup, data, BATCHES, placement, n_tasks))
    compare_tasks(group, of_one("kernels", setup, data, BATCHES), where)


class Away(horn.Neuron):
    """Neither 0 nor a product: it would learn from a 0 that nobody sent."""

    def forward(self, messages):
        self.feedforward(sum((m.input - m.weight) ** 2 for m in messages))


class Oja(horn.Neuron):
    def forward(self, messages):
        y = 0.5 + sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(y * (m.input - y * m.weight))
        self.feedforward(y)


class Decaying(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages))

    def backward(self, messages):
        for m in messages:
            self.push(m.delta * self.output + 0.1 * m.weight)
        self.backpropagate(sum(m.delta * m.weight for m in messages))


@pytest.mark.parametrize("receiver", [Away, Oja])
@pytest.mark.parametrize("backend", ["python", "reference", "kernels"])
def test_shared_weights_learn_nothing_from_who_sits_out(backend, receiver):
    """A sender that is silent for a batch takes its synapses with it, also those of a map."""
    net = horn.Network(seed=1)
    net.input((4, 1), keep=0.6, per="batch")
    net.layer(connect=horn.Convolution(2, 1), neuron=receiver, bias=False, name="map")
    net.output(1, loss="squared_error")
    engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 3, "float64", 1))
    engine.bind(Dataset(np.arange(1.0, 13.0).reshape(3, 4) / 10, np.arange(3.0)[:, None]))
    learned, some = engine.parameters(), False
    w, above = learned["map.weight"].reshape(1, 1, 2), learned["layer2.weight"].reshape(1, 4, 2)
    for k in range(4):
        found = engine.probe(np.arange(3), iteration=k, first_sample=3 * k)
        x = found["layer0.output"].reshape(3, 4, 1)
        if receiver is Oja:
            y = 0.5 + x * w
            each = y * (x - y * w)
        else:
            each = -2 * (x - w) * above * found["layer2.delta"].reshape(3, 1, 1)
        expected = np.where(x == 0, 0, each).sum((0, 1)) / 3
        np.testing.assert_allclose(found["map.weight.gradient"].ravel(), expected, 1e-12, 1e-14)
        some |= 0 < (x == 0).sum() < 12
    assert some


class Leaving(horn.Neuron):
    def forward(self, messages):
        here = self.bernoulli(0.6, per="batch") if self.training else 0.6
        if here == 0:
            self.feedforward(0.0)
        else:
            self.feedforward(here * sum(m.input * m.weight for m in messages))


def test_what_is_pushed_to_who_sits_out():
    net = horn.Network(seed=1)
    net.input((4, 1))
    net.layer(connect=horn.OneToOne(), neuron=Decaying)
    net.layer(connect=horn.Convolution(2, 2), neuron=Leaving)
    net.output(2, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1), 3, steps=4)


@pytest.mark.parametrize("n_groups, n_tasks", [(2, 1), (3, 1), (4, 1), (2, 2)])
def test_groups_share_a_batch(n_groups, n_tasks):
    net = through(RBF, CONNECTIONS["same"])
    setup = Setup(net, horn.SGD(0.1, momentum=0.5), "labels", 4, "float64", 1)
    data, placement = samples(net), Placement.default(net)
    found = good(of_groups("kernels", setup, data, BATCHES, placement, n_groups, n_tasks))
    one = of_one("kernels", setup, data, BATCHES)
    for group in range(n_groups):
        compare_tasks(found[group * n_tasks : (group + 1) * n_tasks], one, f"group {group}")


def digits_job(padding: Any = "same", **more: Any) -> horn.Job:
    net = horn.Network(seed=2)
    net.input((8, 8, 1))
    net.layer(connect=horn.Convolution(8, 3, padding=padding), activation="relu", name="conv")
    net.layer(connect=horn.Window(2, stride=2), neuron=MaxPool)
    net.layer(connect=horn.Local(4, 2), activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    given: dict[str, Any] = {"epochs": 3, "optimizer": horn.SGD(0.1, momentum=0.9)} | more
    return horn.Job(net, horn.data.digits(), **given)


@pytest.mark.parametrize("padding", ["same", ((2, 0), (1, 2))], ids=str)
def test_it_learns_and_a_file_keeps_what_windows_were_told(tmp_path, padding):
    run = horn.train(digits_job(padding))
    test = horn.data.digits("test")
    assert run.model.evaluate(test)["acc"] > 0.9
    run.model.save(tmp_path / "m.horn")
    again = horn.Model.load(tmp_path / "m.horn")
    np.testing.assert_array_equal(again.predict(test), run.model.predict(test))
    told = digits_job(padding).network
    assert [x.shape for x in again.network.layers] == [x.shape for x in told.layers]
    assert again.network.layers[1].links[0].connection == horn.Convolution(8, 3, padding=padding)
    wider = told.rebuilt(changes={"conv": {"activation": "tanh"}})
    assert wider.layers[1].links[0].connection == told.layers[1].links[0].connection
    more = horn.train(horn.Job(again.network, horn.data.digits(), epochs=1, initial=again)).model
    assert more.evaluate(test)["acc"] > 0.9
    features = run.model.activations(test, "conv")
    np.testing.assert_array_equal(run.model.cut("conv").predict(test), features)


@pytest.mark.cluster
@pytest.mark.net
@pytest.mark.timeout(120)
def test_a_run_on_two_tasks_goes_on_from_its_checkpoint(tmp_path):
    whole = horn.train(digits_job(epochs=2, dtype="float64")).model
    horn.train(digits_job(epochs=1, dtype="float64"), tasks=2, checkpoints=tmp_path,
               checkpoint_every=10)  # fmt: skip
    rest = horn.train(digits_job(epochs=2, dtype="float64"), checkpoints=tmp_path, resume=True)
    for name, array in whole.parameters.items():
        np.testing.assert_allclose(rest.model.parameters[name], array, rtol=1e-7, atol=1e-10)


# what does not fit


CONVOLVE, IMAGE = horn.Convolution, (4, 4, 1)


@pytest.mark.parametrize(
    "below, connection, sentence",
    [
        (16, lambda: CONVOLVE(2, 3), "the layer below has .16,.; give the input such a shape"),
        (IMAGE, lambda: CONVOLVE(2, 5), "of 5 does not fit 4 positions .dimension 0.*at most 4"),
        (IMAGE, lambda: CONVOLVE(2, 3, dilation=3), "of 7 does not fit 4 .*at most 2, padding=2"),
        ((1, 1, 1), lambda: horn.Local(2, (3, 1), stride=2, padding=1), "dimension 1 .*less padd"),
        ((1, 1), lambda: horn.Window(2, dilation=3, padding="same"), "dilation 3 .*='same'"),
        (IMAGE, lambda: CONVOLVE(0, 3), "channels must be a whole number from 1 to .*, got 0"),
        (IMAGE, lambda: CONVOLVE(2, 3, stride=0), "stride is a whole number from 1.*got 0"),
        (IMAGE, lambda: CONVOLVE(2, 3, padding="full"), 'padding is "valid", "same" or a number'),
        (IMAGE, lambda: CONVOLVE(2, 3, padding="causal"), "got 'causal'. .*2, 0.*horn.Delayed"),
        (IMAGE, lambda: CONVOLVE(2, 3, padding=-1), "at each end .0 to 2.* got -1"),
        (IMAGE, lambda: CONVOLVE(2, 3, padding=2**31), "at each end .0 to 2,147,483,647"),
        (IMAGE, lambda: CONVOLVE(2, 3, padding=((1, -1), 0)), "got ..1, -1., 0."),
        (IMAGE, lambda: CONVOLVE(2, 3, padding=((1, 2, 3), 0)), "a pair .before, after., as"),
        (IMAGE, lambda: CONVOLVE(2, 3, padding=([[1], 0], 0)), "a pair .before, after., as"),
        (IMAGE, lambda: CONVOLVE(2, 3, padding=((1, 2),)), "is for 1 dim.* the layer below has 2"),
        (IMAGE, lambda: CONVOLVE(2, 3, padding=(1, 2, 3, 4)), "ONNX's .*=..1, 3., .2, 4..$"),
        ((4, 1), lambda: CONVOLVE(2, 3, padding=(2, 0)), "has 1; .* is padding=..2, 0.,.$"),
        (IMAGE, lambda: CONVOLVE(2, 9, padding=((1, 2), 0)), "1 before and 2 after out.*at most 7"),
        ((3, 1), lambda: CONVOLVE(2, 1, 4, ((5, 0),)), "no window hears.*padding=..5, 0.,.*less"),
        (IMAGE, lambda: CONVOLVE(2, 3, padding=((10**9, 0), 0)), "002 positions of windows; there"),
        (IMAGE, lambda: CONVOLVE(2, (3, 3, 3)), "is for 3 dimensions, but the layer below has 2"),
        ((4, 4, 3), lambda: CONVOLVE(4, 3, groups=2), "groups=2 must divide the 3 channels"),
        (IMAGE, lambda: horn.Window(2, channels=2), "channels must be odd.*got 2"),
        (IMAGE, lambda: CONVOLVE(2, 3, padding=10**9), "000,002 positions of windows; there may"),
        (IMAGE, lambda: CONVOLVE(2, 10**9, padding=5 * 10**8), "taps of windows; there may"),
        (IMAGE, lambda: horn.TransposedConvolution(1, 1, stride=10**9), "000,001 positions"),
        ((4, 4, 1, 1), lambda: None, "a shape is .n,., .n, channels. or"),
        ((4, 0), lambda: None, "whole number from 1, got 0"),
    ],
)
def test_what_does_not_fit_is_said(below, connection, sentence):
    with pytest.raises(ModelError, match=sentence):
        net = horn.Network()
        net.input(below)
        net.layer(connect=connection())


def test_sizes_that_contradict_a_connection_are_said():
    net = horn.Network()
    net.input((4, 4, 1))
    with pytest.raises(ModelError, match=r"makes a layer of shape .3, 3, 2., 18 neurons, but size"):
        net.layer(20, connect=horn.Convolution(2, 2))
    with pytest.raises(ModelError, match="how many neurons"):
        net.layer()
    one = net.layer(connect=horn.Convolution(2, 2))
    other = net.layer(connect=horn.Convolution(2, 3), inputs=net.layers[0])
    with pytest.raises(ModelError, match=r"layers of shape .* and .*they must be the same"):
        net.layer(connect=horn.OneToOne(), inputs=[one, other])
    assert net.layer((3, 3, 2), connect=horn.OneToOne(), inputs=one).shape == (3, 3, 2)


def test_sub_models_are_of_dense_networks():
    with pytest.raises(JobError, match="conv has a window connection.*use allreduce"):
        horn.train(digits_job(), strategy=horn.ParallelDropout(2))


def test_every_connection_that_goes_by_shapes_is_known():
    kinds = {"Convolution", "Local", "OneToOne", "TransposedConvolution", "Window"}
    assert PLACED.keys() >= kinds and all(getattr(horn, name) is PLACED[name] for name in kinds)
