"""The znodes: checks first, then a change that cannot fail. Pure: zxid and time are passed in.

``check_*`` allow a request and return a ``Txn``; ``apply`` makes the change and returns its events
and how to undo it, for multis. A log replays ``apply`` alone: a Txn holds decisions (the final
path, the stored ACL). Source: PrepRequestProcessor and DataTree of Apache 3.8.0; the checks are in
their order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from zk import acl as acls
from zk.acl import Acls, Ids
from zk.errors import Refused
from zk.wire import STAT, Code, Event

PERSISTENT, EPHEMERAL, SEQUENTIAL, CONTAINER = 0, 1, 2, 4
CONTAINER_OWNER = -(1 << 63)
MOST_ACLS = 1024  # different lists, before unused ones are removed
SPECIAL = frozenset({"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"})

# Surrogates cannot be in a decoded string; a character beyond U+FFFF is two of them in Java, so
# it is refused.
_BAD_CHARACTER = "[\u0000-\u001f\u007f-\u009f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]"


class Node:
    """A znode. ``cversion`` counts creates of children; the shown one deletes too. ``ctime``,
    ``mtime`` : ms since 1970; ``owner`` : a session, 0, or CONTAINER_OWNER, which clients see as 0.
    """

    __slots__ = (
        "acl", "aversion", "children", "ctime", "cversion", "czxid", "data", "mtime", "mzxid",
        "owner", "pzxid", "version",
    )  # fmt: skip

    def __init__(self, data: bytes | None, acl: Acls, owner: int, zxid: int, time_ms: int) -> None:
        self.data, self.acl, self.owner = data, acl, owner
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime = self.mtime = time_ms
        self.version = self.cversion = self.aversion = 0
        self.children: dict[str, None] | None = None

    def stat(self) -> bytes:
        n_children = len(self.children) if self.children else 0
        return STAT.pack(
            self.czxid, self.mzxid, self.ctime, self.mtime, self.version,
            _wrap(self.cversion * 2 - n_children), self.aversion,
            0 if self.owner == CONTAINER_OWNER else self.owner,
            len(self.data) if self.data is not None else 0, n_children, self.pzxid,
        )  # fmt: skip


class Create(NamedTuple):
    path: str
    data: bytes | None
    acl: Acls
    owner: int


class Delete(NamedTuple):
    path: str


class SetData(NamedTuple):
    path: str
    data: bytes | None
    version: int


class SetAcl(NamedTuple):
    path: str
    acl: Acls
    version: int


class Check(NamedTuple):
    """Changes nothing; it stands in a multi so that the answers line up."""

    path: str


Txn = Create | Delete | SetData | SetAcl | Check


class Fired(NamedTuple):
    """An event that watches may report; a holder must be allowed to READ ``acl``."""

    kind: int
    path: str
    acl: Acls


Undo = Callable[[], None]


def _wrap(value: int) -> int:
    """Wrap a number as a Java int does."""
    return (value + 0x80000000) % 0x100000000 - 0x80000000


def _next_version(version: int) -> int:
    """The next version; -1 is left out, because it means "any" in a request."""
    following = _wrap(version + 1)
    return 0 if following == -1 else following


def check_path(path: str) -> None:
    """Refuse a path that is not absolute and plain."""
    if path == "/":
        return
    if (
        not path.startswith("/")
        or path.endswith(("/", "/.", "/.."))
        or "//" in path
        or "/./" in path
        or "/../" in path
        or (not path.isascii() or not path.isprintable())
        and re.search(_BAD_CHARACTER, path)
    ):
        raise Refused(Code.BAD_ARGUMENTS, path)


def parent_of(path: str) -> str:
    """The part before the last slash; "" is another name of the root, as in Apache."""
    slash = path.rfind("/")
    if slash == -1 or "\0" in path:
        raise Refused(Code.BAD_ARGUMENTS, path)
    return path[:slash]


def shown_parent(path: str) -> str:
    return path[: path.rfind("/")] or "/"


class Tree:
    """All znodes by path, and the ephemeral ones by owner."""

    def __init__(self) -> None:
        root = Node(b"", acls.OPEN, 0, 0, 0)
        self.nodes: dict[str, Node] = {"": root, "/": root}
        self.ephemerals: dict[int, dict[str, None]] = {}
        self.containers: dict[str, None] = {}
        self.zxid = 0
        self._acls: dict[Acls, Acls] = {acls.OPEN: acls.OPEN}
        self._most_acls = MOST_ACLS
        for path in ("/zookeeper", "/zookeeper/config", "/zookeeper/quota"):
            self.nodes[path] = Node(b"", acls.OPEN, 0, 0, 0)
            self._adopt(shown_parent(path), path)
        self.nodes["/zookeeper/config"].acl = acls.READ_ONLY
        self.nodes["/zookeeper/config"].aversion = -1

    def __len__(self) -> int:
        return len(self.nodes) - 1

    def _kept(self, acl: Acls) -> Acls:
        """The one copy of an equal list. When the copies have doubled, unused ones are removed."""
        found = self._acls.get(acl)
        if found is None:
            if len(self._acls) >= self._most_acls:
                used = {node.acl: node.acl for node in self.nodes.values()}
                self._acls = {**used, acls.OPEN: acls.OPEN}
                self._most_acls = max(MOST_ACLS, 2 * len(self._acls))
            found = self._acls[acl] = acl
        return found

    def items(self) -> Iterator[tuple[str, Node]]:
        """Every node once, parents first."""
        return ((path, node) for path, node in self.nodes.items() if path)

    def restore(self, nodes: dict[str, Node], zxid: int) -> None:
        """Become the tree of a snapshot; ``nodes`` has every path, and no lists of children."""
        self.nodes, self.zxid = {"": nodes["/"], **nodes}, zxid
        self.ephemerals, self.containers = {}, {}
        for path, node in nodes.items():
            node.acl = self._kept(node.acl)
            self._own(path, node.owner)
            if path != "/":
                self._adopt(shown_parent(path), path)

    def _adopt(self, parent: str, path: str) -> None:
        node = self.nodes[parent]
        if node.children is None:
            node.children = {}
        node.children[path[path.rfind("/") + 1 :]] = None

    def _orphan(self, parent: Node, path: str) -> None:
        assert parent.children is not None
        del parent.children[path[path.rfind("/") + 1 :]]

    def get(self, path: str) -> Node:
        node = self.nodes.get(path)
        if node is None:
            raise Refused(Code.NO_NODE, path)
        return node

    def get_readable(self, path: str, ids: Ids) -> Node:
        node = self.get(path)
        if node.acl is not acls.OPEN and not acls.allows(node.acl, acls.READ, ids):
            raise Refused(Code.NO_AUTH, path)
        return node

    # The conditions of requests, in Apache's order.

    def check_create(
        self, path: str, data: bytes | None, acl: Acls, flags: int, session: int, ids: Ids
    ) -> Create:
        if not 0 <= flags <= 6:
            raise Refused(Code.BAD_ARGUMENTS, path)
        if flags > CONTAINER:
            raise Refused(Code.UNIMPLEMENTED, path)  # nodes with a time to live
        parent_path = parent_of(path)
        fixed = acls.fix(acl, ids)
        parent = self.get(parent_path)
        if not acls.allows(parent.acl, acls.CREATE, ids):
            raise Refused(Code.NO_AUTH, path)
        if flags in (SEQUENTIAL, SEQUENTIAL | EPHEMERAL):
            path += f"{parent.cversion:010d}"
        check_path(path)
        if path in self.nodes:
            raise Refused(Code.NODE_EXISTS, path)
        if parent.owner not in (0, CONTAINER_OWNER):
            raise Refused(Code.NO_CHILDREN_FOR_EPHEMERALS, path)
        if flags == CONTAINER:
            owner = CONTAINER_OWNER
        else:
            owner = session if flags & EPHEMERAL else 0
        return Create(path, data, self._kept(fixed), owner)

    def check_delete(self, path: str, version: int, ids: Ids) -> Delete:
        parent_path = parent_of(path)
        if path in SPECIAL:
            raise Refused(Code.BAD_ARGUMENTS, path)
        parent = self.get(parent_path)
        if not acls.allows(parent.acl, acls.DELETE, ids):
            raise Refused(Code.NO_AUTH, path)
        node = self.get(path)
        if version not in (-1, node.version):
            raise Refused(Code.BAD_VERSION, path)
        if node.children:
            raise Refused(Code.NOT_EMPTY, path)
        return Delete(path)

    def check_set_data(self, path: str, data: bytes | None, version: int, ids: Ids) -> SetData:
        check_path(path)
        node = self.get(path)
        if not acls.allows(node.acl, acls.WRITE, ids):
            raise Refused(Code.NO_AUTH, path)
        if version not in (-1, node.version):
            raise Refused(Code.BAD_VERSION, path)
        return SetData(path, data, _next_version(node.version))

    def check_set_acl(self, path: str, acl: Acls, version: int, ids: Ids) -> SetAcl:
        check_path(path)
        fixed = acls.fix(acl, ids)
        node = self.get(path)
        if not acls.allows(node.acl, acls.ADMIN, ids):
            raise Refused(Code.NO_AUTH, path)
        if version not in (-1, node.aversion):
            raise Refused(Code.BAD_VERSION, path)
        return SetAcl(path, self._kept(fixed), _next_version(node.aversion))

    def check_version(self, path: str, version: int, ids: Ids) -> Check:
        check_path(path)
        node = self.get_readable(path, ids)
        if version not in (-1, node.version):
            raise Refused(Code.BAD_VERSION, path)
        return Check(path)

    # The change itself. Nothing here can be refused.

    def apply(self, txn: Txn, zxid: int, time_ms: int) -> tuple[list[Fired], Undo]:
        """Apply one change; return the events for watches, and a function that undoes it."""
        if isinstance(txn, Create):
            return self._create(txn, zxid, time_ms)
        if isinstance(txn, SetData):
            return self._set_data(txn, zxid, time_ms)
        if isinstance(txn, Delete):
            return self._delete(txn.path, zxid)
        if isinstance(txn, SetAcl):
            return self._set_acl(txn)
        return [], lambda: None

    def _create(self, txn: Create, zxid: int, time_ms: int) -> tuple[list[Fired], Undo]:
        path, data, acl, owner = txn
        parent_path = shown_parent(path)
        parent = self.nodes[parent_path]
        before = parent.cversion, parent.pzxid
        # One copy of each list; a log brings equal ones.
        acl = self._kept(acl)
        self.nodes[path] = Node(data, acl, owner, zxid, time_ms)
        self._adopt(parent_path, path)
        parent.cversion = _wrap(parent.cversion + 1)
        parent.pzxid = zxid
        self._own(path, owner)

        def undo() -> None:
            del self.nodes[path]
            self._orphan(parent, path)
            parent.cversion, parent.pzxid = before
            self._disown(path, owner)

        above = Fired(Event.CHILDREN, parent_path, parent.acl)
        return [Fired(Event.CREATED, path, acl), above], undo

    def _delete(self, path: str, zxid: int) -> tuple[list[Fired], Undo]:
        parent_path = shown_parent(path)
        parent, node = self.nodes[parent_path], self.nodes.pop(path)
        self._orphan(parent, path)
        before, parent.pzxid = parent.pzxid, zxid
        self._disown(path, node.owner)

        def undo() -> None:
            self.nodes[path] = node
            self._adopt(parent_path, path)
            parent.pzxid = before
            self._own(path, node.owner)

        above = Fired(Event.CHILDREN, parent_path, parent.acl)
        return [Fired(Event.DELETED, path, node.acl), above], undo

    def _set_data(self, txn: SetData, zxid: int, time_ms: int) -> tuple[list[Fired], Undo]:
        path, data, version = txn
        node = self.nodes[path]
        before = node.data, node.version, node.mzxid, node.mtime
        node.data, node.version, node.mzxid, node.mtime = data, version, zxid, time_ms

        def undo() -> None:
            node.data, node.version, node.mzxid, node.mtime = before

        return [Fired(Event.CHANGED, path, node.acl)], undo

    def _set_acl(self, txn: SetAcl) -> tuple[list[Fired], Undo]:
        node = self.nodes[txn.path]
        before = node.acl, node.aversion
        node.acl, node.aversion = self._kept(txn.acl), txn.version

        def undo() -> None:
            node.acl, node.aversion = before

        return [], undo

    def _own(self, path: str, owner: int) -> None:
        if owner == CONTAINER_OWNER:
            self.containers[path] = None
        elif owner:
            self.ephemerals.setdefault(owner, {})[path] = None

    def _disown(self, path: str, owner: int) -> None:
        if owner == CONTAINER_OWNER:
            del self.containers[path]
        elif owner:
            mine = self.ephemerals[owner]
            del mine[path]
            if not mine:
                del self.ephemerals[owner]

    # Questions about several nodes.

    def count_below(self, path: str) -> int:
        """All nodes under ``path``, however deep."""
        self.get(path)
        if path == "/":
            return len(self) - 1
        prefix = path + "/"
        return sum(p.startswith(prefix) for p in self.nodes if p)

    def empty_containers(self) -> list[str]:
        """Containers that had children and have none now."""
        return [
            path
            for path in self.containers
            if (node := self.nodes[path]).cversion > 0 and not node.children
        ]
