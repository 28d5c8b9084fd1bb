"""Pieces: each learned number is in one for each task that has it; servers have equally much."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import horn
from horn.network import Network
from horn.parameter_server import pieces as _pieces
from horn.parameter_server.pieces import (
    PIECE_BYTES,
    ParameterBundle,
    ParameterPiece,
    bundles,
    cut_parameters,
    messages,
)
from horn.partition.placement import LAYER_SPLITS, LINK_SPLITS, Placement
from horn.partition.rewrite import homes
from horn.partition.share import Share
from horn.strategies import Topology
from horn.wire.frames import BODY_BYTES
from horn.wire.messages import MAX_BODIES
from tests.parity.generated import Case, cases
from tests.parity.test_tasks import place
from tests.support.calls import calls_of


def of_task(network: Network, placement: Placement, n_tasks: int, task: int) -> dict[str, Any]:
    """The numbers of the whole array that a task has of each learned array, flat in its order."""
    share, at = Share(network, task, n_tasks), homes(network, placement)
    return {
        name: share.part(np.arange(array.size).reshape(array.shape), at[name]).reshape(-1)
        for name, array in network.initial_parameters(np.dtype("float64")).items()
    }


def check(network: Network, placement: Placement, topology: Topology, dtype: str) -> None:
    cut = cut_parameters(network, placement, topology, dtype)
    n_tasks, n_servers = topology.n_tasks, topology.n_servers
    links = {a for x in network.layers[1:] for link in x.links for a in link.weights.values()}
    assert [p.index for p in cut] == list(range(len(cut)))
    assert all(len(p) > 0 and 0 <= p.server < n_servers and p.owner in p.holders for p in cut)
    assert all(p.decays == (p.name in links) for p in cut)
    assert cut_parameters(network, placement, topology, dtype) == cut  # everybody computes the same

    shares = [of_task(network, placement, n_tasks, task) for task in range(n_tasks)]
    owned = {name: np.zeros(array.size, int)
             for name, array in network.initial_parameters(np.dtype(dtype)).items()}  # fmt: skip
    for task, share in enumerate(shares):
        held = {name: np.zeros(len(numbers), int) for name, numbers in share.items()}
        for p in cut:
            if task in p.holders:
                assert p.stop <= len(share[p.name])
                held[p.name][p.start : p.stop] += 1
                # what a piece is means the same to all its holders
                mine, its = (s[p.name][p.start : p.stop] for s in (share, shares[p.owner]))
                np.testing.assert_array_equal(mine, its)
            if task == p.owner:
                owned[p.name][share[p.name][p.start : p.stop]] += 1
        assert all((n == 1).all() for n in held.values()), f"task {task}"
    assert all((n == 1).all() for n in owned.values())

    load = [sum(len(p) for p in cut if p.server == s) for s in range(n_servers)]
    assert max(load) - min(load) <= max(map(len, cut))
    itemsize = np.dtype(dtype).itemsize
    assert max(map(len, cut)) * itemsize <= PIECE_BYTES
    for server in range(n_servers):
        mine = [p for p in cut if p.server == server]
        check_messages(mine, itemsize)


def check_messages(mine: list[ParameterPiece], itemsize: int) -> None:
    found = messages(mine, itemsize)
    assert [p for some in found for p in some] == mine
    for some in found:
        assert 0 < len(some) <= MAX_BODIES
        assert sum(map(len, some)) * itemsize <= min(PIECE_BYTES, BODY_BYTES)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    case=cases(),
    topology=st.builds(Topology, st.integers(1, 3), st.integers(1, 4), st.integers(1, 5)),
    links=st.lists(st.sampled_from(list(LINK_SPLITS)), min_size=8, max_size=8),
    layers=st.lists(st.sampled_from(list(LAYER_SPLITS)), min_size=5, max_size=5),
    dtype=st.sampled_from(["float32", "float64"]),
    largest=st.sampled_from([3 * 8, PIECE_BYTES]),
)
def test_every_number_is_in_one_piece(
    case: Case,
    topology: Topology,
    links: list[str],
    layers: list[str],
    dtype: str,
    largest: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    note(f"{case.text}\n{topology}, {dtype}")
    network = case.module(tmp_path_factory.getbasetemp()).network()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_pieces, "PIECE_BYTES", largest)
        patch.setitem(globals(), "PIECE_BYTES", largest)
        check(network, place(network, links, layers), topology, dtype)


def large(hidden: int = 1500) -> Network:
    net = horn.Network(seed=1)
    net.input(1000)
    net.layer(hidden, activation="tanh")
    net.layer(50, activation="tanh", connect=horn.Sparse(fan_in=7))
    net.output(10, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize("n_servers", [1, 3])
@pytest.mark.parametrize("n_tasks", [1, 2, 3])
def test_a_large_network_is_cut_and_dealt(n_tasks, n_servers):
    net = large()
    check(net, Placement.default(net), Topology(2, n_tasks, n_servers), "float32")


def test_a_small_network_is_balanced_too():
    net = large(hidden=40)
    for n_servers in (1, 2, 4):
        cut = cut_parameters(net, Placement.default(net), Topology(2, 1, n_servers), "float32")
        load = [sum(len(p) for p in cut if p.server == s) for s in range(n_servers)]
        assert max(load) <= 1.3 * sum(load) / n_servers


def test_groups_change_nothing_of_the_pieces():
    net = large()
    placement = Placement.default(net)
    first = cut_parameters(net, placement, Topology(1, 2, 2), "float32")
    assert all(
        cut_parameters(net, placement, Topology(g, 2, 2), "float32") == first for g in (2, 5)
    )


@given(st.lists(st.integers(1, 40), max_size=200), st.sampled_from([4, 8]))
def test_messages_are_full_but_never_too_full(lengths, itemsize):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_pieces, "PIECE_BYTES", 40 * 8)
        patch.setitem(globals(), "PIECE_BYTES", 40 * 8)
        cut = [ParameterPiece(k, "w", 0, n, 0, (0,), 0, True) for k, n in enumerate(lengths)]
        check_messages(cut, itemsize)
        found = messages(cut, itemsize)
        for some, following in zip(found, found[1:], strict=False):
            size = sum(map(len, some)) + len(following[0])
            assert len(some) == MAX_BODIES or size * itemsize > 40 * 8


def one_after_the_other(
    pieces: Sequence[ParameterPiece], topology: Topology, itemsize: int
) -> list[ParameterBundle]:
    """All bundles, in the order of ranks, servers, pushes before pulls, and pieces."""
    found: list[ParameterBundle] = []
    for rank, server, is_push in itertools.product(
        range(topology.n_workers), range(topology.n_servers), (True, False)
    ):
        task = rank % topology.n_tasks
        of = [p for p in pieces if p.server == server]
        mine = [p for p in of if (p.owner == task if is_push else task in p.holders)]
        for _, layer in itertools.groupby(mine, lambda p: p.name.partition(".")[0]):
            for some in messages(list(layer), itemsize):
                found.append(ParameterBundle(len(found), rank, server, some, is_push))
    return found


@pytest.mark.parametrize("n_groups, n_tasks, n_servers", [(1, 1, 1), (3, 1, 2), (2, 3, 2)])
def test_bundles_are_numbered_by_rank_whoever_asks(n_groups, n_tasks, n_servers):
    net, topology = large(hidden=300), Topology(n_groups, n_tasks, n_servers)
    cut = cut_parameters(net, Placement.default(net), topology, "float32")
    every = one_after_the_other(cut, topology, 4)
    assert list(bundles(cut, topology, 4)) == every
    for rank in range(topology.n_workers):
        assert list(bundles(cut, topology, 4, ranks=[rank])) == [b for b in every if b.rank == rank]
    for k in range(n_servers):
        assert list(bundles(cut, topology, 4, server=k)) == [b for b in every if b.server == k]
    grown = replace(topology, n_groups=n_groups + 2)
    later = range(topology.n_workers, grown.n_workers)
    assert (*every, *bundles(cut, grown, 4, ranks=later)) == bundles(cut, grown, 4)


def test_a_task_lists_its_own_bundles_whatever_the_number_of_groups():
    net = large(hidden=40)
    cut = cut_parameters(net, Placement.default(net), Topology(2, 1, 4), "float32")

    def of_a_task(n_groups: int) -> int:
        return calls_of(lambda: bundles(cut, Topology(n_groups, 1, 4), 4, ranks=[1]))

    assert of_a_task(400) == of_a_task(2)
