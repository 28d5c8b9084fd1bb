"""connect= a matrix or a graph of scipy, NumPy or networkx, and its numbers as initial weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import ModelError

DENSE = np.array([[0, 2.5, 0, -1], [0, 0, 0, 0], [0.5, 0, 3, 0]])  # 3 receivers, 4 sources
ROWS = [[1, 3], [], [0, 2]]


def network(connect: Any, n_sources: int = 4, size: int = 3, **more: Any) -> horn.Network:
    net = horn.Network(seed=1)
    net.input(n_sources)
    net.layer(size, connect=connect, activation="tanh", **more)
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


def rows(net: horn.Network) -> list[list[int]]:
    edges = net.layers[1].links[0].edges
    assert edges is not None
    return [part.tolist() for part in np.split(edges.indices, edges.indptr[1:-1])]


@pytest.mark.parametrize(
    "kind", ["csr_matrix", "csc_array", "coo_array", "lil_matrix", "dok_matrix", "array"]
)
def test_a_matrix_is_the_connection(kind: str) -> None:
    make = np.array if kind == "array" else getattr(pytest.importorskip("scipy.sparse"), kind)
    assert rows(network(make(DENSE))) == ROWS
    values = network(horn.Sparse(matrix=make(DENSE), values=True)).initial_parameters()
    np.testing.assert_array_equal(values["layer1.weight"], np.float32([2.5, -1, 0.5, 3]))
    drawn = network(make(DENSE)).initial_parameters()["layer1.weight"]
    listed = network(horn.Sparse(csr=([0, 2, 2, 4], [1, 3, 0, 2]))).initial_parameters()
    np.testing.assert_array_equal(drawn, listed["layer1.weight"])


def test_synapses_that_are_stored_as_0_are_synapses() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.coo_array(([0.0, 1.0, 2.0], ([0, 2, 2], [3, 1, 1])), shape=(3, 4))
    net = network(horn.Sparse(matrix=matrix, values=True))
    assert rows(net) == [[3], [], [1]]
    assert net.initial_parameters()["layer1.weight"].tolist() == [0, 3]
    assert matrix.nnz == 3  # the caller's own is as it was


def test_a_matrix_whose_arrays_somebody_wrote_to_is_put_in_order() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_array(([1.0, 2.0, 4.0], [1, 2, 3], [0, 3, 3, 3]), shape=(3, 4))
    assert matrix.has_canonical_format  # which it remembers
    matrix.indices[:] = 3, 0, 3
    net = network(horn.Sparse(matrix=matrix, values=True))
    assert rows(net) == [[0, 3], [], []]
    assert net.initial_parameters()["layer1.weight"].tolist() == [2, 5]


TASKS = pytest.param({"tasks": 2}, marks=pytest.mark.cluster)


@pytest.mark.parametrize(
    "settings", [{}, {"backend": "reference"}, {"backend": "python"}, TASKS], ids=str
)
def test_it_learns_and_is_saved(settings: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4))
    y = (x[:, 1] > 0).astype(int)
    net = network(horn.Sparse(matrix=DENSE, values=True))
    job = horn.Job(net, (x, y), optimizer=horn.SGD(0.0), epochs=1)
    still = horn.train(job, **settings).model
    hidden = np.tanh(x @ DENSE.T)
    np.testing.assert_allclose(still.activations(x, "layer1"), hidden, rtol=1e-4, atol=1e-6)
    model = horn.train(horn.Job(net, (x, y), optimizer=horn.SGD(0.5), epochs=5), **settings).model
    assert model.evaluate(x, y)["acc"] > 0.9
    model.save(tmp_path / "m.horn")
    again = horn.Model.load(tmp_path / "m.horn", backend=settings.get("backend", "kernels"))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    assert rows(again.network) == ROWS


def test_a_graph_of_the_neurons_of_both_layers() -> None:
    networkx = pytest.importorskip("networkx")
    ring = networkx.DiGraph([("a", "b"), ("b", "c"), ("c", "a")])
    assert rows(network(ring, 3)) == [[2], [0], [1]]  # b listens to a
    path = networkx.Graph()
    path.add_nodes_from("cab")
    path.add_edge("a", "b", weight=0.25)
    path.add_edge("c", "c", weight=-1)
    net = network(horn.Sparse(matrix=path, values=True), 3)
    assert rows(net) == [[0], [2], [1]]
    assert net.initial_parameters()["layer1.weight"].tolist() == [-1, 0.25, 0.25]
    grid = networkx.grid_2d_graph(5, 5)
    assert [len(row) for row in rows(network(grid, 25, 25))][:3] == [2, 3, 3]


def test_a_graph_of_two_parts() -> None:
    networkx = pytest.importorskip("networkx")
    parts = networkx.Graph()
    parts.add_nodes_from(["p", "q", "r", "s"], bipartite=0)
    parts.add_nodes_from(["x", "y", "z"], bipartite=1)
    parts.add_edges_from([("x", "q"), ("s", "x"), ("p", "z"), ("z", "r")])
    assert rows(network(parts)) == ROWS
    wrong = networkx.DiGraph(parts)
    with pytest.raises(ModelError, match="the edge from 'x' to 'q' does not go from bipartite=0"):
        network(wrong)


def test_what_does_not_fit_is_said() -> None:
    networkx = pytest.importorskip("networkx")
    said = {
        r"the array is 4 x 3, but 3 neurons listen to 4; write matrix.T": DENSE.T,
        r"the array is 2 x 4, but 3 neurons listen to 4; one row per receiver": DENSE[:2],
        "the array has NaN or infinity": DENSE * np.nan,
        r"masked entries; fill them in, as .filled\(0\)": np.ma.masked_equal(DENSE, 0),
        "an array of numbers .receivers, sources. is expected, got float64 of shape": DENSE[0],
        "the graph is 5 x 5, but 3 neurons listen to 4; the nodes": networkx.path_graph(5),
        "connect must be a connection such as horn.Sparse.fan_in=8., .* got 'all'": "all",
        "got <class 'horn.connections.dense.Dense'>; write Dense.....": horn.Dense,
        r"connect is a list; a connection for each input .* connect=\{\"h\": ": [
            horn.Dense(),
            DENSE,
        ],
    }
    table = pytest.importorskip("pandas").DataFrame(DENSE)
    said["matrix or a networkx graph, got    "] = table
    for words, connect in said.items():
        with pytest.raises(ModelError, match=words):
            network(connect)
    for words, wrong in {
        r"Sparse\(sources\(0\)\): a list of whole numbers is expected, got 0": {
            "sources": lambda k: 0
        },
        r"an edge is \(source, receiver\), got 0": {"edge_list": [0, 1]},
        "an edge .* the numbers of two neurons; got .'a', 'b'.": {"edge_list": [("a", "b")]},
    }.items():
        with pytest.raises(ModelError, match=words):
            network(horn.Sparse(**wrong))
    twice = networkx.MultiGraph([(0, 1), (0, 1)])
    with pytest.raises(ModelError, match="the graph has two edges from"):
        network(twice)
    named = networkx.Graph()
    named.add_edge(0, 1, weight="heavy")
    with pytest.raises(ModelError, match="a weight of the graph is 'heavy'; give numbers"):
        network(horn.Sparse(matrix=named, values=True))
    assert horn.Sparse(matrix=named).matrix.indices.tolist() == [1, 0]
    with pytest.raises(ModelError, match="a scipy sparse matrix, an array of two axes or a net"):
        horn.Sparse(matrix=[[1, 0]])
    with pytest.raises(ModelError, match="values=True takes the numbers of matrix= or edge_list="):
        horn.Sparse(fan_in=2, values=True)
    with pytest.raises(ModelError, match="init='he' and the values of a matrix are both given"):
        network(horn.Sparse(matrix=DENSE, values=True), init="he")


def test_resume_wants_the_same_values(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) % 2

    def job(matrix: Any) -> horn.Job:
        return horn.Job(network(horn.Sparse(matrix=matrix, values=True)), (x, y), epochs=2)

    whole = horn.train(job(DENSE), checkpoints=tmp_path, checkpoint_every=1)
    again = horn.train(job(DENSE.copy()), checkpoints=tmp_path, checkpoint_every=1, resume=True)
    np.testing.assert_array_equal(whole.model.predict(x), again.model.predict(x))
    with pytest.raises(horn.HornError, match="is of another job: its layer1.links.0..init"):
        horn.train(job(DENSE * 2), checkpoints=tmp_path, checkpoint_every=1, resume=True)


WEIGHED = [(3, 1, 0.5), (0, 1, 0.25), (2, 0, 1)]
HELD = [[0, 0, 1, 0], [0.25, 0, 0, 0.5], [0, 0, 0, 0]]


def weights_of(connect: Any) -> Any:
    net = network(connect)
    return horn.Model(net, net.initial_parameters()).matrix("layer1.weight").toarray().tolist()


@pytest.mark.parametrize(
    "edges",
    [WEIGHED, iter(WEIGHED), np.array(WEIGHED), {(s, r): w for s, r, w in WEIGHED}],
    ids=["list", "iterator", "array", "dict"],
)
def test_edges_have_weights(edges: Any) -> None:
    assert weights_of(horn.Sparse(edge_list=edges, values=True)) == HELD


@pytest.mark.parametrize(
    "edges, said",
    [
        ([(3, 1)], r"an edge is \(source, receiver, weight\), got \(3, 1\) as edge 0"),
        ([(3, 1, 0.5), (0, 1, "x")], "got .*'x'.* as edge 1"),
        ([(3, 1, 0.5), (0, 1, np.nan)], "edge 1 has weight nan; give finite numbers"),
        ({"ab": 1.0}, r"got \('ab', 1.0\) as edge 0"),
        (np.array([(3, 1.5, 0.5)]), r"edge \(3, 1.5\) names receiver 1.5"),
        ([("a", 1, 2.0), (1, 2, 3.0)], r"the numbers of two neurons; got \('a', 1\)"),
    ],
)
def test_edges_without_a_weight_are_refused(edges: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        network(horn.Sparse(edge_list=edges, values=True))


@pytest.mark.parametrize(
    "connect", [DENSE, horn.Dense(), horn.Sparse(csr=([0, 2, 2, 3], [3, 0, 1]))]
)
def test_learned_weights_are_a_matrix_and_come_from_one(connect: Any) -> None:
    net = network(connect)
    model = horn.Model(net, net.initial_parameters())
    held = model.matrix("layer1.weight")
    x = np.random.default_rng(2).normal(size=(5, 4))
    wanted = np.tanh(x @ held.toarray().T + model.parameters.get("layer1.bias", 0))
    np.testing.assert_allclose(model.activations(x, "layer1"), wanted, rtol=1e-5, atol=1e-6)
    again = model.with_arrays({"layer1.weight": held * 2})
    np.testing.assert_array_equal(
        again.parameters["layer1.weight"], 2 * model.parameters["layer1.weight"]
    )
    job = horn.Job(net, (x, np.zeros(5, int)), initial={"layer1.weight": held * 2}, epochs=1)
    found = job.network.initial_parameters()["layer1.weight"]
    np.testing.assert_array_equal(found, again.parameters["layer1.weight"])


def test_shared_weights_are_a_matrix() -> None:
    net = horn.Network(seed=3)
    net.input((4, 4, 2))
    net.layer(connect=horn.Convolution(3, 3, padding=1), bias=False)
    net.output(2, activation="softmax", loss="cross_entropy")
    model = horn.Model(net, net.initial_parameters())
    x = np.random.default_rng(2).normal(size=(5, 32))
    found = x @ model.matrix("layer1.weight").toarray().T
    np.testing.assert_allclose(model.activations(x, "layer1"), found, rtol=1e-5, atol=1e-6)


def test_a_matrix_that_does_not_fit_is_said() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    net = network(DENSE)
    model = horn.Model(net, net.initial_parameters())
    of_layer = {"layer1.weight": sparse.csr_array(DENSE.T)}
    with pytest.raises(ModelError, match=r"shape \(4, 3\); 3 neurons .* hear 4 .* it.T"):
        model.with_arrays(of_layer)
    full = {"layer1.weight": sparse.csr_array(np.ones_like(DENSE))}
    with pytest.raises(ModelError, match="numbers other than 0 where layer1 has no synapse"):
        horn.Job(net, (np.ones((2, 4)), [0, 1]), initial=full)
    with pytest.raises(ModelError, match="no weights 'layer9.weight'; there are layer1.weight, "):
        model.matrix("layer9.weight")
