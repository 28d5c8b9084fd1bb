"""Frames lost, doubled, reordered and corrupted on purpose: each is named, none is absorbed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from horn.errors import BarrierTimeout
from horn.runtime.messages import BadFrame, OutOfSequence
from horn.transport import PeerLost, Place
from horn.transport.inproc import Corrupt, Delay, Double, InProc, Lose
from tests.transport.groups import TIMEOUT_S, all_to_all, expected_digests, run_steps, run_threads

# Frames from task 0 to task 1: hello, welcome, plan, then blocks and barriers by turns.
N_SETUP, N_STEPS = 3, 8


def run(faults, n_steps=N_STEPS, timeout_s=0.4):
    """Both tasks' results: a digest of what came, or the error."""

    def made(task):
        return InProc("inproc://", Place(task, 2, "test", 7), faults if task == 0 else None)

    def body(t):
        t.plan(all_to_all(2), TIMEOUT_S)
        for step in range(n_steps):
            t.outbox(t.task, timeout_s)[...] = step + t.task
            t.exchange(step, (0, 1), timeout_s)
            assert t.inbox(1 - t.task)[0] == step + 1 - t.task
            t.barrier(step, timeout_s)

    return run_threads("inproc", 2, body, made=made)


def test_without_faults_nothing_is_reported():
    assert run({}) == [None, None]


def test_a_doubled_frame_is_named():
    _, error = run({(0, 1, N_SETUP + 3): Double()})
    assert isinstance(error, OutOfSequence) and error.fault == "doubled"
    assert str(error) == (
        "frames of task 0, epoch 7: a frame was doubled: got frame 6 again, expected 7"
    )


def test_an_overtaken_frame_is_named():
    def made(task):
        faults = {(0, 1, N_SETUP + 1): Delay(1)}
        return InProc("inproc://", Place(task, 2, "test", 7), faults if task == 0 else None)

    def body(t):
        t.plan(all_to_all(2), TIMEOUT_S)
        for step in range(2):  # one sends two at once, so that they can change places
            if t.task == 0:
                t.outbox(0, TIMEOUT_S)[...] = step
                t.post(step, (0,))
        if t.task == 1:
            t.exchange(0, (0,), 2.0)
        else:
            t.barrier(0, 2.0)

    error = run_threads("inproc", 2, body, made=made)[1]
    assert isinstance(error, OutOfSequence) and error.fault == "reordered"
    assert (error.got, error.expected) == ("frame 5", "frame 4")


def test_a_lost_frame_is_named_by_the_next_one():
    def made(task):
        faults = {(0, 1, N_SETUP + 1): Lose()}
        return InProc("inproc://", Place(task, 2, "test", 7), faults if task == 0 else None)

    def body(t):
        t.plan(all_to_all(2), TIMEOUT_S)
        t.outbox(t.task, TIMEOUT_S)
        t.exchange(0, (0, 1), 2.0)
        t.barrier(0, 2.0)

    error = run_threads("inproc", 2, body, made=made)[1]
    assert isinstance(error, OutOfSequence) and error.fault == "lost"
    assert (error.got, error.expected) == ("frame 5", "frame 4")


def test_a_lost_frame_with_nothing_after_it_is_named_at_the_deadline():
    results = run({(0, 1, N_SETUP + 2): Lose()})  # an arrival, for which both wait
    error = results[1]
    assert isinstance(error, (BarrierTimeout, OutOfSequence, PeerLost))
    assert "task 0" in str(error)


@settings(max_examples=60, deadline=None)
@given(st.integers(N_SETUP + 1, N_SETUP + 2 * N_STEPS), st.integers(0, 2), st.integers(0, 511))
def test_a_corrupted_frame_is_named_wherever_it_is_hit(number, part, bit):
    is_block = (number - N_SETUP) % 2 == 1
    _, error = run({(0, 1, number): Corrupt(part if is_block else part % 2, bit)})
    assert isinstance(error, BadFrame) and not isinstance(error, OutOfSequence)
    assert error.where.startswith(f"frame {number} from task 0: ")


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.just(0), st.just(1), st.integers(N_SETUP + 1, N_SETUP + 2 * N_STEPS - 1)),
        st.one_of(
            st.just(Lose()),
            st.just(Double()),
            st.builds(Delay, st.integers(1, 3)),
            st.builds(Corrupt, st.integers(0, 1), st.integers(0, 99)),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_mixture_of_faults_is_absorbed(faults):
    results = run(faults, timeout_s=0.1)
    assert isinstance(results[1], (BadFrame, BarrierTimeout, PeerLost)), results


def test_a_receiver_that_stops_reading_bounds_the_sender():
    """The sender keeps one frame's worth of blocks; the rest waits until the other reads."""

    def body(t):
        t.plan(all_to_all(2, (1 << 20,)), TIMEOUT_S)  # 4 MiB
        if t.task == 1:
            t.receive(0.5)  # reads, but collects nothing
            return None
        try:
            for step in range(100):
                t.outbox(0, 0.2)
                t.post(step, (0,))
        except BarrierTimeout as error:
            assert error.absent == ("task 1",) and "room" in error.hint
            return step
        return None

    results = run_threads("inproc", 2, body)
    assert results[0] is not None and results[0] <= 10, results


def test_threads_and_reference_agree():
    steps = [all_to_all(2)]
    got = run_threads("inproc", 2, lambda t: run_steps(t, steps, 3))
    assert got == expected_digests(2, steps, 3)
