"""Membership of a folder: ephemeral nodes with an endpoint and versions, and a live view of them.

The same for workers of a cluster, tasks of a group and servers of a job; only the folder differs. A
member that comes back as another process is told from the old one by its fencing token, the zxid of
its node's creation.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horn.coordination import paths
from horn.coordination.nodes import ANSWER_S
from horn.coordination.place import MemberPlace
from horn.coordination.records import (
    ConnectionResumed,
    Event,
    Reply,
    SessionExpired,
    Znode,
)
from horn.coordination.session import Session
from horn.errors import (
    UNREADABLE,
    AccessDenied,
    BarrierTimeout,
    HornError,
    ProtocolError,
    Unreachable,
)
from horn.patience import Patience

logger = logging.getLogger(__name__)
LATE = "Look in the log of an absent one, or raise start_timeout (--start-timeout)"


class RegistrationTimeout(BarrierTimeout):
    """Not all have registered in ``folder`` in time; ``absent`` and ``arrived`` are names there."""

    def __init__(
        self,
        folder: str,
        absent: tuple[str, ...],
        arrived: tuple[str, ...],
        timeout_s: float,
        hint: str,
    ) -> None:
        super().__init__(f"registration in {folder}", absent, arrived, timeout_s, hint)
        self.folder = folder
        self.args = (folder, absent, arrived, timeout_s, hint)


@dataclass(frozen=True)
class Member:
    """A member. ``token`` grows with every new holder of a name; ``session`` : of ZooKeeper."""

    name: str
    endpoint: str
    versions: Mapping[str, str | int]
    info: Mapping[str, Any]
    token: int
    session: int


@dataclass(frozen=True)
class MembershipChange:
    """Members came or went. A name that is in both has another holder now."""

    joined: frozenset[str]
    left: frozenset[str]


class FolderView:
    """The nodes of one folder, kept up to date: name -> Znode.

    Each node has its own watch besides the folder's, to see that it was replaced between two looks.
    After a broken connection everything is read again: changes arrive as one MembershipChange.
    Reads go through ``coord.soon``. ``on_change`` and ``on_data`` (a node's data changed) run in
    the connection's thread. is_made : do not make the folder.
    """

    def __init__(
        self,
        coord: Session,
        folder: str,
        on_change: Callable[[MembershipChange], None],
        on_data: Callable[[str], None] | None = None,
        *,
        is_made: bool = False,
    ) -> None:
        self.coord, self.folder, self.on_change = coord, folder, on_change
        self.on_data = on_data
        self._lock = threading.RLock()
        self._nodes: dict[str, Znode] = {}
        self._asked: set[str] = set()  # a get() is on its way, or its watch is set
        self._denied: set[str] = set()  # present nodes that this session may not read
        self._is_closed_to_us = False  # nor list the folder
        self._round = 0  # of full reads; answers of an earlier one are ignored
        self._pending = 0  # answers that the first complete view waits for
        self._ready = threading.Event()
        self._closed = False
        if not is_made:
            coord.ensure(folder)
        self._unsubscribe = coord.subscribe(self._on_event)
        self._expect()
        self._list(0)

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the folder has been read once. Raises Unreachable: not in time. AccessDenied:
        its names may not be read.
        """
        patience = Patience(timeout_s)
        while not self._ready.is_set():
            if not patience.wait(self._ready.wait):
                raise Unreachable(self.coord.hosts, f"no answer about {self.folder}", timeout_s)
        self.coord.check()
        if self._is_closed_to_us:
            raise self.coord.denied(self.folder, "list")

    @property
    def is_ready(self) -> bool:
        """Whether the folder has been read once."""
        return self._ready.is_set()

    def nodes(self) -> dict[str, Znode]:
        with self._lock:
            return dict(self._nodes)

    def denied(self) -> dict[str, AccessDenied]:
        """The nodes that are there and may not be read, each with its error."""
        with self._lock:
            names = sorted(self._denied)
        return {name: self.coord.denied(f"{self.folder}/{name}", "read") for name in names}

    def learn(self, name: str, node: Znode) -> None:
        """Take a node that the caller has just read, unless the view has a newer one."""
        with self._lock:
            known = self._nodes.get(name)
            if known is not None and node.changed > known.changed:
                self._nodes[name] = node

    def close(self) -> None:
        self._closed = True
        self._unsubscribe()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ConnectionResumed):
            with self._lock:
                names, self._asked = list(self._nodes), set(self._nodes)
                self._round, self._pending = self._round + 1, 0
            self._list_soon()
            self._read_soon(names)
        elif isinstance(event, SessionExpired):
            self._ready.set()

    def _expect(self, n_answers: int = 1) -> int:
        """Add ``n_answers`` answers to wait for; returns their round."""
        with self._lock:
            self._pending += n_answers
            return self._round

    def _list_soon(self) -> None:
        round_ = self._expect()
        self.coord.soon(lambda: self._list(round_))

    def _read_soon(self, names: Sequence[str]) -> None:
        if not names:
            return
        round_ = self._expect(len(names))

        def read() -> None:
            for name in names:
                self._read(name, round_)

        self.coord.soon(read)

    def _list(self, round_: int) -> None:
        def watch(word: str) -> None:
            if not self._closed and word in ("children", "deleted"):
                self._list_soon()

        names = functools.partial(self._on_names, round_)
        self.coord.send(names, "get_children", self.folder, watch=watch)

    def _on_names(self, round_: int, reply: Reply) -> None:
        if reply.reason:  # broken: ConnectionResumed looks again; missing: the folder was removed
            if reply.reason == "missing":
                self._replace(dict.fromkeys(self.nodes()))
                if not self._closed:
                    self.coord.soon(self._await_folder)
                self._answered(round_)
            elif reply.reason == "access":
                self._is_closed_to_us = True
                self._answered(round_)
            return
        names, self._is_closed_to_us = set(reply.value), False
        with self._lock:
            self._denied &= names
            new = names - self._asked
            self._asked = (self._asked & names) | new
            gone = [name for name in self._nodes if name not in names]
        self._replace(dict.fromkeys(gone))
        self._read_soon(sorted(new))
        self._answered(round_)

    def _await_folder(self) -> None:
        """List the folder once it is made again: of a missing one get_children leaves no watch."""

        def watch(word: str) -> None:
            if not self._closed and word == "created":
                self._list_soon()

        def on_answer(reply: Reply) -> None:
            if not self._closed and not reply.reason and reply.value:  # made since it was listed
                self._list_soon()

        self.coord.send(on_answer, "exists", self.folder, watch=watch)

    def _read(self, name: str, round_: int) -> None:
        def watch(word: str) -> None:
            if not self._closed and word in ("changed", "deleted"):
                self._read_soon([name])

        def read(reply: Reply) -> None:
            if reply.reason == "access":
                with self._lock:
                    self._asked.discard(name)  # there is no watch: it is read with the next list
                    self._denied.add(name)
            elif reply.reason == "missing":
                with self._lock:
                    self._asked.discard(name)
                    self._denied.discard(name)
                self._replace({name: None})
            elif not reply.reason:
                with self._lock:
                    self._denied.discard(name)
                self._replace({name: reply.value})
            else:
                return
            self._answered(round_)

        self.coord.send(read, "get", f"{self.folder}/{name}", watch=watch)

    def _answered(self, round_: int) -> None:
        with self._lock:
            if round_ != self._round:
                return
            self._pending -= 1
            if self._pending == 0:
                self._ready.set()

    def _replace(self, nodes: Mapping[str, Znode | None]) -> None:
        joined, left, rewritten = set(), set(), set()
        with self._lock:
            for name, node in nodes.items():
                old = self._nodes.pop(name, None)
                if node is not None:
                    self._nodes[name] = node
                if old is not None and (node is None or node.created != old.created):
                    left.add(name)
                if node is not None and (old is None or node.created != old.created):
                    joined.add(name)
                elif node is not None and old is not None and node.changed != old.changed:
                    rewritten.add(name)
        if (joined or left) and not self._closed:
            self.on_change(MembershipChange(frozenset(joined), frozenset(left)))
        if self.on_data is not None and not self._closed:
            for name in sorted(rewritten):
                self.on_data(name)


class Membership:
    """The members of a folder: join them, list them, wait for them. Raises Conflict: a living
    process holds the name. Fenced: this process's place was given to another.
    """

    def __init__(self, coord: Session, folder: str, *, is_made: bool = False) -> None:
        self.coord, self.folder = coord, folder
        self._mine: MemberPlace | None = None
        self._departures: Counter[str] = Counter()
        self._callbacks: list[Callable[[MembershipChange], None]] = []
        self._changed = threading.Condition()
        self._view = FolderView(coord, folder, self._on_change, is_made=is_made)
        self._unsubscribe = coord.subscribe(self._on_event)

    def close(self) -> None:
        """Stop watching; the own node stays until the session ends."""
        self._view.close()
        self._unsubscribe()

    def join(
        self,
        name: str,
        endpoint: str,
        *,
        versions: Mapping[str, str | int] | None = None,
        info: Mapping[str, Any] | None = None,
        replace: bool = False,
        timeout_s: float = 10.0,
    ) -> int:
        """Take the place ``name`` and return its token. A dead predecessor's node is waited for,
        until its session ends; ``replace`` removes it, and fences its holder if that lives.
        """
        mine = MemberPlace(self.coord, self.folder, name)
        data = described(endpoint, versions or {}, info or {})
        patience = Patience(timeout_s)
        self._view.wait_ready(timeout_s)
        while True:
            old = self.coord.get(mine.path)
            if mine.take(data, old, replace=replace):
                self._mine = mine
                if not self._wait_seen(mine):
                    # It went before the view read it: of what it never had, it tells nothing.
                    mine.judge(self.coord.get(mine.path))
                return mine.token
            # A write that was refused says that the node is another than was read, as of a server
            # behind the others, which has caught up with that answer: it is read again.
            stays = not replace and mine.is_anothers(old)
            is_left = self._wait_gone(name, patience) if stays else patience.left_s() > 0
            if not is_left:
                raise mine.already_held(old)

    def _wait_seen(self, mine: MemberPlace) -> bool:
        """Wait until the own view has caught up, so that members() shows the effect of join();
        whether it has.
        """

        def is_seen() -> bool:
            node = self._view.nodes().get(mine.name)
            if node is None or node.created < mine.token:
                return bool(mine.evicted)
            mine.judge(node)  # its change may have been told before there was an own place
            return True

        with self._changed:
            self._changed.wait_for(lambda: is_seen() or not self.coord.connected, ANSWER_S)
            return is_seen()

    def _wait_gone(self, name: str, patience: Patience) -> bool:
        with self._changed:
            while name in self._view.nodes():
                self.coord.check()
                if not patience.wait(self._changed.wait):
                    return False
        return patience.left_s() > 0

    def tell(self, **info: Any) -> None:
        """Change the info of the own node; the place stays."""
        mine = self._mine
        node = None if mine is None else self.coord.get(mine.path)
        if mine is not None and node is not None and node.created == mine.token:
            said = json.loads(node.data)
            said["info"] = said.get("info", {}) | info
            self.coord.set(mine.path, json.dumps(said, sort_keys=True).encode(), node.version)

    def leave(self) -> None:
        """Give the place back. Nothing happens if there is none."""
        mine, self._mine = self._mine, None
        if mine is not None:
            node = self.coord.get(mine.path)
            if node is not None and node.created == mine.token:
                self.coord.delete(mine.path)

    def members(self, unread: dict[str, HornError] | None = None) -> dict[str, Member]:
        """The present members, as far as this process knows. unread : collects the nodes that this
        horn did not write, or may not read; without it they raise ProtocolError or AccessDenied.
        """
        self._view.wait_ready(10.0)
        denied = self._view.denied()
        if unread is not None:
            unread |= denied
        elif denied:
            raise next(iter(denied.values()))
        found = {}
        for name, node in sorted(self._view.nodes().items()):
            try:
                found[name] = _member(self.folder, name, node)
            except ProtocolError as error:
                if unread is None:
                    raise
                unread[name] = error
        return found

    def names(self) -> frozenset[str]:
        return frozenset(self._view.nodes())

    def wait_for(
        self,
        names: Iterable[str],
        timeout_s: float,
        accept: Callable[[Member], bool] | None = None,
        patience: Patience | None = None,
    ) -> dict[str, Member]:
        """Wait for all ``names`` that ``accept`` counts; BarrierTimeout has the absent. patience :
        instead of one for this call.
        """
        wanted = frozenset(names)
        patience = patience or Patience(timeout_s)
        self._view.wait_ready(timeout_s)  # not below: the callback that shows it needs the lock

        def present() -> dict[str, Member]:
            found = {n: m for n, m in self.members().items() if n in wanted}
            return {n: m for n, m in found.items() if accept is None or accept(m)}

        with self._changed:
            while (here := present()).keys() != wanted:
                self.check()
                if not patience.wait(self._changed.wait):
                    absent = tuple(sorted(wanted - here.keys()))
                    raise RegistrationTimeout(self.folder, absent, tuple(here), timeout_s, LATE)
        return here

    def departures(self) -> Counter[str]:
        """The number of departures so far, by name. A holder that was replaced has departed too."""
        with self._changed:
            return self._departures.copy()

    def lost(self, names: Iterable[str], since: Counter[str]) -> tuple[str, ...]:
        """The ``names`` that departed after departures() gave ``since``, sorted."""
        with self._changed:
            return tuple(sorted(n for n in names if self._departures[n] > since[n]))

    def check(self) -> None:
        """Raise SessionLost or Fenced if this process is no longer the member it joined as."""
        self.coord.check()
        if self._mine is not None:
            self._mine.check()

    def confirm(self) -> None:
        """Ask ZooKeeper whether the place is still this process's. Raises as ``check`` does."""
        mine = self._mine
        self.coord.check()
        if mine is None:
            return
        mine.judge(self.coord.get(mine.path))
        self.check()

    def subscribe(self, callback: Callable[[MembershipChange], None]) -> Callable[[], None]:
        """Call ``callback`` with each MembershipChange, in the connection's thread."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def _on_change(self, change: MembershipChange) -> None:
        with self._changed:
            self._departures.update(change.left)
            mine = self._mine
            if mine is not None and mine.name in change.left | change.joined:
                mine.judge(self._view.nodes().get(mine.name))
            self._changed.notify_all()
        for callback in list(self._callbacks):
            callback(change)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, SessionExpired):
            with self._changed:
                self._changed.notify_all()


def described(endpoint: str, versions: Mapping[str, str | int], info: Mapping[str, Any]) -> bytes:
    """The content of a member's node."""
    versions = {"layout": paths.LAYOUT, **versions}
    said = {"endpoint": endpoint, "versions": versions, "info": dict(info)}
    return json.dumps(said, sort_keys=True).encode()


def _member(folder: str, name: str, node: Znode) -> Member:
    try:
        written = json.loads(node.data)
        endpoint, versions, info = written["endpoint"], written["versions"], written["info"]
        is_text = isinstance(endpoint, str)
        if not (is_text and isinstance(versions, dict) and isinstance(info, dict)):
            raise TypeError("a field has another type")
        layout = versions["layout"]
    except (*UNREADABLE, KeyError, TypeError) as error:
        raise ProtocolError(f"{folder}/{name} is not a member that horn wrote: {error}") from error
    check_layout(f"{folder}/{name}", layout)
    return Member(name, endpoint, versions, info, node.created, node.owner)


def check_layout(path: str, layout: object) -> None:
    if layout != paths.LAYOUT:
        raise ProtocolError(
            f"{path} writes layout {layout}, but this horn reads {paths.LAYOUT}; "
            f"use one version of horn everywhere"
        )
