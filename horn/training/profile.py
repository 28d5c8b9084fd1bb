"""A profile of training time: statement by statement, in one process."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from horn.atomic_write import atomic_write
from horn.backends import Array, Engine
from horn.errors import JobError
from horn.readable import readable

_TEXT = 60  # characters of a statement in the table


@dataclass(frozen=True)
class ProfiledStatement:
    """A statement of the program, as ``horn explain`` shows it, and the seconds of all steps in it.

    layer : or "". phase : "forward", "loss", "backward" or "update". place : the user's line.
    """

    layer: str
    phase: str
    text: str
    place: str
    seconds: float


@dataclass(frozen=True, repr=False)
class Profile:
    """The profile of a run, as in ``run.profile``. statements : in the order of a step. steps :
    their number; seconds : the time in them; the part between statements is Python's.
    """

    statements: list[ProfiledStatement]
    steps: int
    seconds: float

    @property
    def between_s(self) -> float:
        return max(self.seconds - sum(row.seconds for row in self.statements), 0.0)

    def rows(self) -> list[list[str]]:
        """Cells for a table, the longest first: share, time per step, layer, phase, line, text."""
        found = sorted(self.statements, key=lambda row: -row.seconds)
        cells = [
            [*self._share(row.seconds), row.layer or "–", row.phase, row.place or "–",
             row.text if len(row.text) <= _TEXT else f"{row.text[: _TEXT - 4]} ..."]
            for row in found
        ]  # fmt: skip
        return [*cells, [*self._share(self.between_s), "–", "–", "–", "between statements"]]

    def _share(self, seconds: float) -> tuple[str, str]:
        each = 1e6 * seconds / max(self.steps, 1)
        return f"{100 * seconds / max(self.seconds, 1e-12):.1f} %", f"{each:.1f}"

    def __repr__(self) -> str:
        head = ["share", "us/step", "layer", "phase", "line", "statement"]
        table = [head, *self.rows()]
        widths = [max(len(row[k]) for row in table) for k in range(5)]
        lines = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[5]])
            for row in table
        ]
        return "\n".join(lines)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a mean step as a Chrome trace, for chrome://tracing: a row per phase."""
        phases = ["forward", "loss", "backward", "update"]
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": k, "args": {"name": phase}}
            for k, phase in enumerate(phases)
        ]
        at = 0.0
        for row in self.statements:
            duration = 1e6 * row.seconds / max(self.steps, 1)
            args = {"layer": row.layer, "line": row.place, "statement": row.text,
                    "seconds": row.seconds, "steps": self.steps}  # fmt: skip
            events.append({
                "ph": "X", "pid": 0, "tid": phases.index(row.phase), "cat": row.phase,
                "name": row.text[:_TEXT], "ts": round(at, 3), "dur": round(duration, 3),
                "args": args,
            })  # fmt: skip
            at += duration
        whole = {
            "traceEvents": events,
            "displayTimeUnit": "ns",
            "otherData": {"steps": self.steps, "seconds": self.seconds,
                          "between_statements_s": self.between_s},
        }  # fmt: skip
        with atomic_write(path) as file:
            file.write(json.dumps(whole).encode())


class Profiler:
    """Times the steps of an engine of the backend "kernels", once it is bound.

    Raises
    ------
    JobError : of another backend.
    """

    def __init__(self, engine: Engine) -> None:
        runner: Any = getattr(engine, "training_runner", None)
        if not hasattr(runner, "made"):
            raise JobError('profile is of the backend "kernels", whose statements have times')
        self.runner, self.steps, self.seconds = runner, 0, 0.0
        self._step = engine.step
        engine.step = self.step  # type: ignore[method-assign]
        self.runner.tape.clock(True)

    def step(self, rows: Array, *, iteration: int, first_sample: int) -> float:
        begun = perf_counter()
        loss = self._step(rows, iteration=iteration, first_sample=first_sample)
        self.seconds += perf_counter() - begun
        self.steps += 1
        return loss

    def profile(self) -> Profile:
        times = self.runner.tape.times()
        rows = []
        for row, (first, last) in zip(readable(self.runner.program), self.runner.made, strict=True):
            seconds = sum(times[first:last])
            rows.append(ProfiledStatement(row.layer, row.phase, row.text, row.place, seconds))
        return Profile(rows, self.steps, self.seconds)
