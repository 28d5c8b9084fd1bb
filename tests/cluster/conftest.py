"""The same coordination suite against three servers: embedded, one Apache, an Apache ensemble."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

import zk
from horn.coordination.session import Session
from tests.apache import ApacheEnsemble, ApacheServer, is_available

java = [
    pytest.mark.java,
    pytest.mark.skipif(not is_available(), reason="no Apache ZooKeeper on this machine"),
]
KINDS = [
    "embedded",
    pytest.param("apache", marks=java),
    pytest.param("ensemble", marks=java),
]
Server = zk.EmbeddedServer | ApacheServer | ApacheEnsemble
TICK_MS = 600  # sessions last 1.2 to 12 s
# A follower hears so late of what another has written: who reads it there needs ``sync`` first, and
# a test that forgets it fails here, not once in a thousand runs.
LATE_S = 0.02
_roots = itertools.count()


@dataclass(frozen=True)
class Zookeeper:
    """A running server and a folder in it that no other test uses."""

    kind: str
    hosts: str
    root: str


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Server]]:
    """A server of each kind, started when first asked for."""
    makers = {
        "embedded": lambda: zk.EmbeddedServer(tick_ms=TICK_MS),
        "apache": lambda: ApacheServer(tick_ms=TICK_MS),
        "ensemble": lambda: ApacheEnsemble(tick_ms=TICK_MS, late_s=LATE_S),
    }
    running: dict[str, Server] = {}

    def server_of(kind: str) -> Server:
        if kind not in running:
            running[kind] = makers[kind]()
            running[kind].start()
        return running[kind]

    yield server_of
    for server in running.values():
        server.stop()


@pytest.fixture(params=KINDS)
def zookeeper(request: pytest.FixtureRequest, servers: Callable[[str], Server]) -> Zookeeper:
    return Zookeeper(request.param, servers(request.param).hosts, f"/test-{next(_roots)}")


@pytest.fixture
def embedded(servers: Callable[[str], Server]) -> Zookeeper:
    return Zookeeper("embedded", servers("embedded").hosts, f"/test-{next(_roots)}")


Connect = Callable[..., Session]


@pytest.fixture
def connect(zookeeper: Zookeeper) -> Iterator[Connect]:
    """Open sessions that are closed at the end of the test."""
    yield from _connect(zookeeper)


@pytest.fixture
def connect_embedded(embedded: Zookeeper) -> Iterator[Connect]:
    yield from _connect(embedded)


def _connect(zookeeper: Zookeeper) -> Iterator[Connect]:
    opened: list[Session] = []

    def connect(hosts: str = "", **settings: object) -> Session:
        # The longest session, unless its end is what is tested: the machine may stand still.
        settings = {"root": zookeeper.root, "session_s": 12.0, "timeout_s": 20.0} | settings
        coord = Session(hosts or zookeeper.hosts, **settings)  # type: ignore[arg-type]
        opened.append(coord)
        coord.sync(zookeeper.root)  # of an ensemble, this server may be behind the others
        return coord

    yield connect
    for coord in opened:
        coord.close()


@pytest.fixture(autouse=True)
def nothing_is_left(servers: object) -> Iterator[None]:
    """No thread of horn and no child process outlives a test."""
    yield
    left = [t for t in threading.enumerate() if t.name.startswith(("horn-", "relay", "member-"))]
    for thread in left:
        thread.join(30)
    assert not [t.name for t in left if t.is_alive()]
    assert not multiprocessing.active_children()
