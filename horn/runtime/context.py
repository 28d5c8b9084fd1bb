"""The context of a task in a run, from which a strategy makes its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from horn import defaults
from horn.job import Job
from horn.partition.placement import Placement
from horn.runtime.group import Group, TaskTimes
from horn.topology import Topology
from horn.transport import Identity, Transport

if TYPE_CHECKING:
    from horn.language.layers import Reading

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ServerAddress:
    """The endpoint of a server, and the attempt in which it started."""

    endpoint: str
    attempt: int


class ServerDirectory(Protocol):
    """A directory of durable servers: ``process/server_discovery.py``."""

    def identity(self) -> Identity: ...
    def find(self, server: int) -> ServerAddress | None: ...
    def check(self) -> None: ...


@dataclass
class TaskContext:
    """One task's part in a run: job, rank, connections and deadlines.

    job : as the groups run it. group : the connection for supersteps, of all tasks if the strategy
    is joined, else of this group's. wire : the connection for messages between batches, of all
    ranks. initial : as in GroupEngine. spent : time and bytes of messages between batches. check :
    called during waits; raises failures such as those of a server in this process. servers : the
    directory of durable servers, else None. n_first : in a group that came later, the job's number
    of groups at its beginning. start_s : deadline of the start of tasks. reading : as in ``Setup``.
    """

    job: Job
    topology: Topology
    rank: int
    placement: Placement
    group: Group
    wire: Transport | None = None
    backend: str = defaults.BACKEND
    threads: int | None = None
    initial: Mapping[str, Array] | None = None
    timeout_s: float = defaults.SUPERSTEP_TIMEOUT_S
    spent: TaskTimes = field(default_factory=TaskTimes)
    check: Callable[[], None] | None = None
    servers: ServerDirectory | None = None
    n_first: int = 0
    start_s: float = defaults.START_TIMEOUT_S
    reading: Reading | None = None

    @property
    def at_first(self) -> Topology:
        """The topology at the beginning of the run, by which it numbers and names ranks."""
        return replace(self.topology, n_groups=self.n_first or self.topology.n_groups)
