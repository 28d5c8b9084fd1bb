"""The outline of a program's script: the order of its segments, posts and collects, and which of
them come once for each step of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from horn.program import Collect, Mark, Post, Program, Repeat, exchanges

# A post or collect, or None and the segment that is computed; the step of a sequence, or -1.
Item: TypeAlias = tuple[Post | Collect | None, int, int]


class Turns(NamedTuple):
    """The origin in the program of each entry of a script: the segment and the step of each
    computation, the superstep and the step of each post; -1 where there is no step.
    """

    segments: list[tuple[int, int]]
    supersteps: list[tuple[int, int]]


class Outline:
    """The outline of one program. posts : all its posts, each once. has_turns : whether some come
    at each step of a sequence.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.posts: list[Post] = []
        for statement in program.statements:
            inside = statement.body if exchanges(statement) else (statement,)  # type: ignore[attr-defined]
            self.posts += [each for each in inside if isinstance(each, Post)]
        self.has_turns = any(exchanges(statement) for statement in program.statements)

    def walk(self, n_steps: int) -> Iterator[Item]:
        """Yield the script's items for a batch whose sequences have ``n_steps`` steps."""
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
