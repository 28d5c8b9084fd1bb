"""The state of a training besides its arrays, for a resumed run with the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from horn.errors import ProtocolError

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Cursor(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The position of a training between two updates.

    iteration : updates so far. epoch : the current one, from 1. done : its samples so far; total :
    the sum of their losses, and own_total of the own_samples that were this group's. seconds :
    since training began. rows : of the history. best : score, epoch and iteration of the best
    model. updates : of the engine. callbacks : their state (``training/hooks.py``).
    """

    iteration: Count = 0
    epoch: Count = 0
    done: Count = 0
    total: float = 0.0
    own_total: float = 0.0
    own_samples: Count = 0
    seconds: float = 0.0
    rows: list[dict[str, float | int | list[float] | None]] = []
    best: tuple[float, Count, Count] | None = None
    updates: Count = 0
    callbacks: dict[str, Any] = {}

    def to_json(self) -> dict[str, Any]:
        return {**msgspec.structs.asdict(self), "best": self.best and list(self.best)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Cursor:
        """Make a cursor of its JSON. Raises ProtocolError if it is no cursor."""
        try:
            return msgspec.convert(dict(found), cls)
        except (ValueError, TypeError, RecursionError) as error:  # msgspec's error is a ValueError
            raise ProtocolError(f"this is no place to go on from: {error}") from error


def plain_row(row: Mapping[str, Any]) -> dict[str, float | int | list[float] | None]:
    return {name: plain(value) for name, value in row.items()}


def plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
