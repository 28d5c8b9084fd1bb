"""TLS to ZooKeeper, made from the cluster's key: who gets in, who does not, and when it is on."""

from __future__ import annotations

import contextlib
import datetime
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

import zk
from horn.coordination.session import Session
from horn.errors import JobError, NotFound, Unreachable
from horn.process.limits import environment
from horn.security import certificates, tls
from horn.security.certificates import CertificateAuthority
from horn.security.keys import Credential, Key
from horn.security.tls import INSECURE, listening, server_context
from tests.apache import ApacheServer, free_ports, is_available
from tests.cluster.agents import ROOT

pytestmark = [pytest.mark.net, pytest.mark.timeout(60)]


@pytest.fixture
def key() -> Key:
    return Key(secrets.token_bytes(32))


@pytest.fixture
def server(key: Key) -> Iterator[zk.EmbeddedServer]:
    with zk.EmbeddedServer(tls=server_context(key)) as made:
        yield made


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORN_ZK_TLS", "key")


def test_whoever_has_the_key_gets_in_and_a_job_s_tasks_too(
    key: Key, server: zk.EmbeddedServer, caplog: pytest.LogCaptureFixture
):
    own = tls.credential(key, server.hosts)
    caplog.set_level("INFO")
    with Session(server.hosts, credential=own) as coord:
        coord.create("/horn/a", b"x" * 300_000)
        coord.ensure(coord.paths.jobs())
        from horn.coordination.jobs import Jobs

        Jobs(coord).create("j", b"", key.zookeeper_of("j").id)
    assert "use_ssl" not in caplog.text  # kazoo's word, of TLS that is not its own
    # as it travels to a task
    sent = msgspec.msgpack.encode(tls.credential(key, server.hosts, "j"))
    task = msgspec.msgpack.decode(sent, type=Credential)
    with Session(server.hosts, credential=task) as coord:
        assert coord.children(coord.paths.groups("j")) == []


def test_who_has_another_key_or_none_does_not_get_in(key: Key, server: zk.EmbeddedServer):
    other = Key(secrets.token_bytes(32))
    with pytest.raises(
        Unreachable, match="its certificate is refused: .*; it is of another key"
    ) as no:
        Session(server.hosts, credential=tls.credential(other, server.hosts), timeout_s=1.0)
    assert "Is it running?" not in str(no.value), "it has answered"
    for wrong in (None, key.zookeeper()):  # not encrypted
        with pytest.raises(Unreachable):
            Session(server.hosts, credential=wrong, timeout_s=1.0)
    # who knows the authority but has no certificate of it
    bare = msgspec.structs.replace(CertificateAuthority(key).trust("client"), identity="")
    credential = msgspec.structs.replace(key.zookeeper(), tls=bare)
    with pytest.raises(Unreachable, match="no quorum, .* certificates are of another key, or none"):
        Session(server.hosts, credential=credential, timeout_s=1.0)


@contextlib.contextmanager
def ending(key: Key) -> Iterator[str]:
    """A server that ends each connection after the handshake, as one of Apache's without quorum;
    it tells who has no certificate that it takes, as that and not horn's own does.
    """
    context = server_context(key)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                taken, _ = server.accept()
                with context.wrap_socket(taken, True, do_handshake_on_connect=False) as each:
                    with contextlib.suppress(OSError):
                        each.do_handshake()
                    with contextlib.suppress(OSError):
                        each.shutdown(socket.SHUT_WR)
                        while each.recv(1000):  # what is not read would take back what was said
                            pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_each_host_is_told_of_and_one_without_quorum_is_not_called_one_of_another_key(key: Key):
    with socket.socket() as closed, ending(key) as there:
        closed.bind(("127.0.0.1", 0))
        both = f"127.0.0.1:{closed.getsockname()[1]},{there}"
        said = (
            rf"\({both.replace(',', ': connection refused; ')}: it ends encrypted connections "
            r"without a word: its ensemble has no quorum, .*\)\.$"
        )
        with pytest.raises(Unreachable, match=said):
            Session(both, credential=tls.credential(key, both), timeout_s=2.0)
        with pytest.raises(Unreachable, match=r"\(connection refused, tried .* Is it running"):
            Session(both.split(",")[0], timeout_s=0.3)


def test_a_certificate_of_one_s_own_that_is_over_is_said_so_before_connecting(
    key, server, monkeypatch, tmp_path
):
    """It was told as one of another key."""
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_END", datetime.datetime(2021, 2, 3, 4, 5))
        trust = CertificateAuthority(key).trust("client")
    authority = CertificateAuthority(key).trust("client").authority
    (tmp_path / "ca.pem").write_text(authority)
    (tmp_path / "own.pem").write_text(trust.identity)
    monkeypatch.setenv("HORN_ZK_TLS", f"{tmp_path}/ca.pem,{tmp_path}/own.pem")
    said = (
        r"the certificate in .*own\.pem is valid from 2020-01-01 00:00 to 2021-02-03 04:05 \(UTC\)"
    )
    with pytest.raises(JobError, match=said):
        tls.credential(key, server.hosts)
    (tmp_path / "own.pem").write_text("none")
    with pytest.raises(JobError, match=r"own\.pem has no certificate in PEM"):
        tls.credential(key, server.hosts)
    # one that was over while a session lasted
    valid = msgspec.structs.replace(trust, authority=authority)
    credential = msgspec.structs.replace(key.zookeeper(), tls=valid)
    with ending(key) as there:
        said = r"it refuses this end's certificate \(certificate expired\): that is of another key"
        with pytest.raises(Unreachable, match=said):
            Session(there, credential=credential, timeout_s=1.0)


def test_a_task_cannot_pose_as_the_server(key: Key):
    as_server = tls.context_of(CertificateAuthority(key).trust("client"), is_server=True)
    with zk.EmbeddedServer(tls=as_server) as posing:
        own = tls.credential(key, posing.hosts)
        with pytest.raises(Unreachable, match="its certificate is refused: unsuitable"):
            Session(posing.hosts, credential=own, timeout_s=1.0)


def test_a_server_without_tls_is_said_so_and_is_not_told_the_password(key: Key):
    with zk.EmbeddedServer() as plain:
        with pytest.raises(Unreachable, match="it speaks no TLS there, .*horn keygen --tls"):
            own = tls.credential(key, plain.hosts)
            Session(plain.hosts, credential=own, timeout_s=1.0)


@pytest.mark.parametrize(
    "hosts, mode, is_on",
    [
        ("127.0.0.1:2181", "auto", False),
        ("localhost:1,[::1]:2/horn", "auto", False),
        ("127.0.0.1:1,10.0.0.1:2", "auto", True),
        ("zk1:2181/root", "auto", True),
        ("zk1:2181", "off", False),
        ("127.0.0.1:2181", "key", True),
        ("zk1:2181", "", True),  # a variable that is empty is not set
        ("127.0.0.1:2181", "", False),
        (" localhost:2181 , [::1]:2", "", False),  # as of a file of variables
    ],
)
def test_it_is_on_off_loopback_and_where_it_is_asked_for(key, monkeypatch, hosts, mode, is_on):
    monkeypatch.setenv("HORN_ZK_TLS", mode)
    found = tls.credential(key, hosts)
    assert found is not None and (found.tls is not None) is is_on
    assert found.id == key.zookeeper().id


def test_an_authority_of_one_s_own_is_read_from_files_and_names_are_checked(
    key, server, monkeypatch, tmp_path
):
    trust = CertificateAuthority(key).trust("client")
    (tmp_path / "ca.pem").write_text(trust.authority)
    (tmp_path / "own.pem").write_text(trust.identity)
    monkeypatch.setenv("HORN_ZK_TLS", f"{tmp_path}/ca.pem,{tmp_path}/own.pem")
    own = tls.credential(key, server.hosts)
    assert own is not None and own.tls is not None and own.tls.checks_names
    with pytest.raises(Unreachable, match="refused: IP address mismatch"):
        Session(server.hosts, credential=own, timeout_s=1.0)
    monkeypatch.setenv("HORN_ZK_TLS", f"{tmp_path}/none.pem")
    said = "--zk-tls or HORN_ZK_TLS: there is no file .*none.pem; write auto, key, off"
    with pytest.raises(NotFound, match=said):
        tls.credential(key, server.hosts)
    monkeypatch.setenv("HORN_ZK_TLS", str(tmp_path))
    with pytest.raises(JobError, match=f"{tmp_path} cannot be read as PEM: Is a directory$"):
        tls.credential(key, server.hosts)
    (tmp_path / "odd.pem").write_text("odd")
    monkeypatch.setenv("HORN_ZK_TLS", f"{tmp_path}/odd.pem")
    with pytest.raises(JobError, match="certificates for ZooKeeper are not usable"):
        Session(server.hosts, credential=tls.credential(key, server.hosts), timeout_s=1.0)
    with pytest.raises(JobError, match="horn keygen"):
        tls.credential(None, server.hosts)


def test_a_private_key_with_a_password_is_refused_and_nobody_is_asked(key, monkeypatch, tmp_path):
    """OpenSSL asked the terminal, and a worker waited there for ever."""
    trust = CertificateAuthority(key).trust("client")
    private = load_pem_private_key(trust.identity.encode(), None)
    how = BestAvailableEncryption(b"password")
    encrypted = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how).decode()
    certificate = trust.identity[trust.identity.index("-----BEGIN CERTIFICATE") :]
    (tmp_path / "ca.pem").write_text(trust.authority)
    (tmp_path / "own.pem").write_text(encrypted + certificate)
    monkeypatch.setenv("HORN_ZK_TLS", f"{tmp_path}/ca.pem,{tmp_path}/own.pem")
    own = tls.credential(key, "127.0.0.1:1")
    assert own is not None and own.tls is not None
    with pytest.raises(JobError, match="private key of .*HORN_ZK_TLS is encrypted.* openssl pkey"):
        tls.context_of(own.tls)


def test_neither_repr_nor_the_wire_s_record_shows_a_private_key(key: Key):
    own = tls.credential(key, "zk:1")
    assert "PRIVATE" not in repr(own) and "PRIVATE" not in repr(own.tls)


@pytest.mark.cluster
@pytest.mark.java
@pytest.mark.skipif(not is_available(), reason="no Apache ZooKeeper on this machine")
def test_apache_takes_the_certificates_that_keygen_makes(tmp_path: Path):
    words = [sys.executable, "-m", "horn", "keygen", str(tmp_path / "key")]
    for _ in range(2):  # again, of the same key
        subprocess.run([*words, "--tls", str(tmp_path / "tls")], check=True, cwd=ROOT)
    assert (tmp_path / "tls" / "zookeeper.pem").stat().st_mode & 0o777 == 0o600
    (port,) = free_ports(1)
    settings = (tmp_path / "tls" / "zoo.cfg").read_text().replace("=2181", f"={port}").splitlines()
    own, other = Key.from_file(tmp_path / "key"), Key(secrets.token_bytes(32))
    hosts = f"127.0.0.1:{port}"
    with ApacheServer(settings=tuple(settings)):
        with Session(hosts, credential=tls.credential(own, hosts), timeout_s=20.0) as coord:
            coord.create("/horn/a", b"x" * 300_000)
            assert len(coord.get("/horn/a").data) == 300_000
        task = tls.credential(own, hosts, "j")
        with pytest.raises(NotFound, match="no job 'j'"):  # it gets as far as that
            Session(hosts, credential=task, timeout_s=20.0)
        with pytest.raises(Unreachable, match="its certificate is refused"):
            Session(hosts, credential=tls.credential(other, hosts), timeout_s=2.0)


def test_without_a_key_others_are_heard_only_where_a_user_accepts_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(INSECURE, raising=False)
    assert listening("tcp://127.0.0.1:0", has_key=False) == ("127.0.0.1", "0")
    assert listening("tcp://10.0.0.1:7", has_key=True) == ("10.0.0.1", "7")
    with pytest.raises(JobError, match="can be reached from other hosts, and there is no key"):
        listening("tcp://10.0.0.1:7", has_key=False)
    monkeypatch.setenv(INSECURE, "1")
    assert listening("tcp://10.0.0.1:7", has_key=False) == ("10.0.0.1", "7")
    assert environment()[INSECURE] == "1"  # of job runners, and so of tasks
