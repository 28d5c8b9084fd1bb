"""Elastic averaging: every group trains on its own; every ``every`` batches its weights and a
centre, which servers hold, move towards each other. Nobody waits for another group.

With x a group's weights, c the centre, n groups and alpha = moving_rate / n:
x -= alpha (x - c), c += alpha (x - c), of both before the exchange.

Where groups came later, the two n differ: servers count the groups that are there, so that the
centre never moves by more than moving_rate in an exchange of all, which might not converge; a group
keeps the number of when it began.

Source: Zhang, Choromanska & LeCun 2015, "Deep learning with elastic averaging SGD", algorithm 1
(alpha = eta rho there, and moving_rate is its beta); with momentum algorithm 2, EAMSGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from horn.errors import JobError, check_whole
from horn.job import Job
from horn.mistakes import teaches
from horn.optimizers import SGD
from horn.parameter_server.pieces import ParameterPiece
from horn.parameter_server.server import ParameterServer
from horn.parameter_server.updates import Policy
from horn.strategies import (
    Array,
    Leave,
    Pull,
    Push,
    Requests,
    Strategy,
    Topology,
    View,
    rare_exchange,
)
from horn.strategies._aside import OwnWeights


@dataclass
class EasgdMemory(OwnWeights):
    """The memory of one task: clock counts its exchanges, samples those since the last. centre : a
    copy of the servers'.
    """

    clock: int = 0
    samples: int = 0
    centre: dict[str, Array] = field(default_factory=dict)


@teaches
@dataclass(frozen=True)
class EASGD(Strategy):
    """Elastic averaging. every : batches from one exchange of a group with the centre to the next.
    moving_rate : how far the centre moves towards the groups in one exchange of all of them, above
    0 and up to 1.

    Each group trains with the job's optimizer on its part of every batch. The centre is measured,
    and is the model in the end.
    """

    every: int = 10
    moving_rate: float = 0.9

    name: ClassVar[str] = "easgd"
    is_asynchronous: ClassVar[bool] = True
    default_servers: ClassVar[int] = 1

    def __post_init__(self) -> None:
        rate = self.moving_rate
        check_whole("easgd: every", self.every, 1)
        if not isinstance(rate, (int, float)) or not 0.0 < rate <= 1.0:
            raise JobError(f"easgd: moving_rate must be above 0 and up to 1, got {rate!r}")

    @property
    def changeable(self) -> tuple[str, ...]:
        """The centre moves towards the groups whatever their optimizer is."""
        return (*super().changeable, "optimizer")

    def advice(self, job: Job) -> str:
        return rare_exchange(job, "strategy.every", self.every)

    def server(
        self, job: Job, number: int, pieces: Sequence[ParameterPiece], topology: Topology
    ) -> ParameterServer:
        return ParameterServer(number, pieces, SGD(1.0), topology, Policy(averages=True), job.dtype)

    def begin(self, view: View) -> EasgdMemory:
        return EasgdMemory(centre={name: np.empty_like(a) for name, a in view.parameters.items()})

    def returns(self, memory: EasgdMemory, clock: int) -> int:
        """Resume a group that restarts from the centre."""
        memory.clock = clock
        return clock * self.every

    def before_batch(self, memory: EasgdMemory, view: View) -> Requests:
        memory.take_back(view)
        if (view.n_batches + 1) % self.every == 0:  # it comes while the batch is computed
            yield Pull(memory.clock, is_early=True, into=memory.centre)

    def after_batch(self, memory: EasgdMemory, view: View) -> Requests:
        memory.samples += view.n_samples
        if view.n_batches % self.every == 0:
            yield from self._exchange(memory, view)

    def at_epoch_end(self, memory: EasgdMemory, view: View) -> Requests:
        if view.group == 0:
            memory.set_aside(view)
            yield Pull(memory.clock)

    def at_end(self, memory: EasgdMemory, view: View) -> Requests:
        memory.take_back(view)
        if memory.samples:
            yield Pull(memory.clock, into=memory.centre)
            yield from self._exchange(memory, view)
        yield Leave()
        if view.group == 0:
            yield Pull(memory.clock, final=True)

    def _exchange(self, memory: EasgdMemory, view: View) -> Requests:
        """Move weights and centre. A server subtracts a push, divided by the number of groups."""
        alpha = self.moving_rate / view.topology.n_groups
        for name, own in view.parameters.items():
            apart = memory.centre[name]
            np.subtract(apart, own, out=apart)
            own += alpha * apart
            apart *= self.moving_rate
        # A group without samples in the last batches still moves, and so does the centre.
        n = max(memory.samples, 1)
        yield Push(memory.clock, n, memory.centre, batches=view.n_batches)
        memory.clock += 1
        memory.samples = 0


STRATEGY = EASGD
