"""The first frame of a peer: the same must fit, whatever carries it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from horn.transport import Identity, TransportCounters
from horn.transport._handshake import Handshake, hello_of
from horn.transport._shm_sockets import SocketPeers
from horn.wire.frames import HandshakeRefused, WireMessage, encode
from horn.wire.messages import MINOR


@pytest.mark.parametrize(
    "change, said",
    [
        ({"job": "another"}, "job: got another, expected test"),
        ({"n_tasks": 3}, "tasks: got 3, expected 2"),
        ({"endian": "big"}, "byte order: got big, expected little"),
        ({"min_minor": MINOR + 1}, f"minor version: got {MINOR + 1}, expected {MINOR}"),
        ({}, None),
    ],
)
def test_a_hello_in_shared_memory_is_checked_as_one_over_sockets(
    change: dict[str, Any], said: str | None
) -> None:
    """Another byte order, or a version that is newer, was taken."""
    ours, theirs = (SocketPeers(Identity(rank, 2, "test")) for rank in (0, 1))
    hello = msgspec.structs.replace(hello_of(theirs.identity, bytes(16)), **change)
    try:
        if said is None:
            assert ours._checked(theirs._first(hello)) == hello
        else:
            with pytest.raises(HandshakeRefused, match=f"hello of task 1: {said}"):
                ours._checked(theirs._first(hello))
    finally:
        ours.close("the end")
        theirs.close("the end")


def test_what_a_stranger_writes_stays_on_one_line_of_the_log(caplog: Any) -> None:
    identity = Identity(0, 2, "test")
    incarnation = b"\1" * 16
    stranger = Identity(1, 2, "x\n12:00 CRITICAL horn.audit event=submit")
    parts = encode(WireMessage(hello_of(stranger, incarnation), src=1, seq=1))
    handshake = Handshake(identity, TransportCounters(), lambda message, hello: ())
    assert handshake.accept(incarnation, parts, False, lambda sender, parts: None) is None

    ours = SocketPeers(identity)
    try:
        with pytest.raises(HandshakeRefused) as caught:
            ours._checked(b"".join(parts))
        ours._tell_refused(caught.value)
    finally:
        ours.close("the end")
    assert len(caplog.messages) == 2
    for said in caplog.messages:
        assert "refused task=0" in said and "horn.audit event=submit" in said
        assert said.isprintable()
