"""Loops that fold windows, and operations on sums over windows, found by their form.

A fold is a sum or an extreme over a receiver's inputs, or the gradient of one. Squared differences
of a convolution's inputs and weights are summed as its products are. Cheap operations after a
``Convolve`` or a fold run where the sums are made: a bias, relu, the gradient of relu. The
extreme of a window and its place are found together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from horn import ir
from horn.ir import Node, Op
from horn.layers import Link
from horn.program import (
    Buffer,
    Convolve,
    Expand,
    Loop,
    Post,
    Program,
    Statement,
    base,
    each_of,
    every,
    layer_of,
    link_of,
    reads,
    segments,
    writes,
)

EXTREMES = {"max": "argmax", "min": "argmin"}


@dataclass(frozen=True)
class Fold:
    """The fold ``out`` ("sum", "max", "min", "argmax" or "argmin") of ``source`` along the axis,
    "i" or "o"; with ``upper`` only over places where upper is the edge's ``place``.
    """

    kind: str
    axis: str
    source: str
    upper: str = ""
    place: str = ""


@dataclass(frozen=True)
class Squares:
    """The sum over the windows of a convolution of ``(source - weight) ** 2``."""

    source: str
    weight: str


@dataclass(frozen=True)
class End:
    """The operations on a buffer of sums, element by element: a bias (a buffer of neurons) is
    added, relu, 0 where the gate, a buffer like it, is not above 0. The result is ``out``.
    """

    sums: str
    out: str
    bias: str = ""
    relu: bool = False
    gate: str = ""


@dataclass(frozen=True)
class Joined:
    """The statements that run inside others, each by its ``id``.

    with_end : by loop that is replaced, the statement that it ends, and its end. done : statements
    that run elsewhere, or whose result nothing reads. places : by fold that finds an extreme, the
    buffer of its place.
    """

    with_end: dict[int, tuple[Statement, End]]
    done: frozenset[int]
    places: dict[int, str]


def joined_of(program: Program) -> Joined:
    statements = program.statements
    readers: dict[str, list[Statement]] = {}
    for s in statements:
        for name in set(reads(s)):
            readers.setdefault(name, []).append(s)
    n_writers = Counter(name for s in statements for name in writes(s))
    shown = program.shown | {m.array for s in statements if isinstance(s, Post) for m in s.moves}
    with_end: dict[int, tuple[Statement, End]] = {}
    where = {id(s): k for k, s in enumerate(statements)}
    made_at = dict(where)  # folds that have an end come later
    done: set[int] = set()
    for segment in segments(program):
        here = {id(s) for s in segment}
        for s in segment:
            fold = only_fold(program, s)
            if not fold and not (isinstance(s, Convolve) and s.axis in "io"):
                continue
            (sums,) = writes(s)
            after = readers.get(sums, [])
            if len(after) != 1 or id(after[0]) not in here or sums in shown:
                continue
            end = end_of(program, after[0], sums)
            if end is None or n_writers[sums] > 1 or (fold and (end.bias or end.relu)):
                continue
            if fold and fold.kind != "sum" and end.gate:
                continue
            at, to = where[id(s)], where[id(after[0])]
            if end.out in reads(s) or _changed(statements[at:to], reads(s)):
                continue
            with_end[id(after[0])] = (s, end)
            made_at[id(s)] = to
            done.add(id(s))
    places: dict[int, str] = {}
    for s in statements:
        fold = only_fold(program, s)
        if fold is None or fold.kind not in EXTREMES:
            continue
        assert isinstance(s, Loop)
        for later in statements[made_at[id(s)] :]:
            other = only_fold(program, later)
            if other is None or not isinstance(later, Loop) or later.frame != s.frame:
                continue
            (out,) = writes(later)
            if other != Fold(EXTREMES[fold.kind], "i", fold.source) or n_writers[out] > 1:
                continue
            if not _changed(statements[where[id(s)] : where[id(later)]], (fold.source,)):
                places[id(s)] = out
                done.add(id(later))
            break
    return Joined(with_end, frozenset(done | _unread(program, shown)), places)


def _unread(program: Program, shown: frozenset[str]) -> set[int]:
    """The weights of each synapse that only squares would read, by their statements' ``id``."""
    nested = list(every(program.statements))
    needed = shown.union(*(reads(s) for s in nested if not only_squares(program, s)))
    return {id(s) for s in nested if isinstance(s, Expand) and s.out not in needed}


def _changed(statements: tuple[Statement, ...], names: tuple[str, ...]) -> bool:
    return any(name in writes(s) for s in statements for name in names)


def only_fold(program: Program, s: Statement) -> Fold | None:
    """The fold that a statement is, or None."""
    if not isinstance(s, Loop) or len(s.outputs) != 1 or s.scatter:
        return None
    output, buffers = s.outputs[0], program.buffers
    if s.frame.link is None or output.axis not in ("i", "o"):
        return None
    if link_of(program.network, s.frame).edges is None:
        return None
    node, kind = output.node, output.monoid
    letters = "b" + output.axis
    found = None
    if node.op is Op.MUL:  # ones are factors, too: they give a value an axis that it lacks
        kept = [a for a in node.args if not _is_ones(buffers, a)]
        if len(kept) == 1 and kept[0].op is Op.LOAD and kept[0].axes == letters:
            found = Fold(kind, output.axis, kept[0].value)
    if node.op is Op.SELECT and kind == "sum" and output.axis == "o":
        found = _gradient(node)
        if found is not None and buffers[found.place].role != "constant":
            found = None  # of a later input, where places do not begin at 0
    if found is None or kind not in ("sum", *EXTREMES, *EXTREMES.values()):
        return None
    if output.axis == "o" and kind != "sum":
        return None
    names = [output.buffer, found.source, *([found.upper] if found.upper else [])]
    return found if all(_is_rows(buffers[n], program.compact) for n in names) else None


def only_squares(program: Program, s: Statement) -> Squares | None:
    """The sum of squared differences that a statement is, or None."""
    if not isinstance(s, Loop) or len(s.outputs) != 1 or s.scatter or s.frame.link is None:
        return None
    output, buffers, link = s.outputs[0], program.buffers, link_of(program.network, s.frame)
    if (output.axis, output.monoid) != ("i", "sum") or not isinstance(link, Link):
        return None
    factors = output.node.args if output.node.op is Op.MUL else ()
    if not link.convolves or len(factors) != 2 or factors[0] is not factors[1]:
        return None
    parts = {a.axes: a.value for a in factors[0].args if a.op is Op.LOAD}
    if factors[0].op is not Op.SUB or parts.keys() != {"bi", "oi"}:
        return None
    weights = {each_of(program.network, w, s.frame): w for w in link.weights.values()}
    if parts["oi"] not in weights:
        return None
    if not all(_is_rows(buffers[n], program.compact) for n in (output.buffer, parts["bi"])):
        return None
    return Squares(parts["bi"], weights[parts["oi"]])


def _gradient(node: Node) -> Fold | None:
    """The fold of the form select(upper == place, source, 0), or None."""
    test, source, other = node.args
    if test.op is not Op.EQ or not ir.is_const(other, 0.0) or source.op is not Op.LOAD:
        return None
    upper, place = sorted(test.args, key=lambda n: n.axes)
    if not (upper.op is place.op is Op.LOAD) or source.axes != "bo":
        return None
    if (upper.axes, place.axes) != ("bo", "oi"):
        return None
    return Fold("sum", "o", source.value, upper.value, place.value)


def end_of(program: Program, s: Statement, sums: str) -> End | None:
    """The end that a loop applies to sums, if it does only that; else None."""
    if not isinstance(s, Loop) or len(s.outputs) != 1 or s.scatter or s.frame.link is not None:
        return None
    output, buffers = s.outputs[0], program.buffers
    out = buffers[output.buffer]
    if output.axis or out.axes != buffers[sums].axes or out.name == sums:
        return None
    if not all(_is_rows(each, program.compact) for each in (out, buffers[sums])):
        return None
    node = output.node
    gate, relu, bias = "", False, ""
    if node.op is Op.SELECT and _is_load(node.args[1], sums):
        test, node, other = node.args
        if test.op is not Op.GT or not all(ir.is_const(a, 0.0) for a in (test.args[1], other)):
            return None
        if test.args[0].op is not Op.LOAD or test.args[0].axes != "bo":
            return None
        gate = test.args[0].value
        if not _is_rows(buffers[gate], program.compact) or buffers[gate].axes != out.axes:
            return None
    if node.op is Op.RELU:
        relu, node = True, node.args[0]
    if node.op is Op.ADD:
        each = [a for a in node.args if not _is_load(a, sums)]
        if len(each) != 1 or each[0].op is not Op.LOAD or each[0].axes != "o":
            return None
        bias, node = each[0].value, next(a for a in node.args if a is not each[0])
        if buffers[bias].axes != out.axes[1:]:
            return None
    return End(sums, out.name, bias, relu, gate) if _is_load(node, sums) else None


def _is_load(node: Node, name: str) -> bool:
    return node.op is Op.LOAD and node.value == name


def _is_ones(buffers: Mapping[str, Buffer], node: Node) -> bool:
    buffer = buffers[node.value] if node.op is Op.LOAD else None
    return buffer is not None and buffer.role == "constant" and buffer.value[0] == "ones"


def _is_rows(buffer: Buffer, compact: frozenset[int]) -> bool:
    """Whether the kernels store the buffer as rows along the batch, with all of its neurons."""
    return (
        buffer.role in ("work", "view", "given")
        and len(buffer.axes) == 2
        and base(buffer.axes[0]) == "b"
        and layer_of(base(buffer.axes[1])) not in compact
    )
