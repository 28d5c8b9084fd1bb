"""Strangers who open connections and say nothing, at every port of a cluster whose job runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from horn.cluster.resume import saved
from horn.coordination.jobs import JobState
from tests.cluster.agents import Agents
from tests.faults.half_open import strangers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
LISTEN = "0A"  # of /proc/net/tcp


def endpoints(pids: Iterable[int]) -> list[str]:
    """TCP addresses on which these processes listen."""
    inodes = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(fd).removeprefix("socket:[").rstrip("]"))
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == LISTEN and words[9] in inodes:
            found.append(f"127.0.0.1:{int(words[1].partition(':')[2], 16)}")
    return found


@pytest.mark.parametrize("servers", [0, 1], ids=["allreduce", "downpour"])
@pytest.mark.parametrize("n", [6000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_job_runs_saves_and_ends_while_strangers_hold_connections(
    cluster_of: Agents, n: int, servers: int
):
    cluster_of.make_key()
    cluster_of.start("a", "b", slots=1, shared=True)
    how = {"servers": servers, "strategy": "downpour"} if servers else {}
    with cluster_of.client() as cluster:
        job = cluster_of.submit(
            cluster, "--epochs", "30", *cluster_of.held(20), groups=2, checkpoint_every=50,
            max_restarts=0, options={"transport": "tcp"}, **how,
        )  # fmt: skip
        cluster_of.wait_running(cluster, job, 20)
        pids = [pid for name in "ab" for pid, _ in cluster_of.descendants(name)]
        ports = endpoints(pids)
        assert len(ports) >= 4, ports  # of two job runners and two tasks
        if n >= 10_000:
            agents = [process.pid for process in cluster_of.processes.values()]
            ports += [*endpoints(agents), cluster_of.hosts]
        with strangers(n, *ports):
            cluster_of.let_go()
            status = cluster_of.wait_ended(cluster, job)
        assert status.state is JobState.SUCCEEDED, (status.result, cluster_of.said())
        assert status.record.n_restarts == 0
        if not servers:
            assert saved(cluster, job)[0][-1] >= 500
