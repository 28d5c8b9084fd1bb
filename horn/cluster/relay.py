"""Progress and output that a job runner passes on; and standby tasks, which print to pipes."""

from __future__ import annotations

import itertools
import json
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horn.cluster.runner_protocol import JobProgress, RunnerMessage, TasksRunning
from horn.cluster.store import LogFile
from horn.executor import preload
from horn.executor.processes import ChildProcess
from horn.job import Job
from horn.terminal import plain
from horn.training.progress import Progress, line

logger = logging.getLogger(__name__)

STEP_S = 0.25  # between two reports of progress
LAST_S = 2.0  # for the output of tasks that have ended to be read
# Of a note, and of callbacks' columns, at most, in them: a node of ZooKeeper has them all.
NOTE_CHARACTERS, OWN_CHARACTERS = 1000, 20_000


class ProgressWriter(Progress):
    """Sends progress to the agent; writes it, as lines of JSON, to ``file`` for later requests."""

    interval_s = STEP_S

    def __init__(self, say: Callable[[RunnerMessage], None], attempt: int, file: Path) -> None:
        self.say, self.attempt, self.file = say, attempt, file
        self.facts: dict[str, Any] = {}
        self.latest: dict[str, Any] = {}
        self.own: dict[str, float] = {}  # numbers that callbacks added last
        self._unwritten = b""  # what a full disk did not take

    def begin(self, job: Job) -> None:
        per_epoch = job.iterations_per_epoch
        self.facts = {
            "n_epochs": -(-job.n_iterations // per_epoch),
            "n_iterations": job.n_iterations,
            "per_epoch": per_epoch,
        }
        self.say(TasksRunning())
        told = {**self.facts, "acc_is_of": job.acc_is_of, "attempt": self.attempt}
        self._write({"begin": told})
        self._tell({"epoch": 1, "iteration": 0})

    def step(self, epoch: int, iteration: int, loss: float, samples_per_s: float) -> None:
        self._tell(
            {"epoch": epoch, "iteration": iteration, "loss": loss, "samples_per_s": samples_per_s}
        )

    def epoch(self, row: Mapping[str, Any]) -> None:
        found = {key: plain(value) for key, value in row.items()}
        print(line(row, self.facts.get("n_epochs")), flush=True)  # the runner's log
        self._write({"row": found})
        self._tell(found)

    def added(self, epoch: int, columns: Mapping[str, Any]) -> None:
        self._write({"added": dict(columns), "epoch": epoch})
        self.own, left = {}, OWN_CHARACTERS
        for name, value in columns.items():
            if isinstance(value, (int, float)) and value == value:
                left -= len(f"{name!r}: {value}, ")
                if left >= 0:
                    self.own[name] = value
        self._tell({})

    def note(self, text: str) -> None:
        print(text, flush=True)
        self._write({"note": text})
        self._tell({"note": text[:NOTE_CHARACTERS]})

    def waits(self, reason: str) -> None:
        """Say what the job waits for, to who looks at its status."""
        self._tell({"waits": reason})

    def stopped(self, iteration: int) -> None:
        """Say how far the job has come: its last step may have been told a while before."""
        if self.facts and iteration:
            self._tell({"epoch": -(-iteration // self.facts["per_epoch"]), "iteration": iteration})

    def end(self) -> None:
        """Write what a full disk did not take; again once there is room."""
        if self._unwritten:
            self._append(b"")

    def _tell(self, said: dict[str, Any]) -> None:
        known = {k: v for k, v in said.items() if not isinstance(v, float) or v == v}
        self.latest.update({k: v for k, v in known.items() if v is not None})
        told = {**self.facts, **self.latest, **self.own, "attempt": self.attempt, "at": time.time()}
        self.say(JobProgress(told))

    def _write(self, said: dict[str, Any]) -> None:
        self._append((json.dumps({**said, "at": time.time()}) + "\n").encode())

    def _append(self, more: bytes) -> None:
        """Lines, whole or not at all; what a full disk does not take comes before the next ones."""
        said, data = self._unwritten, self._unwritten + more
        self._unwritten = data
        try:
            with open(self.file, "ab+", buffering=0) as file:
                size = file.tell()
                if size:  # a host that lost its power cut the last line
                    file.seek(size - 1)
                    data = data if file.read(1) == b"\n" else b"\n" + data
                try:
                    n_written = file.write(data)
                except OSError:
                    n_written = 0
                    raise
                finally:
                    if n_written != len(data):
                        file.truncate(size)
                    else:
                        self._unwritten = b""
        except OSError as error:
            if not said:
                logger.warning(
                    "progress not written, make room path=%s reason=%s", self.file, error
                )


@dataclass(frozen=True)
class StandbyProcess:
    """A process that waits for its task, and the pipe that it prints to, by both ends: output : to
    read it from. theirs : to print to, also for the process that replaces it.
    """

    child: ChildProcess
    output: int
    theirs: int


def start_standby(n: int, threads: int) -> list[StandbyProcess]:
    found = []
    code = preload.memory_for(n)
    try:
        for number in range(n):
            ours, theirs = os.pipe2(os.O_CLOEXEC)
            child = ChildProcess(number, threads, "waits", theirs, code)
            found.append(StandbyProcess(child, ours, theirs))
    finally:
        if code is not None:
            os.close(code)
    return found


def drop(standby: Sequence[StandbyProcess]) -> list[StandbyProcess]:
    """End standby processes that do not fit the job."""
    for spare in standby:
        spare.child.end()
        os.close(spare.output)
        os.close(spare.theirs)
    return []


class OutputRelay:
    """Pipes that tasks print to, and their logs, which have a limit. A thread copies the output.
    outputs : the ends to print to, by rank, until ``wait``: a task may be started again.
    """

    def __init__(
        self, folder: Path, names: Mapping[int, str], limit: int, standby: Sequence[StandbyProcess]
    ) -> None:
        self.outputs: dict[int, int] = {}
        self._logs: dict[int, LogFile] = {}
        waiting = [(spare.output, spare.theirs) for spare in standby]
        for rank, name in names.items():
            ours, self.outputs[rank] = waiting.pop(0) if waiting else os.pipe2(os.O_CLOEXEC)
            self._logs[ours] = LogFile(folder / f"{name}.log", limit)
        for end in itertools.chain(*waiting):
            os.close(end)
        self._over = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="horn-logs", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._over, select.POLLIN)
        for fd in self._logs:
            poll.register(fd, select.POLLIN)
        left = set(self._logs)
        is_over = False
        while left and not is_over:
            for fd, _ in poll.poll():
                if fd == self._over:
                    is_over = True
                    continue
                data = os.read(fd, 65536)
                self._logs[fd].write(data)
                if not data:
                    poll.unregister(fd)
                    self._close(fd)
                    left.discard(fd)
        for fd in left:
            self._close(fd)

    def _close(self, fd: int) -> None:
        os.close(fd)
        self._logs[fd].close()  # writes the end of a long log

    def wait(self) -> None:
        """Wait until the output of the tasks, which have all ended, is written. What processes that
        outlive a task print after ``LAST_S`` is lost.
        """
        for fd in self.outputs.values():
            os.close(fd)
        self.outputs = {}
        self._thread.join(LAST_S)
        os.eventfd_write(self._over, 1)
        self._thread.join()
        os.close(self._over)
