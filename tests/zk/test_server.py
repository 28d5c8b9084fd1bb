"""The sockets: bad peers are closed alone, sessions live and end on time, restarts keep data."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import resource
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import zk
from tests import apache
from tests.zk import client_wire
from tests.zk.client import TIMEOUT_S, Closed, Notice, RawClient
from tests.zk.test_wire import mutate, seeds
from zk import wire
from zk.acl import OPEN
from zk.errors import ServerError
from zk.log import Log
from zk.server import MAX_PER_LOOPBACK, RESERVED, Server, check_bind, make_tls, most_connections
from zk.service import Service
from zk.wire import Code, Event, Op

pytestmark = [pytest.mark.net, pytest.mark.timeout(60)]


SLOW_MS = 3000  # a tick with which sessions last a minute: as long as a test may take


@pytest.fixture
def server() -> Iterator[zk.EmbeddedServer]:
    threads = set(threading.enumerate())
    handles = os.listdir("/proc/self/fd")
    with zk.EmbeddedServer(tick_ms=SLOW_MS) as running:
        yield running
    assert set(threading.enumerate()) <= threads, "a thread is left"
    assert len(os.listdir("/proc/self/fd")) <= len(handles), "a descriptor is left"


@contextlib.contextmanager
def bystander(hosts: str) -> Iterator[RawClient]:
    """A client that must not notice what the others do."""
    with RawClient(hosts) as client:
        client.call(Op.CREATE, "/calm", b"", OPEN, 1)
        yield client
        assert client.call(Op.GET_DATA, "/calm", False)[0].code == 0


def stray(hosts: str) -> socket.socket:
    host, port = hosts.split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def is_closed(s: socket.socket) -> bool:
    """Whether the server closes, possibly after an answer."""
    try:
        while s.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 1_048_576),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">i", 3) + b"abc",
        struct.pack(">i", 0),
        b"zzzz",
    ],
)
def test_garbage_closes_that_connection_only(server: zk.EmbeddedServer, data: bytes) -> None:
    with bystander(server.hosts), stray(server.hosts) as s:
        s.sendall(data)
        assert is_closed(s)


@pytest.mark.parametrize("length", [-1, 2**31 - 1, 1_048_576])
def test_length_that_cannot_be_closes_a_session_s_connection_too(
    server: zk.EmbeddedServer, length: int
) -> None:
    with bystander(server.hosts), RawClient(server.hosts) as client:
        client.socket.sendall(struct.pack(">i", length))
        with pytest.raises(Closed):
            client.read()


def test_huge_vectors_are_refused_without_being_made(server: zk.EmbeddedServer) -> None:
    with bystander(server.hosts), RawClient(server.hosts) as client:
        for count in (2**31 - 1, 262_144, -2):
            body = wire.write_string("/a") + wire.write_buffer(b"") + struct.pack(">i", count)
            assert client.raw(Op.CREATE, body + bytes(100))[0].code == Code.MARSHALLING
        body = struct.pack(">q", 0) + struct.pack(">i", 2**31 - 1)
        assert (
            client.raw(Op.SET_WATCHES, body, client_wire.XID_SET_WATCHES)[0].code
            == Code.MARSHALLING
        )


def test_frames_may_come_byte_by_byte_and_many_at_once(server: zk.EmbeddedServer) -> None:
    with RawClient(server.hosts) as client:
        ping = wire.frame(struct.pack(">ii", -2, Op.PING))
        for byte in ping:
            client.socket.sendall(bytes([byte]))
        assert client.read_until(-2)[1] == []
        client.socket.sendall(ping * 500)
        for _ in range(500):
            client.read_until(-2)


def test_largest_frame_works_and_one_byte_more_does_not(server: zk.EmbeddedServer) -> None:
    with RawClient(server.hosts) as client:
        head = 8 + len(client_wire.encode_body(Op.CREATE, ("/big", b"", OPEN, 0)))
        data = b"x" * (wire.MAX_FRAME_BYTES - head)
        assert client.call(Op.CREATE, "/big", data, OPEN, 0)[0].code == 0
        with pytest.raises((Closed, ConnectionError)):
            client.call(Op.SET_DATA, "/big", b"x" * wire.MAX_FRAME_BYTES, -1)


def test_idle_sockets_do_not_disturb_the_others(server: zk.EmbeddedServer) -> None:
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(zk.EmbeddedServer(tick_ms=SLOW_MS))
        clients = [stack.enter_context(bystander(one.hosts)) for one in (server, alone)]
        idle = [stack.enter_context(stray(server.hosts)) for _ in range(500)]
        for s in idle[:100]:
            s.sendall(b"\0\0")  # half a length
        times: list[list[float]] = [[], []]
        for _ in range(200):  # by turns, so that the machine is as slow for both
            for client, took in zip(clients, times, strict=True):
                start = time.perf_counter()
                client.ping()
                took.append(time.perf_counter() - start)
        among, by_itself = [sorted(took)[100] for took in times]
        assert among < 10 * by_itself


def test_silent_peer_is_closed_after_the_handshake_s_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with zk.EmbeddedServer(tick_ms=SLOW_MS) as server, bystander(server.hosts):
        monkeypatch.setattr("zk.server.HANDSHAKE_TIMEOUT_S", 0.2)
        with stray(server.hosts) as s:
            assert is_closed(s)


def test_connections_of_one_address_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_PER_LOOPBACK >= 1000
    monkeypatch.setattr("zk.server.MAX_PER_LOOPBACK", 5)
    with zk.EmbeddedServer(tick_ms=SLOW_MS) as server, contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(RawClient(server.hosts))
        with pytest.raises((Closed, ConnectionError)):
            RawClient(server.hosts)


def test_who_says_nothing_holds_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a session so many are held, and the next are hung up on."""
    monkeypatch.setattr("zk.server.MAX_WITHOUT_SESSION", 5)
    with zk.EmbeddedServer(tick_ms=SLOW_MS) as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.hosts)) for _ in range(20)]
        for _ in range(5):
            stack.enter_context(stray(server.hosts))
        for _ in range(20):
            with stray(server.hosts) as one_more:
                assert is_closed(one_more)
        for client in clients:  # who has a session does not notice
            client.call(Op.EXISTS, "/", False)


def test_all_connections_together_leave_the_process_its_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most_connections() == soft - RESERVED
    monkeypatch.setattr("zk.server.most_connections", lambda: 5)
    with zk.EmbeddedServer(tick_ms=SLOW_MS) as server, contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(RawClient(server.hosts))
        with pytest.raises((Closed, ConnectionError)):
            RawClient(server.hosts)


def test_who_does_not_read_is_not_read_from(server: zk.EmbeddedServer) -> None:
    with bystander(server.hosts), RawClient(server.hosts) as client:
        client.call(Op.CREATE, "/big", b"x" * 900_000, OPEN, 0)
        body = client_wire.encode_body(Op.GET_DATA, ("/big", False))
        ask = wire.frame(struct.pack(">ii", 9, Op.GET_DATA) + body)
        client.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            for _ in range(200_000):
                client.socket.sendall(ask * 50)


def test_peer_that_resets_takes_no_one_with_it(server: zk.EmbeddedServer) -> None:
    with bystander(server.hosts) as watcher:
        client = RawClient(server.hosts)
        client.call(Op.CREATE, "/e", b"", OPEN, 1)
        watcher.call(Op.EXISTS, "/e", True)
        linger = struct.pack("ii", 1, 0)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.close()  # a reset, not an end
        with RawClient(
            server.hosts, session_id=client.session_id, password=client.password
        ) as again:
            assert again.session_id == client.session_id
            again.call(Op.DELETE, "/e", -1)
            assert watcher.read() == Notice(Event.DELETED, "/e")


def test_four_letter_words_are_answered_before_a_session_only(server: zk.EmbeddedServer) -> None:
    with stray(server.hosts) as s:
        s.sendall(b"ruok")
        assert s.recv(10) == b"imok" and s.recv(10) == b""


def test_session_without_a_word_ends_within_its_timeout_and_a_tick() -> None:
    tick_ms, timeout_ms = 500, 1000
    with (
        zk.EmbeddedServer(tick_ms=tick_ms) as server,
        RawClient(server.hosts, timeout_ms=20 * tick_ms) as watcher,
    ):
        for path in ("/e", "/later"):
            watcher.call(Op.ADD_WATCH, path, 0)
        start = time.monotonic()
        with (
            RawClient(server.hosts, timeout_ms=timeout_ms, ephemeral="/e") as client,
            RawClient(server.hosts, timeout_ms=timeout_ms + tick_ms, ephemeral="/later") as later,
        ):
            assert watcher.gone() == "/e"
            assert time.monotonic() - start >= timeout_ms / 1000
            assert watcher.gone() == "/later"  # who began later and has a tick more
            for ended in (client, later):
                with pytest.raises(Closed):
                    ended.read()


def test_kazoo_basics(server: zk.EmbeddedServer) -> None:
    client = KazooClient(server.hosts, timeout=TIMEOUT_S)
    client.start(timeout=TIMEOUT_S)
    try:
        events: list[str] = []
        done = threading.Event()

        def watch(event: object) -> None:
            events.append(str(event))
            done.set()

        assert client.exists("/a", watch=watch) is None
        assert client.create("/a", b"x") == "/a"
        assert done.wait(TIMEOUT_S) and "CREATED" in events[0]
        assert client.get("/a")[0] == b"x"
        client.set("/a", b"y")
        assert client.create("/a/s-", ephemeral=True, sequence=True) == "/a/s-0000000000"
        assert client.get_children("/a") == ["s-0000000000"]
        client.delete("/a", recursive=True)
        assert client.server_version()[:3] == (3, 8, 0)
    finally:
        client.stop()
        client.close()


def test_restart_keeps_data_and_sessions(tmp_path: Path) -> None:
    server = zk.EmbeddedServer(data_dir=tmp_path, tick_ms=500)
    with server:
        first = RawClient(server.hosts, timeout_ms=10_000)
        first.call(Op.CREATE, "/e", b"mine", OPEN, 1)
        first.call(Op.CREATE, "/p", b"kept", OPEN, 0)
        zxid = first.call(Op.EXISTS, "/p", False)[0].zxid
        port = server.port
    first.close()
    with server:
        assert server.port == port
        with RawClient(
            server.hosts, session_id=first.session_id, password=first.password, last_zxid=zxid
        ) as again:
            assert again.session_id == first.session_id
            assert again.call(Op.EXISTS, "/e", False)[0].code == 0
            assert again.call(Op.GET_DATA, "/p", False)[0].zxid >= zxid


@pytest.mark.parametrize("turns", range(5))
def test_server_that_ends_closes_what_it_has_just_accepted(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: left.append(unraisable.object))

    async def main() -> None:
        server = Server(port=0)
        await server.start()
        for client in clients:
            client.connect((server.host, server.port))
        for _ in range(turns):
            await asyncio.sleep(0)  # lets the loop turn once
        await server.close()

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(5)]
        for client in clients:
            client.settimeout(5)
        asyncio.run(asyncio.wait_for(main(), 10))
        gc.collect()
    assert left == []


def test_port_in_use_is_one_sentence(server: zk.EmbeddedServer) -> None:
    with pytest.raises(ServerError, match=r"port \d+ on 127.0.0.1 is in use; stop .*") as caught:
        zk.EmbeddedServer(port=server.port).start()
    assert caught.value.exit_code == 6


def test_a_start_that_takes_too_long_ends_and_leaves_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of another host, say, that does not answer: the starter waited for ever."""
    answers, recover = threading.Event(), Log.recover

    def late(*args: Any) -> None:
        assert answers.wait(TIMEOUT_S)
        recover(*args)

    monkeypatch.setattr(Log, "recover", late)
    monkeypatch.setattr(zk.server, "START_TIMEOUT_S", 0.05)
    server = zk.EmbeddedServer(data_dir=tmp_path / "zk")
    threads = set(threading.enumerate())
    with pytest.raises(ServerError, match=r"has not started in 0.05 s: 127.0.0.1 or .*/zk does "
                       "not answer; use a folder on a disk of this machine"):  # fmt: skip
        server.start()
    assert not server.is_running
    starting = set(threading.enumerate()) - threads
    answers.set()
    for thread in starting:
        thread.join(TIMEOUT_S)
    assert not set(threading.enumerate()) - threads
    monkeypatch.undo()
    with server:  # the folder and the port are free
        assert server.is_running


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_bind_beyond_loopback_needs_tls(host: str) -> None:
    with pytest.raises(ServerError, match="not loopback"):
        zk.EmbeddedServer(host=host).start()
    check_bind(host, has_tls=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_may_be_bound_without_tls(host: str) -> None:
    check_bind(host, has_tls=False)


def test_disk_failure_ends_the_server_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zk.EmbeddedServer(data_dir=tmp_path) as server:
        client = RawClient(server.hosts)
        assert client.call(Op.CREATE, "/kept", b"", OPEN, 0)[0].code == 0

        def fail(handle: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises((Closed, ConnectionError)):
            client.call(Op.CREATE, "/lost", b"", OPEN, 0)
        client.close()
        with pytest.raises(ConnectionError):
            RawClient(server.hosts)
    assert isinstance(server.error, ServerError)
    assert "Input/output error" in str(server.error) and server.error.exit_code == 3
    monkeypatch.undo()
    with zk.EmbeddedServer(data_dir=tmp_path) as server, RawClient(server.hosts) as client:
        assert client.call(Op.EXISTS, "/kept", False)[0].code == 0


def run_zk(*arguments: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zk", *arguments], capture_output=True, text=True, timeout=timeout_s
    )


@pytest.mark.cluster
def test_command_ends_with_a_sentence_and_a_code(server: zk.EmbeddedServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "log.0000000000000000").write_bytes(b"not a log" * 10)
    cases = [
        (["--port", str(server.port)], 6, "is in use"),
        (["--port", "0", "--bind", "0.0.0.0"], 2, "not loopback"),
        (["--port", "0", "--data-dir", str(tmp_path / "file" / "x")], 2, "Not a directory"),
        (["--port", "0", "--data-dir", str(tmp_path / "d")], 3, "at offset 0"),
        (["--port", "0", "--tls-cert", "/nowhere.pem"], 2, "cannot use /nowhere.pem"),
        (["--port", "70000"], 2, "--port"),
        (["--port", "0", "--tls-port", "0"], 2, "--tls-port needs a certificate"),
        (["--port", "0", "--tls-port", "70000"], 2, "from 0 to 65535"),
        (["--port", "0", "--tls-ca", "ca.pem"], 2, "need the certificate: --tls-cert"),
        (["--port", "0", "--data-dir", ""], 2, '--data-dir is ""'),  # it was the current one
    ]
    for arguments, exit_code, sentence in cases:
        done = run_zk(*arguments)
        assert done.returncode == exit_code, (arguments, done.stderr)
        assert sentence in done.stderr and done.stdout == ""
        assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_who_ends_in_order_leaves_a_log_of_which_nothing_is_cut(tmp_path: Path) -> None:
    """A flipped bit beside zeros of a node's own cost the node, with a warning."""
    with zk.EmbeddedServer(data_dir=tmp_path) as server, RawClient(server.hosts) as client:
        client.call(Op.CREATE, "/n", bytes(2000) + b"tail", OPEN, 0)
        server.stop()
    (log,) = tmp_path.glob("log.*")
    log.write_bytes(log.read_bytes().replace(b"tail", b"tajl"))
    with pytest.raises(zk.LogError, match="a log that was closed in order"):
        zk.EmbeddedServer(data_dir=tmp_path).start()


@pytest.mark.cluster
def test_command_serves_until_it_is_told_to_end() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "zk", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        hosts = process.stdout.readline().strip()
        with RawClient(hosts) as client:
            assert client.call(Op.CREATE, "/a", b"", OPEN, 0)[0].code == 0
            process.terminate()
            assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-subj", "/CN=localhost", "-days", "1"]
    command += ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    return make_tls(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))


@pytest.mark.usefixtures("tls")
def test_a_private_key_with_a_password_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    plain, encrypted = tmp_path / "key.pem", tmp_path / "encrypted.pem"
    command = ["openssl", "pkey", "-aes256", "-passout", "pass:password"]
    command += ["-in", str(plain), "-out", str(encrypted)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(ServerError, match=r"encrypted.pem is encrypted; .* openssl pkey"):
        make_tls(str(tmp_path / "cert.pem"), str(encrypted))


def test_who_begins_no_handshake_holds_few_connections(
    monkeypatch: pytest.MonkeyPatch, tls: ssl.SSLContext
) -> None:
    """As without TLS: nobody else hears of a connection before its handshake has ended."""
    monkeypatch.setattr("zk.server.MAX_WITHOUT_SESSION", 5)
    monkeypatch.setattr("zk.server.HANDSHAKE_TIMEOUT_S", 120.0)
    with zk.EmbeddedServer(tick_ms=SLOW_MS, tls=tls) as server, contextlib.ExitStack() as stack:
        client = KazooClient(server.hosts, use_ssl=True, verify_certs=False, timeout=TIMEOUT_S)
        stack.callback(client.close)
        stack.callback(client.stop)
        client.start(timeout=TIMEOUT_S)
        for _ in range(5):
            stack.enter_context(stray(server.hosts))
        for _ in range(20):
            with stray(server.hosts) as one_more:
                assert is_closed(one_more)
        assert client.create("/a", b"x" * 900_000) == "/a"
        assert len(client.get("/a")[0]) == 900_000


def test_what_comes_with_the_end_of_the_handshake_is_heard(tls: ssl.SSLContext) -> None:
    context = ssl._create_unverified_context()
    with zk.EmbeddedServer(tick_ms=SLOW_MS, tls=tls) as server:
        for _ in range(20):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            speaker = context.wrap_bio(incoming, outgoing)
            with stray(server.hosts) as s:
                while True:
                    try:
                        speaker.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        s.sendall(outgoing.read())
                        incoming.write(s.recv(65536))
                speaker.write(b"ruok")
                s.sendall(outgoing.read())  # the last of the handshake, and a word, at once
                heard = b""
                while not heard:
                    incoming.write(s.recv(65536))
                    with contextlib.suppress(ssl.SSLWantReadError):
                        heard = speaker.read(100)
                assert heard == b"imok"


def test_tls_serves_and_refuses_who_speaks_plain(tls: ssl.SSLContext) -> None:
    with zk.EmbeddedServer(tls=tls, tick_ms=SLOW_MS) as server:
        client = KazooClient(server.hosts, use_ssl=True, verify_certs=False, timeout=TIMEOUT_S)
        client.start(timeout=TIMEOUT_S)
        try:
            assert client.create("/a", b"x") == "/a"
            with stray(server.hosts) as s:
                s.sendall(b"ruok, is this TLS?")
                assert is_closed(s)
            assert client.get("/a")[0] == b"x"
        finally:
            client.stop()
            client.close()


def test_log_gives_way_to_a_snapshot_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zk.log.SNAPSHOT_AFTER_CHANGES", 20)
    with zk.EmbeddedServer(data_dir=tmp_path) as server, RawClient(server.hosts) as client:
        for number in range(50):
            assert client.call(Op.CREATE, f"/n{number}", b"", OPEN, number % 2)[0].code == 0
            assert client.call(Op.SET_DATA, f"/n{number}", b"x", 0)[0].code == 0
        assert len(list(tmp_path.glob("snapshot.*"))) == len(list(tmp_path.glob("log.*"))) == 1
        session_id, password = client.session_id, client.password
    with (
        zk.EmbeddedServer(data_dir=tmp_path) as server,
        RawClient(server.hosts, session_id=session_id, password=password) as client,
    ):
        assert client.session_id == session_id
        for number in range(50):
            assert client.call(Op.EXISTS, f"/n{number}", False)[0].code == 0


def throw_frames(hosts: str, n_frames: int, seed: int) -> int:
    """Mutated frames at a live port, with a new session after each hang-up; how many of those."""
    rng, frames, n_closed = random.Random(seed), seeds(), 0
    client = RawClient(hosts)
    try:
        for _ in range(n_frames):
            data = mutate(rng, rng.choice(frames))
            try:
                client.socket.sendall(wire.frame(data) if rng.random() < 0.9 else data)
                if rng.random() < 0.1:
                    client.socket.shutdown(socket.SHUT_WR)
                    assert is_closed(client.socket)
                    raise Closed
            except (Closed, OSError):
                n_closed += 1
                client.close()
                client = RawClient(hosts)
    finally:
        client.close()
    return n_closed


def test_random_frames_on_a_live_port_disturb_no_one(
    server: zk.EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    with bystander(server.hosts):
        assert throw_frames(server.hosts, 1000, seed=0) > 50
    assert server.error is None
    assert not [r for r in caplog.records if r.name == "asyncio"]  # it catches and logs


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hundred_thousand_random_frames_on_a_live_port_disturb_no_one(
    server: zk.EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    with bystander(server.hosts) as calm:
        for seed in range(100):
            throw_frames(server.hosts, 1000, seed)
            calm.ping()
    assert server.error is None
    assert not [r for r in caplog.records if r.name == "asyncio"]  # it catches and logs


def test_address_of_version_six_is_in_brackets() -> None:
    server = zk.EmbeddedServer(host="::1", tick_ms=SLOW_MS)
    try:
        server.start()
    except ServerError:
        pytest.skip("no IPv6 on this machine")
    with server:
        client = KazooClient(server.hosts, timeout=TIMEOUT_S)
        client.start(timeout=TIMEOUT_S)
        try:
            assert server.hosts.startswith("[::1]:") and client.exists("/zookeeper")
        finally:
            client.stop()
            client.close()


def test_peer_that_never_reads_its_last_answer_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zk.server.CLOSE_TIMEOUT_S", 0.2)
    with zk.EmbeddedServer(tick_ms=SLOW_MS) as server, bystander(server.hosts) as calm:
        calm.call(Op.CREATE, "/big", b"x" * 900_000, OPEN, 0)
        client = RawClient(server.hosts)
        body = client_wire.encode_body(Op.GET_DATA, ("/big", False))
        client.socket.sendall(wire.frame(struct.pack(">ii", 9, Op.GET_DATA) + body) * 20)
        client.socket.sendall(struct.pack(">i", -1))  # after it, the server hangs up
        deadline = time.monotonic() + TIMEOUT_S
        with RawClient(server.hosts, session_id=client.session_id, password=client.password):
            # The session has moved: the old connection is closed, and after a while let go. The
            # three are the two sessions, and who asks.
            while b"Connections: 3\n" not in apache.four_letter_word(server.port, b"srvr"):
                assert time.monotonic() < deadline
        client.close()


def test_standstills_end_no_session_and_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ahead_ms, looked, seen = 0, threading.Event(), 0
    clock, tick = zk.server.now_ms, Service.tick

    def stand_still(service: Service, now_ms: int, time_ms: int) -> None:
        # After the tick has looked at the clock: 13 s, three times.
        nonlocal ahead_ms, seen
        tick(service, now_ms, time_ms)
        if service.sessions.by_id and seen < 3:
            ahead_ms += 13_000
            seen += 1
        elif seen == 3:
            looked.set()

    monkeypatch.setattr(zk.server, "now_ms", lambda: clock() + ahead_ms)
    monkeypatch.setattr(Service, "tick", stand_still)
    with zk.EmbeddedServer(tick_ms=SLOW_MS // 10) as server:
        limit_ms = 20 * server.tick_ms
        with RawClient(server.hosts, timeout_ms=limit_ms, ephemeral="/mine") as client:
            assert client.timeout_ms == limit_ms
            assert looked.wait(TIMEOUT_S)
            with RawClient(server.hosts) as other:
                owner = struct.unpack_from(">q", other.call(Op.EXISTS, "/mine", False)[0].body, 44)
            assert owner == (client.session_id,)
    # The clock is that of all servers of this process: other tests' may tell of it, once each.
    told = [r for r in caplog.records if "stood still" in r.getMessage()]
    assert told and all("no session ends by that" in r.getMessage() for r in told)
    assert max(Counter(r.thread for r in told).values()) == 1


def test_a_server_that_runs_alone_tells_of_standstills_again() -> None:
    server = Server(tick_ms=500, warn_every_s=60)
    told = []
    server._awake.still_ms = 13_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zk.server.logger.warning", lambda *words: told.append(words[-1]))
        for clock_ms, still_ms in [(0, 13), (59_000, 14), (60_000, 15), (200_000, 15)]:
            patch.setattr("zk.server.now_ms", lambda clock_ms=clock_ms: clock_ms)
            still_ms *= 1000
            server._awake.still_ms = still_ms
            server._tell_of_standstills()
    assert told == [13.0, 15.0]
