"""The engine's loops for a ``Loop`` of a program: their outputs, values and axes, from the program
alone. ``kernels`` makes tapes of them, the cost model counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from horn import ir
from horn._kernels import tiles
from horn._kernels.loops import along, ordered
from horn._kernels.walks import Lie, Walk, walk
from horn.ir import Node, Op
from horn.network import Network
from horn.program import Buffer, Frame, Loop, Output, base, letter_axes, link_of, out_letters

NAMES: dict[Op, str] = {
    op: {"maximum": "max", "minimum": "min", "stop_gradient": "copy"}.get(op.value, op.value)
    for op in ir.ELEMENTWISE
}
Value = tuple[str, int]  # "in" or "op", and its place among these


def needs_rows(domain: str, is_sparse: bool, layout: str) -> bool:
    """Whether a loop gets copies in which a sample's numbers lie side by side: a dense one over
    samples, neurons and messages, where sparse links or windows want the batch side by side.
    """
    return layout == "neuron" and len(domain) == 3 and not is_sparse


@dataclass(frozen=True)
class Pass:
    """One loop of the engine: elementwise with all its outputs, or one reduction.

    inputs : nodes (loads, draws, constants, scalars). ops : of the engine, each (name, value, ...).
    results : the value of each output. monoid : the engine's.
    """

    outputs: tuple[Output, ...]
    inputs: tuple[Node, ...]
    ops: tuple[tuple[Any, ...], ...]
    results: tuple[Value, ...]
    monoid: str

    @property
    def axis(self) -> str:
        """The letter that is reduced, "" for none."""
        return self.outputs[0].axis

    @property
    def n_constants(self) -> int:
        """The number of inputs that are numbers, not arrays."""
        return sum(n.op in (Op.CONST, Op.SCALAR) for n in self.inputs)

    def number(self, value: Value) -> int:
        """A value's place among the inputs and, behind them, the operations."""
        return value[1] + (len(self.inputs) if value[0] == "op" else 0)

    @property
    def numbered(self) -> list[tuple[Any, ...]]:
        """The operations on values by their numbers, as a tape takes them."""
        return [(name, *map(self.number, values)) for name, *values in self.ops]

    @property
    def is_sum_of_products(self) -> bool:
        """Whether the pass is a sum of products of two arrays and nothing else."""
        product = (("mul", ("in", 0), ("in", 1)),)
        is_viewed = all(n.op is Op.LOAD for n in self.inputs)
        return self.monoid == "sum" and self.ops == product and is_viewed

    @property
    def index(self) -> Node | None:
        """The index of a sum with a term at one place only, select(place == index, value, 0); else
        None. The gradient of a maximum is one.
        """
        node = self.outputs[0].node
        if self.monoid != "sum" or node.op is not Op.SELECT or not ir.is_const(node.args[2], 0.0):
            return None
        if node.args[0].op is not Op.EQ:
            return None
        return next((a for a in node.args[0].args if len(a.axes) == 1 and a in self.inputs), None)

    @property
    def is_gated(self) -> bool:
        """Whether a condition that does not vary along the axis decides that nothing is to be
        reduced, as for the zeros of a product that is not 0: the engine then skips it.
        """
        node = self.outputs[0].node
        nothing = ir.IDENTITY.get(self.monoid)
        if not self.axis or nothing is None or node.op is not Op.SELECT:
            return False
        apart = self.axis not in node.args[0].axes
        return apart and any(ir.is_const(side, nothing) for side in node.args[1:])

    @property
    def tile(self) -> tiles.Tile | None:
        """The tile that computes the pass, if its arrays have the needed layout; else None."""
        if not self.axis or any(node.op is Op.MESSAGE_DRAW for node in self.inputs):
            return None
        first = [k for k, node in enumerate(self.inputs) if node.op is Op.LOAD]
        consts = [k for k, node in enumerate(self.inputs) if node.op is not Op.LOAD]
        number = {("in", k): at for at, k in enumerate(first + consts)}
        number |= {("op", k): len(number) + k for k in range(len(self.ops))}
        return tiles.tile(
            [self.inputs[k] is self.index for k in first],
            [self.inputs[k].value for k in consts],
            [(name, [number[v] for v in values]) for name, *values in self.ops],
            number[self.results[0]], self.monoid, True,
        )  # fmt: skip

    def domain(self, network: Network, frame: Frame, buffers: Mapping[str, Buffer]) -> str:
        """The letters of the axes that the pass runs over."""
        found = ""
        for o in self.outputs:
            letters = out_letters(network, frame, o, buffers)
            found = ir.union(found, o.node.axes, o.axis, letters)
        return found

    def is_direct(self) -> list[bool]:
        """Whether each output may be computed in its own memory: nothing uses it later."""
        last = [-1] * len(self.inputs)
        for at, (_, *values) in enumerate(self.ops):
            for kind, place in values:
                if kind == "in":
                    last[place] = at
        found = []
        for k, (o, (kind, at)) in enumerate(zip(self.outputs, self.results, strict=True)):
            made = at if kind == "op" else len(self.ops)
            reads = any(n.value == o.buffer and last[i] > made for i, n in enumerate(self.inputs))
            found.append(not reads and all(x.buffer != o.buffer for x in self.outputs[:k]))
        return found


def passes(s: Loop) -> list[Pass]:
    """The engine's loops for a statement, in order."""
    plain = [o for o in s.outputs if not o.axis]
    groups = [[o] for o in s.outputs if o.axis]
    if plain:
        groups.append(plain)
    assert len(groups) == 1 or not plain, "a loop either reduces or stores"
    return [single(outputs) for outputs in groups]


def single(outputs: Sequence[Output]) -> Pass:
    """One loop for outputs that are all stored, or for one that is reduced."""
    monoid = outputs[0].monoid
    inputs: list[Node] = []
    ops: list[tuple[Any, ...]] = []
    known: dict[Node, Value] = {}  # a node is an input or an operation
    seen: set[Node] = set()
    results = []
    others = _pairs(outputs) if not outputs[0].axis else {}
    for o in outputs:
        for node in ir.walk(o.node, seen=seen):
            if node in known:
                continue
            if node.op in (Op.LOAD, Op.MESSAGE_DRAW, Op.CONST, Op.SCALAR):
                known[node] = ("in", len(inputs))
                inputs.append(node)
            elif _is_truth(node):
                known[node] = known[node.args[0]]
            else:
                pair = sorted((node, others[node]), key=_is_cosine) if node in others else [node]
                for each in pair:
                    known[each] = ("op", len(ops))
                    ops.append((NAMES[each.op], *(known[a] for a in each.args)))
        value = known[o.node]
        if monoid == "argmin":
            ops.append(("neg", value))
            value = ("op", len(ops) - 1)
        results.append(value)
    monoid = "argmax" if monoid == "argmin" else monoid
    found = Pass(tuple(outputs), tuple(inputs), tuple(ops), tuple(results), monoid)
    if found.index is not None and ops[-1][0] == "select" and ops[-1][2][0] == "in":
        # the tile of places asks for a computed value
        condition, value, zero = ops[-1][1:]
        ops[-1:] = [("copy", value), ("select", condition, ("op", len(ops) - 1), zero)]
        found = replace(found, ops=tuple(ops), results=(("op", len(ops) - 1),))
    return found


def _pairs(outputs: Sequence[Output]) -> dict[Node, Node]:
    """Sines and cosines of the same values: side by side the kernels compute them at once."""
    nodes = ir.walk(*(o.node for o in outputs))
    waves = {(n.op, n.args[0]): n for n in nodes if n.op in (Op.SIN, Op.COS)}
    found: dict[Node, Node] = {}
    for (op, value), node in waves.items():
        other = waves.get((Op.SIN if op is Op.COS else Op.COS, value))
        if other is not None:
            found[node] = other
    return found


def _is_cosine(node: Node) -> bool:
    return node.op is Op.COS


def _is_truth(node: Node) -> bool:
    """Whether the node is select(condition, 1, 0): the engine's conditions are 1 and 0 already."""
    if node.op is not Op.SELECT or node.args[0].op not in ir.BOOLEAN:
        return False
    return ir.is_const(node.args[1], 1.0) and ir.is_const(node.args[2], 0.0)


@dataclass(frozen=True)
class Seen:
    """An array as a loop accesses it. axes : the loop's, in the order of memory, outermost first.
    is_listed : its axis "e" is looked up, edge by edge. is_copied : it is a copy (``needs_rows``).
    """

    axes: tuple[str, ...]
    is_listed: bool = False
    is_copied: bool = False


@dataclass(frozen=True)
class Shape:
    """The axes and arrays of a pass, whatever the extents.

    axes : of the loop, letters or "e" for edges, with the program's axis of each ("": one place).
    ragged : the axis whose places have edges of their own, where "e" is ragged. seen : the arrays,
    first those that are read, then those that are written.
    """

    each: Pass
    axes: dict[str, str]
    folded: str
    ragged: str
    seen: tuple[Seen, ...]

    @classmethod
    def of(
        cls, each: Pass, network: Network, frame: Frame, buffers: Mapping[str, Buffer], layout: str
    ) -> Shape:
        """The shape of a pass. layout : as ``choices.choose_layout`` returns it."""
        domain = each.domain(network, frame, buffers)
        link = None if frame.link is None else link_of(network, frame)
        on_edges = link is not None and link.edges is not None and "o" in domain and "i" in domain
        names, ragged, folded = domain, "", each.axis
        if on_edges:
            ragged = {"i": "o", "o": "i"}.get(each.axis, "")
            names = ragged + "e" + ("b" if "b" in domain else "")
            folded = "e" if ragged else each.axis
        axes = {
            name: letter_axes(network, frame, "oi" if name == "e" else name)[0] for name in names
        }

        def seen(name: str, letters: str) -> Seen:
            has = buffers[name].axes
            found, is_listed, is_copied = [], False, False
            for letter in letters.replace("oi", "e") if on_edges else letters:
                is_listed |= letter not in axes or (letter == "e" and each.axis == "o")
                found.append(letter if letter in axes else "e")
            if layout == "neuron" and len(has) == 2 and base(has[0]) == "b":
                is_copied = needs_rows(domain, on_edges, layout)
                found = found if is_copied else found[::-1]
            return Seen(tuple(found), is_listed, is_copied)

        arrays = [seen(given.value, given.axes) for given in each.inputs if given.op is Op.LOAD]
        for o in each.outputs:
            arrays.append(seen(o.buffer, out_letters(network, frame, o, buffers)))
        return cls(each, axes or {"1": ""}, folded, ragged, tuple(arrays))

    @property
    def is_sparse(self) -> bool:
        """Whether the loop runs along edges."""
        return "e" in self.axes

    def walk(self, lengths: Mapping[str, int], itemsize: int, lanes: int) -> Walk:
        """The counts of one run with these extents (of "e": all edges)."""
        order = self.order(lengths)
        extents = [1 if name is None else lengths[name] for name in order]
        if self.ragged:  # each row has the mean
            extents[1] = round(extents[1] / max(extents[0], 1))
        lies = []
        for array in self.seen:
            steps = self._steps(array, lengths)
            listed = [name == "e" and array.is_listed for name in order]
            lies.append(Lie([0 if n is None else steps.get(n, 0) for n in order], listed))
        axis = order.index(self.folded) if self.each.axis else 0
        return walk(
            extents, lies, len(self.seen) - len(self.each.outputs), axis,
            is_ragged=bool(self.ragged), n_ops=len(self.each.ops), direct=self.each.is_direct(),
            itemsize=itemsize, lanes=lanes,
        )  # fmt: skip

    def tile(self, lengths: Mapping[str, int], lanes: int) -> tiles.Tile | None:
        """The tile that computes the loop with these extents, or None."""
        found = self.each.tile
        if found is None or self.is_sparse or len(self.axes) < 3:
            return None
        axes = [array.axes for array in self.seen[: -len(self.each.outputs)]]
        along = self.order(lengths)[2]
        if lengths[along] < lanes:
            return None
        is_square, is_wave = found.fast == tiles.SQUARES, found.fast == tiles.WAVES
        if found.fast == tiles.ROWS or is_wave or (is_square and along == self.folded):
            pair = found.roles[:2] if is_wave else found.roles[1:] if is_square else (0, 1)
            x, w = (axes[k] for k in pair)
            pairs = all(len(a) == 2 and a[1] == along == self.folded for a in (x, w)) and x != w
            beside = axes[found.roles[2]] if is_wave and found.roles[2] >= 0 else ()
            fits = not is_square or axes[found.roles[0]] in (x, w, (along,))
            return found if pairs and fits and along not in beside else None
        if along == self.folded:
            return None
        if found.fast in (tiles.COLUMNS, tiles.SQUARES, tiles.QUOTIENTS, tiles.SLOPES):
            return found if self._are_columns(found, axes, along) else None
        return found if along not in axes[found.roles[0]] else None

    def _are_columns(self, tile: tiles.Tile, axes: list[tuple[str, ...]], along: str) -> bool:
        """Whether the arrays have the layout that a tile of columns needs."""
        roles = tile.roles
        more: tuple[int, ...] = ()
        if tile.fast in (tiles.COLUMNS, tiles.SQUARES):
            beside, pair = roles[:1], roles[1:3]
        elif tile.fast == tiles.QUOTIENTS:
            beside, more, pair = roles[:2], roles[2:3], roles[3:5]
        else:
            one, other = roles[0], roles[2]
            if one >= 0 and along in axes[one]:
                one, other = other, one
            beside, more, pair = (one, roles[1], roles[5]), (other,), roles[3:5]
        rows = [axes[k] for k in (*more, *pair) if k >= 0]
        if any(along in axes[k] for k in beside if k >= 0) or rows[-1] == rows[-2]:
            return False
        lie = all(len(a) == 2 and a[1] == along for a in rows)
        return lie and all(self.folded in a for a in rows[:-2])

    def order(self, lengths: Mapping[str, int]) -> tuple[Any, ...]:
        """The three axes as the engine orders them, outermost first; None has one place."""
        lies = []
        for array in self.seen:
            steps = self._steps(array, lengths)
            lies.append(
                {name: (step, name == "e" and array.is_listed) for name, step in steps.items()}
            )
        ragged = (self.ragged, "e") if self.ragged else None
        names = {name: lengths[name] for name in self.axes}
        tile, near = self.each.tile, None
        if tile is not None and tiles.pair(tile) and not ragged:
            near = along(tile, self.each.monoid, lies, names, self.folded)
        return ordered(names, lies, self.folded or None, ragged, near)

    def _steps(self, array: Seen, lengths: Mapping[str, int]) -> dict[str, int]:
        """The distance between neighbouring elements of an array along each of its axes."""
        found, step = {}, 1
        for name in reversed(array.axes):
            found[name] = step
            step *= max(lengths[name], 1)
        return found
