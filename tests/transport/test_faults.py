"""Frames lost, doubled, reordered and corrupted on purpose: each block arrives once, as it was."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horn.errors import BarrierTimeout
from horn.transport import Identity
from horn.wire.frames import BadFrame
from horn.wire.messages import Note
from tests.transport.faulty import CorruptFault, DelayFault, DropFault, DuplicateFault, FaultyInProc
from tests.transport.groups import (
    TIMEOUT_S,
    all_to_all,
    expected_digests,
    good,
    run_steps,
    run_threads,
)

# Frames from task 0 to task 1: hello, welcome, plan, then blocks and barriers by turns. Words on
# how far they have come are not counted.
N_SETUP, N_STEPS = 3, 8


def run(faults, n_steps=N_STEPS, timeout_s=TIMEOUT_S):
    """Both tasks' counters, after every block was what was sent; or an error."""

    has_all = [threading.Event(), threading.Event()]

    def made(task):
        t = FaultyInProc("inproc://", Identity(task, 2, "test", 7))
        t.link.faults = faults if task == 0 else {}
        return t

    def body(t):
        t.open_channels(all_to_all(2), TIMEOUT_S)
        for step in range(n_steps):
            t.outbox(t.task, timeout_s)[...] = step + t.task
            t.exchange(step, (0, 1), timeout_s)
            assert (t.inbox(1 - t.task) == step + 1 - t.task).all()
            t.barrier(step, timeout_s)
        has_all[t.task].set()
        while not has_all[1 - t.task].is_set():  # who leaves sends again for a moment only
            assert t.receive(0.02) is None
        return t.counters

    return run_threads("inproc", 2, body, made=made)


def test_without_faults_nothing_is_sent_again():
    for counters in good(run({})):
        assert counters.n_damaged == counters.n_repeated == 0


def test_a_doubled_frame_is_dropped():
    _, counters = good(run({(0, 1, N_SETUP + 3): DuplicateFault()}))
    assert counters.n_repeated >= 1


@pytest.mark.parametrize(
    "fault", [DropFault(), DelayFault(1), CorruptFault(0, 77), CorruptFault(1, 3)]
)
@pytest.mark.parametrize("number", [N_SETUP + 1, N_SETUP + 2, N_SETUP + 2 * N_STEPS])
def test_a_frame_that_did_not_come_is_sent_again(fault, number):
    """A block, an arrival, and the last, which nothing shows that comes after it."""
    counters, _ = good(run({(0, 1, number): fault}))
    assert counters.n_resent >= 1


def test_who_has_a_plan_may_be_at_the_next_before_others_have_it():
    def made(task):
        faults = {
            (2, 0, 3): DropFault()
        }  # task 0 hears of that plan last, and of the next one first
        return FaultyInProc(
            "inproc://", Identity(task, 3, "test", 7), faults if task == 2 else None
        )

    def body(t):
        for n in range(1, 5):
            t.open_channels(all_to_all(3, (n,)), TIMEOUT_S)
        return t.counters

    assert good(run_threads("inproc", 3, body, made=made))[2].n_resent >= 1


def test_an_overtaken_frame_has_its_turn():
    def made(task):
        faults = {(0, 1, N_SETUP + 1): DelayFault(1)}
        return FaultyInProc(
            "inproc://", Identity(task, 2, "test", 7), faults if task == 0 else None
        )

    def body(t):
        t.open_channels(all_to_all(2), TIMEOUT_S)
        for step in range(2):  # one sends two at once, so that they can change places
            if t.task == 0:
                t.outbox(0, TIMEOUT_S)[...] = step
                t.post(step, (0,))
        for step in range(2 * t.task):
            t.exchange(step, (0,), TIMEOUT_S)
            assert t.inbox(0)[0] == step
        t.barrier(2, TIMEOUT_S)
        return t.counters

    assert good(run_threads("inproc", 2, body, made=made))[1].n_repeated >= 1


@settings(max_examples=40, deadline=None)
@given(st.integers(N_SETUP + 1, N_SETUP + 2 * N_STEPS), st.integers(0, 2), st.integers(0, 511))
def test_a_corrupted_frame_is_never_applied_wherever_it_is_hit(number, part, bit):
    is_block = (number - N_SETUP) % 2 == 1
    _, counters = good(run({(0, 1, number): CorruptFault(part if is_block else part % 2, bit)}))
    assert counters.n_damaged == 1


def test_who_sends_nothing_but_corrupt_frames_is_named():
    class All(dict):
        def get(self, key, default=None):
            return None if 0 < key[2] <= N_SETUP else CorruptFault(0, 9)

    _, error = run(All())
    assert isinstance(error, BadFrame)
    assert str(error).startswith("frame 4 from task 0: header: magic: got ")


class Draw(dict):
    """After the first frames everything goes wrong now and then, until it is over."""

    def __init__(self, seed, lost=0.10, doubled=0.05, late=0.05, corrupt=0.01):
        super().__init__()
        self.draw, self.seen = random.Random(seed), {"lost": 0, "late": 0, "doubled": 0, "bad": 0}
        self.limits = [("lost", lost), ("doubled", doubled), ("late", late), ("bad", corrupt)]
        self.is_over = False

    def get(self, key, default=None):
        if 0 < key[2] <= N_SETUP or self.is_over:
            return None
        at = self.draw.random()
        for name, limit in self.limits:
            if at < limit:
                self.seen[name] += 1
                return self.fault(name)
            at -= limit
        return None

    def fault(self, name):
        if name == "bad":
            return CorruptFault(self.draw.randrange(2), self.draw.randrange(512))
        return {
            "lost": DropFault(),
            "doubled": DuplicateFault(),
            "late": DelayFault(self.draw.randint(1, 3)),
        }[name]


def summed(seed, n_steps, n_notes):
    """Blocks and notes both ways with everything going wrong; the sums that each task has got."""
    faults = [Draw(seed), Draw(seed + 1)]

    def made(task):
        t = FaultyInProc("inproc://", Identity(task, 2, "test", 7))
        t.link.faults = faults[task]
        return t

    def body(t):
        t.open_channels(all_to_all(2, (50,), "<i8"), TIMEOUT_S)
        total = np.zeros(50, np.int64)
        for step in range(n_steps):
            t.outbox(t.task, TIMEOUT_S)[...] = step
            t.exchange(step, (0, 1), TIMEOUT_S)
            total += t.inbox(1 - t.task)
            t.barrier(step, TIMEOUT_S)
        for _ in range(n_notes):
            t.send(1 - t.task, Note(topic="push"), (np.ones(3, np.int64),), TIMEOUT_S)
        pushed = [t.receive(TIMEOUT_S).arrays[0].sum() for _ in range(n_notes)]
        t.barrier(n_steps, TIMEOUT_S)
        assert t.receive(0.0) is None
        faults[t.task].is_over = True
        t.barrier(n_steps + 1, TIMEOUT_S)  # what went wrong before it has been taken
        return set(total.tolist()), int(sum(pushed)), t.counters

    results = good(run_threads("inproc", 2, body, made=made))
    for total, pushed, _ in results:
        assert total == {n_steps * (n_steps - 1) // 2} and pushed == 3 * n_notes
    n_bad = sum(draw.seen["bad"] for draw in faults)
    assert n_bad == sum(counters.n_damaged for _, _, counters in results)
    return {name: sum(draw.seen[name] for draw in faults) for name in faults[0].seen}


def test_sums_are_exact_whatever_goes_wrong(seed=5):
    seen = summed(seed, 60, 100)
    assert min(seen.values()) >= 1, seen


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sums_are_exact_of_5_000_messages_each_way():
    seen = summed(7, 100, 5000)
    print(f"\nframes that went wrong: {seen}")
    assert seen["bad"] > 100


def test_a_receiver_that_stops_reading_bounds_the_sender():
    """The sender keeps one frame's worth of blocks; the rest waits until the other reads."""

    has_given_up = threading.Event()

    def body(t):
        t.open_channels(all_to_all(2, (1 << 20,)), TIMEOUT_S)  # 4 MiB
        if t.task == 1:
            while not has_given_up.is_set():
                assert t.receive(0.05) is None  # reads, but collects nothing
            return None
        try:
            for step in range(100):
                t.outbox(0, 0.2)
                t.post(step, (0,))
        except BarrierTimeout as error:
            assert error.absent == ("task 1",) and "room" in error.hint
            return step
        finally:
            has_given_up.set()
        return None

    results = run_threads("inproc", 2, body)
    assert results[0] is not None and results[0] <= 10, results


def test_threads_and_reference_agree():
    steps = [all_to_all(2)]
    got = run_threads("inproc", 2, lambda t: run_steps(t, steps, 3))
    assert got == expected_digests(2, steps, 3)
