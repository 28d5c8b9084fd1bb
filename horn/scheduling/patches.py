"""Passes of a convolution that run as dense loops over its patches: what each window looks at, laid
out, a row for each sample and position (docs/notes/0189).

A pass on synapses goes through them one after another. Laid out it has the axes of a dense one: b
(samples and positions), o (maps) and i (places in a window), and the tiles of ``_kernels.tiles``.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from horn import ir
from horn.ir import Op
from horn.layers import Link
from horn.program import (
    Buffer,
    Expand,
    Loop,
    Post,
    Program,
    ScatterAdd,
    Statement,
    base,
    letter_axes,
    link_of,
    out_letters,
    reads,
    writes,
)
from horn.scheduling.passes import Pass, Seen, Shape, passes

MIN_PLACES = 16  # of a window: fewer do not fill a vector
# A place is looked for, or looked up, result by result, which in a batch of MANY rows takes as long
# as the synapses of so many places.
MANY, MIN_SEARCHED, MIN_LOOKED_UP = 64, 128, 64


@dataclass(frozen=True)
class Patched:
    """The patched passes of a program.

    loops : by the ``id`` of a loop, its passes, None for one that runs on synapses. shared : the
    expanded buffers that such passes read, each with the shared array. unread : those that nothing
    else reads. sums : the sums per synapse that such passes write and only ``ScatterAdd`` reads, by
    the buffer that it reads, with a factor. multiplied : the ``id`` of loops that only multiply
    them.
    """

    loops: dict[int, list[Pass | None]] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    sums: dict[str, tuple[str, float]] = field(default_factory=dict)
    multiplied: set[int] = field(default_factory=set)


def find_patched(program: Program, batch_size: int) -> Patched:
    """The passes of a program that run in patches."""
    found = Patched()
    if program.steps or program.compact:
        return found
    statements = program.statements
    expanded = {s.out: s for s in (*program.prologue, *statements) if isinstance(s, Expand)}
    if not any(s.frame.link is not None for s in expanded.values()):
        return found
    readers: dict[str, list[Statement]] = {}
    for s in statements:
        moved = {m.array for m in s.moves} if isinstance(s, Post) else set()
        for name in {*reads(s), *moved}:
            readers.setdefault(name, []).append(s)
    n_writers = Counter(name for s in statements for name in writes(s))
    changed: set[str] = set()  # expanded buffers whose shared array has changed since
    for s in statements:
        if isinstance(s, Loop) and _is_along_link(s):
            patched = [_patched(program, s, each, expanded, changed) for each in passes(s)]
            for k, each in enumerate(patched):
                if each is None or not _is_worth_it(program, s, each, batch_size):
                    patched[k] = None
                elif each.axis == "b":
                    name = each.outputs[0].buffer
                    if n_writers[name] > 1 or not _is_summed(name, readers, found):
                        patched[k] = None
            if any(patched):
                found.loops[id(s)] = patched
        written = {*writes(s)}
        changed -= written
        changed |= {name for name, made in expanded.items() if made.array in written}
    for each in (each for patched in found.loops.values() for each in patched if each):
        for node in each.inputs:
            if node.op is Op.LOAD and node.value in expanded:
                found.shared[node.value] = expanded[node.value].array
    found.unread.update(
        name
        for name in found.shared.keys() - program.shown
        if all(_is_patched(s, name, found) for s in readers[name])
    )
    return found


def _is_along_link(s: Loop) -> bool:
    return s.frame.link is not None and not s.frame.shared and not s.scatter


def _patched(
    program: Program, s: Loop, each: Pass, expanded: Mapping[str, Expand], changed: Set[str]
) -> Pass | None:
    """The pass along patches, or None if it has to run on synapses."""
    network, buffers, frame = program.network, program.buffers, s.frame
    link = link_of(network, frame)
    if (
        not isinstance(link, Link)
        or not link.mixes_channels
        or link.tie is not None
        or link.is_turned
        or not each.axis
    ):
        return None
    axes = [axis for x in ("o", "i", "oi") for axis in letter_axes(network, frame, x)]
    if len(each.outputs) != 1 or any(base(axis) != axis for axis in axes):  # tasks divide the layer
        return None
    output = each.outputs[0]
    letters = out_letters(network, frame, output, buffers)
    wanted = {"i": "bo", "o": "bi", "b": "oi"}[each.axis]
    if letters != wanted or (wanted != "oi" and not _is_of_samples(buffers[output.buffer])):
        return None
    places = {}
    for node in each.inputs:
        if node.op is Op.MESSAGE_DRAW:  # it is of a synapse, not of a place in a patch
            return None
        if node.op is not Op.LOAD or not node.axes:
            continue
        if node.axes in ("bi", "bo"):
            if not _is_of_samples(buffers[node.value]):
                return None
        elif _is_place(buffers[node.value]):  # in a patch all receivers have the same places
            places[node] = ir.load(node.value, "i")
        elif node.axes not in ("oi", "o") or node.value not in expanded or node.value in changed:
            return None
    if places:
        node = ir.replace(output.node, places)
        (each,) = passes(Loop(frame, (dataclasses.replace(output, node=node),)))
    return each if each.tile is not None or each.is_gated else None


def _is_worth_it(program: Program, s: Loop, each: Pass, batch_size: int) -> bool:
    """Whether a pass is faster in patches than on synapses."""
    least = MIN_PLACES
    if batch_size >= MANY:
        least = MIN_SEARCHED if each.monoid == "argmax" else MIN_PLACES
        least = MIN_LOOKED_UP if each.index is not None else least
    link = link_of(program.network, s.frame)
    assert isinstance(link, Link)
    return math.prod(link.shape(0)[1:]) >= least


def dense_shape(each: Pass) -> Shape:
    """The shape of the dense loops of a patched pass."""
    arrays = [Seen(tuple(node.axes)) for node in each.inputs if node.op is Op.LOAD]
    arrays.append(Seen(tuple("boi".replace(each.axis, ""))))
    return Shape(each, {"b": "", "o": "", "i": ""}, each.axis, "", tuple(arrays))


def _is_place(buffer: Buffer) -> bool:
    """Whether a buffer says, of each synapse, its place among those of its receiver."""
    return buffer.role == "constant" and buffer.value[0] == "edge"


def _is_of_samples(buffer: Buffer) -> bool:
    return len(buffer.axes) == 2 and base(buffer.axes[0]) == "b"


def _is_summed(name: str, readers: Mapping[str, Sequence[Statement]], found: Patched) -> bool:
    """Whether sums per synapse, or a multiple of them, are only summed over those that share a
    number.
    """
    there, factor = readers.get(name, ()), 1.0
    multiple = _factor(there[0], name) if len(there) == 1 else None
    if multiple is not None:
        there, factor = readers.get(writes(there[0])[0], ()), multiple
    if not there or not all(isinstance(s, ScatterAdd) for s in there):
        return False
    if multiple is not None:
        found.multiplied.add(id(readers[name][0]))
    found.sums[reads(there[0])[0]] = name, factor
    return True


def _factor(s: Statement, name: str) -> float | None:
    """The number by which a loop multiplies a buffer of sums per synapse, if it does only that."""
    if not isinstance(s, Loop) or len(s.outputs) != 1 or s.outputs[0].axis or s.scatter:
        return None
    node, sums = s.outputs[0].node, ir.load(name, "oi")
    if node.op is Op.NEG and node.args[0] is sums:
        return -1.0
    if node.op is Op.MUL and sums in node.args:
        other = node.args[0] if node.args[1] is sums else node.args[1]
        return float(other.value) if other.op is Op.CONST else None
    return None


def _is_patched(s: Statement, name: str, found: Patched) -> bool:
    """Whether a statement reads a buffer in patched passes alone."""
    if not isinstance(s, Loop) or id(s) not in found.loops:
        return False
    left = [p for p, q in zip(passes(s), found.loops[id(s)], strict=True) if q is None]
    return not any(n.op is Op.LOAD and n.value == name for each in left for n in each.inputs)
