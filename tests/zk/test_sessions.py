"""Deadlines and passwords."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zk.sessions import Awake, Sessions


@given(st.integers(0, 10**9), st.integers(1, 5000), st.integers(0, 10**6))
def test_deadline_is_the_timeout_rounded_up_to_the_next_tick(
    now_ms: int, tick_ms: int, asked_ms: int
) -> None:
    sessions = Sessions(tick_ms)
    session = sessions.open(1, sessions.clamp(asked_ms), b"p" * 16)
    sessions.touch(session, now_ms)
    wait_ms = session.deadline_ms - now_ms
    assert session.timeout_ms < wait_ms <= session.timeout_ms + tick_ms
    assert session.deadline_ms % tick_ms == 0
    assert sessions.expired(session.deadline_ms - 1) == []
    assert sessions.expired(session.deadline_ms) == [1]


def test_session_is_found_by_its_own_password_only() -> None:
    sessions = Sessions(500)
    session = sessions.open(7, 1000, b"p" * 16)
    assert sessions.find(7, b"p" * 16) is session
    for ident, password in [(7, b"q" * 16), (7, b""), (8, bytes(16)), (8, b"p" * 16)]:
        assert sessions.find(ident, password) is None


def test_after_a_restart_everyone_has_a_full_timeout() -> None:
    sessions = Sessions(500)
    for ident in (1, 2):
        sessions.open(ident, 1000, b"p" * 16)
    sessions.touch_all(10_000)
    assert sessions.expired(11_400) == [] and sessions.expired(11_500) == [1, 2]


def test_time_in_which_the_server_stood_still_counts_for_no_one() -> None:
    awake, sessions = Awake(500, 10_000), Sessions(500)
    session = sessions.open(1, 1000, b"p" * 16)
    sessions.touch(session, awake.look(10_000))
    # a standstill of 13 s, and what a look counts for at most
    assert sessions.expired(awake.look(23_000)) == []
    assert awake.still_ms == 13_000 - 625
    # and from then on its time runs as ever
    assert sessions.expired(awake.look(23_500)) == []
    assert sessions.expired(awake.look(24_000)) == [1]


@given(st.integers(1, 5000), st.lists(st.integers(0, 60_000), max_size=30))
def test_a_look_counts_for_a_tick_and_a_quarter_at_most(tick_ms: int, gaps_ms: list[int]) -> None:
    awake, clock_ms, counted_ms = Awake(tick_ms, 0), 0, 0
    for gap_ms in gaps_ms:
        clock_ms += gap_ms
        before_ms, counted_ms = counted_ms, awake.look(clock_ms)
        assert counted_ms - before_ms == min(gap_ms, tick_ms + tick_ms // 4)
    assert counted_ms + awake.still_ms == clock_ms
