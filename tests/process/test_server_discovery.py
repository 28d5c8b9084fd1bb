"""Members of a folder as they were when it last changed."""

from __future__ import annotations

from typing import Any

import pytest

from horn.coordination.membership import MembershipChange
from horn.errors import Unreachable
from horn.process.server_discovery import WatchedFolder


class Folder:
    """Of Membership what a WatchedFolder asks for. failures : of the next reads."""

    def __init__(self) -> None:
        self.present: dict[str, Any] = {}
        self.failures: list[Exception] = []

    def subscribe(self, callback: Any) -> Any:
        self.callback = callback
        return lambda: None

    def members(self) -> dict[str, Any]:
        if self.failures:
            raise self.failures.pop()
        return dict(self.present)


def test_a_change_whose_reading_failed_is_read_again() -> None:
    """A server that had come back was not found any more, until another came."""
    folder = Folder()
    watched = WatchedFolder(folder)  # type: ignore[arg-type]
    assert watched.members() == {}
    folder.present["0"] = "server 0"
    folder.callback(MembershipChange(frozenset({"0"}), frozenset()))
    folder.failures.append(Unreachable("h:2181", "no answer", 10.0))
    with pytest.raises(Unreachable):
        watched.members()
    assert watched.members() == {"0": "server 0"}
