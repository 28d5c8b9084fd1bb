"""Slow, lossy and broken networks between hosts: late is not wrong, and what is broken is named.

Experiments 20 and 21 of the list of faults; the answer of a run on a bad network has the same bits
as that on a good one.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from dataclasses import replace
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
SILENCE_S = 8.0  # after 2 s of waiting a process is asked whether it lives, and has 6 s to answer


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


def test_broken_connections_are_mended_and_nothing_starts_again(net):
    """Once while both are somewhere in a step, then where task 0 is known to be between two."""
    a, b, _ = net.hosts
    calm, _ = digests(net, Spec(n_steps=60))
    net.slow(5)  # so that some of it is on its way
    pauses = (10, 11, 30, 55)
    with Tasks([a, b], Spec(n_steps=60, pauses=pauses)) as tasks:
        tasks.go()
        for at in pauses:
            assert tasks.hear(0) == at
            net.break_connections(a)
            tasks.go_on(0)
            net.break_connections(b if at == 11 else a)
        results = tasks.results()
    assert [result.get("digest") for result in results] == calm, results
    assert all(result["n_mended"] >= len(pauses) for result in results), results


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_connections_that_break_every_2_s_do_not_stop_a_run(net):
    a, b, _ = net.hosts
    spec = Spec(n_steps=300, timeout_s=30.0)
    calm, _ = digests(net, spec)
    net.slow(20)
    n_breaks = 0
    with Tasks([a, b], spec) as tasks:
        tasks.go()
        while not select.select([tasks.processes[0].stdout], [], [], 2.0)[0]:
            net.break_connections((a, b)[n_breaks % 2])
            n_breaks += 1
        results = tasks.results()
    took_s = results[0]["when"] - tasks.began
    print(f"\n{n_breaks} breaks in {took_s:.0f} s, mended: {[r.get('n_mended') for r in results]}")
    assert [result.get("digest") for result in results] == calm, results
    assert n_breaks >= 25


@pytest.mark.parametrize("is_judged", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_killed_process_is_named_at_once_over_the_network(net, is_judged):
    """The seconds are judged by the slow tests: in the gate others run beside."""
    a, b, _ = net.hosts
    with Tasks([a, b], Spec(n_steps=100_000, pauses=(20,))) as tasks:
        tasks.go()
        assert tasks.hear(0) == 20
        tasks.processes[1].kill()
        tasks.processes[1].wait(10)
        killed_at = time.monotonic()
        tasks.go_on(0)
        result = tasks.hear(0)
    assert result["error"] == "PeerLost" and "lost task 1 (" in result["text"], result
    assert "it owes" in result["text"]
    noticed_s = result["when"] - killed_at
    print(f"\nnoticed after {noticed_s:.2f} s", file=sys.stderr)
    assert noticed_s < NOTICED_S or not is_judged


@pytest.mark.slow
@pytest.mark.parametrize("one_way", [False, True])
def test_a_cut_cable_is_noticed(net, one_way):
    a, b, _ = net.hosts
    with Tasks([a, b], Spec(n_steps=1_000_000, timeout_s=30.0)) as tasks:
        tasks.go()
        time.sleep(0.5)  # the cable is cut while frames are on their way
        cut_at = time.monotonic()
        net.cut(a, b, one_way=one_way)
        results = tasks.results()
    for task, result in enumerate(results):
        assert result["error"] == "PeerLost" and f"lost task {1 - task} (" in result["text"]
        assert result["when"] - cut_at <= SILENCE_S + 1.0


def resident_bytes(pid):
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("stopped_s", [2.5, pytest.param(60.0, marks=pytest.mark.slow)])
def test_a_stopped_receiver_holds_the_sender_back(net, stopped_s):
    """Below the time of silence nothing happens but a wait; above it the peer is lost. In both
    cases the sender holds no more than before: two blocks per channel and a window of 16 MiB."""
    a, b, _ = net.hosts
    spec = Spec(sizes=(300, 1000, 1000, 10), batch=100, n_steps=10, timeout_s=90.0)
    calm, _ = digests(net, spec) if stopped_s < SILENCE_S else (None, 0)
    with Tasks([a, b], replace(spec, pauses=(3,))) as tasks:
        sender, receiver = (process.pid for process in tasks.processes)
        tasks.go()
        assert tasks.hear(0) == 3  # it has all that it needs, and much to send
        os.kill(receiver, signal.SIGSTOP)
        before = resident_bytes(sender)
        tasks.go_on(0)
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
        assert results[0]["when"] - stopped_at <= SILENCE_S + 1.0
