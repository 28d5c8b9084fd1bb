"""The election of a leader: the first candidate of those still there.

Candidacies are ephemeral sequential nodes; each candidate reads all of them. The fencing token of
a leader is the zxid of its candidacy: a later leader's is always higher. A transaction that begins
with ``Leadership.step`` is refused by ZooKeeper itself once the candidacy is gone.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from horn.coordination.records import Check, Create, Step
from horn.coordination.session import Session
from horn.errors import Fenced, NotApplied


@dataclass(frozen=True)
class Leadership:
    """The proof of having been elected. ``path`` is the candidacy."""

    path: str
    token: int

    @property
    def step(self) -> Step:
        """Put this first in a transaction: it fails when the leadership has ended."""
        return Check(self.path)


def commit_as(coord: Session, leadership: Leadership, steps: list[Step]) -> None:
    """Commit a transaction as the leader. Raises Fenced: it is not the leader any more."""
    try:
        coord.commit([leadership.step, *steps])
    except NotApplied as error:
        if error.index == 0:
            raise Fenced(
                f"the leader with fencing token {leadership.token}", "its candidacy has ended"
            ) from None
        raise NotApplied(error.index - 1, error.path, error.reason) from None


class Candidate:
    """A candidacy in ``folder``. data : for others. Raises Fenced: it was removed. SessionLost."""

    def __init__(self, coord: Session, folder: str, data: bytes = b"") -> None:
        self.coord = coord
        coord.ensure(folder)
        prefix = f"c-{uuid.uuid4().hex}-"
        self._name = ""

        def landed() -> bool:
            self._name = next((n for n in coord.children(folder) if n.startswith(prefix)), "")
            return bool(self._name)

        made = coord.commit(
            [Create(f"{folder}/{prefix}", data, ephemeral=True, sequence=True)], landed
        )
        if made:
            self._name = made[0].rpartition("/")[2]
        self.path = f"{folder}/{self._name}"
        node = coord.get(self.path)
        if node is None:
            raise Fenced(self.path, "it was removed at once")
        self.leadership = Leadership(self.path, node.created)

    def leads(self, names: Iterable[str]) -> bool:
        """Whether this candidacy is the first of those with these names."""
        order = sorted((n for n in names if n.startswith("c-")), key=_number)
        return bool(order) and order[0] == self._name

    def resign(self) -> None:
        """Leave the election; the next one leads."""
        self.coord.delete(self.path)


def _number(name: str) -> str:
    """A candidacy's sequence number, which keeps their order."""
    return name.rpartition("-")[2]
