"""The session: start, primitives, events, loss, access, and what it leaves behind."""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import queue
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from kazoo.protocol.states import KazooState

import zk
from horn import errors
from horn.coordination import kazoo_client, nodes, session
from horn.coordination.kazoo_client import OVERDUE, _Handler
from horn.coordination.records import (
    Check,
    ConnectionResumed,
    ConnectionSuspended,
    Create,
    Delete,
    Put,
    Reply,
    SessionExpired,
    Znode,
)
from horn.coordination.session import AWAKE_S, Session
from horn.security.keys import Credential, TlsIdentity
from tests.cluster.conftest import TICK_MS, Connect, Zookeeper
from tests.cluster.helpers import Call, end_session, wait_until
from tests.cluster.relay import Relay
from zk.wire import Op

pytestmark = [pytest.mark.net, pytest.mark.timeout(60)]


def test_primitives_say_what_they_met(zookeeper, connect):
    coord, root = connect(), zookeeper.root
    made = coord.create(f"{root}/a", b"1")
    assert coord.get(f"{root}/a") == made
    assert (made.data, made.version, made.owner) == (b"1", 0, 0)
    with pytest.raises(errors.Conflict, match="is there already"):
        coord.create(f"{root}/a")
    with pytest.raises(errors.NotFound, match="folder is not there"):
        coord.create(f"{root}/none/b")
    zxid = coord.set(f"{root}/a", b"2", version=0)
    assert zxid > made.created and coord.get(f"{root}/a").changed == zxid
    with pytest.raises(errors.Conflict, match="was changed by another"):
        coord.set(f"{root}/a", b"3", version=0)
    with pytest.raises(errors.NotFound):
        coord.set(f"{root}/none", b"")
    assert coord.create(f"{root}/e", ephemeral=True).owner == coord.session
    assert coord.children(root) == ["a", "e"]
    assert coord.children(f"{root}/none") == [] and coord.get(f"{root}/none") is None
    assert coord.delete(f"{root}/e") and not coord.delete(f"{root}/e")
    coord.ensure(f"{root}/x/y/z", f"{root}/x/w")
    with pytest.raises(errors.Conflict, match="not empty"):
        coord.delete(f"{root}/x")
    assert coord.remove(f"{root}/x") and not coord.remove(f"{root}/x")
    with pytest.raises(errors.JobError, match="1,000,001 bytes"):
        coord.create(f"{root}/big", bytes(1_000_001))
    coord.sync(root)


def test_a_tree_that_another_fills_again_and_again_is_given_up(zookeeper, connect, monkeypatch):
    """It was removed for ever: of a job that is removed while a task of it still registers."""
    coord, root = connect(), zookeeper.root
    coord.ensure(f"{root}/x/y")
    sent, n_filled = coord._sent, itertools.count()

    def late(request, paths, *args, **kwargs):
        if request == "delete" and paths == [f"{root}/x/y"]:
            coord.create(f"{root}/x/y/{next(n_filled)}")
        return sent(request, paths, *args, **kwargs)

    monkeypatch.setattr(coord, "_sent", late)
    monkeypatch.setattr(nodes, "MOST_FILLED", 20)
    with pytest.raises(errors.Conflict, match=r"/x is not removed: .* below .*/x/y 20 times since"):
        coord.remove(f"{root}/x")
    assert next(n_filled) == 21


def test_a_transaction_is_all_or_nothing_and_says_which_step(zookeeper, connect):
    coord, root = connect(), zookeeper.root
    steps = [Create(f"{root}/a", b"1"), Create(f"{root}/s-", sequence=True), Check(root)]
    assert coord.commit(steps)[:2] == [f"{root}/a", f"{root}/s-0000000001"]
    with pytest.raises(errors.NotApplied) as caught:
        coord.commit([Put(f"{root}/a", b"2"), Delete(f"{root}/none"), Delete(f"{root}/a")])
    assert (caught.value.index, caught.value.reason) == (1, "missing")
    assert coord.get(f"{root}/a").data == b"1"
    with pytest.raises(errors.NotApplied, match="version"):
        coord.commit([Check(f"{root}/a", 7)])


def test_a_folder_goes_with_all_below_it_in_a_few_round_trips(zookeeper, connect, monkeypatch):
    coord, root = connect(), f"{zookeeper.root}/folder"
    coord.ensure(*(f"{root}/{a}/{b}" for a in range(5) for b in range(8)))
    trips, sent = [], coord._sent

    def counted(request, paths, *args, **kwargs):
        trips.append((request, len(paths)))
        return sent(request, paths, *args, **kwargs)

    monkeypatch.setattr(coord, "_sent", counted)
    assert coord.remove(root)
    assert trips == [
        ("delete", 1), ("get_children", 1), ("delete", 5), ("get_children", 5), ("delete", 40),
        ("delete", 5), ("delete", 1),
    ]  # fmt: skip
    assert not coord.remove(root)
    # and one that is larger than a batch
    monkeypatch.setattr(nodes, "BATCH", 3)
    coord.ensure(*(f"{root}/{a}/{b}" for a in range(5) for b in range(8)))
    assert coord.remove(root)
    assert coord.get(root) is None


def test_a_removal_has_a_deadline(zookeeper, connect, monkeypatch):
    coord, root = connect(), f"{zookeeper.root}/folder"
    coord.ensure(f"{root}/below")
    monkeypatch.setattr(coord, "send", lambda *args, **kwargs: None)
    with pytest.raises(errors.Unreachable, match="no answer"):
        coord.remove(root, timeout_s=0.01)


class LaggingServer(nodes.Nodes):
    """The second server of a session, whose connection to the first broke after a change: it hears
    of it when it is told to catch up.
    """

    hosts, session = "zk1:2181", 1

    def __init__(self) -> None:
        self.leader: dict[str, bytes] = {}
        self.here: dict[str, bytes] = {}
        self.n_commits = 0

    def check(self) -> None:
        pass

    def wait_connected(self, timeout_s: float) -> None:
        pass

    def is_in_callback(self) -> bool:
        return False

    def send(self, then, request, path, *args, **kwargs) -> None:
        if request == "commit":
            self.n_commits += 1
            is_refused = path in self.leader
            self.leader |= {step.path: step.data for step in args[0]}
            then(Reply(reason="exists" if is_refused else "broken"))
        elif request == "sync":
            self.here = dict(self.leader)
            then(Reply())
        else:
            assert request == "get"
            data = self.here.get(path)
            then(Reply(reason="missing") if data is None else Reply(Znode(data, 0, 1, 1, 0, 0)))


def test_a_change_that_landed_is_found_by_a_server_that_had_not_heard_of_it():
    coord = LaggingServer()

    def landed() -> bool:
        node = coord.get("/a")
        return node is not None and node.data == b"mine"

    assert coord.commit([Create("/a", b"mine")], landed) == []
    assert coord.n_commits == 1


def test_a_secret_closes_the_tree_to_others(zookeeper, connect):
    ours = connect(credential=Credential(b"k" * 32))
    ours.create(f"{zookeeper.root}/a", b"private")
    ours.commit([Create(f"{zookeeper.root}/b")])
    assert connect(credential=Credential(b"k" * 32)).get(f"{zookeeper.root}/a").data == b"private"
    for settings in ({}, {"credential": Credential(b"x" * 32)}):
        with pytest.raises(errors.AccessDenied) as caught:
            connect(**settings)
        assert caught.value.exit_code == 3
        assert str(caught.value) == (
            f"ZooKeeper at {zookeeper.hosts} refuses access to {zookeeper.root}: "
            f"the key is another one, or missing; give the cluster's, with --key FILE or HORN_KEY"
        )


def test_a_secret_is_not_laid_over_an_open_tree(zookeeper, connect):
    connect()
    with pytest.raises(errors.AccessDenied, match="made without this key"):
        connect(credential=Credential(b"k" * 32))


def test_an_unreachable_zookeeper_is_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        port = taken.getsockname()[1]
        with pytest.raises(errors.Unreachable) as caught:
            Session(f"127.0.0.1:{port}", timeout_s=0.3)
    assert caught.value.exit_code == 3
    assert str(caught.value) == (
        f"Cannot reach ZooKeeper at 127.0.0.1:{port} (connection refused, tried for "
        f"{caught.value.tried_s:.3g} s). Is it running?  nc -z 127.0.0.1 {port}"
    )


@pytest.mark.parametrize(
    ("hosts", "probe"),
    [("h:24", "h 24"), ("h:", "h 2181"), ("h", "h 2181"), ("[::1]:24/horn", "::1 24")],
)
def test_who_cannot_reach_it_is_told_what_to_type(hosts: str, probe: str):
    assert str(errors.Unreachable(hosts, "refused", 0.3)).endswith(f"  nc -z {probe}")


def test_blanks_around_hosts_are_no_part_of_them(embedded):
    with Session(f" {embedded.hosts} ,{embedded.hosts}\n", timeout_s=20.0) as session:
        assert session.hosts == f"{embedded.hosts},{embedded.hosts}"


def test_a_server_that_never_answers_is_said_so():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(errors.Unreachable, match="speaks TLS, give .* no quorum"):
            Session(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3)


def test_a_name_without_address_is_said_so():
    with pytest.raises(errors.Unreachable, match="no address for the name 'horn.invalid'"):
        Session("horn.invalid:2181", timeout_s=0.3)


def test_a_name_about_which_no_resolver_answers_is_said_so(monkeypatch):
    """The error came when the resolver gave up, minutes later."""
    over, known = threading.Event(), socket.getaddrinfo

    def ask(host, port, family=0, type=0, proto=0, flags=0):
        if host != "slow.example" or flags:
            return known(host, port, family, type, proto, flags)
        if type:  # else kazoo asks, whose thread is not to be left behind
            assert over.wait(30.0)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    monkeypatch.setattr(kazoo_client, "CONNECT_S", 0.05)
    try:
        with pytest.raises(errors.Unreachable, match="no answer about the name 'slow.example'"):
            Session("slow.example:2181", timeout_s=0.05)
        assert not over.is_set()
    finally:
        over.set()


def test_a_start_has_one_deadline_for_all_that_it_waits_for(monkeypatch):
    """A connection that came at the last moment, and broke, was waited for as long again."""
    seconds, waits, known = [0.0], [], threading.Event.wait

    def at_the_last_moment(client, timeout_s):
        seconds[0] += timeout_s
        return True

    def wait(event, timeout_s=None):
        waits.append(timeout_s)
        return known(event, 0.0)

    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    monkeypatch.setattr(kazoo_client.ZooKeeperClient, "start", at_the_last_moment)
    monkeypatch.setattr(threading.Event, "wait", wait)
    with pytest.raises(errors.Unreachable):
        Session("127.0.0.1:1", timeout_s=5.0)
    assert waits[0] == 0.0 and 5.0 not in waits


def trusting(certificate):
    tls = TlsIdentity(Path(certificate).read_text(), checks_names=True)
    return Credential(b"k" * 32, tls=tls)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
def test_tls_reaches_the_server_and_refuses_a_stranger(tmp_path):
    certificates = []
    for name in ("server", "stranger"):
        certificate, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        names = ["-subj", "/CN=horn", "-addext", "subjectAltName=DNS:localhost"]
        files = ["-keyout", str(key), "-out", str(certificate)]
        subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
        certificates.append((str(certificate), str(key)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates[0])
    with zk.EmbeddedServer(tls=context, tick_ms=3000) as server:
        hosts = f"localhost:{server.port}"
        with Session(
            hosts,
            credential=trusting(certificates[0][0]),
            session_s=60.0,
        ) as coord:
            assert coord.create("/horn/a", b"x" * 300_000).version == 0
            assert len(coord.get("/horn/a").data) == 300_000
            coord.create("/horn/b", b"x")
            # Answers and events that come in one piece must all be seen at once, and not only when
            # a ping, every 20 s, brings more.
            for _ in range(100):
                n_here, n_seen = 10, []
                for _ in range(n_here):
                    coord.send(n_seen.append, "get", "/horn/b")
                coord.get("/horn/b", timeout_s=15.0)
                assert len(n_seen) == n_here
        with pytest.raises(errors.Unreachable, match="its certificate is refused"):
            Session(hosts, credential=trusting(certificates[1][0]), timeout_s=0.3)


def test_what_kazoo_says_again_and_again_is_said_once_a_minute():
    """An agent wrote nine lines a second while ZooKeeper was away."""
    log = logging.getLogger("horn.coordination.kazoo_client.kazoo")
    logged = []
    for at in (0.0, 0.3, 59.0, 61.0, 61.2, 50.0):  # the clock is set back
        for text in ("Connection dropped", "Session has expired", "Connecting to zk1"):
            record = log.makeRecord(log.name, logging.WARNING, "", 0, text, (), None)
            record.created = 1e9 + at
            if log.filter(record):
                logged.append((at, text.split()[0]))
    assert [at for at, word in logged if word == "Connection"] == [0.0, 61.0, 50.0]
    assert [at for at, word in logged if word == "Session"] == [0.0, 61.0, 50.0]
    assert len(logged) == 6  # not where it connects to, which says "use_ssl: False" of TLS


def test_what_kazoo_says_may_be_filtered_while_another_session_s_thread_adds_to_it(monkeypatch):
    """The filter raised in kazoo's thread, and the session never connected again."""
    log = logging.getLogger("horn.coordination.kazoo_client.kazoo")

    def is_news(text):
        return log.filter(log.makeRecord(log.name, logging.WARNING, "", 0, text, (), None))

    class Time(float):
        def __rsub__(self, other):  # the turn of the other thread comes while this one compares
            Time.__rsub__ = float.__rsub__
            assert is_news("said by another")
            return other - float(self)

    said = {"said before": Time(time.time()), "too": time.time()}
    monkeypatch.setattr("horn.coordination.kazoo_client._said", said)
    assert is_news("said now")
    assert sorted(said) == ["said before", "said by another", "said now", "too"]


def test_a_folder_of_the_hosts_that_is_missing_is_named_with_what_to_do(
    zookeeper: Zookeeper, connect: Connect
):
    """It was: /horn: ZooKeeper answers 'missing'."""
    words = f"has no folder {zookeeper.root}: make it, with  create {zookeeper.root}  in zkCli"
    with pytest.raises(errors.JobError, match=words):
        Session(zookeeper.hosts + zookeeper.root, timeout_s=20.0)
    coord = connect()
    with Session(zookeeper.hosts + zookeeper.root, timeout_s=20.0) as below:
        below.ensure("/horn/jobs")
    coord.sync(zookeeper.root)
    assert coord.children(f"{zookeeper.root}/horn") == ["jobs"]


def test_a_zookeeper_that_is_too_old_is_called_so():
    """It was: answers 'UnimplementedError'. Those before 3.5 answer create2 so, and hang up."""
    with zk.EmbeddedServer() as server:
        assert server._server is not None
        del server._server.service._handlers[Op.CREATE2]
        with pytest.raises(errors.ClusterError, match="as one before 3.5; install a newer"):
            Session(server.hosts, timeout_s=20.0)


@pytest.mark.parametrize("hosts", ["zk1:port", "", "zk1:99999", "a..b:2181", f"{'a' * 64}:2181"])
def test_hosts_that_cannot_be_parsed_are_a_usage_error(hosts):
    with pytest.raises(errors.JobError, match="write host:port") as caught:
        Session(hosts, timeout_s=0.3)
    assert caught.value.exit_code == 2


def test_a_short_cut_is_suspended_then_resumed_in_the_same_session(zookeeper, connect):
    with Relay(zookeeper.hosts) as relay:
        coord = connect(relay.hosts)
        events = queue.Queue()
        unsubscribe = coord.subscribe(events.put)
        session = coord.session
        coord.create(f"{zookeeper.root}/mine", ephemeral=True)
        relay.cut()
        assert events.get(timeout=10) == ConnectionSuspended()
        assert not coord.connected and coord.session == session
        asked = Call(coord.get, f"{zookeeper.root}/mine")  # waits for the connection
        relay.mend()
        assert events.get(timeout=10) == ConnectionResumed()
        assert asked.result().owner == session == coord.session
        unsubscribe()
        coord.close()
        assert events.empty()


def test_who_asks_often_knows_of_silence_after_half_a_session_and_goes_on(
    zookeeper, connect, monkeypatch
):
    assert OVERDUE == 1 / 2
    with Relay(zookeeper.hosts) as relay:
        coord = connect(relay.hosts)
        events, silent_s = queue.Queue(), []

        def heard(event):
            if not silent_s:
                silent_s.append(time.monotonic() - coord._client.handler._asked_at)
            events.put(event)

        coord.subscribe(heard)
        session = coord.session
        relay.freeze()

        def is_told():
            coord.send(lambda reply: None, "exists", zookeeper.root)
            return not events.empty()

        with monkeypatch.context() as patch:  # most of the session is left to go on
            patch.setattr("horn.coordination.kazoo_client.OVERDUE", OVERDUE / 6)
            wait_until(is_told)
        assert events.get() == ConnectionSuspended()
        assert silent_s[0] >= coord.session_s * OVERDUE / 6
        relay.mend()
        assert events.get(timeout=10) == ConnectionResumed()
        assert coord.session == session
        coord.close()


def test_silence_for_a_session_time_is_loss_before_others_can_take_over(zookeeper, connect):
    with Relay(zookeeper.hosts) as relay:
        coord, other = connect(relay.hosts, session_s=2.4), connect()
        events, planned_s = queue.Queue(), []

        def heard(event):
            if isinstance(event, ConnectionSuspended):
                planned_s.append(coord._timer.interval)
            events.put(event)

        coord.subscribe(heard)
        coord.create(f"{zookeeper.root}/mine", ephemeral=True)
        relay.freeze()
        waiting = Call(coord.get, f"{zookeeper.root}/mine")
        assert events.get(timeout=10) == ConnectionSuspended()
        assert isinstance(events.get(timeout=10), SessionExpired)
        # a session's time in all: it had been silent for 0.4 s at least, a ping's, when suspended
        assert planned_s[0] <= 2.4 - 0.4
        # from now on every call says so, those under way too, and nothing brings it back
        for call in (waiting.result, coord.check, lambda: coord.children("/")):
            with pytest.raises(errors.SessionLost, match="no answer for 2.4 s"):
                call()
        relay.mend()
        wait_until(lambda: other.get(f"{zookeeper.root}/mine") is None)
        assert not coord.is_in_callback() and events.empty()


@pytest.mark.parametrize(
    "came, silent_s", [("nothing", 3.0), ("an event of a watch", 3.0), ("an answer", 0.0)]
)
def test_a_session_is_counted_from_when_the_last_was_sent_that_zookeeper_answered(
    embedded, connect_embedded, monkeypatch, came, silent_s
):
    """It was counted from the end of the connection, and another could have its place before."""
    with Relay(embedded.hosts) as relay:
        coord, other = connect_embedded(relay.hosts), connect_embedded()
        other.ensure(embedded.root)
        planned_s, watched = queue.Queue(), queue.Queue()

        def heard(event):
            if isinstance(event, ConnectionSuspended):
                planned_s.put(coord._timer.interval)

        coord.subscribe(heard)
        coord.send(lambda reply: None, "exists", f"{embedded.root}/a", watch=watched.put)
        coord.get("/")
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 3.0, time=time.time)
        for module in ("kazoo_client", "session"):
            monkeypatch.setattr(f"horn.coordination.{module}.time", later)
        if came == "an event of a watch":
            other.create(f"{embedded.root}/a")
            assert watched.get(timeout=10) == "created"
        elif came == "an answer":
            coord.get("/")
        relay.cut()
        left_s = coord.session_s - silent_s
        assert planned_s.get(timeout=10) == pytest.approx(left_s, abs=1.0)
        coord.close()


def test_a_session_time_that_the_server_cuts_is_known(zookeeper, connect):
    # given servers that grant 2 to 20 ticks
    tick_s = TICK_MS / 1000
    for asked_s, granted_s in [(3.0, 3.0), (60.0, 20 * tick_s), (1.0, 2 * tick_s)]:
        coord = connect(session_s=asked_s)
        assert coord.session_s == pytest.approx(granted_s)


def test_an_expired_session_is_lost_once_and_never_replaced(zookeeper, connect):
    coord, other = connect(), connect()
    events = queue.Queue()
    coord.subscribe(events.put)
    end_session(coord)
    seen = [events.get(timeout=10)]
    while not isinstance(
        seen[-1], SessionExpired
    ):  # before that: suspended, in an ensemble also resumed
        seen.append(events.get(timeout=10))
    assert seen[-1] == SessionExpired("ZooKeeper ended it")
    for write in (coord.delete, coord.create, coord.ensure):
        with pytest.raises(errors.SessionLost):
            write(f"{zookeeper.root}/late")
    assert other.get(f"{zookeeper.root}/late") is None
    late = queue.Queue()
    coord.subscribe(late.put)  # who comes late is told as well
    assert late.get(timeout=1) == SessionExpired("ZooKeeper ended it")


def test_a_closed_session_leaves_no_thread_and_no_descriptor(embedded):
    def descriptors() -> set[str]:
        return set(os.listdir("/proc/self/fd"))

    Session(embedded.hosts, root=embedded.root).close()  # what is made once is made
    before, threads = descriptors(), set(threading.enumerate())
    with Session(embedded.hosts, root=embedded.root) as coord:
        coord.create(f"{embedded.root}/mine", ephemeral=True)
    coord.close()
    with Session(embedded.hosts, root=embedded.root) as coord:
        assert coord.get(f"{embedded.root}/mine") is None
    # who says that it has ended may take a moment to be gone
    assert wait_until(lambda: set(threading.enumerate()) <= threads)
    assert wait_until(lambda: len(descriptors()) <= len(before))  # the server closes its ends


def test_waiting_inside_a_callback_is_refused_not_a_deadlock(embedded, connect_embedded):
    coord, seen = connect_embedded(), queue.Queue()

    def careless(reply):
        try:
            coord.get(embedded.root)
        except AssertionError as error:
            seen.put(str(error))

    coord.send(careless, "exists", embedded.root)
    assert seen.get(timeout=10) == "a callback must not wait for ZooKeeper"


@pytest.mark.parametrize(
    "error",
    [
        errors.NotApplied(1, "/horn/a", "missing"),
        errors.Unreachable("zk1:2181", "connection refused", 10.0),
        errors.AccessDenied("zk1:2181", "/horn", "no"),
        errors.SessionLost("zk1:2181", "expired"),
        errors.BarrierTimeout("generation 1", ("a",), ("b",), 2.0),
        errors.MemberLost("generation 1", ("a",)),
        errors.Fenced("a", "b"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_travel_between_processes(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    assert isinstance(error, errors.ClusterError | errors.Conflict)


class _Clock:
    """Stands for the modules time and select: a poll that has nothing takes its time, and more if
    the process stands still meanwhile.
    """

    POLLIN, POLLOUT = select.POLLIN, select.POLLOUT

    def __init__(self, late_s, found):
        self.now, self._late_s, self._found = 1000.0, list(late_s), found

    def monotonic(self):
        return self.now

    def poll(self):
        def wait(timeout_ms):
            if not self._late_s:
                return [(self._found, select.POLLIN)]
            self.now += timeout_ms / 1000 + self._late_s.pop(0)
            return []

        return SimpleNamespace(register=lambda *_: None, poll=wait)


def _handler(monkeypatch, clock, session_s=10.0):
    handler = _Handler(session_s, lambda reason: None, None)
    monkeypatch.setattr("horn.coordination.kazoo_client.time", clock)
    monkeypatch.setattr("horn.coordination.kazoo_client.select", clock)
    return handler


def test_who_stood_still_looks_once_more_before_its_server_is_late(monkeypatch):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        clock = _Clock([13.0], ours.fileno())
        handler = _handler(monkeypatch, clock)
        # a question on its way when everything stopped, the server too
        handler._connection, handler._asked_at = ours, clock.now - 4.9
        assert handler.select([ours], [], [], 3.0)[0] == [ours]
        assert handler.woke_at == pytest.approx(1013.1)


def test_a_server_that_does_not_answer_is_late_by_the_time_that_somebody_waited(monkeypatch):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        clock = _Clock([0.0, 0.0], ours.fileno())
        handler = _handler(monkeypatch, clock)
        handler._connection, handler._asked_at = ours, clock.now - 4.9
        with pytest.raises(TimeoutError):
            handler.select([ours], [], [], 3.0)
        assert handler.woke_at == 0.0


@pytest.mark.parametrize(
    "woke_s, silence_s, left_s", [(100.0, 0.0, 0.0), (0.0, 0.0, AWAKE_S), (100.0, 3600.0, 3510.0)]
)
def test_a_session_is_not_over_before_who_stood_still_could_ask(
    connect_embedded, woke_s, silence_s, left_s
):
    coord = connect_embedded(silence_s=silence_s)
    now = time.monotonic()
    handler = coord._client.handler
    handler.answered_at, handler.woke_at = now - 90.0, now - woke_s
    started = []
    with pytest.MonkeyPatch.context() as patch:
        timer = SimpleNamespace(start=lambda: None, cancel=lambda: None, daemon=True)
        patch.setattr("threading.Timer", lambda left, *_: started.append(left) or timer)
        coord._on_state(KazooState.SUSPENDED)
    assert started[0] == pytest.approx(left_s, abs=1.0)
    coord._on_state(KazooState.CONNECTED)
