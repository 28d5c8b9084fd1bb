"""Statements typed at Python's own prompt, from readline's history: before 3.13 the only record.

The prompt leaves out empty lines, and a line that repeats the one before it, so a text from here
counts only where compiling it again gives the code in question (``horn.texts``).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

_MOST_LINES = 5000
_GO_ON = ("else:", "else ", "elif ", "except:", "except ", "except*", "finally:", "finally ")


def _length() -> int:
    """The number of lines in the history; 0 without a prompt."""
    readline: Any = sys.modules.get("readline")
    return readline.get_current_history_length() if readline is not None else 0


# ``import horn`` itself is in the history already; earlier lines may be from another day.
BEGINNING = _length()


def typed() -> list[str]:
    """The statements that were typed since horn was imported, in their order."""
    return list(_statements(_lines(BEGINNING)))


def typed_ever() -> list[str]:
    """The statements in the whole history, which goes back to other days; the newest first."""
    return list(_statements(_lines(0)))[::-1]


def _lines(after: int) -> list[str]:
    n = _length()
    if n == 0 or not hasattr(sys, "ps1"):
        return []
    readline = sys.modules["readline"]
    numbers = range(max(after, n - _MOST_LINES) + 1, n + 1)  # they count from 1
    return [readline.get_history_item(k) or "" for k in numbers]


def _statements(lines: list[str]) -> Iterator[str]:
    """The units that the prompt ran, each with its ends of lines; an unfinished one is left out."""
    k = 0
    while k < len(lines):
        after = _after(lines, k)
        if after is not None:
            yield "\n".join(lines[k:after]) + "\n"
        k = after or k + 1


def _after(lines: list[str], first: int) -> int | None:
    """The line after the statement that begins at ``first``, or None where it has no end."""
    for k in range(first + 1, len(lines) + 1):
        goes_on = k < len(lines) and (
            not lines[k].strip() or lines[k].startswith((" ", "\t", *_GO_ON))
        )
        if not goes_on and _is_whole("\n".join(lines[first:k])):
            return k
    return None


def _is_whole(text: str) -> bool:
    """Whether the prompt would run it: it is a whole statement, or a syntax error."""
    import codeop

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return codeop.compile_command(text, symbol="exec") is not None
        except (SyntaxError, ValueError, OverflowError):
            return True
