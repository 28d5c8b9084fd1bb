"""Model averaging: every so many batches the groups take the mean of their parameters; in between
each trains on its own, with its part of every batch.

Source: McDonald, Hall & Mann 2010, "Distributed training strategies for the structured perceptron"
(iterative parameter mixing); with SGD Zhang, De Sa, Mitliagkas & Re 2016 ("Parallel SGD: when does
averaging help?") and Stich 2019, "Local SGD converges fast and communicates little".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from horn.errors import check_whole
from horn.mistakes import teaches
from horn.strategies import Mean, Requests, Strategy, View


@dataclass
class AveragingMemory:
    """The memory of one task: the batch after which the last mean was taken, -1 for none."""

    averaged_at: int = -1


@teaches
@dataclass(frozen=True)
class Averaging(Strategy):
    """Averages the groups' parameters. every : batches from one mean to the next. There is one at
    the end of each epoch, too.

    Slots of optimizers are not averaged. With every=1, a batch that the groups divide evenly, in
    judged steps too, and an optimizer whose step is linear in the gradient (SGD, with momentum too)
    the mean is, up to rounding, that of allreduce.
    """

    every: int = 10

    name: ClassVar[str] = "averaging"

    def __post_init__(self) -> None:
        check_whole("averaging: every", self.every, 1)

    def begin(self, view: View) -> AveragingMemory:
        return AveragingMemory()

    def after_batch(self, memory: AveragingMemory, view: View) -> Requests:
        if view.n_batches % self.every == 0:
            yield from self._mean(memory, view)

    def _mean(self, memory: AveragingMemory, view: View) -> Requests:
        """Average, unless there was no batch since the last mean; all groups skip it alike."""
        if memory.averaged_at != view.n_batches:
            memory.averaged_at = view.n_batches
            yield Mean(list(view.parameters.values()))

    at_epoch_end = at_end = _mean


STRATEGY = Averaging
