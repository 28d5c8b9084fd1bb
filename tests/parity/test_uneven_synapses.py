"""Tasks divide neurons by their synapses, and compute what one task does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import horn
from horn.backends import Setup
from horn.partition.cuts import cuts
from horn.strategies import Topology
from tests.parity.test_tasks import (
    BACKENDS,
    PLACEMENTS,
    compare,
    labelled,
    of_group,
    of_one,
    place,
    steps,
)
from tests.strategies.test_pieces import check
from tests.transport.groups import good

FANS = {
    "a first quarter": [9] * 4 + [1] * 12,
    "a hub with most synapses": [1, 1, 9, 1],
    "a hub, and fewer neurons than tasks": [9, 1],
    "a neuron that hears nothing": [0, 9, 9, 0, 1, 1, 1, 1, 1, 0],
}


def heard(fans: Sequence[int], n_sources: int) -> horn.Sparse:
    """Neurons that hear so many sources each, the first ones of a few."""
    rng = np.random.default_rng(2)
    indptr = np.concatenate([[0], np.cumsum(fans)])
    some = [np.sort(rng.permutation(n_sources)[:n]) for n in fans]
    return horn.Sparse(csr=(indptr, np.concatenate(some).astype(np.int64)))


def network(fans: Sequence[int]) -> horn.Network:
    """A layer of these fans, one that hears it one to one, and one of hubs among its senders."""
    n = len(fans)
    net = horn.Network(seed=4)
    net.input(9, keep=0.8)
    net.layer(n, activation="relu", connect=heard(fans, 9))
    net.layer(n, activation="tanh", connect=horn.OneToOne())
    net.layer(7, neuron=horn.Dropout, activation="tanh", connect=heard([n, 1, 1, 1, 1, 1, 1], n))
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize("fans", FANS)
@pytest.mark.parametrize("placed", PLACEMENTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_number_of_tasks_computes_what_one_does(backend, placed, fans):
    net = network(FANS[fans])
    setup = Setup(net, horn.Adam(0.01), "labels", 7, "float64", 1)
    links, layers = PLACEMENTS[placed]
    placement = place(net, [links[0], *links], [*layers, layers[-1]])
    data, batches = labelled(net), steps(7, 2)
    one = of_one(backend, setup, data, batches)
    for n_tasks in (2, 3):
        group = good(of_group(backend, setup, data, batches, placement, n_tasks))
        compare(group, one, f"{n_tasks} tasks")


@pytest.mark.parametrize("fans", FANS)
def test_the_shares_of_a_layer_are_all_of_it_in_order(fans):
    net = network(FANS[fans])
    for layer in net.layers:
        for n_tasks in (1, 2, 3, 5, 40):
            found = cuts(net, layer.index, n_tasks)
            assert found[0] == 0 and found[-1] == layer.size and len(found) == n_tasks + 1
            assert (np.diff(found) >= 0).all()


def test_uneven_fans_are_cut_at_quantiles_of_synapses_and_neurons():
    net = network([9] * 4 + [1] * 12)  # work: 10 of each of 4, 2 of each of 12, together 64
    assert cuts(net, 1, 2).tolist() == [0, 3, 16]
    assert cuts(net, 1, 4).tolist() == [0, 2, 3, 8, 16]


def test_neurons_that_hear_one_each_are_where_these_are():
    net = network([9] * 4 + [1] * 12)
    for n_tasks in (2, 3, 5):
        assert (cuts(net, 2, n_tasks) == cuts(net, 1, n_tasks)).all()


def test_a_neuron_with_most_synapses_is_alone():
    net = network([9, 1, 1, 1, 1])
    assert cuts(net, 1, 2).tolist() == [0, 1, 5]


def test_an_input_is_cut_by_the_synapses_that_it_sends_through():
    net = horn.Network(seed=4)
    net.input(8)
    net.output(20, connect=horn.Sparse(sources=lambda o: [o % 2, 2 + o % 6]))
    assert cuts(net, 0, 2).tolist() == [0, 2, 8]


def test_even_fans_are_cut_as_even_numbers_of_neurons():
    net = horn.Network(seed=4)
    net.input(64)
    net.layer(40, connect=horn.Sparse(fan_in=5))
    net.output(10)
    for n_tasks in (2, 3, 7):
        assert cuts(net, 1, n_tasks).tolist() == [40 * k // n_tasks for k in range(n_tasks + 1)]


def test_layers_that_share_weights_by_a_tie_have_equal_shares():
    net = horn.Network(seed=4)
    net.input(9)
    hidden = net.layer(6, connect=heard([9, 9, 1, 1, 1, 1], 9))
    net.layer(9, connect=horn.Tied(hidden))
    net.output(2)
    assert [cuts(net, k, 3).tolist() for k in range(3)] == [
        [0, 3, 6, 9],
        [0, 2, 4, 6],
        [0, 3, 6, 9],
    ]


def test_a_network_that_grows_is_cut_anew():
    net = horn.Network(seed=4)
    net.input(4)
    assert cuts(net, 0, 2).tolist() == [0, 2, 4]
    net.output(9, connect=horn.Sparse(sources=lambda o: [0, 1 + o % 3]))
    assert cuts(net, 0, 2).tolist() == [0, 1, 4]


@pytest.mark.parametrize("fans", FANS)
@pytest.mark.parametrize("placed", ["owned", "sent"])
def test_every_number_is_in_one_piece_for_servers(placed, fans):
    net = network(FANS[fans])
    links, layers = PLACEMENTS[placed]
    placement = place(net, [links[0], *links], [*layers, layers[-1]])
    check(net, placement, Topology(2, 3, 2), "float64")


def trained_job(epochs: int) -> horn.Job:
    net = network(FANS["a first quarter"])
    return horn.Job(
        net, labelled(net), horn.Adam(0.01), epochs=epochs, batch_size=6, dtype="float64"
    )


@pytest.mark.cluster
@pytest.mark.parametrize("how", [{}, {"groups": 2}], ids=str)
def test_another_number_of_tasks_goes_on(how, tmp_path):
    one = horn.train(trained_job(2), progress=False).model.parameters
    pins = {"layer1": "receiver", "layer2": "sender", "layer3": "receiver"}
    settings = {"pins": pins, "checkpoints": tmp_path, "progress": False, **how}
    horn.train(trained_job(1), tasks=3, **settings)
    two = horn.train(trained_job(2), tasks=2, resume=True, **settings).model.parameters
    for name, array in one.items():
        np.testing.assert_allclose(two[name], array, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.cluster
def test_servers_have_all_that_tasks_of_uneven_shares_push():
    settings = {"strategy": "downpour", "servers": 1, "progress": False}
    pins = {"layer1": "receiver", "layer2": "sender", "layer3": "receiver"}
    one = horn.train(trained_job(2), **settings).model.parameters
    two = horn.train(trained_job(2), tasks=2, pins=pins, **settings).model.parameters
    for name, array in one.items():
        np.testing.assert_allclose(two[name], array, rtol=1e-9, atol=1e-12, err_msg=name)
