"""Addresses that a listening socket does not hear: real sockets on loopback."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from horn.wire.blocklist import MOST, Blocklist

ESTABLISHED, SYN_SENT = 1, 2  # tcp_info.tcpi_state


@contextlib.contextmanager
def listening(address: str) -> Iterator[tuple[socket.socket, Blocklist]]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        listener.setblocking(False)
        blocked = Blocklist(listener.fileno())
        try:
            yield listener, blocked
        finally:
            blocked.close()


def knock(listener: socket.socket, source: str) -> tuple[socket.socket, int]:
    """A connection from an address, and its state: on loopback the kernel has answered at once."""
    made = socket.socket(listener.family, socket.SOCK_STREAM)
    made.setblocking(False)
    made.bind((source, 0))
    with contextlib.suppress(BlockingIOError):
        made.connect(listener.getsockname()[:2])
    return made, made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def is_heard(listener: socket.socket, source: str) -> bool:
    made, state = knock(listener, source)
    with made:
        assert state in (ESTABLISHED, SYN_SENT)
        if state == SYN_SENT:
            with pytest.raises(BlockingIOError):
                listener.accept()
            return False
        with listener.accept()[0]:
            return True


def test_who_is_blocked_is_not_heard_and_others_are():
    with listening("127.0.0.1") as (listener, blocked):
        assert is_heard(listener, "127.0.0.2")
        blocked.add("127.0.0.2", 10.0)
        assert "127.0.0.2" in blocked and not is_heard(listener, "127.0.0.2")
        assert is_heard(listener, "127.0.0.1") and is_heard(listener, "127.0.0.3")
        blocked.add("127.0.0.3", 20.0)
        blocked.unblock_due(9.9)
        assert not is_heard(listener, "127.0.0.2") and not is_heard(listener, "127.0.0.3")
        blocked.unblock_due(10.0)
        assert is_heard(listener, "127.0.0.2") and not is_heard(listener, "127.0.0.3")
        blocked.add("127.0.0.3", 30.0)  # again: longer
        blocked.unblock_due(20.0)
        assert not is_heard(listener, "127.0.0.3")
        blocked.unblock_due(30.0)
        assert is_heard(listener, "127.0.0.3")


def test_who_is_in_goes_on_while_it_is_blocked():
    with listening("127.0.0.1") as (listener, blocked):
        made, state = knock(listener, "127.0.0.2")
        with made, listener.accept()[0] as accepted:
            assert state == ESTABLISHED
            blocked.add("127.0.0.2", 1.0)
            made.send(b"still here")
            assert accepted.recv(100) == b"still here"
            accepted.send(b"and I")
            assert made.recv(100) == b"and I"


def test_who_was_dropped_gets_in_when_it_tries_again():
    """TCP does so by itself, after a second."""
    with listening("127.0.0.1") as (listener, blocked):
        blocked.add("127.0.0.2", 1.0)
        made, state = knock(listener, "127.0.0.2")
        with made:
            assert state == SYN_SENT
            blocked.unblock_due(1.0)
            listener.settimeout(30.0)
            with listener.accept()[0] as accepted:
                assert accepted.getpeername()[0] == "127.0.0.2"


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on loopback")
@pytest.mark.parametrize(
    "address, is_blocked",
    [("::1", True), ("::1%lo", True), ("::2", False), ("1::1", False), ("0.0.0.1", False)],
)
def test_long_addresses_are_compared_whole(address: str, is_blocked: bool):
    with listening("::1") as (listener, blocked):
        blocked.add(address, 1.0)
        assert is_heard(listener, "::1") != is_blocked
        blocked.unblock_due(1.0)
        assert is_heard(listener, "::1")


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on loopback")
def test_a_short_address_is_itself_on_a_socket_of_both():
    with socket.create_server(
        ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True
    ) as both, contextlib.closing(Blocklist(both.fileno())) as blocked:  # fmt: skip
        both.setblocking(False)
        for address in ("127.0.0.2", "::ffff:127.0.0.2"):
            made = socket.socket()
            with made:
                made.setblocking(False)
                made.bind(("127.0.0.2", 0))
                blocked.add(address, 1.0)
                with contextlib.suppress(BlockingIOError):
                    made.connect(("127.0.0.1", both.getsockname()[1]))
                assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == SYN_SENT
                blocked.unblock_due(1.0)


def test_many_are_blocked_and_no_more_than_there_is_room_for():
    with listening("127.0.0.1") as (listener, blocked):
        for n in range(MOST + 10):
            blocked.add(f"127.0.{1 + n // 250}.{1 + n % 250}", 1.0)
        assert not is_heard(listener, "127.0.1.1") and not is_heard(listener, "127.0.2.6")
        assert is_heard(listener, "127.0.2.7") and is_heard(listener, "127.0.0.1")
        for n in range(MOST + 10):
            blocked.add(f"{n + 1:x}::1", 1.0)  # nor of these
        blocked.unblock_due(1.0)
        assert is_heard(listener, "127.0.1.1")


def test_what_is_no_address_blocks_nobody():
    with listening("127.0.0.1") as (listener, blocked):
        blocked.add("?", 1.0)
        blocked.add("127.0.0.2", 1.0)
        assert "?" not in blocked and is_heard(listener, "127.0.0.1")
        assert not is_heard(listener, "127.0.0.2")
