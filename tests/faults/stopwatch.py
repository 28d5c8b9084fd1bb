"""Seconds that a fault costs, beside other work."""

from __future__ import annotations

import re
import time
from pathlib import Path

PRESSURE = Path("/proc/pressure/cpu")  # Linux: since when processes waited for a processor, in us


class Stopwatch:
    """Seconds since it was made, without those in which a process waited for a processor."""

    def __init__(self, pressure: Path = PRESSURE) -> None:
        self._pressure = pressure
        self._begun_s, self._waited_s = time.monotonic(), self._all_waited_s()

    def _all_waited_s(self) -> float:
        """Seconds since the machine started; 0 where the system does not say."""
        try:
            said = self._pressure.read_text()
        except OSError:
            return 0.0
        found = re.search(r"^some .*total=(\d+)", said, re.M)
        return 1e-6 * int(found[1]) if found else 0.0

    def seconds(self) -> tuple[float, float]:
        """Without those, and with them."""
        took_s = time.monotonic() - self._begun_s
        return took_s - (self._all_waited_s() - self._waited_s), took_s
