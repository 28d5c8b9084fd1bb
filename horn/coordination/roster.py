"""The table of a group's members: written by one, the publisher, and watched by all.

Each member has its ephemeral node (a Registration); only the publisher watches those. When all are
there it writes the table, an ephemeral node too, and adds members that leave. A group of N costs
some 30 N packets, not N squared (docs/notes/0096). Callbacks only note that there is something to
read.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from horn.coordination import paths
from horn.coordination.membership import (
    LATE,
    Member,
    Membership,
    MembershipChange,
    RegistrationTimeout,
    check_layout,
    described,
)
from horn.coordination.place import MemberPlace
from horn.coordination.records import ConnectionResumed, Event, Reply, SessionExpired, Znode
from horn.coordination.session import Session
from horn.errors import (
    UNREADABLE,
    ClusterError,
    Conflict,
    Fenced,
    NotFound,
    ProtocolError,
    Unreachable,
)
from horn.patience import Patience

logger = logging.getLogger(__name__)


class RosterEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member's endpoints for supersteps and, if it has one, for messages."""

    endpoint: str
    wire: str = ""


class RosterTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All members by folder, in the order of their names. gone : folder and name, of departed."""

    attempt: int
    folders: dict[str, list[RosterEntry]]
    gone: list[tuple[str, str]] = []
    layout: int = paths.LAYOUT


class WatchedNode:
    """A node, and whether it may have changed since it was read: ``on_stale`` is called once then,
    in the connection's thread.
    """

    def __init__(self, coord: Session, path: str, on_stale: Callable[[], None]) -> None:
        self.coord, self.path, self.on_stale = coord, path, on_stale
        self.is_stale = True
        self._is_watched = False  # one watch at a time: the next would stay beside it
        self._unsubscribe = coord.subscribe(self._on_event)

    def read(self, timeout_s: float = 10.0) -> Znode | None:
        """Read the node; ``is_stale`` is set at its next change."""
        self.is_stale = False

        def told(word: str) -> None:
            self._is_watched = False
            self._note()

        def looked(reply: Reply) -> None:
            if reply.reason:
                told(reply.reason)

        if not self._is_watched:
            self._is_watched = True
            self.coord.send(looked, "exists", self.path, watch=told)
        try:
            return self.coord.get(self.path, timeout_s)
        except BaseException:
            self.is_stale = True
            raise

    def close(self) -> None:
        self._unsubscribe()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, (ConnectionResumed, SessionExpired)):
            self._note()

    def _note(self) -> None:
        self.is_stale = True
        self.on_stale()


class Registration:
    """This process's place in a folder, of which it watches no other node. Raises Conflict: a
    living process holds the name. Fenced: the place was given to another.
    """

    def __init__(self, coord: Session, folder: str) -> None:
        self.coord, self.folder = coord, folder
        self._changed = threading.Event()
        self._place: MemberPlace | None = None
        self._node: WatchedNode | None = None  # of the place

    def join(
        self,
        name: str,
        endpoint: str,
        *,
        info: Mapping[str, Any] | None = None,
        replace: bool = False,
        timeout_s: float = 10.0,
    ) -> int:
        """Take the place ``name`` and return its token; arguments as in Membership.join."""
        place = self._place = MemberPlace(self.coord, self.folder, name)
        data = described(endpoint, {}, info or {})
        patience = Patience(timeout_s)
        watched = self._node = WatchedNode(self.coord, place.path, self._changed.set)
        while True:
            old: Znode | None = None
            try:  # without a look first: most find the place free
                is_taken = place.take(data, None, replace=replace)
            except NotFound:
                if patience.left_s() <= 0:  # others remove it again and again
                    raise
                self.coord.ensure(self.folder)
                continue
            if not is_taken:
                self._changed.clear()
                old = watched.read()
                is_taken = old is not None and place.take(data, old, replace=replace)
            if is_taken:
                self.confirm()  # and watch it from now on
                return place.token
            # A node that is there, but not to be read, has gone, or its server lags: tried again.
            is_left = patience.left_s() > 0
            while is_left and old is not None and not self._changed.is_set():
                is_left = patience.wait(self._changed.wait)
            if not is_left:
                raise place.already_held(old)

    def check(self) -> None:
        """Raise SessionLost or Fenced if this process is no longer the member it joined as."""
        self.coord.check()
        if self._place is None or self._node is None:
            return
        self._place.check()
        if self._node.is_stale and self.coord.connected:
            self.confirm()

    def confirm(self) -> None:
        """Ask ZooKeeper whether the place is still this process's. Raises as ``check`` does."""
        self.coord.check()
        if self._place is None or self._node is None or not self._place.token:
            return
        self._place.judge(self._node.read())
        self._place.check()

    def close(self) -> None:
        """Stop watching; the node stays until the session ends."""
        if self._node is not None:
            self._node.close()


class Publication:
    """The table of an attempt, for its publisher. members : by folder, named by number from 0."""

    def __init__(
        self, coord: Session, path: str, members: Mapping[str, Membership], attempt: int
    ) -> None:
        self.coord, self.path, self.members, self.attempt = coord, path, members, attempt
        self._table: RosterTable | None = None
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._gone: list[tuple[str, str]] = []
        self._unsubscribe: list[Callable[[], None]] = []

    def publish(self, counts: Mapping[str, int], timeout_s: float) -> RosterTable:
        """Wait for all members, of this attempt or later; write the table. counts : by folder."""
        patience = Patience(timeout_s)
        folders: dict[str, list[RosterEntry]] = {}
        taken: list[tuple[str, Member]] = []
        for folder, n in counts.items():
            names = [str(number) for number in range(n)]
            self.members[folder].members()  # waits until the folder has been read
            found = self.members[folder].wait_for(
                names,
                timeout_s,
                lambda member: int(member.info["attempt"]) >= self.attempt,
                patience,
            )
            folders[folder] = [
                RosterEntry(found[name].endpoint, str(found[name].info.get("wire", "")))
                for name in names
            ]
            taken += [(folder, found[name]) for name in names]
        table = RosterTable(self.attempt, folders)
        try:
            self.coord.create(self.path, msgspec.json.encode(table), ephemeral=True)
        except Conflict as error:
            raise Fenced(self.path, "another process has written it") from error
        with self._lock:
            self._table = table
        for folder, membership in self.members.items():
            self._watch(folder, membership)
        # Those of one folder may have gone while another was waited for, before they were watched.
        present = {folder: membership.members() for folder, membership in self.members.items()}
        gone = [
            (folder, one.name)
            for folder, one in taken
            if one.name not in present[folder] or present[folder][one.name].token != one.token
        ]
        if gone:
            with self._lock:
                self._gone += gone
            self._tell()
        return table

    def close(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = []

    def _watch(self, folder: str, membership: Membership) -> None:
        def on_change(change: MembershipChange) -> None:
            with self._lock:
                self._gone += [(folder, name) for name in sorted(change.left)]
            if change.left:  # a callback must not wait for ZooKeeper itself
                threading.Thread(target=self._tell, name="horn-table", daemon=True).start()

        self._unsubscribe.append(membership.subscribe(on_change))

    def _tell(self) -> None:
        with self._writing:  # never in a callback's thread, which delivers the answer to a write
            while self._tell_once():
                pass

    def _tell_once(self) -> bool:
        """Write departed members into the table; True to repeat it: there was no answer."""
        with self._lock:
            assert self._table is not None
            table = msgspec.structs.replace(self._table, gone=[*self._gone])
            if table == self._table or not self._unsubscribe:
                return False
        try:
            self.coord.set(self.path, msgspec.json.encode(table))
        except Unreachable as error:
            logger.info("table not written yet path=%s reason=%s", self.path, error)
            return True
        except ClusterError as error:  # then its session ends, and the table with it
            logger.info("table not written path=%s reason=%s", self.path, error)
            return False
        with self._lock:
            self._table = table
        return False


class Roster:
    """The table, for its readers. folder : whose departures count. Raises RegistrationTimeout: no
    table in time; names the members that have not registered.
    """

    def __init__(
        self, coord: Session, path: str, publisher: tuple[str, str], own: Registration
    ) -> None:
        self.coord, self.path, self.publisher, self.own = coord, path, publisher, own
        self._callbacks: list[Callable[[MembershipChange], None]] = []
        self._changed = threading.Event()
        self._table: RosterTable | None = None
        self._gone: Counter[str] = Counter()
        self._node = WatchedNode(coord, path, self._on_stale)

    def wait(self, counts: Mapping[str, int], timeout_s: float) -> RosterTable:
        """Wait for the table. counts : as in Publication.publish."""
        patience = Patience(timeout_s)
        while True:
            self._changed.clear()
            node = self._node.read()
            if node is not None:
                self._table = _table_of(self.path, node)
                if self._table.gone:  # is for ``check`` to read: who has gone is lost to a barrier
                    self._node.is_stale = True
                return self._table
            while not self._changed.is_set():
                if not patience.wait(self._changed.wait):
                    raise self._late(counts, timeout_s)
            self.own.check()

    def _late(self, counts: Mapping[str, int], timeout_s: float) -> RegistrationTimeout:
        for folder, n in counts.items():
            names, found = set(map(str, range(n))), set(self.coord.children(folder))
            if absent := tuple(sorted(names - found)):
                here = tuple(sorted(names & found))
                return RegistrationTimeout(folder, absent, here, timeout_s, LATE)
        folder, name = self.publisher
        why = f"All are registered, but the first of them ({folder}/{name}) has not said so"
        return RegistrationTimeout(folder, (name,), (), timeout_s, why)

    def close(self) -> None:
        self._node.close()

    def _on_stale(self) -> None:
        self._changed.set()
        if self._table is not None:
            names = frozenset(map(str, range(len(self._table.folders.get(self.folder, ())))))
            for callback in [*self._callbacks]:
                callback(MembershipChange(frozenset(), names))

    # the interface for a barrier, like that of Membership

    @property
    def folder(self) -> str:
        """The folder of this process's group."""
        return self.own.folder

    def departures(self) -> Counter[str]:
        """The number of departures so far, by name, in the own folder."""
        return self._gone.copy()

    def lost(self, names: Iterable[str], since: Counter[str]) -> tuple[str, ...]:
        """The ``names`` that departed after departures() gave ``since``, sorted."""
        return tuple(sorted(n for n in names if self._gone[n] > since[n]))

    def check(self) -> None:
        """Raise SessionLost or Fenced if this process is no longer the member it joined as."""
        self.own.check()
        if self._table is None or not self._node.is_stale or not self.coord.connected:
            return
        node = self._node.read()
        # The table goes with its writer.
        gone = {self.publisher} if node is None else {*_table_of(self.path, node).gone}
        self._gone = Counter(name for folder, name in gone if folder == self.folder)

    def subscribe(self, callback: Callable[[MembershipChange], None]) -> Callable[[], None]:
        """Call ``callback``, in the connection's thread, with members that may have departed."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)


def _table_of(path: str, node: Znode) -> RosterTable:
    try:
        table = msgspec.json.decode(node.data, type=RosterTable)
    except UNREADABLE as error:
        raise ProtocolError(f"{path} is not a table that horn wrote: {error}") from error
    check_layout(path, table.layout)
    return table
