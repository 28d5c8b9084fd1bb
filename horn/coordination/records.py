"""The data types of coordination: events, nodes, steps, replies.

Pure: frozen records; importing them does not load kazoo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Session events, in the order in which they can happen.


@dataclass(frozen=True)
class ConnectionSuspended:
    """The connection broke; the session may still be alive. Send nothing that needs it."""


@dataclass(frozen=True)
class ConnectionResumed:
    """The same session goes on. The owners of watches set them again."""


@dataclass(frozen=True)
class SessionExpired:
    """The session is over; nothing more happens in this Session."""

    reason: str


Event = ConnectionSuspended | ConnectionResumed | SessionExpired


@dataclass(frozen=True)
class Znode:
    """A node. ``created``, ``changed``: zxids; ``made_s``: since 1970, by the servers' clock."""

    data: bytes
    version: int
    created: int
    changed: int
    owner: int  # session of an ephemeral node, else 0
    n_children: int
    made_s: float = 0.0


# Steps of a transaction.


@dataclass(frozen=True)
class Create:
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False
    guest: str = ""  # the id of another credential that may use it


@dataclass(frozen=True)
class Put:
    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True)
class Delete:
    path: str
    version: int = -1


@dataclass(frozen=True)
class Check:
    path: str
    version: int = -1


Step = Create | Put | Delete | Check


@dataclass(frozen=True)
class Reply:
    """The value of a request, or its failure: ``reason`` is a word of the server ("missing",
    "exists", ...), "broken" (unknown) or "lost" (no session). ``step`` : the refused one of a
    transaction.
    """

    value: Any = None
    reason: str = ""
    step: int = 0
