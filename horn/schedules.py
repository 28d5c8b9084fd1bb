"""Learning-rate schedules: functions of the iteration, from 0; plain functions work, too."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

from horn import mistakes, texts
from horn.errors import HornError, ModelError, check_finite, described


class Schedule(Protocol):
    """``at(iteration)`` is the learning rate of that update."""

    def at(self, iteration: int) -> float:
        """The learning rate of the update ``iteration``, from 0."""
        ...


LearningRate = float | Schedule | Callable[[int], float]


def _check_iterations(given: float, what: str, example: str) -> None:
    if not isinstance(given, Real) or not (given == 0 or given >= 1):
        raise ModelError(f"{what} are 0, 1 or more, as in {example}, got {given!r}")


@mistakes.teaches
@dataclass(frozen=True)
class Step:
    """``initial`` times ``factor`` after every ``every`` iterations."""

    initial: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        check_finite(self, "initial", "every", "factor")
        if self.every < 1:
            raise ModelError(f"Step: every must be at least 1 iteration, got {self.every!r}")

    def at(self, iteration: int) -> float:
        """The learning rate of the update ``iteration``, from 0."""
        return self.initial * float(self.factor ** (iteration // self.every))


@mistakes.teaches
@dataclass(frozen=True)
class Exponential:
    """``initial`` times ``decay`` to the iteration."""

    initial: float
    decay: float

    def __post_init__(self) -> None:
        check_finite(self, "initial", "decay")

    def at(self, iteration: int) -> float:
        """The learning rate of the update ``iteration``, from 0."""
        return self.initial * float(self.decay**iteration)


@mistakes.teaches
@dataclass(frozen=True)
class Cosine:
    """A rate from ``initial`` to ``final``, half a cosine in ``iterations``, then ``final``.

    Source: Loshchilov & Hutter, "SGDR", 2017, eq. 5, without restarts.
    """

    initial: float
    iterations: int
    final: float = 0.0

    def __post_init__(self) -> None:
        check_finite(self, "initial", "final")
        _check_iterations(
            self.iterations, "Cosine: iterations, which come second,", "horn.Cosine(0.1, 2000)"
        )

    def at(self, iteration: int) -> float:
        """The learning rate of the update ``iteration``, from 0."""
        done = min(iteration / max(self.iterations, 1), 1.0)
        return self.final + (self.initial - self.final) * 0.5 * (1.0 + math.cos(math.pi * done))


@mistakes.teaches
@dataclass(frozen=True)
class Warmup:
    """A straight line up to the rate of ``then`` over the first ``iterations``; then ``then``."""

    iterations: int
    then: LearningRate

    def __post_init__(self) -> None:
        _check_iterations(
            self.iterations,
            "Warmup: iterations, which come first,",
            "horn.Warmup(100, horn.Cosine(0.1, 2000))",
        )
        check(self.then, "Warmup: then")

    def at(self, iteration: int) -> float:
        """The learning rate of the update ``iteration``, from 0."""
        return rate(self.then, iteration) * min((iteration + 1) / max(self.iterations, 1), 1.0)


class SettableRate:
    """A learning rate that may be set during training: a number replaces a number, and becomes a
    factor of a schedule, whose rest keeps its form.
    """

    def __init__(self, base: LearningRate) -> None:
        self.base = base
        self.number: float | None = None  # None until it is set

    def at(self, iteration: int) -> float:
        if self.number is None:
            return rate(self.base, iteration)
        if isinstance(self.base, (int, float)):
            return self.number
        return self.number * rate(self.base, iteration)

    def set(self, value: float, iteration: int) -> None:
        """Set the rate at an iteration. Raises ModelError where the schedule is 0 there."""
        value = mistakes.plain(value)
        if not isinstance(value, (int, float)) or not 0.0 <= value < math.inf:
            raise ModelError(f"learning_rate must be a number from 0, got {value!r}")
        if isinstance(self.base, (int, float)):
            self.number = float(value)
            return
        scheduled = rate(self.base, iteration)
        if value == self.at(iteration):  # as it is: at the end of a schedule, say
            return
        if not scheduled:
            raise ModelError(
                f"learning_rate cannot be set to {value!r} at iteration {iteration}, where the "
                f"schedule is at 0; set it at another, or give a number instead of the schedule"
            )
        self.number = float(value) / scheduled


def check(learning_rate: Any, where: str) -> None:
    """Raise ModelError for what is neither a number from 0, a schedule nor a function."""
    if isinstance(learning_rate, (int, float)) and not 0 <= learning_rate <= sys.float_info.max:
        raise ModelError(
            f"{where}: learning_rate must be 0 or more, and finite, got {learning_rate!s:.40}"
        )
    if isinstance(learning_rate, types.FunctionType):
        texts.keep(learning_rate)
        code, given = learning_rate.__code__, len(learning_rate.__defaults__ or ())
        least, most = code.co_argcount - given, math.inf if code.co_flags & 4 else code.co_argcount
        if not least <= 1 <= most:  # 4: it has *args
            raise ModelError(
                f"{where}: a learning_rate that is a function takes the iteration and returns a "
                f"number, as  lambda iteration: 0.1 / (1 + iteration / 100); "
                f"{learning_rate.__name__} takes {code.co_argcount} arguments"
            )
    is_wrong = isinstance(learning_rate, (type, bool))
    is_schedule = mistakes.is_function(learning_rate) or hasattr(learning_rate, "at")
    is_number = isinstance(learning_rate, (int, float))
    if is_wrong or not (is_number or is_schedule):
        raise ModelError(
            f"{where}: learning_rate is a number, a schedule such as horn.Cosine(0.1, 1000), or a "
            f"function of the iteration that returns it; got {learning_rate!r}"
        )


def rate(learning_rate: LearningRate, iteration: int) -> float:
    """The learning rate at an iteration. Raises ModelError: a schedule gives none there. HornError:
    it raised another error.
    """
    if isinstance(learning_rate, (int, float)):
        return float(learning_rate)
    ask: Any = getattr(learning_rate, "at", learning_rate)
    try:
        found = ask(iteration)
    except HornError:  # of a schedule in this one
        raise
    except Exception as error:
        raised = None if error.__traceback__ is None else error.__traceback__.tb_next
        line = "" if raised is None else texts.shown(ask, raised.tb_lineno)
        raise HornError(
            f"the learning rate of {called(ask)}({iteration}) must be a number from 0, but it "
            f"raised {described(error)}{line}"
        ) from error
    try:
        value = math.nan if isinstance(mistakes.plain(found), (bool, str, bytes)) else float(found)
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 <= value < math.inf:
        code = getattr(ask, "__code__", None)
        line = "" if code is None else texts.shown(ask, code.co_firstlineno)
        raise ModelError(
            f"the learning rate of {called(ask)}({iteration}) must be a number from 0, got "
            f"{found!r}{line}"
        )
    return value


def called(function: Any) -> str:
    """The name of a function, a method or a callable's class, without the function around it."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return str(name).rpartition("<locals>.")[2]
