"""A task that is stopped in a step of its start is named, with that step, within its deadline."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import horn
from horn.errors import BarrierTimeout
from horn.executor.monitor import GRACE_S
from horn.executor.processes import ChildProcess
from horn.executor.stalls import StallDetector
from horn.process.control import (
    COMPILING,
    CONNECTING,
    IMPORTING,
    JOINING,
    MEETING,
    READING,
    RESUMING,
    STEPS,
    WAITING,
)
from horn.strategies.downpour import Downpour
from tests.cluster.helpers import wait_until
from tests.support.runs import (
    LATE_S,
    NEVER_S,
    Notes,
    bits,
    is_stopped,
    job,
    nothing_is_left,  # noqa: F401 (a fixture)
)

pytestmark = [pytest.mark.net, pytest.mark.cluster]
DOWNPOUR = Downpour(server_optimizer="job")  # else no task has the job's schedule
START_S = 600.0  # for nobody but on the parent's clock, which jumps once a task has stopped


@dataclass(frozen=True)
class Stops:
    """A schedule that stops task ``rank`` in a step of its start, if there is no file yet."""

    mark: str
    rank: int
    step: int
    initial: float = 0.1

    def __post_init__(self):
        from horn.process.main import TaskProcess
        from tests.executor.test_starts import halt
        from tests.faults.springs import my_rank

        if my_rank() != self.rank:
            return
        if self.step == READING:
            halt(self.mark)
        enter = TaskProcess.enter

        def enters(process, step):
            enter(process, step)
            if step == self.step:
                halt(self.mark)

        TaskProcess.enter = enters

    def at(self, iteration):
        return self.initial


def halt(mark):
    """Stop this process, once. The file has its number before it stops."""
    if os.path.exists(mark):
        return
    Path(f"{mark}.new").write_text(str(os.getpid()))
    os.rename(f"{mark}.new", mark)
    os.kill(os.getpid(), signal.SIGSTOP)


class Flying(StallDetector):
    """For which time flies while the process of the file ``mark`` is stopped, and others are not
    further behind or in a start of their own.
    """

    def __init__(self, mark, *arguments):
        self.mark, self.ahead_s = mark, 0.0
        super().__init__(*arguments, clock=self.fly)

    def fly(self):
        with contextlib.suppress(OSError, ValueError, LookupError):  # no such file or process
            pid = int(self.mark.read_text())
            rank = {pid: rank for rank, pid in self.pids().items()}[pid]
            is_alone = {self.unit(other) for other in self._steps} == {self.unit(rank)}
            is_behind = self._steps[rank] == min(self._steps.values())
            if is_stopped(pid) and is_alone and is_behind:
                self.ahead_s += START_S
        return time.monotonic() + self.ahead_s


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """The file with which a process is stopped."""
    mark = tmp_path / "mark"
    monkeypatch.setattr("horn.patience.STRIDE_S", START_S)  # half of a deadline in each look
    monkeypatch.setattr("horn.executor.attempts.StallDetector", functools.partial(Flying, mark))
    return mark


def stopped_at(mark, rank, step):
    return horn.SGD(Stops(str(mark), rank, step))


@pytest.mark.parametrize(
    "settings, rank, step",
    [
        *(({"tasks": 2}, 1, step) for step in (READING, JOINING, WAITING, CONNECTING)),
        *(({"tasks": 2}, 1, step) for step in (COMPILING, MEETING)),
        ({"tasks": 2, "transport": "tcp"}, 0, CONNECTING),
        ({"groups": 2, "strategy": DOWNPOUR}, 2, READING),
        *(
            pytest.param({"groups": 2, "strategy": DOWNPOUR}, rank, step, marks=pytest.mark.slow)
            for rank, step in ((1, JOINING), (1, COMPILING), (2, CONNECTING))
        ),
        ({"groups": 2, "strategy": DOWNPOUR, "servers": 0}, 0, WAITING),
    ],
)
def test_who_stops_in_a_start_is_named_with_the_step(stopped, settings, rank, step):
    with pytest.raises(BarrierTimeout) as caught:
        horn.train(
            job(optimizer=stopped_at(stopped, rank, step)), max_restarts=0,
            start_timeout=START_S, superstep_timeout=NEVER_S, **settings,
        )  # fmt: skip
    error, text = caught.value, str(caught.value)
    name = "server 0" if rank == 2 else f"task {rank}"
    assert error.absent == (name,) and error.timeout_s == START_S
    assert f"the run, start, {STEPS[step]}: only" in text and "--start-timeout" in text
    assert f"task {rank} (pid {stopped.read_text()}) is stopped (SIGSTOP" in text


def test_who_stops_while_it_reads_a_checkpoint_is_named(stopped, tmp_path):
    given = job(optimizer=stopped_at(stopped, 1, RESUMING), epochs=4)
    stopped.write_text("0")  # nobody stops
    settings = {"tasks": 2, "checkpoints": tmp_path / "c", "start_timeout": START_S}
    horn.train(given, **settings, checkpoint_every=4)
    stopped.unlink()
    with pytest.raises(BarrierTimeout) as caught:
        horn.train(given, **settings, resume=True, max_restarts=0)
    assert caught.value.absent == ("task 1",) and f"start, {STEPS[RESUMING]}" in str(caught.value)


@pytest.mark.parametrize("how", ["run", "group"])
def test_who_stops_in_a_start_is_started_again(stopped, tmp_path, how):
    """The whole run, or the group alone, where servers last."""
    settings = {"tasks": 2} if how == "run" else {"groups": 2, "strategy": DOWNPOUR}
    watcher = Notes(lambda: None)
    if how == "group":
        settings["checkpoints"] = tmp_path / "c"
    given = job(optimizer=stopped_at(stopped, 1, COMPILING))
    if how == "group":
        settings["superstep_timeout"] = NEVER_S  # time flies for the other group, which trains, too
    found = horn.train(given, start_timeout=START_S, progress=watcher, **settings)
    assert stopped.exists() and len(watcher.notes) == 1
    what = "Restarting from iteration 0" if how == "run" else "Restarting group 1"
    assert watcher.notes[0].startswith(what) and STEPS[COMPILING] in watcher.notes[0]
    if how == "run":
        assert bits(found) == bits(horn.train(given, **settings))


def test_who_never_gets_to_say_a_word_is_named_in_time(monkeypatch):
    """By the clock on the wall: stopped as soon as it is there."""
    began, stopped_at = ChildProcess.__init__, []

    def begins(child, task, *arguments):
        began(child, task, *arguments)
        if task == 1 and not stopped_at:
            os.kill(child.process.pid, signal.SIGSTOP)
            wait_until(lambda: is_stopped(child.process.pid))
            stopped_at.append(time.monotonic())

    monkeypatch.setattr(ChildProcess, "__init__", begins)
    with pytest.raises(BarrierTimeout) as caught:
        horn.train(job(), tasks=2, max_restarts=0, start_timeout=LATE_S)
    seconds = time.monotonic() - stopped_at[0]
    assert caught.value.absent == ("task 1",) and f"start, {STEPS[IMPORTING]}" in str(caught.value)
    # what comes before the parent listens (placement, its ZooKeeper) and after (ending the other)
    assert seconds < LATE_S + GRACE_S + 15.0
    assert not [t for t in threading.enumerate() if t.name.startswith("horn-zk")]
