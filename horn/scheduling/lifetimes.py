"""Memory that buffers share one after another: those of all steps of a sequence, and the dozens
of a neuron with messages in order of size. Two have the same place if the last reader of one comes
before the first writer of the other; or, of all steps, is it, in one elementwise pass.

Values of forward that backward reads stay; other values of forward, and of backward, share. What
tasks exchange has a place of its own: it is read while other statements run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

from horn.compiler.fusion import is_pointwise
from horn.program import (
    Buffer,
    Collect,
    Loop,
    Post,
    Program,
    Statement,
    base,
    every,
    reads,
    writes,
)
from horn.scheduling.folds import joined_of
from horn.scheduling.patches import find_patched

# Buffers of the same axes, from which on they share: other neurons have a dozen at most.
MANY = 48


def rooms(program: Program, batch_size: int = 1) -> dict[str, str]:
    """The buffers that use another buffer's memory, each with that other buffer."""
    statements = list(every(program.statements))
    if program.steps:
        able = [b for b in program.buffers.values() if b.role == "work" and b.span == (0, 0)]
        able = [b for b in able if len(b.axes) == 2]
        apart: set[str] = set()
    else:
        plain = [b for b in program.buffers.values() if _is_of_neurons(b)]
        alike = Counter(b.axes for b in plain)
        able = [b for b in plain if alike[b.axes] > MANY]
        if not able or program.compact:
            return {}
        apart = _beside_loops(program, statements, batch_size)
    apart |= program.shown | {
        b.value[0] for b in program.buffers.values() if b.role in ("view", "late")
    }
    for each in statements:
        if isinstance(each, (Post, Collect)):
            apart |= {name for move in each.moves for name in (move.out, move.array)}
    axes = {b.name: b.axes for b in able if b.name not in apart}
    return _one_after_another(statements, axes, bool(program.steps))


def _one_after_another(
    statements: Sequence[Statement], axes: Mapping[str, tuple[str, ...]], in_place: bool
) -> dict[str, str]:
    """``rooms`` of these buffers. in_place : whether an elementwise pass may write where what it
    reads for the last time lies.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, each in enumerate(statements):
        for name in (*reads(each), *writes(each)):
            if name in axes:
                first.setdefault(name, k)
                last[name] = k

    @cache  # a loop may have many outputs
    def is_in_place(k: int) -> bool:
        return in_place and is_pointwise(statements[k])

    @cache
    def written(k: int) -> frozenset[str]:
        return frozenset(writes(statements[k]))

    found: dict[str, str] = {}
    held: dict[str, str] = {}  # by buffer with memory of its own, whose values are there
    hosts: dict[tuple[str, ...], list[str]] = {}  # by axes, the buffers with memory of their own
    for name, here in first.items():
        until = here + (is_in_place(here) and name not in reads(statements[here]))
        alike = hosts.setdefault(axes[name], [])
        # Two that one pass writes are apart, also where one of them is never read.
        free = (
            host for host in alike
            if last[host] < here or (last[host] < until and held[host] not in written(here))
        )  # fmt: skip
        host = max(free, key=last.__getitem__, default=None)
        if host is None:
            alike.append(name)
        else:  # the memory that was touched last
            found[name], last[host] = host, last[name]
        held[host or name] = name
    return found


def _beside_loops(program: Program, statements: Sequence[Statement], batch_size: int) -> set[str]:
    """What not only loops make and read, each in its own place in their order."""
    joined, patched = joined_of(program), find_patched(program, batch_size)
    moved = {id(s) for s, _ in joined.with_end.values()} | joined.with_end.keys() | joined.done
    moved |= joined.places.keys() | patched.loops.keys() | patched.multiplied
    others = [s for s in statements if not isinstance(s, Loop) or id(s) in moved]
    return {name for s in (*program.prologue, *others) for name in (*reads(s), *writes(s))}


def _is_of_neurons(buffer: Buffer) -> bool:
    """Whether it has a number for each sample and neuron, at one time."""
    is_plain = buffer.role == "work" and buffer.span is None
    return is_plain and len(buffer.axes) == 2 and base(buffer.axes[0]) == "b"
