"""Marks at the first and last use of buffers, as ends of segments."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from horn.program import Mark, Program, Statement, reads, segments, writes


class Uses:
    """Where each buffer is first read or written, and where it is last written: the numbers of
    these ``parts``, which are looked through once for all buffers, since deep networks have many.
    """

    def __init__(self, parts: Iterable[Sequence[Statement]]) -> None:
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        for number, part in enumerate(parts):
            for statement in part:
                written = writes(statement)
                for name in (*reads(statement), *written):
                    self._first.setdefault(name, number)
                self._last.update(dict.fromkeys(written, number))

    def first(self, names: Collection[str]) -> int | None:
        """The part that first reads or writes one of these; None if none does."""
        return min((self._first[name] for name in names if name in self._first), default=None)

    def last_made(self, names: Collection[str]) -> int | None:
        """The part that writes the last of these; None if none does."""
        return max((self._last[name] for name in names if name in self._last), default=None)


def uses_by_segment(program: Program) -> Uses:
    return Uses(segments(program))


def marked(
    program: Program, needed: Iterable[Collection[str]], made: Iterable[Collection[str]]
) -> Program:
    """Put a mark before the first statement that reads or writes any of the buffers in each of
    ``needed``, and one after the last that writes any of those in each of ``made``.
    """
    statements = program.statements
    uses = Uses((statement,) for statement in statements)
    before = {uses.first(names) for names in needed}
    after = {uses.last_made(names) for names in made}
    found: list[Statement] = []
    for k, statement in enumerate(statements):
        if k in before and found and not isinstance(found[-1], Mark):
            found.append(Mark())
        found.append(statement)
        if k in after and k + 1 < len(statements):
            found.append(Mark())
    return dataclasses.replace(program, statements=tuple(found))
