"""What a program's script looks like: which segments, posts and collects come after one another,
and what of them comes once for each step of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from horn.program import Collect, Mark, Post, Program, Repeat, exchanges

# A post or collect, or None and the segment that is computed; the step of a sequence, or -1.
Item: TypeAlias = tuple[Post | Collect | None, int, int]


class Turns(NamedTuple):
    """Of a script: the segment and the step of each computation, the superstep of the program and
    the step of each post; -1 where it does not belong to one.
    """

    segments: list[tuple[int, int]]
    supersteps: list[tuple[int, int]]


class Outline:
    """Of one program. posts : all of it, each once. has_turns : whether some come at each step."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.posts: list[Post] = []
        for statement in program.statements:
            inside = statement.body if exchanges(statement) else (statement,)  # type: ignore[attr-defined]
            self.posts += [each for each in inside if isinstance(each, Post)]
        self.has_turns = any(exchanges(statement) for statement in program.statements)

    def walk(self, n_steps: int) -> Iterator[Item]:
        """The script of a batch whose sequences have so many steps."""
        yield None, 0, -1
        segment = 0
        for statement in self.program.statements:
            if exchanges(statement):
                assert isinstance(statement, Repeat)
                n_inside = 1 + sum(isinstance(s, (Post, Collect)) for s in statement.body)
                steps = range(n_steps)
                for step in reversed(steps) if statement.reverse else steps:
                    yield None, segment + 1, step
                    at = segment + 1
                    for each in statement.body:
                        if isinstance(each, (Post, Collect)):
                            at += 1
                            yield each, at, step
                            yield None, at, step
                segment += n_inside + 1
                yield None, segment, -1
            elif isinstance(statement, (Post, Collect, Mark)):
                segment += 1
                if not isinstance(statement, Mark):
                    yield statement, segment, -1
                yield None, segment, -1
