"""``Mean``: what groups ask for together, over threads of this process."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from horn.errors import ProtocolError
from horn.patience import Patience
from horn.runtime import peers as peers_module
from horn.runtime.group import TaskTimes
from horn.runtime.peers import Peers
from horn.strategies import Topology
from horn.transport import Identity, open_transport
from tests.transport.groups import good, url_of

WAIT_S = 60.0


def everywhere(topology: Topology, body: Callable[[Peers], Any]) -> list[Any]:
    """What ``body`` returns or raises in each task."""
    n = topology.n_workers
    transports = [open_transport(url_of("inproc"), Identity(k, n, "mean", 3)) for k in range(n)]
    ends = [transport.endpoint for transport in transports]
    found: list[Any] = [None] * n

    def run(rank: int) -> None:
        try:
            with transports[rank] as transport:
                transport.connect(ends, WAIT_S)
                peers = Peers(transport, topology, WAIT_S, TaskTimes())
                found[rank] = body(peers)
                peers.wait_finished()
        except Exception as error:  # handed to the test
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_S)
        assert not thread.is_alive()
    return found


def arrays_of(rank: int, sizes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Of several dtypes, in turn."""
    rng = np.random.default_rng(rank)
    dtypes = ("float32", "float64")
    return [rng.standard_normal(s).astype(dtypes[k % 2]) for k, s in enumerate(sizes)]


@pytest.mark.parametrize(
    "sizes", [[(7, 3), (2,), (5,), (4, 4)], [(1,), (1,)], [(2, 0), (3,)], [(100,)], []]
)
@pytest.mark.parametrize(("n_groups", "n_tasks"), [(1, 1), (2, 1), (3, 2), (5, 1)])
def test_it_is_the_sum_in_the_order_of_groups_over_their_number(
    sizes, n_groups, n_tasks, monkeypatch
):
    """To the bit, in messages of 40 numbers at most, of fewer numbers than groups too."""
    monkeypatch.setattr(peers_module, "MESSAGE_BYTES", 160)
    topology = Topology(n_groups, n_tasks)

    def body(peers: Peers) -> tuple[list[np.ndarray], int]:
        mine = arrays_of(peers.rank, sizes)
        for _ in range(2):  # the second is of what is equal already
            peers.mean(mine)
        return mine, peers.spent.sent_bytes

    found = good(everywhere(topology, body))
    for rank, (mine, sent) in enumerate(found):
        ranks = [topology.rank(group, rank % n_tasks) for group in range(n_groups)]
        theirs = [arrays_of(r, sizes) for r in ranks]
        for k, array in enumerate(mine):
            expected = array
            for _ in range(2):
                total = np.zeros_like(array)
                for others in theirs:
                    total += others[k]
                expected = total / np.asarray(n_groups, total.dtype)
                theirs = [[*o[:k], expected, *o[k + 1 :]] for o in theirs]
            assert array.dtype == expected.dtype and array.tobytes() == expected.tobytes()
        of_task = [found[topology.rank(group, rank % n_tasks)][1] for group in range(n_groups)]
        whole = sum(array.nbytes for array in mine)
        assert sum(of_task) == 2 * 2 * (n_groups - 1) * whole and sent == of_task[rank // n_tasks]


def test_a_group_that_goes_ahead_does_not_disturb_the_others():
    """Its parts of the next mean come while others are still at this one."""

    def body(peers: Peers) -> list[float]:
        one = np.full(3, float(peers.rank))
        return [float((peers.mean([one]), one)[1][0]) for _ in range(20)]

    assert good(everywhere(Topology(4, 1), body)) == [[1.5] * 20] * 4


def test_many_pieces_may_take_longer_together_than_one_may(monkeypatch):
    """Each look at the deadline takes a second of it."""

    def patience(timeout_s: float) -> Patience:
        return Patience(timeout_s, partial(next, itertools.count(0.0)))

    monkeypatch.setattr(peers_module, "Patience", patience)
    monkeypatch.setattr(peers_module, "MESSAGE_BYTES", 8)

    def body(peers: Peers) -> float:
        array = np.full(4 * int(WAIT_S), float(peers.rank))
        peers.mean([array])
        return float(array.mean())

    assert good(everywhere(Topology(2, 1), body)) == [0.5, 0.5]


@pytest.mark.parametrize("other", [[np.zeros(9)], [np.zeros(4, np.float32)]])
def test_other_arrays_in_another_group_are_an_error(other, monkeypatch):
    """Who finds it out raises it, and is waited for by the other."""
    monkeypatch.setattr(sys.modules[__name__], "WAIT_S", 3.0)

    def body(peers: Peers) -> None:
        peers.mean([np.zeros(4)] if peers.rank == 0 else [a.copy() for a in other])

    found = everywhere(Topology(2, 1), body)
    errors = [error for error in found if isinstance(error, ProtocolError)]
    assert errors, found
    assert "every group must ask for the mean of the same arrays" in str(errors[0])


@pytest.mark.parametrize("kind", ["int64", "bool"])
def test_a_mean_is_of_floating_point_numbers(kind):
    said = f"Mean: array 1 is of {kind}, expected floating point numbers"
    with pytest.raises(ProtocolError, match=said):
        raise everywhere(Topology(1, 1), lambda p: p.mean([np.zeros(2), np.zeros(2, kind)]))[0]


def test_arrays_that_are_not_contiguous_are_refused():
    with pytest.raises(ProtocolError, match="must be contiguous"):
        raise everywhere(Topology(1, 1), lambda peers: peers.mean([np.zeros((4, 4))[:, 0]]))[0]
