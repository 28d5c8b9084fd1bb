"""How long a wait for others may still take.

It counts the time in which this process was there to wait. A computer that was put to sleep, a
virtual machine that was moved, a job that was stopped and continued: all processes stand still
together, and afterwards nobody is late. Who must know how old something really is (a session, a
fence) reads the clock instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STRIDE_S = 3.0  # what one look at the clock counts for at most


class Patience:
    """Counts down from ``timeout_s`` seconds at every look.

    Who uses it looks at least every two seconds, and looks for what it waits for between two
    looks at the clock: one look takes half of the time at most, however long this process stood
    still. clock : seconds, monotonic.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s, self._clock = timeout_s, clock
        self._stride_s = min(STRIDE_S, timeout_s / 2)
        self.renew()

    def renew(self) -> None:
        """Begin again: somebody has been heard."""
        self._left_s, self._looked = self.timeout_s, self._clock()

    def left_s(self) -> float:
        """Seconds that are left; not above 0 when it is over."""
        now = self._clock()
        self._left_s -= min(now - self._looked, self._stride_s)
        self._looked = now
        return self._left_s
