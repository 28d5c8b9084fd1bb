"""Statements in fewer passes: loops of a layer over the same places become one, and a gradient for
the step before needs no buffer of all steps.

The numbers stay the same, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from horn import ir
from horn.ir import Node, Op, load
from horn.program import Buffer, Loop, Output, Statement, reads, writes

_OTHER = {Op.SIN: Op.COS, Op.COS: Op.SIN}
MAX_OUTPUTS = 16  # of one loop: more strips overflow the first-level cache


def fused(body: Sequence[Statement]) -> list[Statement]:
    """Join elementwise loops to earlier ones that read mostly the same buffers."""
    found: list[Statement] = []
    names: list[tuple[set[str], set[str]]] = []  # what each reads, and writes
    for statement in body:
        own = {*reads(statement)}, {*writes(statement)}
        place = _host(found, names, statement, *own)
        if place is None:
            found.append(statement)
            names.append(own)
        else:
            host = found[place]
            assert isinstance(host, Loop) and isinstance(statement, Loop)
            found[place] = joined = _joined(host, statement)
            names[place] = {*reads(joined)}, {*writes(joined)}
    return found


def with_pairs(body: Sequence[Statement]) -> list[Statement]:
    """Join elementwise loops of which one has the sine and the other the cosine of the same value:
    the kernels compute the two at once.
    """
    of_each = [_waves(s) for s in body]
    if not any(of_each):
        return list(body)
    found: list[Statement] = []
    names: list[tuple[set[str], set[str]]] = []  # what each reads, and writes
    places: dict[tuple[Op, Node], int] = {}  # of the last sine, or cosine, of a value
    for s, waves in zip(body, of_each, strict=True):
        hosts = [places[key] for op, value in waves if (key := (_OTHER[op], value)) in places]
        place = max(hosts, default=-1)
        read, written = {*reads(s)}, {*writes(s)}
        host = found[place] if hosts else s
        if hosts and _is_beside(host, s) and _can_go(read, written, names[place:]):
            assert isinstance(host, Loop) and isinstance(s, Loop)
            found[place] = _joined(host, s)
            names[place] = names[place][0] | read, names[place][1] | written
        else:
            place = len(found)
            found.append(s)
            names.append((read, written))
        places.update((wave, place) for wave in waves)
    return found


def _waves(s: Statement) -> set[tuple[Op, Node]]:
    """The sines and cosines of an elementwise loop, and of what."""
    if not isinstance(s, Loop) or not _only_stores(s):
        return set()
    nodes = (o.node for o in s.outputs if ir.contains(o.node, *_OTHER))
    return {(n.op, n.args[0]) for n in ir.walk(*nodes) if n.op in _OTHER}


def _is_beside(host: Statement, s: Statement) -> bool:
    """Whether two elementwise loops run over the same places."""
    assert isinstance(host, Loop) and isinstance(s, Loop)
    if host.frame != s.frame or len(host.outputs) + len(s.outputs) > MAX_OUTPUTS:
        return False
    if {*writes(host)} & {*reads(host)}:  # in place: its input is overwritten
        return False
    return len({o.node.axes for o in (*host.outputs, *s.outputs)}) == 1


def _can_go(read: set[str], written: set[str], before: Sequence[tuple[set[str], set[str]]]) -> bool:
    """Whether a statement may join the first of those before it, and so go before the others."""
    (heard, made), *others = before
    if written & (heard | made):
        return False
    return not any(read & made or written & (heard | made) for heard, made in others)


def _host(
    found: Sequence[Statement],
    names: Sequence[tuple[set[str], set[str]]],
    s: Statement,
    read: set[str],
    written: set[str],
) -> int | None:
    """The place of the loop that a statement can join; None if there is none. names : what each of
    those found reads, and writes.
    """
    if not _only_stores(s):
        return None
    best, most = None, 0
    for place in reversed(range(len(found))):
        heard, made = names[place]
        is_changed = not (written.isdisjoint(heard) and written.isdisjoint(made))
        common = 0 if is_changed else len(read & heard | read & made)
        if common > most and _fits(found[place], s):
            best, most = place, common
        if is_changed or not read.isdisjoint(made):  # it depends on this one
            break
    return best


def _only_stores(s: Statement) -> bool:
    """Whether each place of its outputs is stored once: a loop without sums and scatters."""
    return isinstance(s, Loop) and not s.scatter and all(not o.axis for o in s.outputs)


def _fits(host: Statement, s: Statement) -> bool:
    if not isinstance(host, Loop) or not _only_stores(host) or not _is_beside(host, s):
        return False
    assert isinstance(s, Loop)
    return all(o.node.axes == "bo" for o in s.outputs)


def _joined(host: Loop, s: Loop) -> Loop:
    """Both loops as one; the second takes the first's outputs as expressions."""
    made = {load(o.buffer, o.node.axes): o.node for o in host.outputs}
    more = (replace(o, node=ir.replace(o.node, made)) for o in s.outputs)
    return replace(host, outputs=(*host.outputs, *more))


def told_in_place(
    body: Sequence[Statement],
    buffers: dict[str, Buffer],
    others: Iterable[Statement],
    keep: Collection[str],
) -> tuple[list[Statement], list[Loop]]:
    """Use one buffer in a backward circle where a step's values are read at the step before alone:
    they are read before they are overwritten, unless all are to be kept. Returns the body with
    that, and the statements before it; ``buffers`` lose their views of other steps.
    """
    outside = {name for s in others for name in (*reads(s), *writes(s))} | {*keep}
    readers, writers = _places(reads, body), _places(writes, body)
    first: list[Loop] = []
    new: dict[Node, Node] = {}
    for view in [*buffers.values()]:
        if view.role != "late" or view.value[1] != -1:
            continue
        name = view.value[0]
        if {name, view.name} & outside or len(view.axes) != 2:
            continue
        made, heard = writers.get(name, ()), readers.get(view.name, ())
        if len(made) != 1 or not heard or name in readers:
            continue
        (place,), maker = made, body[made[0]]
        if max(heard) > place or not isinstance(maker, Loop) or not _only_stores(maker):
            continue
        if any(not isinstance(body[k], Loop) for k in heard):
            continue
        new[load(view.name, "bo")] = load(name, "bo")
        del buffers[view.name]
        first.append(Loop(maker.frame, (Output(name, ir.const(0.0)),)))
    if not new:
        return list(body), []
    found: list[Statement] = []
    for s in body:
        if isinstance(s, Loop):
            nodes = (replace(o, node=ir.replace(o.node, new)) for o in s.outputs)
            s = replace(s, outputs=tuple(nodes))
        found.append(s)
    return found, first


def _places(
    names: Callable[[Statement], Sequence[str]], body: Sequence[Statement]
) -> dict[str, list[int]]:
    """The places in the body of the statements that have a name."""
    found: dict[str, list[int]] = {}
    for k, s in enumerate(body):
        for name in dict.fromkeys(names(s)):
            found.setdefault(name, []).append(k)
    return found


def is_pointwise(s: Statement) -> bool:
    """Whether each place of its outputs needs the same place of its inputs alone."""
    if not _only_stores(s):
        return False
    assert isinstance(s, Loop)
    loads = (n for n in ir.walk(*(o.node for o in s.outputs)) if n.op is Op.LOAD)
    return all(o.node.axes == "bo" for o in s.outputs) and all(
        n.axes == "bo" for n in loads if len(n.axes) > 1
    )
