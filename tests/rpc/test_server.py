"""Calls to an agent: who may, how much, how long; and who is cut off."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import logging
import os
import select
import socket
import threading
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest
import zmq

from horn.cluster.remote_files import save
from horn.errors import (
    ClusterError,
    Conflict,
    JobError,
    NotAllowed,
    NotFound,
    ProtocolError,
    Timeout,
)
from horn.rpc import protocol as calls
from horn.rpc.call import ServiceFailed
from horn.rpc.client import MAX_FAILED, ClientKeys, RpcClient
from horn.rpc.server import SEND_FRAMES, Quotas, RpcServer
from horn.security.audit import AuditLog
from horn.security.keys import Key
from horn.wire.sockets import LIMITS
from horn.wire.zap import ZAP_DOMAIN, AllowedKeys, pair_of
from tests.cluster.helpers import wait_until
from tests.cluster.relay import Relay
from tests.rpc.services import KEY, OTHER, QUOTAS, URL, Count, Text, client, service

pytestmark = pytest.mark.net


SYN_SENT = 2  # tcp_info.tcpi_state: nobody has answered
LONG_S = 60.0  # for what comes at once, if the machine does not stand still


@pytest.fixture(autouse=True)
def hands_may_be_shaken_slowly(monkeypatch):
    monkeypatch.setitem(LIMITS, zmq.HANDSHAKE_IVL, int(LONG_S * 1000))


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and t.name.startswith("horn-")]
    assert not left


@pytest.mark.parametrize("key", [KEY, None], ids=["curve", "open"])
def test_a_call_is_answered(key):
    with service(key) as (found, echo), client(found) as caller:
        assert caller.call("echo", Text("hello"), Text) == Text("hello")
        assert echo.called == ["client" if key else "open"]


@pytest.mark.parametrize("n", [1, 262_144, 5_000_001])
def test_bodies_go_both_ways_in_bounded_portions(n):
    data = bytes(i % 251 for i in range(n))
    with service() as (found, _), client(found) as caller:
        got = caller.call("store", Text(), Text, body=[data[:7], data[7:]], size=n)
        assert got.text == hashlib.sha256(data).hexdigest()
        reply, portions = caller.download("send", Count(n), Text, max_bytes=n)
        assert reply == Text("here") and sum(map(len, portions)) == n
        assert caller.call("echo", Text("still"), Text) == Text("still")


def test_small_portions_of_a_body_are_joined_into_full_chunks():
    portions = [bytes([i % 251]) * 100 for i in range(6000)]
    for body in (portions, map(memoryview, portions), [b"".join(portions)], [b"", *portions, b""]):
        found = list(calls.chunks(body))
        full = calls.CHUNK_BYTES
        assert [len(chunk) for chunk in found] == [full, full, 600_000 - 2 * full]
        assert b"".join(found) == b"".join(portions)
    assert not list(calls.chunks([b""]))


def test_a_body_of_many_small_portions_comes_whole():
    """A message for each would be more than are queued for one peer."""
    n = 4 * SEND_FRAMES
    with RpcServer(URL, "host-1", None) as found:
        found.on("many", Text, lambda call: (Text(), iter([b"abc"] * n)), ["open"])
        with client(found) as caller:
            _, portions = caller.download("many", Text(), Text, max_bytes=3 * n, timeout_s=LONG_S)
            assert b"".join(portions) == b"abc" * n


def test_a_body_of_which_a_chunk_cannot_be_sent_is_never_taken_for_whole(caplog):
    n_chunks = itertools.count()
    with service() as (found, echo), client(found) as caller:
        send = found._router.send_multipart

        def full(parts, flags):
            if len(parts) == 3 and next(n_chunks) == 1:
                raise zmq.Again
            send(parts, flags)

        found._router.send_multipart = full
        n = 3 * calls.CHUNK_BYTES
        with pytest.raises(ClusterError, match="broke before 'send' was answered"):
            list(caller.download("send", Count(n), Text, max_bytes=n, timeout_s=LONG_S)[1])
        assert echo.ended.wait(LONG_S)
        assert caller.call("echo", Text("next"), Text) == Text("next")
        assert "does not read its answers" in caplog.text  # by the thread that has answered since


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, 3600.1, float("inf"), float("nan")])
def test_a_time_that_no_call_may_take_is_refused_before_anything_is_sent(timeout_s, caplog):
    with service() as (found, _), client(found) as caller:
        with pytest.raises(JobError, match="a call may take more than 0 and at most 3600 s"):
            caller.call("echo", Text(), Text, timeout_s=timeout_s)
        with pytest.raises(JobError, match="'send' is given"):
            caller.download("send", Count(1), Text, max_bytes=1, timeout_s=timeout_s)
        assert caller.call("echo", Text("next"), Text) == Text("next")
        assert not caplog.records


@pytest.mark.parametrize(
    ("body", "size", "said"),
    [
        ([b"abc"], 4, "its body has 3 bytes, but 4 were announced"),
        ([], 4, "its body has 0 bytes, but 4 were announced"),
        ([b"abc", b"de"], 4, "its body has at least 5 bytes, but 4 were announced"),
        ([bytes(calls.CHUNK_BYTES), b"a"], 300_000, "its body has 262145 bytes, but 300000 were"),
        ([bytes(600_000)], 300_000, "at least 524288 bytes, but 300000 were announced"),
        ([b"abc"], 0, "at least 3 bytes, but 0 were announced"),
    ],
)
def test_a_body_of_another_size_than_was_said_ends_the_call_and_not_the_connection(
    body, size, said, caplog
):
    with service() as (found, _), client(found) as caller:
        with pytest.raises(ProtocolError, match=said):
            caller.call("store", Text(), Text, body=body, size=size, timeout_s=9 * LONG_S)
        wait_until(lambda: not found._calls)
        assert caller.call("echo", Text("next"), Text) == Text("next")
        assert not caplog.records


def test_a_body_that_cannot_be_read_ends_its_call():
    def body():
        yield bytes(calls.CHUNK_BYTES)
        raise OSError("the disk")

    with service() as (found, _), client(found) as caller:
        with pytest.raises(OSError, match="the disk"):
            size = 2 * calls.CHUNK_BYTES
            caller.call("store", Text(), Text, body=body(), size=size, timeout_s=9 * LONG_S)
        wait_until(lambda: not found._calls)
        assert caller.call("echo", Text("next"), Text) == Text("next")


def test_a_body_that_is_not_read_to_its_end_ends():
    with service() as (found, echo), client(found) as caller:
        _, portions = caller.download("send", Count(1 << 30), Text, max_bytes=1 << 30)
        with portions:
            next(portions)
        assert echo.ended.wait(LONG_S)
        assert caller.call("echo", Text("next"), Text) == Text("next")
        with pytest.raises(ProtocolError, match="more bytes than expected"):
            list(caller.download("send", Count(1 << 20), Text, max_bytes=1000)[1])
        wait_until(lambda: not found._calls)


def test_what_a_role_may_not_do_it_cannot(caplog):
    with service() as (found, echo), client(found) as caller, client(found, "worker") as worker:
        with pytest.raises(NotAllowed, match="'order' is not for a client"):
            caller.call("order", Text(), Text)
        with pytest.raises(NotAllowed, match="'nothing' is not for a client"):
            caller.call("nothing", Text(), Text)
        assert echo.called == []
        with caplog.at_level(logging.INFO, "horn.audit"):
            worker.call("order", Text(), Text)
        assert "event=order key=worker address=127.0.0.1" in caplog.text
        assert echo.called == ["worker"]


def test_the_key_of_a_job_opens_no_service():
    """Its tasks have that key, and user code runs there."""
    with service() as (found, echo):
        access = ClientKeys(*pair_of(KEY.job("mnist-1")), found.public)
        with RpcClient(found.endpoint, access) as task, pytest.raises(NotAllowed):
            task.call("echo", Text(), Text)
        assert echo.called == []


def test_errors_of_handlers_come_back_as_what_they_are(caplog):
    def conflict(call):
        raise Conflict("job 'a' has ended")

    def bug(call):
        raise ZeroDivisionError("secret detail")

    def odd(call):
        raise NotFound("there is no " + os.fsdecode(b"/data/\xff.csv"))

    found = RpcServer(URL, "host-1", KEY)
    found.on("odd", Text, odd, ["client"])
    found.on("conflict", Text, conflict, ["client"])
    found.on("bug", Text, bug, ["client"])
    with found, client(found) as caller:
        with pytest.raises(Conflict, match="job 'a' has ended"):
            caller.call("conflict", Text(), Text)
        with pytest.raises(NotFound, match=r"there is no /data/\\udcff\.csv"):
            caller.call("odd", Text(), Text)
        with pytest.raises(ClusterError, match="host-1: bug failed; its log says why") as caught:
            caller.call("bug", Text(), Text)
        assert "secret detail" not in str(caught.value) and "secret detail" in caplog.text
        with pytest.raises(ProtocolError, match="Expected `str`, got `int`"):
            caller.call("bug", _Other(7), Text)


def test_a_bug_that_ends_the_service_is_told_to_its_owner(caplog, monkeypatch):
    told = threading.Event()

    def bug(now):
        raise ZeroDivisionError("in the service")

    with service(on_failed=told.set) as (found, echo), client(found) as caller:
        assert caller.call("echo", Text("before"), Text) == Text("before")
        found.check()
        monkeypatch.setattr(found, "_end_late", bug)
        assert told.wait(LONG_S)
        with pytest.raises(ServiceFailed) as caught:
            found.check()
        assert str(caught.value) == (
            f"the service of host-1 at {found.endpoint} has ended by a bug "
            "(ZeroDivisionError('in the service')); its log has more. Start it again"
        )
        assert "service failed name=host-1" in caplog.text


def test_a_call_that_gets_no_thread_is_refused_and_the_next_is_answered(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    with service() as (found, _), client(found) as caller:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            with pytest.raises(ClusterError, match="host-1 is busy: can't start new thread"):
                caller.call("echo", Text(), Text)
        assert not found._calls and found.n_refused == 1
        assert caller.call("echo", Text("next"), Text) == Text("next")


class _Other(msgspec.Struct):
    text: int


def test_every_call_has_a_deadline_at_both_ends():
    may_go_on, answers = threading.Event(), []

    def late(event):
        assert event.wait(LONG_S)
        yield bytes(50)

    def ask_patiently():
        with client(found) as patient:
            body = late(may_go_on)
            text = patient.call("wait", Text(), Text, body=body, size=50, timeout_s=2 * LONG_S)
            answers.append(text)

    with service() as (found, echo), client(found) as caller:
        assert caller.call("echo", Text("first"), Text) == Text("first")  # now there is a way
        thread = threading.Thread(target=ask_patiently)
        thread.start()
        wait_until(lambda: found._calls)
        with pytest.raises((Timeout, ClusterError), match="in time"):
            caller.call("wait", Text(), Text, body=late(echo.ended), size=50, timeout_s=0.3)
        assert echo.ended.wait(LONG_S)
        assert not answers  # who has more time still waits
        may_go_on.set()
        thread.join(LONG_S)
        assert answers == [Text()]
        assert caller.call("echo", Text("next"), Text) == Text("next")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        with RpcClient(f"tcp://127.0.0.1:{port}") as caller, pytest.raises(ClusterError):
            caller.call("echo", Text(), Text, timeout_s=0.2)


def test_the_wait_for_another_call_has_a_deadline(monkeypatch):
    """A body that nobody read held all later calls of its client for ever."""
    monkeypatch.setattr("horn.rpc.client.TURN_S", 0.05)
    with service() as (found, echo), client(found) as caller:
        _, portions = caller.download("send", Count(1 << 30), Text, max_bytes=1 << 30)
        with portions:
            for call in (caller.call, partial(caller.download, max_bytes=1)):
                with pytest.raises(ClusterError, match="'echo' was not sent to .*: for 0.05 s "
                                   "another call has had the connection; read"):  # fmt: skip
                    call("echo", Text(), Text)
        assert caller.call("echo", Text("next"), Text) == Text("next")


def test_calls_are_counted_per_peer():
    quotas = Quotas(calls_per_peer=2)
    with service(quotas=quotas) as (found, _):
        dealer = raw(found)
        for number in range(4):
            dealer.send(ask(number, "wait", size=10))
        kinds = [calls.decode(dealer.recv_multipart())[0] for _ in range(2)]
        assert [(k.call, k.kind) for k in kinds] == [(2, "ServiceBusy"), (3, "ServiceBusy")]
        close(dealer)


def test_off_loopback_there_must_be_a_key():
    for host in ("0.0.0.0", "*", "[::]", "10.1.2.3"):
        with pytest.raises(JobError, match="there is no key: make one with horn keygen"):
            RpcServer(f"tcp://{host}:0", "host-1", None)
    with pytest.raises(JobError, match="write tcp://host:port"):
        RpcServer("ipc://here", "host-1", None)


def test_a_taken_port_is_named_and_nothing_is_left():
    with service() as (found, _):
        port = found.endpoint.rpartition(":")[2]
        with pytest.raises(JobError, match=f"cannot listen on tcp://127.0.0.1:{port}"):
            RpcServer(f"tcp://127.0.0.1:{port}", "host-2", KEY)


# strangers


def raw(found: RpcServer, key: Key | None = KEY, role: str = "client", **options: object):
    """A DEALER that says what it likes."""
    context = zmq.Context()
    made = context.socket(zmq.DEALER)
    made.set(zmq.LINGER, 0)
    made.set(zmq.RCVTIMEO, int(LONG_S * 1000))
    made.set(zmq.SNDTIMEO, int(LONG_S * 1000))
    made.set(zmq.HANDSHAKE_IVL, int(LONG_S * 1000))
    made.set(zmq.ROUTING_ID, b"always the same!")
    if key is not None:
        public, secret = pair_of(key.role(role))
        made.set(zmq.CURVE_PUBLICKEY, public)
        made.set(zmq.CURVE_SECRETKEY, secret)
        made.set(zmq.CURVE_SERVERKEY, found.public)
    for option, value in options.items():
        made.set(getattr(zmq, option), value)
    made.connect(found.endpoint)
    return made


def close(dealer) -> None:
    context = dealer.context
    dealer.close(0)
    context.term()


def ask(number: int, op: str = "echo", size: int = 0, timeout_s: float = LONG_S) -> bytes:
    request = msgspec.Raw(msgspec.msgpack.encode(Text("x")))
    return calls.encode(calls.CallRequest(number, calls.VERSION, op, timeout_s, request, size))


@contextlib.contextmanager
def seen_first(found: RpcServer) -> Iterator[str]:
    """An endpoint that leads to the service, which sees whose a connection is before anything comes
    by it. libzmq may close one before anybody could look.
    """
    host, _, port = found.endpoint.removeprefix("tcp://").rpartition(":")
    accepted, is_seen = found.admission.connections.accepted, threading.Semaphore(0)

    def noting(fd: int, now: float) -> str:
        reason = accepted(fd, now)
        is_seen.release()
        return reason

    def carry() -> None:
        with contextlib.suppress(OSError):  # the listener has ended
            while True:
                ours = listener.accept()[0]
                with ours, socket.create_connection((host, int(port))) as theirs:
                    assert is_seen.acquire(timeout=LONG_S)
                    with contextlib.suppress(ConnectionError):
                        between(ours, theirs)

    def between(ours: socket.socket, theirs: socket.socket) -> None:
        other = {ours: theirs, theirs: ours}
        while True:
            for ready in select.select(list(other), [], [])[0]:
                if not (data := ready.recv(65536)):
                    return
                other[ready].sendall(data)

    found.admission.connections.accepted = noting
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=carry)
    thread.start()
    try:
        yield "tcp://{}:{}".format(*listener.getsockname())
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(LONG_S)
        listener.close()


@pytest.mark.parametrize(
    ("role", "key", "name"),
    [("client", OTHER, "host-1"), ("client", KEY, "host-2")],
    ids=["another key", "another service"],
)
def test_another_key_is_refused_at_both_ends(role, key, name, caplog):
    with service() as (found, echo), seen_first(found) as endpoint:
        with RpcClient(endpoint, ClientKeys.of(key, role, name)) as caller:
            with pytest.raises(NotAllowed, match="refuses this key"):
                caller.call("echo", Text(), Text, timeout_s=LONG_S)
        wait_until(lambda: "event=refused address=127.0.0.1" in caplog.text)
        assert echo.called == []


def test_a_known_service_and_an_unknown_key_is_refused_by_zap(caplog):
    with service() as (found, echo):
        access = ClientKeys(*pair_of(OTHER.role("client")), pair_of(KEY.service("host-1"))[0])
        with RpcClient(found.endpoint, access) as caller, pytest.raises(NotAllowed):
            caller.call("echo", Text(), Text)
        assert found.allowed.n_refused and echo.called == []
        assert 'reason="unknown key"' in caplog.text


@pytest.mark.parametrize("key", [KEY, None], ids=["a key", "no key"])
def test_a_service_without_room_is_busy_and_does_not_refuse_the_key(key):
    quotas = msgspec.structs.replace(QUOTAS, connections_per_address=1, block_s=0.0)
    keys = None if key is None else ClientKeys.of(key, "client", "host-1")
    with service(key, quotas) as (found, _), RpcClient(found.endpoint, keys) as first:
        assert first.call("echo", Text("a"), Text) == Text("a")
        with RpcClient(found.endpoint, keys) as second:
            with pytest.raises(ClusterError, match="is busy|broke before") as caught:
                second.call("echo", Text("b"), Text, timeout_s=LONG_S)
            assert not isinstance(caught.value, NotAllowed)
        assert first.call("echo", Text("c"), Text) == Text("c")


def test_what_speaks_another_protocol_is_hung_up_on():
    with service() as (found, _), client(found) as bystander:
        host, _, port = found.endpoint.removeprefix("tcp://").rpartition(":")
        for _ in range(10):
            with socket.create_connection((host, int(port)), LONG_S) as made:
                with contextlib.suppress(ConnectionError):
                    made.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" * 4)
                    while made.recv(1000):
                        pass
        assert bystander.call("echo", Text("b"), Text) == Text("b")


@pytest.mark.parametrize(
    "options",
    [{}, {"PLAIN_USERNAME": b"client", "PLAIN_PASSWORD": b"client"}],
    ids=["NULL", "PLAIN"],
)
def test_other_mechanisms_are_refused(options):
    with service() as (found, echo):
        dealer = raw(found, None, **options)
        wait_until(lambda: found.admission.n_failed)
        close(dealer)
        assert echo.called == []


MALFORMED = {
    "no parts that count": [b""],
    "no msgpack": [b"\xc1"],
    "bomb": [b"\x90" * 65_536],
    "nested": [b"\x91" * 60_000],
    "too long": [bytes(100_000)],
    "three parts": [b"", b"", b""],
    "hundred parts": [b"x"] * 100,
    "raw part beside an ask": [ask(1), b"x"],
    "call twice": None,
    "more than granted": None,
    "answer from a client": [calls.encode(calls.CallResponse(1, msgspec.Raw(b"\xc0")))],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_who_breaks_the_rules_is_cut_off_and_the_others_do_not_notice(name, caplog):
    # of who is cut off nothing is heard as long as this test may take
    quotas = msgspec.structs.replace(QUOTAS, ban_s=10 * LONG_S)
    with service(quotas=quotas) as (found, _), client(found) as bystander:
        dealer = raw(found)
        if name == "call twice":
            frames = [[ask(1, "wait", 10)], [ask(1, "wait", 10)]]
        elif name == "more than granted":
            frames = [[ask(1, "wait", 10)], [calls.encode(calls.BodyChunk(1)), bytes(11)]]
        elif name == "answer from a client":
            frames = [[ask(1, "wait", 10)], MALFORMED[name]]
        else:
            frames = [MALFORMED[name]]
        for parts in frames:
            dealer.send_multipart(parts)
        wait_until(lambda: "event=malformed" in caplog.text)
        wait_until(lambda: found.admission.n_cut)
        for number in range(100):
            assert bystander.call("echo", Text(str(number)), Text).text == str(number)
        dealer.send(ask(9))  # it may come back, and is not heard for a while
        dealer.set(zmq.RCVTIMEO, 200)
        with pytest.raises(zmq.Again):
            while True:
                assert b"CallResponse" not in dealer.recv_multipart()[0]
        close(dealer)
        assert caplog.text.count("event=malformed key=client") == 1


def test_a_message_longer_than_any_frame_is_not_read():
    with service() as (found, _), client(found) as bystander:
        dealer = raw(found)
        dealer.send(bytes(10_000_000))
        assert bystander.call("echo", Text("a"), Text) == Text("a")
        dealer.set(zmq.RCVTIMEO, 200)
        with pytest.raises(zmq.Again):
            dealer.recv()
        close(dealer)


def test_half_open_connections_are_bounded_per_address():
    quotas = Quotas(
        connections_per_address=5, failures_per_s=1e6, failures_burst=10**6, block_s=0.0
    )
    with service(quotas=quotas) as (found, _), client(found) as bystander:
        bystander.call("echo", Text(), Text)
        host, _, port = found.endpoint.removeprefix("tcp://").rpartition(":")
        sockets = [socket.create_connection((host, int(port))) for _ in range(20)]
        wait_until(lambda: found.admission.n_cut >= 16)
        assert bystander.call("echo", Text("b"), Text) == Text("b")
        for made in sockets:
            made.close()
        wait_until(lambda: len(found.admission.connections) == 1)


def test_after_many_failures_an_address_is_hung_up_on_at_once():
    quotas = Quotas(failures_per_s=0.001, failures_burst=5, block_s=LONG_S)
    with service(quotas=quotas) as (found, _), client(found) as bystander:
        bystander.call("echo", Text(), Text)
        host, _, port = found.endpoint.removeprefix("tcp://").rpartition(":")
        for count in range(1, 6):
            with socket.create_connection((host, int(port))):
                wait_until(lambda: len(found.admission.connections) == 2)
            wait_until(lambda n=count: found.admission.n_failed == n)
        with socket.create_connection((host, int(port)), LONG_S / 2) as made:
            with contextlib.suppress(ConnectionError):
                while made.recv(1000):
                    pass  # it ends by itself, long before the time for handshakes
        wait_until(lambda: found.admission.n_cut == 1)
        # and then not heard for a while, while who is in goes on
        wait_until(lambda: "127.0.0.1" in found.admission.blocked)
        with socket.socket() as made:
            made.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                made.connect((host, int(port)))
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == SYN_SENT
        assert bystander.call("echo", Text("b"), Text) == Text("b")


def test_who_is_not_heard_is_heard_again_later():
    quotas = Quotas(failures_per_s=5.0, failures_burst=1, block_s=0.05)
    with service(quotas=quotas) as (found, _):
        host, _, port = found.endpoint.removeprefix("tcp://").rpartition(":")
        while not found.admission.n_cut:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port))):
                pass
        with client(found) as late:
            wait_until(lambda: _is_answered(late))


def _is_answered(caller: RpcClient) -> bool:
    """False: its connection was cut, which the call is told of at once."""
    try:
        return caller.call("echo", Text("c"), Text, timeout_s=LONG_S) == Text("c")
    except ClusterError as error:
        assert "broke before 'echo' was answered" in str(error)
        return False


def test_a_call_whose_connection_breaks_fails_at_once_and_the_next_is_answered():
    """Not when its time is over: for the file of a job that is ten minutes."""
    began, goes_on = threading.Event(), threading.Event()

    def slow(call):
        began.set()
        assert goes_on.wait(LONG_S)
        return Text("late")

    found = RpcServer(URL, "host-1", KEY)
    found.on("slow", Text, slow, ["client"])
    with found, client(found) as caller:

        def cut_it() -> None:
            assert began.wait(LONG_S)
            cut(found)

        cutting = threading.Thread(target=cut_it)
        cutting.start()
        try:
            with pytest.raises(ClusterError, match="broke before 'slow' was answered; it may have"):
                caller.call("slow", Text(), Text, timeout_s=10 * LONG_S)
        finally:
            goes_on.set()
            cutting.join()
        assert caller.call("slow", Text(), Text) == Text("late")


def cut(found: RpcServer) -> None:
    """As if the host of the service's callers had gone."""
    for fd in list(found.admission.connections._open):
        found.admission.cut(fd, "cut by the test")


def test_a_body_whose_connection_breaks_is_given_up_quietly_and_the_next_call_is_answered():
    with service() as (found, echo), client(found) as caller:
        for _ in range(3):
            _, portions = caller.download(
                "send", Count(1 << 30), Text, max_bytes=1 << 30, timeout_s=10 * LONG_S
            )
            next(portions)
            cut(found)
            wait_until(lambda: caller._monitor.poll(0))  # it broke, and was not looked at
            portions.close()
            wait_until(lambda: _is_answered(caller))


def test_calls_of_a_connection_that_is_gone_hold_no_places():
    """However long their callers would have waited: each connection anew is another peer."""
    quotas = msgspec.structs.replace(QUOTAS, calls=2)
    with service(quotas=quotas) as (found, echo), client(found) as caller:
        for _ in range(5):
            _, portions = caller.download(
                "send", Count(1 << 30), Text, max_bytes=1 << 30, timeout_s=10 * LONG_S
            )
            next(portions)
            cut(found)
            with pytest.raises(ClusterError, match="broke before 'send'"):
                list(portions)
            wait_until(lambda: not found._calls)
        assert caller.call("echo", Text("c"), Text) == Text("c")


def test_a_body_that_is_not_begun_holds_neither_the_client_nor_a_place(tmp_path):
    with service() as (found, _), client(found) as caller:
        for _ in range(found.quotas.calls_per_peer + 1):
            _, portions = caller.download(
                "send", Count(1 << 30), Text, max_bytes=1 << 30, timeout_s=10 * LONG_S
            )
            portions.close()
            wait_until(lambda: not found._calls)
        _, portions = caller.download("send", Count(1000), Text, max_bytes=1000)
        with pytest.raises(FileNotFoundError), portions:
            save(portions, 1000, tmp_path / "nowhere" / "model")
        assert caller.call("echo", Text("c"), Text) == Text("c")
        caller.download("send", Count(1000), Text, max_bytes=1000)  # nobody keeps it
        assert caller.call("echo", Text("d"), Text) == Text("d")


def test_what_failed_while_nothing_was_called_is_not_blamed_on_the_key():
    with service() as (found, _), Relay(found.endpoint.removeprefix("tcp://")) as relay:
        relay.cut()
        keys = ClientKeys.of(KEY, "client", "host-1")
        with RpcClient(f"tcp://{relay.hosts}", keys) as caller:
            for text in ("first", "second"):
                refused = relay.n_refused
                wait_until(lambda refused=refused: relay.n_refused > refused + 2 * MAX_FAILED)
                relay.mend()
                assert caller.call("echo", Text(text), Text) == Text(text)
                relay.cut()


def test_a_client_may_be_closed_however_often_its_connection_failed(monkeypatch):
    """libzmq waits, for good, where no more of a monitor's events fit: at 2,000, two for each."""
    monkeypatch.setitem(LIMITS, zmq.RECONNECT_IVL, 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LONG_S)
        caller = RpcClient(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        for _ in range(1_200):
            listener.accept()[0].close()
        caller.close()


def test_a_client_that_could_not_connect_again_connects_at_its_next_call(monkeypatch):
    with service() as (found, _), client(found) as caller:
        assert caller.call("echo", Text("a"), Text) == Text("a")
        cut(found)
        with monkeypatch.context() as patch:

            def full(*_: object) -> None:
                raise zmq.ZMQError(errno.EMFILE)

            patch.setattr("horn.rpc.client.limited", full)
            wait_until(lambda: _broke(caller))
            for _ in range(2):
                with pytest.raises(ClusterError, match="cannot connect .* Too many open files"):
                    caller.call("echo", Text("b"), Text)
        assert caller.call("echo", Text("c"), Text) == Text("c")


def _broke(caller: RpcClient) -> bool:
    caller._drain()
    return caller._broke


def test_the_gate_lets_nobody_in_who_is_not_known():
    gate = AllowedKeys(AuditLog())
    public, _ = pair_of(KEY.role("client"))
    known = zmq.utils.z85.decode(public)
    gate.admit(public, "client")
    good = [b"1.0", b"7", ZAP_DOMAIN, b"1.2.3.4", b"", b"CURVE", known]
    assert gate.answer(good) == [b"1.0", b"7", b"200", b"OK", b"client", b""]
    for bad in (
        [],
        good[:6],
        [b"2.0", *good[1:]],
        [*good[:2], b"other", *good[3:]],
        [*good[:5], b"NULL"],
        [*good[:5], b"PLAIN", b"client", b"client"],
        [*good[:6], bytes(32)],
        [*good[:6], known + b"x"],
        [*good, b"more"],
    ):
        assert gate.answer(bad)[2:5] == [b"400", b"refused", b""], bad


# the log


def test_the_audit_is_limited_and_says_what_it_left_out(caplog):
    now = [0.0]
    audit = AuditLog(per_s=1.0, burst=3, clock=lambda: now[0])
    with caplog.at_level(logging.INFO, "horn.audit"):
        n_written = sum(audit.line("refused", address="a") for _ in range(1000))
        assert audit.line("refused", address="b") and audit.line("submit", address="a", job="j")
        now[0] = 1.0
        assert audit.line("refused", address="a", reason='x\n"event=submit')
    assert n_written == 3
    last = caplog.messages[-1]
    assert last == 'event=refused address=a reason="x\\n\\"event=submit" left_out=997'


def test_quotas_of_the_tests_do_not_hide_anything():
    assert QUOTAS.calls == Quotas().calls
