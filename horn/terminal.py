"""Tables, a progress bar, ages and times as commands have them. rich is imported when it draws."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from horn import defaults
from horn.errors import JobError, set_once
from horn.process_stat import START_TICKS, process_stat
from horn.training.progress import LineProgress, Progress, count, figure, line

if TYPE_CHECKING:
    from horn.job import Job

UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def say(text: str = "") -> None:
    """Print a line for the user, on stderr."""
    click.echo(text, err=True)


def say_next(model: object) -> None:
    """Print the commands for a model's file, as they are typed: quoted where its name has a space,
    and with ./ where it looks like an option.
    """
    import shlex  # not needed by horn --help

    name = str(model)
    path = shlex.quote(f"./{name}" if name.startswith("-") else name)
    say(f"Next:  horn show {path}   horn evaluate {path} DATA   horn predict {path} DATA")


@contextlib.contextmanager
def stdout_of_user(as_json: bool) -> Iterator[None]:
    """Where a user's code runs: with ``as_json`` what it prints goes to stderr, since stdout is one
    JSON object.
    """
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        yield


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout; NaN and infinity as null."""
    click.echo(json.dumps(plain(value)))


def plain(value: Any) -> Any:
    """Convert a value for JSON: NaN and infinity are null, arrays are lists."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, err: bool) -> None:
    """Print columns of text; columns of numbers are aligned to the right. Where a terminal is too
    narrow, cells go on in the next line; no word or number is cut: rather it takes more than that.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # the cells are no markup: a name may be "a[/b]"

    columns = [printable(name) for name in columns]
    rows = [[printable(cell) for cell in row] for row in rows]
    stream = sys.stderr if err else sys.stdout
    # A pipe has no width: there a row is one line, whatever its length.
    console = Console(file=stream, width=None if stream.isatty() else 1000, highlight=False)
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for k, name in enumerate(columns):
        cells = [row[k] for row in rows]
        numbers = all(re.fullmatch(r"[-–\d,.]*( \w?B)?", cell) for cell in cells)
        numbers = numbers and any(cell[-1:].isdigit() for cell in cells)
        words = cells if numbers else [word for cell in cells for word in cell.split()]
        shown.add_column(
            Text(name),
            justify="right" if numbers else "left",
            min_width=max(map(cell_len, [*words, *name.split()]), default=0),
        )
    for row in rows:
        shown.add_row(*map(Text, row))
    least = sum(2 + (column.min_width or 0) for column in shown.columns)
    console.width = max(console.width, least)
    if stream.isatty():
        console.print(shown)
        return
    with console.capture() as captured:
        console.print(shown)
    for text in captured.get().splitlines():
        click.echo(text.rstrip(), err=err)


def printable(text: str) -> str:
    """The text with what would command a terminal, as ESC, as it is written in Python."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def age(seconds: float) -> str:
    """A duration in words: 0:00:41, 3:12:00, 2 d 3:12:00."""
    whole = int(seconds)
    days, rest = divmod(whole, 86_400)
    text = f"{rest // 3600}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days} d {text}" if days else text


def number(value: Any, form: str = ".4f") -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    return format(value, form)


def checkpoint_every(text: str | None) -> dict[str, Any]:
    """The settings of ``train`` for --checkpoint-every 100 or 30s. Raises JobError."""
    if text is None:
        return {}
    if not text.isdecimal():
        return {"checkpoint_seconds": duration(text, "--checkpoint-every", "100, 30s or 10m")}
    if not int(text):
        raise JobError("--checkpoint-every 0: write how many iterations, from 1, or a time")
    return {"checkpoint_every": int(text)}


def duration(text: str, option: str, wanted: str = "90s, 5m or 2h") -> float:
    """Parse 90, 90s, 5m or 2h, as an option has it, to seconds, LONGEST_S at most. Raises
    JobError.
    """
    found = re.fullmatch(r"\s*([\d.]+)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in UNITS_S or found[1].count(".") > 1 or found[1] == ".":
        raise JobError(f"{option} {text!r} is no length of time; write {wanted}")
    seconds = float(found[1]) * UNITS_S[found[2]]
    if seconds > defaults.LONGEST_S:
        raise JobError(f"{option} {text!r} is longer than 30 years; leave it out, or write less")
    return seconds


def pins(texts: Sequence[str]) -> dict[str, str]:
    """Parse LAYER=WHERE by layer; the network's check comes later. Raises JobError."""
    found: dict[str, str] = {}
    for text in texts:
        layer, equals, where = text.partition("=")
        if not (layer and equals and where):
            raise JobError(
                f"--pin {text}: write LAYER=receiver, sender, replicated, channels or "
                "input_channels"
            )
        set_once(found, layer, where, f"--pin {layer}")
    return found


def progress(quiet: bool) -> Progress:
    """The progress display of a training."""
    if quiet:
        return Progress()
    return ProgressBar() if sys.stderr.isatty() else LineProgress()


def metrics(found: Mapping[str, float]) -> str:
    """Metrics in words: loss 0.0897  acc 0.9722."""
    return "  ".join(f"{name} {figure(value)}" for name, value in found.items())


class ProgressBar(Progress):
    """A progress bar within the epoch, and a line above it for each finished epoch."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self.console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self.rich = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        )
        self.n_epochs = self.per_epoch = 0

    def begin(self, job: Job) -> None:
        self.per_epoch = job.iterations_per_epoch
        self.n_epochs = -(-job.n_iterations // self.per_epoch)
        total = min(self.per_epoch, job.n_iterations)
        self.task = self.rich.add_task(self._name(1), total=total, words="")
        self.rich.start()
        if job.acc_is_of:
            self.note(job.acc_is_of)

    def step(self, epoch: int, iteration: int, loss: float, samples_per_s: float) -> None:
        self.rich.update(
            self.task,
            description=self._name(epoch),
            completed=iteration - (epoch - 1) * self.per_epoch,
            words=f"loss {figure(loss)}  {count(samples_per_s)} samples/s",
        )

    def epoch(self, row: Mapping[str, Any]) -> None:
        self.console.print(line(row, self.n_epochs))
        if row["epoch"] < self.n_epochs:
            self.rich.update(self.task, description=self._name(row["epoch"] + 1), completed=0)
        else:
            done = row["iteration"] - (row["epoch"] - 1) * self.per_epoch
            self.rich.update(self.task, completed=done, total=done)

    def note(self, text: str) -> None:
        self.console.print(text)

    def end(self) -> None:
        self.rich.stop()

    def _name(self, epoch: int) -> str:
        return f"Epoch {min(epoch, self.n_epochs):>{len(str(self.n_epochs))}}/{self.n_epochs}"


def seconds_since_start() -> float:
    """The age of this process in seconds; 0 where the system does not say."""
    try:
        ticks = int(process_stat(os.getpid())[START_TICKS])
        with open("/proc/uptime", "rb") as file:
            uptime_s = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(uptime_s - ticks / os.sysconf("SC_CLK_TCK"), 0.0)


class FirstStepTimer(Progress):
    """A progress display around another: wall and processor time up to the first step."""

    def __init__(self, inner: Progress) -> None:
        self.inner, self.seconds, self.cpu_s = inner, 0.0, 0.0

    def begin(self, job: Job) -> None:
        self.seconds, self.cpu_s = seconds_since_start(), time.process_time()
        self.inner.begin(job)

    def step(self, epoch: int, iteration: int, loss: float, samples_per_s: float) -> None:
        self.inner.step(epoch, iteration, loss, samples_per_s)

    def epoch(self, row: Mapping[str, Any]) -> None:
        self.inner.epoch(row)

    def added(self, epoch: int, columns: Mapping[str, Any]) -> None:
        self.inner.added(epoch, columns)

    def note(self, text: str) -> None:
        self.inner.note(text)

    def end(self) -> None:
        self.inner.end()
