"""Downpour: groups train on their own; servers hold the parameters, and update them with every
change or gradient that arrives.

Source: Dean et al. 2012, section 4.1 and algorithm 7.1; changes of several local steps as in Zhang,
Choromanska & LeCun 2015, algorithm 3, each of which counts as the part of the groups that it is
from; max_staleness after Ho et al. 2013 (SSP); steps scaled by staleness after Zhang et al. 2016,
eq. 5. Why changes are the default: docs/notes/0089.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from horn import schedules
from horn.errors import JobError, ModelError, check_whole
from horn.job import Job
from horn.mistakes import teaches
from horn.optimizers import SGD, Adagrad, Optimizer, Updated, with_settings
from horn.parameter_server.pieces import ParameterPiece
from horn.parameter_server.server import ParameterServer
from horn.parameter_server.updates import Policy
from horn.schedules import LearningRate
from horn.strategies import (
    Array,
    Leave,
    Pull,
    Push,
    Requests,
    Strategy,
    Topology,
    View,
    check_takes_gradients,
    in_words,
    rare_exchange,
)
from horn.strategies._aside import OwnWeights

PUSHED = "pushed"
AVERAGE, ADAGRAD, JOB = "average", "adagrad", "job"  # optimizers that servers may apply
LOCAL_STEPS = 10  # between pushes of changes


@dataclass(frozen=True)
class ReplicaOptimizer(Optimizer):
    """A replica's optimizer, with the rates and the clip_norm of ``inner``, the job's.

    keep : whether to add to what is not pushed yet; False where every batch is pushed.
    """

    inner: Optimizer = field(default_factory=SGD)
    keep: bool = True

    @classmethod
    def of(cls, inner: Optimizer, keep: bool, **settings: Any) -> Self:
        return cls(inner=inner, keep=keep, clip_norm=inner.clip_norm, **settings)

    def rate(self, iteration: int) -> float:
        return self.inner.rate(iteration)

    def clip_factor(self, norm: Any) -> Any:
        return self.inner.clip_factor(norm)


@dataclass(frozen=True)
class Accumulate(ReplicaOptimizer):
    """Between pulls it takes the plain step, if ``steps``, and sums the gradients."""

    steps: bool = False
    slots: ClassVar[tuple[str, ...]] = (PUSHED,)

    def update(self, w: Any, g: Any, slots: Mapping[str, Any], lr: Any, t: Any) -> Updated:
        total = g if not self.keep else slots[PUSHED] + g
        return (w - lr * g if self.steps else w), {PUSHED: total}


@dataclass(frozen=True)
class Moving(ReplicaOptimizer):
    """An optimizer with the steps of ``inner``. It sums what they subtract from the weights, for
    servers to subtract, too.
    """

    @property
    def slots(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.inner.kept_slots, PUSHED)

    @property
    def tells_pushes_apart(self) -> bool:
        return self.inner.tells_pushes_apart

    def of_derived(self, g: Any, lr: Any) -> Any:
        return self.inner.of_derived(g, lr)

    def prepared(self, g: Any, w: Any = None) -> Any:
        return self.inner.prepared(g, w)

    def update(self, w: Any, g: Any, slots: Mapping[str, Any], lr: Any, t: Any) -> Updated:
        known = {name: slots.get(name, 0.0) for name in self.inner.slots}
        new, found = self.inner.update(w, g, known, lr, t)
        change = w - new if not self.keep else slots[PUSHED] + (w - new)
        kept = {name: found.get(name, known[name]) for name in self.inner.kept_slots}
        return new, kept | {PUSHED: change}


@dataclass
class DownpourMemory(OwnWeights):
    """The memory of one task; clock counts its pushes."""

    clock: int = 0
    unpushed_batches: int = 0
    unpushed_samples: int = 0


@teaches
@dataclass(frozen=True)
class Downpour(Strategy):
    """Groups push to servers and pull from them. push_every, pull_every : batches; by default 10
    where changes are pushed, else 1. max_staleness : how many pushes a group may be ahead of the
    slowest; 0 is synchronous, None unbounded. scale_by_staleness : a push that is s updates late
    counts 1/s. warm_start : batches that group 0 trains alone before the others begin.

    server_optimizer : the optimizer of servers. "average", the default: groups take the steps of
    the job's optimizer, each with its part of every batch, and push the changes of their weights;
    servers add these, divided by the number of groups. Else groups push gradients, of batches of
    their own: "adagrad" applies ``learning_rate`` (a number, or a schedule or a function of the
    server's updates) as in DistBelief, "job" the job's own optimizer, and an optimizer itself.
    Momentum makes late gradients worse; a synchronous Downpour has none, and the job's optimizer
    by default. The job's weight decay and clipping hold for all but an optimizer that is given.
    """

    push_every: int | None = None
    pull_every: int | None = None
    max_staleness: int | None = None
    scale_by_staleness: bool = False
    warm_start: int = 0
    server_optimizer: str | Optimizer | None = None
    learning_rate: LearningRate = 0.02

    name: ClassVar[str] = "downpour"
    is_asynchronous: ClassVar[bool] = True
    default_servers: ClassVar[int] = 1
    pushed_slot: ClassVar[str] = PUSHED

    def __post_init__(self) -> None:
        for what, least in (("push_every", 1), ("pull_every", 1), ("warm_start", 0),
                            ("max_staleness", 0)):  # fmt: skip
            value = getattr(self, what)
            if value is not None or what == "warm_start":
                check_whole(f"downpour: {what}", value, least)
        known, given = (AVERAGE, ADAGRAD, JOB), self.server_optimizer
        is_optimizer = isinstance(given, Optimizer) and not given.tells_pushes_apart
        if given is not None and not is_optimizer and given not in known:
            raise JobError(
                f'downpour: server_optimizer must be "average", "adagrad", "job" or an optimizer '
                f"such as horn.Adam(0.001), got {given!r}"
            )
        if is_optimizer and getattr(given, "clip_norm", None) is not None:
            raise JobError(
                f"downpour: server_optimizer={given!r} has a clip_norm, but no server knows the "
                f"norm of a whole gradient; give it to the job's optimizer"
            )
        scales, rate = self.scale_by_staleness, self.learning_rate
        if not isinstance(scales, bool):
            raise JobError(f"downpour: scale_by_staleness is True or False, got {scales!r}")
        if isinstance(rate, (int, float)) and not 0 < rate < math.inf:
            raise JobError(f"downpour: learning_rate must be above 0, and finite, got {rate!r}")
        try:
            schedules.check(rate, "downpour")
        except ModelError as error:
            raise JobError(str(error)) from error
        if self.warm_start and self.max_staleness is not None:
            raise JobError(
                "downpour: with max_staleness nobody may be ahead, so there is no warm start; give "
                "one of the two"
            )
        if scales and self.max_staleness == 0:
            raise JobError(
                "downpour: with max_staleness=0 nothing is stale; leave scale_by_staleness out"
            )
        if self.averages and self.max_staleness == 0:
            raise JobError(
                "downpour: with max_staleness=0 servers apply the gradient of all groups; leave "
                'server_optimizer="average" out, or take strategy="averaging"'
            )

    @property
    def applies(self) -> str | Optimizer:
        """The servers' optimizer: "average", "adagrad", "job" or an object."""
        return self.server_optimizer or (JOB if self.max_staleness == 0 else AVERAGE)

    @property
    def averages(self) -> bool:
        """Whether changes are pushed; else gradients are."""
        return self.applies == AVERAGE

    @property
    def push_batches(self) -> int:
        """The batches between two pushes."""
        return self.push_every or (LOCAL_STEPS if self.averages else 1)

    @property
    def pull_batches(self) -> int:
        """The batches between two pulls."""
        return self.pull_every or (self.push_batches if self.averages else 1)

    @property
    def changeable(self) -> tuple[str, ...]:
        """Changes are added whatever optimizer they came from; gradients are for that of before."""
        return (*super().changeable, *(("optimizer",) if self.averages else ()))

    def check(self, job: Job, topology: Topology) -> None:
        if not self.averages:
            pushes_changes = 'server_optimizer="average" without max_staleness=0'
            check_takes_gradients(in_words(self), job.optimizer, f"allreduce, or {pushes_changes}")
        n = topology.n_groups
        if self.averages:
            if n > job.batch_size:
                raise JobError(
                    f"downpour: {n} groups share each batch, but it has {job.batch_size} samples; "
                    f"use fewer groups, a larger batch_size, or "
                    f'strategy.server_optimizer="adagrad" or "job", with which every group has '
                    f"batches of its own"
                )
        elif n * job.batch_size > len(job.data):
            raise JobError(
                f"downpour: {n} groups with batches of {job.batch_size} need {n * job.batch_size} "
                f"samples, but there are {len(job.data)}; use fewer groups or a smaller batch_size"
            )

    def prepared(self, job: Job, topology: Topology) -> Job:
        """The job for the groups to run. Where gradients are pushed, every group has batches of its
        own of the job's size, and an iteration is a batch of each: a job of n updates has n /
        groups of them. Where changes are pushed, the groups share the job's batches.
        """
        if self.averages:
            return job
        n = topology.n_groups
        changes: dict[str, Any] = {"batch_size": n * job.batch_size}
        if job.iterations is not None:
            changes["iterations"] = -(-job.iterations // n)
        o = job.optimizer
        if isinstance(self.applies, Optimizer):
            changes["optimizer"] = self.applies
        elif self.applies == ADAGRAD:
            changes["optimizer"] = Adagrad(
                self.learning_rate, weight_decay=o.weight_decay, clip_value=o.clip_value,
                clip_norm=o.clip_norm,
            )  # fmt: skip
        return job.with_settings(**changes)

    def advice(self, job: Job) -> str:
        return rare_exchange(job, "strategy.push_every", self.push_batches)

    def optimizer(self, job: Job) -> Optimizer:
        """A group's optimizer. Servers apply weight decay and clip_value to gradients; clip_norm is
        for the norm of a group's own gradient.
        """
        o, keep = job.optimizer, self.push_batches > 1
        if self.averages:
            return Moving.of(o, keep)
        return Accumulate.of(o, keep, steps=self.pull_batches > 1)

    def server(
        self, job: Job, number: int, pieces: Sequence[ParameterPiece], topology: Topology
    ) -> ParameterServer:
        warm_start = -(-self.warm_start // self.push_batches)
        policy = Policy(self.max_staleness, self.scale_by_staleness, warm_start, self.averages)
        # No server knows the norm of a whole gradient: groups clip it.
        optimizer = SGD(1.0) if self.averages else with_settings(job.optimizer, clip_norm=None)
        return ParameterServer(number, pieces, optimizer, topology, policy, job.dtype)

    def begin(self, view: View) -> DownpourMemory:
        return DownpourMemory()

    def returns(self, memory: DownpourMemory, clock: int) -> int:
        """Resume at the last push: later batches are computed again."""
        memory.clock = clock
        return clock * self.push_batches

    def before_batch(self, memory: DownpourMemory, view: View) -> Requests:
        memory.take_back(view)
        if view.n_batches % self.pull_batches == 0:
            yield Pull(memory.clock, is_early=True)
        memory.unpushed_batches += 1
        memory.unpushed_samples += view.n_samples
        batches = view.n_batches + 1  # with the coming one
        if batches % self.push_batches == 0:
            gradients = _gradients(view)
            if self.push_batches == 1 and not view.n_samples:  # a short batch has none for it
                _clear(gradients)
            n = memory.unpushed_samples
            yield Push(memory.clock, n, gradients, is_early=True, batches=batches)

    def after_batch(self, memory: DownpourMemory, view: View) -> Requests:
        if view.n_batches % self.push_batches == 0:
            self._pushed(memory, view)
        yield from ()

    def at_epoch_end(self, memory: DownpourMemory, view: View) -> Requests:
        if view.group == 0:  # it measures the servers' parameters
            if view.n_batches % self.pull_batches:  # else the next batch pulls
                memory.set_aside(view)
            yield Pull(memory.clock)

    def at_end(self, memory: DownpourMemory, view: View) -> Requests:
        if memory.unpushed_batches:
            n = memory.unpushed_samples
            yield Push(memory.clock, n, _gradients(view), batches=view.n_batches)
            self._pushed(memory, view)
        yield Leave()
        if view.group == 0:
            yield Pull(memory.clock, final=True)

    def _pushed(self, memory: DownpourMemory, view: View) -> None:
        if self.push_batches > 1:
            _clear(_gradients(view))
        memory.clock += 1
        memory.unpushed_batches = memory.unpushed_samples = 0


def _gradients(view: View) -> dict[str, Array]:
    """What is pushed, by parameter: 0 where no gradient reaches it."""
    made = {name: view.slots.get(f"{name}/{PUSHED}") for name in view.parameters}
    return {n: np.zeros_like(view.parameters[n]) if a is None else a for n, a in made.items()}


def _clear(gradients: Mapping[str, Array]) -> None:
    for array in gradients.values():
        array.fill(0)


STRATEGY = Downpour
