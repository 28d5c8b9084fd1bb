"""Connections: the four ways to describe a sparse one, and what does not fit."""

import pickle
import warnings

import numpy as np
import pytest

import horn
from horn.errors import ModelError


def rows(sparse, n_sources=4, n_receivers=3, seed=0):
    edges = sparse.edges(n_sources, n_receivers, np.random.default_rng(seed))
    return [
        edges.indices[a:b].tolist() for a, b in zip(edges.indptr, edges.indptr[1:], strict=False)
    ]


def test_dense_says_nothing():
    assert horn.Dense().edges(4, 3, np.random.default_rng(0)) is None


def test_fan_in_draws_that_many_sources_without_repetition_in_order():
    found = rows(horn.Sparse(fan_in=3), 10, 50)
    assert all(len(set(row)) == 3 and row == sorted(row) for row in found)
    assert {i for row in found for i in row} == set(range(10))
    assert rows(horn.Sparse(fan_in=3), 10, 50) == found
    assert rows(horn.Sparse(fan_in=3), 10, 50, seed=1) != found


def test_fan_in_may_be_nothing_or_all():
    assert rows(horn.Sparse(fan_in=0)) == [[], [], []]
    assert rows(horn.Sparse(fan_in=4)) == [[0, 1, 2, 3]] * 3


SHAPES = [(1, 5, 1), (7, 4, 0), (10, 20, 3), (10, 20, 10), (64, 50, 64), (100, 70_000, 4),
          (9_999, 40, 64), (10_001, 50, 60), (200_000, 30, 8), (2**33, 10, 5), (300, 20, 65),
          (20_001, 3, 1_500)]  # fmt: skip


@pytest.mark.parametrize("n_sources, n_receivers, fan_in", SHAPES)
def test_what_is_drawn_for_many_is_what_is_drawn_for_each(n_sources, n_receivers, fan_in):
    """A seed means the same network whatever the way of drawing."""
    for seed in range(3):
        one_by_one, rng = (np.random.Generator(np.random.Philox(seed)) for _ in range(2))
        found = horn.Sparse(fan_in=fan_in).edges(n_sources, n_receivers, rng)
        each = [
            np.sort(one_by_one.choice(n_sources, fan_in, replace=False, shuffle=False))
            for _ in range(n_receivers)
        ]
        np.testing.assert_array_equal(found.indices.reshape(n_receivers, fan_in), each)
        assert rng.integers(2**62) == one_by_one.integers(2**62)


@pytest.mark.parametrize(
    "sparse",
    [
        horn.Sparse(csr=([0, 2, 2, 3], [3, 0, 1])),
        horn.Sparse(edge_list=[(3, 0), (1, 2), (0, 0)]),
        horn.Sparse(edge_list=iter([(3, 0), (1, 2), (0, 0)])),
        horn.Sparse(edge_list=[(3, 0.0), (1, 2), np.array([0, 0])]),
        horn.Sparse(edge_list=np.array([(3, 0), (1, 2), (0, 0)], np.uint8)),
        horn.Sparse(sources=lambda o: [[3, 0], [], [1]][o]),
        horn.Sparse(sources=lambda o: np.array([[3, 0], [], [1]][o], np.int32)),
    ],
    ids=["csr", "edges", "iterator", "mixed", "edge array", "function", "arrays"],
)
def test_one_graph_in_every_description(sparse):
    assert rows(sparse) == [[3, 0], [], [1]]
    assert rows(sparse) == [[3, 0], [], [1]]  # an iterator is not used up


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: horn.Sparse(), "exactly one of fan_in, csr, edge_list, sources, matrix; got none"),
        (lambda: horn.Sparse(fan_in=1, sources=list), "got fan_in, sources"),
        (lambda: rows(horn.Sparse(fan_in=5)), "choose fan_in between 0 and 4"),
        (lambda: rows(horn.Sparse(fan_in=1.5)), "fan_in=1.5.* a whole number between 0 and 4"),
        (lambda: rows(horn.Sparse(fan_in="3")), "fan_in='3'.* a whole number between 0 and 4"),
        (lambda: rows(horn.Sparse(fan_in=True)), "fan_in=True.* a whole number between 0 and 4"),
        (lambda: rows(horn.Sparse(fan_in=np.nan)), "fan_in=nan.* a whole number between 0 and 4"),
        (lambda: rows(horn.Sparse(csr=([0, 1], [0]))), "indptr must have 4 entries"),
        (lambda: rows(horn.Sparse(csr=([0, 2, 1, 3], [0, 1, 2]))), "must not decrease"),
        (lambda: rows(horn.Sparse(csr=([0, 1, 1, 1], [4]))), "neuron 0 listens to source 4"),
        (lambda: rows(horn.Sparse(csr=([0, 1, 1, 1], [0.5]))), "whole numbers is expected"),
        (lambda: rows(horn.Sparse(edge_list=[(0, 3)])), "names receiver 3.*neurons 0..2"),
        (lambda: rows(horn.Sparse(edge_list=[(-1, 0)])), "neuron 0 listens to source -1"),
        (lambda: rows(horn.Sparse(edge_list=[(1, 0), (1, 0)])), "neuron 0 names a source twice"),
        (
            lambda: rows(horn.Sparse(edge_list=[(1, 2), (4, 2), (0, 1), (1, 2), (0, 1)])),
            "neuron 1 names a source twice",
        ),
        (
            lambda: rows(horn.Sparse(edge_list=[(1, 2), (7, 2), (9, 2), (1, 2)])),
            "neuron 2 listens to source 9",
        ),
        (
            lambda: rows(horn.Sparse(edge_list=np.array([(0, 3)]))),
            r"edge \(0, 3\) names receiver 3",
        ),
        (lambda: rows(horn.Sparse(edge_list=[(0, 1.5)])), r"edge \(0, 1.5\) names receiver 1.5"),
        (
            lambda: rows(horn.Sparse(edge_list=[(1, 2), (0.5, 1)])),
            r"edge_list\): edge 1 is \(0.5, 1\).*whole numbers",
        ),
        (lambda: rows(horn.Sparse(edge_list=np.array([(4, 2), (9, 2)]))), "listens to source 9"),
        (
            lambda: horn.Sparse(edge_list=np.ones((2, 3), int)),
            r"an edge is \(source, receiver\), got",
        ),
        (lambda: horn.Sparse(edge_list={(1, 0): 0.5}), "a value for each edge; write values=True"),
        (lambda: horn.Sparse(edge_list=[(1, 0, 2)]), r"an edge is \(source, receiver\), got"),
        (lambda: rows(horn.Sparse(sources=lambda o: [0.5])), r"sources\(0\).*whole numbers"),
    ],
)
def test_what_cannot_be_wired_is_refused(make, message):
    with pytest.raises(ModelError, match=message):
        make()


def test_an_array_of_edges_is_kept_as_one_and_is_the_descriptions_own():
    given = np.array([(3, 0), (1, 2), (0, 0)])
    sparse = horn.Sparse(edge_list=given)
    given[:] = 0
    again = pickle.loads(pickle.dumps(sparse))
    assert rows(sparse) == rows(again) == [[3, 0], [], [1]]
    assert "edge_list=array([[3, 0]" in repr(sparse)
    assert rows(horn.Sparse(edge_list=[])) == rows(horn.Sparse(edge_list=given[:0])) == [[], [], []]


def test_a_numpy_matrix_is_the_array_that_it_is():
    given = np.array([[0.0, 2.0, 3.0], [4.0, 0.0, 0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        old = np.matrix(given)  # as todense() of scipy gives it
    for matrix in (given, old):
        found = horn.Sparse(matrix=matrix, values=True).matrix
        assert found.values.tolist() == [2.0, 3.0, 4.0] and found.indices.tolist() == [1, 2, 0]


def test_edges_may_be_iterators_of_two():
    lines = ["0 1", "3 2", "1 0"]
    sparse = horn.Sparse(edge_list=(map(int, line.split()) for line in lines))
    assert rows(sparse) == rows(horn.Sparse(edge_list=[(0, 1), (3, 2), (1, 0)]))
    with pytest.raises(ModelError, match=r"an edge is \(source, receiver\), got \(1, 2, 3\)"):
        horn.Sparse(edge_list=[iter([1, 2, 3])])


def test_a_network_says_which_layer_cannot_be_wired():
    net = horn.Network()
    net.input(4)
    with pytest.raises(ModelError, match="layer 1 'layer1': Sparse"):
        net.layer(2, connect=horn.Sparse(fan_in=9))


def test_an_error_of_the_function_of_sources_names_the_layer_and_keeps_its_traceback():
    def below(receiver):
        return [receiver, [1, 2][receiver]]

    net = horn.Network()
    net.input(4)
    said = r"layer 1 'h': Sparse\(sources=below\): below\(2\) raised IndexError: list index out of"
    with pytest.raises(ModelError, match=said) as raised:
        net.layer(4, connect=horn.Sparse(sources=below), name="h")
    assert isinstance(raised.value.__cause__, IndexError)
    with pytest.raises(ModelError, match="fan_in=9") as raised:
        net.layer(4, connect=horn.Sparse(fan_in=9))
    assert raised.value.__cause__ is None and raised.value.__suppress_context__


@pytest.mark.parametrize(
    "csr, words",
    [
        (5, "a pair .indptr, indices. is expected, got 5"),
        ({"indptr": [0], "indices": []}, "a pair .* got {'indptr'"),
        ("scipy", "write matrix= for a scipy sparse matrix"),
        (([0, 1, 2, 3], [0, 1, 2], [1.0, 1.0, 1.0]), r"matrix=scipy.sparse.csr_matrix\(\(data, "),
    ],
)
def test_csr_is_a_pair(csr, words):
    """Values beside it were dropped without a word."""
    if csr == "scipy":
        csr = pytest.importorskip("scipy.sparse").eye(3, format="csr")
    with pytest.raises(horn.ModelError, match=words):
        horn.Sparse(csr=csr)


def test_numbers_of_a_matrix_that_are_too_large_are_told():
    """It was a warning of NumPy, and the name of a class of horn's."""
    net = horn.Network(seed=1)
    net.input(4)
    net.layer(3, connect=horn.Sparse(matrix=np.full((3, 4), 1e300), values=True))
    with pytest.raises(ModelError, match=r"layer1.weight: .* 1e\+300, too large for float32; .*64"):
        net.initial_parameters("float32")
    assert net.initial_parameters("float64")["layer1.weight"].max() == 1e300
