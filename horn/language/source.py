"""The user's text: the syntax tree of a function, and places in its file."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from horn import texts
from horn.errors import CompileError

MOST_ENDS = 100  # tried ends of a statement; one or two suffice, except for text in brackets


@dataclass(frozen=True)
class Source:
    """One function's syntax tree, and places in its file."""

    function: types.FunctionType
    tree: ast.FunctionDef | ast.Lambda
    file: str
    first_line: int
    where: str

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names that the function sets, which Python never looks up outside of it."""
        return frozenset(assigned(self.tree.body if isinstance(self.tree, ast.FunctionDef) else ()))

    def error(self, node: ast.AST, problem: str) -> CompileError:
        line = self.first_line + getattr(node, "lineno", 1) - 1
        function = self.function
        text = texts.line_of(function.__code__, function.__globals__, line)
        start = column_of(text, getattr(node, "col_offset", 0))
        end = column_of(text, getattr(node, "end_col_offset", 0) or 0)
        if getattr(node, "end_lineno", None) != getattr(node, "lineno", None):
            end = len(text)
        return CompileError(
            problem,
            file=self.file,
            line=line,
            column=start,
            end_column=end,
            text=text,
            where=self.where,
        )

    def place(self, node: ast.AST) -> tuple[str, int, int]:
        """The place of a call in the text, for ``horn.random.site``."""
        name = getattr(self.tree, "name", "<lambda>")
        return name, node.lineno - 1, node.col_offset  # type: ignore[attr-defined]


def assigned(body: Sequence[ast.stmt]) -> dict[str, ast.AST]:
    """The variables that statements set, each with the last place where they do."""
    found: dict[str, ast.AST] = {}
    for statement in body:
        for n in ast.walk(statement):
            targets = n.targets if isinstance(n, ast.Assign) else []
            if isinstance(n, (ast.AugAssign, ast.AnnAssign, ast.For)):
                targets = [n.target]
            for name in (part for target in targets for part in ast.walk(target)):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                    found[name.id] = n
    return found


def source_of(function: Any) -> Source:
    """The syntax tree of a function. Raises CompileError where the text cannot be had."""
    # IPython's %autoreload gives a function other code; not of what a decorator has wrapped.
    return _source_of(function, function.__code__)


@lru_cache(maxsize=512)
def _source_of(function: types.FunctionType, code: types.CodeType) -> Source:
    name = function.__qualname__.replace("<locals>.", "")
    whole = texts.lines_of(code, function.__globals__)
    file, first = code.co_filename, texts.first_line_of(function)
    if not first:
        module = function.__module__
        raise CompileError(
            f"{name} is of a text that {file} had before it changed; load it again:  import "
            f"importlib, {module}; importlib.reload({module}); from {module} import "
            f"{name.split('.')[0]}",
            file=file,
            line=code.co_firstlineno,
            where=name,
        )
    lines = whole[first - 1 :]
    if not lines:
        raise CompileError(
            f"the source of {name} cannot be read ({file}); horn compiles the text of a neuron: "
            f"{texts.remedy(file)}"
        )
    tree = _statement(lines)
    if not isinstance(tree, ast.FunctionDef):
        raise CompileError(
            f"{name} is not a plain function; write it with def",
            file=file,
            line=first,
            where=name,
            text=lines[0].rstrip("\n"),
        )
    return Source(function, tree, file, first, name)


def _statement(lines: list[str]) -> ast.stmt:
    """The statement that begins with the first line.

    It ends before a line that is not indented deeper; such lines inside a string or brackets do not
    end it, as the text up to there does not parse. ``inspect.getblock`` also finds the end, with
    regular expressions that cost each process 5 ms.
    """
    depth = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    ends = [n for n, line in enumerate(lines) if n and _is_end(line, depth)]
    for end in [*ends, len(lines)][:MOST_ENDS]:
        with suppress(SyntaxError):
            return _first(lines[:end])
    return _first(inspect.getblock(lines))


def _is_end(line: str, depth: str) -> bool:
    is_deeper = line.startswith(depth) and line[len(depth) :][:1].isspace()
    return not (is_deeper or line.isspace() or line.lstrip().startswith("#"))


def _first(lines: list[str]) -> ast.stmt:
    text = "".join(lines)
    # A method is indented: below an if its text parses as it stands, whatever comments it has.
    tree = texts.parsed("if True:\n" + text if lines[0][:1].isspace() else text).body[0]
    return ast.increment_lineno(tree.body[0], -1) if isinstance(tree, ast.If) else tree


def column_of(text: str, offset: int) -> int:
    """The column in characters, as a caret needs it: Python counts bytes of UTF-8."""
    return len(text.encode()[:offset].decode(errors="ignore"))
