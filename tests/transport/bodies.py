"""What the spawned tasks of test_processes do. Imports little, since each of them pays for it."""

from __future__ import annotations

import os
import resource
import signal
import threading

import numpy as np

from horn.errors import BarrierTimeout
from horn.transport import Channel
from horn.wire.messages import Note
from tests.transport.groups import TIMEOUT_S, all_to_all, run_steps


def digest(t, pipe, steps, n_rounds):
    return run_steps(t, steps, n_rounds)


def go_until_trouble(t, pipe, how, timeout_s, silent):
    """Exchange; then the silent tasks do no more, and only them the others wait for."""
    t.open_channels(all_to_all(t.n_tasks, (1000,)), TIMEOUT_S)
    for step in range(50):
        t.outbox(t.task, TIMEOUT_S)[...] = step
        t.exchange(step, range(t.n_tasks), TIMEOUT_S)
    pipe.send("here")
    if t.task in silent:
        signal.pause()
    t.outbox(t.task, timeout_s)
    if how == "exchange":
        t.exchange(50, [task for task in range(t.n_tasks) if task not in silent], TIMEOUT_S)
        t.exchange(50, silent, timeout_s)
    else:
        t.barrier(50, timeout_s)


def stand_still():
    os.kill(os.getpid(), signal.SIGSTOP)


def wait_for_the_last(t, pipe, how, timeout_s):
    """All stop: the last task before it does anything, the others while they wait for it."""
    t.open_channels(all_to_all(t.n_tasks), TIMEOUT_S)
    t.outbox(t.task, TIMEOUT_S)[...] = t.task
    pipe.send("here")
    pipe.recv()  # all are
    if t.task == t.n_tasks - 1:
        stand_still()
        timeout_s = TIMEOUT_S
    else:
        threading.Timer(0.1, stand_still).start()
    if how == "exchange":
        t.post(0, range(t.n_tasks))
        pipe.send("posted")
        t.collect(0, range(t.n_tasks), timeout_s)
        return [float(t.inbox(task)[0]) for task in range(t.n_tasks) if task != t.task]
    t.barrier(0, timeout_s)
    return "crossed"


def flood(t, pipe):
    """Task 0 sends without end to one that does not read; what it holds must be bounded."""
    t.open_channels([Channel(1, 0, (1,), "<f4", (1 << 20,))], TIMEOUT_S)
    pipe.send("here")
    if t.task == 1:
        signal.pause()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sent = 0
    try:
        for step in range(10_000):
            t.outbox(1, 0.5)[...] = step
            t.post(step, (1,))
            sent += 1
    except BarrierTimeout as error:
        assert error.absent == ("task 1",) and "room" in str(error)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    t.close("the other does not read")
    return sent, grown_kb


def become_ordinary(most):
    """Root may have any number of descriptors under way; what is needed later is open or loaded."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def crowd(t, pipe):
    """Each sends more than may be under way before it receives anything."""
    become_ordinary(64)
    block = np.arange(4096, dtype="<f4")
    for number in range(200):
        t.send(1 - t.task, Note(topic=f"{number}"), (block + number,), TIMEOUT_S, wait=False)
    for number in range(200):
        message = t.receive(TIMEOUT_S)
        assert message.meta.topic == f"{number}"
        assert np.array_equal(message.arrays[0], block + number)
    t.barrier(0, TIMEOUT_S)
    return len(os.listdir("/proc/self/fd"))


def crowd_one_that_does_not_read(t, pipe):
    become_ordinary(64)
    if t.task == 1:
        return pipe.recv()
    block = np.zeros(4096, "<f4")
    for _ in range(200):
        t.send(1, Note(topic="more"), (block,), 0.3, wait=False)


def short(t, pipe):
    pipe.send("here")
    t.open_channels(all_to_all(t.n_tasks, (50,)), TIMEOUT_S)
    for step in range(5):
        t.outbox(t.task, TIMEOUT_S)[...] = step
        t.exchange(step, range(t.n_tasks), TIMEOUT_S)
        t.barrier(step, TIMEOUT_S)
    return float(np.sum(t.inbox((t.task + 1) % t.n_tasks)))


def wait_without_the_hub(t, pipe):
    """Task 0 leaves, in order; then task 1 waits for task 2 alone."""
    t.open_channels([Channel(1, 2, (1,), "<f4", (4,))], TIMEOUT_S)
    if t.task == 0:
        return "left"
    if t.task == 2:
        pipe.send("here")
        signal.pause()
    pipe.send("here")
    pipe.recv()  # the first has gone
    t.exchange(0, (1,), TIMEOUT_S)
