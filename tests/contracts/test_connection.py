"""Every connection in its folder: who listens to whom, from the seed alone, however it is computed
and whoever computes which part.
"""

import importlib
import pkgutil
import sys

import numpy as np
import pytest

import horn
from horn import backends, connections
from horn.backends import Setup
from horn.connections.sparse import Sparse
from horn.data import Dataset
from horn.partition.share import Share, count

# Connections that need to be told something.
MADE = {Sparse: lambda: Sparse(fan_in=2)}


def found(path=connections.__path__):
    """Every connection that goes by the sizes of layers, ready to be used, by the name of its file;
    those that go by their shapes are in tests/parity/test_space.py.
    """
    modules = {
        info.name: importlib.import_module(f"horn.connections.{info.name}")
        for info in pkgutil.iter_modules(path)
    }
    return {
        name: MADE.get(kind, kind)()
        for name, module in modules.items()
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and hasattr(kind, "edges")
    }


FOUND = found()


@pytest.fixture(params=FOUND)
def connection(request):
    return FOUND[request.param]


def network(connection, sizes=(6, 9, 4)):
    """Two links of the connection, and a dense one behind them."""
    net = horn.Network(seed=11)
    net.input(sizes[0])
    net.layer(sizes[1], activation="tanh", connect=connection)
    net.layer(sizes[2], activation="tanh", connect=connection, init="he")
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def samples(n=8):
    rng = np.random.default_rng(3)
    return Dataset(rng.standard_normal((n, 6)), rng.integers(0, 3, n))


def probed(connection, backend):
    """Outputs, deltas and gradients of a batch."""
    setup = Setup(network(connection), horn.SGD(0.1), "labels", 8, "float64", 1)
    engine = backends.make(backend, setup)
    engine.bind(samples())
    return engine.probe(np.arange(8), iteration=0, first_sample=0)


def check_edges(edges, n_sources, n_receivers):
    assert edges.indptr.dtype == edges.indices.dtype == np.int64
    assert edges.indptr.shape == (n_receivers + 1,) and edges.indptr[0] == 0
    assert edges.indptr[-1] == len(edges.indices)
    for start, stop in zip(edges.indptr, edges.indptr[1:], strict=False):
        row = edges.indices[start:stop]
        assert len(set(row.tolist())) == len(row)
        assert np.all((0 <= row) & (row < n_sources))


@pytest.mark.parametrize("n_sources, n_receivers", [(5, 3), (3, 5), (2, 1), (100, 1)])
def test_edges_are_rows_of_sources_each_once(connection, n_sources, n_receivers, rng):
    edges = connection.edges(n_sources, n_receivers, rng)
    if edges is not None:  # else all listen to all
        check_edges(edges, n_sources, n_receivers)


def test_the_same_seed_wires_the_same(connection):
    a, b = (connection.edges(6, 4, np.random.default_rng(7)) for _ in "ab")
    if a is not None:
        np.testing.assert_array_equal(a.indptr, b.indptr)
        np.testing.assert_array_equal(a.indices, b.indices)


def test_a_weight_is_a_synapse(connection):
    """Of each link as many weights as edges, (fan_out, fan_in) where all listen to all."""
    net = network(connection)
    for layer in net.layers[1:3]:
        link = layer.links[0]
        shape = net.initial_parameters()[link.weight].shape
        edges = connection.edges(link.source.size, layer.size, np.random.default_rng(0))
        whole = (layer.size, link.source.size)
        assert shape == (whole if edges is None else (len(link.edges.indices),))


@pytest.mark.parametrize("backend", [name for name in backends.names() if name != "python"])
def test_it_computes_what_the_interpreter_does_message_by_message(connection, backend):
    expected, got = probed(connection, "python"), probed(connection, backend)
    common = expected.keys() & got.keys()
    assert {"layer1.weight.gradient", "layer2.weight.gradient", "layer1.output"} <= common
    for name in common:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_its_gradient_is_the_slope_of_the_loss(connection):
    """Against central differences of the loss that the interpreter measures."""
    net, data, h = network(connection), samples(), 1e-5
    gradient = probed(connection, "python")["layer1.weight.gradient"]
    engine = backends.make("python", Setup(net, None, "labels", 8, "float64", 1))
    before = engine.parameters()
    for at in range(0, gradient.size, 5):
        losses = []
        for side in (h, -h):
            moved = {name: array.copy() for name, array in before.items()}
            moved["layer1.weight"].reshape(-1)[at] += side
            engine.load(moved)
            losses.append(engine.losses(data)[0] / 8)
        slope = (losses[0] - losses[1]) / (2 * h)
        assert gradient.reshape(-1)[at] == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("n_tasks", [2, 3])
@pytest.mark.parametrize("split", ["o", "i"])
def test_tasks_divide_its_synapses_each_to_one(connection, split, n_tasks):
    """By receiver or by sender, and every task has the sources that its own synapses read."""
    net = network(connection)
    edges = net.layers[1].links[0].edges
    shares = [Share(net, task, n_tasks) for task in range(n_tasks)]
    if edges is None:
        layer = "n1@own" if split == "o" else "n0@own"
        assert sum(count(share.places(layer)) for share in shares) == (9 if split == "o" else 6)
        return
    places = [np.arange(len(edges.indices))[share.edges(1, 0, split).places] for share in shares]
    assert sorted(np.concatenate(places).tolist()) == list(range(len(edges.indices)))
    receivers = np.repeat(np.arange(9), np.diff(edges.indptr))
    ends = receivers if split == "o" else edges.indices
    for share, mine in zip(shares, places, strict=True):
        own = np.arange(9 if split == "o" else 6)[
            share.places(f"n{'1' if split == 'o' else '0'}@own")
        ]
        assert set(ends[mine]) <= set(own)


@pytest.mark.cluster
@pytest.mark.net
@pytest.mark.timeout(120)
def test_two_tasks_train_what_one_does(connection):
    job = horn.Job(network(connection), samples(), batch_size=4, epochs=2, dtype="float64")
    one, two = (horn.train(job, tasks=n).model.parameters for n in (1, 2))
    for name, array in one.items():
        np.testing.assert_allclose(two[name], array, rtol=1e-9, err_msg=name)


RING = """
import numpy as np
from dataclasses import dataclass
from horn.connections import Edges

@dataclass(frozen=True)
class Ring:
    n: int = 2

    def edges(self, n_sources, n_receivers, rng):
        rows = [sorted({(o + k) % n_sources for k in range(self.n)}) for o in range(n_receivers)]
        indptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
        return Edges(indptr, np.concatenate(rows).astype(np.int64))
"""


def test_one_file_more_is_one_connection_more(tmp_path, monkeypatch):
    (tmp_path / "ring.py").write_text(RING)
    path = [*connections.__path__, str(tmp_path)]
    monkeypatch.setattr(connections, "__path__", path)
    try:
        kinds = found(path)
        assert kinds.keys() == {*FOUND, "ring"}
        ring = kinds["ring"]
        check_edges(ring.edges(6, 9, np.random.default_rng(0)), 6, 9)
        expected, got = probed(ring, "python"), probed(ring, "kernels")
        np.testing.assert_allclose(
            got["layer1.weight.gradient"], expected["layer1.weight.gradient"], rtol=1e-9
        )
    finally:
        sys.modules.pop("horn.connections.ring", None)


class Own:
    """A connection of a user's, of these arrays."""

    def __init__(self, *arrays, **more):
        self.arrays = [np.array(a) if isinstance(a, list) else a for a in arrays]
        self.more = more

    def edges(self, n_sources, n_receivers, rng):
        return connections.Edges(*self.arrays, **self.more)


class OwnAt(Own):
    def at(self, below, where):
        return connections.Placed((3,), self.edges(None, None, None))


class NoEdges:
    def edges(self, n_sources, n_receivers, rng):
        return [0, 1, 2, 3], [0, 1, 2]


class NoPlaced(NoEdges):
    def at(self, below, where):
        return self.edges(None, None, None)


ROWS = [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [Own, OwnAt])
@pytest.mark.parametrize(
    "arrays, said",
    [
        ((ROWS, [0, 1, 4]), "neuron 2 listens to source 4, but the layer below has neurons 0..3"),
        ((ROWS, [0, 1, 4 * 10**8]), "neuron 2 listens to source 400000000"),
        ((ROWS, [0, -1, 2]), "neuron 1 listens to source -1"),
        (([0, 2, 3, 4], [0, 0, 1, 2]), "neuron 0 names a source twice; one synapse per pair"),
        (([0, 1, 2], [0, 1]), "indptr must have 4 entries from 0 to 2, .* got 3 entries from 0 to"),
        (([0, 1, 2, 5], [0, 1, 2]), "indptr must have 4 .* got 4 entries from 0 to 5"),
        (([], [0, 1]), "indptr must have 4 .* got 0 entries$"),
        (([0, 2, 1, 3], [0, 1, 2]), "indptr must not decrease"),
        ((ROWS, [0.0, 1.0, 2.0]), "indices: a list of whole numbers is expected"),
        ((ROWS, [0, 1, 2], [0, 1], (2,)), "weight has 2 entries for 3 synapses"),
        (
            (ROWS, [0, 1, 2], [0, 1, 4], (2, 2)),
            r".* weight 4, but weight_shape=\(2, 2\) has .* 0..3",
        ),
        ((ROWS, [0, 1, 2], [0, -1, 1], (2,)), "a synapse has weight -1"),
        ((ROWS, [0, 1, 2], [0, 1, 1]), "weight= .* and weight_shape= .* go together"),
        ((ROWS, [0, 1, 2], None, (3,)), ".* go together"),
        ((ROWS, [0, 1, 2], [0, 1, 1], 2), "weight_shape is a tuple of whole numbers, got 2"),
    ],
)
def test_synapses_of_a_users_connection_are_checked(kind, arrays, said):
    """Kernels read what is beside the layer, or did not come back."""
    net = horn.Network(seed=1)
    net.input(4)
    size = 3 if kind is Own else None
    with pytest.raises(horn.ModelError, match=f"layer 1 'layer1': {kind.__name__}: {said}"):
        net.layer(size, connect=kind(*arrays))


def test_a_users_connection_that_gives_something_else_is_told_what_it_gives():
    net = horn.Network(seed=1)
    net.input(4)
    with pytest.raises(horn.ModelError, match=r"NoEdges: its synapses must be .*Edges\(indptr, "):
        net.layer(3, connect=NoEdges())
    with pytest.raises(horn.ModelError, match=r"NoPlaced: at\(\) must return .*Placed\(shape, "):
        net.layer(connect=NoPlaced())


def test_a_users_synapses_may_be_lists_or_be_made_when_they_are_asked_for():
    for connection in (Own(tuple(ROWS), (3, 1, 2)), Own(ROWS, lambda: np.array([3, 1, 2]))):
        net = horn.Network(seed=1)
        net.input(4)
        assert net.layer(3, connect=connection).links[0].edges.indices.tolist() == [3, 1, 2]
