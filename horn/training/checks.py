"""Checks of a job before its first step, besides those of ``Job`` itself."""

from __future__ import annotations

import logging
from typing import Any

from horn import explain
from horn.backends import is_compiled, load
from horn.callbacks import Watching
from horn.data.stream import Stream
from horn.errors import CompileError, JobError
from horn.ir import OUTPUT, TARGET, formulas
from horn.ir.tracing import is_wrong
from horn.job import Job
from horn.language.layers import Reading, read_aggregate
from horn.language.parse import function
from horn.neuron import State, SynapseState, declared, has_backward, mentions
from horn.outputs import check, check_defined, has_answers
from horn.strategies.allreduce import AllReduce
from horn.training.run_settings import RunSettings
from horn.training.steady_rate import SteadyRate

logger = logging.getLogger(__name__)


def check_monitor(job: Job) -> None:
    """Check that the figures that select the best model, or the rate, can be measured."""
    watched = [(type(c).__name__, c.watched) for c in job.callbacks if isinstance(c, Watching)]
    if job.early_stopping:
        watched.append(("early stopping", job.early_stopping.monitor))
    if (job.early_stopping or job.keep_best) and not job.network.is_judged:
        raise JobError("early stopping and keep_best need a loss, but the network has none")
    for name, monitor in watched:
        if monitor in ("loss", "val_loss") and not job.network.is_judged:
            raise JobError(f"{name} watches {monitor}, but the network has none")
        if monitor == "acc" and isinstance(job.data, Stream):
            raise JobError(
                f"{name} watches acc, which is not measured on a stream; give validation=(x, y) "
                'and watch "val_acc"'
            )
        data = job.validation if monitor == "val_acc" else job.data
        if monitor in ("acc", "val_acc") and not has_answers(job.network, data, job.target):
            raise JobError(
                f"{name} watches {monitor}, but accuracy needs class labels, one-hot rows, or 0 "
                f'and 1 of sigmoid outputs; watch "{monitor[:-3]}loss"'
            )


def check_metrics(job: Job) -> None:
    """Check that metrics fit the data that they are measured on."""
    if job.metrics and isinstance(job.data, Stream) and not (job.validation or job.test):
        raise JobError(
            "metrics need all samples at once, and a stream does not have them; give "
            "validation=(x, y) or test=(x, y), or leave metrics out"
        )
    for what in ("validation", "test") if job.validation or job.test else ("data",):
        data = getattr(job, what)
        if data is not None:
            where = {"test": "the test data", "data": "the data"}.get(what, "the validation data")
            check(job.metrics, job.network, data, job.target, where)
            check_defined(job.metrics, job.network, data, job.target, where)


def check_constant(job: Job) -> None:
    """Check that activations, interlayers, losses and aggregates are the same functions each time,
    for the interpreter: a compiler sees it by itself.
    """
    leaves = (OUTPUT, TARGET)
    functions: list[tuple[Any, int]] = [(each.of_layer, 1) for each in job.aggregates.values()]
    for layer in job.network.layers[1:]:
        functions.append((layer.activation.f, layer.activation.n_arguments))
        functions += [(layer.interlayer, 1)] if layer.interlayer is not None else []
        functions += [(layer.loss.f, 2)] if layer.loss is not None else []
    for f, n_arguments in functions:
        try:
            function(f, *leaves[:n_arguments])
        except CompileError as error:  # else the interpreter may know it
            if is_wrong(error):
                raise


def check_learns(job: Job) -> None:
    """Check that something can change: there is a loss, or a neuron has a rule of its own, unless
    the job says that nothing is to be learned.
    """
    if job.network.is_judged or job.target is None:
        return
    for cls in {layer.neuron for layer in job.network.layers[1:]}:
        remembers = bool(declared(cls, State)) or bool(declared(cls, SynapseState))
        if remembers or mentions(cls, "forward", "push") or has_backward(cls):
            return
    raise JobError(
        "the network has no loss, and no neuron learns by a rule of its own (self.push, a State): "
        "nothing would be learned. End it with net.output(n, loss=...); if it is to learn nothing, "
        "say horn.Job(..., target=None)"
    )


def check_backwards(job: Job, backend: str, reading: Reading | None = None) -> None:
    """Compare written backward methods with finite differences; warn of arrays that never learn.
    reading : as in ``Setup``.
    """
    try:
        silent = explain.unreached(job.network, reading)
        arrays = {name for layer in job.network.layers[1:] for name in layer.shapes}
        if arrays and arrays <= {name for _, names in silent for name in names}:
            said = "\n".join(sentence for sentence, _ in silent)
            raise JobError(f"the loss reaches nothing that could learn:\n{said}\nIf that is meant, "
                           "say horn.Job(..., check=False)")  # fmt: skip
        for sentence, names in silent:
            if not job.network.frozen >= set(names):  # else it is meant
                logger.warning("%s", sentence)
    except CompileError:
        if load(backend).runner is not None:
            raise
    from horn.check import check_activations, check_job

    check_activations(job.network)
    if not any(has_backward(layer.neuron) for layer in job.network.layers[1:-1]):
        return
    if isinstance(job.data, Stream):
        job = job.with_settings(data=job.data.head)
    try:
        check_job(job)
    except CompileError:
        # The interpreter runs what the compiler, and so the comparison, cannot read.
        if load(backend).runner is not None:
            raise


def check_processes(job: Job, settings: RunSettings) -> None:
    """Check that the settings are of as many processes as a run here has. Raises JobError."""
    if settings.is_alone:
        settings.check_alone()
    else:
        settings.check_together(is_compiled(settings.backend, job.network))


def check_described(job: Job, backend: str) -> None:
    """Check what a job has beside its neurons, as a backend reads it: data, what is measured and
    watched, the optimizer's formulas; and that something can learn.
    """
    job.check_data()
    check_monitor(job)
    check_metrics(job)
    check_learns(job)
    formulas.check(job.optimizer, is_compiled(backend, job.network))
    rate = SteadyRate(job.optimizer)
    rate.note(0)
    rate.check()
    if is_compiled(backend, job.network):
        for aggregate in job.aggregates.values():  # now, not after the first epoch
            read_aggregate(aggregate)
    else:
        check_constant(job)


def check_run(job: Job, settings: RunSettings, reading: Reading) -> None:
    """Check that a job can run with these settings, and can learn; warn of ignored code. reading :
    as in ``Setup``.
    """
    check_described(job, settings.backend)
    compiled = is_compiled(settings.backend, job.network)
    if compiled:
        for sentence in explain.prints(job.network):
            logger.warning("%s", sentence)
    n_groups = settings.topology.n_groups
    explain.check_memory(job.network, job.batch_size, n_groups, compiled, reading)
    settings.made_strategy.check(job, settings.topology)


def check_settings(
    job: Job, settings: RunSettings, has_checkpoints: bool, is_on_cluster: bool
) -> None:
    """Check that a job of sequences, or a stream, can run with these settings. Raises JobError."""
    topology = settings.topology
    if job.stateful and topology.n_servers and has_checkpoints:
        raise JobError(
            f"a stateful job with servers ({settings.made_strategy.name}) has no checkpoints: a "
            "group that comes back would not know where its sequences were; leave checkpoints out, "
            'or take strategy="allreduce" or "averaging"'
        )
    divided = [k for k, where in (settings.pins or {}).items() if where != "replicated"]
    is_shared = isinstance(settings.made_strategy, AllReduce)  # every batch
    if divided and job.network.steps and (topology.n_groups > 1 or not is_shared):
        raise JobError(
            f"pin {divided[0]}: in a network of sequences the neurons of a layer are divided among "
            'the tasks of one group, with strategy="allreduce"; leave groups out, or the pin'
        )
    if isinstance(job.data, Stream):
        is_here = settings.is_alone and not is_on_cluster
        if not is_here or has_checkpoints or settings.resume is not False:
            place = "not on a cluster (horn submit --local runs it here)" if is_on_cluster else ""
            how = place or "tasks=1, groups=1 and no checkpoints"
            raise JobError(
                f"a stream is read by one process on this machine, once: {how}; write it to a file "
                f'that all can read, np.save, and pass horn.data.load("x.npy,y.npy")'
            )
