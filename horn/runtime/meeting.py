"""How a rank finds the others: through ZooKeeper, and then over its transports."""

from __future__ import annotations

import os
from contextlib import ExitStack

from horn.cluster.barrier import RegionBarrier
from horn.cluster.coord import Coordinator
from horn.cluster.keys import Credential
from horn.cluster.members import Member, Membership
from horn.runtime.group import Group
from horn.runtime.parcel import Opened
from horn.strategies import Topology
from horn.transport import Place, Transport, open_transport

SESSION_S = 20.0


class Meeting:
    """One rank meets the others: registers its endpoints, waits for theirs, connects.

    rank : of a task or of a server. key : the job's, for what leaves the host. credential :
    the job's, for ZooKeeper. What it opens is closed with ``stack``.
    """

    def __init__(
        self,
        rank: int,
        opened: Opened,
        topology: Topology,
        stack: ExitStack,
        key: bytes | None = None,
        credential: Credential | None = None,
    ) -> None:
        run = opened.run
        self.key = key
        self.rank, self.run, self.topology, self.stack = rank, run, topology, stack
        self.is_joined = opened.strategy.is_joined
        self.region, self.task = divmod(rank, topology.n_tasks)
        is_server = rank >= topology.n_workers
        coord = Coordinator(
            run.hosts, session_s=SESSION_S, credential=credential, silence_s=run.silence_s
        )
        stack.enter_context(coord)
        self.coord = coord
        self.members = [
            self._membership(coord.paths.members(run.job, group))
            for group in range(topology.n_groups)
        ]
        self.servers = (
            self._membership(coord.paths.servers(run.job)) if topology.n_servers else None
        )
        self._wire: Transport | None = None
        self._guest: Transport | None = None
        if opened.strategy.has_messages and not run.journals:
            self._wire = self._open(topology.n_ranks, rank, f"{run.job}/wire")
        if run.guests and rank < topology.n_servers:
            self._guest = open_transport(run.url, self._place(topology.server(rank)))
        if is_server and run.journals:
            return  # it registers once it has come back: ``runtime/reunion.py``
        if is_server:
            assert self._wire is not None and self.servers is not None
            self._join(self.servers, rank - topology.n_workers, self._wire.endpoint)
            return
        n, number, job = topology.n_tasks, self.task, f"{run.job}/group {self.region}"
        if self.is_joined:
            n, number, job = topology.n_workers, rank, run.job
        self._steps = self._open(n, number, job)
        wire = "" if self._wire is None else self._wire.endpoint
        self._join(self.members[self.region], self.task, self._steps.endpoint, wire=wire)
        if self._guest is not None:
            assert self.servers is not None
            self._join(self.servers, rank, self._guest.endpoint)

    def _join(self, where: Membership, number: int, endpoint: str, **info: str) -> None:
        """Take a place. Whoever held it in an earlier epoch is fenced, if it still lives."""
        epoch = self.run.epoch
        where.join(
            str(number),
            endpoint,
            info={"pid": os.getpid(), "epoch": epoch, **info},
            replace=epoch > 0,
        )

    def _wait_for(self, where: Membership, n: int) -> list[Member]:
        """Numbers 0 to n - 1 as they are in this epoch: those of an earlier one may still be
        listed.
        """
        names = [str(number) for number in range(n)]
        found = where.wait_for(
            names,
            self.run.start_timeout_s,
            lambda member: int(member.info["epoch"]) >= self.run.epoch,
        )
        return [found[name] for name in names]

    def _membership(self, folder: str) -> Membership:
        found = Membership(self.coord, folder)
        self.stack.callback(found.close)
        return found

    def _place(self, rank: int) -> Place:
        run = self.run
        return Place(rank, self.topology.n_ranks, f"{run.job}/wire", run.epoch, self.key)

    def _open(self, n: int, number: int, job: str) -> Transport:
        place = Place(number, n, job, self.run.epoch, self.key)
        return self.stack.enter_context(open_transport(self.run.url, place))

    def _endpoints(self, group: int) -> list[tuple[str, str]]:
        """Of a group's tasks: for supersteps, and for messages."""
        found = self._wait_for(self.members[group], self.topology.n_tasks)
        return [(member.endpoint, str(member.info["wire"])) for member in found]

    def group(self) -> Group:
        """The connection for supersteps."""
        run = self.run
        regions = range(self.topology.n_groups) if self.is_joined else [self.region]
        self._steps.connect(
            [steps for region in regions for steps, _ in self._endpoints(region)],
            run.start_timeout_s,
        )
        names = [str(task) for task in range(self.topology.n_tasks)]
        barrier = RegionBarrier(
            self.coord,
            self.coord.paths.barrier(run.job, self.region),
            str(self.task),
            names,
            epoch=run.epoch,
            membership=self.members[self.region],
        )
        self.stack.callback(barrier.close)
        return Group(
            self._steps,
            timeout_s=run.superstep_timeout_s,
            agree_timeout_s=run.start_timeout_s,
            barrier=barrier,
            every_superstep=run.barrier == "zookeeper",
        )

    def wires(self) -> list[str]:
        """The endpoints of all ranks for messages between batches."""
        groups = range(self.topology.n_groups)
        found = [wire for group in groups for _, wire in self._endpoints(group)]
        if self.servers is not None:
            found += [m.endpoint for m in self._wait_for(self.servers, self.topology.n_servers)]
        return found

    def wire(self) -> Transport | None:
        """The connection for messages between batches, if the strategy has some."""
        if self._wire is not None:
            self._wire.connect(self.wires(), self.run.start_timeout_s)
        return self._wire

    def guest_wire(self) -> Transport | None:
        """That of the server in this process, to be connected by it."""
        return self._guest
