"""The state of a training besides its arrays, for a resumed run with the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from horn.errors import JobError, ProtocolError

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Cursor(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The position of a training between two updates.

    iteration : updates so far. epoch : the current one, from 1. done : its samples so far; total :
    the sum of their losses, and own_total of the own_samples that were this group's. seconds :
    since training began. best : score, epoch and iteration of the best model. updates : of the
    engine. callbacks : their state (``training/hooks.py``). The history is in the manifest, once.
    """

    iteration: Count = 0
    epoch: Count = 0
    done: Count = 0
    total: float = 0.0
    own_total: float = 0.0
    own_samples: Count = 0
    seconds: float = 0.0
    best: tuple[float, Count, Count] | None = None
    updates: Count = 0
    callbacks: dict[str, Any] = {}

    def to_json(self) -> dict[str, Any]:
        return {**msgspec.structs.asdict(self), "best": self.best and list(self.best)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Cursor:
        """Make a cursor of its JSON. Raises ProtocolError if it is no cursor."""
        try:
            known = dict(found)
            known.pop("rows", None)  # of an older horn, whose parts had the history, too
            return msgspec.convert(known, cls)
        except (ValueError, TypeError, RecursionError) as error:  # msgspec's error is a ValueError
            raise ProtocolError(f"this is no place to go on from: {error}") from error


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in row.items()}


def plain_column(value: Any) -> Any:
    """The value of a callback's own column as JSON has it: a number, text or None, lists and dicts
    of them; arrays and tuples are lists. Raises JobError for another: its type, in words.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return [plain_column(each) for each in value]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise JobError(f"has the key {key!r}, which is no text; write {str(key)!r}")
        return {str(key): plain_column(each) for key, each in value.items()}
    found = value.tolist() if hasattr(value, "tolist") else value  # of NumPy, PyTorch, pandas
    if type(found) is type(value):
        raise JobError(f"is of type {type(value).__name__}; write numbers or text")
    return plain_column(found)


def plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
