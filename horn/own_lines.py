"""Tracebacks in notebooks: of an error only the lines of the user."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


def shell() -> Any:
    """The shell that runs a notebook's cells, or None. Imports nothing."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


class OwnLines(Exception):
    """A base of exceptions whose sentence makes horn's own lines unnecessary."""

    def _render_traceback_(self) -> list[str]:
        """The traceback for IPython, without horn's lines. ``%xmode Verbose`` shows all."""
        shown: Any = shell().InteractiveTB
        whole: list[tuple[BaseException, TracebackType | None]] = []
        error: BaseException | None = self
        while error is not None and all(error is not seen for seen, _ in whole):
            whole.append((error, error.__traceback__))
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        try:
            if shown.mode != "Verbose":
                for each, lines in whole:
                    each.__traceback__ = _without_horn(lines)
            found = shown.structured_traceback(type(self), self, self.__traceback__)
            return [str(line) for line in found]
        finally:
            for each, lines in whole:
                each.__traceback__ = lines


def _without_horn(lines: TracebackType | None) -> TracebackType | None:
    """A traceback without horn's own frames; if it has no others, its last frame."""
    kept: list[TracebackType] = []
    while lines is not None:
        module = lines.tb_frame.f_globals.get("__name__")  # a dataclass's __init__ has no file
        if not f"{module}.".startswith("horn.") or not (kept or lines.tb_next):
            kept.append(lines)
        lines = lines.tb_next
    found = None
    for each in reversed(kept):
        found = TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found
