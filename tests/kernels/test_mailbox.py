"""The barrier and the mailboxes by hand."""

from __future__ import annotations

import mmap
import threading

import pytest

from horn._kernels import mailbox
from horn._kernels.mailbox import DONE, MISMATCH, Mailboxes, Step


def boxes_of(n_tasks, channels=(), may_spin=False):
    """A view of the same anonymous segments for each task."""
    segments = [mmap.mmap(-1, 1 << 16) for _ in range(n_tasks)]
    return [Mailboxes(task, segments, list(channels), may_spin) for task in range(n_tasks)]


@pytest.mark.parametrize("n_tasks", [1, 2, 3, 5])
@pytest.mark.parametrize("may_spin", [False, True])
def test_the_barrier_holds_everybody(n_tasks, may_spin):
    boxes = boxes_of(n_tasks, may_spin=may_spin)
    count, early = [0] * n_tasks, []

    def run(task):
        for step in range(200):
            count[task] += 1
            assert boxes[task].barrier(step, 20.0) == DONE
            if min(count) < step + 1:
                early.append((task, step))
            assert boxes[task].barrier(step, 20.0) == DONE

    threads = [threading.Thread(target=run, args=(task,)) for task in range(n_tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not early and count == [200] * n_tasks


def test_a_wait_ends_with_its_slice_and_says_who_is_missing():
    first, second = boxes_of(2)
    assert first.barrier(7, 0.0) == 0
    assert first.barrier(7, 0.01, False) == 0 and first.n_sleeps > 0
    assert not first.has_arrived(1)
    assert second.barrier(7, 1.0) == DONE
    assert first.barrier(7, 1.0, False) == DONE


def test_a_sleeper_is_woken():
    first, second = boxes_of(2)
    codes = []
    thread = threading.Thread(target=lambda: codes.append(first.barrier(0, 30.0)))
    thread.start()
    while not first.n_sleeps:
        pass
    assert second.barrier(0, 1.0) == DONE
    thread.join(20)
    assert codes == [DONE]


def test_news_end_a_wait_before_its_time():
    first, second = boxes_of(2)
    codes = []
    thread = threading.Thread(target=lambda: codes.append(first.barrier(0, 30.0)))
    thread.start()
    while not first.n_sleeps:
        pass
    second.leave(b"no more")
    thread.join(20)
    assert codes == [0] and first.state(1) == mailbox.LEFT
    assert first.reason(1) == b"no more"


def test_another_superstep_is_a_mismatch():
    first, second = boxes_of(2)
    assert first.barrier(3, 0.0) == 0
    assert second.barrier(4, 1.0) == MISMATCH
    assert (second.bad, second.bad_got, second.bad_expected) == (0, 3, 4)


def test_a_block_has_two_slots_and_no_third():
    first, second = boxes_of(2, [(0, 4096, 128)])
    sending, receiving = Step([0], [], [1]), Step([], [0], [0])
    for use in (1, 2):
        assert first.wait_free(0, [1], 0.0) == DONE
        assert first.slot(0, True) == use & 1
        first.post(sending, 10 + use)
    assert first.wait_free(0, [1], 0.0) == 0 and not first.has_released(0, 1)
    second.post(receiving, 11)
    assert second.collect(receiving, 11, 1.0) == DONE and second.slot(0, False) == 1
    assert first.wait_free(0, [1], 0.0) == 0  # the reader still looks at it
    second.post(receiving, 12)
    assert first.wait_free(0, [1], 0.0) == DONE
    assert second.collect(receiving, 13, 1.0) == MISMATCH
    assert (second.bad, second.bad_got, second.bad_expected) == (0, 12, 13)
