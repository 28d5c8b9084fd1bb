"""The values of a program: buffers, and the statements that fill them.

A computed value is stored once; every later use loads it. Values that vary along fewer axes than a
loop are computed before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Literal, get_args

import numpy as np

from horn import ir
from horn.ir import Node, Op, Scalar, const, load, mul
from horn.ir.contraction import contract, is_finite, monomials, paired, taken_out
from horn.layers import Link
from horn.network import Network
from horn.program import (
    ERRORS,
    Buffer,
    Convolve,
    ErrorLink,
    Expand,
    Frame,
    Loop,
    Matmul,
    Output,
    Reverse,
    ScatterAdd,
    Statement,
    Take,
    Turn,
    each_of,
    letter_axes,
    link_of,
    out_letters,
    reads,
    turned_axes,
)

_CHEAP = ir.BOOLEAN | {Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.SELECT}
# Operations slower than a read of their stored result.
COSTLY = (
    Op.EXP, Op.LOG, Op.SQRT, Op.TANH, Op.SIN, Op.COS, Op.LOG1P, Op.EXPM1, Op.SIGMOID, Op.SOFTPLUS,
    Op.ERF, Op.ERFC, Op.ATAN, Op.POW, Op.ATAN2,
)  # fmt: skip
# The phases of a sequence's program, in the order in which steps.py arranges them.
Phase = Literal["first", "forward", "judge", "backward", "last"]
STORED = 8  # plain operations: what it costs to store the value of an expression, and read it


class Storage:
    """The buffers and statements of a program under construction, and the ways to store
    expressions in buffers.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.tied = network.tied  # computed over all links
        self.buffers: dict[str, Buffer] = {}
        # The arrays that a neuron's class names: no value of horn's own takes their names.
        self.declared = set(network.state_shapes)
        self.declared.update(array for layer in network.layers[1:] for array in layer.learned)
        self.numbers: dict[str, int] = {}  # stem -> the first number that may be free
        self.prologue: list[Statement] = []
        self.statements: list[Statement] = []
        self.stored: dict[tuple[Frame, str, Node], Node] = {}
        self.parts: set[tuple[Frame, str, Node]] = set()  # the keys of common subexpressions
        self.values: dict[Node, Node] = {}  # expressions that a buffer holds already
        self.paired: dict[Node, Node] = {}  # the results of ``paired``
        self.compact: frozenset[int] = frozenset()  # layers with only live neurons stored
        self.probes: dict[str, str] = {}  # as in Program
        self.steps = network.steps
        self.valid: Node | None = None  # in sequences that end early, lower.VALID
        self.phases: dict[Phase, list[Statement]] = {phase: [] for phase in get_args(Phase)}

    # --- buffers

    def buffer(
        self,
        name: str,
        axes: tuple[str, ...],
        role: str = "work",
        full: bool = False,
        value: tuple[object, ...] = (),
    ) -> str:
        assert name not in self.buffers, name
        self.buffers[name] = Buffer(name, axes, role, full, value)
        return name

    def apart(self, name: str) -> str:
        """The name of a value of horn's own: another where a neuron's class has an array so."""
        return f"{name}'" if name in self.declared else name

    def fresh(self, stem: str) -> str:
        if stem not in self.buffers and stem not in self.declared:
            return stem
        k = self.numbers.get(stem, 2)
        while f"{stem}.{k}" in self.buffers:
            k += 1
        self.numbers[stem] = k  # those before are taken, or were
        return f"{stem}.{k}"

    def axes_of(self, frame: Frame, letters: str) -> tuple[str, ...]:
        """The absolute axes of letters in a frame."""
        return letter_axes(self.network, frame, letters)

    def link(self, frame: Frame) -> Link | ErrorLink:
        return link_of(self.network, frame)

    def explicit_letters(self, frame: Frame, letters: str) -> str:
        """``Output.letters``: where axes are ambiguous, as in a layer that hears itself o and i are
        the same neurons; else "".
        """
        if frame.link is None or frame.link == ERRORS or frame.shared:
            return ""
        return letters if self.link(frame).source.index == frame.layer else ""

    def late(self, name: str, axes: tuple[str, ...], delay: int) -> str:
        """The view of a buffer ``delay`` steps ago, or ahead (negative)."""
        view = f"{name}~{delay}"
        if view not in self.buffers:
            self.buffer(view, axes, "late", value=(name, delay))
        return view

    def reversed(self, name: str, axes: tuple[str, ...], layer: int) -> str:
        """A buffer of a layer's neurons, each sequence from its last step to its first."""
        view = f"{name}.reversed"
        return self.filled(view, axes, Reverse(Frame(layer), view, name))

    def filled(
        self, name: str, axes: tuple[str, ...], statement: Statement, full: bool = False
    ) -> str:
        """The buffer that a statement fills, which is emitted where it is first asked for."""
        if name not in self.buffers:
            self.buffer(name, axes, full=full)
            self.emit(statement)
        return name

    def emit(self, statement: Statement) -> None:
        self.statements.append(statement)

    def begin(self, phase: Phase) -> None:
        """Emit the next statements into a phase of a sequence's program (steps.py)."""
        self.statements = self.phases[phase]

    @contextmanager
    def at(self, phase: Phase) -> Iterator[None]:
        """Emit into a phase for a while."""
        emitted = self.statements
        self.begin(phase)
        yield
        self.statements = emitted

    @contextmanager
    def aside(self, phase: Phase) -> Iterator[None]:
        """Emit into a phase for a while; values stored meanwhile are of one step, for it alone."""
        kept = stored, parts, values = self.stored, self.parts, self.values
        self.stored, self.parts, self.values = dict(stored), set(parts), dict(values)
        with self.at(phase):
            yield
        self.stored, self.parts, self.values = kept

    def learned(self, name: str, axes: tuple[str, ...], letters: str) -> Node:
        """A learned array, slot, state or constant as the program computes with it: its live part
        where layers are compact.
        """
        return self.taken(load(name, letters), axes)

    def taken(self, node: Node, axes: tuple[str, ...]) -> Node:
        if not any(axis == f"n{k}" for k in self.compact for axis in axes):
            return node
        name = f"{node.value}@live"
        return load(self.filled(name, axes, Take(name, node.value)), node.axes)

    def expanded(self, name: str, frame: Frame, role: str) -> Node:
        """A learned array that synapses or neurons share, or a slot of it, expanded to each of
        them.
        """
        shared, letters = replace(frame, shared=True), "o" if frame.link is None else "oi"
        self.persistent(name, self.axes_of(shared, "o"), role)
        each = each_of(self.network, name, frame)
        self.filled(each, self.axes_of(frame, letters), Expand(frame, each, name))
        return load(each, letters)

    def turned(self, name: str, frame: Frame, transposed: bool, role: str) -> Node:
        """The weights of another dense link, or a slot of them, for the synapses of one that is
        tied to it.
        """
        each, axes = each_of(self.network, name, frame), self.axes_of(frame, "oi")
        turn = Turn(frame, each, name, transposed)
        self.filled(each, axes, turn)
        self.persistent(name, turned_axes(self.network, turn, axes), role)
        return load(each, "oi")

    def turned_back(self, node: Node, frame: Frame, transposed: bool, stem: str) -> Node:
        """A gradient of the synapses of a tied link, in the shape of the owner's weights."""
        each = self.store(node, frame, "oi", f"{stem}.each").value
        turn = Turn(frame, self.fresh(stem), each, transposed, back=True)
        self.buffer(turn.out, turned_axes(self.network, turn, self.axes_of(frame, "oi")))
        self.emit(turn)
        return load(turn.out, "oi")

    def added(self, node: Node, frame: Frame, stem: str) -> Node:
        """The sum over the synapses or neurons that share a number."""
        letters = "o" if frame.link is None else "oi"
        each = self.store(node, frame, letters, f"{stem}.each")
        name = self.buffer(self.fresh(stem), self.axes_of(replace(frame, shared=True), "o"))
        self.emit(ScatterAdd(frame, name, each.value))
        return load(name, "o")

    def persistent(
        self, name: str, axes: tuple[str, ...], role: str, value: tuple[object, ...] = ()
    ) -> None:
        if name not in self.buffers:
            self.buffer(name, axes, role, True, value)

    # --- storing expressions

    def store(self, node: Node, frame: Frame, letters: str, stem: str) -> Node:
        """Store a node's value in a buffer of its own; returns a load of it."""
        if node.op is Op.LOAD and node.axes == letters:
            return node

        def fill(name: str) -> None:
            self.loop(frame, [Output(name, node, letters=self.explicit_letters(frame, letters))])

        return self.once((frame, letters, node), frame, letters, stem, fill)

    def once(
        self,
        key: tuple[Frame, str, Node],
        frame: Frame,
        letters: str,
        stem: str,
        fill: Callable[[str], None],
    ) -> Node:
        """The value of a key, a load; ``fill`` writes it to its buffer the first time."""
        if key not in self.stored:
            name = self.buffer(self.fresh(stem), self.axes_of(frame, letters))
            fill(name)
            self.stored[key] = load(name, letters)
        return self.stored[key]

    def together(self, nodes: Mapping[str, Node], frame: Frame) -> dict[str, Node]:
        """(b, o) expressions by the names of their buffers, to be read one by one. What they have
        in common is computed once, in one loop that stores all, where it is more than that costs.
        """
        stems = {n: stem for stem, n in nodes.items() if n.args and n.axes == "bo"}
        most = self.cost(*stems) + STORED * len(stems)
        costs = accumulate(map(self.cost, stems))  # as far as they are asked for: these are many
        if all(cost <= most for cost in costs):
            return dict(nodes)
        axes = self.axes_of(frame, "bo")
        stored = {n: self.buffer(self.fresh(stem), axes) for n, stem in stems.items()}
        self.loop(frame, [Output(name, node) for node, name in stored.items()])
        self.stored.update({(frame, "bo", n): load(name, "bo") for n, name in stored.items()})
        return {stem: self.stored.get((frame, "bo", n), n) for stem, n in nodes.items()}

    def cost(self, *roots: Node) -> int:
        """What a loop of (b, o) expressions costs for each sample and neuron, in plain operations;
        functions are a few.
        """
        found, stack, total = set[Node](), [*roots], 0
        while stack:
            node = stack.pop()
            if node.args and node.axes == "bo" and node not in found and node not in self.values:
                found.add(node)
                stack.extend(node.args)
                total += 4 if node.op in COSTLY else 1
        return total

    def remember(self, value: Node, name: str) -> None:
        """Let later uses of this (b, o) expression load the buffer."""
        if value.args and value.axes == "bo":
            self.values[value] = load(name, "bo")

    def loop(self, frame: Frame, outputs: list[Output], scatter: bool = False) -> None:
        """Emit a Loop, after storing values that vary along fewer axes than the loop does."""
        if scatter:
            nodes = [self.lift_scalars(o.node) for o in outputs]
        else:
            stored = (out_letters(self.network, frame, o, self.buffers) for o in outputs)
            domain = ir.union(*(o.node.axes for o in outputs), *stored, outputs[0].axis)
            roots = [paired(o.node, self.paired) if len(domain) == 3 else o.node for o in outputs]
            seen: set[Node] = set()
            done: dict[Node, Node] = {}
            nodes = [self.lift_out(root, frame, domain, seen, done) for root in roots]
        computed = [replace(o, node=node) for o, node in zip(outputs, nodes, strict=True)]
        self.emit(Loop(frame, tuple(computed), scatter))

    def lift_out(
        self, root: Node, frame: Frame, domain: str, before: set[Node], done: dict[Node, Node]
    ) -> Node:
        """Store every subexpression that varies along fewer axes than the domain: it is computed
        once, not once per place. Common subexpressions of several of them are stored, too.

        before, done : the visited nodes of the same loop's expressions, and their replacements;
        both grow. The parts of nodes in these are stored already.
        """

        def place(node: Node) -> Frame | None:
            if not node.axes and domain:
                return Frame(0)
            # a loop over messages would repeat even one operation along its third axis
            is_part = len(node.axes) < len(domain) and (len(domain) == 3 or not self.cheap(node))
            return frame if is_part else None

        def find(node: Node) -> Node | None:
            if not node.args:
                return node
            if node in self.values:
                return self.values[node]
            here = place(node)
            if here is not None:
                return self.store(node, here, node.axes, "part")
            return self.at_hand(node, frame)

        parts: dict[Node, Frame] = {}
        seen: set[Node] = set()
        stack = [] if root in before else [root]
        while stack:
            node = stack.pop()
            if node in seen or not node.args or node in self.values:
                continue
            if self.at_hand(node, frame) is not None:
                continue
            seen.add(node)
            here = place(node)
            if here is None:
                stack.extend(reversed(node.args))
            else:
                parts[node] = here
        for node in self.in_common(parts):
            here = parts.setdefault(node, frame)
            self.parts.add((here, node.axes, node))
        for node in sorted(parts, key=lambda n: n.place[0]):  # larger ones load smaller ones
            self.store(node, parts[node], node.axes, "part")
        before |= seen
        return ir.replace(root, find, done)

    def at_hand(self, node: Node, frame: Frame) -> Node | None:
        """The buffer to read instead of an expression, where that is worth it; else None."""
        key = (frame, node.axes, node)
        is_costly = node.op in COSTLY and not self.steps
        return self.stored.get(key) if key in self.parts or is_costly else None

    def in_common(self, parts: dict[Node, Frame]) -> list[Node]:
        """The expressions worth storing that several of these have in common."""
        found: dict[Node, None] = {}
        seen: dict[Node, Node] = {}  # the first part of each
        for part in sorted(parts, key=lambda n: n.place[0]):
            stack = [part]
            while stack:
                node = stack.pop()
                first = seen.get(node)
                if first is part:
                    continue
                if first is not None:
                    if node.axes == part.axes and parts.get(node, parts[part]) == parts[part]:
                        if not self.cheap(node):
                            found[node] = None
                    continue
                seen[node] = part
                if node.args and (node is part or node not in self.values):
                    stack.extend(reversed(node.args))
        return list(found)

    def lift_scalars(self, root: Node) -> Node:
        def find(node: Node) -> Node | None:
            if node.args and not node.axes:
                return self.store(node, Frame(0), "", "part")
            return node if not node.args else None

        return ir.replace(root, find)

    @staticmethod
    def cheap(node: Node) -> bool:
        """Whether it is not worth a pass of its own: at most two plain operations."""
        if node.place[0] > 3:  # checked first: the walk below would visit every node
            return False
        nodes = [n for n in ir.walk(node) if n.args]
        return len(nodes) <= 2 and all(n.op in _CHEAP for n in nodes)

    # --- reductions over a link

    def reduced(self, node: Node, axis: str, monoid: str, frame: Frame, stem: str) -> Node:
        """The reduction of a link expression over one of its axes, as one over the other axes."""
        link = self.link(frame)
        if monoid == "sum" and isinstance(link, Link) and link.convolves:
            found = self.convolved(node, axis, frame, link, stem)
            if found is not None:
                return found
        if monoid == "sum" and link.edges is None:
            found = contract(node, axis, self.count(frame, axis))
            if found is not None:
                return self.resolve(found, frame, stem)
        needed = (
            axis if link.edges is None else "oi"
        )  # the sources of a sparse receiver are its own
        for letter in needed:
            if letter not in node.axes:
                node = self.spread(node, letter, frame)
        return self.reduction_loop(node, axis, monoid, frame, stem)

    def convolved(self, node: Node, axis: str, frame: Frame, link: Link, stem: str) -> Node | None:
        """A sum of products over windows, each product by one statement, as an expression over the
        other axes; None if it is no such sum.

        Factors of senders alone (or of receivers, towards senders) are summed over the windows,
        factors of weights alone over the synapses, without the batch.
        """
        terms = monomials(node)
        if terms is None:
            return None
        each = {each_of(self.network, array, frame): array for array in link.weights.values()}
        split = [_sides(factors, axis, each) for _, factors in terms]
        kinds = [set(sides or {"none"}) - {""} for sides in split]
        if _SUMMED[axis][0] not in kinds or not all(kind in _SUMMED[axis] for kind in kinds):
            return None
        may_leave = self.may_leave(axis, frame)
        if not all(may_leave(sides[""]) for sides in split if sides and "" in sides):
            return None
        if axis == "b" and self.some_have_none("i", frame):  # kernels multiply with 0 beyond it
            if any(sides["bo"].op is not Op.LOAD for sides in split if sides and "bo" in sides):
                return None
        total: Node = const(0.0)
        for (coefficient, _), sides in zip(terms, split, strict=True):
            assert sides is not None
            outside = mul(const(coefficient), sides.get("", const(1.0)))
            part = self.window_term(sides, axis, frame, each, stem)
            total = ir.add(total, mul(outside, part))
        return total

    def window_term(
        self, sides: dict[str, Node], axis: str, frame: Frame, each: Mapping[str, str], stem: str
    ) -> Node:
        """The sum over windows of one product, without the factors outside."""
        here = {letters: node for letters, node in sides.items() if letters}
        if axis == "b" and "bi" not in here:  # a product with ones, times the shared factor
            weight = here.pop("oi", None)
            here["bi"] = self.ones(frame, "b")
            found = self.window_term(here, axis, frame, each, stem)
            return found if weight is None else mul(found, _of_shared(weight, each))
        if len(here) == 1:
            (node,) = here.values()
            for letter in "oi":
                if letter not in node.axes:
                    node = self.spread(node, letter, frame)
            return self.reduction_loop(node, axis, "sum", frame, stem)
        if axis == "b":
            stored = [self.store(here[x], frame, x, "factor").value for x in ("bo", "bi")]
        else:
            moving = {"i": "bi", "o": "bo"}[axis]
            given = self.store(here[moving], frame, moving, "factor").value
            stored = [given, each[here["oi"].value]]
        key = (frame, f"convolve {axis} {' '.join(stored)}", const(0.0))
        out = {"i": frame, "o": frame, "b": replace(frame, shared=True)}[axis]
        letters = {"i": "bo", "o": "bi", "b": "o"}[axis]

        def fill(name: str) -> None:
            self.emit(Convolve(frame, name, stored[0], stored[1], axis))

        return self.once(key, out, letters, stem, fill)

    def drop_unread(self) -> None:
        """Drop expanded arrays that nobody reads."""
        lists = [self.statements, *self.phases.values()]
        read = {name for each in lists for s in each for name in reads(s)}
        unread = {s.out for each in lists for s in each if isinstance(s, Expand)} - read
        for each in lists:
            each[:] = [s for s in each if not (isinstance(s, Expand) and s.out in unread)]
        for name in unread:
            del self.buffers[name]

    def spread(self, node: Node, letter: str, frame: Frame) -> Node:
        """The node, varying in name along an axis, so that a loop visits it once per place."""
        return mul(node, self.ones(frame, letter))

    def ones(self, frame: Frame, letter: str) -> Node:
        """A one for each neuron of the layer ("o"), sender of the link ("i"), or row of the batch
        ("b": for each of its neurons, or of the link's senders).
        """
        if letter == "b":

            def fill(name: str) -> None:
                self.loop(frame, [Output(name, const(1.0))])

            letters = "bo" if frame.link is None else "bi"
            return self.once((frame, "ones of rows", const(1.0)), frame, letters, "ones", fill)
        layer = frame.layer if letter == "o" else self.link(frame).source.index
        name = f"layer{layer}#ones"
        self.persistent(name, (f"n{layer}",), "constant", ("ones", layer))
        return self.learned(name, (f"n{layer}",), letter)

    def count(self, frame: Frame, axis: str) -> Node:
        if axis == "b":
            return Scalar("rows")
        layer = self.network.layers[frame.layer] if axis == "o" else self.link(frame).source
        return const(float(layer.size))

    def reduction_loop(self, node: Node, axis: str, monoid: str, frame: Frame, stem: str) -> Node:
        """Reduce by a loop; returns a load of the result. From a sum over three axes the common
        factors of all terms are taken out: multiplied once, not once per element.
        """
        if monoid == "sum" and len(node.axes) == 3:
            outside, inside = taken_out(node, axis, self.may_leave(axis, frame))
            if not ir.is_const(outside, 1.0) and inside.axes == node.axes:
                return mul(outside, self.reduction_loop(inside, axis, monoid, frame, stem))
        rest = node.axes.replace(axis, "")

        def fill(name: str) -> None:
            self.loop(frame, [Output(name, node, axis, monoid, self.explicit_letters(frame, rest))])

        return self.once((frame, f"{monoid} {axis}", node), frame, rest, stem, fill)

    def may_leave(self, axis: str, frame: Frame) -> Callable[[Node], bool]:
        """Whether a factor may be taken out of a sum over a link. Of no messages it is 0, and an
        infinite factor, as 1 / len(messages), would make it NaN.
        """

        def may_leave(factor: Node) -> bool:
            finite = is_finite(factor) and (axis != "i" or self.is_given(factor))
            return finite or not self.some_have_none(axis, frame)

        return may_leave

    def some_have_none(self, axis: str, frame: Frame) -> bool:
        """Whether a sum over a link has no terms, that of a receiver (i) or of a sender (o)."""
        link = self.link(frame)
        if link.edges is None or axis == "b":
            return False
        if axis == "i":
            return bool((np.diff(link.edges.indptr) == 0).any())
        # The senders of windows are not listed: gigabytes, of a large picture.
        n = link.source.size
        return link.edges.has_list and not np.bincount(link.edges.indices, minlength=n).all()

    def is_given(self, node: Node) -> bool:
        """Whether nothing in it is computed from messages: the largest of none is -infinity."""
        loads = (n for n in ir.walk(node) if n.op is Op.LOAD)
        return all(self.buffers[n.value].role != "work" for n in loads)

    def resolve(self, root: Node, frame: Frame, stem: str) -> Node:
        """Emit the matrix products and reductions of an expression; it is returned with loads."""

        def find(node: Node) -> Node | None:
            if node.op is Op.MATMUL:
                return self.matmul(node, frame, stem)
            if node.op is Op.REDUCE:
                inside = ir.replace(node.args[0], find)
                return self.reduction_loop(inside, node.value[1], node.value[0], frame, stem)
            return None

        return ir.replace(root, find)

    def matmul(self, node: Node, frame: Frame, stem: str) -> Node:
        a, b = (self.store(x, frame, x.axes, "factor") for x in node.args)

        def fill(name: str) -> None:
            self.emit(Matmul(frame, name, node.axes, a.value, a.axes, b.value, b.axes, node.value))

        return self.once((frame, "matmul", node), frame, node.axes, stem, fill)


# The letters of the factors in products over windows that are summed over an axis.
_SUMMED = {
    "i": ({"bi", "oi"}, {"bi"}, {"oi"}),
    "o": ({"bo", "oi"}, {"bo"}, {"oi"}),
    "b": ({"bo", "bi"}, {"bo", "oi"}, {"bo"}),
}


def _sides(factors: tuple[Node, ...], axis: str, each: Mapping[str, str]) -> dict[str, Node] | None:
    """The factors of a product over windows by their letters; "": those outside of the sum over the
    axis. None if synapses have other numbers than weights.
    """
    summed = "boi" if axis == "b" else axis  # with the batch over positions, too
    found: dict[str, Node] = {}
    for factor in sorted(factors, key=lambda node: -len(node.axes)):
        letters = factor.axes
        if letters == "oi" and not _is_of_weights(factor, each):
            return None
        if not set(letters) & set(summed):
            letters = ""
        elif len(letters) == 1:  # joined to a factor with the letter; weights as the last
            known = [some for some in ("bo", "bi", "oi") if some in found]
            letters = next((some for some in known if letters in some), letters)
        found[letters] = mul(found[letters], factor) if letters in found else factor
    if axis == "b" and "oi" in found and not _is_of_weights(found["oi"], each):
        return None  # it must be computed from the shared numbers
    is_product = set(found) - {""} in ({"bi", "oi"}, {"bo", "oi"}) and axis != "b"
    return None if is_product and not _is_each(found["oi"], each) else found


def _is_of_weights(node: Node, each: Mapping[str, str]) -> bool:
    return all(n.op is Op.CONST or _is_each(n, each) for n in ir.walk(node) if not n.args)


def _of_shared(node: Node, each: Mapping[str, str]) -> Node:
    """An expression of the synapses' weights, over the shared weights instead."""
    return ir.replace(node, lambda n: load(each[n.value], "o") if _is_each(n, each) else None)


def _is_each(node: Node, each: Mapping[str, str]) -> bool:
    return node.op is Op.LOAD and node.value in each
