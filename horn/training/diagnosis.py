"""Diagnosis of NaN or infinity in training: the batch is repeated, from the arrays before it.

The steps before it are repeated (from the last arrays that the loop kept, or from the first ones),
so that the arrays from before the batch are there. The batch is then looked at as the backend
computes it, layer by layer, for the first number that is not finite; what made it is said by the
interpreter, which knows the user's line. A cause is named by evidence: only weights that grew
speak of the learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np

from horn.autodiff import user_text
from horn.backends import Engine, Memory
from horn.connections.transposed_convolution import TransposedConvolution
from horn.connections.windows import Windows
from horn.data.order import BatchRows
from horn.errors import HornError
from horn.interpreter import trouble
from horn.interpreter.samples import by_reversals
from horn.job import Job
from horn.layers import Layer
from horn.training.divergence import KeptArrays, NonFinite, too_far

MOST_S = 60.0  # a longer repetition is not begun,
PATIENCE_S = 120.0  # and one that takes longer is given up
GREW = 10.0  # weights that grew by more speak of the learning rate


@dataclass(frozen=True)
class Diagnosis:
    """The cause, as far as it was found. text : sentences. iteration : the update that went wrong;
    memory : the arrays of the engine before it.
    """

    text: str
    iteration: int
    memory: Memory


def look_again(
    job: Job,
    make: Callable[[], Engine],
    met: NonFinite,
    kept: KeptArrays | None,
    step_s: float,
) -> Diagnosis | None:
    """Find the first number that is not finite; None if the repetition takes too long, or does
    not meet it again. make : an engine as at the start of the run. step_s : the time of an update
    in the run.
    """
    first = 0 if kept is None else kept.iteration
    if step_s * (met.iteration + 1 - first) > MOST_S:
        return None
    engine, batches = make(), Batches(job)
    engine.bind(batches.data)
    if kept is not None:
        engine.recall(kept.memory, kept.updates)
    begun, losses = perf_counter(), []
    before: Memory = {}
    for iteration in range(first, met.iteration + 1):
        if perf_counter() - begun > PATIENCE_S:
            return None
        before, updates = copied(engine.memory()), engine.updates
        rows, sample = batches.at(iteration)
        loss = engine.step(rows, iteration=iteration, first_sample=sample)
        losses.append(loss)
        if np.isfinite(loss) and is_finite(engine.memory()):
            continue
        broken = [n for n, a in engine.memory()["parameter"].items() if not np.isfinite(a).all()]
        engine.recall(before, updates)
        text = _what(job, batches, engine, iteration, before["parameter"], losses, broken)
        return Diagnosis(text, iteration, before)
    return None


def batch(job: Job, iteration: int) -> tuple[np.ndarray, int]:
    """The rows of the data that an update reads, and the global number of the first sample."""
    pieces, size = job.data.pieces, job.batch_size
    n = len(job.data) // pieces
    epoch, step = divmod(iteration, job.iterations_per_epoch)
    lengths, seed = job.data.lengths, job.network.seed
    rows = BatchRows(n, size, pieces, seed, epoch, lengths, job.buckets)
    return rows[step], epoch * n + step // pieces * size


class Batches:
    """The batches that an engine reads. ``data`` : the data set that it is bound to."""

    def __init__(self, job: Job) -> None:
        self.job, self._changed = job, job.batches()
        self.data = job.data if self._changed is None else self._changed.data

    def at(self, iteration: int) -> tuple[np.ndarray, int]:
        """The rows of ``data`` that an update reads, and the global number of the first sample; the
        rows of the call before may have changed.
        """
        rows, sample = batch(self.job, iteration)
        if self._changed is not None:
            rows = self._changed.read(rows, iteration // self.job.iterations_per_epoch + 1)
        return rows, sample


def copied(memory: Memory) -> Memory:
    return {k: {name: a.copy() for name, a in arrays.items()} for k, arrays in memory.items()}


def is_finite(memory: Memory) -> bool:
    return all(np.isfinite(a).all() for arrays in memory.values() for a in arrays.values())


def _what(
    job: Job,
    batches: Batches,
    engine: Engine,
    iteration: int,
    arrays: Mapping[str, np.ndarray],
    losses: list[float],
    broken: list[str],
) -> str:
    """The first number of a batch that is not finite. broken : arrays that are not, after it."""
    rows, sample = batch(job, iteration)
    read, _ = batches.at(iteration)
    with np.errstate(all="ignore"):
        seen = engine.probe(read, iteration=iteration, first_sample=sample)
    cause = Cause(job, arrays, losses, iteration)
    memory = engine.memory()
    found = trouble.BrokenBatch(job, batches.data, arrays, memory, read, sample, iteration)
    first = _first_sent(found, seen)
    if first is not None:
        layer, row, step, neuron, n_bad = first
        others = f", as {n_bad - 1} more of the layer do" if n_bad > 1 else ""
        said = _found(partial(found.forward, layer, row, neuron, seen, step))
        sent = seen[f"{layer.name}.output"][row]
        return cause.message(
            f"Neuron {neuron} of {layer.name} ({layer.neuron.__name__})",
            f"feeds forward {(sent[step] if job.network.steps else sent)[neuron]} for "
            f"{_sample(job, rows[row], step)}{others}",
            said,
            _unheard(layer, neuron),
        )
    if not np.isfinite(seen["loss"]):
        which, said = _broken_loss(found, seen, len(rows))
        name = job.network.loss_in_words or "the loss"
        where = "" if which is None else f" of {_sample(job, rows[which[0]], which[1])}"
        return cause.message(f"The loss {name!r}{where}", f"is {float(seen['loss'])}", said)
    gradients = {k: v for k, v in seen.items() if k.endswith(".gradient")}
    for layer in reversed(job.network.layers[1:]):
        for name in layer.learned:
            gradient = gradients.get(f"{name}.gradient")
            if gradient is not None and not np.isfinite(gradient).all():
                n_bad = int((~np.isfinite(gradient)).sum())
                one, last = _last_back(seen)
                if one is None and job.data.pieces == 1:
                    one = _row_of(engine, read, iteration, sample, f"{name}.gradient")
                said = _found(partial(found.backward, one))
                if said is not None and said.step is not None:
                    last = said.step
                whose = "" if one is None else f", {_sample(job, rows[one], last)}"
                return cause.message(
                    f"Of {name} ({layer.neuron.__name__}){whose}",
                    f"{n_bad} of {gradient.size} gradients are not finite",
                    said,
                )
    place = (
        f"Every output and gradient is finite, but the update of {', '.join(broken) or 'nothing'}"
    )
    rate = job.optimizer.rate(iteration)
    most = max((float(np.abs(g).max(initial=0.0)) for g in gradients.values()), default=0.0)
    if broken and rate * max(most, 1.0) > float(np.finfo(job.dtype).max):
        return (
            f"{place} is not. Gradients are {most:.3g} at most; times the learning rate ({rate:g}) "
            f"that is more than {job.dtype} can hold: the learning rate is too high. Try 0.1"
        )
    return cause.message(place, "is not", None)


def _unheard(layer: Layer, neuron: int) -> str:
    """What to say of a neuron that hears no message, else ""."""
    lists = [link.edges for link in layer.links]
    if any(each is None or each.indptr[neuron] < each.indptr[neuron + 1] for each in lists):
        return ""
    each = layer.links[0].connection
    if not isinstance(each, Windows) or isinstance(each.padding, str):
        return "It hears no message"
    if isinstance(each, TransposedConvolution):  # whose windows are those of the layer below
        return "It hears no message: no window of the layer below reaches it"
    said = f"its window, of kernel={each.kernel} with padding={each.padding!r}, lies outside of"
    remedy = "With a padding below the kernel each window holds something"
    return f"It hears no message: {said} the layer below. {remedy}"


def _sample(job: Job, row: int, step: int | None) -> str:
    """The name of a sample of the data, with the step of its sequence where that is known."""
    whole, piece = divmod(int(row), job.data.pieces)
    which = f"{'sample' if job.data.pieces == 1 else 'lane'} {whole} of the data"
    if not job.network.steps or step is None:
        return which
    return f"step {piece * job.network.steps + step} of {which}"


def _first_sent(
    found: trouble.BrokenBatch, seen: Mapping[str, np.ndarray]
) -> tuple[Layer, int, int, int, int] | None:
    """The first output that is not finite, in the order of computation: layer, row, step, neuron,
    and the number of such outputs of the layer. Within a layer the first sample counts; in
    sequences the first step.
    """
    network, bad = found.network, []
    levels = by_reversals(network)
    for layer in network.layers[1:]:
        outputs = seen[f"{layer.name}.output"]
        in_time = outputs.reshape(len(outputs), -1, layer.size)
        rows, steps, neurons = np.nonzero(~np.isfinite(in_time))
        if len(rows):
            k = np.lexsort((neurons, rows, steps))[0]
            n_bad = len(np.unique(neurons[steps == steps[k]]))
            where = int(rows[k]), int(steps[k]), int(neurons[k]), n_bad
            bad.append(((levels[layer.index], where[1], layer.index), (layer, *where)))
    return min(bad, key=lambda each: each[0])[1] if bad else None


def _last_back(seen: Mapping[str, np.ndarray]) -> tuple[int | None, int | None]:
    """The row and the last step of a sequence where a delta is not finite, which is its origin."""
    bad = [
        (int(step), int(row))
        for name, deltas in seen.items()
        if ".delta" in name and deltas.ndim == 3
        for row, step, _ in np.argwhere(~np.isfinite(deltas))
    ]
    return (max(bad)[1], max(bad)[0]) if bad else (None, None)


def _found(search: Callable[[], trouble.BrokenOperation | None]) -> trouble.BrokenOperation | None:
    """The interpreter's finding; None where it cannot run the neuron."""
    try:
        return search()
    except (HornError, ArithmeticError, ValueError) as error:
        raised = error.__cause__ if isinstance(error, HornError) else error
        if not isinstance(raised, (ArithmeticError, ValueError)):
            return None
        # of sums where nothing is heard
        remedy = "Ask before: x / y if y > 0.0 else 0.0; sums of a neuron that hears nothing are 0."
        return trouble.BrokenOperation(user_text.error_of(raised), remedy)


def _broken_loss(
    found: trouble.BrokenBatch, seen: Mapping[str, np.ndarray], n_rows: int
) -> tuple[tuple[int, int] | None, trouble.BrokenOperation | None]:
    """The first row and step of its sequence where the loss is broken, and the finding."""
    for row in range(n_rows):
        for step in range(found.n_steps(row)):
            said = _found(partial(found.loss, row, seen, step))
            if said is not None:
                return (row, step), said
    return None, None


def _row_of(engine: Engine, rows: np.ndarray, iteration: int, sample: int, name: str) -> int | None:
    """The first row that by itself makes this gradient not finite."""
    for k in range(len(rows)):
        with np.errstate(all="ignore"):
            one = engine.probe(rows[k : k + 1], iteration=iteration, first_sample=sample + k)
        if not np.isfinite(one[name]).all():
            return k
    return None


class Cause:
    """The evidence of the numbers: how large the weights are, and how large they were."""

    def __init__(
        self, job: Job, arrays: Mapping[str, np.ndarray], losses: list[float], iteration: int
    ) -> None:
        self.job, self.iteration = job, iteration
        first = job.network.initial_parameters(np.dtype(job.dtype))
        self.start, self.now = largest(first), largest(arrays)
        known = [loss for loss in losses if np.isfinite(loss)]
        self.losses = (known[0], known[-1]) if known else None

    @property
    def is_rate(self) -> bool:
        """Whether the weights grew by more than in a training that goes well."""
        return self.now > GREW * max(self.start, 1.0)

    def message(
        self, place: str, what: str, said: trouble.BrokenOperation | None, unheard: str = ""
    ) -> str:
        """unheard : of a neuron that hears no message, and whose line is not known, the cause."""
        parts = [f"{place} {what}."]
        if said is not None:
            parts = [f"{said.error}\n{place} {what}."]
        weights = f"the largest weight is {self.now:.3g}, {self.start:.3g} at the start"
        if self.is_rate:
            step, remedy = too_far(self.job, self.job.optimizer.rate(self.iteration))
            parts.append(f"The weights grew ({weights}): {step}. Try {remedy}")
        elif said is not None:
            remedy = f"{said.remedy}\n" if said.error.file else ""  # else horn's own code
            parts.append(
                f"{remedy}The weights did not grow ({weights}): it is not the learning rate"
            )
        elif unheard:
            parts.append(unheard)
        else:
            parts.append(
                f"The weights did not grow ({weights}), so it is not the learning rate: look for "
                f"log or sqrt of a negative number, a division by 0, exp of a large one"
            )
        return "\n".join(parts)


def largest(arrays: Mapping[str, np.ndarray]) -> float:
    """The largest magnitude of learned numbers; 0.0 of none."""
    return max((float(np.abs(a).max(initial=0.0)) for a in arrays.values()), default=0.0)
