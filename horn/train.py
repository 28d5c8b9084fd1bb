"""Train a job on this machine: in this process, or in a group of task processes.

The steps are in ``horn/loop.py``; here is what comes before and after them.
"""

from __future__ import annotations

import platform
import sys
import types
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter

import numpy as np

from horn import plan
from horn.backends import Setup, make
from horn.errors import CompileError, JobError
from horn.job import Job
from horn.loop import History, Loop
from horn.model import Description, Model, has_labels
from horn.neuron import has_backward
from horn.progress import Lines, Progress

# The file that horn is importing a job from, while it does; ``train`` must not run then.
importing: str | None = None


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
    loop = Loop(job, engine, watcher, begun, timeout)
    watcher.begin(job)
    try:
        loop.run()
    finally:
        watcher.end()
    ending = loop.finish()
    facts = {
        "name": job.name,
        "data": job.data.name,
        "samples": len(job.data),
        "scale": job.data.scale if job.data.x.dtype == np.uint8 else None,
        "seed": job.network.seed,
        "optimizer": plan.in_words(job.optimizer),
        "batch_size": job.batch_size,
        "epochs": len(loop.history),
        "iteration": ending.iteration,
        "best_epoch": ending.best_epoch,
        "metrics": ending.metrics,
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
        ending.iterations,
        ending.stopped_early,
        ending.best_epoch,
        ending.test,
        ending.metrics,
    )


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


class _CallableModule(types.ModuleType):
    """``horn.train`` is the function, whoever imported this module before."""

    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = _CallableModule
