"""Tasks over shared memory connect to one of them, and to whom they have something to say."""

from __future__ import annotations

import os
import signal

import pytest

from horn.transport import PeerLost
from horn.wire.frames import Note
from tests.transport.groups import TIMEOUT_S, Processes, all_to_all, good, run_steps, run_threads

pytestmark = pytest.mark.net


def n_descriptors(n_tasks: int) -> int:
    """Of a whole group, all of whose tasks exchange with all."""
    before = len(os.listdir("/proc/self/fd"))
    found = []

    def body(t):
        run_steps(t, [all_to_all(n_tasks)], 2)
        t.barrier(100, TIMEOUT_S)
        if t.task == 0:
            found.append(len(os.listdir("/proc/self/fd")) - before)
        t.barrier(101, TIMEOUT_S)

    good(run_threads("shm", n_tasks, body))
    return found[0]


def test_a_group_has_as_many_descriptors_for_each_task_however_many_they_are():
    few, many = n_descriptors(8), n_descriptors(24)
    assert many <= 3.3 * few, (few, many)
    assert many <= 10 * 24, many


def test_who_has_something_to_say_connects_and_both_may_at_once():
    """In their order, whoever made the connection."""

    def body(t):
        others = [task for task in range(3) if task != t.task]
        for number in range(20):
            for task in others:
                t.send(task, Note(topic=f"{number}"), (), TIMEOUT_S)
        heard = {task: [] for task in others}
        while any(len(found) < 20 for found in heard.values()):
            message = t.receive(TIMEOUT_S)
            heard[message.src].append(int(message.meta.topic))
        t.barrier(0, TIMEOUT_S)
        return heard

    for heard in good(run_threads("shm", 3, body)):
        assert all(found == [*range(20)] for found in heard.values()), heard


@pytest.mark.cluster
def test_a_death_is_seen_when_the_hub_has_left():
    with Processes("shm", 4, "tests.transport.bodies:wait_without_the_hub") as group:
        assert [group.read(task) for task in (1, 2)] == ["here"] * 2
        assert group.result(0) == "left"
        group.processes[0].join(60)
        for task in (1, 3):
            group.pipes[task].send("go on")
        os.kill(group.processes[2].pid, signal.SIGKILL)
        error = group.result(1)
    assert isinstance(error, PeerLost) and error.lost == ("task 2",), error
    assert "killed" in str(error)
