"""The settings of a run: the keywords of ``horn.train``, as one object from there to the tasks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horn import defaults, strategies, transport
from horn.errors import JobError, check_whole
from horn.job import Job
from horn.partition.placement import check_pins
from horn.strategies import Strategy, Topology
from horn.strategies.allreduce import AllReduce
from horn.training.checkpointing import CheckpointSchedule
from horn.training.progress import Progress


@dataclass(frozen=True)
class RunSettings:
    """The keywords of ``horn.train``, with its defaults; they are explained there.

    hosts : a ZooKeeper to use instead of an embedded one.

    Raises
    ------
    JobError : a value that cannot be, whatever the job.
    """

    groups: int = 1
    tasks: int = 1
    servers: int | None = None
    strategy: str | Strategy = defaults.STRATEGY
    backend: str = defaults.BACKEND
    seed: int | None = None
    threads: int | None = None
    progress: Progress | Callable[[Mapping[str, Any]], Any] | bool | None = None
    timeout: float | None = None
    barrier: str = defaults.BARRIER
    transport: str = defaults.TRANSPORT
    pins: Mapping[str, str] | None = None
    trace: str | os.PathLike[str] | None = None
    profile: bool | str | os.PathLike[str] = False
    superstep_timeout: float = defaults.SUPERSTEP_TIMEOUT_S
    start_timeout: float = defaults.START_TIMEOUT_S
    checkpoints: str | os.PathLike[str] | None = None
    checkpoint_every: int | None = None
    checkpoint_seconds: float | None = None
    keep_checkpoints: int = defaults.KEPT_CHECKPOINTS
    resume: bool | str | os.PathLike[str] = False
    changed: bool = False
    max_restarts: int = defaults.MAX_RESTARTS
    hosts: str | None = None

    def __post_init__(self) -> None:
        if self.changed and self.resume is False:
            raise JobError('changed is for going on; say from where, as in resume="changed"')
        if self.checkpoints == "":  # as of a variable of the shell that is not set
            raise JobError('checkpoints is ""; name a folder, as in checkpoints="run1"')
        if not isinstance(self.checkpoints, str | os.PathLike | None):
            raise JobError(
                f'checkpoints is a folder, as in checkpoints="run1", got {self.checkpoints!r}; how '
                "often they are written is checkpoint_every or checkpoint_seconds"
            )
        object.__setattr__(self, "strategy", strategies.make(self.strategy))
        for what, least in (
            ("groups", 1), ("tasks", 1), ("servers", 0), ("checkpoint_every", 1),
            ("keep_checkpoints", 1), ("max_restarts", 0), ("threads", 1),
        ):  # fmt: skip
            value = getattr(self, what)
            if what == "checkpoint_every" and isinstance(value, str):
                raise JobError(
                    f"checkpoint_every counts iterations, a whole number from 1, got {value!r}; "
                    "a time is in seconds: checkpoint_seconds=60"
                )
            if value is not None or what not in ("servers", "checkpoint_every", "threads"):
                check_whole(what, value, least)
        check_pins(self.pins)
        # Also where one task needs none of them: the same words may run with several tomorrow.
        if self.barrier not in (known := ("message", "zookeeper")):
            raise JobError(f"barrier is {self.barrier!r}; choose one of {', '.join(known)}")
        if self.transport != defaults.TRANSPORT:  # which one task need not import
            transport.between_processes(self.transport)
        for what, most in (
            ("superstep_timeout", defaults.LONGEST_WAIT_S),
            ("start_timeout", defaults.LONGEST_WAIT_S),
            ("checkpoint_seconds", defaults.LONGEST_S),
        ):
            seconds: Any = getattr(self, what)
            if seconds is None and what == "checkpoint_seconds":
                continue
            if not isinstance(seconds, (int, float)) or not 0 < seconds <= most:
                raise JobError(
                    f"{what} must be a number of seconds above 0, got {seconds!r}; {most:g} are "
                    f"the most"
                )
        limit: Any = self.timeout
        if limit == math.inf:  # as it is written elsewhere
            object.__setattr__(self, "timeout", None)
        elif limit is not None and (
            not isinstance(limit, (int, float)) or not 0 <= limit <= defaults.LONGEST_S
        ):
            raise JobError(
                f"timeout must be a number of seconds, got {limit!r}; {defaults.LONGEST_S:g} are "
                f"the most, and None is no end"
            )

    @property
    def made_strategy(self) -> Strategy:
        return strategies.make(self.strategy)

    @property
    def n_servers(self) -> int:
        return self.servers or self.made_strategy.default_servers

    @property
    def topology(self) -> Topology:
        return Topology(self.groups, self.tasks, self.n_servers)

    @property
    def is_alone(self) -> bool:
        """Whether one process runs the whole job."""
        return self.topology.n_workers == 1 and isinstance(self.made_strategy, AllReduce)

    @property
    def has_guests(self) -> bool:
        """Whether servers are threads of the first tasks' processes: those without a journal."""
        return self.n_servers > 0 and self.servers == 0 and self.checkpoints is None

    @property
    def n_processes(self) -> int:
        return self.topology.n_workers if self.has_guests else self.topology.n_ranks

    def schedule(self) -> CheckpointSchedule | None:
        every, seconds = self.checkpoint_every, self.checkpoint_seconds
        is_timed = every is not None or seconds is not None
        if self.n_servers and (is_timed or not isinstance(self.resume, bool)):
            remedy = "resume is True or False (--resume without RUN)"
            if is_timed:
                remedy = "leave checkpoint_every and checkpoint_seconds out (--checkpoint-every)"
            raise JobError(
                "with servers (downpour, easgd) every push is kept in the checkpoints folder "
                f"(--checkpoints); {remedy}"
            )
        if self.checkpoints is None:
            if is_timed or self.resume is True:
                raise JobError('say where checkpoints are, as in checkpoints="run1"')
            return None
        return CheckpointSchedule(Path(self.checkpoints), every, seconds, self.keep_checkpoints)

    def check_alone(self) -> None:
        """Check that no settings need several tasks. Raises JobError."""
        for what, value in (("pins", self.pins), ("trace", self.trace)):
            if value:
                raise JobError(f"{what} is for several tasks; say how many, as in tasks=2")

    def check_together(self, is_compiled: bool) -> None:
        """Check that no settings need a single task. Raises JobError."""
        if self.profile is not False:
            raise JobError("profile is of one process; trace tells what several tasks do when")
        if not is_compiled:
            raise JobError(
                f"asked for {self.groups * self.tasks} tasks, but a network that is interpreted "
                f"runs on one; leave groups and tasks out, or give its neurons to the compiler"
            )

    def check_batch(self, job: Job) -> None:
        """Check that each group has a sample of a batch of the prepared job. Raises JobError."""
        if self.groups > job.batch_size:
            raise JobError(
                f"asked for {self.groups} groups, but a batch has {job.batch_size} samples, of "
                f"which each group computes its part; use fewer groups, or a larger batch_size"
            )
