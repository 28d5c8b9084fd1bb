"""What a start costs ZooKeeper and the system grows no faster than it has to."""

from __future__ import annotations

import math

import pytest

from tests.bench.bench_start import start

pytestmark = [pytest.mark.net, pytest.mark.cluster, pytest.mark.timeout(300)]

PACKETS = 40  # per task and doubling: 46 per task of one group, 80 where each group has one
DESCRIPTORS = 14  # of a task without any other: its session, its parent, its shared memory


@pytest.mark.parametrize("groups, tasks", [(8, 1), (12, 1), (1, 8), (1, 12)])
def test_packets_to_zookeeper_grow_as_the_tasks_do(groups, tasks):
    n = groups * tasks
    found = start(groups, tasks)
    assert found.packets <= PACKETS * n * math.log2(n), found
    assert found.descriptors <= DESCRIPTORS + n, found


def test_twice_the_tasks_take_twice_the_packets():
    """Everybody who watches everybody took four times as many."""
    few, many = start(6, 1), start(12, 1)
    assert few.losses == pytest.approx(many.losses, rel=1e-4)
    assert many.packets <= 2.4 * few.packets, (few, many)
