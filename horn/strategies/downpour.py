"""Downpour: groups train on their own; servers hold the parameters, and update them with whatever
gradients come.

Source: Dean et al. 2012, section 4.1 and algorithm 7.1; max_staleness after Ho et al. 2013 (SSP);
steps scaled by staleness after Zhang et al. 2016, eq. 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from horn.errors import JobError
from horn.job import Job
from horn.optimizers import Adagrad, Direct, Optimizer, Slots
from horn.schedules import Schedule
from horn.strategies import Array, Leave, Pull, Push, Requests, Strategy, Topology, View
from horn.strategies._pieces import Piece
from horn.strategies._server import Policy, Server

PUSHED = "pushed"


@dataclass(frozen=True)
class Accumulate(Optimizer):
    """What a replica does between pulls: the plain step, and the sum of its gradients.

    keep : whether to add to what has not been pushed yet; not, where every batch is pushed.
    """

    learning_rate: float | Schedule = 0.0
    keep: bool = True
    slots: ClassVar[tuple[str, ...]] = (PUSHED,)

    def update(
        self, w: Any, g: Any, slots: Mapping[str, Any], lr: Any, t: Any
    ) -> tuple[Any, Slots]:
        total = g if not self.keep else slots[PUSHED] + g
        return (w - lr * g if self.learning_rate else w), {PUSHED: total}


@dataclass
class Memory:
    """Of one task: the clock counts the pushes."""

    clock: int = 0
    unpushed_batches: int = 0
    unpushed_samples: int = 0


@dataclass(frozen=True)
class Downpour(Strategy):
    """push_every, pull_every : batches. max_staleness : how many pushes a group may be ahead of the
    slowest; 0 is synchronous, None unbounded. scale_by_staleness : a push that is s updates late
    counts 1/s. warm_start : batches that group 0 trains alone before the others begin.

    server_optimizer : what servers apply: "adagrad", with ``learning_rate``, as in DistBelief, or
    the "job"'s own. Momentum makes late gradients worse, so the default is adagrad; a synchronous
    Downpour, which has none, uses the job's. The job's weight decay and clipping hold for both.
    """

    push_every: int = 1
    pull_every: int = 1
    max_staleness: int | None = None
    scale_by_staleness: bool = False
    warm_start: int = 0
    server_optimizer: str | None = None
    learning_rate: float = 0.02

    name: ClassVar[str] = "downpour"
    is_asynchronous: ClassVar[bool] = True
    default_servers: ClassVar[int] = 1
    pushed_slot: ClassVar[str] = PUSHED

    def __post_init__(self) -> None:
        for what, least in (("push_every", 1), ("pull_every", 1), ("warm_start", 0),
                            ("max_staleness", 0)):  # fmt: skip
            value = getattr(self, what)
            if value is None and what == "max_staleness":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise JobError(
                    f"downpour: {what} must be a whole number from {least}, got {value!r}"
                )
        if self.server_optimizer not in (None, "adagrad", "job"):
            raise JobError(
                f'downpour: server_optimizer must be "adagrad" or "job", got '
                f"{self.server_optimizer!r}"
            )
        if not isinstance(self.scale_by_staleness, bool):
            raise JobError(
                f"downpour: scale_by_staleness is True or False, got {self.scale_by_staleness!r}"
            )
        if not isinstance(self.learning_rate, (int, float)) or not self.learning_rate > 0:
            raise JobError(f"downpour: learning_rate must be above 0, got {self.learning_rate!r}")
        if self.warm_start and self.max_staleness is not None:
            raise JobError(
                "downpour: with max_staleness nobody may be ahead, so there is no warm start; give "
                "one of the two"
            )
        if self.scale_by_staleness and self.max_staleness == 0:
            raise JobError(
                "downpour: with max_staleness=0 nothing is stale; leave scale_by_staleness out"
            )

    @property
    def applies(self) -> str:
        """What servers apply: "adagrad" or "job"."""
        return self.server_optimizer or ("job" if self.max_staleness == 0 else "adagrad")

    def check(self, job: Job, topology: Topology) -> None:
        if isinstance(job.optimizer, Direct):
            raise JobError(
                "downpour needs gradients, but Direct adds what neurons push; use allreduce"
            )
        if topology.n_groups * job.batch_size > len(job.data):
            raise JobError(
                f"downpour: {topology.n_groups} groups with batches of {job.batch_size} need "
                f"{topology.n_groups * job.batch_size} samples, but there are {len(job.data)}; use "
                f"fewer groups or a smaller batch_size"
            )

    def prepared(self, job: Job, topology: Topology) -> Job:
        """Every group has batches of its own of the job's size; a batch of each is an iteration. So
        a job of n iterations, which are updates, takes n / groups of them.
        """
        n = topology.n_groups
        changes: dict[str, Any] = {"batch_size": n * job.batch_size}
        if job.iterations is not None:
            changes["iterations"] = -(-job.iterations // n)
        if self.applies == "adagrad":
            o = job.optimizer
            changes["optimizer"] = Adagrad(
                self.learning_rate, o.weight_decay, o.clip_value, o.clip_norm
            )
        return job.with_settings(**changes)

    def optimizer(self, job: Job) -> Optimizer:
        """Weight decay and the bound of each gradient are the servers' business, who have the sum;
        the norm is that of a group's own gradient.
        """
        return Accumulate(
            job.optimizer.learning_rate if self.pull_every > 1 else 0.0,
            clip_norm=job.optimizer.clip_norm,
            keep=self.push_every > 1,
        )

    def server(self, job: Job, number: int, pieces: Sequence[Piece], topology: Topology) -> Server:
        policy = Policy(
            self.max_staleness, self.scale_by_staleness, -(-self.warm_start // self.push_every)
        )
        # The norm is the groups' business: a server cannot know it.
        optimizer = replace(job.optimizer, clip_norm=None)
        return Server(number, pieces, optimizer, topology, policy, job.dtype)

    def begin(self, view: View) -> Memory:
        return Memory()

    def returns(self, memory: Memory, clock: int) -> int:
        """What had not been pushed is computed again."""
        memory.clock = clock
        return clock * self.push_every

    def before_batch(self, memory: Memory, view: View) -> Requests:
        if view.n_batches % self.pull_every == 0:
            yield Pull(memory.clock, is_early=True)
        memory.unpushed_batches += 1
        memory.unpushed_samples += view.n_samples
        if memory.unpushed_batches == self.push_every:
            gradients = _gradients(view)
            if self.push_every == 1 and not view.n_samples:  # nothing of a short batch
                _clear(gradients)
            yield Push(memory.clock, memory.unpushed_samples, gradients, is_early=True)

    def after_batch(self, memory: Memory, view: View) -> Requests:
        if memory.unpushed_batches == self.push_every:
            self._pushed(memory, view)
        yield from ()

    def at_epoch_end(self, memory: Memory, view: View) -> Requests:
        if view.group == 0:  # what is measured is what servers have
            yield Pull(memory.clock)

    def at_end(self, memory: Memory, view: View) -> Requests:
        if memory.unpushed_batches:
            yield Push(memory.clock, memory.unpushed_samples, _gradients(view))
            self._pushed(memory, view)
        yield Leave()
        if view.group == 0:
            yield Pull(memory.clock, final=True)

    def _pushed(self, memory: Memory, view: View) -> None:
        if self.push_every > 1:
            _clear(_gradients(view))
        memory.clock += 1
        memory.unpushed_batches = memory.unpushed_samples = 0


def _gradients(view: View) -> dict[str, Array]:
    ending = f"/{PUSHED}"
    return {n.removesuffix(ending): a for n, a in view.slots.items() if n.endswith(ending)}


def _clear(gradients: Mapping[str, Array]) -> None:
    for array in gradients.values():
        array.fill(0)


STRATEGY = Downpour
