"""The numbers of tasks, groups and servers. Pure; a command may import it without NumPy."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


def share(n: int, part: int, n_parts: int) -> tuple[int, int]:
    """The range of part ``part`` of ``n_parts`` of n things in order (samples of a batch, neurons
    of a layer). Sizes differ by at most one; a part of a short batch may be empty.
    """
    return n * part // n_parts, n * (part + 1) // n_parts


def largest_share(n: int, n_parts: int) -> int:
    return -(-n // n_parts)


SPARE_FDS = 64  # open files of a task besides its connections


@dataclass(frozen=True)
class Topology:
    """Groups x tasks, and servers. Ranks number them all: group * n_tasks + task, then servers.

    Later groups, from number n_groups on, have the ranks after the servers, so that no rank
    changes. On its links to servers a task has the number ``link``, always group * n_tasks + task.
    """

    n_groups: int = 1
    n_tasks: int = 1
    n_servers: int = 0

    @property
    def n_workers(self) -> int:
        return self.n_groups * self.n_tasks

    @property
    def n_ranks(self) -> int:
        return self.n_workers + self.n_servers

    def descriptors(self, per_peer: int) -> int:
        """The most open files that a task needs. per_peer : ``Transport.fds_per_peer``. Under
        allreduce or Downpour's messages all ranks connect, else the tasks of a group.
        """
        n_met = self.n_ranks if self.n_groups > 1 else self.n_tasks
        return n_met * per_peer + SPARE_FDS

    def rank(self, group: int, task: int) -> int:
        later = self.n_servers if group >= self.n_groups else 0
        return group * self.n_tasks + task + later

    def ranks(self, group: int) -> list[int]:
        return [self.rank(group, task) for task in range(self.n_tasks)]

    def server(self, number: int) -> int:
        return self.n_workers + number

    def is_server(self, rank: int) -> bool:
        return self.n_workers <= rank < self.n_ranks

    def link(self, rank: int) -> int:
        """The number of a task among tasks; a server's is its rank."""
        return rank - self.n_servers if rank >= self.n_ranks else rank

    def of_link(self, number: int) -> int:
        """The rank of the task with a number ``link``."""
        return self.rank(*divmod(number, self.n_tasks))

    def group(self, rank: int) -> int:
        return self.link(rank) // self.n_tasks

    def name(self, rank: int) -> str:
        if self.is_server(rank):
            return f"server {rank - self.n_workers}"
        if rank >= self.n_ranks:
            return f"group {self.group(rank)}'s task {self.link(rank) % self.n_tasks}"
        return f"task {rank}"

    def short_name(self, rank: int) -> str:
        """The short name of a rank: g0.t1, s0."""
        if self.is_server(rank):
            return f"s{rank - self.n_workers}"
        return f"g{self.group(rank)}.t{self.link(rank) % self.n_tasks}"

    def next_group(self, here: Collection[int], n_ever: int) -> int:
        """The number of the next group after ``n_ever``; none is given twice. It decides the
        group's part of the data, one for each first group: a part that the fewest groups ``here``
        read.
        """
        n = self.n_groups
        readers = [sum(group % n == part for group in here) for part in range(n)]
        return min(range(n_ever, n_ever + n), key=lambda group: (readers[group % n], group))
