"""What only ZeroMQ can do wrong: options, keys, strangers, other versions, folders."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from horn.errors import JobError
from horn.parameter_server.server_links import ServerLinks
from horn.transport import Identity, PeerLost, _framed, open_transport
from horn.transport._handshake import hello_of
from horn.transport._zeromq import keypair
from horn.wire import connection
from horn.wire.frames import BadFrame, HandshakeRefused, WireMessage, decode, encode
from horn.wire.messages import MENDS, Hello
from horn.wire.probe import GREETING
from horn.wire.sockets import LIMITS
from tests.cluster.helpers import wait_until
from tests.transport.groups import (
    TIMEOUT_S,
    all_to_all,
    expected_digests,
    good,
    run_steps,
    run_threads,
    url_of,
)

pytestmark = pytest.mark.net
KEY = bytes(range(32))


def made_with(scheme, keys):
    return lambda task: open_transport(
        url_of(scheme), Identity(task, len(keys), "test", 7, keys[task])
    )


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_the_options_of_the_reference_are_set(scheme):
    wanted = {
        "MAXMSGSIZE": 8 << 20, "HANDSHAKE_IVL": 5000, "SNDHWM": 16, "RCVHWM": 16, "LINGER": 2000,
        "HEARTBEAT_IVL": 0, "IMMEDIATE": 1, "RECONNECT_IVL": 100, "RECONNECT_IVL_MAX": 5000,
        "TCP_KEEPALIVE": 1, "TCP_KEEPALIVE_IDLE": 2, "TCP_KEEPALIVE_INTVL": 2,
        "TCP_KEEPALIVE_CNT": 3, "TCP_MAXRT": 6000,
    }  # fmt: skip

    def body(t):
        sockets = t.sockets
        for made in (sockets.router, *(c.dealer for c in sockets.connections.values())):
            assert {name: made.get(getattr(zmq, name)) for name in wanted} == wanted
            assert made.get(zmq.SNDTIMEO) > 0 and made.get(zmq.RCVTIMEO) > 0
        t.barrier(0, TIMEOUT_S)

    good(run_threads(scheme, 2, body))
    assert len(LIMITS) == len(wanted) + 2


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_with_a_key_everything_is_as_without(scheme):
    made = made_with(scheme, [KEY, KEY])
    steps = [all_to_all(2, (100,)), all_to_all(2, (7,))]
    steps[1] = [type(c)(c.part + 9, c.src, c.dsts, c.dtype, c.shape) for c in steps[1]]
    got = run_threads(scheme, 2, lambda t: run_steps(t, steps, 3), made=made)
    assert good(got) == expected_digests(2, steps, 3)


@pytest.mark.parametrize("keys", [[KEY, None], [None, KEY], [KEY, bytes(32)]])
def test_another_key_is_refused_by_name(keys):
    results = run_threads("tcp", 2, lambda t: None, made=made_with("tcp", keys))
    assert all(isinstance(error, Exception) for error in results)
    assert any(isinstance(e, PeerLost) and "the handshake failed" in str(e) for e in results), (
        results
    )


def test_who_is_refused_is_in_the_log_a_few_times(caplog):
    with open_transport("tcp://127.0.0.1:0", Identity(0, 2, "test", 7, KEY)) as t:
        allowed = t.sockets.zap.allowed
        allowed.audit.clock = lambda: 0.0  # all of them at one moment
        for byte in range(30):
            context = zmq.Context()
            dealer = context.socket(zmq.DEALER)
            own, secret = zmq.curve_keypair()
            dealer.set(zmq.CURVE_PUBLICKEY, own)
            dealer.set(zmq.CURVE_SECRETKEY, secret)
            dealer.set(zmq.CURVE_SERVERKEY, keypair(KEY, "test")[0])
            dealer.connect(t.endpoint)
            wait_until(lambda n=byte: allowed.n_refused > n)
            dealer.close(0)
            context.term()
        assert t.receive(0.0) is None
    lines = [m for m in caplog.messages if m.startswith("event=refused address=127.0.0.1 ")]
    assert len(lines) == 10
    # Who has hung up before its address was read is another source.
    assert len([m for m in caplog.messages if m.startswith("event=refused address=? ")]) <= 10
    assert lines[0] == ('event=refused address=127.0.0.1 reason="unknown key" at="task 0 of test"')


def test_a_key_pair_belongs_to_one_key_and_one_job():
    pairs = {keypair(KEY, "a"), keypair(KEY, "b"), keypair(bytes(32), "a")}
    assert len(pairs) == 3 and keypair(KEY, "a") in pairs
    public, secret = keypair(KEY, "a")
    assert zmq.curve_public(secret) == public and KEY not in secret
    with pytest.raises(JobError, match="3 bytes; make one of 32 with: horn keygen"):
        keypair(b"abc", "a")


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "[::]", "10.1.2.3", "example.org"])
def test_off_loopback_there_must_be_a_key(host):
    with pytest.raises(JobError, match="there is no key: make one with horn keygen"):
        open_transport(f"tcp://{host}:0", Identity(0, 2, "test"))


def test_addresses_that_cannot_be_are_named():
    for url, sentence in [
        ("tcp://127.0.0.1", "write tcp://host:port"),
        ("tcp://127.0.0.1:x", "write tcp://host:port"),
        ("ipc:///no/such/folder", "make the folder"),
    ]:
        with pytest.raises(JobError, match=sentence):
            open_transport(url, Identity(0, 1, "test"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(JobError, match=f"cannot listen on tcp://127.0.0.1:{port}: Address"):
            open_transport(f"tcp://127.0.0.1:{port}", Identity(0, 1, "test"))


def test_a_name_without_an_address_is_no_device_that_is_missing(monkeypatch):
    monkeypatch.setenv("HORN_INSECURE", "1")
    with pytest.raises(JobError, match="cannot listen on .*: its name has no address, or this"):
        open_transport("tcp://nosuch.invalid:0", Identity(0, 1, "test"))


@pytest.fixture
def short_path():
    """A socket's path has room for 107 characters; pytest's own folders may be longer."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_sockets_in_a_folder_are_its_owners_and_go_with_the_group(short_path):
    short_path.chmod(0o700)

    def made(task):
        return open_transport(f"ipc://{short_path}", Identity(task, 2, "test", 7))

    def body(t):
        assert len(os.listdir(short_path)) == 2
        t.barrier(0, TIMEOUT_S)
        t.barrier(1, TIMEOUT_S)

    good(run_threads("ipc", 2, body, made=made))
    assert os.listdir(short_path) == []
    short_path.chmod(0o755)
    with pytest.raises(JobError, match="others may enter the folder; chmod 700"):
        made(0)


@pytest.fixture
def stranger():
    """A DEALER with an identity of its own."""
    context = zmq.Context()
    made = context.socket(zmq.DEALER)
    made.set(zmq.LINGER, 0)
    made.set(zmq.RCVTIMEO, int(TIMEOUT_S * 1000))
    made.set(zmq.ROUTING_ID, b"stranger")
    yield made
    made.close()
    context.term()


def test_strangers_are_counted_and_do_not_disturb(stranger):
    n_frames = 20

    def body(t):
        t.open_channels(all_to_all(2), TIMEOUT_S)
        if t.task == 0:
            stranger.connect(t.endpoint)
            for _ in range(n_frames):
                stranger.send_multipart([b"x" * 64, b"y"])
        for step in range(200):
            t.outbox(t.task, TIMEOUT_S)[...] = step
            t.exchange(step, (0, 1), TIMEOUT_S)
            assert t.inbox(1 - t.task)[0] == step
        while t.task == 0 and t.counters.n_dropped < n_frames:
            assert t.receive(0.1) is None
        return t.counters.n_dropped

    assert good(run_threads("tcp", 2, body)) == [n_frames, 0]
    answers = [decode(stranger.recv_multipart()) for _ in range(3)]  # then silence
    assert {a.meta.where for a in answers} == {"header: magic"}
    with pytest.raises(zmq.Again):
        stranger.recv_multipart(zmq.DONTWAIT)


def test_another_major_version_is_told_which_is_spoken_here(stranger):
    hello = Hello(task=1, n_tasks=2, job="test", incarnation=b"stranger" * 2)
    head, meta = encode(WireMessage(hello, src=1, attempt=7, seq=1))
    with open_transport("tcp://127.0.0.1:0", Identity(0, 2, "test", 7)) as t:
        stranger.connect(t.endpoint)
        stranger.send_multipart([b"HRN\x01" + head[4:], meta])
        while not t.counters.n_dropped:
            assert t.receive(0.1) is None
        refusal = decode(stranger.recv_multipart()).meta
    assert (refusal.where, refusal.got, refusal.expected) == (
        "header: protocol version", "major 1", "major 2",
    )  # fmt: skip


def test_a_damaged_frame_of_a_member_is_dropped_and_what_is_no_accident_is_its_end():
    def body(t):
        if t.task == 0:
            for step in range(2):
                t.barrier(step, TIMEOUT_S)
            return t.counters.n_damaged
        t.sockets.put(0, [b"HRN\x02" + b"\0" * 60, b"\x80"])
        t.barrier(0, TIMEOUT_S)
        t.sockets.put(
            0,
            encode(
                WireMessage(
                    Hello(task=1, n_tasks=2, job="test", incarnation=t.incarnation),
                    src=5,
                    attempt=7,
                )
            ),
        )
        t.barrier(1, TIMEOUT_S)

    error = run_threads("tcp", 2, body)[0]
    assert isinstance(error, BadFrame)
    assert str(error) == "frame 4 from task 1: header: src: got task 5, expected task 1"


def test_another_process_at_a_peers_address_is_not_the_peer():
    """Task 1 ends without a word, and one with the same place, but no memory, listens instead."""
    is_there, is_over = threading.Event(), threading.Event()

    def body(t):
        t.open_channels(all_to_all(2), TIMEOUT_S)
        t.barrier(0, TIMEOUT_S)
        if t.task == 0:
            assert is_there.wait(TIMEOUT_S)
            try:
                t.barrier(1, TIMEOUT_S)
            finally:
                is_over.set()
        t.link.close(0.0)
        t._is_closed = True
        with open_transport(t.endpoint, Identity(1, 2, "test", 7)) as other:
            is_there.set()
            while not is_over.is_set():
                assert other.receive(0.05) is None
            assert other.counters.n_dropped >= 1

    error, other = run_threads("tcp", 2, body)
    assert other is None and isinstance(error, PeerLost)
    assert "another process is at its address: first frame" in str(error)


@pytest.mark.parametrize("has_links", [False, True])
@pytest.mark.parametrize("is_other", [False, True])
def test_another_user_does_not_come_in_by_an_abstract_name(monkeypatch, has_links, is_other):
    """All names are in /proc/net/unix, and a stranger took the place of a task."""
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + is_other)
    identity = Identity(0, 2, "test")
    if has_links:
        made = ServerLinks("ipc://", identity, lambda rank, attempt: False)
    else:
        made = open_transport("ipc://", identity)
    try:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(TIMEOUT_S)
            stranger.connect("\0" + made.endpoint.removeprefix("ipc://@"))
            assert stranger.recv(1) == (b"" if is_other else GREETING)
    finally:
        made.close()


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_a_strangers_hello_for_a_task_does_not_end_a_job_whose_task_comes_later(
    scheme, monkeypatch
):
    """It did, half a second after the hello."""
    late = SimpleNamespace(monotonic=lambda: time.monotonic() + 1.0)  # later than the handshake's
    monkeypatch.setattr(_framed, "time", late)
    url = url_of(scheme)
    first, second = (open_transport(url, Identity(task, 2, "test")) for task in range(2))
    peers, results = [first.endpoint, second.endpoint], []

    def connect() -> None:
        try:
            with first:
                first.connect(peers, TIMEOUT_S)
                first.barrier(0, TIMEOUT_S)
            results.append("connected")
        except Exception as error:  # handed to the test
            results.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    with open_transport(url, Identity(1, 2, "another job")) as stranger:
        with pytest.raises(HandshakeRefused, match="refused by task 0: hello of task 1: job"):
            stranger.connect([first.endpoint, stranger.endpoint], TIMEOUT_S)
    with second:
        second.connect(peers, TIMEOUT_S)
        second.barrier(0, TIMEOUT_S)
    thread.join(TIMEOUT_S)
    assert results == ["connected"]
    assert first.counters.n_dropped


def test_a_hello_that_did_not_fit_is_the_reason_when_nobody_else_came():
    first, second = (open_transport("tcp://127.0.0.1:0", Identity(t, 2, "test")) for t in range(2))
    stranger = open_transport("tcp://127.0.0.1:0", Identity(1, 2, "another job"))
    with first, second, stranger:
        stranger.link.connect([first.endpoint, stranger.endpoint], stranger.incarnation)
        stranger._say(0, hello_of(stranger.identity, stranger.incarnation, MENDS))
        while not first.counters.n_dropped:
            stranger._turn(0.01)
            first._turn(0.01)
        with pytest.raises(HandshakeRefused, match="hello of task 1: job: got another job"):
            first.connect([first.endpoint, second.endpoint], 0.2)


def end(close) -> None:
    """Call ``close``, which must return."""
    ending = threading.Thread(target=close, daemon=True)
    ending.start()
    ending.join(TIMEOUT_S)
    assert not ending.is_alive()


def test_a_transport_that_could_not_connect_can_be_closed():
    transport = open_transport("tcp://127.0.0.1:0", Identity(0, 2, "test"))
    with pytest.raises(JobError, match="cannot connect to 'tcp://nowhere'"):
        transport.connect([transport.endpoint, "tcp://nowhere"], TIMEOUT_S)
    end(transport.close)


def no_descriptor(*_: object) -> None:
    raise zmq.ZMQError(errno.EMFILE)


def test_a_transport_that_may_open_no_more_files_can_be_closed(monkeypatch):
    transport = open_transport("tcp://127.0.0.1:0", Identity(0, 2, "test"))
    monkeypatch.setattr(connection, "monitor_of", no_descriptor)
    with pytest.raises(JobError, match="Too many open files"):
        transport.connect([transport.endpoint, "tcp://127.0.0.1:1"], TIMEOUT_S)
    end(transport.close)


def test_a_peer_whose_connection_cannot_be_made_anew_is_lost_with_the_reason(monkeypatch):
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    peer = connection.PeerConnection(
        f"tcp://127.0.0.1:{port}", lambda number: context.socket(zmq.DEALER)
    )
    try:
        assert wait_until(lambda: peer.check(time.monotonic()) or peer.is_up)
        monkeypatch.setattr(connection, "monitor_of", no_descriptor)
        router.close(0)
        assert wait_until(lambda: peer.check(time.monotonic()) or peer.lost)
        assert peer.lost == "its connection broke and cannot be made anew: Too many open files"
    finally:
        peer.close(0)
        router.close(0)
        end(context.term)
        peer.settle()
