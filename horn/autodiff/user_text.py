"""Places in the user's own text: the frames of the neuron's methods, for messages and for draws."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

from horn import texts
from horn.errors import CompileError, HornError

_HORN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Comprehensions and generators are part of the function around them: Python 3.12 runs some of them
# without a frame of their own.
_INSIDE = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")


def _is_horn(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(_HORN) and os.path.basename(file) != "neurons.py"


def _is_library(frame: FrameType) -> bool:
    """Whether a frame is of horn, or of a package, as NumPy's own Python."""
    return _is_horn(frame) or "site-packages" in frame.f_code.co_filename


def _as_written(code: CodeType, space: dict[str, Any]) -> CodeType:
    """The code with the lines that its file has now, which may have been loaded again."""
    texts.text_of(code, space)
    return texts.as_written(code)


@lru_cache(maxsize=256)
def _positions(code: CodeType) -> tuple[tuple[int | None, ...], ...]:
    """Of every instruction: Python can list them all alone."""
    return tuple(code.co_positions())


def _position_in(code: CodeType, instruction: int) -> tuple[int, int, int]:
    line, end_line, column, end = _positions(code)[instruction // 2]
    if line is None or column is None or end is None:
        return line or code.co_firstlineno, 0, 0
    return line, column, end if end_line == line else 10_000


class Place(NamedTuple):
    """What a frame stands at: cheap to keep for every operation; ``error_in`` reads the text."""

    code: CodeType
    namespace: dict[str, Any]
    instruction: int


def place(below: str = "") -> Place | None:
    """The user's current place. below : a file of horn, whose callees are skipped; None if no
    user's frame is found.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_horn(frame):
        frame = frame.f_back if frame.f_code.co_filename != below else None
    return None if frame is None else Place(frame.f_code, frame.f_globals, frame.f_lasti)


def error(problem: str, below: str = "") -> CompileError:
    """A CompileError at the user's current line, as ``place`` finds it."""
    return error_in(place(below), problem)


def error_in(place: Place | None, problem: str) -> CompileError:
    """A CompileError at a place; one without a line at none."""
    if place is None:
        return CompileError(problem)
    code = _as_written(place.code, place.namespace)
    return _error(problem, code, place.namespace, *_position_in(code, place.instruction))


def error_of(raised: BaseException, more: str = "") -> CompileError:
    """A CompileError at the user's last line that an exception came through, and ``more``."""
    place, found = raised.__traceback__, None
    while place is not None:
        found = found if _is_library(place.tb_frame) else place
        place = place.tb_next
    problem = f"{type(raised).__name__}: {raised}{more}".replace("'number' object", "a number")
    if found is None:
        return CompileError(problem)
    frame = found.tb_frame
    return error_in(Place(frame.f_code, frame.f_globals, found.tb_lasti), problem)


@contextmanager
def as_compile_errors(more: str = "", function: Any = None) -> Iterator[None]:
    """Raise what the user's own Python raises as a CompileError at its line, and ``more``; at the
    ``def`` of the function where it could not even be called.
    """
    try:
        yield
    except HornError:
        raise
    except Exception as error:
        found = error_of(error, more)
        if not found.file and isinstance(function, FunctionType):
            found = error_at(function, found.problem)
        raise found from error


def error_at(function: FunctionType, problem: str) -> CompileError:
    """A CompileError at the ``def`` of a method."""
    space = function.__globals__
    code = _as_written(function.__code__, space)
    line, text = code.co_firstlineno, ""
    for line in range(code.co_firstlineno, code.co_firstlineno + 50):  # decorators come before def
        text = texts.line_of(code, space, line)
        if not text or text.lstrip().startswith(("def ", "async ")):
            break
    if not text:
        line = code.co_firstlineno
    indent = len(text) - len(text.lstrip())
    return _error(problem, code, space, line, indent, len(text.rstrip()))


def _error(
    problem: str, code: CodeType, space: dict[str, Any], line: int, column: int, end: int
) -> CompileError:
    text = texts.line_of(code, space, line)
    parts = [p for p in code.co_qualname.split(".") if p != "<locals>" and p not in _INSIDE]
    return CompileError(
        problem,
        file=code.co_filename,
        line=line,
        column=column,
        end_column=min(end, len(text)),
        text=text,
        where=".".join(parts[-2:]),
    )


def _is_key(frame: FrameType) -> bool:
    """Whether a frame is of a lambda defined in the function around it, as for max(..., key=)."""
    outer = frame.f_back
    while outer is not None and _is_horn(outer):
        outer = outer.f_back
    return (
        frame.f_code.co_name == "<lambda>"
        and outer is not None
        and frame.f_code in outer.f_code.co_consts
    )


def draw_path(method: CodeType) -> tuple[tuple[str, int, int], ...]:
    """The calls from the neuron's method to the current draw, each as (function, line, column).

    The line counts from the function's first line (its first decorator, if any); the column is
    where the call expression begins.
    """
    path: list[tuple[str, int, int]] = []
    inner: tuple[int, int] | None = (
        None  # the place inside a generator expression, said by the function around it
    )
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not _is_horn(frame):
            written = texts.as_written(code)
            line, column, _ = _position_in(written, frame.f_lasti)
            place = inner or (line, column)
            if code.co_name in _INSIDE or _is_key(frame):
                inner = place
            else:
                path.append((code.co_name, place[0] - written.co_firstlineno, place[1]))
                inner = None
        if code is method:
            break
        frame = frame.f_back
    return tuple(path[::-1])
