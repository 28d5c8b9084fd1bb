"""Pushes of ones from four groups to three servers leave exactly their number, in every number.

pytest -m slow tests/strategies/test_sums.py makes 2^20 of them.
"""

from __future__ import annotations

import numpy as np
import pytest

from horn.strategies import Topology
from tests.strategies.bodies import N_NUMBERS, N_PIECES
from tests.transport.groups import Processes

pytestmark = [pytest.mark.net, pytest.mark.cluster]


def pushed(
    scheme: str, topology: Topology, n_pushes: int, pull_every: int, timeout_s: float = 600.0
) -> None:
    """So many by each group; what came of it is checked."""
    with Processes(
        scheme, topology.n_ranks, "tests.strategies.bodies:sums", topology, n_pushes, pull_every
    ) as run:
        found = [run.read(rank, timeout_s)[1] for rank in range(topology.n_ranks)]
    for result in found:
        assert not isinstance(result, Exception), result
    total = float(n_pushes * topology.n_groups)
    for task in range(topology.n_tasks):  # of group 0
        np.testing.assert_array_equal(found[task], np.full(N_NUMBERS, total))
    servers = found[topology.n_workers :]
    assert sum(sum(staleness.values()) for _, staleness in servers) == total * N_PIECES


@pytest.mark.parametrize("scheme", ["shm", "ipc", "tcp"])
def test_1024_pushes_leave_the_exact_sums(scheme):
    pushed(scheme, Topology(4, 1, 3), 2**8, 16)


def test_tasks_push_what_they_own():
    pushed("shm", Topology(2, 2, 3), 2**8, 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_pushes_leave_the_exact_sums():
    pushed("shm", Topology(4, 1, 3), 2**18, 64, 1700.0)
