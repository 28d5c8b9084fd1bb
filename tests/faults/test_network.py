"""Slow, lossy and broken networks between hosts: late is not wrong, and what is broken is named.

Experiments 20 and 21 of the list of faults; the answer of a run on a bad network has the same bits
as that on a good one.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.faults.network_task import Spec, Tasks
from tests.hosts import hosts, why_not

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(100),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
NOTICED_S = 0.5
HEARTBEAT_S = 8.0  # ZeroMQ asks every 2 s and gives up after 6 s without an answer


@pytest.fixture(scope="module")
def net():
    with hosts(3) as found:
        yield found


@pytest.fixture(autouse=True)
def healed(net):
    yield
    net.heal()
    net.rate("1gbit")


def digests(net, spec):
    """Of each task's parameters, and the seconds that it took."""
    with Tasks(net.hosts[:2], spec) as tasks:
        tasks.go()
        results = tasks.results()
    assert all("error" not in result for result in results), results
    return [r["digest"] for r in results], max(r["when"] for r in results) - tasks.began


def test_a_cable_of_1_mbit_makes_a_run_slow_and_not_wrong(net):
    spec = Spec(n_steps=15)
    before = net.hosts[0].sent_bytes()
    calm, _ = digests(net, spec)
    n_bytes = net.hosts[0].sent_bytes() - before
    net.rate("1mbit")
    slow, slow_s = digests(net, spec)
    burst = 32_000
    assert slow == calm and slow_s > 0.9 * (n_bytes - burst) * 8 / 1e6 > 1.0


@pytest.mark.parametrize(
    "n_steps, loss", [(3, 0.01), pytest.param(40, 0.01, marks=pytest.mark.slow),
                      pytest.param(40, 0.05, marks=pytest.mark.slow)],
)  # fmt: skip
def test_delay_and_loss_make_a_run_slow_and_not_wrong(net, n_steps, loss):
    spec = Spec(n_steps=n_steps)
    calm, _ = digests(net, spec)
    net.slow(100, 50, loss=loss, seed=n_steps)
    slow, slow_s = digests(net, spec)
    assert slow == calm and slow_s > n_steps * 0.5


def test_a_broken_connection_is_named_by_both_ends_at_once(net):
    a, b, _ = net.hosts
    net.slow(20)  # so that the run lasts
    with Tasks([a, b], Spec(n_steps=100_000)) as tasks:
        tasks.go()
        time.sleep(0.5)  # somewhere in the middle; where does not matter
        broken_at = time.monotonic()
        net.break_connections(a)
        results = tasks.results()
    for task, result in enumerate(results):
        assert result["error"] == "PeerLost" and f"lost task {1 - task} (" in result["text"]
        assert "it owes" in result["text"] and result["when"] - broken_at < NOTICED_S


@pytest.mark.slow
@pytest.mark.parametrize("one_way", [False, True])
def test_a_cut_cable_is_noticed_by_the_heartbeat(net, one_way):
    a, b, _ = net.hosts
    with Tasks([a, b], Spec(n_steps=1_000_000, timeout_s=30.0)) as tasks:
        tasks.go()
        time.sleep(0.5)
        cut_at = time.monotonic()
        net.cut(a, b, one_way=one_way)
        results = tasks.results()
    for task, result in enumerate(results):
        assert result["error"] == "PeerLost" and f"lost task {1 - task} (" in result["text"]
        assert result["when"] - cut_at <= HEARTBEAT_S + 1.0


def resident_bytes(pid):
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("stopped_s", [2.5, pytest.param(60.0, marks=pytest.mark.slow)])
def test_a_stopped_receiver_holds_the_sender_back(net, stopped_s):
    """Below the heartbeat's time nothing happens but a wait; above it the peer is lost. In both
    cases the sender holds no more than before: two blocks per channel and a window of 16 MiB."""
    a, b, _ = net.hosts
    spec = Spec(sizes=(300, 1000, 1000, 10), batch=100, n_steps=10, timeout_s=90.0)
    calm, _ = digests(net, spec) if stopped_s < HEARTBEAT_S else (None, 0)
    with Tasks([a, b], spec) as tasks:
        sender, receiver = (process.pid for process in tasks.processes)
        tasks.go()
        time.sleep(0.1)
        os.kill(receiver, signal.SIGSTOP)
        before = resident_bytes(sender)
        peaks, stopped_at, pause = [before], time.monotonic(), threading.Event()
        while time.monotonic() < stopped_at + stopped_s:
            peaks.append(resident_bytes(sender))
            pause.wait(0.05)
        os.kill(receiver, signal.SIGCONT)
        results = tasks.results()
    assert max(peaks) - before < 30_000_000
    if calm is not None:
        assert [r.get("digest") for r in results] == calm
        assert results[0]["when"] - stopped_at >= stopped_s
    else:
        assert {r["error"] for r in results} == {"PeerLost"}
        assert results[0]["when"] - stopped_at <= HEARTBEAT_S + 1.0
