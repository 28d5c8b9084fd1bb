"""Tracebacks in notebooks: of an error only the lines of the user."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


def shell() -> Any:
    """The shell that runs a notebook's cells, or None. Imports nothing."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


# In this order: to set a cause hides the context.
_OF_CHAIN = ("__traceback__", "__cause__", "__context__", "__suppress_context__")


class OwnLines(Exception):
    """A base of exceptions whose sentence makes horn's own lines unnecessary."""

    def _render_traceback_(self) -> list[str]:
        """The traceback for IPython, without horn's lines, and without causes that have no others.
        ``%xmode Verbose`` shows all.
        """
        shown: Any = shell().InteractiveTB
        whole: list[tuple[BaseException, dict[str, Any]]] = []
        error: BaseException | None = self
        while error is not None and all(error is not seen for seen, _ in whole):
            whole.append((error, {name: getattr(error, name) for name in _OF_CHAIN}))
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        try:
            if shown.mode != "Verbose":
                last: BaseException = self
                for each, _ in whole:
                    lines = each.__traceback__
                    each.__traceback__ = _without_horn(lines)
                    if each is not self and _is_of_horn(each.__traceback__):
                        last.__cause__, last.__context__ = each.__cause__, each.__context__
                        last.__suppress_context__ = each.__suppress_context__
                    else:
                        last = each
            found = shown.structured_traceback(type(self), self, self.__traceback__)
            return [str(line) for line in found]
        finally:
            for each, own in whole:
                for name, value in own.items():
                    setattr(each, name, value)


def _is_of_horn(lines: TracebackType | None) -> bool:
    """Whether a traceback has no frames, or its first is horn's own."""
    module = "horn" if lines is None else lines.tb_frame.f_globals.get("__name__")
    return f"{module}.".startswith("horn.")


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
