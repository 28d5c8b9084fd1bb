"""Learning-rate schedules: functions of the iteration, counted from 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from horn.errors import ModelError


class Schedule(Protocol):
    """``at(iteration)`` is the learning rate of that update."""

    def at(self, iteration: int) -> float: ...


@dataclass(frozen=True)
class Step:
    """``initial`` times ``factor`` after every ``every`` iterations."""

    initial: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ModelError(f"Step: every must be at least 1 iteration, got {self.every!r}")

    def at(self, iteration: int) -> float:
        return self.initial * float(self.factor ** (iteration // self.every))


@dataclass(frozen=True)
class Exponential:
    """``initial`` times ``decay`` to the iteration."""

    initial: float
    decay: float

    def at(self, iteration: int) -> float:
        return self.initial * float(self.decay**iteration)


@dataclass(frozen=True)
class Cosine:
    """From ``initial`` down to ``final`` along half a cosine in ``iterations``, then ``final``.

    Source: Loshchilov & Hutter, "SGDR", 2017, eq. 5, without restarts.
    """

    initial: float
    iterations: int
    final: float = 0.0

    def at(self, iteration: int) -> float:
        done = min(iteration / max(self.iterations, 1), 1.0)
        return self.final + (self.initial - self.final) * 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True)
class Warmup:
    """A straight line up to what ``then`` says, over the first ``iterations``; then ``then``."""

    iterations: int
    then: float | Schedule

    def at(self, iteration: int) -> float:
        return rate(self.then, iteration) * min((iteration + 1) / max(self.iterations, 1), 1.0)


def rate(learning_rate: float | Schedule, iteration: int) -> float:
    if isinstance(learning_rate, (int, float)):
        return float(learning_rate)
    return float(learning_rate.at(iteration))
