"""Memory that buffers of all steps share one after another: two have the same place if the last
reader of one comes before the first writer of the other, or is it, in one elementwise pass.

Values of forward that backward reads stay; other values of forward, and of backward, share. What
tasks exchange has a place of its own: it is read while other statements run.
"""

from __future__ import annotations

from functools import cache

from horn.compiler.fusion import is_pointwise
from horn.program import (
    AllSteps,
    Collect,
    Post,
    Program,
    Repeat,
    Statement,
    every,
    in_order,
    reads,
    writes,
)

Moment = tuple[int, int]  # a statement, and its place in that's body


def rooms(program: Program) -> dict[str, str]:
    """The buffers that use another buffer's memory, each with that other buffer."""
    if not program.steps:
        return {}
    late = {b.value[0] for b in program.buffers.values() if b.role == "late"}
    shown = {program.loss, *program.losses, *program.aggregates, *program.kept} | late
    shown |= {*program.outputs}
    for each in every(program.statements):
        if isinstance(each, (Post, Collect)):
            shown |= {name for move in each.moves for name in (move.out, move.array)}
    spans = {
        name: buffer.axes
        for name, buffer in program.buffers.items()
        if buffer.span == (0, 0) and buffer.role == "work" and len(buffer.axes) == 2
    }
    first: dict[str, Moment] = {}
    last: dict[str, Moment] = {}
    at: dict[Moment, Statement] = {}
    for k, statement in enumerate(in_order(program.statements)):
        body = statement.body if isinstance(statement, (Repeat, AllSteps)) else (statement,)
        for j, step in enumerate(body):
            at[k, j] = step
            for name in (*reads(step), *writes(step)):
                if name in spans and name not in shown:
                    first.setdefault(name, (k, j))
                    last[name] = (k, j)

    @cache  # a loop may have many outputs
    def is_in_place(moment: Moment) -> bool:
        return is_pointwise(at[moment])

    found: dict[str, str] = {}
    free: dict[str, Moment] = {}  # by buffer with memory of its own, its last use
    for name in sorted(first, key=lambda each: first[each]):
        here = first[name]
        is_over = is_in_place(here) and name not in reads(at[here])  # what is last used here
        fits = [
            host
            for host, moment in free.items()
            if spans[host] == spans[name] and (moment < here or (is_over and moment == here))
        ]
        if fits:
            host = max(fits, key=lambda each: free[each])  # the memory that was touched last
            found[name] = host
            free[host] = last[name]
        else:
            free[name] = last[name]
    return found
