"""The place of this process in a folder: an ephemeral node of its name, taken once and then kept.

Whoever watches the node, as Membership and Registration do in their own ways, lets ``judge`` see
it. Its fencing token is the zxid of its creation.
"""

from __future__ import annotations

import contextlib
import json

from horn.coordination import paths
from horn.coordination.records import Create, Delete, Step, Znode
from horn.coordination.session import Session
from horn.errors import UNREADABLE, Conflict, Fenced, NotApplied


class MemberPlace:
    """The place ``name`` in a folder. token : 0 until it is taken; evicted : why it is lost."""

    def __init__(self, coord: Session, folder: str, name: str) -> None:
        self.coord, self.name = coord, name
        self.path = f"{folder}/{paths.checked('member', name)}"
        self.token, self.evicted = 0, ""

    def is_anothers(self, node: Znode | None) -> bool:
        """Whether another session has it."""
        return node is not None and node.owner != self.coord.session

    def take(self, data: bytes, old: Znode | None, *, replace: bool) -> bool:
        """Take the place where its node is ``old``, None without one; whether it is this session's
        now. replace : even from another one. Raises NotFound: the folder is missing.
        """
        node = None
        if old is None:
            with contextlib.suppress(Conflict):
                node = self.coord.create(self.path, data, ephemeral=True)
        elif replace or not self.is_anothers(old):
            node = self._taken_over(data, old)
        if node is not None:
            self.token = node.created
        return node is not None

    def _taken_over(self, data: bytes, old: Znode) -> Znode | None:
        """Replace a node by one of this session; None if another session was first."""

        def is_mine() -> bool:
            node = self.coord.get(self.path)
            return node is not None and (node.owner, node.data) == (self.coord.session, data)

        made = Create(self.path, data, ephemeral=True)
        steps: list[Step] = [Delete(self.path, old.version), made]
        try:
            self.coord.commit(steps, landed=is_mine)
        except NotApplied:
            return None
        return self.coord.get(self.path)

    def judge(self, node: Znode | None) -> None:
        """Note that the place is lost if ``node`` is there now instead of the own one."""
        if node is None:
            self.evicted = self.evicted or "its node was removed"
        elif node.created > self.token:
            token = node.created
            self.evicted = f"another process took its place, with fencing token {token}"

    def check(self) -> None:
        """Raise Fenced if the place is lost."""
        if self.evicted:
            raise Fenced(self.path, self.evicted)

    def already_held(self, node: Znode | None) -> Conflict:
        """The error for a place with a living holder."""
        try:
            where = "an unknown place" if node is None else str(json.loads(node.data)["endpoint"])
        except (*UNREADABLE, KeyError, TypeError):
            where = "an unknown place"
        other = ", or give this one another --name" if "/workers/" in self.path else ""
        return Conflict(
            f"{self.path} is held by another process, at {where}; stop it, or wait until its "
            f"session ends{other}"
        )
