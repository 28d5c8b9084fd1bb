"""A task pool: the tasks of a job on this host, in one attempt.

It starts and ends their processes, gives them their payload, and passes on their messages to
``executor/monitor.py``; other hosts have task pools of the same job.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from horn.executor import preload
from horn.executor.processes import ChildProcess, reap
from horn.job import Job
from horn.partition.placement import Placement
from horn.process.control import ControlMessage, StartTask
from horn.process.job_payload import JobDraft, pack
from horn.process.job_spec import RunSpec
from horn.security.keys import Credential
from horn.topology import Topology

STOP_S = 2.0  # from SIGTERM to SIGKILL
LAST_WORD_S = 1.0  # to read what a task sent before its end


class TaskPool:
    """Processes for ``ranks``, started at once; they wait for ``start``. threads : per task. name :
    for ps. outputs : descriptors to print to, by rank, else stderr; they stay the caller's, to be
    closed after ``stop``, since renewed processes print there, too. standby : processes to take
    first; those not needed are ended. key : encrypts all that leaves the host. credential : for
    ZooKeeper.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        threads: int,
        name: str,
        outputs: Mapping[int, int] | None = None,
        standby: Sequence[ChildProcess] = (),
        key: bytes | None = None,
        credential: Credential | None = None,
    ) -> None:
        self.threads, self.name, self.key, self.credential = threads, name, key, credential
        self.outputs = outputs or {}
        self._children: dict[int, ChildProcess] = {}  # by rank
        waiting = list(standby)
        code = preload.memory_for(max(0, len(ranks) - len(waiting)))
        try:
            for rank in ranks:
                if waiting:
                    child = self._children[rank] = waiting.pop(0)
                    child.task, child.folder = rank, os.getcwd()
                else:
                    self._children[rank] = self._child(rank, code)
            for child in waiting:
                child.end()
        except BaseException:
            self.stop()
            raise
        finally:
            if code is not None:
                os.close(code)

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by rank."""
        return {rank: child.process.pid for rank, child in self._children.items()}

    def renew(self, ranks: Sequence[int]) -> None:
        """End the processes of these ranks and start others, which wait for ``start``."""
        self.drop(ranks)
        code = preload.memory_for(len(ranks))
        try:
            for rank in ranks:
                self._children[rank] = self._child(rank, code)
        finally:
            if code is not None:
                os.close(code)

    def _child(self, rank: int, code: int | None) -> ChildProcess:
        return ChildProcess(rank, self.threads, self.name, self.outputs.get(rank), code)

    def drop(self, ranks: Sequence[int]) -> None:
        """End the processes of these ranks, if they have not ended, and forget them."""
        old = [self._children[rank] for rank in ranks if rank in self._children]
        for child in old:
            if child.code is None:
                child.process.kill()
        reap(old)
        for child in old:
            child.close()
            del self._children[child.task]

    def start(
        self,
        draft: JobDraft,
        job: Job,
        run: RunSpec,
        placement: Placement,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """Give the job to tasks. ranks : only these, which were renewed."""
        # For a group that came later, n_groups counts it, too.
        topology = Topology(run.n_first or run.n_groups, run.n_tasks, run.n_servers)
        payload = pack(draft, job, run, placement)
        try:
            for rank, child in self._children.items():
                if ranks is None or rank in ranks:
                    link = topology.link(rank)
                    said = StartTask(link, self.key, self.credential, child.folder)
                    child.tell(said, payload.descriptors)
        finally:
            payload.close()

    def events(self, timeout_s: float) -> Iterator[tuple[int, Any, list[int]]]:
        """Yield the messages that come within a time: (rank, message, descriptors), which are the
        caller's to close; last (rank, exit code, []).
        """
        poll = select.poll()
        waiting: dict[int, ChildProcess] = {}
        for child in self._children.values():
            if child.is_open:
                waiting[child.line.fileno()] = child
            if child.code is None:
                waiting[child.pidfd] = child
        for fd in waiting:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(max(timeout_s, 0.0) * 1000):
            child = waiting[fd]
            if fd == child.pidfd:
                while child.is_open:
                    yield from self._read(child)
                child.code = child.process.wait()
                yield child.task, child.code, []
            elif child.is_open:
                yield from self._read(child)

    def _read(self, child: ChildProcess) -> Iterator[tuple[int, Any, list[int]]]:
        """Read one message. All messages of an ended child are there already."""
        try:
            got = child.line.receive(LAST_WORD_S)
        except TimeoutError:  # it has ended, but a process of its own holds the line
            got = None
        if got is None:
            child.is_open = False
        else:
            yield child.task, got[0], got[1]

    def tell(self, message: ControlMessage) -> None:
        """Send to every running task, or to those below the message's ``n_ranks``."""
        n_ranks = getattr(message, "n_ranks", None)
        for rank, child in self._children.items():
            if n_ranks is None or rank < n_ranks:
                child.tell(message)

    def stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """The Python stacks of those of these tasks that run here."""
        return {rank: self._children[rank].where() for rank in ranks if rank in self._children}

    def stopped(self, ranks: Sequence[int]) -> list[int]:
        """The ranks whose process is stopped, by a signal or a debugger."""
        return [r for r in ranks if r in self._children and self._children[r].is_stopped]

    def wait(self, timeout_s: float = STOP_S) -> None:
        """Wait for all to end by themselves."""
        ends = time.monotonic() + timeout_s
        for child in self._children.values():
            if child.code is None:
                try:
                    child.code = child.process.wait(max(ends - time.monotonic(), 0.0))
                except subprocess.TimeoutExpired:
                    return

    def kill(self) -> None:
        """Kill all processes, from any thread; ``events`` reports their exits."""
        for child in list(self._children.values()):
            try:
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            except OSError:  # it has ended, or is closed
                continue

    def stop(self) -> None:
        """End all running processes, and forget all. May be called twice."""
        alive = [child for child in self._children.values() if child.code is None]
        for child in alive:
            child.process.terminate()
            if child.is_stopped:
                child.process.kill()  # a stopped process cannot act on SIGTERM
        ends = time.monotonic() + STOP_S
        for child in alive:
            try:
                child.process.wait(max(ends - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                child.process.kill()
        reap(alive)
        for child in self._children.values():
            child.close()
        self._children = {}
