"""Whether a learning rate is a function of the iteration alone, as every process takes it to be.

Tasks and groups ask a copy of the schedule, made when the run began: one that reads what changes
would train on several tasks otherwise than on one.
"""

from __future__ import annotations

from typing import Any

from horn import texts
from horn.errors import ModelError
from horn.optimizers import Optimizer, with_settings
from horn.schedules import SettableRate, called


class SteadyRate:
    """The learning rates of a run's schedule that were asked for, to be asked for again.

    What callbacks set through ``context.learning_rate`` is left out.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        rate = optimizer.learning_rate
        if isinstance(rate, SettableRate):
            rate = rate.base
            optimizer = with_settings(optimizer, learning_rate=rate)
        self._optimizer = optimizer
        is_own = type(optimizer).rate is not Optimizer.rate
        self._asked: Any = optimizer.rate if is_own else getattr(rate, "at", rate)
        self._is_number = not is_own and isinstance(rate, (int, float))
        self._known: dict[int, float] = {}

    def note(self, iteration: int) -> None:
        """Note the rate at an iteration, instead of those at others but 0."""
        if not self._is_number:
            noted = {k: self._optimizer.rate(k) for k in (0, iteration)}
            self._known = noted | {k: v for k, v in self._known.items() if k in noted}

    def check(self) -> None:
        """Ask again for what was noted. Raises ModelError: it is another now."""
        for iteration, before in self._known.items():
            now = self._optimizer.rate(iteration)
            if now != before:
                code = getattr(self._asked, "__code__", None)
                line = "" if code is None else texts.shown(self._asked, code.co_firstlineno)
                raise ModelError(
                    f"the learning rate of {called(self._asked)}({iteration}) was {before!r}, and "
                    f"is {now!r} when it is asked again: a schedule is a function of the iteration "
                    "alone, which tasks and groups ask for themselves. Without random numbers, "
                    "counts of its calls, and globals, lists and files that change; a callback "
                    f"sets  context.learning_rate = ...{line}"
                )
