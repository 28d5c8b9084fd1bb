"""The first frame of a peer: the same must fit, whatever carries it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from horn.transport import Identity
from horn.transport._handshake import hello_of
from horn.transport._shm_sockets import SocketPeers
from horn.wire.frames import MINOR, HandshakeRefused


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
