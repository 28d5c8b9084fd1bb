"""Who gets no further, by what tasks say and the clock alone."""

from __future__ import annotations

import pytest

from horn.executor.stalls import MARGIN_S, StallDetector
from horn.process.control import (
    COMPILING,
    ENDING,
    JOINING,
    MEETING,
    READING,
    STEPS,
    WAITING,
    GroupReady,
    Heartbeat,
    StartPhase,
    TaskFinished,
)

START_S = 60.0


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def after(watch, clock, seconds):
    """Who is late within a time in which somebody looks every second."""
    found = []
    for _ in range(int(seconds)):
        clock.now += 1.0
        found += watch.take_stalled()
    return [(late.ranks, late.others, late.where) for late in found]


def a_run(clock, n=3, **settings):
    return StallDetector(range(n), lambda rank: "run", START_S, clock=clock, **settings)


def say(watch, step, *ranks):
    for rank in ranks:
        watch.hear(rank, StartPhase(step))


def test_who_is_behind_is_late_and_who_is_further_is_not(clock):
    watch = a_run(clock)
    say(watch, READING, 0, 2)
    say(watch, WAITING, 0)
    assert after(watch, clock, START_S) == []
    assert after(watch, clock, 2) == [((1,), (0, 2), f"start, {STEPS[0]}")]
    assert after(watch, clock, 2) == []  # not again


def test_each_step_of_those_behind_has_the_whole_time(clock):
    watch = a_run(clock, 2)
    for step in (READING, JOINING, WAITING):
        say(watch, step, 0)
        assert after(watch, clock, START_S - 5) == []
        say(watch, step, 1)
        assert after(watch, clock, START_S - 5) == []
    assert after(watch, clock, 10)[0][0] == (0, 1)


def test_of_those_who_are_in_a_step_together_the_stopped_are_late(clock):
    watch = a_run(clock, is_stopped=lambda ranks: {2} & set(ranks))
    say(watch, COMPILING, 0, 1, 2)
    assert after(watch, clock, START_S + MARGIN_S) == []  # who waits for it speaks first
    assert after(watch, clock, 2) == [((2,), (0, 1), f"start, {STEPS[COMPILING]}")]


def test_who_is_ready_is_not_late_and_counts_as_further(clock):
    watch = a_run(clock, 2)
    say(watch, MEETING, 0, 1)
    watch.hear(0, GroupReady(1.0))
    assert after(watch, clock, START_S + MARGIN_S + 2) == [((1,), (0,), f"start, {STEPS[MEETING]}")]


def test_a_host_may_load_the_job_for_as_long_as_a_whole_start(clock):
    pids = {0: 7, 1: 0}
    watch = a_run(clock, 2, pids=lambda: pids)
    say(watch, WAITING, 0)
    assert after(watch, clock, START_S * len(STEPS) - 1) == []
    pids[1] = 8
    assert after(watch, clock, START_S) == []  # from now on it is at a step of its own
    pids[1] = 0
    assert after(watch, clock, START_S * len(STEPS) + 3) == [
        ((1,), (0,), "start, loading the job's file on its host")
    ]


def test_whoever_looks_may_stand_still(clock):
    watch = a_run(clock)
    after(watch, clock, 1)
    clock.now += 10 * START_S
    assert watch.take_stalled() == []


def test_units_start_on_their_own(clock):
    watch = StallDetector(range(3), lambda rank: f"group {rank}", START_S, clock=clock)
    say(watch, WAITING, 0)  # for a server, say
    say(watch, COMPILING, 1)
    watch.hear(2, GroupReady(1.0))
    assert after(watch, clock, START_S + 2) == []
    assert after(watch, clock, MARGIN_S)[0][0] == (1,)
    watch.begin([2])
    assert after(watch, clock, START_S + 2) == [((2,), (), f"start, {STEPS[0]}")]


def test_who_trains_gives_signs_of_life_where_nobody_waits_for_it(clock):
    watch = a_run(clock, 4, silence_s=10.0, trains=lambda rank: rank < 3)
    for rank in range(4):
        watch.hear(rank, GroupReady(1.0))
    watch.hear(2, StartPhase(ENDING))  # what comes then may take long
    assert after(watch, clock, 9) == []
    watch.hear(0, Heartbeat())
    assert after(watch, clock, 3) == [((1,), (0,), "training, without a heartbeat")]
    watch.hear(0, TaskFinished())
    assert after(watch, clock, 30) == []
    assert after(watch, clock, START_S * len(STEPS)) == [((2,), (), "ending")]


def test_who_measures_may_be_silent_unless_its_process_is_stopped(clock):
    stopped: set[int] = set()
    watch = a_run(clock, 2, silence_s=10.0, is_stopped=lambda ranks: stopped & set(ranks))
    for rank in range(2):
        watch.hear(rank, GroupReady(1.0))
    watch.hear(1, StartPhase(ENDING))
    watch.hear(0, Heartbeat(measures=True))
    assert after(watch, clock, 300) == []
    watch.hear(0, Heartbeat(measures=False))
    assert after(watch, clock, 12) == [((0,), (), "training, without a heartbeat")]
    watch = a_run(clock, 1, silence_s=10.0, is_stopped=lambda ranks: stopped & set(ranks))
    watch.hear(0, GroupReady(1.0))
    watch.hear(0, Heartbeat(measures=True))
    assert after(watch, clock, 12) == []
    stopped.add(0)
    assert after(watch, clock, 12) == [((0,), (), "training, without a heartbeat")]


def test_where_others_wait_for_it_nobody_asks_for_signs_of_life(clock):
    watch = a_run(clock, 2)
    watch.hear(0, GroupReady(1.0))
    watch.hear(1, GroupReady(1.0))
    assert after(watch, clock, 1000) == []
