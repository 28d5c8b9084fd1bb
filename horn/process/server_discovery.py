"""The discovery of restarted servers by tasks, and of restarted groups by servers, in ZooKeeper.

Members are kept here, and read again when the membership of their folder has changed.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from horn import transport
from horn.coordination.membership import Member, Membership, MembershipChange
from horn.errors import JournalError
from horn.parameter_server.journal import Journal
from horn.parameter_server.server import ParameterServer
from horn.parameter_server.server_links import ServerLinks
from horn.parameter_server.server_state import recover, state
from horn.parameter_server.serving import serve
from horn.process.rendezvous import Rendezvous
from horn.runtime.context import ServerAddress
from horn.training.journals import ATTEMPTS
from horn.transport import Identity

PAUSE_S = 2.0  # after so long without activity, ask ZooKeeper for the place's holder


class WatchedFolder:
    """The members of one folder as they were when it last changed."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self._changed = threading.Event()
        self._changed.set()
        self._members: dict[str, Member] = {}
        self._unsubscribe = membership.subscribe(self._note)

    def _note(self, change: MembershipChange) -> None:
        self._changed.set()

    def members(self) -> dict[str, Member]:
        if self._changed.is_set():
            self._changed.clear()  # before: what changes while it is read is read again
            try:
                self._members = self.membership.members()
            except BaseException:
                self._changed.set()
                raise
        return self._members

    def close(self) -> None:
        self._unsubscribe()


class ServerDiscovery:
    """The servers or groups that a rank finds where servers are durable. Raises SessionLost,
    Fenced: its place is lost.
    """

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.rendezvous, self.run = rendezvous, rendezvous.run
        self.groups: list[WatchedFolder] = []  # a server's: they come and go, too
        if self._is_server:
            self._watch(rendezvous.topology.n_groups)
        assert rendezvous.servers is not None
        self._servers = WatchedFolder(rendezvous.servers)
        self._looked = time.monotonic()

    def close(self) -> None:
        for watched in (*self.groups, self._servers):
            watched.close()

    def identity(self) -> Identity:
        """This rank's identity on its links."""
        rank, run, key = self.rendezvous.rank, self.run, self.rendezvous.key
        number = rank - self.rendezvous.topology.n_workers if self._is_server else rank
        return Identity(number, run.n_tasks, f"{run.job}/servers", run.attempt, key)

    def find(self, server: int) -> ServerAddress | None:
        """The present address of a server; None if it is not registered."""
        member = self._servers.members().get(str(server))
        if member is None:
            return None
        return ServerAddress(member.endpoint, int(member.info["attempt"]))

    def attempt(self, group: int) -> int:
        """The highest attempt of a group's tasks."""
        self._watch(group + 1)  # it may have come later
        found = self.groups[group].members().values()
        return max((int(member.info["attempt"]) for member in found), default=0)

    def _watch(self, n_groups: int) -> None:
        while len(self.groups) < n_groups:
            folder = self.rendezvous.coord.paths.members(self.run.job, len(self.groups))
            self.groups.append(WatchedFolder(self.rendezvous.membership(folder)))

    def check(self) -> None:
        """Check that this process still holds its place; after a pause by asking ZooKeeper."""
        now, looked = time.monotonic(), self._looked
        self._looked = now
        mine = self.rendezvous.servers if self._is_server else self.rendezvous.own
        assert mine is not None
        if now - looked > PAUSE_S:
            mine.confirm()
        mine.check()

    @property
    def _is_server(self) -> bool:
        return self.rendezvous.rank >= self.rendezvous.topology.n_workers


def served(
    rendezvous: Rendezvous, server: ParameterServer, idle_s: float, ready: Callable[[], None]
) -> dict[str, Any]:
    """Run a durable server: recover from the journal, register, be ``ready``, serve. Returns its
    times, and n_stale messages of ended attempts, n_repeated pieces, n_replayed messages of the
    journal.
    """
    run, number = rendezvous.run, server.number
    server.is_durable = True
    discovery = ServerDiscovery(rendezvous)
    stack = rendezvous.stack
    stack.callback(discovery.close)
    scheme = run.url.partition("://")[0]
    kind = transport.load(scheme)
    url = run.url if kind.crosses_hosts else kind.link_url
    n_tasks = run.n_tasks

    def is_stale(rank: int, attempt: int) -> bool:
        group = rank // n_tasks
        if group < server.topology.n_groups:  # else no task of it has joined yet
            server.fence(group, discovery.attempt(group))
        return server.is_stale(group, attempt)

    links = ServerLinks(url, discovery.identity(), is_stale)
    stack.callback(links.close)
    journal = Journal(Path(run.journals) / f"server-{number}")
    stack.callback(journal.close)
    if run.is_told and journal.is_new:
        raise JournalError(
            str(journal.folder),
            0,
            "the journal is missing, and nobody else has what this server was told: its folder was "
            "moved or removed; put it back, and resume the run",
        )
    n_replayed = recover(server, journal)
    # A server that was done before must not end again before a group has come.
    groups = run.groups or range(run.n_groups)
    if server.expect(groups, run.attempt - run.attempt % ATTEMPTS):
        journal.save(*state(server))
    assert rendezvous.servers is not None
    rendezvous.join(rendezvous.servers, number, links.endpoint)
    ready()
    spent = serve(
        server,
        links,
        idle_s,
        journal=journal,
        check=discovery.check,
        is_needed=lambda: bool(links.ranks) or any(group.members() for group in discovery.groups),
    )
    return {
        **dataclasses.asdict(spent),
        "n_stale": links.n_stale + server.n_stale,
        "n_repeated": server.n_repeated,
        "n_replayed": n_replayed,
    }
