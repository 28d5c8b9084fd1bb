"""The synapses of a sparse link seen from both sides."""

import gc
import weakref

import numpy as np
import pytest

import horn
from horn.backends._edge_lists import EdgeLists
from horn.errors import ModelError
from horn.partition.share import LocalEdges, Share


@pytest.mark.parametrize("n_sources", [1, 300, 70_000, 5_000_000])
def test_edges_by_source_come_in_their_order(n_sources, rng):
    sources = rng.integers(0, n_sources, 2_000)
    indptr = np.sort(np.concatenate([[0], rng.integers(0, 2_000, 49), [2_000]]))
    edges = LocalEdges(indptr, sources, n_sources, slice(0, 2_000))

    found = EdgeLists.of(edges)

    order = np.argsort(sources, kind="stable")
    np.testing.assert_array_equal(found.back_edges, order)
    np.testing.assert_array_equal(found.back_receivers, edges.receivers[order])
    np.testing.assert_array_equal(np.repeat(np.arange(n_sources), np.diff(found.back_indptr)),
                                  sources[order])  # fmt: skip
    assert found.back_edges.dtype == found.back_receivers.dtype == np.int32
    assert EdgeLists.of(edges) is found, "two programs have one"


def test_more_synapses_than_32_bits_number_are_refused():
    n = 2**31
    sources = np.broadcast_to(np.int64(0), n)  # in no memory
    edges = LocalEdges(np.array([0, n]), sources, 1, slice(0, n))
    with pytest.raises(ModelError, match="2,147,483,648 synapses on one task.*divide the layer"):
        EdgeLists.of(edges)


def test_all_programs_of_a_network_have_the_same_synapses_and_they_go_with_it():
    net = horn.Network(seed=1)
    net.input(8)
    net.layer(5, connect=horn.Sparse(fan_in=3))
    whole = Share(net).edges(1, 0, "")
    assert Share(net).edges(1, 0, "") is whole
    gone = weakref.ref(whole)
    del net, whole
    gc.collect()
    assert gone() is None
