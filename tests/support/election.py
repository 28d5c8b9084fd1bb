"""Elections in tests: wait for a candidate to lead, read the leader's data."""

from __future__ import annotations

import time

from horn.coordination.election import Candidate, Leadership
from horn.coordination.session import Session
from horn.errors import Fenced, NotFound, Timeout

LOOK_S = 0.01


def wait_elected(candidate: Candidate, timeout_s: float) -> Leadership:
    """Wait until this candidate leads. Raises Timeout, and it stays a candidate: not in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        names = candidate.coord.children(candidate.path.rpartition("/")[0])
        if candidate.leads(names):
            return candidate.leadership
        if candidate.path.rpartition("/")[2] not in names:
            raise Fenced(candidate.path, "the candidacy was removed")
        if time.monotonic() > deadline:
            raise Timeout(f"{candidate.path} was not elected within {timeout_s:g} s")
        time.sleep(LOOK_S)  # until another candidate has ended


def leader_of(coord: Session, folder: str) -> bytes:
    """The data of the leader; NotFound if nobody leads."""
    for name in sorted(coord.children(folder), key=lambda name: name.rpartition("-")[2]):
        node = coord.get(f"{folder}/{name}")
        if node is not None:
            return node.data
    raise NotFound(f"{folder}: nobody leads")
