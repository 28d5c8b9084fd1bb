"""Tables for notebooks: plain HTML, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST_ROWS = 12  # of a table; the middle of a longer one is left out


def escape(text: str) -> str:
    """Escape the characters of a text that have a meaning in HTML."""
    import html  # loads a table of 2,000 names: for pages alone

    return html.escape(text)


def cell(value: Any) -> str:
    """A value formatted for people, escaped."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(str(value))


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; with many rows the first and the last."""
    shown = list(rows)
    if len(shown) > MOST_ROWS:
        half = MOST_ROWS // 2
        shown = [*shown[:half], ["⋮"] * len(header), *shown[-half:]]
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell(value)}</td>" for value in row) + "</tr>" for row in shown
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def plain(values: Mapping[str, Any]) -> str:
    """Names and values for a ``repr``; None is left out."""
    return ", ".join(f"{name} {cell(value)}" for name, value in values.items() if value is not None)


def facts(values: Mapping[str, Any]) -> str:
    """Names and values in one paragraph; None is left out."""
    said = [f"{escape(name)} <b>{cell(value)}</b>" for name, value in values.items()
            if value is not None]  # fmt: skip
    return f"<p>{' · '.join(said)}</p>"


def epochs(rows: Sequence[Mapping[str, Any]]) -> str:
    """A history as a table of the columns with values."""
    hidden = ("iteration", "seconds", "group_loss", "groups")
    names = [n for n in (rows[0] if rows else ()) if n not in hidden
             and any(row.get(n) is not None for row in rows)]  # fmt: skip
    return table(names, ([row.get(name) for name in names] for row in rows))


def progress(done: float, text: str) -> str:
    """A progress bar, from 0 to 1, with a text beside it."""
    return f'<progress value="{min(max(done, 0.0), 1.0):.4f}" max="1"></progress> {escape(text)}'
