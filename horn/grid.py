"""What a sweep tries: every combination of the values of its settings.

A setting is KEY=VALUES: values with commas between them (50,100), or FIRST:LAST:HOW:N, N values
from FIRST to LAST, evenly (lin) or by equal factors (log); between whole numbers, whole ones.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable

from horn.errors import JobError

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
RANGE = re.compile(rf"({NUMBER}):({NUMBER}):(\w+):(\d+)")
LOOKS_LIKE_ONE = re.compile(rf"{NUMBER}(?::[^:]*)+")

Combination = tuple[tuple[str, str], ...]  # (key, value)


def combinations(settings: Iterable[str]) -> list[Combination]:
    """All of them, the last setting's values changing first. Raises JobError."""
    values: dict[str, list[str]] = {}
    for text in settings:
        key, equals, found = text.partition("=")
        if not equals or not key.strip() or not found.strip():
            raise JobError(
                f"--set {text}: write --set KEY=VALUES, as in --set layer1.size=50,100 or "
                f"--set optimizer.learning_rate=0.01:0.1:log:5"
            )
        values[key.strip()] = _values(text, found.strip())
    pairs = [[(key, value) for value in some] for key, some in values.items()]
    return list(itertools.product(*pairs))


def _values(text: str, found: str) -> list[str]:
    if LOOKS_LIKE_ONE.fullmatch(found) is None:
        return list(dict.fromkeys(value.strip() for value in found.split(",")))
    fits = RANGE.fullmatch(found)
    first, last, how, n = fits.groups() if fits else ("", "", "", "0")
    if how not in ("log", "lin") or int(n) < 2:
        raise JobError(
            f"--set {text}: a range is FIRST:LAST:log:N or FIRST:LAST:lin:N, with N from 2, as in "
            f"0.01:0.1:log:5"
        )
    low, high, steps = float(first), float(last), int(n) - 1
    if how == "lin":
        numbers = [low + (high - low) * k / steps for k in range(steps + 1)]
    elif low <= 0 or high <= 0:
        raise JobError(f"--set {text}: a log range is between numbers above 0; take lin")
    else:
        ends = math.log(low), math.log(high)
        numbers = [math.exp(ends[0] + (ends[1] - ends[0]) * k / steps) for k in range(steps + 1)]
        numbers[0], numbers[-1] = low, high
    if re.fullmatch(r"[+-]?\d+", first) and re.fullmatch(r"[+-]?\d+", last):
        return list(dict.fromkeys(str(round(number)) for number in numbers))
    return [f"{number:.6g}" for number in numbers]
