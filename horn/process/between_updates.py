"""What a task process does between updates besides training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from horn.process.decisions import BY_BATCH, Decisions
from horn.runtime.group import Group
from horn.strategies import TaskEngine
from horn.training.hooks import Hooks
from horn.training.loop import TrainingLoop
from horn.training.loop_control import LoopControl
from horn.training.loss_journal import LossJournal

if TYPE_CHECKING:  # few tasks need them
    from horn.parameter_server.serving import ServerThread
    from horn.process.checkpoints import TaskCheckpoints
    from horn.process.reporting import Heartbeats


@dataclass(eq=False)
class BetweenUpdates(LoopControl):
    """What a task does between updates besides training. Its loop calls it, which is set later.

    guest : the server in this process. watching : the callbacks that run in every task. decisions :
    of those in the parent. saver : of checkpoints; it hears the parent. losses : where this task
    writes those of its group, for when it comes back to servers. is_leaving : hears the parent
    where no saver does; whether this group is to leave. heartbeats : None where groups are joined.
    """

    group: Group
    engine: TaskEngine
    guest: ServerThread | None
    watching: Hooks | None
    decisions: Decisions | None
    saver: TaskCheckpoints | None
    losses: LossJournal | None
    is_leaving: Callable[[], bool]
    heartbeats: Heartbeats | None = None
    loop: TrainingLoop = field(init=False)

    def __post_init__(self) -> None:
        decisions, watching = self.decisions, self.watching
        self._decides_batches = decisions is not None and decisions.run.callbacks == BY_BATCH
        self._watches_batches = watching is not None and watching.is_by_batch

    def before_update(self, iteration: int) -> None:
        self.group.state.iteration = iteration

    def own_loss(self) -> tuple[float, int]:
        return self.engine.own_loss, self.engine.own_samples

    def after_update(self, epoch: int, iteration: int, loss: float | None) -> bool:
        if self.losses is not None:
            self.losses.keep(self.loop.sums())
        if self._watches_batches:
            self.watch("on_batch_end", loss)
        if self.decisions is None or not self._decides_batches:
            return False
        return self.decisions.batch(epoch, iteration, loss)

    def at_boundary(self) -> bool:
        return self.saver is not None and self.saver()

    def before_measuring(self) -> None:
        self.engine.settle()
        self._measure(True)

    def _measure(self, measures: bool) -> None:
        if self.heartbeats is not None and self.loop.is_watcher:
            self.heartbeats.measure(measures)

    def after_epoch(self, epoch: int, stop: bool) -> bool:
        self._measure(False)
        if self.guest is not None:
            self.guest.check()
        self.group.cross()
        self.watch("on_epoch_end")
        if self.decisions is not None:
            stop = self.decisions.epoch(self.loop.iteration) or stop
        stop = stop or (self.saver is None and self.is_leaving())
        return self.engine.decide_end(epoch, stop)

    def before_end(self) -> None:
        self.engine.conclude()

    def memory(self) -> dict[str, Any]:
        return {} if self.decisions is None else self.decisions.memory

    def watch(self, hook: str, loss: float | None = None) -> None:
        """Call the callbacks that run in every task."""
        if self.watching is not None:
            self.watching.call(hook, self.loop, loss)
