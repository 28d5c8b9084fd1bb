"""Whether the processors run at full speed while something is timed.

A virtual processor is often one half of a real one, and what others run on the other half slows
it: a step of 784-512-10 with 1,000 samples took 18 or 30 ms on one processor, NumPy's 20 or 37, for
a tenth of a second or for minutes. So a probe that has nothing to do with either side, a ufunc over
an array that stays in the nearest cache, is timed before and after a block; a block between slow
probes is run again, whichever side's it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

import numpy as np

SLOW = 1.25  # a probe that takes so many times as long as the fastest was disturbed
TRIES = 3  # of a block
MIN_BLOCKS, PATIENCE = 7, 6  # calm ones of every side; how many times the time they may take
PAUSE_S, ALONE_PAUSE_S = 0.2, 0.01  # before a probe: idle threads of a pool spin for a while
N_CALLS, REPEATS = 60, 3  # about 0.3 ms each; the fastest repeat counts


class Probe:
    """Times the probe on each of some processors. A time is compared with the fastest
    that was ever seen there.
    """

    def __init__(self, cpus: set[int]) -> None:
        self.cpus = sorted(cpus)
        self._x = np.linspace(-1, 1, 4096, dtype=np.float32)
        self._out = np.empty_like(self._x)
        self._best = dict.fromkeys(self.cpus, float("inf"))
        for _ in range(100):
            self.times()

    def times(self) -> dict[int, float]:
        """Seconds, by processor."""
        allowed = os.sched_getaffinity(0)
        found = {}
        try:
            for cpu in self.cpus:
                os.sched_setaffinity(0, {cpu})
                found[cpu] = min(self._once() for _ in range(REPEATS))
                self._best[cpu] = min(self._best[cpu], found[cpu])
        finally:
            os.sched_setaffinity(0, allowed)
        return found

    def _once(self) -> float:
        began = time.perf_counter()
        for _ in range(N_CALLS):
            np.exp(self._x, out=self._out)
        return time.perf_counter() - began

    def is_calm(self, times: dict[int, float]) -> bool:
        return all(seconds <= SLOW * self._best[cpu] for cpu, seconds in times.items())


def interleaved(
    blocks: Mapping[str, Callable[[], float]], seconds: float, is_alone: bool
) -> tuple[dict[str, list[float]], bool]:
    """Run blocks by turns for some time; what each returned, and whether processors were calm.

    Who is alone uses the one processor that this process may run on; else all count. Where calm
    blocks are too few after ``PATIENCE`` times the time, all that ran are returned.
    """
    probe = Probe(os.sched_getaffinity(0))
    pause_s = ALONE_PAUSE_S if is_alone else PAUSE_S
    calm: dict[str, list[float]] = {name: [] for name in blocks}
    every: dict[str, list[float]] = {name: [] for name in blocks}
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds or (
        min(map(len, calm.values())) < MIN_BLOCKS and spent < PATIENCE * seconds
    ):
        for name, block in blocks.items():
            found, is_calm = _calmly(block, probe, pause_s)
            every[name].append(found)
            if is_calm:
                calm[name].append(found)
    is_calm = min(map(len, calm.values())) >= MIN_BLOCKS
    return (calm if is_calm else every), is_calm


def _calmly(block: Callable[[], float], probe: Probe, pause_s: float) -> tuple[float, bool]:
    """What a block returned when the probes on both sides of it were calm; else the last."""
    found = None
    for _ in range(TRIES):
        time.sleep(pause_s)  # the pools of a library spin for a while after its last product
        before = probe.times()
        if not probe.is_calm(before):
            continue
        found = block()
        time.sleep(pause_s)  # as before
        if probe.is_calm(before) and probe.is_calm(probe.times()):
            return found, True
    return block() if found is None else found, False
