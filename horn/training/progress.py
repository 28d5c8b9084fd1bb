"""Progress of a training: nothing, or a line per epoch. The terminal's bar is in horn/cli."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from horn.aggregates import named
from horn.errors import FULL, CallbackError

if TYPE_CHECKING:
    from horn.job import Job


class Progress:
    """Progress that is not shown. ``step`` is called at most once per ``interval_s`` seconds."""

    interval_s = 0.1

    def begin(self, job: Job) -> None:
        """Called just before the first step."""

    def step(self, epoch: int, iteration: int, loss: float, samples_per_s: float) -> None:
        """Called inside an epoch: its updates and mean loss so far."""

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Called after an epoch, with its row of the history."""

    def added(self, epoch: int, columns: Mapping[str, Any]) -> None:
        """Called after the callbacks of an epoch, with the columns that they added to its row."""

    def note(self, text: str) -> None:
        """Called with an event in words, such as a restart."""

    def end(self) -> None:
        """Called after the last step, also when training fails."""


class FunctionProgress(Progress):
    """Calls a function with each epoch's row of the history, until it raises: then that is its
    ``failure``, and ``stop`` is called.
    """

    def __init__(self, function: Callable[[Mapping[str, Any]], Any]) -> None:
        self.function = function
        self.failure: CallbackError | None = None
        self.stop: Callable[[], Any] = lambda: None

    def epoch(self, row: Mapping[str, Any]) -> None:
        if self.failure is not None:
            return
        try:
            self.function(row)
        except Exception as error:
            name = getattr(self.function, "__name__", type(self.function).__name__)
            from horn.callbacks import failed  # it knows NumPy, which to show needs not

            self.failure = failed(name, "progress", f"of epoch {row['epoch']}", error)
            self.stop()


class LineProgress(Progress):
    """One line per epoch, on stderr by default, after a line that says what ``acc`` is of."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream
        self.n_epochs: int | None = None

    def begin(self, job: Job) -> None:
        self.n_epochs = -(-job.n_iterations // job.iterations_per_epoch)
        if job.acc_is_of:
            self.note(job.acc_is_of)

    def epoch(self, row: Mapping[str, Any]) -> None:
        self.note(line(row, self.n_epochs))

    def note(self, text: str) -> None:
        try:
            print(text, file=self.stream or sys.stderr, flush=True)
        except OSError as error:  # costs the line, and not what was learned
            if error.errno not in FULL:
                raise


def line(row: Mapping[str, Any], n_epochs: int | None = None) -> str:
    """A row of the history in words: Epoch 3/10  loss 0.412  acc 0.889 ..."""
    of = f"/{n_epochs}" if n_epochs else ""
    width = len(str(n_epochs or ""))
    parts = [f"Epoch {row['epoch']:>{width}}{of}"]
    parts += [
        f"{name} {figure(row[name])}"
        for name in ("loss", "acc", "val_loss", "val_acc")
        if row.get(name) is not None
    ]
    parts += [f"{name} {value:#.4g}" for name, value in named(row).items() if value is not None]
    if row.get("group_loss"):
        parts.append(f"by group {_losses(row['group_loss'])}")
    parts.append(f"{count(row['samples_per_s'])} samples/s")
    return "  ".join(parts)


def _losses(losses: Sequence[float]) -> str:
    """Losses in words: 0.412 0.433; of more than four groups the least and the largest."""
    if len(losses) > 4:
        return f"{figure(min(losses))} to {figure(max(losses))}"
    return " ".join(map(figure, losses))


def figure(value: float) -> str:
    """A number in words: 0.0897, 1.84e+30"""
    return format(value, ".4f" if abs(value) < 1e6 else ".3g")


def count(value: float) -> str:
    """A count in words: 950, 4.9k, 1.2M"""
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"
