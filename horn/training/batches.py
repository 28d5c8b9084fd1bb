"""The rows of each batch of an epoch: in the order of a permutation, or as a stream gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass

from horn.backends import Array
from horn.data.augment import AugmentedBatch
from horn.data.order import BatchRows
from horn.job import Job

DEALS_APART = 1_000_003  # between the seeds of orders that are not the same


@dataclass(eq=False)
class BatchSource:
    """Where the batches of a job come from.

    rows_of : those of a batch of n rows that this group learns from, as its engine says; it reads
    no others. deal : the number of the order of the samples; groups that began together have the
    same. take : gives the next rows of a stream, which has an order of its own; its rows cannot be
    measured again; it waits until its second argument says not to, then gives None. is_stopping :
    whether a stop is asked for, which ends such a wait. augmented : changes the rows of a batch;
    the engine is bound to its data.
    """

    job: Job
    _: KW_ONLY
    rows_of: Callable[[int], slice] = lambda n: slice(0, n)
    deal: int = 0
    take: Callable[[int, Callable[[], bool]], Array | None] | None = None
    is_stopping: Callable[[], bool] = lambda: False
    augmented: AugmentedBatch | None = None

    def __post_init__(self) -> None:
        lengths = self.job.data.lengths if self.take is None else None
        self.lengths = lengths
        # Only steps are judged, of sequences that end early: a batch counts by its steps.
        self._step_lengths = lengths if self.job.network.judges_each else None

    def order(self, epoch: int) -> BatchRows:
        """The rows of each batch of an epoch, from 1; of a stream only their numbers."""
        job, pieces = self.job, 1 if self.take is not None else self.job.data.pieces
        seed = job.network.seed + DEALS_APART * self.deal
        n = len(job.data) // pieces  # samples, or sequences
        return BatchRows(n, job.batch_size, pieces, seed, epoch - 1, self.lengths, job.buckets)

    def read(
        self, order: BatchRows, first: int, last: int, gives_up: Callable[[], bool]
    ) -> Iterator[tuple[Array, int]]:
        """The rows of the batches ``first`` to ``last`` - 1, as they are learned from, and the
        number of each batch's first sample over all epochs: by it the engine draws. Ends early
        where a stream does. gives_up : as of ``take``.
        """
        data, take, augmented = self.job.data, self.take, self.augmented
        n, size, pieces, epoch = order.n, order.size, order.pieces, order.epoch
        for number in range(first, last):
            start = number // pieces * size
            if take is None:
                rows = order[number]
                if number + 1 < last:  # this group reads only its own part of it
                    coming = order[number + 1]
                    data.expect(coming[self.rows_of(len(coming))])
            elif (taken := take(min(size, n - start), gives_up)) is not None:
                rows = taken
            else:
                return
            if augmented is not None:
                rows = augmented.read(rows, epoch + 1, self.rows_of(len(rows)))
            yield rows, epoch * n + start

    def counts(self, rows: Array) -> float:
        """The weight of a batch in an epoch's mean loss: its number of samples; if sequences end
        early and only steps are judged, their number of steps in mean lengths.
        """
        lengths = self._step_lengths
        return len(rows) if lengths is None else float(lengths[rows].sum() / lengths.mean())
