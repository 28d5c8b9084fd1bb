"""Sessions and their deadlines. Pure: clock (monotonic, ms) and randomness are passed in.

A session lives while packets come; deadlines are rounded up to a tick, for one look per tick. Time
in which the server itself stood still ends none.
"""

from __future__ import annotations

import hmac
from typing import NamedTuple


class OpenSession(NamedTuple):
    """The log's record of a session that began."""

    id: int
    timeout_ms: int
    password: bytes


class CloseSession(NamedTuple):
    """The log's record of the end of a session, and of its ephemeral nodes."""

    id: int


class Session:
    """One client's session. ``deadline_ms`` is on the server's ``Awake`` clock."""

    __slots__ = ("deadline_ms", "id", "password", "timeout_ms")

    def __init__(self, ident: int, timeout_ms: int, password: bytes) -> None:
        self.id, self.timeout_ms, self.password = ident, timeout_ms, password
        self.deadline_ms = 0


class Awake:
    """The clock of sessions, in ms, without standstills of the server.

    Its owner looks once a tick at least; between two looks a tick and a quarter counts at most: in
    the rest (stopped, swapped out, a slow disk, a moved virtual machine) nobody could be heard.
    ``still_ms`` : the sum of that.
    """

    def __init__(self, tick_ms: int, now_ms: int) -> None:
        self.most_ms = tick_ms + tick_ms // 4
        self.still_ms = 0
        self._looked_ms = self._ms = now_ms

    def look(self, now_ms: int) -> int:
        """The time; ``now_ms`` is that of a monotonic clock, which runs on in a standstill."""
        gap_ms, self._looked_ms = now_ms - self._looked_ms, now_ms
        counted_ms = min(gap_ms, self.most_ms)
        self._ms += counted_ms
        self.still_ms += gap_ms - counted_ms
        return self._ms


class Sessions:
    """All sessions by id, in times of ``Awake``. tick_ms : of expiry; timeouts are 2 to 20."""

    def __init__(self, tick_ms: int) -> None:
        self.tick_ms = tick_ms
        self.by_id: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def clamp(self, timeout_ms: int) -> int:
        return max(2 * self.tick_ms, min(timeout_ms, 20 * self.tick_ms))

    def open(self, ident: int, timeout_ms: int, password: bytes) -> Session:
        session = self.by_id[ident] = Session(ident, timeout_ms, password)
        return session

    def find(self, ident: int, password: bytes) -> Session | None:
        """The session, if the password is its own; the compare takes the same time either way."""
        session = self.by_id.get(ident)
        known = session.password if session is not None else bytes(16)
        right = hmac.compare_digest(known, password)
        return session if right else None

    def touch(self, session: Session, now_ms: int) -> None:
        tick = self.tick_ms
        session.deadline_ms = ((now_ms + session.timeout_ms) // tick + 1) * tick

    def touch_all(self, now_ms: int) -> None:
        """Give every session a full timeout, after a restart."""
        for session in self.by_id.values():
            self.touch(session, now_ms)

    def close(self, ident: int) -> None:
        self.by_id.pop(ident, None)

    def expired(self, now_ms: int) -> list[int]:
        return [s.id for s in self.by_id.values() if s.deadline_ms <= now_ms]
