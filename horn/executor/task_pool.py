"""A task pool: the tasks of a job that run on this host, in one attempt.

It starts their processes, gives them their payload, passes on what they say, and ends them. What
their words mean for the job is for ``executor/monitor.py``: other hosts have task pools of the same
job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from horn.compiler.placement import Placement
from horn.executor.processes import STOP_S, ChildProcess, ProcessGroup
from horn.job import Job
from horn.process.control import Said
from horn.process.job_spec import JobDraft, RunSpec, pack
from horn.security.keys import Credential
from horn.topology import Topology


class TaskPool:
    """The processes of ``ranks``, started at once; they wait for ``start``. When a TaskPool is left
    none of them is there any more.

    threads : per task. name : to be listed by; the rank is added. outputs : descriptors to print
    to, by rank; by default this process's stderr. standby : see ProcessGroup.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        threads: int,
        name: str,
        outputs: Mapping[int, int] | None = None,
        standby: Sequence[ChildProcess] = (),
    ) -> None:
        self.ranks, self.threads, self.name = tuple(ranks), threads, name
        self._processes = ProcessGroup(self.ranks, threads, name, outputs, standby)
        self._of = {child.task: child for child in self._processes.children}

    def __enter__(self) -> TaskPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pids(self) -> dict[int, int]:
        """By rank."""
        return {rank: child.process.pid for rank, child in self._of.items()}

    def renew(self, ranks: Sequence[int]) -> None:
        """End the processes of these ranks and start others, which wait for ``start``."""
        self._processes.renew(ranks, self.threads, self.name)
        self._of = {child.task: child for child in self._processes.children}

    def drop(self, ranks: Sequence[int]) -> None:
        """End the processes of these ranks, if they have not ended, and forget them."""
        self._processes.drop(ranks)
        self._of = {child.task: child for child in self._processes.children}

    def start(
        self,
        draft: JobDraft,
        job: Job,
        run: RunSpec,
        placement: Placement,
        key: bytes | None = None,
        credential: Credential | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """Give every task the job. key : the job's, which encrypts what leaves the host.
        credential : the job's, for ZooKeeper. ranks : only these, if some were renewed.
        """
        # Of a group that came later n_groups counts it, too.
        topology = Topology(run.n_first or run.n_groups, run.n_tasks, run.n_servers)
        payload = pack(draft, job, run, placement)
        try:
            for rank, child in self._of.items():
                if ranks is None or rank in ranks:
                    child.start(payload.descriptors, key, credential, topology.link(rank))
        finally:
            payload.close()

    def events(self, timeout_s: float) -> Iterator[tuple[int, Any, list[int]]]:
        """What tasks say within a time: (rank, message, descriptors), which are the caller's to
        close; (rank, exit code, []) once all that a task said has been passed on.
        """
        for child, said, descriptors in self._processes.events(timeout_s):
            yield child.task, said, descriptors

    def tell(self, message: Said) -> None:
        """Say something to every task; who has ended misses nothing."""
        for child in self._of.values():
            child.tell(message)

    def stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """Where those of these tasks that run here are, in words."""
        return {rank: self._of[rank].where() for rank in ranks if rank in self._of}

    def stopped(self, ranks: Sequence[int]) -> list[int]:
        """Those whose process is stopped, by a signal or a debugger."""
        return [rank for rank in ranks if rank in self._of and self._of[rank].is_stopped]

    def wait(self, timeout_s: float = STOP_S) -> None:
        """For all to end by themselves."""
        self._processes.wait(timeout_s)

    def kill(self) -> None:
        """At once, from any thread; their ends are heard of."""
        self._processes.kill()

    def stop(self) -> None:
        """End those that have not ended. May be called twice."""
        self._processes.stop()
        self._of = {}
