"""Memory that buffers share one after another: two have the same place if the last reader of one
comes before the first writer of the other, or is it, in one elementwise pass of all steps.

Without steps only values that plain loops alone write and read share, as the bounds of an order are
(docs/notes/0147): what runs inside of another statement reads its inputs later than it says.

Values of forward that backward reads stay; other values of forward, and of backward, share. What
tasks exchange has a place of its own: it is read while other statements run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from horn.compiler.fusion import is_elementwise
from horn.program import (
    AllSteps,
    Collect,
    Loop,
    Post,
    Program,
    Repeat,
    Statement,
    base,
    every,
    in_order,
    reads,
    writes,
)
from horn.scheduling.folds import Joined, only_fold, only_squares, plan
from horn.scheduling.patches import Patched, find_patched

Moment = tuple[int, int]  # a statement, and its place in that's body


def rooms(program: Program, batch_size: int = 0) -> dict[str, str]:
    """The buffers that use another buffer's memory, each with that other buffer."""
    return _of_steps(program) if program.steps else _of_loops(program, batch_size)


def _of_loops(program: Program, batch_size: int) -> dict[str, str]:
    """The rooms of buffers, without steps, that plain loops alone write and read."""
    has_parts = any(b.role == "view" for b in program.buffers.values())
    if has_parts or any(isinstance(s, (Post, Collect)) for s in every(program.statements)):
        return {}  # of several tasks: what one sends or takes lies in other buffers' memory
    joined, patched = plan(program), find_patched(program, batch_size)
    apart = {program.loss, *program.losses, *program.aggregates, *program.outputs}
    apart |= {*program.probes.values()}
    spans = {
        name: buffer.axes
        for name, buffer in program.buffers.items()
        if buffer.role == "work" and len(buffer.axes) == 2 and base(buffer.axes[0]) == "b"
    }
    first: dict[str, Moment] = {}
    last: dict[str, Moment] = {}
    for k, s in enumerate(in_order(program.statements)):
        if not _is_plain(program, s, joined, patched):
            apart |= {*reads(s), *writes(s)}
        for name in (*reads(s), *writes(s)):
            if name in spans:
                first.setdefault(name, (k, 0))
                last[name] = (k, 0)
    first = {name: moment for name, moment in first.items() if name not in apart}
    return _found(spans, first, last, lambda name: False)


def _is_plain(program: Program, s: Statement, joined: Joined, patched: Patched) -> bool:
    """Whether the statement is a loop that runs where it stands, over the buffers that it names."""
    if not isinstance(s, Loop) or s.scatter or only_fold(program, s) or only_squares(program, s):
        return False
    if id(s) in joined.with_end or id(s) in joined.done:
        return False
    return id(s) not in patched.loops and id(s) not in patched.multiplied


def _of_steps(program: Program) -> dict[str, str]:
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
        return is_elementwise(at[moment])

    def is_over(name: str) -> bool:  # what is last used where the buffer is first used
        return is_in_place(first[name]) and name not in reads(at[first[name]])

    return _found(spans, first, last, is_over)


def _found(
    spans: Mapping[str, tuple[str, ...]], first: Mapping[str, Moment], last: Mapping[str, Moment],
    is_in_place: Callable[[str], bool],
) -> dict[str, str]:  # fmt: skip
    """The rooms of buffers with these axes, by their first and last uses."""
    found: dict[str, str] = {}
    free: dict[str, Moment] = {}  # by buffer with memory of its own, its last use
    for name in sorted(first, key=lambda each: first[each]):
        here, is_over = first[name], is_in_place(name)
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
