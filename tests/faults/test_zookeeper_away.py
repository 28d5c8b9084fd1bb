"""ZooKeeper cannot be reached for half a session's time, and for three: members, barriers, leaders.

Experiment 18, and the part of 19 that is about leaders: at no time are there two whose word counts.
"""

from __future__ import annotations

import random
import shutil
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import pytest

import zk
from horn.coordination.barrier import GroupBarrier
from horn.coordination.election import Candidate, commit_as
from horn.coordination.membership import Membership
from horn.coordination.records import Create, SessionExpired
from horn.coordination.session import Session
from horn.errors import ClusterError, HornError, Timeout
from horn.security.keys import Credential, TlsIdentity
from tests.cluster.helpers import Call, wait_until
from tests.hosts import hosts, why_not
from tests.support.election import wait_elected

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(100),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl for a certificate"),
]
TICK_MS = 100
NAMES = ["0", "1", "2"]


@pytest.fixture
def net():
    with hosts(4) as found:
        yield found


@pytest.fixture
def server(net, tmp_path, request):
    """An embedded server on the last host; off loopback it speaks TLS alone. Its sessions have 20
    ticks, of ``TICK_MS`` if a test does not ask for others.
    """
    host, tick_ms = net.hosts[3], getattr(request, "param", TICK_MS)
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2".split()
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "certificate.pem")]
    names = ["-subj", "/CN=horn-zk", "-addext", f"subjectAltName=IP:{host.address}"]
    subprocess.run([*words, *files, *names], check=True, capture_output=True, timeout=60)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    with host.inside():
        made = zk.EmbeddedServer(host=host.address, tick_ms=tick_ms, tls=context)
        made.start()
    tls = TlsIdentity((tmp_path / "certificate.pem").read_text(), checks_names=True)
    credential = Credential(b"k" * 32, tls=tls)
    yield Server(made.hosts, credential, tick_ms / 50)
    made.stop()


@dataclass
class Server:
    """How to reach it."""

    address: str
    credential: Credential
    session_s: float

    def session(self, host, timeout_s):
        """A session of a process on ``host``."""
        with host.inside():
            return Session(
                self.address,
                credential=self.credential,
                session_s=self.session_s,
                timeout_s=timeout_s,
            )


class Task:
    """A member on a host that crosses a barrier again and again."""

    def __init__(self, host, name, server, attempt):
        self.coord = server.session(host, 20.0)
        self.events = []
        self.coord.subscribe(lambda event: self.events.append((event, time.monotonic())))
        self.members = Membership(self.coord, "/horn/g/members")
        self.members.join(name, "here", timeout_s=20.0)
        self.barrier = GroupBarrier(
            self.coord, "/horn/g/barrier", name, NAMES, attempt=attempt, membership=self.members
        )
        self.n_crossed = 0

    def cross(self, until):
        """Until a generation that all agree on; the pace is that of work between barriers."""
        pause = threading.Event()
        while self.n_crossed < until:
            self.barrier.cross(self.n_crossed, 30.0)
            self.n_crossed += 1
            pause.wait(0.02)

    def lost(self):
        return [when for event, when in self.events if isinstance(event, SessionExpired)]


def away(net, seconds):
    """Nobody reaches ZooKeeper for a while; when that began."""
    began = time.monotonic()
    net.cut(net.hosts[3])
    threading.Event().wait(seconds)
    net.heal()
    return began


# So long that what cuts and heals, and the members themselves, may be slow.
@pytest.mark.parametrize("server", [500], indirect=True)
def test_half_a_session_without_zookeeper_is_not_even_noticed(net, server):
    tasks = [Task(net.hosts[n], NAMES[n], server, 1) for n in range(3)]
    try:
        sessions = [task.coord.session for task in tasks]
        calls = [Call(task.cross, 150) for task in tasks]
        wait_until(lambda: all(task.n_crossed > 3 for task in tasks))
        away(net, server.session_s / 2)
        for call in calls:
            call.result(80.0)
        assert [task.coord.session for task in tasks] == sessions
        assert not any(task.lost() for task in tasks)
        assert tasks[0].members.names() == set(NAMES)
    finally:
        for task in tasks:
            task.coord.close()


@pytest.mark.parametrize("is_judged", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_three_sessions_without_zookeeper_end_all_and_let_all_come_back(net, server, is_judged):
    """When they hear of it is judged by the slow tests: in the gate others run beside."""
    session_s = server.session_s
    tasks = [Task(net.hosts[n], NAMES[n], server, 1) for n in range(3)]
    calls = [Call(task.cross, 10_000) for task in tasks]
    wait_until(lambda: all(task.n_crossed > 3 for task in tasks))
    began = away(net, 3 * session_s)
    for task, call in zip(tasks, calls, strict=True):
        with pytest.raises(ClusterError, match="is over|absent|lost|no answer"):
            call.result()
        [lost_at] = task.lost()
        print(f"\nlost {lost_at - began:.2f} s after the cut", file=sys.stderr)
        assert 0.5 * session_s < lost_at - began
        assert lost_at - began < session_s + 0.5 or not is_judged
    again = [Call(Task, net.hosts[n], NAMES[n], server, 2) for n in range(3)]
    tasks = [call.result() for call in again]
    try:
        for call in [Call(task.cross, 20) for task in tasks]:
            call.result()
    finally:
        for task in tasks:
            task.coord.close()


class Reign:
    """A fencing token, and from when to when its leader believed in it; how many words it wrote."""

    def __init__(self, token):
        self.token, self.began, self.ended = token, time.monotonic(), None
        self.n_words = 0

    def end(self):
        self.ended = self.ended or time.monotonic()

    def on_event(self, event):
        if isinstance(event, SessionExpired):
            self.end()


class Leader:
    """Wants to lead, and while it does, writes its token into the log of all leaders."""

    def __init__(self, host, server, stop):
        self.host, self.server, self.stop = host, server, stop
        self.reigns = []

    def is_at_work(self):
        return bool(self.reigns) and self.reigns[-1].n_words and self.reigns[-1].ended is None

    def live(self):
        pause = threading.Event()
        while not self.stop.is_set():
            try:
                coord = self.server.session(self.host, 1.0)
            except HornError:
                pause.wait(0.05)
                continue
            try:
                self._try(coord, pause)
            except HornError:
                pass
            finally:
                coord.close()

    def _try(self, coord, pause):
        candidate = Candidate(coord, "/horn/leader")
        coord.ensure("/horn/log")
        while not self.stop.is_set():
            try:
                leadership = wait_elected(candidate, 0.3)
            except Timeout:
                continue
            reign = Reign(leadership.token)
            self.reigns.append(reign)
            coord.subscribe(reign.on_event)
            try:
                while not self.stop.is_set():
                    word = str(leadership.token).encode()
                    commit_as(coord, leadership, [Create("/horn/log/w-", word, sequence=True)])
                    reign.n_words += 1
                    pause.wait(0.02)
            finally:
                reign.end()


@pytest.mark.parametrize("n_cuts", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_at_no_time_do_two_leaders_count(net, server, n_cuts):
    stop = threading.Event()
    leaders = [Leader(host, server, stop) for host in net.hosts[:3]]
    calls = [Call(leader.live) for leader in leaders]
    draw = random.Random(n_cuts)
    pause = threading.Event()
    try:
        for n in range(n_cuts):
            wait_until(lambda n=n: sum(len(leader.reigns) for leader in leaders) > n)
            reigning = wait_until(lambda: next(filter(Leader.is_at_work, leaders), None))
            # Away from ZooKeeper alone, from all, or one way only.
            one_way, to = draw.choice([(False, net.hosts[3]), (False, None), (True, net.hosts[3])])
            a, b = (reigning.host, to) if draw.random() < 0.7 or not to else (to, reigning.host)
            net.cut(a, b, one_way=one_way)
            wait_until(lambda leader=reigning: leader.reigns[-1].ended)
            pause.wait(draw.random())
            net.heal()
        wait_until(lambda: sum(len(leader.reigns) for leader in leaders) > n_cuts)
    finally:
        stop.set()
        for call in calls:
            call.result()
    with server.session(net.hosts[0], 20.0) as coord:
        log = [int(coord.get(f"/horn/log/{x}").data) for x in sorted(coord.children("/horn/log"))]
    reigns = sorted((r for leader in leaders for r in leader.reigns), key=lambda r: r.token)
    assert log == sorted(log) and len(set(log)) >= n_cuts  # what counts
    both_s = max(
        before.ended - after.began for before, after in zip(reigns, reigns[1:], strict=False)
    )
    print(f"\ntwo believed that they lead for {both_s:.3f} s", file=sys.stderr)
    # A thread that is told late believes for longer: judged where nothing else runs.
    assert both_s < TICK_MS / 1000 or n_cuts == 2
