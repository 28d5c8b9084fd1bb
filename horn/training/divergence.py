"""Divergence: what was met, where it was first seen, and what to try instead.

Read off a job, its history and its weights; the cause is looked for afterwards, by repeating the
batch (horn/training/diagnosis.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn.backends import Array, Engine, Memory
from horn.data import Dataset
from horn.errors import Diverged
from horn.job import Job
from horn.network import Network
from horn.neuron import mentions
from horn.optimizers import Direct, of_this_file

KEPT_EVERY = 100  # iterations between copies of small arrays: below a hundredth of the time,
KEPT_BYTES = 1 << 26  # and of larger ones none
CHECKED_AT_ONCE = 1 << 20  # numbers that are looked at together for NaN and infinity
GREW = 1000.0  # a loss that ends so many times above its best has diverged
MOST_RATE, LESS_RATE = 100.0, 0.1  # a tenth of more is too high as well: what to try then
FAR = 10.0  # features and targets that reach further make steep gradients
NORMALIZE = "normalize=True in horn.Job, StandardScaler() before an estimator"
UNLEARNED = 3  # epochs after which nothing was learned if no loss is below that of guessing,
BELOW, ABOVE = 0.99, 1.1  # nor the last two far above, whence they may fall; these are means of
# an epoch, while weights change


@dataclass(frozen=True)
class NonFinite:
    """The first NaN or infinity of a training. what : in words, as in "the loss became nan"."""

    what: str
    iteration: int
    epoch: int


@dataclass(frozen=True)
class KeptArrays:
    """A copy of all arrays that updates change, after ``iteration`` updates: a search for the cause
    of NaN begins there.
    """

    iteration: int
    updates: int
    memory: Memory


class DivergenceGuard:
    """Looks for NaN and infinity while a job trains, and copies the arrays now and then, so that
    the cause can be looked for from there.

    is_share : the engine has a share of the arrays, so that an error cannot name the neuron, and
    nothing is copied; ``trouble`` has its place. views : gives the learned arrays without copying
    them.
    """

    def __init__(
        self,
        job: Job,
        engine: Engine,
        is_share: bool = False,
        views: Callable[[], Mapping[str, Array]] | None = None,
    ) -> None:
        self.job, self.engine, self.is_share = job, engine, is_share
        self._views = views or engine.parameters
        self.kept: KeptArrays | None = None
        self.trouble: NonFinite | None = None

    def keep(self, iteration: int, least: int = KEPT_EVERY) -> None:
        """Copy the arrays, if ``least`` iterations have passed since the last copy."""
        since = iteration - (self.kept.iteration if self.kept else 0)
        if self.is_share or since < least:
            return
        memory = self.engine.memory()
        if sum(a.nbytes for kind in memory.values() for a in kind.values()) <= KEPT_BYTES:
            copies = {k: {n: a.copy() for n, a in kind.items()} for k, kind in memory.items()}
            self.kept = KeptArrays(iteration, self.engine.updates, copies)

    def check(self, iteration: int, epoch: int) -> None:
        """Raise Diverged unless all learned arrays are finite, after update ``iteration``."""
        if not all(map(_is_finite, self._views().values())):
            raise self.diverged("a weight is not finite", iteration, epoch)

    def diverged(self, what: str, iteration: int, epoch: int) -> Diverged:
        """The error of what was met, which is ``trouble`` from now on. what : in words."""
        self.trouble = NonFinite(what, iteration, epoch)
        if self.is_share:
            return Diverged(what)
        return diverged(self.job, self.engine.parameters(), self.trouble, self.kept)


def _is_finite(array: Array) -> bool:
    """Whether all numbers of an array are finite; in pieces, which need little memory."""
    step = max(CHECKED_AT_ONCE * len(array) // max(array.size, 1), 1)
    pieces = (array[start : start + step] for start in range(0, len(array), step))
    return all(np.isfinite(piece).all() for piece in pieces)


def diverged(
    job: Job, parameters: Mapping[str, Array], met: NonFinite, kept: KeptArrays | None = None
) -> Diverged:
    """Make the error of a divergence: the place where it was first seen, and the size of the
    weights, by the ``parameters`` that are given; the cause is looked for afterwards
    (horn/training/diagnosis.py).
    """
    where = _first_bad_layer(job.network, parameters)
    step, remedy = too_far(job, job.optimizer.rate(met.iteration))
    error = Diverged(
        f"{when(met)} {where} What made it is not known. Perhaps {step}: try {remedy}. Or log, "
        "sqrt, exp or / is taken where it has no number"
    )
    error.met, error.kept = met, kept
    return error


def too_far(job: Job, rate: float) -> tuple[str, str]:
    """What takes weights too far, and what to try instead: only what this job would heed. rate :
    the learning rate.
    """
    layers, tries = job.network.layers[1:], []
    unread = [x.neuron for x in layers if not mentions(x.neuron, None, "learning_rate")]
    is_direct = isinstance(job.optimizer, Direct)
    is_pushed = is_direct and any(mentions(neuron, None, "push") for neuron in unread)
    if is_pushed:
        tries.append(
            "smaller pushes (horn.Direct adds them as they are, whatever its rate, which counts "
            "where a neuron pushes self.learning_rate times the change)"
        )
    if not is_pushed or job.network.judged or len(unread) < len(layers):
        where = " for what goes by it" if is_pushed else ""
        less = rate / 10 if rate <= MOST_RATE else LESS_RATE
        tries.append(f"a learning rate of {less:g}{where}")
    if job.optimizer.clip_norm is None:
        kind = type(job.optimizer).__name__
        where = f"horn.{kind}(..., clip_norm=1.0)" if kind.lower() in of_this_file() else kind
        tries.append(f"clip_norm=1.0 in the optimizer, {where}")
    if (far := _reach(_numbers(job))) > FAR:
        tries.append(f"smaller targets, y / {far:.3g}: they reach {far:.3g}")
    if (far := _reach(_features(job))) > FAR:
        tries.append(f"smaller features, which reach {far:.3g}: {NORMALIZE}")
    step = (
        "what is pushed is too large" if is_pushed else f"the learning rate is too high ({rate:g})"
    )
    return step, ", or ".join(tries)


def _reach(numbers: Array | None) -> float:
    return 0.0 if numbers is None else float(np.abs(numbers).max(initial=0.0))


def grown(history: Iterable[Mapping[str, Any]], guessing: float = math.inf) -> str:
    """A clause if the loss grew a thousandfold, else "": the last epoch's is more than GREW times
    the lowest epoch's, and more than the first one's; or than ``of_guessing``, as where it grew
    within the first epoch.
    """
    losses = [(row["loss"], row["epoch"]) for row in history if row.get("loss") is not None]
    if not losses:
        return ""
    (first, _), (last, epoch), (least, at) = losses[0], losses[-1], min(losses)
    if 0.0 < least * GREW < last and last > first:
        return f"the loss grew from {least:.3g} (epoch {at}) to {last:.3g} (epoch {epoch})"
    if 0.0 < guessing * GREW < last:
        return f"the loss is {last:.3g} (epoch {epoch}), where guessing has {guessing:.2g}"
    return ""


def of_guessing(job: Job) -> float:
    """The loss of a guess: 0 for numbers, all classes alike; infinity for other kinds of output."""
    network, data = job.network, job.data
    if not _has_plain_targets(job):
        return math.inf
    name = "" if network.last.loss is None else network.last.loss.name
    per = {"cross_entropy": math.log(network.last.size),
           "binary_cross_entropy": network.last.size * math.log(2.0),
           "squared_error": 0.5}  # fmt: skip
    if (y := _numbers(job)) is not None:
        per[name] = 0.5 * float(np.square(y).sum()) / len(y)
    weight = 1.0 if data.weight is None else max(1.0, float(data.weight.mean()))
    return per.get(name, math.inf) * weight


def unlearned(job: Job, history: Iterable[Mapping[str, Any]]) -> str:
    """A sentence if classes were not learned and large features may be why, else "": in several
    epochs no loss was below that of guessing by how often each class comes, and the last ones near.
    """
    losses = [(row["loss"], row["epoch"]) for row in history if row.get("loss") is not None]
    if len(losses) < UNLEARNED or not _has_plain_targets(job):
        return ""
    last, y, guessing = job.network.last, job.data.y, of_guessing(job)
    name = "" if last.loss is None else last.loss.name
    if not name.endswith("cross_entropy"):
        return ""
    if job.data.weight is None and y.ndim == 1 and (last.size == 1 or name == "cross_entropy"):
        share = np.unique(y, return_counts=True)[1] / len(y)
        guessing = -float(np.sum(share * np.log(share)))
    (least, _), (loss, epoch), far = min(losses), losses[-1], _reach(_features(job))
    stays = max(losses[-2:])[0] <= ABOVE * guessing
    if not 0.0 < BELOW * guessing <= least or not stays or far <= FAR:
        return ""
    return (
        f"learned nothing: the loss is {loss:.3g} (epoch {epoch}), where guessing has "
        f"{guessing:.3g}, and features reach {far:.3g}. Try smaller features: {NORMALIZE}"
    )


def _has_plain_targets(job: Job) -> bool:
    """Whether y is of one output, one for each sample."""
    is_known = job.target == "labels" and isinstance(job.data, Dataset)
    return is_known and not job.network.has_several and not job.network.judges_each


def _numbers(job: Job) -> Array | None:
    """The first targets of squared errors; None of classes, and where it is not known."""
    last = job.network.last
    if not _has_plain_targets(job) or last.loss is None or last.loss.name != "squared_error":
        return None
    y = job.data.y
    if y.ndim == 1 and last.size > 1:  # classes
        return None
    return np.asarray(y[:10_000], np.float64)  # a part, since the file may be mapped


def _features(job: Job) -> Array | None:
    """The first inputs; None where they are normalized, or not known."""
    data = job.data
    if not isinstance(data, Dataset) or data.normalization is not None:
        return None
    return np.asarray(data.x[:10_000], np.float64) * data.scale


def when(met: NonFinite) -> str:
    """A sentence such as: The loss became nan at iteration 7 (epoch 1)."""
    what = met.what
    return f"{what[0].upper()}{what[1:]} at iteration {met.iteration} (epoch {met.epoch})."


def _first_bad_layer(network: Network, parameters: Mapping[str, Array]) -> str:
    largest, holder = 0.0, ""
    for layer in network.layers[1:]:
        bad = np.zeros(layer.size, bool)
        owned = [link for link in layer.links if link.tie is None]
        for link, array in [(one, name) for one in owned for name in one.weights.values()]:
            if array not in parameters:
                continue
            w = parameters[array]
            finite = np.isfinite(w)
            if link.edges is None:
                bad |= ~finite.all(axis=1)
            else:
                which = finite.reshape(-1)[link.edges.weight] if link.is_shared else finite
                bad[np.repeat(np.arange(layer.size), np.diff(link.edges.indptr))[~which]] = True
            top = float(np.abs(w, where=finite, out=np.zeros_like(w)).max(initial=0.0))
            if top > largest:
                largest, holder = top, layer.name
        for name in layer.vertex_shapes:
            if name in parameters:
                bad |= ~np.isfinite(parameters[name])[np.arange(layer.size) % layer.n_kinds]
        if bad.any():
            return (
                f"First seen in {layer.name}: {int(bad.sum())} of {layer.size} neurons "
                f"({layer.neuron.__name__}) have weights that are not finite."
            )
    return f"The weights are still finite; the largest is {largest:.2g}, in {holder}."
