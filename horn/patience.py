"""Deadlines of waits for other processes.

They count only the time in which this process ran. When a computer sleeps, a virtual machine moves
or a job is stopped and continued, all processes stand still together, and nobody is late. The age
of a session or a fence is read from the clock instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable

TURN_S = 1.0  # between two readings of the clock while waiting
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

    def wait(self, wait: Callable[[float], object]) -> bool:
        """Wait a turn, with the method of an event or a condition, after which the caller looks
        again; False, at once, when time is over.
        """
        left_s = self.left_s()
        if left_s > 0:
            wait(min(left_s, TURN_S))
        return left_s > 0
