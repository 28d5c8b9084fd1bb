"""The hosts themselves: what is cut is cut, what is healed works, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from horn.coordination.session import Session
from tests.apache import ApacheEnsemble, is_available
from tests.cluster.helpers import wait_until
from tests.hosts import ROOT, STEM, hosts, sweep, why_not

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
QUIET_S = 0.3  # who has heard nothing for so long hears nothing
LONG_S = 20.0  # for what comes, however slow all are


def heard(a, b, n_bytes=10, timeout_s=LONG_S):
    """What of so many bytes from ``a`` comes to ``b``, without connection, and how fast."""
    with b.inside():
        there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with a.inside():
        here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with here, there:
        there.bind((b.address, 0))
        there.settimeout(timeout_s)
        began = time.monotonic()
        here.sendto(bytes(n_bytes), there.getsockname())
        try:
            return len(there.recv(65_536)), time.monotonic() - began
        except TimeoutError:
            return 0, timeout_s


def is_heard(a, b):
    return heard(a, b, timeout_s=QUIET_S)[0] > 0


def n_heard(a, b, n):
    """How many of so many datagrams come, where some are lost and none is late: who hears one that
    was sent later has heard all of them.
    """
    with b.inside():
        there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with a.inside():
        here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with here, there:
        there.bind((b.address, 0))
        for _ in range(n):
            here.sendto(b"counts", there.getsockname())
        found, ends = [], time.monotonic() + LONG_S
        there.settimeout(0.05)
        while b"last" not in found:
            assert time.monotonic() < ends, found
            here.sendto(b"last", there.getsockname())
            try:
                while b"last" not in found:
                    found.append(there.recv(100))
            except TimeoutError:
                pass
        return found.count(b"counts")


def carried(a, b, n_bytes=1000, timeout_s=LONG_S, listener=None):
    """How many bytes came by a TCP connection from ``a`` to ``b``; seconds."""
    if listener is None:
        with b.inside():
            listener = socket.create_server((b.address, 0))
    got = []

    def take():
        listener.settimeout(timeout_s)
        try:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(timeout_s)
                while part := connection.recv(65_536):
                    got.append(len(part))
                connection.sendall(b"!")
        except OSError:
            pass

    taker = threading.Thread(target=take)
    taker.start()
    began = time.monotonic()
    try:
        with a.inside():
            connection = socket.create_connection(listener.getsockname(), timeout_s)
        with connection:
            connection.sendall(bytes(n_bytes))
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
    except OSError:  # there was no answer, or the host is known to be away
        pass
    finally:
        spent = time.monotonic() - began
        taker.join()
        listener.close()
    return sum(got), spent


@pytest.fixture
def net():
    with hosts(3) as found:
        yield found


def test_what_is_cut_is_dropped_and_heals(net):
    a, b, c = net.hosts
    assert heard(a, b)[0] == heard(b, a)[0] == 10
    net.cut(a, b)
    assert not is_heard(a, b) and not is_heard(b, a)
    assert heard(a, c)[0] == heard(c, b)[0] == 10
    net.heal()
    net.cut(b, one_way=True)
    assert not is_heard(b, a) and not is_heard(b, c)
    assert heard(a, b)[0] == heard(c, b)[0] == 10
    net.heal()
    assert heard(b, a)[0] == 10
    net.unplug(a)
    assert carried(c, b)[0] == 1000 and carried(c, a, timeout_s=QUIET_S)[0] == 0
    net.plug(a)
    assert heard(b, a)[0] == 10


def test_ports_are_cut_alone(net):
    a, b, _ = net.hosts
    with b.inside():
        listener = socket.create_server((b.address, 0))
    net.cut(b, ports=[listener.getsockname()[1]])
    assert carried(a, b)[0] == 1000  # another port
    assert carried(a, b, timeout_s=QUIET_S, listener=listener)[0] == 0


def test_rate_delay_and_loss_are_what_was_asked_for(net):
    a, b, _ = net.hosts
    net.rate("1mbit", [a])
    n_bytes, spent = carried(a, b, 60_000)
    assert n_bytes == 60_000 and spent > 60_000 * 8 / 1e6 / 3  # less what a burst may be
    net.rate("1gbit")
    net.slow(60, 20)
    times = [heard(a, b)[1] for _ in range(20)]
    assert 0.035 < min(times) and max(times) > min(times) + 0.005
    net.heal()
    net.slow(0, 0, loss=0.3, seed=1)
    assert 30 <= n_heard(a, b, 60) <= 53
    net.heal()
    assert min(heard(a, b)[1] for _ in range(20)) < 0.02


def test_connections_break_on_both_sides(net):
    a, b, _ = net.hosts
    with b.inside(), socket.create_server((b.address, 0)) as listener:
        with a.inside():
            here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
        with here, there:
            net.break_connections(a)
            for end in (here, there):
                end.settimeout(5)
                with pytest.raises((ConnectionAbortedError, ConnectionResetError)):
                    end.recv(1)


def names():
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    return [line.split()[0] for line in done.stdout.splitlines()]


def test_nothing_is_left_even_of_a_killed_run():
    code = (
        "from tests.hosts import hosts; import time\n"
        "with hosts(2) as net:\n"
        "    net.slow(1)\n"
        "    child = net.hosts[0].start('sleep', '1000')\n"
        "    print(child.pid, net.switch, flush=True)\n"
        "    input()\n"
    )
    how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    for is_killed in (False, True):
        with subprocess.Popen([sys.executable, "-c", code], **how) as run:
            pid, switch = run.stdout.readline().split()
            stem = switch.removesuffix("-s")
            sweep()
            assert sorted(n for n in names() if n.startswith(stem)) == [
                f"{stem}-0", f"{stem}-1", switch,
            ]  # fmt: skip
            if is_killed:
                run.send_signal(signal.SIGKILL)
            else:
                print(file=run.stdin, flush=True)
            run.wait(60)
        if is_killed:
            sweep()
        assert [n for n in names() if n.startswith(stem)] == []
        wait_until(lambda pid=pid: not _runs(int(pid)))


def _runs(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe") != ""
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.skipif(not is_available(), reason="no Apache ZooKeeper here")
def test_an_ensemble_has_a_server_on_each_host(net):
    assert STEM in net.hosts[0].namespace
    with ApacheEnsemble(on=net.hosts) as ensemble:
        assert ensemble.hosts.count("10.77.0.") == 3
        with net.hosts[1].inside(), Session(ensemble.hosts) as coord:
            coord.ensure("/horn/there")
            leader = ensemble.leader()
            net.cut(net.hosts[leader])
            wait_until(lambda: ensemble.leader() not in (leader, -1), 30.0)
            if leader != 1:
                assert coord.children("/horn") == ["there"]
