"""Deadlines of waits for other processes.

They count only the time in which this process ran. When a computer sleeps, a virtual machine moves
or a job is stopped and continued, all processes stand still together, and nobody is late. The age
of a session or a fence is read from the clock instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STRIDE_S = 3.0  # the most that one reading of the clock counts


class Patience:
    """A countdown from ``timeout_s`` seconds; each reading counts half of them at most: so a
    process that stood still looks again for the event before the deadline. Read it at least every
    two seconds. clock : seconds, monotonic.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s, self._clock = timeout_s, clock
        self._stride_s = min(STRIDE_S, timeout_s / 2)
        self.renew()

    def renew(self) -> None:
        self._left_s, self._looked = self.timeout_s, self._clock()

    def left_s(self) -> float:
        """Seconds that are left; 0 or below when time is over."""
        now = self._clock()
        self._left_s -= min(now - self._looked, self._stride_s)
        self._looked = now
        return self._left_s
