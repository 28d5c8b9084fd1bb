"""A probe: whether a process listens, asked of an address or of a name."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from horn.wire.probe import AGAIN_S, ATTEMPT_S, Probe, ProbeResult
from tests.cluster.helpers import wait_until

pytestmark = pytest.mark.net


@pytest.fixture
def resolver(monkeypatch: Any) -> Iterator[threading.Event]:
    """A resolver that answers about names, as localhost, only once the event is set."""
    answers, known = threading.Event(), socket.getaddrinfo

    def ask(host: str, port: int, **how: Any) -> Any:
        if how.get("flags", 0) & socket.AI_NUMERICHOST:
            return known(host, port, **how)
        answers.wait(10.0)
        return known("127.0.0.1", port, **how)

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    yield answers
    answers.set()


def n_asked() -> int:
    return sum(thread.name == "horn-resolve" for thread in threading.enumerate())


def port_of_nobody() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_probe_does_not_wait_for_a_resolver_and_asks_it_once(resolver: threading.Event) -> None:
    """It stood still with it, and all messages of the task."""
    n_before = n_asked()
    probe, now_s = Probe(f"tcp://slow.example:{port_of_nobody()}", 1.0), 1.0
    for _ in range(3):
        assert probe.poll(now_s) is ProbeResult.NONE and probe.fd is None
        now_s += ATTEMPT_S + AGAIN_S
    assert n_asked() == n_before + 1
    resolver.set()
    wait_until(lambda: n_asked() == n_before)

    def is_refused() -> bool:
        nonlocal now_s
        now_s += AGAIN_S * 2
        return probe.poll(now_s) is ProbeResult.REFUSED

    wait_until(is_refused)
    probe.close()


def test_an_address_needs_no_resolver(resolver: threading.Event) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = Probe(f"tcp://127.0.0.1:{server.getsockname()[1]}", 1.0)
        assert probe.poll(1.0) is ProbeResult.NONE and probe.fd is not None
        taken, _ = server.accept()
        with taken:
            taken.sendall(b"\xff")
            wait_until(lambda: probe.poll(1.1) is ProbeResult.GREETED)
