"""The order of the samples in an epoch.

An epoch is a permutation, so each sample is seen exactly once. The order follows from (seed, epoch)
alone, in every task and in a resumed job.

Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011 (Philox 4x64-10, through
NumPy).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

# The high word of the counter, "order" in ASCII: no other draw by the same seed uses it.
STREAM = 0x6F72646572
BATCHES_APART = 1_000_000_007  # between the seeds that order samples and batches


def permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    """A permutation of range(n), the same everywhere: (n,) int64.

    Sorts n draws with their positions in the low bits: no two are equal, so the sorting method does
    not matter. NumPy promises the raw draws of Philox for every version, but not ``shuffle``.
    """
    if n < 0 or epoch < 0:
        raise ValueError(f"permutation(n={n}, epoch={epoch}): both must be at least 0")
    key = np.array([int(seed) & 0xFFFF_FFFF_FFFF_FFFF, epoch], dtype=np.uint64)
    counter = np.array([0, 0, 0, STREAM], dtype=np.uint64)
    draws = np.random.Philox(counter=counter, key=key).random_raw(n)
    low_bits = np.uint64((1 << max(n - 1, 0).bit_length()) - 1)
    np.bitwise_and(draws, ~low_bits, out=draws)
    np.bitwise_or(draws, np.arange(n, dtype=np.uint64), out=draws)
    draws.sort()
    np.bitwise_and(draws, low_bits, out=draws)
    return draws.view(np.int64)


@dataclass(frozen=True)
class BatchRows:
    """The rows of each batch of an epoch, by its number.

    n : the sequences, of so many pieces each (rows, 1 for samples). size : of a batch, in
    sequences; the last may be smaller. A batch has one piece of each of its sequences, and the next
    batches have the next pieces. Sequences of a single batch keep their order. lengths, buckets :
    as for ``like_lengths``, where there is more than one bucket.
    """

    n: int
    size: int
    pieces: int
    seed: int
    epoch: int
    lengths: np.ndarray | None = field(default=None, repr=False)
    buckets: int = 0

    @cached_property
    def order(self) -> np.ndarray:
        if self.pieces > 1 and self.n <= self.size:
            return np.arange(self.n, dtype=np.int64)
        order = permutation(self.n, self.seed, self.epoch)
        if self.lengths is None or self.buckets < 2:
            return order
        turns = permutation(self.n // self.size, self.seed + BATCHES_APART, self.epoch)
        return like_lengths(order, self.lengths, self.size, self.buckets, turns)

    def __getitem__(self, number: int) -> np.ndarray:
        start = number // self.pieces * self.size
        rows = self.order[start : start + self.size]
        return rows if self.pieces == 1 else rows * self.pieces + number % self.pieces

    def before(self, done: int) -> int:
        """The number of batches with the first ``done`` rows of the epoch."""
        whole, rest = divmod(done, self.size * self.pieces)
        return whole * self.pieces + -(-rest // max(min(self.size, self.n - whole * self.size), 1))


def like_lengths(
    order: np.ndarray, lengths: np.ndarray, size: int, buckets: int, turns: np.ndarray
) -> np.ndarray:
    """An order with sequences of like length in one batch: the sequences of every ``buckets``
    batches are sorted by length and cut into batches of the ``size`` again; all batches of the
    epoch then come in the order ``turns``. A smaller last batch keeps its sequences.
    """
    found = order.copy()
    whole = len(turns) * size
    for start in range(0, whole, buckets * size):
        here = order[start : min(start + buckets * size, whole)]
        found[start : start + len(here)] = here[np.argsort(lengths[here], kind="stable")]
    found[:whole] = found[:whole].reshape(-1, size)[turns].ravel()
    return found
