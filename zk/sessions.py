"""Sessions: who is alive, and until when.

A session lives while packets come; its deadline is rounded up to a tick, so that one look per
tick finds all that are over. Pure: the clock (monotonic, in ms) and the randomness are passed in.
"""

from __future__ import annotations

import hmac
from typing import NamedTuple


class OpenSession(NamedTuple):
    """A session began: what the log keeps of it."""

    id: int
    timeout_ms: int
    password: bytes


class CloseSession(NamedTuple):
    """A session ended, by its client or by its deadline; its ephemeral nodes went with it."""

    id: int


class Session:
    """One client's session. ``deadline_ms`` is on the server's monotonic clock."""

    __slots__ = ("deadline_ms", "id", "password", "timeout_ms")

    def __init__(self, ident: int, timeout_ms: int, password: bytes) -> None:
        self.id, self.timeout_ms, self.password = ident, timeout_ms, password
        self.deadline_ms = 0


class Sessions:
    """All sessions by id.

    tick_ms : the unit of expiry; a timeout is kept within 2 to 20 of it.
    """

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
        """After a restart everyone gets a full timeout to come back."""
        for session in self.by_id.values():
            self.touch(session, now_ms)

    def postpone(self, late_ms: int) -> None:
        """The server itself stood still: that time counts for no one."""
        ticks_ms = -(-late_ms // self.tick_ms) * self.tick_ms
        for session in self.by_id.values():
            session.deadline_ms += ticks_ms

    def close(self, ident: int) -> None:
        self.by_id.pop(ident, None)

    def expired(self, now_ms: int) -> list[int]:
        return [s.id for s in self.by_id.values() if s.deadline_ms <= now_ms]
