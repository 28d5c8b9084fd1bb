"""A neuron's reads as expressions over buffers: its own values, and its messages over every link
and the bias.

Vertex expressions use the letters (b, o) of their layer, expressions of a link the letters (b, o,
i) of that link, whichever way the messages flow: seen from the source of a link, o and i are
exchanged.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np

from horn import ir
from horn.activations import softmax
from horn.compiler.layer_code import LayerCode, NetworkCode, Outgoing
from horn.compiler.layer_questions import LayerQuestions
from horn.compiler.storage import Storage
from horn.errors import ModelError
from horn.ir import (
    OUTPUT,
    UPSTREAM,
    ZERO,
    Node,
    Op,
    const,
    derive,
    leaf,
    load,
    make,
    mul,
    select,
)  # fmt: skip
from horn.ir.neuron_ir import Kind
from horn.language.source import source_of
from horn.layers import Layer, Link
from horn.neuron import OF_A_SAMPLE, WEIGHT
from horn.optimizers import PREVIOUS_UPDATE, Optimizer, no_previous
from horn.program import ERRORS, Draw, Frame, members_of

# The text that abstract nodes are of; "late": of an interlayer, for what comes from later steps.
Text = Kind | Literal["late", "aggregate"]
TALL = 8  # levels of operations: a taller expression is stored where all neurons read it


def without_factors(node: Node) -> Node:
    """The expression without constant factors and signs."""
    while True:
        if node.op is Op.NEG:
            (node,) = node.args
        elif node.op is Op.MUL and not all(a.axes for a in node.args):
            node = max(node.args, key=lambda a: len(a.axes))
        else:
            return node


def compares(monoid: str, arg: Node) -> bool:
    """Whether a reduction compares a message with others: by itself, or with an extreme of them."""
    extremes = ("max", "min")
    return monoid in extremes or any(
        n.op is Op.REDUCE and n.value[0] in extremes for n in ir.walk(arg)
    )


def without_ones(root: Node, one: Node) -> Node:
    """The expression without multiplications by ``one`` of what varies like it."""
    done: dict[Node, Node] = {}

    def find(node: Node) -> Node | None:
        if node.op is Op.MUL and one in node.args:
            (other,) = [a for a in node.args if a is not one] or [one]
            if "o" in other.axes:
                return ir.replace(other, find, done)
        return None

    return ir.replace(root, find, done)


@dataclass(frozen=True)
class StepTrace:
    """A SynapseState that each sample of a sequence carries: its value before a step, and the
    buffer of its value after it.
    """

    frame: Frame
    letters: str
    before: Node
    now: str


class MessageExpressions:
    """Replaces leaves of the neuron's IR by the program's buffers.

    known : (layer, text, abstract node) -> its expression. states : (layer, State) -> its value
    after forward.
    """

    def __init__(self, storage: Storage, code: NetworkCode, optimizer: Optimizer | None) -> None:
        self.storage, self.code, self.optimizer = storage, code, optimizer
        self.network = storage.network
        self.questions = LayerQuestions(storage)
        self.known: dict[tuple[int, Text, Node], Node] = {}
        self.states: dict[tuple[int, str], Node] = {}
        self.target: Callable[[Layer], Node] | None = None  # the target of an output
        self.traces: dict[str, StepTrace] = {}  # in sequences, by the name of the array
        # message expressions and their replacements, while some are written: see ``together``
        self.placed: dict[tuple[Frame, str], dict[Node, Node]] = {}
        self.n_placing = 0  # how many such replacements go on, one inside the other

    def at_vertex(self, root: Node, code: LayerCode, text: Text) -> Node:
        """An abstract expression of one neuron over buffers, with letters (b, o) of its layer."""
        return self.all_at_vertex([root], code, text)[0]

    def all_at_vertex(self, roots: Sequence[Node], code: LayerCode, text: Text) -> list[Node]:
        """Translate several expressions, with their common parts once."""
        return [*self.each_at_vertex(roots, code, text)]

    def each_at_vertex(self, roots: Iterable[Node], code: LayerCode, text: Text) -> Iterator[Node]:
        """Translate expressions as ``all_at_vertex``, one by one as they are asked for."""
        layer = code.layer

        done: dict[Node, Node] = {}  # also for questions inside of questions

        def find(node: Node) -> Node | None:
            key = (layer.index, text, node)
            if key in self.known:
                return self.known[key]
            found: Node | None = None
            if node.op is Op.STOP_GRADIENT:  # the gradients are derived already
                found = ir.replace(node.args[0], find, done)
            elif node.op is Op.REDUCE and node.value[1] == "i":
                found = self.over_messages(node, code, text)
            elif node.op is Op.REDUCE and node.value[1] == "b" and self.storage.steps:
                inside = ir.replace(node.args[0], find, done)
                is_back = ir.contains(node.args[0], Op.UPSTREAM)
                found = self.questions.over_batch(inside, node.value[0], layer, is_back)
            elif node.op is Op.REDUCE:
                monoid, axis = node.value
                core = without_factors(node.args[0])
                inside = ir.replace(core, find, done)
                if inside.place[0] > TALL and inside.axes:  # its reader reads it again
                    frame, stem = Frame(layer.index), f"{layer.name}.asked"
                    done[core] = self.storage.store(inside, frame, inside.axes, stem)
                    if not self.storage.steps:  # backward reads the buffer that forward stored
                        self.known[layer.index, text, core] = done[core]
                inside = ir.replace(node.args[0], find, done)
                found = self.questions.over_all(inside, monoid, axis, layer)
            elif node.op is Op.HALFWAY:  # the next reads its bounds, not all that were before
                for end in node.args:
                    if (layer.index, text, end) not in self.known:
                        stored = self.questions.bound(ir.replace(end, find, done), layer)
                        done[end] = self.known[layer.index, text, end] = stored
                found = make(Op.HALFWAY, *(self.known[layer.index, text, e] for e in node.args))
            elif node.op is Op.CHANNEL_SUM:
                found = self.questions.channel_sum(ir.replace(node.args[0], find, done), layer)
            elif node.op is Op.RANK:
                found = self.questions.rank(ir.replace(node.args[0], find, done), layer)
            elif not node.args:
                found = self.vertex_leaf(node, code, text)
            if found is not None:
                self.known[key] = found
            return found

        for root in roots:
            yield ir.replace(root, find, done)

    def vertex_leaf(self, node: Node, code: LayerCode, text: Text) -> Node:
        layer = code.layer
        axis = f"n{layer.index}"
        if node.op in (Op.CONST, Op.LOAD):
            return node
        if node.op is Op.SCALAR and node.value in ("rows", "batch_share"):
            return self.questions.samples(layer, node.value == "batch_share")
        if node.op is Op.SCALAR:
            return const(float(layer.size)) if node.value == "layer_size" else node
        if node.op is Op.PARAM:
            name = f"{layer.name}.{node.value}"
            if layer.kinds:
                return self.storage.expanded(name, Frame(layer.index), "learned")
            self.storage.persistent(name, (axis,), "learned")
            return self.storage.learned(name, (axis,), "o")
        if node.op is Op.STATE:
            now = self.states.get((layer.index, node.value))
            if now is not None and text == "backward":
                return now
            name = f"{layer.name}.{node.value}"
            if self.storage.steps and node.value in code.forward.states:
                return load(self.storage.late(f"{name}.now", ("b", axis), 1), "bo")
            self.storage.persistent(name, (axis,), "state")
            return self.storage.learned(name, (axis,), "o")
        if node.op is Op.INDEX:
            return self.questions.index(layer, "o")
        if node.op is Op.COUNT:
            return self.fan(layer, "fan_in" if text == "forward" else "fan_out", node.value)
        if node.op is Op.OUTPUT:
            return load(self.output_name(layer), "bo")
        if node.op is Op.LOSS:
            if "loss" not in self.storage.buffers:
                raise ModelError(
                    f"{layer.name}: {layer.neuron.__name__} reads self.loss, but the job has none"
                )
            return load("loss", "b")
        if node.op is Op.UPSTREAM and node.value is not None:
            return self.of_state(code, node.value)
        if node.op is Op.TARGET:
            assert self.target is not None
            return self.target(layer)
        if node.op is Op.DRAW:
            return self.draw(node, layer)
        raise AssertionError(f"{node!r} is not a value of a neuron")

    def fan(self, layer: Layer, kind: str, of_input: str | None = None) -> Node:
        """The number of each neuron's messages, all or of one input."""
        if of_input is not None:
            name, axis = f"layer{layer.index}#fan_in.{of_input}", f"n{layer.index}"
            self.storage.persistent(name, (axis,), "constant", ("fan_in", layer.index, of_input))
            return self.storage.learned(name, (axis,), "o")
        if kind == "fan_in" and all(link.edges is None for link in layer.links):
            return const(
                float(sum(link.source.size for link in layer.links) + (layer.bias is not None))
            )
        out = self.code.outgoing[layer.index]
        if kind == "fan_out" and all(o.link.edges is None for o in out):
            return const(float(sum(o.receiver.layer.size for o in out)))
        name, axis = f"layer{layer.index}#{kind}", f"n{layer.index}"
        self.storage.persistent(name, (axis,), "constant", (kind, layer.index))
        return self.storage.learned(name, (axis,), "o")

    def draw(self, node: Node, layer: Layer) -> Node:
        kind, site, per = node.value
        name = f"{layer.name}.{kind}.{per}.{site}"
        axis = f"n{layer.index}"
        of_a_sample = per in OF_A_SAMPLE
        axes = ("b", axis) if of_a_sample else (axis,)
        if name not in self.storage.buffers:
            self.storage.buffer(name, axes, full=not of_a_sample)
            statement = Draw(name, kind, per, layer.index, site)
            (self.storage.prologue if per == "run" else self.storage.statements).append(statement)
        node = load(name, "bo" if of_a_sample else "o")
        return node if of_a_sample else self.storage.taken(node, axes)

    def output_name(self, layer: Layer) -> str:
        return f"{layer.name}.output"

    # --- messages

    def over_messages(self, node: Node, code: LayerCode, text: Text) -> Node:
        """A reduction over a neuron's messages: over every link, and the bias."""
        monoid, _ = node.value
        arg = node.args[0]
        layer = code.layer
        stem = f"{layer.name}.{monoid}" if text == "forward" else f"{layer.name}.back"
        if monoid in ("argmax", "argmin"):
            return self.arg_over_messages(node, code)
        total: Node = const(ir.IDENTITY[monoid])
        if ir.contains(arg, Op.ERROR, Op.ERROR_DRAW):
            frame = Frame(layer.index, ERRORS)
            return self.storage.reduced(self.at_errors(arg, code), "i", monoid, frame, stem)
        if text == "forward":
            for position, _ in enumerate(layer.links):
                frame = Frame(layer.index, position)
                here = self.at_link(arg, code, position)
                if ir.is_const(here, ir.IDENTITY[monoid]):  # another input
                    continue
                part = self.storage.reduced(here, "i", monoid, frame, stem)
                total = ir.combine(monoid, total, part)
            if layer.bias is not None:
                total = ir.combine(monoid, total, self.at_bias(arg, code, compares(monoid, arg)))
            return total
        for out in self.code.outgoing[layer.index]:
            frame = Frame(out.receiver.layer.index, out.position)
            part = self.storage.reduced(self.at_outgoing(arg, code, out), "o", monoid, frame, stem)
            total = ir.combine(monoid, total, swap(part))
        return total

    def arg_over_messages(self, node: Node, code: LayerCode) -> Node:
        """The position of the first largest (smallest) message among all links and the bias, or of
        the first NaN.
        """
        monoid, _ = node.value
        value = monoid[3:]
        arg, layer = node.args[0], code.layer
        better = Op.GT if value == "max" else Op.LT
        best: Node | None = None
        place: Node = ZERO
        for position, offset in enumerate(self.offsets(layer)):
            if position < len(layer.links):
                frame = Frame(layer.index, position)
                here = self.at_link(arg, code, position)
                if ir.is_const(here, ir.IDENTITY[value]):
                    continue
                for letter in "i" if layer.links[position].edges is None else "oi":
                    if letter not in here.axes:
                        here = self.storage.spread(here, letter, frame)
                top = self.storage.reduction_loop(here, "i", value, frame, f"{layer.name}.{value}")
                stem = f"{layer.name}.{monoid}"
                at = self.storage.reduction_loop(here, "i", monoid, frame, stem) + offset
            elif layer.bias is not None:
                top, at = self.at_bias(arg, code, True), const(float(offset))
                if ir.is_const(top, ir.IDENTITY[value]):
                    continue
            else:
                continue
            if best is None:
                best, place = top, at
            else:
                is_lost = make(Op.AND, make(Op.NE, top, top), make(Op.EQ, best, best))
                c = make(Op.OR, make(better, top, best), is_lost)
                best, place = select(c, top, best), select(c, at, place)
        return self.storage.store(
            place, Frame(layer.index), ir.union(place.axes, "o"), f"{layer.name}.{monoid}"
        )

    @staticmethod
    def offsets(layer: Layer) -> list[int]:
        """The position of each link's first message; the bias has the last. A sparse link takes as
        many as the receiver with most synapses has.
        """
        found = [0]
        for link in layer.links:
            edges = link.edges
            most = link.source.size if edges is None else np.diff(edges.indptr).max(initial=0)
            found.append(found[-1] + int(most))
        return found

    def weight(self, layer: Layer, position: int, name: str) -> Node:
        return self.of_link(layer, position, layer.links[position].weights[name], "learned")

    def of_link(self, layer: Layer, position: int, array: str, role: str) -> Node:
        """The weights of a link's synapses, or what the optimizer remembers of each."""
        link, frame = layer.links[position], Frame(layer.index, position)
        if link.is_shared:
            return self.storage.expanded(array, frame, role)
        if link.tie is not None:
            return self.storage.turned(array, frame, bool(link.tie.transposed), role)
        axes = self.storage.axes_of(frame, "oi")
        self.storage.persistent(array, axes, role)
        return self.storage.learned(array, axes, "oi")

    def bias(self, layer: Layer, name: str) -> Node:
        return self.of_bias(layer, layer.biases[name], "learned")

    def of_bias(self, layer: Layer, array: str, role: str) -> Node:
        """The weights of a layer's bias synapses, likewise."""
        axes = (f"n{layer.index}",)
        if layer.kinds:
            return self.storage.expanded(array, Frame(layer.index), role)
        self.storage.persistent(array, axes, role)
        return self.storage.learned(array, axes, "o")

    def trace(self, array: str, frame: Frame) -> Node:
        """A SynapseState as it was when the batch began; in sequences, at the step before for each
        sample, if forward assigns it.
        """
        if array in self.traces:
            return self.traces[array].before
        letters = "o" if frame.link is None else "oi"
        axes = self.storage.axes_of(frame, letters)
        self.storage.persistent(array, axes, "state")
        return self.storage.learned(array, axes, letters)

    def previous(self, layer: Layer, position: int | None, reader: Layer, method: str) -> Node:
        """The last updates of the weights of a link, or with None of the bias. reader, method :
        whose method reads them.
        """
        if self.optimizer is None:
            return ZERO
        if PREVIOUS_UPDATE not in self.optimizer.slots:
            source, problem = source_of(getattr(reader.neuron, method)), no_previous(self.optimizer)
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Attribute) and node.attr == PREVIOUS_UPDATE:
                    raise source.error(node, problem)
            raise source.error(source.tree, problem)  # a function that it calls
        name = layer.biases[WEIGHT] if position is None else layer.links[position].weight
        slot = f"{name}/{PREVIOUS_UPDATE}"
        if position is None:
            return self.of_bias(layer, slot, "slot")
        return self.of_link(layer, position, slot, "slot")

    def at_link(self, root: Node, code: LayerCode, position: int) -> Node:
        """An abstract message expression of the receiver in the frame of one link."""
        layer = code.layer
        link = layer.links[position]
        frame = Frame(layer.index, position)
        leaves: dict[Op, Callable[[Node], Node]] = {
            Op.INPUT: lambda _: load(self.heard(link), "bi"),
            Op.WEIGHT: lambda w: self.weight(layer, position, w.value or WEIGHT),
            Op.TRACE: lambda t: self.trace(layer.incoming(t.value, position), frame),
            Op.PREVIOUS: lambda _: self.previous(layer, position, layer, "forward"),
            Op.POSITION: lambda _: self.position(frame),
            Op.PLACE: lambda _: self.place(frame),
            Op.OF_INPUT: lambda of: const(float(of.value == link.input)),
            Op.SYNAPSE_DRAW: lambda draw: self.synapse_draw(draw, layer, position),
            Op.MESSAGE_DRAW: lambda draw: self.message_draw(draw, frame),
            Op.UPSTREAM: lambda u: self.upstream(u, code),
        }
        return self.over_buffers(
            (frame, "in"), root, leaves, lambda node: self.at_vertex(node, code, "forward")
        )

    def heard(self, link: Link) -> str:
        """The buffer of a link's inputs."""
        name, axes = self.output_name(link.source), ("b", f"n{link.source.index}")
        if link.is_reversed:
            return self.storage.reversed(name, axes, link.source.index)
        return self.storage.late(name, axes, link.delay) if link.delay else name

    def upstream(self, node: Node, code: LayerCode) -> Node:
        """d loss / d output, or d loss / d a State for the next step."""
        return _known(code.upstream if node.value is None else self.of_state(code, node.value))

    def of_state(self, code: LayerCode, name: str) -> Node:
        """d loss / d a State after forward, which the next step writes."""
        back = state_back(code.layer, name)
        return load(self.storage.late(back, ("b", f"n{code.layer.index}"), -1), "bo")

    def position(self, frame: Frame) -> Node:
        layer, link = self.network.layers[frame.layer], self.storage.link(frame)
        offset = self.offsets(layer)[frame.link or 0]
        if link.edges is None:
            return self.questions.index(link.source, "i", offset)
        name, axes = f"layer{layer.index}#edge{frame.link}", self.storage.axes_of(frame, "oi")
        self.storage.persistent(name, axes, "constant", ("edge", layer.index, frame.link))
        return load(name, "oi") + float(offset)

    def place(self, frame: Frame) -> Node:
        """m.index: the number of the neuron's messages before this one, links in order, the sources
        of each ascending.
        """
        layer, link = self.network.layers[frame.layer], self.storage.link(frame)
        position = frame.link or 0
        earlier = layer.links[:position]
        if link.edges is not None:
            name, axes = f"layer{layer.index}#place{position}", self.storage.axes_of(frame, "oi")
            self.storage.persistent(name, axes, "constant", ("place", layer.index, position))
            return load(name, "oi")
        if all(other.edges is None for other in earlier):
            return self.questions.index(link.source, "i", sum(x.source.size for x in earlier))
        name, receivers = f"layer{layer.index}#before{position}", (f"n{layer.index}",)
        self.storage.persistent(name, receivers, "constant", ("before", layer.index, position))
        return self.questions.index(link.source, "i") + self.storage.learned(name, receivers, "o")

    def at_bias(self, root: Node, code: LayerCode, is_compared: bool = False) -> Node:
        """An abstract message expression of the receiver for its bias synapse: an input of 1.

        is_compared : with the same expression of other messages. The run computes all of them, to
        the same bits: what is folded here is rounded otherwise, and of equal ones would be largest.
        """
        layer = code.layer
        frame = Frame(layer.index)
        one = self.storage.ones(frame, "o") if is_compared else const(1.0)
        leaves: dict[Op, Callable[[Node], Node]] = {
            Op.INPUT: lambda _: one,
            Op.WEIGHT: lambda w: self.bias(layer, w.value or WEIGHT),
            Op.TRACE: lambda t: self.trace(layer.incoming(t.value, None), Frame(layer.index)),
            Op.PREVIOUS: lambda _: self.previous(layer, None, layer, "forward"),
            Op.POSITION: lambda _: const(float(self.offsets(layer)[-1])),
            Op.PLACE: lambda _: mul(self.fan(layer, "fan_in") - 1.0, one),  # the last of all
            Op.OF_INPUT: lambda _: ZERO,
            Op.SYNAPSE_DRAW: lambda draw: self.synapse_draw(draw, layer, len(layer.links)),
            Op.MESSAGE_DRAW: lambda draw: self.message_draw(draw, frame),
            Op.UPSTREAM: lambda u: self.upstream(u, code),
        }
        found = self.over_buffers(
            (frame, "compared" if is_compared else "in"),
            root,
            leaves,
            lambda node: self.at_vertex(node, code, "forward"),
        )
        return without_ones(found, one) if is_compared else found

    def synapse_draw(self, node: Node, layer: Layer, position: int) -> Node:
        kind, site = node.value
        name = f"{layer.name}.synapse.{kind}.{site}.{position}"
        bias = position == len(layer.links)
        frame = Frame(layer.index, None if bias else position)
        axes = self.storage.axes_of(frame, "o" if bias else "oi")
        if name not in self.storage.buffers:
            self.storage.buffer(name, axes, full=True)
            self.storage.prologue.append(Draw(name, kind, "synapse", layer.index, site, position))
        return self.storage.taken(load(name, "o" if bias else "oi"), axes)

    def message_draw(self, node: Node, frame: Frame) -> Node:
        """A draw of a message, made where it is read: one per sample is never stored. A draw of the
        bias (a frame without a link), or one for all samples, is stored.
        """
        kind, site, per = node.value
        layer = self.network.layers[frame.layer]
        link = len(layer.links) if frame.link is None else frame.link
        axes = node.axes.replace("i", "") if frame.link is None else node.axes
        drawn = leaf(Op.MESSAGE_DRAW, axes, (*node.value, layer.index, link))
        if axes == "boi":
            return drawn
        return self.storage.store(drawn, frame, axes, f"{layer.name}.message.{kind}.{per}.{site}")

    def at_errors(self, root: Node, code: LayerCode) -> Node:
        """An expression of a hidden neuron's backward over the output neurons."""
        layer, last = code.layer, self.network.last
        frame = Frame(layer.index, ERRORS)

        def delta(_: Node) -> Node:
            of_groups = self.code.layers[last.index].deltas.values()
            deltas = list(dict.fromkeys(each for group in of_groups for each in group.values()))
            if len(deltas) != 1:
                raise ModelError(
                    f"{layer.name}: {layer.neuron.__name__} reads self.error, but {last.name} has "
                    f"no one delta: its neurons ({last.neuron.__name__}) must depend on "
                    "sum(m.input * m.weight) alone, and have a loss"
                )
            return swap(deltas[0])

        def draw(node: Node) -> Node:
            drawn = (*node.value, "run", layer.index, len(layer.links) + 1)
            name = f"{layer.name}.error.{node.value[0]}.{node.value[1]}"
            return self.storage.store(leaf(Op.MESSAGE_DRAW, "oi", drawn), frame, "oi", name)

        leaves: dict[Op, Callable[[Node], Node]] = {Op.ERROR: delta, Op.ERROR_DRAW: draw}
        return self.over_buffers(
            (frame, "errors"), root, leaves, lambda node: self.at_vertex(node, code, "backward")
        )

    def at_outgoing(self, root: Node, code: LayerCode, out: Outgoing) -> Node:
        """A message expression of a sender's backward in the frame of one outgoing link."""
        receiver = out.receiver
        frame, names = Frame(receiver.layer.index, out.position), out.link.names
        deltas = receiver.deltas.get(out.link.input, {})
        leaves: dict[Op, Callable[[Node], Node]] = {
            Op.DELTA: lambda d: deltas.get(d.value or (*names, "")[0], ZERO),
            Op.WEIGHT: lambda w: self.weight(receiver.layer, out.position, w.value or WEIGHT),
            Op.TRACE: lambda t: self.trace(
                code.layer.outgoing(t.value, receiver.layer, out.position), frame
            ),
            Op.PREVIOUS: lambda _: self.previous(
                receiver.layer, out.position, code.layer, "backward"
            ),
            Op.GRADIENT: lambda _: self.input_gradient(out),
            Op.SYNAPSE_DRAW: lambda draw: self.synapse_draw(draw, receiver.layer, out.position),
            Op.MESSAGE_DRAW: lambda draw: self.message_draw(draw, frame),
        }
        return self.over_buffers(
            (frame, "out"),
            root,
            leaves,
            lambda node: swap(self.at_vertex(node, code, "backward")),
        )

    def over_buffers(
        self,
        end: tuple[Frame, str],
        root: Node,
        leaves: Mapping[Op, Callable[[Node], Node]],
        vertex: Callable[[Node], Node],
    ) -> Node:
        """Replace the leaves of a message expression; ``vertex`` replaces those of one neuron.

        end : the synapses of the expression, and from which side. A question inside of it about the
        same messages (a rank, the key of a choice) has most of its nodes in common with it.
        """

        def find(node: Node) -> Node | None:
            if node.op is Op.STOP_GRADIENT:  # the gradients are derived already
                return ir.replace(node.args[0], find, done)
            if node.op in leaves:
                return leaves[node.op](node)
            return vertex(node) if not node.args or node.op in _WHOLE else None

        with self.together():
            done = self.placed.setdefault(end, {})
            return ir.replace(root, find, done)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Replace the common parts of several message expressions once, as of the gradients of all
        weights of a synapse, each of which may read all of them.
        """
        self.n_placing += 1
        try:
            yield
        finally:
            self.n_placing -= 1
            if not self.n_placing:
                self.placed.clear()

    def input_gradient(self, out: Outgoing) -> Node:
        """d loss / d input of the synapses of a link, in its frame; 0 if no gradient flows back
        through the receiver.
        """
        receiver = out.receiver
        if receiver.deltas:
            total: Node = ZERO
            for name, delta in receiver.deltas[out.link.input].items():
                total = ir.add(total, mul(delta, self.weight(receiver.layer, out.position, name)))
            return total
        if receiver.upstream is not None and not receiver.derived.is_weighted_sum:
            return self.at_link(receiver.derived.input, receiver, out.position)
        return ZERO

    def through_interlayer(self, code: LayerCode, sent: Node, text: Text = "interlayer") -> Node:
        """d loss / d (the values fed forward), from d loss / d (the layer's outputs)."""
        layer = code.layer
        frame = Frame(layer.index)
        assert code.interlayer is not None
        sent = self.storage.store(sent, frame, "bo", f"{layer.name}.sent")
        if layer.interlayer is softmax:  # its Jacobian in closed form: y (g - sum(g y))
            y = load(self.output_name(layer), "bo")
            inner = self.storage.reduction_loop(sent * y, "o", "sum", frame, f"{layer.name}.inner")
            return y * (sent - inner)
        slope = derive.gradient(code.interlayer, UPSTREAM, [OUTPUT], layerwide=True)[OUTPUT]
        self.known[(layer.index, text, OUTPUT)] = self.known[layer.index, "interlayer", OUTPUT]
        self.known[(layer.index, text, UPSTREAM)] = sent
        return self.at_vertex(slope, code, text)


def state_back(layer: Layer, name: str) -> str:
    """The buffer of d loss / d a State before forward."""
    return f"{layer.name}.{name}.back"


def where_member(layer: Layer, value: Node) -> Node:
    """A value at the neurons that a row has, 0 elsewhere; for a masked layer."""
    return select(make(Op.NE, load(members_of(layer), "bo"), ZERO), value, ZERO)


# Of a layer, the batch or all messages, not of one message.
_WHOLE = (Op.REDUCE, Op.RANK, Op.CHANNEL_SUM, Op.HALFWAY)


def _known(upstream: Node | None) -> Node:
    assert upstream is not None
    return upstream


def swap(node: Node) -> Node:
    """The node with o and i exchanged: from a vertex expression of a link's source, and back."""
    table = str.maketrans("oi", "io")

    def find(n: Node) -> Node | None:
        return load(n.value, ir.union(n.axes.translate(table))) if n.op is Op.LOAD else None

    return ir.replace(node, find)
