"""How a wait is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horn.patience import STRIDE_S, Patience


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_it_is_over_after_its_time():
    clock = Clock()
    patience = Patience(2.0, clock)
    for _ in range(39):
        clock.now += 0.05
        assert patience.left_s() > 0
    clock.now += 0.06
    assert patience.left_s() <= 0


def test_who_stood_still_has_time_to_look():
    clock = Clock()
    patience = Patience(60.0, clock)
    clock.now += 8 * 3600
    assert patience.left_s() == 60.0 - STRIDE_S
    clock.now += 8 * 3600
    patience.renew()
    assert patience.left_s() == 60.0


def test_a_wait_goes_on_by_turns_until_time_is_over():
    clock, waits = Clock(), []

    def stand_still(seconds: float) -> None:
        waits.append(seconds)
        clock.now += 8 * 3600 if len(waits) == 1 else seconds

    patience = Patience(5.0, clock)
    while patience.wait(stand_still):
        pass
    assert waits == [1.0, 1.0, 1.0, 0.5]


@given(st.floats(0.01, 100), st.lists(st.floats(0.001, 1e6), min_size=1, max_size=50))
def test_never_sooner_than_the_clock_says_and_never_by_one_look(timeout_s, gaps):
    clock = Clock()
    patience = Patience(timeout_s, clock)
    lefts = []
    for gap in gaps:
        clock.now += gap
        lefts.append(patience.left_s())
    assert lefts[0] >= timeout_s / 2 - 1e-6
    assert lefts[-1] >= timeout_s - sum(gaps) - 1e-6
    short = min(STRIDE_S, timeout_s / 2)
    assert lefts[-1] == pytest.approx(timeout_s - sum(min(g, short) for g in gaps), abs=1e-4)
