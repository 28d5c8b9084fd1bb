"""The callbacks of a run: called in one place, with decisions that hold for all tasks alike.

``LocalControl`` in one process, or the parent of task processes, reports updates and epochs to
them. Each task gets their decision before it goes on: whether training ends, the learning rate, and
the callbacks' state, which is in the cursor of its next checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import Any

from horn import defaults
from horn.aggregates import FACTS, taken
from horn.callbacks import Callback, TrainingContext, defines, failed, name_of
from horn.errors import CallbackError, HornError, JobError, ModelError
from horn.job import Job
from horn.model import Array, Model, facts_of, model_of
from horn.optimizers import with_settings
from horn.schedules import SettableRate
from horn.strategies import Strategy, Topology
from horn.training.cursor import plain, plain_column
from horn.training.deadline import Interrupted
from horn.training.history import History
from horn.training.loop import TrainingLoop
from horn.training.loop_control import LoopControl
from horn.training.progress import Progress
from horn.training.steady_rate import SteadyRate

Arrays = tuple[Mapping[str, Array], Mapping[str, Array]]  # parameters, states


def settable(job: Job) -> tuple[Job, SettableRate]:
    """A copy of the job without callbacks whose learning rate can be set, and that rate."""
    rate = SettableRate(job.optimizer.learning_rate)
    return job.with_settings(
        optimizer=with_settings(job.optimizer, learning_rate=rate), callbacks=()
    ), rate


class Hooks:
    """The callbacks of one run.

    why_fixed : why the learning rate cannot be set, if it cannot. arrays : gives those of the
    present model. stop : whether training is to end. is_brief : whether callbacks ended it before
    the first update, after which it then ends. failure : the error that a callback raised;
    then stop is True.
    """

    def __init__(self, job: Job, why_fixed: str = "", backend: str = defaults.BACKEND) -> None:
        self.job, self.why_fixed, self.backend = job, why_fixed, backend
        self.callbacks: tuple[Callback, ...] = job.callbacks  # type: ignore[assignment]
        self.with_rate, self.rate = settable(job)
        self.context = context = TrainingContext(job, History())
        context.tell(
            _rate=(lambda: self.with_rate.optimizer.rate(context.iteration), self._set_rate)
        )
        self.arrays: Callable[[], Arrays] | None = None
        self.failure: CallbackError | None = None
        self.is_brief = False
        self._begun = perf_counter()
        self._epoch = 0  # the last one that callbacks were called for
        self._model: Model | None = None
        self._lost: HornError | None = None
        self._first = self.memory()

    @property
    def is_by_batch(self) -> bool:
        """Whether callbacks are asked after every update: one is called then, or training ends."""
        return self.is_brief or any(defines(each, "on_batch_end") for each in self.callbacks)

    @property
    def stop(self) -> bool:
        return self.context.is_stopping

    def memory(self) -> dict[str, Any]:
        """The state of the callbacks, from which they can resume: plain values."""
        kept = []
        for callback in self.callbacks:
            values = {name: getattr(callback, name, None) for name in callback.remembers}
            try:
                kept.append([name_of(callback), json.loads(json.dumps(values, default=plain))])
            except (TypeError, ValueError) as error:
                what = f"a checkpoint keeps numbers, texts, lists and dicts ({error})"
                self._failed(callback, "remembers", ModelError(f"{values!r:.200}: {what}"))
                kept.append([name_of(callback), {}])
        return {"rate": self.rate.number, "callbacks": kept}

    def leave_to_tasks(self) -> None:
        """Drop the callbacks that run everywhere: they run in task processes."""
        self.callbacks = tuple(one for one in self.callbacks if not one.everywhere)
        self._first = self.memory()

    def recall(self, memory: Mapping[str, Any], history: History) -> None:
        """Go back to a ``memory``, or to the beginning if it is empty."""
        memory = memory or self._first
        self.rate.number = memory.get("rate")
        kept = memory.get("callbacks", [])
        for callback, (name, values) in zip(self.callbacks, kept, strict=False):
            if name == name_of(callback):  # else the job was changed knowingly
                for key in callback.remembers:
                    if key in values:
                        setattr(callback, key, values[key])
        self._epoch = len(history)
        is_stopping = self.is_brief or bool(memory.get("stop", False))
        self.context.tell(history=history, is_stopping=is_stopping)

    def begin(self, history: History, iteration: int) -> None:
        """Call the callbacks before the first update. Raises CallbackError: nothing is lost yet."""
        self._epoch = len(history)
        self.context.tell(history=history, epoch=len(history), iteration=iteration)
        is_due = self.stop  # at the end of the epoch, of an earlier run
        self._call("on_train_begin")
        self.is_brief = self.stop and not is_due
        if self.failure is not None:
            raise self.failure

    def batch(self, epoch: int, iteration: int, loss: float | None) -> None:
        """Call the callbacks after an update; ``iteration`` counts the updates so far."""
        loss = None if loss is None else float(loss)
        self.context.tell(epoch=epoch, iteration=iteration, loss=loss)
        self._call("on_batch_end")
        self.context.tell(loss=None)

    def epoch(self, row: dict[str, Any], history: History, watcher: Progress) -> None:
        """Call the callbacks after an epoch, unless they were called for it before, and tell the
        ``watcher``, which has seen the row, what columns they added.
        """
        if row["epoch"] <= self._epoch:
            return
        self._epoch, measured = row["epoch"], {*row}
        self.context.tell(history=history, epoch=row["epoch"], iteration=row["iteration"], row=row)
        try:
            self._call("on_epoch_end")
        finally:  # also what was added before one was interrupted
            if columns := {name: row[name] for name in row if name not in measured}:
                watcher.added(row["epoch"], columns)
        self.context.tell(row=None)

    def end(self, model: Model, history: History) -> None:
        """Call the callbacks after training."""
        self._model = model
        self.context.tell(history=history, _model=lambda: model)
        self._call("on_train_end", is_kept=True)

    def call(self, hook: str, loop: TrainingLoop, loss: float | None = None) -> None:
        """Call the callbacks of one hook, in a task. Raises CallbackError."""
        row = loop.history[-1] if hook == "on_epoch_end" else None
        self.context.tell(
            history=loop.history, epoch=loop.epoch, iteration=loop.iteration, loss=loss, row=row
        )
        self._call(hook)
        if self.failure is not None:
            raise self.failure

    def _call(self, hook: str, is_kept: bool = False) -> None:
        context = self.context
        if not is_kept:
            self._model = None
            context.tell(_model=None if hook == "on_train_begin" else self._made)
        steady_rate = SteadyRate(self.job.optimizer)
        if context.iteration < context.n_iterations:
            with suppress(HornError):  # the next update tells it
                steady_rate.note(context.iteration)
        measured = dict(context.row or {})
        for callback in self.callbacks:
            if self.failure is not None or not defines(callback, hook):
                continue
            try:
                try:
                    getattr(callback, hook)(context)
                finally:  # also what it wrote before it failed is of the run so far
                    wrong = _settled(measured, context.row)
                if wrong:
                    raise JobError(wrong)
                steady_rate.check()
            except Interrupted as late:
                late.where = f"in callback {name_of(callback)}, {hook}"
                if context._model is not None and self._lost is None:
                    with suppress(HornError):  # tasks that do not answer either
                        late.iteration, late.model = context.iteration, self._made()
                raise
            except Exception as error:
                if self._lost is None:
                    self._failed(callback, hook, error)
            if self._lost is not None:  # tasks were lost while a callback waited for the model
                lost, self._lost = self._lost, None
                raise lost

    def _failed(self, callback: Callback, hook: str, error: Exception) -> None:
        context = self.context
        when = {
            "on_train_begin": "before the first update",
            "on_batch_end": f"after iteration {context.iteration} (epoch {context.epoch})",
            "on_epoch_end": f"of epoch {context.epoch}",
        }.get(hook, f"after iteration {context.iteration}")
        self.failure = failed(name_of(callback), hook, when, error)
        context.tell(is_stopping=True)

    def _made(self) -> Model:
        """Make the present model, once for each hook."""
        if self._model is None:
            assert self.arrays is not None
            try:
                parameters, states = self.arrays()
            except HornError as error:
                self._lost = error
                raise
            job, context = self.job, self.context
            facts = facts_of(
                job, self.backend, iteration=context.iteration, n_epochs=context.epoch,
                seconds=perf_counter() - self._begun,
            )  # fmt: skip
            self._model = model_of(job, parameters, states, backend=self.backend, facts=facts)
        return self._model

    def _set_rate(self, value: float) -> None:
        if self.why_fixed:
            raise JobError(f"the learning rate cannot be set: {self.why_fixed}")
        self.rate.set(value, self.context.iteration)


def _settled(measured: Mapping[str, Any], row: dict[str, Any] | None) -> str:
    """Give a row back what was measured, and make the columns of callbacks plain, without those
    that no checkpoint can keep. What a callback did wrong there, in words; else "".
    """
    if row is None:
        return ""
    wrong = ""
    for name in [name for name in row if name in FACTS]:
        row.pop(name)
        wrong = f"context.row: {taken(name)}"
    for name in measured:
        if row.get(name) is not measured[name]:
            wrong = (
                f"context.row[{name!r}] is what was measured, and stays; a column of your own has "
                f'another name, as context.row["my_{name}"]'
            )
    row.update(measured)
    for name in [name for name in row if name not in measured]:
        try:
            row |= plain_column({name: row.pop(name)})
        except JobError as error:
            wrong = (
                f"context.row[{name!r}] {error}. A column of your own has numbers, texts, or lists "
                f"and dicts of them, which checkpoints keep; other things stay in the callback"
            )
    return wrong


def in_task(job: Job, group: int, task: int) -> Hooks | None:
    """Make the callbacks that run everywhere, for one of the tasks; None without any."""
    if not job.callbacks:
        return None
    hooks = Hooks(job, "a callback that runs everywhere only looks")
    hooks.context.tell(group=group, task=task, is_watching=True)
    return hooks


class LocalControl(LoopControl):
    """The control of a loop in the process that called ``horn.train``. hooks : the run's callbacks.
    boundary : as ``at_boundary``: saves what is to be saved.
    """

    history: History
    watcher: Progress

    def __init__(self, hooks: Hooks | None, boundary: Callable[[], bool]) -> None:
        self.hooks, self._boundary = hooks, boundary
        self._is_by_batch = False

    def attach(self, loop: TrainingLoop) -> None:
        """Attach the callbacks to the loop, which has its history already. The loop knows this
        control: kept here it would be in a circle, and the data with it.
        """
        self.history, self.watcher = loop.history, loop.watcher
        hooks, engine = self.hooks, loop.engine
        if hooks is not None:
            if loop.recalled:
                hooks.recall(loop.recalled, loop.history)
            hooks.arrays = lambda: (engine.parameters(), engine.states())

    def begin(self, iteration: int) -> None:
        """Call the callbacks before the first update."""
        if self.hooks is not None:
            self.hooks.begin(self.history, iteration)
            self._is_by_batch = self.hooks.is_by_batch

    def after_update(self, epoch: int, iteration: int, loss: float | None) -> bool:
        if self.hooks is None or not self._is_by_batch:
            return False
        self.hooks.batch(epoch, iteration, loss)
        return self.hooks.stop

    def at_boundary(self) -> bool:
        return self._boundary()

    def after_epoch(self, epoch: int, stop: bool) -> bool:
        if self.hooks is None:
            return stop
        self.hooks.epoch(self.history[-1], self.history, self.watcher)
        return stop or self.hooks.stop

    def memory(self) -> dict[str, Any]:
        return {} if self.hooks is None else self.hooks.memory()


def hooks_of(job: Job, strategy: Strategy, topology: Topology, backend: str) -> Hooks | None:
    """Make the callbacks of a run; None without any. Raises JobError: one sets the learning rate,
    which this strategy's servers have.
    """
    if not job.callbacks:
        return None
    why_fixed = ""
    if topology.n_servers:
        why_fixed = (
            f"strategy {strategy.name} has servers, and groups that do not wait for each other; "
            f"give the rate a schedule, such as horn.Step(0.1, 1000)"
        )
    found = Hooks(job, why_fixed, backend)
    for callback in found.callbacks:
        if callback.changes_rate and why_fixed:
            raise JobError(f"{name_of(callback)} sets the learning rate, but {why_fixed}")
    if found.failure is not None:
        raise found.failure
    return found
