"""Experiment 19: a host of a job is cut off from ZooKeeper, from a server, or from all; or one way.

One job is cut again and again, a different host each time. Who is cut off has ended what it ran
before others have its places, and training goes on within 12 s.

    pytest -m slow -s tests/faults/test_partitions.py      10 of each, some 30 minutes
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from horn.cluster.master import RUNNING, HostReport, JobRecord
from tests.cluster.agents import alive
from tests.faults.cluster import SESSION_S, Cluster, digest, until
from tests.faults.stopwatch import Stopwatch
from tests.hosts import hosts, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.skipif("HORN_DATA" not in os.environ, reason="HORN_DATA does not say where"),
]
N_WORKERS = 3
NOTICED_S = 6.5  # by who is cut off: a session, and a tick of ZooKeeper's
RESUMED_S = 12.0
HEALED_S = 30.0  # for a host to be a worker again
SHAPE = ["--groups", "2", "--tasks", "2", "--max-restarts", "1000"]
WHAT = ["---", "--samples", "3000", "--hidden", "500", "--epochs"]
# Three batches an epoch, which takes longer than it takes to be told.
SMALL = ["---", "--samples", "600", "--epochs", "1000000", "--pace", "0.1"]
TOLD_S = 1.3  # after who was cut off goes on: two such epochs
EPOCHS = {1: 25, 10: 250}  # by the number of rounds: a little more than they take ...
PACE_S = 0.03  # ... if no iteration is faster
CUT_S = 5.0  # of a host from a server, for short: so long that the link is given up
FROM_SERVER = ("server", "to server", "from server")
LASTING = ", lasting"
FROM_ZOOKEEPER = ("zookeeper", "to zookeeper", "from zookeeper", "all")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with hosts(N_WORKERS + 1) as net:
        folder = tmp_path_factory.mktemp("cluster")
        with Cluster(net, net.hosts[:N_WORKERS], folder, slots=3, zk_host=net.hosts[3]) as found:
            yield found


@pytest.fixture(autouse=True)
def healed(cluster):
    """No test begins with what another one left cut, or with its job."""
    yield
    cluster.net.heal()
    cluster.stop_all()


def cut(cluster, kind, host, home=None, ports=()):
    """Both ways, or one; the names are of what is cut for ``host``. A server listens on ``ports``
    of the host ``home``.
    """
    net, zookeeper = cluster.net, cluster.zk_host
    match kind.removesuffix(LASTING):
        case "zookeeper":
            net.cut(host, zookeeper)
        case "to zookeeper":
            net.cut(host, zookeeper, one_way=True)
        case "from zookeeper":
            net.cut(zookeeper, host, one_way=True)
        case "all":
            net.cut(host)
        case "server":
            net.cut(host, home, ports=ports)
        case "to server":
            net.cut(host, home, one_way=True, ports=ports)
        case "from server":
            net.cut(home, host, one_way=True, ports=ports)
        case "server and zookeeper":
            net.cut(host, home, ports=ports)
            net.cut(host, zookeeper)


def record(coord, job):
    return msgspec.json.decode(coord.get(coord.paths.record(job)).data, type=JobRecord)


def is_running(coord, job, attempt):
    """Whether all hosts of an attempt say so."""
    found = record(coord, job)
    nodes = [coord.get(coord.paths.report(job, attempt, host)) for host in found.allocations]
    if found.attempt != attempt or not nodes or None in nodes:
        return False
    return all(msgspec.json.decode(n.data, type=HostReport).phase == RUNNING for n in nodes)


def iteration(coord, job):
    node = coord.get(coord.paths.progress(job))
    return json.loads(node.data).get("iteration", 0) if node is not None and node.data else 0


def begun(coord, job, attempt, told):
    """Until the first step of an attempt."""
    until(lambda: is_running(coord, job, attempt), 60.0, told)
    node = coord.get(coord.paths.progress(job))
    before = -1 if node is None else node.changed
    until(lambda: (n := coord.get(coord.paths.progress(job))) and n.changed > before, 30.0, told)


def status(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/status").read_text()[:60]


class Deaths(threading.Thread):
    """When the last of some processes ended."""

    def __init__(self, pids):
        super().__init__()
        self.pids, self.at = pids, None
        self.start()

    def run(self):
        ends, pause = time.monotonic() + 60.0, threading.Event()
        while time.monotonic() < ends:
            if not alive(self.pids):
                self.at = time.monotonic()
                return
            pause.wait(0.01)


def cut_off(cluster, coord, job, kind, draw):
    """One cut and what came of it: seconds to the end of the tasks that were cut off, until
    ZooKeeper gave the host up, to the next attempt, and to its first step.
    """
    attempt = record(coord, job).attempt
    begun(coord, job, attempt, cluster.told)
    number = draw.choice(sorted(int(name[-1]) for name in record(coord, job).allocations))
    pids = cluster.job_processes(number)
    assert len(pids) >= 3
    cut_at = time.monotonic()
    cut(cluster, kind, cluster.hosts[number])
    deaths = Deaths(pids)
    names = coord.paths.workers()
    until(lambda: len(coord.children(names)) < N_WORKERS, 2 * RESUMED_S, cluster.told)
    noticed_s = time.monotonic() - cut_at
    until(lambda: record(coord, job).attempt > attempt, 2 * RESUMED_S, cluster.told)
    ordered_s = time.monotonic() - cut_at
    still = [status(pid) for pid in alive(pids)]
    assert not still, f"{kind}: of attempt {attempt} there are {still} when the next one begins"
    begun(coord, job, attempt + 1, cluster.told)
    resumed_s = time.monotonic() - cut_at
    deaths.join(10)
    cluster.net.heal()
    until(lambda: len(coord.children(names)) == N_WORKERS, HEALED_S, cluster.told)
    return deaths.at - cut_at, noticed_s, ordered_s, resumed_s


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("n", [1, 10])
def test_no_two_epochs_overlap_when_a_host_is_cut_off(cluster, n):
    words = (*SHAPE, "--checkpoint-every", "20", *WHAT, str(EPOCHS[n]), "--pace", str(PACE_S))
    calm = cluster.submit(*words)
    cluster.wait(calm, "SUCCEEDED", 900.0)
    job = cluster.submit(*words)
    draw, found = random.Random(19), {kind: [] for kind in FROM_ZOOKEEPER}
    with cluster.session() as coord:
        until(lambda: iteration(coord, job) > 25, 60.0, cluster.told)
        for _ in range(n):
            for kind in FROM_ZOOKEEPER:
                found[kind].append(cut_off(cluster, coord, job, kind, draw))
    cluster.wait(job, "SUCCEEDED", 900.0)
    assert digest(cluster, job) == digest(cluster, calm)
    for kind, took in found.items():
        tell(kind, took)
    # ZooKeeper may hear of a host that does not hear of it, and gives it up as much later.
    noticed, _, _, resumed = map(max, zip(*sum(found.values(), []), strict=True))
    assert n == 1 or (noticed <= NOTICED_S and resumed <= RESUMED_S), (noticed, resumed)


def server_of(cluster, coord, job):
    """Of a job on two hosts: who has the server, who has not, and the server's ports."""
    allocations = record(coord, job).allocations
    rank = max(rank for allocation in allocations.values() for rank in allocation.ranks)
    [home] = [int(name[-1]) for name, allocation in allocations.items() if rank in allocation.ranks]
    [other] = [
        int(name[-1]) for name, allocation in allocations.items() if rank not in allocation.ranks
    ]
    ports = []
    for line in cluster.hosts[home].run("ss", "-Hltnp", check=True).stdout.splitlines():
        found = re.search(r":(\d+)\s.*pid=(\d+)", line)
        if found and Path(f"/proc/{found[2]}/comm").read_text().strip() == f"horn-task-{rank}":
            ports.append(int(found[1]))
    return home, other, ports


def epochs_told(cluster, job):
    """Those of which both groups have told."""
    text = (cluster.folder / "shared" / "jobs" / job / "progress.jsonl").read_text()
    rows = [json.loads(line)["row"]["epoch"] for line in text.splitlines() if '"row"' in line]
    assert rows == sorted(set(rows))
    return len(rows)


def cut_off_from_server(cluster, coord, job, kind):
    """One cut: seconds until its two groups have gone on, without those in which processes waited
    for a processor, and with them. For a short one the group that is cut off waits; if it lasts, or
    cuts it off from ZooKeeper as well, it ends, and another host has its place.
    """
    attempt = record(coord, job).attempt
    begun(coord, job, attempt, cluster.told)
    home, other, ports = server_of(cluster, coord, job)
    assert ports
    pids = cluster.job_processes(other)
    # One epoch more may have been told of by the group that is cut off.
    first = epochs_told(cluster, job)
    until(lambda: epochs_told(cluster, job) > first + 1, 60.0, cluster.told)
    watch = Stopwatch()
    cut(cluster, kind, cluster.hosts[other], cluster.hosts[home], ports)
    before = epochs_told(cluster, job)  # what was done while it was cut may be told later
    if kind in FROM_SERVER:
        threading.Event().wait(CUT_S)
        assert epochs_told(cluster, job) <= before + 2, "nothing was cut off"
        assert alive(pids) == pids and record(coord, job).attempt == attempt
        before = epochs_told(cluster, job)
        cluster.net.heal()
    else:
        until(lambda: record(coord, job).attempt > attempt, 2 * RESUMED_S, cluster.told)
        still = [status(pid) for pid in alive(pids)]
        assert not still, f"{kind}: of attempt {attempt} there are {still} when the next one begins"
    until(lambda: epochs_told(cluster, job) > before + 1, 60.0, cluster.told)
    resumed = watch.seconds()
    if kind in FROM_SERVER:
        assert alive(pids) == pids and record(coord, job).attempt == attempt
    cluster.net.heal()
    names = coord.paths.workers()
    until(lambda: len(coord.children(names)) == N_WORKERS, HEALED_S, cluster.told)
    return resumed


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("n", [1, 10])
def test_a_group_that_is_cut_off_from_its_server_goes_on(cluster, n):
    kinds = (*FROM_SERVER, *(kind + LASTING for kind in FROM_SERVER), "server and zookeeper")
    found = {kind: [] for kind in kinds}
    job = cluster.submit(*SHAPE, "--servers", "1", "--strategy", "downpour", *SMALL)
    with cluster.session() as coord:
        for _ in range(n):
            for kind in kinds:
                found[kind].append(cut_off_from_server(cluster, coord, job, kind))
    stopped = cluster.horn("stop", "--now", job)
    assert stopped.code == 0, stopped
    for kind, each in found.items():
        found[kind], took = map(list, zip(*each, strict=True))
        print(f"\n{kind}, {n} cuts: both groups go on after {np.median(took):.1f} s (worst "
              f"{max(took):.1f}, {max(found[kind]):.1f} without waiting for processors); load "
              f"{os.getloadavg()[0]:.0f}", file=sys.stderr)  # fmt: skip
    assert n == 1 or max(map(max, found.values())) <= RESUMED_S + TOLD_S


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("n", [1, 10])
def test_zookeeper_may_be_away(cluster, n):
    """Experiment 18: for three sessions, then all starts again, once. For half of one nothing
    does.
    """
    job = cluster.submit(*SHAPE, "--checkpoint-every", "20", *WHAT, "100000")
    draw, pause = random.Random(18), threading.Event()
    resumed, n_noticed = [], 0
    with cluster.session() as coord:
        begun(coord, job, 1, cluster.told)
        for number in range(2 * n):
            is_long = number % 2
            before = record(coord, job)
            pause.wait(draw.random() * SESSION_S / 2)  # at any time between two heartbeats
            cluster.net.cut(cluster.zk_host)
            pause.wait(3 * SESSION_S if is_long else SESSION_S / 2)
            if is_long:
                assert not [pid for k in range(N_WORKERS) for pid in cluster.job_processes(k)]
            back_at = time.monotonic()
            cluster.net.heal()
            if is_long:
                until(lambda e=before.attempt: record(coord, job).attempt > e, 30.0, cluster.told)
            else:
                pause.wait(SESSION_S)  # for who has noticed to say so
            after = record(coord, job)
            assert after.attempt - before.attempt <= 1 and after.n_restarts <= before.n_restarts + 1
            begun(coord, job, after.attempt, cluster.told)
            if is_long:
                resumed.append(time.monotonic() - back_at)
            else:
                n_noticed += after.attempt > before.attempt
    stopped = cluster.horn("stop", "--now", job)
    assert stopped.code == 0, stopped
    print(f"\nZooKeeper away for 3 sessions, {n} times: first step {np.median(resumed):.1f} s after"
          f" it was back (worst {max(resumed):.1f}); for half a session, {n} times: {n_noticed} "
          f"restarts; load {os.getloadavg()[0]:.0f}", file=sys.stderr)  # fmt: skip
    assert n_noticed == 0


def tell(kind, took):
    names = ("its tasks ended", "given up", "next attempt", "first step")
    print(
        f"\n{kind}, {len(took)} cuts: "
        + ", ".join(
            f"{name} {np.median(each):.1f} s (worst {max(each):.1f})"
            for name, each in zip(names, zip(*took, strict=True), strict=True)
        )
        + f"; load {os.getloadavg()[0]:.0f}",
        file=sys.stderr,
    )
