"""Memory that buffers share one after another: those of all steps of a sequence, and the dozens
of a neuron with messages in order of size. Two have the same place if the last reader of one comes
before the first writer of the other; or, of all steps, is it, in one elementwise pass.

Values of forward that backward reads stay; other values of forward, and of backward, share. What
tasks exchange has a place of its own: it is read while other statements run.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

from horn.compiler.fusion import is_pointwise
from horn.program import (
    AllSteps,
    Buffer,
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
from horn.scheduling.folds import joined_of
from horn.scheduling.patches import find_patched

# Buffers of the same axes, from which on they share: other neurons have a dozen at most.
MANY = 48
Moment = tuple[int, int]  # a statement, and its place in that's body


def rooms(program: Program, batch_size: int = 1) -> dict[str, str]:
    """The buffers that use another buffer's memory, each with that other buffer."""
    if not program.steps:
        return _of_loops(program, batch_size)
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


def _of_loops(program: Program, batch_size: int) -> dict[str, str]:
    """``rooms`` of a program without steps: of what only loops make and read, in their order."""
    alike = Counter(b.axes for b in program.buffers.values() if _is_of_neurons(b))
    if not any(n > MANY for n in alike.values()) or program.compact:
        return {}
    joined, patched = joined_of(program), find_patched(program, batch_size)
    apart = {id(s) for s, _ in joined.with_end.values()} | joined.with_end.keys() | joined.done
    apart |= joined.places.keys() | patched.loops.keys() | patched.multiplied
    shown = {program.loss, *program.losses, *program.aggregates, *program.kept, *program.outputs}
    shown |= {*program.probes.values()}
    statements = list(every(program.statements))
    for each in program.prologue:
        shown |= {*reads(each), *writes(each)}
    for each in statements:
        if isinstance(each, (Post, Collect)):
            shown |= {name for move in each.moves for name in (move.out, move.array)}
        elif not isinstance(each, Loop) or id(each) in apart:
            shown |= {*reads(each), *writes(each)}
    views = {b.value[0] for b in program.buffers.values() if b.role in ("view", "late")}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, each in enumerate(statements):
        for name in writes(each):
            first.setdefault(name, k)
        for name in (*reads(each), *writes(each)):
            last[name] = k
    found: dict[str, str] = {}
    free: dict[tuple[str, ...], list[str]] = {}  # by axes, the buffers with memory of their own
    for name, here in first.items():
        buffer = program.buffers[name]
        if name in shown or name in views or alike[buffer.axes] <= MANY:
            continue
        if not _is_of_neurons(buffer) or name in reads(statements[here]):
            continue
        hosts = free.setdefault(buffer.axes, [])
        host = max((h for h in hosts if last[h] < here), key=last.__getitem__, default=None)
        if host is None:
            hosts.append(name)
        else:  # the memory that was touched last
            found[name], last[host] = host, last[name]
    return found


def _is_of_neurons(buffer: Buffer) -> bool:
    """Whether it has a number for each sample and neuron, at one time."""
    is_plain = buffer.role == "work" and buffer.span is None
    return is_plain and len(buffer.axes) == 2 and base(buffer.axes[0]) == "b"
