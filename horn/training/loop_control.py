"""Who hears of a training loop's steps, and decides with it."""

from __future__ import annotations

from typing import Any


class LoopControl:
    """What a loop tells and asks between its updates; by itself it decides nothing. A process that
    trains alone, or one of a group, overrides what it needs.
    """

    def before_update(self, iteration: int) -> None:
        """Called with the number of each update, from 0, before it."""

    def own_loss(self) -> tuple[float, int] | None:
        """The loss of the group's own samples in the last batch, and their number; None where
        there is one group.
        """
        return None

    def after_update(self, epoch: int, iteration: int, loss: float | None) -> bool:
        """Called after each update, before ``at_boundary``, with its epoch, the updates so far and
        its loss, None where this group had no sample; returns whether its epoch, and training, end
        with it.
        """
        return False

    def at_boundary(self) -> bool:
        """Called after each update, of the last one in an epoch that another follows after the
        epoch's end; returns whether to stop there, and then the loop ``is_halted``.
        """
        return False

    def before_measuring(self) -> None:
        """Called at the end of each epoch."""

    def after_epoch(self, epoch: int, stop: bool) -> bool:
        """Called after each epoch with its number and whether this group wants to stop; returns
        whether all stop.
        """
        return stop

    def before_end(self) -> None:
        """Called after the last step."""

    def memory(self) -> dict[str, Any]:
        """The state of callbacks, for the cursor."""
        return {}
