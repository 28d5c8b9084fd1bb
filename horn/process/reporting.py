"""What a task tells its parent while it trains: its progress, its events, that it is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from horn.process import control
from horn.training.cursor import plain_row
from horn.training.loop import OwnLoss
from horn.training.progress import Progress

LEAST_HEARTBEATS = 4  # in a superstep's deadline,
HEARTBEAT_S = 5.0  # and seconds between two, at most


class ProgressReporter(Progress):
    """Reports a group's progress from its first task to the parent: epochs, and group 0's steps."""

    def __init__(
        self,
        line: control.ControlChannel,
        interval_s: float,
        group: int,
        own: Callable[[], OwnLoss],
    ) -> None:
        self.line, self.interval_s, self.group, self.own = line, interval_s, group, own

    def step(self, epoch: int, iteration: int, loss: float, samples_per_s: float) -> None:
        if self.group == 0:
            self.line.send(control.BatchProgress(epoch, iteration, loss, samples_per_s))

    def epoch(self, row: Mapping[str, Any]) -> None:
        own = self.own()
        mean = own.total / own.samples if own.samples else 0.0
        self.line.send(control.EpochRow(plain_row(row), self.group, (float(mean), own.samples)))


class TraceRecorder:
    """Records the first ``limit`` events of a task, for the trace."""

    def __init__(self, limit: int) -> None:
        self.limit, self.n_left_out = limit, 0
        self.events: list[tuple[str, str, int, float, float]] = []

    def __call__(self, phase: str, label: str, superstep: int, begin: float, end: float) -> None:
        if len(self.events) < self.limit:
            self.events.append((phase, label, superstep, begin, end))
        else:
            self.n_left_out += 1


class Heartbeats:
    """Sends heartbeats to the parent, from the thread that trains."""

    def __init__(self, line: control.ControlChannel, superstep_timeout_s: float) -> None:
        self.line, self.every_s = line, heartbeat_s(superstep_timeout_s)
        self._next, self._measures = 0.0, False

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self.every_s
            self.line.send(control.Heartbeat(self._measures))

    def measure(self, measures: bool) -> None:
        """Say at once whether the model is measured from now on: a metric of the user's, which may
        take any time, sends none.
        """
        self._measures, self._next = measures, 0.0
        self()


def heartbeat_s(superstep_timeout_s: float) -> float:
    """Seconds between two heartbeats of a task that trains."""
    return min(superstep_timeout_s / LEAST_HEARTBEATS, HEARTBEAT_S)
