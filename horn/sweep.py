"""The trials of a sweep, every combination of the values of its settings, and the best of them.

A setting is KEY=VALUES: values with commas between them (50,100), or FIRST:LAST:HOW:N, N values
from FIRST to LAST, evenly (lin) or by equal factors (log); between whole numbers, whole ones.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from horn.errors import JobError, set_once

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
RANGE = re.compile(rf"({NUMBER}):({NUMBER}):(\w+):(\d+)")
LOOKS_LIKE_ONE = re.compile(rf"{NUMBER}(?::[^:]*)+")

MOST = 10_000  # runs of a sweep

Combination = tuple[tuple[str, str], ...]  # (key, value)


def combinations(settings: Iterable[str]) -> list[Combination]:
    """All combinations of values, the last setting's changing first. Raises JobError."""
    given: dict[str, str] = {}
    values: dict[str, list[str]] = {}
    for text in settings:
        key, equals, found = text.partition("=")
        if not equals or not key.strip() or not found.strip():
            raise JobError(
                f"--set {text}: write --set KEY=VALUES, as in --set layer1.size=50,100 or "
                f"--set optimizer.learning_rate=0.01:0.1:log:5"
            )
        key, found = key.strip(), found.strip()
        set_once(given, key, found, f"--set {key}", ", or write all values in one, as KEY=50,100")
        values[key] = _values(text, found)
    if (n := math.prod(map(len, values.values()))) > MOST:
        raise JobError(
            f"--set: there are {n:,} combinations, each of which is a run; give {MOST:,} at most"
        )
    pairs = [[(key, value) for value in some] for key, some in values.items()]
    return list(itertools.product(*pairs))


def _values(text: str, found: str) -> list[str]:
    if LOOKS_LIKE_ONE.fullmatch(found) is None:
        return list(dict.fromkeys(value.strip() for value in found.split(",")))
    fits = RANGE.fullmatch(found)
    first, last, how, n = fits.groups() if fits else ("", "", "", "0")
    if how not in ("log", "lin") or not 2 <= int(n) <= MOST:
        raise JobError(
            f"--set {text}: a range is FIRST:LAST:log:N or FIRST:LAST:lin:N, with N from 2 to "
            f"{MOST:,}, as in 0.01:0.1:log:5"
        )
    low, high, steps = float(first), float(last), int(n) - 1
    if how == "lin":
        numbers = [low + (high - low) * k / steps for k in range(steps + 1)]
    elif low <= 0 or high <= 0:
        raise JobError(f"--set {text}: a log range is between numbers above 0; take lin")
    else:
        ends = math.log(low), math.log(high)
        numbers = [math.exp(ends[0] + (ends[1] - ends[0]) * k / steps) for k in range(steps + 1)]
    if not all(map(math.isfinite, numbers)):
        raise JobError(f"--set {text}: a range is of finite numbers; {low:g} to {high:g} is none")
    numbers[0], numbers[-1] = low, high
    if re.fullmatch(r"[+-]?\d+", first) and re.fullmatch(r"[+-]?\d+", last):
        return list(dict.fromkeys(str(round(number)) for number in numbers))
    for digits in range(6, 18):  # as few as tell the numbers apart, and the ends as they were given
        texts = list(dict.fromkeys(f"{number:.{digits}g}" for number in numbers))
        if len(texts) == len({*numbers}) and (float(texts[0]), float(texts[-1])) == (low, high):
            break
    return texts


@dataclass
class Trial:
    """A combination and its result. row : of the history, that of the model."""

    number: int
    settings: Combination
    state: str = "PENDING"
    row: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 0
    seconds: float = 0.0
    reason: str = ""

    def ended(self, state: str, result: Mapping[str, Any], reason: str = "") -> None:
        """Record the result of the trial. result : as ``Run.as_dict`` has it."""
        self.state, self.reason = state, reason
        rows, best = result.get("history") or [], result.get("best_epoch")
        if rows:
            found = (row for row in rows if row["epoch"] == best)
            self.row = next(found, rows[-1])
        self.epochs = int(result.get("epochs") or 0)
        self.seconds = float(result.get("seconds") or 0.0)

    def words(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.settings)


class Sweep:
    """All trials, and the best so far. monitor : the column that decides; "" for val_loss,
    or loss where nothing is held out. better : "min" or "max" of that column. saved : the trial
    whose model is in the file.
    """

    def __init__(self, trials: Sequence[Trial], monitor: str, better: str = "min") -> None:
        self.trials, self.monitor, self.better = trials, monitor, better
        self.best: Trial | None = None
        self.saved: Trial | None = None

    def heard(self, trial: Trial) -> bool:
        """Take in an ended trial; whether it is the best so far."""
        if not self.monitor and trial.row:
            self.monitor = "loss" if trial.row.get("val_loss") is None else "val_loss"
        score = self._score(trial)
        if score is None:
            return False
        if self.best is not None:
            least = self._score(self.best)
            assert least is not None
            if (least, self.best.number) <= (score, trial.number):
                return False
        self.best = trial
        return True

    def _score(self, trial: Trial) -> float | None:
        value = trial.row.get(self.monitor)
        if trial.state != "SUCCEEDED" or not isinstance(value, (int, float)) or math.isnan(value):
            return None
        return float(value) if self.better == "min" else -float(value)

    def ranked(self) -> list[Trial]:
        """The trials that have a model and its score, the best first."""
        found = [(score, t.number, t) for t in self.trials if (score := self._score(t)) is not None]
        return [trial for _, _, trial in sorted(found)]

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Columns and rows, the best first: varied settings, measurements (numbers or None), and
        the state at the end.
        """
        varied = [key for k, (key, _) in enumerate(self.trials[0].settings)
                  if len({trial.settings[k][1] for trial in self.trials}) > 1]  # fmt: skip
        ended = [trial for trial in self.trials if trial.state != "PENDING"]
        ended.sort(key=lambda t: (self._score(t) is None, self._score(t) or 0.0, t.number))
        shown = [name for name in dict.fromkeys((self.monitor, "loss", "val_loss", "val_acc"))
                 if name and any(trial.row.get(name) is not None for trial in ended)]  # fmt: skip
        rows = []
        for trial in ended:
            values = dict(trial.settings)
            rows.append([
                str(trial.number), *(values[key] for key in varied),
                *(trial.row.get(name) for name in shown),
                str(trial.epochs or "–"), f"{trial.seconds:.1f}",
                "best" if trial is self.best else trial.state,
            ])  # fmt: skip
        return ["RUN", *varied, *map(str.upper, shown), "EPOCHS", "SECONDS", "STATE"], rows

    def as_dict(self) -> dict[str, Any]:
        return {
            "monitor": self.monitor or None,
            "runs": [
                {"run": t.number, "settings": dict(t.settings), "state": t.state,
                 "epochs": t.epochs, "seconds": t.seconds, "row": dict(t.row) or None,
                 "reason": t.reason or None}
                for t in self.trials
            ],
            "best": None if self.best is None else self.best.number,
            "saved": None if self.saved is None else self.saved.number,
        }  # fmt: skip
