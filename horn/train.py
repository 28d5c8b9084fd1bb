"""Train a job on this machine: in this process, or in a group of task processes.

The steps are in ``horn/training/loop.py``; here are the preparation and the result.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from horn import defaults
from horn.backends import Engine, Setup, is_compiled, make
from horn.callbacks import release
from horn.checkpoint import Checkpoints
from horn.checkpoint.disk import locked
from horn.connections.windows import Windows
from horn.data.stream import Feed, Stream
from horn.description import Description
from horn.errors import CallbackError, Diverged, HornError, JobError, Stopped, Timeout
from horn.job import Job
from horn.language.layers import Reading
from horn.mistakes import is_function, no_argument, shown, teaches
from horn.model import Array, Model, facts_of, model_of
from horn.modelfile import check_writable
from horn.network_checks import check_as_made
from horn.partition.placement import Placement
from horn.run_result import Run
from horn.sources import running, successor
from horn.strategies import Strategy
from horn.strategies.allreduce import AllReduce
from horn.topology import largest_share
from horn.training import notebook
from horn.training.batches import BatchSource
from horn.training.checkpointing import (
    CheckpointSchedule,
    LocalCheckpoints,
    RecoverySettings,
    checkpoint_to_resume,
    part_name,
    restore,
    stopped,
)
from horn.training.checks import check_backwards, check_run, check_settings
from horn.training.deadline import Deadline, Interrupted, interrupting
from horn.training.divergence import grown, of_guessing, too_far, unlearned, when
from horn.training.history import History
from horn.training.hooks import Hooks, LocalControl, hooks_of
from horn.training.identity import identity
from horn.training.interrupts import STOPPING, interrupts
from horn.training.journals import JournalFolder
from horn.training.loop import LoopResult, TrainingLoop
from horn.training.profile import Profile, Profiler
from horn.training.progress import FunctionProgress, LineProgress, Progress
from horn.training.run_settings import RunSettings

if TYPE_CHECKING:
    from horn.executor.attempts import JobAttempt

# The file that horn is importing a job from, while it does; ``train`` must not run then.
importing: str | None = None


logger = logging.getLogger(__name__)


@dataclass
class _Trained:
    """The result of the steps."""

    ending: LoopResult
    history: History
    parameters: dict[str, Array]
    states: dict[str, Array]
    counters: list[dict[str, Any]] = field(default_factory=list)
    staleness: dict[int, int] = field(default_factory=dict)
    stopped: Stopped | None = None
    profile: Profile | None = None


@teaches
def train(
    job: Job | Model,
    data: Any = None,
    *,
    groups: int = 1,
    tasks: int = 1,
    servers: int | None = None,
    strategy: str | Strategy = defaults.STRATEGY,
    backend: str = defaults.BACKEND,
    seed: int | None = None,
    threads: int | None = None,
    progress: Progress | Callable[[Mapping[str, Any]], Any] | bool | None = None,
    timeout: float | None = None,
    barrier: str = defaults.BARRIER,
    transport: str = defaults.TRANSPORT,
    pins: Mapping[str, str] | None = None,
    trace: str | os.PathLike[str] | None = None,
    profile: bool | str | os.PathLike[str] = False,
    superstep_timeout: float = defaults.SUPERSTEP_TIMEOUT_S,
    start_timeout: float = defaults.START_TIMEOUT_S,
    checkpoints: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    checkpoint_seconds: float | None = None,
    keep_checkpoints: int = defaults.KEPT_CHECKPOINTS,
    resume: bool | str | os.PathLike[str] = False,
    changed: bool = False,
    max_restarts: int = defaults.MAX_RESTARTS,
    **settings: Any,
) -> Run:
    """Train a job on this machine and return the run: its model, history and metrics.

    ``horn.train(model, data, epochs=3)`` trains a model on: it is the job ``horn.Job(model.network,
    data, initial=model, dtype=model.dtype, epochs=3)``; ``settings`` are further arguments of
    ``horn.Job``.

    backend : what computes: "kernels", "reference" (NumPy, slow), "python" (neuron by neuron, as
    they are written), or "module:Class" of yours. seed : replaces the network's seed. threads : the
    most per task (by default the cores, divided by the tasks). progress : True for a line per epoch
    on stderr, or a ``horn.training.progress.Progress``, or a function of an epoch's row; a notebook
    shows a bar and a table unless it is False. timeout : seconds from the call, after which the run
    ends with Timeout: after the present update, or 10 s later wherever it is, as in a callback, if
    it is in the main thread; None or infinity for no end.

    With ``tasks`` above 1 the network is divided among that many processes, which give the answer
    of one. With ``groups`` above 1 there are as many replicas of it, each over its tasks, and
    ``strategy`` says how they stay together: a name, with its defaults, or a ``horn.Strategy``.
    "allreduce": they share every batch and sum their gradients, again the answer of one.
    "averaging": they train on their own, and now and then take the mean of their weights.
    "downpour", "easgd": they do not wait for each other, and ``servers`` hold the parameters (1 by
    default; 0: one in the process of the first task). "parallel-dropout": each task trains
    sub-models. See docs/strategies.md. barrier : how tasks pass supersteps, by counting "message"s
    or through "zookeeper". transport : what carries blocks, "shm", "ipc" or "tcp". pins : where
    weights live, {"layer1": "receiver", "sender", "replicated" or, of windows, "channels" or
    "input_channels"}; the rest is chosen. trace : a
    file for a Chrome trace. profile : True for ``run.profile``, the time of every statement of one
    process; a file's name for that and a Chrome trace of a mean step. superstep_timeout :
    seconds that a task waits for the others before it names the late ones. start_timeout : seconds
    for each step of the tasks' start (docs/from-network-to-job.md), after which the tasks that are
    late in it are named.

    checkpoints : a folder for the files that resume training exactly where it stopped, written
    every ``checkpoint_every`` iterations, every ``checkpoint_seconds``, and on Ctrl-C (without
    either on Ctrl-C alone); the newest ``keep_checkpoints`` stay. resume : True goes on from the
    newest in there, or begins if there is none; else a checkpoint, or another run's folder. The
    numbers of groups and tasks may be others, but with servers. changed : True goes on though the
    job was changed knowingly; ``resume="changed"`` is both.
    max_restarts : how often a group whose task was killed or hangs starts again from the last
    checkpoint, without a new one in between. With servers (downpour, easgd) they keep every push in
    the folder, and only the processes that ended start again.

    Ctrl-C, or a notebook's stop button, ends training after the update under way, and the run so
    far is returned (``run.stopped``). Twice: at once, with nothing; so too with servers. While the
    stopped run is measured the second ends that alone: ``run.metrics`` is empty.

    Raises
    ------
    ModelError, DataError, CompileError, JobError : the job cannot be run, found before the first
    step. Diverged : the loss, or a weight, became NaN or infinite. Timeout : it took too long.
    TaskFailed : a task was killed or met an exception. BarrierTimeout : a task hangs.
    CheckpointError : the checkpoint to resume is missing, damaged or of another job. Conflict : the
    folder has another run's checkpoints. Stopped : by Ctrl-C, before the first update.
    """
    if resume == "changed":
        resume, changed = True, True
    of_run = {field.name for field in fields(RunSettings)}
    given = {name: value for name, value in locals().items() if name in of_run}
    return conduct(_going_on(job, data, settings), RunSettings(**given))


def _going_on(job: Job | Model, data: Any, settings: dict[str, Any]) -> Job:
    """The job itself, or the job that trains a model further. Raises JobError."""
    if isinstance(job, Model):
        if data is None:
            raise JobError(
                f"horn.train: what shall {job!r} be trained on? Write horn.train(model, data), or "
                f"horn.train(horn.Job(model.network, data, initial=model))"
            )
        return Job(job.network, data, **{"initial": job, "dtype": job.dtype, **settings})
    if data is not None:
        raise JobError(
            f"horn.train(job) has its data in the job, as horn.train(horn.Job(net, (x, y))); "
            f"horn.train(model, data) goes on with a model; got {job!r} and data"
        )
    for name in settings:
        raise no_argument("train", name, train)
    return job


def conduct(
    job: Job,
    settings: RunSettings,
    on_cluster: JobAttempt | None = None,
    warn: Callable[[str], Any] = logger.warning,
    deadline: Deadline | None = None,
) -> Run:
    """Train a job by its settings, as ``train``; ``on_cluster`` is one attempt on a cluster. warn :
    takes the sentences of a run that diverged. deadline : of a timeout that began before.
    """
    deadline = deadline or Deadline(settings.timeout)
    _check_place(job)
    with interrupting(deadline) as settle, ExitStack() as stack:
        stack.callback(release, job.callbacks)
        return _conduct(job, settings, on_cluster, warn, deadline, settle)


def _conduct(
    job: Job, settings: RunSettings, on_cluster: JobAttempt | None, warn: Callable[[str], Any],
    deadline: Deadline, settle: Callable[[], None],
) -> Run:  # fmt: skip
    begun = perf_counter()
    check_as_made(job.network.layers)
    _warn_of_redefined(job)
    strategy, topology, backend = settings.made_strategy, settings.topology, settings.backend
    if settings.seed is not None:
        job = job.with_settings(network=job.network.rebuilt(seed=settings.seed))
    reading = Reading()
    check_run(job, settings, reading)
    hooks = hooks_of(job, strategy, topology, backend)
    schedule = settings.schedule()
    watcher = _watcher(settings.progress)
    code = Description.of(job.network, job.metrics)
    _warn_of_begin(job, code)
    _warn_of_pixels(job)
    check_settings(job, settings, schedule is not None, on_cluster is not None)
    is_single = settings.is_alone and (on_cluster is None or not is_compiled(backend, job.network))
    if is_single:
        settings.check_alone()
        if not isinstance(settings.profile, bool):
            check_writable(settings.profile)
    else:
        settings.check_together(is_compiled(backend, job.network))
        job = strategy.prepared(job, topology)
        if advice := strategy.advice(job):
            logger.warning("%s", advice)
        settings.check_batch(job)
    with ExitStack() as stack:
        if schedule is not None and on_cluster is None:  # there, a replaced attempt is fenced
            stack.enter_context(locked(schedule.folder))
        recovery = _recovery(job, settings, schedule, on_cluster)
        if isinstance(watcher, FunctionProgress):
            watcher.stop = recovery.stop_requested.set
        try:
            if is_single:
                is_wanted = on_cluster is None or schedule is not None
                stack.enter_context(
                    interrupts(recovery.stop_requested, is_wanted, waiting=STOPPING)
                )
                trained = _train_here(
                    job, settings, watcher, begun, recovery, hooks, code, deadline, reading
                )
            else:
                saves = recovery.schedule is not None or recovery.journals is not None
                is_mine = on_cluster is None and not saves
                if is_mine and not topology.n_servers:
                    recovery = _stoppable(recovery, stack)
                is_wanted = recovery.schedule is not None
                stack.enter_context(
                    interrupts(recovery.stop_requested, is_wanted, waiting=STOPPING)
                )
                trained = _train_in_group(
                    job, settings, watcher, begun, recovery, on_cluster, hooks, deadline, reading
                )
        except Diverged as error:
            so_far = perf_counter() - begun
            raise _explained(error, job, settings, recovery, code, so_far) from None
        except Timeout as error:
            settle()
            halted = error.__cause__  # tasks that stopped for it
            if isinstance(halted, Stopped) and halted.checkpoint:
                engine = _restored(job, settings, halted, begun).engine
                arrays = engine.parameters(), engine.states()
                so_far = perf_counter() - begun
                _ended_at(error, job, settings, code, halted.iteration, *arrays, so_far)
            raise
        except Stopped as stopped:
            if on_cluster is not None or not stopped.checkpoint:
                raise
            trained = _until(job, settings, stopped, begun, is_kept=schedule is not None)
    if is_single and trained.stopped is not None and on_cluster is not None:
        raise trained.stopped
    if trained.stopped is not None and trained.stopped.loss:
        watcher.note(f"Iteration {trained.stopped.iteration:,}: {trained.stopped.loss}.")
    run = _run_of(trained, job, settings, code, begun, warn)
    if isinstance(watcher, FunctionProgress) and watcher.failure is not None:
        watcher.failure.run = run
        raise watcher.failure
    if hooks is not None:
        try:
            if hooks.failure is None:
                hooks.end(run.model, run.history)
        except Timeout as error:
            settle()
            error.iteration, error.model = trained.ending.iteration, run.model
            raise
        if hooks.failure is not None:
            hooks.failure.run = run
            raise hooks.failure
    return run


def _check_place(job: Any) -> None:
    """Check that training may begin here, and that job is a Job. Raises JobError."""
    if importing is not None:
        raise JobError(
            f"horn.train ran while horn was importing {importing}; put it under "
            f'if __name__ == "__main__":, and let job() return the horn.Job'
        )
    if running.get():
        raise JobError(
            "horn.train ran in a statement that is run again, since a neuron or function needs "
            "what it defines; define the classes in a loop or statement of their own, and train "
            "in another"
        )
    if not isinstance(job, Job):
        raise JobError(
            f"horn.train takes a horn.Job, got {shown(job)}; write horn.train(horn.Job(net, ...))"
        )


def _warn_of_redefined(job: Job) -> None:
    """Warn of neurons that are defined otherwise by now: the network has those that it was made
    with, and their mistakes.
    """
    for neuron, layer in {layer.neuron: layer for layer in reversed(job.network.layers)}.items():
        now = successor(neuron)
        if now is not None and not now[1]:
            logger.warning(
                "layer %s: %s has been defined again since the network was made, which has the one "
                "of before; make the network again to train the new one", layer.name,
                neuron.__name__,
            )  # fmt: skip


def _warn_of_begin(job: Job, code: Description) -> None:
    """Warn of unused initial arrays, of a model's network without them, of an unsavable model."""
    if job.initial is not None and (job.initial.drawn or job.initial.unused or job.initial.resized):
        logger.warning("the job %s", job.initial)
    if job.initial is None and job.network.is_of_model:
        logger.warning("the network of a model is trained from the start: its learned numbers are "
                       "taken with  Job(model.network, ..., initial=model)")  # fmt: skip
    if code.problem:
        logger.warning("the model will not be saved: %s", code.problem)


def _warn_of_pixels(job: Job) -> None:
    """Warn where windows go along the rows of pictures whose columns are taken for channels."""
    first, data = job.network.layers[0], job.data
    if data.x.dtype != np.uint8 or len(first.shape) != 2 or first.shape[0] != first.shape[1]:
        return
    looks = any(
        isinstance(link.connection, Windows) and link.source is first
        for layer in job.network.layers[1:]
        for link in layer.links
    )
    if looks and data.shape == first.shape:
        n, _ = first.shape
        logger.warning(
            "data: net.input((%d, %d)) is %d positions of %d channels, and windows go along one "
            "axis; if a sample is a picture of %d x %d pixels, write net.input((%d, %d, 1))",
            *(n,) * 8,
        )


def _run_of(
    trained: _Trained,
    job: Job,
    settings: RunSettings,
    code: Description,
    begun: float,
    warn: Callable[[str], Any],
) -> Run:
    """Make the run with its model; warn where the losses grew, or tell of nothing that was learned.
    begun : by ``perf_counter``.
    """
    ending, n_epochs = trained.ending, len(trained.history)
    facts = facts_of(
        job, settings.backend, iteration=ending.iteration, n_epochs=n_epochs,
        seconds=perf_counter() - begun, best_epoch=ending.best_epoch, metrics=ending.metrics,
    )  # fmt: skip
    model = model_of(
        job, trained.parameters, trained.states, backend=settings.backend,
        threads=settings.threads, facts=facts, code=code,
    )  # fmt: skip
    state = "SUCCEEDED" if trained.stopped is None else "STOPPED"
    if worse := grown(trained.history, of_guessing(job)):
        best = ending.best_epoch
        kept = "" if best is None else f"; the model is that of epoch {best}"
        n = ending.iterations  # the last ones of a schedule say little: a cosine ends at 0
        most = max(map(job.optimizer.rate, range(0, n, max(n // 100, 1))))
        _, remedy = too_far(job, most)
        warn(f"diverged: {worse}{kept}. Try {remedy}")
        state = state if kept or trained.stopped else "DIVERGED"
    elif nothing := unlearned(job, trained.history):
        warn(nothing)
    return Run(
        model,
        trained.history,
        state,
        perf_counter() - begun,
        n_epochs,
        ending.iterations,
        ending.stopped_early,
        ending.best_epoch,
        ending.test,
        ending.metrics,
        trained.counters,
        trained.staleness,
        trained.stopped is not None,
        "" if trained.stopped is None else trained.stopped.checkpoint,
        trained.profile,
    )


def _check_takes_a_row(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind({})
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise JobError(
            f"progress={name}: {error}; it is called after each epoch with one argument, the "
            f"row of the history, a dict with 'epoch', 'loss' and more"
        ) from None
    except ValueError:  # written in C, without a signature
        return


def _watcher(progress: Any) -> Progress:
    """The progress display that the setting asks for. Raises JobError."""
    if is_function(progress) and not isinstance(progress, type):
        _check_takes_a_row(progress)
        return FunctionProgress(progress)
    if progress is not None and not isinstance(progress, bool):
        if isinstance(progress, type) or not hasattr(progress, "epoch"):
            raise JobError(
                f"progress is True, False, a horn.training.progress.Progress or a function of an "
                f"epoch's row; got {progress!r}"
            )
        return progress  # type: ignore[no-any-return]
    if progress is not False and notebook.is_here():
        return notebook.NotebookProgress()
    return LineProgress() if progress else Progress()


def _train_here(
    job: Job,
    settings: RunSettings,
    watcher: Progress,
    begun: float,
    recovery: RecoverySettings,
    hooks: Hooks | None,
    code: Description,
    deadline: Deadline,
    reading: Reading,
) -> _Trained:
    """Train in this process. An error in the middle has the model of the updates before it."""
    if hooks is not None:
        job = hooks.with_rate
    engine = _engine(job, settings, reading)
    if job.check:
        check_backwards(job, settings.backend, reading)
    feed = None
    if isinstance(job.data, Stream):
        n_epochs, rest = divmod(job.n_iterations, job.iterations_per_epoch)
        feed = Feed(job.data, job.batch_size, n_epochs * len(job.data) + rest * job.batch_size)
    augmented = job.batches()
    data = job.data if feed is None else feed.ring
    engine.bind(data if augmented is None else augmented.data)
    profiler = None if settings.profile is False else Profiler(engine)
    alone: LocalCheckpoints | None = None
    start, schedule = recovery.start, recovery.schedule
    if schedule is not None:
        alone = LocalCheckpoints(
            schedule, recovery.mine, 0 if start is None else start.attempt + 1,
            recovery.stop_requested, watcher.note,
        )  # fmt: skip
    is_stopping = recovery.stop_requested.is_set
    take = None if feed is None else feed.take
    source = BatchSource(job, take=take, is_stopping=is_stopping, augmented=augmented)
    control = LocalControl(hooks, alone or is_stopping)
    loop = TrainingLoop(job, engine, watcher, begun, deadline, control=control, source=source)
    if start is not None:
        restore(loop, start, part_name(0))
    control.attach(loop)
    if alone is not None:
        alone.loop = loop
    watcher.begin(job)
    if start is not None:
        watcher.note(f"Going on from iteration {start.iteration:,}.")
    n_before = loop.iteration
    try:
        control.begin(loop.iteration)
        loop.run()
    except HornError as error:
        is_known = not isinstance(error, (Diverged, CallbackError))
        if isinstance(error, Interrupted) and loop.is_stepping:
            is_known = False
        if loop.iteration > n_before and is_known:
            seconds, arrays = perf_counter() - begun, (engine.parameters(), engine.states())
            _ended_at(error, job, settings, code, loop.iteration, *arrays, seconds)
        raise
    finally:
        if alone is not None:
            alone.close()
        if feed is not None:
            feed.close()
        watcher.end()
    try:
        ending = loop.finish()
    except Interrupted as error:  # while the model was measured
        at = loop.iteration if loop.best is None else loop.best.iteration
        arrays, seconds = (engine.parameters(), engine.states()), perf_counter() - begun
        _ended_at(error, job, settings, code, at, *arrays, seconds)
        raise
    trained = _Trained(ending, loop.history, engine.parameters(), engine.states())
    if profiler is not None:
        trained.profile = profiler.profile()
        if not isinstance(settings.profile, bool):
            _written(settings.profile, trained.profile.write)
    if loop.is_halted:
        trained.stopped = Stopped(loop.iteration, "")
        if alone is not None:
            trained.stopped = stopped(alone.last, loop.iteration, alone.notes.reason, start)
    return trained


def _engine(job: Job, settings: RunSettings, reading: Reading | None = None) -> Engine:
    """An engine of the whole network in this process, with its initial arrays."""
    setup = Setup(
        job.network, job.optimizer, job.target, job.most_rows, job.dtype, settings.threads,
        tuple(job.aggregates.values()), job.recompute, reading,
    )  # fmt: skip
    return make(settings.backend, setup)


def _explained(
    error: Diverged,
    job: Job,
    settings: RunSettings,
    recovery: RecoverySettings,
    code: Description,
    seconds: float,
) -> Diverged:
    """The error with its cause and the model from before it, where these can be found by
    repeating the steps in this process. Tasks that share every batch have the answer of one.
    """
    is_as_one = isinstance(settings.made_strategy, AllReduce) and not isinstance(job.data, Stream)
    if error.met is None or not is_as_one or (recovery.start is not None and error.kept is None):
        return error
    from horn.training import diagnosis

    start, kept = recovery.start, error.kept
    n_updates = error.met.iteration + 1 - (0 if start is None else start.iteration)
    found = diagnosis.look_again(
        job, partial(_engine, job, settings), error.met, kept, seconds / max(n_updates, 1)
    )
    if found is not None:
        better = Diverged(f"{when(error.met)}\n{found.text}")
        better.iteration, memory = found.iteration, found.memory
    elif kept is not None:
        better, better.iteration, memory = error, kept.iteration, kept.memory
    else:
        return error
    better.model = _model_before(
        job, settings, code, better.iteration, memory["parameter"], memory["state"], seconds
    )
    return better


def _model_before(
    job: Job, settings: RunSettings, code: Description, iteration: int,
    parameters: Mapping[str, Array], states: Mapping[str, Array], seconds: float,
) -> Model:  # fmt: skip
    """The model of the updates before an error."""
    n_epochs = iteration // job.iterations_per_epoch
    facts = facts_of(job, settings.backend, iteration=iteration, n_epochs=n_epochs, seconds=seconds)
    return model_of(
        job, parameters, states, backend=settings.backend, threads=settings.threads, code=code,
        facts=facts,
    )  # fmt: skip


def _ended_at(
    error: HornError, job: Job, settings: RunSettings, code: Description, iteration: int,
    parameters: Mapping[str, Array], states: Mapping[str, Array], seconds: float,
) -> None:  # fmt: skip
    """Give an error that ended training the model of the updates before it."""
    error.iteration = iteration
    error.model = _model_before(job, settings, code, iteration, parameters, states, seconds)
    n = f"{iteration} update{'s' * (iteration != 1)}"
    error.add_note(f"Training ended there; the model after {n} is in the error's .model")


def _stoppable(recovery: RecoverySettings, stack: ExitStack) -> RecoverySettings:
    """Add a folder for the one checkpoint that tasks write when they are asked to stop. They make
    it then, so that a run that is killed leaves none.
    """
    import secrets
    import shutil
    import tempfile

    folder = Path(tempfile.gettempdir(), f"horn-stop-{secrets.token_hex(16)}")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return replace(recovery, schedule=CheckpointSchedule(folder, keep=1))


def _until(
    job: Job, settings: RunSettings, stopped: Stopped, begun: float, is_kept: bool
) -> _Trained:
    """The result of tasks that stopped, from their checkpoint: the mean over groups with models of
    their own, as at the end of training.
    """
    loop = _restored(job, settings, stopped, begun)
    loop.is_halted = True
    if not is_kept:
        stopped = Stopped(stopped.iteration, "")
    engine = loop.engine
    return _Trained(
        loop.finish(), loop.history, engine.parameters(), engine.states(), stopped=stopped
    )


def _restored(job: Job, settings: RunSettings, stopped: Stopped, begun: float) -> TrainingLoop:
    """A loop with the model, and the history, of a checkpoint of tasks that stopped."""
    path = Path(stopped.checkpoint)
    opened = Checkpoints(path.parent).open(path)
    engine = _engine(job, settings)
    engine.bind(job.data)
    loop = TrainingLoop(job, engine, Progress(), begun)
    scales = settings.made_strategy.scales(job, settings.topology)
    groups = [None] if settings.made_strategy.is_joined else range(settings.topology.n_groups)
    every = []
    for group in reversed(groups):  # the first group's other values are the last restored
        restore(loop, opened, part_name(0), group, goes_on=False, scales=scales)
        every.append({name: array.copy() for name, array in engine.parameters().items()})
    parameters = {
        name: np.mean([each[name] for each in every], axis=0) * scales.get(name, 1.0)
        for name in every[0]
    }
    engine.load(parameters, engine.states(), None, loop.iteration)
    return loop


def _train_in_group(
    job: Job,
    settings: RunSettings,
    watcher: Progress,
    begun: float,
    recovery: RecoverySettings,
    on_cluster: JobAttempt | None,
    hooks: Hooks | None,
    deadline: Deadline,
    reading: Reading,
) -> _Trained:
    """Train in task processes; errors of the job come before their start."""
    from horn.executor import trace
    from horn.executor.launch import launch, launch_at
    from horn.planner.calibration import calibrate
    from horn.process.job_payload import draft

    text = draft(job, settings.made_strategy, reading=reading)
    if job.check:
        check_backwards(job, settings.backend, reading)
    if settings.trace is not None:
        check_writable(settings.trace)
    calibrate(job.dtype)  # now: starting tasks would disturb it

    def find_placement() -> Placement:
        if recovery.journals is not None:
            return recovery.journals.placement(lambda: _placement(job, settings))
        return _placement(job, settings)

    run = launch if on_cluster is None else partial(launch_at, on_cluster)
    outcome = run(job, text, find_placement, settings, watcher, begun, recovery, hooks, deadline)
    if settings.trace is not None:
        _written(settings.trace, lambda path: trace.write(path, outcome.traces, outcome.counters))
    return _Trained(
        outcome.ending,
        History(outcome.rows),
        outcome.parameters,
        outcome.states,
        outcome.counters,
        outcome.staleness,
    )


def _written(path: str | os.PathLike[str], write: Callable[[str | os.PathLike[str]], None]) -> None:
    """Write a file about a run; one that cannot be written is told of, and costs no model."""
    try:
        write(path)
    except OSError as error:
        why = error.strerror or error
        logger.warning("%s: cannot be written (%s); the run is there without it", path, why)


def _placement(job: Job, settings: RunSettings) -> Placement:
    """The cheapest placement of a run: the homes of weights, and the tasks' shares of the work."""
    from horn.planner.plan import cheapest

    mine = job.with_settings(batch_size=largest_share(job.batch_size, settings.groups))
    pins = dict(settings.pins or {})
    return cheapest(mine, settings.tasks, pins, transport=settings.transport).placement


def _recovery(
    job: Job,
    settings: RunSettings,
    schedule: CheckpointSchedule | None,
    on_cluster: JobAttempt | None,
) -> RecoverySettings:
    """The checkpoint that the run begins with, and its checkpoints or journals to write."""
    stop_requested = threading.Event() if on_cluster is None else on_cluster.stop_requested
    resume, changed, most = settings.resume, settings.changed, settings.max_restarts
    if schedule is None and resume is False:
        return RecoverySettings(stop_requested=stop_requested, max_restarts=most)
    strategy, topology = settings.made_strategy, settings.topology
    mine = identity(job, strategy.resumes_as(topology), strategy)
    if scales := strategy.scales(job, topology):
        mine["scales"] = dict(scales)
    if schedule is not None and topology.n_servers:
        mine["servers"], mine["tasks"] = topology.n_servers, topology.n_tasks
        mine["pins"] = dict(settings.pins or {})
        journals = JournalFolder(
            schedule.folder, mine, resume is True, changed, strategy.changeable
        )
        return RecoverySettings(stop_requested=stop_requested, max_restarts=most, journals=journals)
    checkpoints = None if schedule is None else Checkpoints(schedule.folder, schedule.keep)
    start = checkpoint_to_resume(checkpoints, resume, job, mine, changed)
    return RecoverySettings(schedule, mine, start, stop_requested, most)
