"""The rendezvous of a rank with the others: through ZooKeeper, and then over its transports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from horn.coordination.barrier import GroupBarrier, GroupMembers
from horn.coordination.membership import Membership, RegistrationTimeout
from horn.coordination.roster import Publication, Registration, Roster, RosterEntry, RosterTable
from horn.coordination.session import Session
from horn.errors import BarrierTimeout
from horn.process.control import CONNECTING, STEPS, WAITING
from horn.process.job_payload import OpenedPayload
from horn.runtime.group import Group
from horn.security.keys import Credential
from horn.strategies import Topology
from horn.transport import Identity, Transport, open_transport

SESSION_S = 20.0


class Rendezvous:
    """One rank's meeting with the others: it registers, waits for their endpoints, and connects.

    rank : of a task or server. key : encrypts what leaves the host. credential : for ZooKeeper.
    stack : closes what it opens. enter : called with each step of the start. wire : for messages
    between batches, connected by ``group`` for a task. guest_wire : of the server in this process,
    which connects it.
    """

    def __init__(
        self,
        rank: int,
        opened: OpenedPayload,
        topology: Topology,
        stack: ExitStack,
        key: bytes | None = None,
        credential: Credential | None = None,
        enter: Callable[[int], None] = lambda step: None,
    ) -> None:
        run = opened.run
        self.enter, self.key = enter, key
        self.rank, self.run, self.topology, self.stack = rank, run, topology, stack
        # Which numbers and names the ranks of the run have, also those of a group that came later.
        self.at_first = replace(topology, n_groups=run.n_first or topology.n_groups)
        self.is_joined = opened.strategy.is_joined
        self.group_index, self.task = divmod(rank, topology.n_tasks)
        is_server = rank >= topology.n_workers
        self.coord = coord = stack.enter_context(
            Session(run.hosts, session_s=SESSION_S, credential=credential, silence_s=run.silence_s)
        )
        self._memberships: dict[str, Membership] = {}
        self.own: Registration | Membership | None = None
        self._table: RosterTable | None = None
        # Durable servers come and go, so their folder is watched; others are in the table.
        self.servers = self.membership(coord.paths.servers(run.job)) if run.journals else None
        self.wire: Transport | None = None
        self.guest_wire: Transport | None = None
        if opened.strategy.has_messages and not run.journals:
            self.wire = self._open(topology.n_ranks, rank, f"{run.job}/wire")
        if run.guests and rank < topology.n_servers:
            self.guest_wire = open_transport(run.url, self._place(topology.server(rank)))
        if is_server and run.journals:
            return  # it registers after recovery: ``process/server_discovery.py``
        servers = coord.paths.servers(run.job)
        if is_server:
            assert self.wire is not None
            self.own = self._registration(servers)
            self.join(self.own, rank - topology.n_workers, self.wire.endpoint)
            return
        n, number, job = topology.n_tasks, self.task, f"{run.job}/group {self.group_index}"
        first = self.at_first.rank(self.group_index, 0)
        if self.is_joined:
            n, number, job, first = topology.n_workers, rank, run.job, 0
        self._steps = self._open(n, number, job, first)
        wire = "" if self.wire is None else self.wire.endpoint
        folder = coord.paths.members(run.job, self.group_index)
        # The rank that publishes the table watches the members; others only register.
        self.own = self.membership(folder) if self._publishes else self._registration(folder)
        self.join(self.own, self.task, self._steps.endpoint, wire=wire)
        if self.guest_wire is not None:
            self.join(self._registration(servers), rank, self.guest_wire.endpoint)

    def join(
        self, where: Registration | Membership, number: int, endpoint: str, **info: str
    ) -> None:
        """Register as member ``number``; who held the place in an earlier attempt is fenced."""
        attempt = self.run.attempt
        facts = {"pid": os.getpid(), "attempt": attempt, **info}
        where.join(str(number), endpoint, info=facts, replace=attempt > 0)

    @property
    def _is_whole(self) -> bool:
        """Whether all ranks of the job meet, not a group's tasks alone."""
        return not self.run.journals and (self.is_joined or self.wire is not None)

    @property
    def _publishes(self) -> bool:
        """Whether this rank writes the table that the others read."""
        return self.rank == (0 if self._is_whole else self.group_index * self.topology.n_tasks)

    def table(self) -> RosterTable:
        """Wait for all members, and return their table. Sets ``roster``, for the barrier."""
        if self._table is not None:
            return self._table
        self.enter(WAITING)
        run, topology, paths = self.run, self.topology, self.coord.paths
        wait_s = len(STEPS) * run.start_timeout_s  # for all that others do before they join
        first = 0 if self._is_whole else self.group_index
        groups = range(topology.n_groups) if self._is_whole else [self.group_index]
        folders = {paths.members(run.job, g): self.at_first.ranks(g) for g in groups}
        if self._is_whole and topology.n_servers:
            folders[paths.servers(run.job)] = list(range(topology.n_workers, topology.n_ranks))
        counts = {folder: len(ranks) for folder, ranks in folders.items()}
        path = paths.table(run.job, first, run.attempt)
        if self._publishes:
            assert isinstance(self.own, Membership)
            self.coord.ensure(*counts)
            members = {folder: self.membership(folder, is_made=True) for folder in counts}
            publication = Publication(self.coord, path, members, run.attempt)
            self.stack.callback(publication.close)
            with named(folders, self.at_first):
                self._table = publication.publish(counts, wait_s)
            self.roster: GroupMembers = self.own
        else:
            assert isinstance(self.own, Registration)
            publisher = paths.members(run.job, first), "0"
            roster = Roster(self.coord, path, publisher, self.own)
            self.stack.callback(roster.close)
            with named(folders, self.at_first):
                self._table = roster.wait(counts, wait_s)
            self.roster = roster
        return self._table

    def membership(self, folder: str, *, is_made: bool = False) -> Membership:
        """The membership of a folder that this rank watches."""
        if folder not in self._memberships:
            found = self._memberships[folder] = Membership(self.coord, folder, is_made=is_made)
            self.stack.callback(found.close)
        return self._memberships[folder]

    def _registration(self, folder: str) -> Registration:
        found = Registration(self.coord, folder)
        self.stack.callback(found.close)
        return found

    def _place(self, rank: int) -> Identity:
        run, n = self.run, self.topology.n_ranks
        return Identity(rank, n, f"{run.job}/wire", run.attempt, self.key, self._who)

    def _who(self, rank: int) -> tuple[str, tuple[int]]:
        return self.at_first.name(rank), (rank,)

    def _open(self, n: int, number: int, job: str, first: int = 0) -> Transport:
        """Open a transport whose task 0 has rank ``first``."""
        run = self.run
        place = Identity(
            number, n, job, run.attempt, self.key, lambda task: self._who(first + task)
        )
        return self.stack.enter_context(open_transport(self.run.url, place))

    def _entries(self, group: int) -> list[RosterEntry]:
        """The entries of a group's tasks."""
        return self.table().folders[self.coord.paths.members(self.run.job, group)]

    def group(self) -> Group:
        """Connect this task to the others, and return its group, for supersteps."""
        run = self.run
        group_indexes = range(self.topology.n_groups) if self.is_joined else [self.group_index]
        endpoints = [
            task.endpoint for group_index in group_indexes for task in self._entries(group_index)
        ]
        wires = [] if self.wire is None else self.wires()
        self.enter(CONNECTING)
        self._steps.connect(endpoints, run.start_timeout_s)
        if self.wire is not None:
            self.wire.connect(wires, run.start_timeout_s)
        n_tasks = self.topology.n_tasks
        names = [str(task) for task in range(n_tasks)]
        first = self.group_index * n_tasks if self.is_joined else 0
        barrier = GroupBarrier(
            self.coord, self.coord.paths.barrier(run.job, self.group_index), str(self.task), names,
            attempt=run.attempt, membership=self.roster,
        )  # fmt: skip
        self.stack.callback(barrier.close)
        return Group(
            self._steps, timeout_s=run.superstep_timeout_s, start_timeout_s=run.start_timeout_s,
            barrier=barrier, members={name: first + n for n, name in enumerate(names)},
            every_superstep=run.barrier == "zookeeper",
        )  # fmt: skip

    def wires(self) -> list[str]:
        """The endpoints of all ranks for messages between batches."""
        groups = range(self.topology.n_groups)
        found = [task.wire for group in groups for task in self._entries(group)]
        if self.topology.n_servers:
            servers = self.table().folders[self.coord.paths.servers(self.run.job)]
            found += [server.endpoint for server in servers]
        return found

    def server_wire(self) -> Transport:
        """Connect a server process for messages between batches, and return its transport."""
        assert self.wire is not None
        endpoints = self.wires()
        self.enter(CONNECTING)
        self.wire.connect(endpoints, self.run.start_timeout_s)
        return self.wire


@contextmanager
def named(folders: Mapping[str, Sequence[int]], topology: Topology) -> Iterator[None]:
    """Name the members that have not registered; in their ``folders`` of ranks they are numbers."""
    try:
        yield
    except RegistrationTimeout as error:
        ranks = folders[error.folder]
        absent, arrived = (
            tuple(ranks[int(number)] for number in some) for some in (error.absent, error.arrived)
        )
        names, others = (tuple(map(topology.name, some)) for some in (absent, arrived))
        raise BarrierTimeout(
            error.where, names, others, error.timeout_s, error.hint, absent
        ) from error
