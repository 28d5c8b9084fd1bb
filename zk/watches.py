"""Watches: which connections want which events. Pure.

A holder is hashable (a connection). One-shot watches end when they fire; persistent ones stay;
recursive ones hear of everything below but not of lists of children. Source: WatchManager of Apache
ZooKeeper; one-shot and persistent watches on one path are apart as in 3.9 (ZOOKEEPER-4466).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from zk.wire import Event

CHILDREN, DATA, ANY = 1, 2, 3

Holders = dict[Hashable, None]
Table = dict[str, Holders]


class Watches:
    """Tables from path to holders, and from holder to its paths."""

    def __init__(self) -> None:
        self.data: Table = {}
        self.child: Table = {}
        self.persistent: Table = {}
        self.recursive: Table = {}
        self._paths: dict[Hashable, dict[tuple[int, str], None]] = {}
        self._tables = (self.data, self.child, self.persistent, self.recursive)

    def __len__(self) -> int:
        return sum(len(paths) for paths in self._paths.values())

    def _add(self, table: int, path: str, holder: Hashable) -> None:
        self._tables[table].setdefault(path, {})[holder] = None
        self._paths.setdefault(holder, {})[table, path] = None

    def _remove(self, table: int, path: str, holder: Hashable) -> bool:
        holders = self._tables[table].get(path)
        if holders is None or holder not in holders:
            return False
        del holders[holder]
        if not holders:
            del self._tables[table][path]
        self._unlist(table, path, holder)
        return True

    def _unlist(self, table: int, path: str, holder: Hashable) -> None:
        mine = self._paths[holder]
        del mine[table, path]
        if not mine:
            del self._paths[holder]

    def add_data(self, path: str, holder: Hashable) -> None:
        self._add(0, path, holder)

    def add_child(self, path: str, holder: Hashable) -> None:
        self._add(1, path, holder)

    def add_persistent(self, path: str, holder: Hashable, *, recursive: bool) -> None:
        """Add a persistent watch; it replaces an earlier mode on the same path."""
        self._remove(2 if recursive else 3, path, holder)
        self._add(3 if recursive else 2, path, holder)

    def forget(self, holder: Hashable) -> None:
        """Remove all watches of a holder."""
        for table, path in list(self._paths.get(holder, ())):
            self._remove(table, path, holder)

    def has(self, path: str, kind: int, holder: Hashable) -> bool:
        return any(holder in self._tables[t].get(path, ()) for t in _tables_of(kind))

    def remove(self, path: str, kind: int, holder: Hashable) -> bool:
        """Remove a watch; whether there was one."""
        removed = [self._remove(t, path, holder) for t in _tables_of(kind)]
        return True in removed

    def fire(self, kind: int, path: str) -> Iterable[Hashable]:
        """Fire the watches for an event; return their holders, each once."""
        if not self._paths:
            return ()
        heard: Holders = {}
        if kind != Event.CHILDREN:
            self._take(0, path, heard)
        if kind in (Event.DELETED, Event.CHILDREN):
            self._take(1, path, heard)
        if self.persistent:
            heard.update(self.persistent.get(path, {}))
        if self.recursive and kind != Event.CHILDREN:
            above = path
            while True:
                heard.update(self.recursive.get(above, {}))
                if above in ("/", ""):
                    break
                above = above[: above.rfind("/")] or "/"
        return heard

    def _take(self, table: int, path: str, heard: Holders) -> None:
        for holder in self._tables[table].pop(path, ()):
            heard[holder] = None
            self._unlist(table, path, holder)


def _tables_of(kind: int) -> tuple[int, ...]:
    """The tables of a kind: a persistent watch is among Apache's data and child watches."""
    return {CHILDREN: (1, 2, 3), DATA: (0, 2, 3), ANY: (0, 1, 2, 3)}[kind]
