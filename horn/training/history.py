"""The history of a training: a row per epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from horn import html
from horn.aggregates import COLUMNS, named
from horn.mistakes import NoSuchAttribute, NoSuchKey, NoSuchRow


class History:
    """One row per epoch, and columns by name.

    ``history[0]`` and ``history[-1]`` are rows (dicts), ``history["loss"]`` is a column (a list),
    ``history[5:]`` a History of those rows, and iteration gives the rows. What was not measured is
    None. Columns: epoch (from 1; the last may be partial), iteration (updates so far), loss (of the
    training samples, as they were learned from), acc (of a sample of them, a twentieth, after the
    epoch), val_loss, val_acc, learning_rate (of the last update), seconds (since the start),
    samples_per_s, group_loss (of each group's own samples; None with one group), groups (whose
    these are, by number), then those of the job's aggregates, and val_NAME of each of its metrics.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        self.rows: list[dict[str, Any]] = [dict(row) for row in rows]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns. A job resumed from a checkpoint may have had others before."""
        return (*COLUMNS, *dict.fromkeys(name for row in self.rows for name in named(row)))

    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> History: ...
    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            if key not in COLUMNS and key not in self.columns:
                close = key.replace("accuracy", "acc")
                meant = f"write {close!r}; " if close in self.columns else ""
                raise NoSuchKey(f"{key!r}; {meant}columns: {', '.join(self.columns)}")
            return [row.get(key) for row in self.rows]  # of other aggregates before: None
        if isinstance(key, tuple):
            raise NoSuchKey(f"{key!r}; a column at a time: history[{key[0]!r}]")
        if isinstance(key, slice):
            return History(self.rows[key])
        try:
            return self.rows[key]
        except IndexError:
            n = len(self.rows)
            rows = f"its rows are 0 to {n - 1}, the last also -1" if n else "it has no rows"
            raise NoSuchRow(f"history[{key}]: the history has {n} epochs; {rows}") from None

    def __getattr__(self, name: str) -> Any:
        column = name if name in COLUMNS else "loss"
        hint = f"; columns go by name, as history[{column!r}], rows by number, history[-1]"
        raise NoSuchAttribute(f"a History has no {name!r}{'' if name[0] == '_' else hint}")

    def keys(self) -> tuple[str, ...]:
        """The columns: ``dict(history)`` is a dict of lists."""
        return self.columns

    _ipython_key_completions_ = keys

    def __contains__(self, key: object) -> bool:
        return key in (self.columns if isinstance(key, str) else self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        last = f", last: {html.plain(self.rows[-1])}" if self.rows else ""
        return f"<History of {len(self)} epochs{last}>"

    def _repr_html_(self) -> str:
        return html.epochs(self.rows)
