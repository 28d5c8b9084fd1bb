"""Train a job on this machine.

An epoch is a permutation of the samples, by (seed, epoch): each is seen exactly once, and the last
batch of an epoch may be smaller. The loss of a row of the history is the mean over the epoch's
samples, each measured before the update it took part in.
"""

from __future__ import annotations

import math
import platform
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, overload

import numpy as np

from horn import plan
from horn.backends import Engine, Setup, make
from horn.data import Dataset, permutation
from horn.errors import CompileError, Diverged, JobError, Timeout
from horn.job import Job
from horn.model import Array, Description, Model, has_labels, measure
from horn.network import Network
from horn.neuron import has_backward
from horn.progress import Lines, Progress

COLUMNS = (
    "epoch",
    "iteration",
    "loss",
    "acc",
    "val_loss",
    "val_acc",
    "learning_rate",
    "seconds",
    "samples_per_s",
)

# The file that horn is importing a job from, while it does; ``train`` must not run then.
importing: str | None = None


class History:
    """One row per epoch, and columns by name.

    ``history[0]`` and ``history[-1]`` are rows (dicts), ``history["loss"]`` is a column (a list),
    and iteration gives the rows. What was not measured is None. Columns: epoch (from 1; the last
    may be partial), iteration (updates so far), loss (of the training samples, as they were learned
    from), acc (of a sample of them, a twentieth, after the epoch), val_loss, val_acc,
    learning_rate (of the last update), seconds (since the start), samples_per_s.
    """

    columns = COLUMNS

    def __init__(self, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        self.rows: list[dict[str, Any]] = [dict(row) for row in rows]

    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            if key not in COLUMNS:
                raise KeyError(f"{key!r}; columns: {', '.join(COLUMNS)}")
            return [row[key] for row in self.rows]
        return self.rows[key]

    def keys(self) -> tuple[str, ...]:
        """The columns: ``dict(history)`` is a dict of lists."""
        return COLUMNS

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"<History of {len(self)} epochs, last {self.rows[-1] if self.rows else None}>"


@dataclass(frozen=True)
class Run:
    """What ``train`` returns.

    model : the last state, or the best one with early stopping or ``keep_best``.
    state : "SUCCEEDED". seconds : the whole of ``train``. best_epoch : where the model is from, if
    the best was kept. test : {"loss", "acc"} of the job's test data. metrics : the last word on the
    model, by where it was measured: {"test": {...}}, else "validation", else "training".
    """

    model: Model
    history: History
    state: str
    seconds: float
    epochs: int
    iterations: int
    stopped_early: bool = False
    best_epoch: int | None = None
    test: dict[str, float] | None = None
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)


def train(
    job: Job,
    *,
    groups: int = 1,
    tasks: int = 1,
    strategy: str = "allreduce",
    backend: str = "kernels",
    seed: int | None = None,
    threads: int | None = None,
    progress: Progress | bool | None = None,
    timeout: float | None = None,
) -> Run:
    """Train a job on this machine and return the run: its model, history and metrics.

    seed : replaces the network's seed. threads : at most so many (all cores by default).
    progress : True for a line per epoch on stderr, or a ``horn.progress.Progress``.
    timeout : seconds, after which training ends with Timeout.

    Raises
    ------
    ModelError, DataError, CompileError : the job cannot be run, said before the first step.
    Diverged : the loss, or a weight, became NaN or infinite. Timeout : it took too long.
    """
    begun = perf_counter()
    if importing is not None:
        raise JobError(
            f"horn.train ran while horn was importing {importing}; put it under "
            f'if __name__ == "__main__":, and let job() return the horn.Job'
        )
    if not isinstance(job, Job):
        raise JobError(
            f"horn.train takes a horn.Job, got {job!r}; write horn.train(horn.Job(net, ...))"
        )
    _check_topology(groups, tasks, strategy)
    if seed is not None:
        job = job.with_settings(network=job.network.rebuilt(seed=seed))
    job.check_data()
    _check_monitor(job)
    watcher = Lines() if progress is True else progress or Progress()
    code = Description.of(job.network)
    setup = Setup(
        job.network,
        job.optimizer,
        job.target,
        min(job.batch_size, len(job.data)),
        job.dtype,
        threads,
    )
    engine = make(backend, setup)
    if job.check:
        _check_backwards(job, backend)
    engine.bind(job.data)
    loop = _Loop(job, engine, watcher, begun, timeout)
    watcher.begin(job)
    try:
        loop.run()
    finally:
        watcher.end()
    _raise_if_not_finite(job, engine, loop)
    if loop.best is not None:
        engine.load(loop.best.parameters, loop.best.states, None, loop.best.iteration)
    test = None if job.test is None else _measure(engine, job, job.test)
    metrics = {"test": test} if test else loop.last_metrics(engine)
    facts = {
        "name": job.name,
        "data": job.data.name,
        "samples": len(job.data),
        "scale": job.data.scale if job.data.x.dtype == np.uint8 else None,
        "seed": job.network.seed,
        "optimizer": plan.in_words(job.optimizer),
        "batch_size": job.batch_size,
        "epochs": len(loop.history),
        "iteration": loop.iteration if loop.best is None else loop.best.iteration,
        "best_epoch": loop.best.epoch if loop.best else None,
        "metrics": metrics,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(perf_counter() - begun, 3),
        "backend": backend,
        "host": platform.machine(),
    }
    model = Model(
        job.network,
        engine.parameters(),
        engine.states(),
        dtype=job.dtype,
        target=job.target,
        backend=backend,
        threads=threads,
        facts=facts,
        code=code,
    )
    return Run(
        model,
        loop.history,
        "SUCCEEDED",
        perf_counter() - begun,
        len(loop.history),
        loop.iteration,
        loop.stopped_early,
        loop.best.epoch if loop.best else None,
        test,
        metrics,
    )


@dataclass
class _Best:
    """The model of the best epoch so far."""

    score: float
    epoch: int
    iteration: int
    parameters: dict[str, Array]
    states: dict[str, Array]


class _Loop:
    """The steps of one job, epoch by epoch."""

    def __init__(
        self, job: Job, engine: Engine, watcher: Progress, begun: float, timeout: float | None
    ) -> None:
        self.job, self.engine, self.watcher = job, engine, watcher
        self.begun, self.timeout = begun, timeout
        self.history = History()
        self.iteration = 0
        self.best: _Best | None = None
        self.stopped_early = False
        self.sample = _sample(job) if has_labels(job.network, job.data, job.target) else None

    def run(self) -> None:
        job = self.job
        epoch = 0
        while self.iteration < job.n_iterations:
            epoch += 1
            row = self._epoch(epoch)
            if self.sample is not None:
                row["acc"] = _measure(self.engine, job, self.sample)["acc"]
            if job.validation is not None and job.network.loss is not None:
                found = _measure(self.engine, job, job.validation)
                row["val_loss"], row["val_acc"] = found["loss"], found.get("acc")
            if job.network.loss is None:  # nothing else would show it
                _raise_if_not_finite(job, self.engine, self)
            self.history.rows.append(row)
            self._keep_best(row)
            self.watcher.epoch(row)
            patience = job.early_stopping.patience if job.early_stopping else None
            if patience is not None and self.best and epoch - self.best.epoch >= patience:
                self.stopped_early = self.iteration < job.n_iterations
                break

    def _epoch(self, epoch: int) -> dict[str, Any]:
        job, engine, step = self.job, self.engine, self.engine.step
        n, size = len(job.data), job.batch_size
        order = permutation(n, job.network.seed, epoch - 1)
        sample = (epoch - 1) * n
        n_steps = min(job.iterations_per_epoch, job.n_iterations - self.iteration)
        total, done, begun = 0.0, 0, perf_counter()
        next_look = begun + self.watcher.interval_s
        for start in range(0, n_steps * size, size):
            rows = order[start : start + size]
            loss = step(rows, iteration=self.iteration, first_sample=sample + start)
            if not math.isfinite(loss):
                raise Diverged(
                    _diverged(job, engine, self.iteration, epoch, f"the loss became {loss}")
                )
            self.iteration += 1
            total += loss * len(rows)
            done += len(rows)
            now = perf_counter()
            if now >= next_look:
                next_look = now + self.watcher.interval_s
                self.watcher.step(epoch, self.iteration, total / done, done / (now - begun))
            if self.timeout is not None and now - self.begun > self.timeout:
                raise Timeout(
                    f"training took more than {self.timeout:g} s; stopped at iteration "
                    f"{self.iteration} of {job.n_iterations} (epoch {epoch}); raise --timeout"
                )
        now = perf_counter()
        return {
            "epoch": epoch,
            "iteration": self.iteration,
            "loss": total / done if job.network.loss is not None else None,
            "acc": None,
            "val_loss": None,
            "val_acc": None,
            "learning_rate": job.optimizer.rate(self.iteration - 1),
            "seconds": now - self.begun,
            "samples_per_s": done / max(now - begun, 1e-9),
        }

    def _keep_best(self, row: Mapping[str, Any]) -> None:
        stopping = self.job.early_stopping
        if stopping is None and not self.job.keep_best:
            return
        monitor = stopping.monitor if stopping else "val_loss"
        score = row[monitor] if monitor == "val_loss" else -row[monitor]
        margin = stopping.min_delta if stopping else 0.0
        if self.best is None or score < self.best.score - margin:
            self.best = _Best(
                score,
                row["epoch"],
                row["iteration"],
                self.engine.parameters(),
                self.engine.states(),
            )

    def last_metrics(self, engine: Engine) -> dict[str, dict[str, float]]:
        """Measured on the validation data, else on the training data; nothing without a loss."""
        job = self.job
        if job.network.loss is None:
            return {}
        if job.validation is not None:
            row = self.history[self.best.epoch - 1 if self.best else -1]
            found = {"loss": row["val_loss"], "acc": row["val_acc"]}
            return {"validation": {k: v for k, v in found.items() if v is not None}}
        return {"training": _measure(engine, job, job.data)}


def _sample(job: Job) -> Dataset:
    """Every so many-th of the training samples: a twentieth of them, 100 to 2,000."""
    data = job.data
    step = -(-len(data) // min(max(len(data) // 20, 100), 2000))
    labels = None if data.y is None else np.ascontiguousarray(data.y[::step])
    return Dataset(np.ascontiguousarray(data.x[::step]), labels, data.scale, data.name)


def _measure(engine: Engine, job: Job, data: Any) -> dict[str, float]:
    return measure(engine, job.network, data, job.target) if job.network.loss else {}


def _check_topology(groups: int, tasks: int, strategy: str) -> None:
    for what, value in (("groups", groups), ("tasks", tasks)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise JobError(f"{what} must be a whole number from 1, got {value!r}")
    if strategy != "allreduce":
        raise JobError(
            f'strategy is {strategy!r}, but this version of horn has "allreduce" only; leave it out'
        )
    if groups != 1 or tasks != 1:
        raise JobError(
            f"asked for {groups} group(s) of {tasks} task(s), but this version of horn runs one "
            f"task in one group; leave groups and tasks out"
        )


def _check_monitor(job: Job) -> None:
    """What is watched for the best model can be measured."""
    if not (job.early_stopping or job.keep_best):
        return
    if job.network.loss is None:
        raise JobError("early stopping and keep_best need a loss, but the network has none")
    labels = has_labels(job.network, job.validation, job.target)
    if job.early_stopping and job.early_stopping.monitor == "val_acc" and not labels:
        raise JobError(
            "early stopping watches val_acc, but accuracy needs class labels and two or more "
            'outputs; watch "val_loss"'
        )


def _check_backwards(job: Job, backend: str) -> None:
    """Compare written backward methods with finite differences."""
    if not any(has_backward(layer.neuron) for layer in job.network.layers[1:-1]):
        return
    from horn.check import check_job

    try:
        check_job(job)
    except CompileError:
        # The interpreter runs what the compiler, and so the comparison, cannot read.
        if backend != "python":
            raise


def _raise_if_not_finite(job: Job, engine: Engine, loop: _Loop) -> None:
    if not all(np.isfinite(value).all() for value in engine.parameters().values()):
        raise Diverged(
            _diverged(job, engine, loop.iteration - 1, len(loop.history), "a weight is not finite")
        )


def _diverged(job: Job, engine: Engine, iteration: int, epoch: int, what: str) -> str:
    """Where it was first seen, how large the weights are, and what to try."""
    rate = job.optimizer.rate(iteration)
    text = f"{what[0].upper()}{what[1:]} at iteration {iteration} (epoch {epoch})."
    where = _first_bad_layer(job.network, engine.parameters())
    remedy = f"Try {rate / 10:g}" + ("" if job.optimizer.clip_norm else " or clip_norm=1.0")
    return f"{text} {where} Usual cause: the learning rate is too high ({rate:g}). {remedy}"


def _first_bad_layer(network: Network, parameters: Mapping[str, Array]) -> str:
    largest, holder = 0.0, ""
    for layer in network.layers[1:]:
        bad = np.zeros(layer.size, bool)
        for link in layer.links:
            w = parameters[link.weight]
            finite = np.isfinite(w)
            if link.edges is None:
                bad |= ~finite.all(axis=1)
            elif not finite.all():
                bad[np.repeat(np.arange(layer.size), np.diff(link.edges.indptr))[~finite]] = True
            top = float(np.abs(w, where=finite, out=np.zeros_like(w)).max(initial=0.0))
            if top > largest:
                largest, holder = top, layer.name
        for name in (layer.bias_name, *(f"{layer.name}.{p}" for p in layer.parameters)):
            if name in parameters:
                bad |= ~np.isfinite(parameters[name])
        if bad.any():
            return (
                f"First seen in {layer.name}: {int(bad.sum())} of {layer.size} neurons "
                f"({layer.neuron.__name__}) have weights that are not finite."
            )
    return f"The weights are still finite; the largest is {largest:.2g}, in {holder}."


class _CallableModule(types.ModuleType):
    """``horn.train`` is the function, whoever imported this module before."""

    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = _CallableModule
