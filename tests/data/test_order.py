"""Laws of the epoch's order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horn.data import permutation

SEEDS = st.integers(-(2**63), 2**64 - 1)
EPOCHS = st.integers(0, 2**40)


@given(n=st.integers(0, 3000), seed=SEEDS, epoch=EPOCHS)
def test_every_sample_is_seen_exactly_once(n, seed, epoch):
    order = permutation(n, seed, epoch)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(n))


@given(n=st.integers(0, 300), seed=SEEDS, epoch=EPOCHS)
def test_the_order_follows_from_seed_and_epoch_alone(n, seed, epoch):
    first = permutation(n, seed, epoch)
    permutation(n, seed, epoch + 1)  # no hidden state
    np.testing.assert_array_equal(permutation(n, seed, epoch), first)


@given(seed=SEEDS, epoch=EPOCHS)
def test_another_epoch_or_seed_is_another_order(seed, epoch):
    orders = [
        permutation(100, s, e) for s, e in [(seed, epoch), (seed, epoch + 1), (seed + 1, epoch)]
    ]
    assert len({order.tobytes() for order in orders}) == 3


def test_the_order_is_the_same_on_every_machine():
    # Written down once; a change here changes every training run.
    assert permutation(10, 0, 0).tolist() == [2, 3, 5, 7, 0, 6, 1, 4, 9, 8]
    assert permutation(10, 7, 3).tolist() == [6, 9, 5, 0, 8, 4, 7, 2, 3, 1]


def test_all_places_are_equally_likely():
    # 2,000 epochs of 5: each sample is in each place 400 times, give or take 5 standard deviations
    orders = np.stack([permutation(5, 0, epoch) for epoch in range(2000)])
    counts = np.stack([(orders == sample).sum(axis=0) for sample in range(5)])
    assert np.abs(counts - 400).max() < 5 * np.sqrt(2000 * 0.2 * 0.8)


def test_numbers_below_zero_are_refused():
    with pytest.raises(ValueError, match="both must be at least 0"):
        permutation(-1, 0, 0)
    with pytest.raises(ValueError, match="both must be at least 0"):
        permutation(3, 0, -1)
