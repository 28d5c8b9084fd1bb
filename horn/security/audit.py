"""The audit log: actions on the cluster and refusals, as lines of the logger ``horn.audit``.

event=refused key=8d0c... job=mnist-02c1 address=10.0.0.7 reason="unknown key"

A peer that connects a thousand times a second gets a few lines a second; the next one says how many
were left out. Names and reasons come from strangers: what could break a line is escaped.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

logger = logging.getLogger("horn.audit")
BURST = 10  # lines of one event and address at once,
PER_S = 1.0  # and after that
MAX_SOURCES = 1024  # that have own limits; older ones begin anew
WARNINGS = ("refused", "malformed", "cut")  # other events are allowed actions
MAX_CHARACTERS = 200  # of one value


class RateLimiter:
    """Limits a rate: ``take`` gives True ``per_s`` times a second, and ``burst`` times at once."""

    __slots__ = ("at", "burst", "left", "per_s")

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self.per_s, self.burst, self.left, self.at = per_s, burst, burst, now

    def take(self, now: float) -> bool:
        self.left = min(self.left + (now - self.at) * self.per_s, self.burst)
        self.at = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True

    def is_empty(self, now: float) -> bool:
        """Whether ``take`` would give False."""
        return self.left + (now - self.at) * self.per_s < 1.0


class AuditLog:
    """Writes the audit log. May be used from several threads. ``clock``: seconds, monotonic."""

    def __init__(
        self,
        *,
        per_s: float = PER_S,
        burst: int = BURST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.per_s, self.burst, self.clock = per_s, burst, clock
        self._lock = threading.Lock()
        self._sources: OrderedDict[tuple[str, str], tuple[RateLimiter, list[int]]] = OrderedDict()

    def line(
        self,
        event: str,
        *,
        address: str,
        key: str = "",
        job: str = "",
        reason: str = "",
        **more: object,
    ) -> bool:
        """Write a line, unless there were too many; whether it was written.

        event : "submit", "stop", "refused", ... key : a fingerprint, or who by its role.
        """
        now = self.clock()
        with self._lock:
            source = (event, address)
            found = self._sources.pop(source, None)
            if found is None:
                found = RateLimiter(self.per_s, self.burst, now), [0]
                if len(self._sources) >= MAX_SOURCES:
                    self._sources.popitem(last=False)
            self._sources[source] = found
            bucket, left_out = found
            if not bucket.take(now):
                left_out[0] += 1
                return False
            n_left_out, left_out[0] = left_out[0], 0
        fields = {"event": event, "key": key, "job": job, "address": address, "reason": reason}
        fields |= {name: str(value) for name, value in more.items()}
        if n_left_out:
            fields["left_out"] = str(n_left_out)
        text = " ".join(f"{name}={log_word(value)}" for name, value in fields.items() if value)
        logger.log(logging.WARNING if event in WARNINGS else logging.INFO, "%s", text)
        return True


def log_word(value: str) -> str:
    """A value as it is if it is one plain word, else in quotes, on one line."""
    value = value[:MAX_CHARACTERS]
    if value and value.isascii() and value.isprintable() and not set(value) & set(' "=\\'):
        return value
    return json.dumps(value)
