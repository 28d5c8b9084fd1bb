"""Marks at the first and last use of buffers, as ends of segments."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from horn.program import Mark, Program, Statement, reads, segments, writes


def marked(
    program: Program, needed: Sequence[Collection[str]], made: Sequence[Collection[str]]
) -> Program:
    """Put a mark before the first statement that reads or writes any of the buffers in each of
    ``needed``, and one after the last that writes any of those in each of ``made``.
    """
    statements = program.statements
    before, after = set(), set()
    for names in needed:
        users = [k for k, s in enumerate(statements) if _uses(s, names)]
        before.update(users[:1])
    for names in made:
        makers = [k for k, s in enumerate(statements) if not set(names).isdisjoint(writes(s))]
        after.update(makers[-1:])
    found: list[Statement] = []
    for k, statement in enumerate(statements):
        if k in before and found and not isinstance(found[-1], Mark):
            found.append(Mark())
        found.append(statement)
        if k in after and k + 1 < len(statements):
            found.append(Mark())
    return dataclasses.replace(program, statements=tuple(found))


def first_needed(program: Program, names: Collection[str]) -> int | None:
    """The segment that first reads or writes one of these; None if none does."""
    for number, part in enumerate(segments(program)):
        if any(_uses(statement, names) for statement in part):
            return number
    return None


def last_made(program: Program, names: Collection[str]) -> int | None:
    """The segment that writes the last of these; None if none does."""
    last = None
    for number, part in enumerate(segments(program)):
        if any(not set(names).isdisjoint(writes(statement)) for statement in part):
            last = number
    return last


def _uses(statement: Statement, names: Collection[str]) -> bool:
    return not set(names).isdisjoint((*reads(statement), *writes(statement)))
