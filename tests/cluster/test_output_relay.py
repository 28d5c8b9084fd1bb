"""What tasks print is in their logs, whoever of them was started again."""

from __future__ import annotations

import os
import types

import pytest

from horn.cluster import relay as relay_file
from horn.cluster.relay import OutputRelay, StandbyProcess
from horn.executor import task_pool
from horn.executor.task_pool import TaskPool


class Child:
    """A task that prints a line, and has ended."""

    code = 0

    def __init__(self, task, threads, name, output=None, code=None):
        self.task, self.process = task, types.SimpleNamespace(pid=1)
        Child.n_made += 1
        os.write(2 if output is None else output, f"task {task}, child {Child.n_made}\n".encode())

    def close(self):
        pass


@pytest.mark.parametrize("n_standby", [0, 1, 2, 3])
def test_a_task_that_is_started_again_prints_to_its_log(n_standby, tmp_path, monkeypatch):
    Child.n_made = 0
    monkeypatch.setattr(task_pool, "ChildProcess", Child)
    monkeypatch.setattr(task_pool, "reap", lambda children: None)
    monkeypatch.setattr(task_pool.preload, "memory_for", lambda n: None)
    Child.end = Child.close
    standby = []
    for number in range(n_standby):
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        standby.append(StandbyProcess(Child(number, 1, "waits", theirs), ours, theirs))
    descriptors = len(os.listdir("/proc/self/fd")) - 2 * n_standby
    relay = OutputRelay(tmp_path, {4: "task-4", 5: "task-5"}, 1000, standby)
    pool = TaskPool([4, 5], 1, "job", relay.outputs, [spare.child for spare in standby])
    pool.renew([5])
    pool.stop()
    relay.wait()
    n = max(n_standby, 2)
    first = ["task 0", "task 1"][:n_standby] + ["task 4", "task 5"][n_standby:]
    assert (tmp_path / "task-4.log").read_text() == f"{first[0]}, child 1\n"
    again = f"task 5, child {n + 1}\n"
    assert (tmp_path / "task-5.log").read_text() == f"{first[1]}, child 2\n{again}"
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_end_of_a_long_log_is_there_while_a_process_of_the_tasks_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(relay_file, "LAST_S", 0.0)
    descriptors = len(os.listdir("/proc/self/fd"))
    relay = OutputRelay(tmp_path, {0: "task-0", 1: "task-1"}, 1000, ())
    child = os.dup(relay.outputs[0])  # of a process that a task started
    os.write(relay.outputs[0], b"x" * 2000 + b"\nTraceback: the reason\n")
    relay.wait()
    os.close(child)
    assert (tmp_path / "task-0.log").read_bytes().endswith(b"\nTraceback: the reason\n")
    assert len(os.listdir("/proc/self/fd")) == descriptors
