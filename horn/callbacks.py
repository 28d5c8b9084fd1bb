"""Callbacks: a user's functions that are called while a job trains.

They run in the process that called ``horn.train`` (for a job on a cluster: in its first worker's),
whatever the groups and tasks: so they keep their attributes, can read the whole model, and
write where they were started. Training waits for them at the end of each epoch; for
``on_batch_end`` after each update, where a callback defines it. See docs/notes/0138.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import logging
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar, TypeAlias

from horn.aggregates import COLUMNS
from horn.atomic_write import atomic_write
from horn.errors import (
    CallbackError,
    HornError,
    JobError,
    ModelError,
    described,
    is_finite,
    is_whole,
)
from horn.mistakes import constructed, is_function, shown, teaches
from horn.modelfile import PROGRAMS, check_not_read, data_of
from horn.sources import line_of

# Classes of horn that import this file.
Job: TypeAlias = Any
Model: TypeAlias = Any
History: TypeAlias = Any

logger = logging.getLogger(__name__)

FOLDER = "HORN_FILES"  # the folder of relative paths of a job on a cluster, which are kept
HOOKS = ("on_train_begin", "on_epoch_end", "on_batch_end", "on_train_end")


class TrainingContext:
    """The state of training as a callback sees it, and its requests to it.

    job : the job. epoch : from 1; iteration : updates so far. history : the epochs so far; row :
    that of the epoch just ended, else None. loss : in ``on_batch_end`` that of the update's batch,
    of group 0's samples where groups go on by themselves (None if it had none); else None.
    n_epochs, n_iterations : of the whole job. group, task : those of this process, for a callback
    that runs everywhere; else 0. ``row`` takes columns of a callback's own, which the history then
    has (numbers, texts, lists and dicts of them; arrays become lists); what was measured is not
    changed.
    """

    job: Job
    history: History
    epoch: int
    iteration: int
    row: dict[str, Any] | None
    loss: float | None
    n_iterations: int
    n_epochs: int
    group: int
    task: int
    is_stopping: bool
    is_watching: bool  # in every task: such a callback may not decide
    _model: Callable[[], Model] | None
    _rate: tuple[Callable[[], float], Callable[[float], None]] | None

    def __init__(self, job: Job, history: History) -> None:
        self.tell(
            job=job, history=history, epoch=0, iteration=0, row=None, loss=None, group=0, task=0,
            n_iterations=job.n_iterations,
            n_epochs=-(-job.n_iterations // job.iterations_per_epoch),
            is_stopping=False, is_watching=False, _model=None, _rate=None,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<TrainingContext of epoch {self.epoch}, iteration {self.iteration}>"

    def tell(self, **facts: Any) -> None:
        """Set what a callback reads; horn alone does."""
        vars(self).update(facts)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise JobError: a callback sets the learning rate alone."""
        if name == "learning_rate":
            super().__setattr__(name, value)
            return
        if name == "row" and value is not None and value is self.row:
            return  # context.row |= {...}, which has added columns
        does = "changes nothing"
        if name.startswith("stop") or name == "is_stopping":
            does += "; to end training write  context.stop()"
        elif name == "lr" or difflib.get_close_matches(name, ["learning_rate"], 1, 0.5):
            does += f"; write  context.learning_rate = {value!r}"
        elif name in vars(self) or hasattr(type(self), name):
            does += ": it is what horn tells callbacks"
        else:
            does += "; a callback keeps its own in itself, as self." + name
        raise JobError(f"context.{name} = {shown(value)} {does}")

    @property
    def model(self) -> Model:
        """The model as it is now; a copy, which training no longer changes. In ``on_train_end`` it
        is the later ``run.model``. Raises JobError: in ``on_train_begin`` there is none yet.
        """
        if self.is_watching:
            raise JobError("a task has its share of the model: leave everywhere out to have all")
        if self._model is None:
            raise JobError(
                "there is a model from the first update on, and none in on_train_begin; a new run "
                "begins with context.job.network.initial_parameters(context.job.dtype)"
            )
        return self._model()

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update; may be set, to 0 or more, but not with servers
        (downpour, easgd). The rest of a schedule is scaled alike. All tasks and groups have it
        before the same update.
        """
        assert self._rate is not None
        return self._rate[0]()

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        assert self._rate is not None
        self._rate[1](value)

    def stop(self) -> None:
        """End training after this update, from ``on_train_begin`` after the first; its epoch ends
        with it, and is measured. With groups that do not share every batch (averaging, downpour,
        easgd), after the epoch.
        """
        if self.is_watching:
            raise JobError("a callback that runs everywhere only looks; another may end training")
        self.tell(is_stopping=True)


class Callback:
    """The base of callbacks, called while a job trains: define the methods that you need.

    remembers : the attributes that a checkpoint keeps (numbers, texts, lists and dicts of them), so
    that a resumed run goes on with them. changes_rate : it sets the learning rate. everywhere : it
    runs in every task of every group instead (``context.group``, ``context.task``), as a copy made
    from its source and its plain attributes; it observes its process, and can neither read the
    model nor decide.

    An exception ends training with CallbackError, whose ``run`` is the run so far.
    """

    remembers: ClassVar[tuple[str, ...]] = ()
    changes_rate: ClassVar[bool] = False
    everywhere: ClassVar[bool] = False

    def __repr__(self) -> str:
        return constructed(self)

    def check(self, job: Job) -> None:
        """Called before anything starts. Raises ModelError for a job that it cannot be used
        with.
        """

    def on_train_begin(self, context: TrainingContext) -> None:
        """Called before the first update, also of a resumed run."""

    def on_epoch_end(self, context: TrainingContext) -> None:
        """Called after each epoch, when it has been measured: ``context.row``."""

    def on_batch_end(self, context: TrainingContext) -> None:
        """Called after each update: ``context.loss``. Costs nothing where nobody defines it."""

    def on_train_end(self, context: TrainingContext) -> None:
        """Called after the last update, also when training was stopped; not when it failed."""

    def _release(self) -> None:
        """Close what is open: of horn's own callbacks, after every run, also one that failed."""


class EpochFunction(Callback):
    """A plain function of the context, called after each epoch."""

    def __init__(self, function: Callable[[TrainingContext], Any]) -> None:
        self.function = function

    def on_epoch_end(self, context: TrainingContext) -> None:
        self.function(context)


def as_callbacks(given: Any) -> tuple[Callback, ...]:
    """The callbacks of a job. Raises ModelError."""
    if isinstance(given, Callback) or callable(given) or not isinstance(given, (list, tuple)):
        raise ModelError(f"Job: callbacks is a list, as in callbacks=[...]; got {given!r}")
    return tuple(map(_as_callback, given))


def _as_callback(one: Any) -> Callback:
    if isinstance(one, Callback):
        for hook in HOOKS:
            _check_hook(one, hook)
        for name in dir(one):
            if name.startswith("on_") and name not in HOOKS and callable(getattr(one, name)):
                raise ModelError(
                    f"{name_of(one)}.{name} is called by nobody; the hooks are {', '.join(HOOKS)}"
                )
        return one
    if isinstance(one, type) and issubclass(one, Callback):
        raise ModelError(f"Job: callbacks has the class {one.__name__}; write {one.__name__}()")
    if type(one).__name__ == "EarlyStopping":
        raise ModelError(
            "Job: callbacks has a horn.EarlyStopping, which is no callback; write "
            "Job(..., early_stopping=horn.EarlyStopping(patience=3))"
        )
    if isinstance(one, type) or not is_function(one) or any(hasattr(one, name) for name in HOOKS):
        raise ModelError(
            f"Job: callbacks has {one!r}; a callback is a horn.Callback (on_epoch_end(self, "
            f"context), ...), or a function of the context that is called after each epoch"
        )
    made = EpochFunction(one)
    _check_parameters(one, name_of(made), f"def {name_of(made)}(context):")
    return made


def _check_hook(callback: Callback, hook: str) -> None:
    """Raise ModelError for a method that does not take one context, as those of Keras."""
    called = f"{name_of(callback)}.{hook}"
    _check_parameters(getattr(callback, hook), called, f"def {hook}(self, context):", ("self",))


def _check_parameters(
    function: Callable[..., Any], called: str, write: str, before: tuple[str, ...] = ()
) -> None:
    """Raise ModelError for what does not take one context. before : parameters to show first."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # written in C
        return
    names = [p.name for p in parameters]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in kinds and p.default is p.empty]
    takes_one = any(p.kind in (*kinds, inspect.Parameter.VAR_POSITIONAL) for p in parameters)
    if "logs" in names or len(needed) > 1 or not takes_one:
        raise ModelError(
            f"{called}({', '.join([*before, *names])}): horn passes one context; write  {write}  "
            "and use context.epoch, context.row, context.model"
        )


def name_of(callback: Callback) -> str:
    """The name of a callback in messages."""
    if isinstance(callback, EpochFunction):
        return str(getattr(callback.function, "__name__", type(callback.function).__name__))
    return type(callback).__name__


def failed(name: str, hook: str, when: str, error: Exception) -> CallbackError:
    """The failure of a run for what a callback raised."""
    said = str(error) if isinstance(error, HornError) else described(error)
    line = line_of(error, called=True)  # also where horn refused a request of the callback
    failure = CallbackError(name, hook, when, said, line)
    failure.__cause__ = error
    return failure


def release(callbacks: Iterable[Any]) -> None:
    """Close what callbacks have open. What fails there is logged: the run has its own error."""
    for one in callbacks:
        try:
            one._release()
        except Exception as error:
            logger.warning("callback %s is not closed: %s", name_of(one), described(error))


def defines(callback: Callback, hook: str) -> bool:
    return getattr(type(callback), hook) is not getattr(Callback, hook)


def place(path: str | os.PathLike[str]) -> Path:
    """The path where a callback writes: a relative path in a job on a cluster is kept with the
    job. Makes the folder.
    """
    found = Path(os.environ.get(FOLDER, "")) / path
    found.parent.mkdir(parents=True, exist_ok=True)
    return found


def _check_path(name: str, path: object, example: str) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise ModelError(f"{name}: a path is expected, as in {name}({example!r}), got {path!r:.80}")


def may_add_columns(callbacks: Iterable[Any]) -> bool:
    """Whether one of them is a user's that sees rows of the history, and may add columns."""
    return any(
        isinstance(one, EpochFunction)
        or (not type(one).__module__.startswith("horn.") and defines(one, "on_epoch_end"))
        for one in callbacks
    )


def _check_columns(name: str, does: str, columns: Iterable[str], job: Job) -> None:
    """Raise ModelError for columns that the history of a job cannot have."""
    for column in columns:
        may_come = column not in COLUMNS and may_add_columns(job.callbacks)
        if column not in job.columns and not may_come:
            raise ModelError(
                f"{name} {does} {column!r}, which this job does not measure; its columns are "
                f"{', '.join(job.columns)}"
            )


class Watching(Callback):
    """A callback that watches a column of the history. mode : "min" or "max" is better; by default
    what the job says (``Job.better``).
    """

    remembers: ClassVar[tuple[str, ...]] = ("best",)

    def __init__(self, monitor: str, mode: str | None, min_delta: float) -> None:
        name = type(self).__name__
        if mode not in (None, "min", "max"):
            raise ModelError(f'{name}: mode must be "min" or "max", got {mode!r}')
        if not is_finite(min_delta):
            raise ModelError(f"{name}: min_delta must be a finite number, got {min_delta!r}")
        self.monitor, self.mode, self.min_delta = monitor, mode, min_delta
        self.best: float | None = None

    @property
    def watched(self) -> str:
        """The column that is looked at, "" for none."""
        return self.monitor

    def check(self, job: Job) -> None:
        if self.monitor.startswith("val_") and job.validation is None:
            raise ModelError(
                f"{type(self).__name__} watches {self.monitor}, but the job has no validation "
                f"data; add validation=0.1 to hold out a tenth"
            )
        _check_columns(type(self).__name__, "watches", [self.monitor], job)

    def on_train_begin(self, context: TrainingContext) -> None:
        if not context.history:  # another run has its own best; a resumed run keeps it
            self.best = None

    def has_improved(self, context: TrainingContext) -> bool:
        """Whether the last row is the best so far; then that is ``best``. An undefined value is
        none.
        """
        row = context.row
        assert row is not None
        if self.monitor not in row:
            there = ", ".join(name for name, found in row.items() if isinstance(found, float))
            raise ModelError(
                f"{type(self).__name__} watches {self.monitor!r}, which this job does not measure; "
                f"it measures {there}"
            )
        value = row[self.monitor]
        if value is None or math.isnan(value):  # as of a metric that this epoch leaves undefined
            return False
        sign = 1.0 if (self.mode or context.job.better(self.monitor)) == "min" else -1.0
        if self.best is None or sign * value < sign * self.best - self.min_delta:
            self.best = float(value)
            return True
        return False


@teaches
class ModelCheckpoint(Watching):
    """Saves the model after an epoch: the best so far, or every one.

    path : the file; ``{epoch}`` and the columns of the history are filled in, as in
    "model-{epoch:03}-{val_loss:.3f}.horn". monitor, mode : the column that selects the best.
    save_best_only : else each epoch's is saved.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        monitor: str = "val_loss",
        mode: str | None = None,
        save_best_only: bool = True,
    ) -> None:
        super().__init__(monitor, mode, 0.0)
        _check_path("ModelCheckpoint", path, "model-{epoch}.horn")
        self.path, self.save_best_only = path, save_best_only

    @property
    def watched(self) -> str:
        return self.monitor if self.save_best_only else ""

    def check(self, job: Job) -> None:
        if self.watched:
            super().check(job)
        path = os.fspath(self.path)
        try:
            fields = [field for _, field, _, _ in Formatter().parse(path) if field is not None]
        except ValueError as error:
            wanted = "a column in braces, as in m{epoch:03}.horn"
            raise ModelError(f"ModelCheckpoint: {path}: {error}; {wanted}") from None
        named = [field.partition(".")[0].partition("[")[0] for field in fields]
        _check_columns("ModelCheckpoint", f"names {path} by", named, job)

    def on_epoch_end(self, context: TrainingContext) -> None:
        if self.save_best_only and not self.has_improved(context):
            return
        assert context.row is not None
        try:
            name = os.fspath(self.path).format(**context.row)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            there = ", ".join(context.row)
            raise ModelError(
                f"ModelCheckpoint: {self.path}: {error!r}; it may name {there}"
            ) from None
        context.model.save(place(name))


@teaches
class ReduceOnPlateau(Watching):
    """Multiplies the learning rate by ``factor`` when ``monitor`` has not improved by more than
    ``min_delta`` for ``patience`` epochs; not below ``least``. All tasks and groups get the same
    rate, at the end of the same epoch.
    """

    remembers = ("best", "waited")
    changes_rate = True

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 5,
        mode: str | None = None,
        min_delta: float = 1e-4,
        least: float = 0.0,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        if not is_finite(factor) or not 0.0 < factor < 1.0:
            raise ModelError(f"ReduceOnPlateau: factor must be between 0 and 1, got {factor!r}")
        if not is_whole(patience, 1):
            raise ModelError(
                "ReduceOnPlateau: patience must be a whole number of epochs from 1, got "
                f"{patience!r}"
            )
        if not is_finite(least, 0.0):
            raise ModelError(
                f"ReduceOnPlateau: least is a learning rate, a finite number from 0; got {least!r}"
            )
        self.factor, self.patience, self.least = factor, patience, least
        self.waited = 0

    def on_train_begin(self, context: TrainingContext) -> None:
        super().on_train_begin(context)
        if not context.history:
            self.waited = 0

    def on_epoch_end(self, context: TrainingContext) -> None:
        self.waited = 0 if self.has_improved(context) else self.waited + 1
        rate = context.learning_rate
        if self.waited >= self.patience and rate > self.least:
            context.learning_rate = max(rate * self.factor, self.least)
            self.waited = 0


@teaches
class CSVLogger(Callback):
    """Writes the history to a CSV file after each epoch: a header, and a line per epoch. Values
    that were not measured are empty. A resumed run writes the earlier epochs as well.
    """

    def __init__(self, path: str | os.PathLike[str], separator: str = ",") -> None:
        if not isinstance(separator, str) or len(separator) != 1 or separator in '"\r\n':
            raise ModelError(
                'CSVLogger: separator is one character between values, as ";"; got '
                f"{separator!r:.80}"
            )
        _check_path("CSVLogger", path, "history.csv")
        self.path, self.separator = path, separator

    def check(self, job: Job) -> None:
        path = Path(self.path)
        if path.suffix in PROGRAMS and path.exists():
            raise ModelError(
                f"CSVLogger: {path}: is a program, and would be replaced; name another file"
            )
        check_not_read(path, data_of(job))

    def on_epoch_end(self, context: TrainingContext) -> None:
        import csv

        columns = [c for c in context.history.columns if c not in ("group_loss", "groups")]
        # Not synced: it is written again after the next epoch, which may take a millisecond.
        with (
            atomic_write(place(self.path), is_synced=False) as file,
            open(file.fileno(), "w", encoding="utf-8", newline="", closefd=False) as text,
        ):
            writer = csv.writer(text, delimiter=self.separator)
            writer.writerow(columns)
            writer.writerows([row.get(name) for name in columns] for row in context.history)


@teaches
class TensorBoard(Callback):
    """Writes the columns of the history for TensorBoard, a scalar per epoch, and, with
    ``histograms``, the distribution of every learned array. Needs the extra ``tensorboard``; look
    with ``tensorboard --logdir FOLDER``.
    """

    def __init__(self, folder: str | os.PathLike[str], histograms: bool = False) -> None:
        _check_path("TensorBoard", folder, "runs")
        self.folder, self.histograms = folder, histograms
        self._writer: Any = None

    def check(self, job: Job) -> None:
        if importlib.util.find_spec("tensorboardX") is None:
            raise ModelError(
                "horn.TensorBoard needs tensorboardX; pip install 'horn-bsp[tensorboard]'"
            )

    def on_train_begin(self, context: TrainingContext) -> None:
        from tensorboardX import SummaryWriter  # an extra

        done = len(context.history)  # rows of an earlier run beyond the checkpoint are dropped
        self._writer = SummaryWriter(str(place(self.folder)), purge_step=done + 1 if done else None)

    def on_epoch_end(self, context: TrainingContext) -> None:
        assert context.row is not None
        for name, value in context.row.items():
            is_number = isinstance(value, (int, float)) and math.isfinite(value)
            if is_number and name not in ("epoch", "groups"):
                self._writer.add_scalar(name, value, context.epoch)
        if self.histograms:
            for name, array in context.model.parameters.items():
                self._writer.add_histogram(name, array, context.epoch)
        self._writer.flush()

    def on_train_end(self, context: TrainingContext) -> None:
        self._release()

    def _release(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
