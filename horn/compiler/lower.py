"""From the IR of every layer to one program: messages become matrix products and fused loops, gradients become updates.

A program is built front to back. What is computed is stored once; every later use loads it. Vertex expressions use the letters (b, o) of
their layer, expressions of a link the letters (b, o, i) of that link, whichever way the messages flow (program.Frame).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from horn import losses
from horn.activations import softmax
from horn.compiler import derive, ir, parse
from horn.compiler.contract import contract, monomials
from horn.compiler.ir import Node, Op, Scalar, const, leaf, load, make, mul, reduce, select
from horn.compiler.parse import BackwardIR, Context, ForwardIR
from horn.compiler.program import (
    Buffer,
    Draw,
    Frame,
    Input,
    Live,
    Loop,
    Matmul,
    Output,
    Program,
    Statement,
    Take,
    Target,
    Update,
)
from horn.errors import CompileError, ModelError
from horn.network import Layer, Link, Network
from horn.neuron import has_backward
from horn.optimizers import SGD, Direct, Optimizer

OUTPUT = leaf(Op.OUTPUT, "bo")
UPSTREAM = leaf(Op.UPSTREAM, "bo")
TARGET = leaf(Op.TARGET, "bo")
ZERO = const(0.0)


@dataclass
class Code:
    """The IR of one layer, and what is known of it while the program is built."""

    layer: Layer
    forward: ForwardIR
    backward: BackwardIR | None
    derived: derive.Derived
    interlayer: Node | None
    stable: bool = False  # derived starts from the summed input of a sigmoid with binary cross-entropy
    upstream: Node | None = None  # d loss / d output, when known
    delta: Node | None = None

    @property
    def is_local(self) -> bool:
        return self.forward.push is not None

    @property
    def sends_delta(self) -> bool:
        """Whether anything flows back through this layer."""
        return self.delta is not None or self.upstream is not None


@dataclass(frozen=True)
class Outgoing:
    """A link seen from its source."""

    receiver: Code
    position: int
    link: Link


def read_layer(
    layer: Layer, training: bool, written: bool = True
) -> tuple[ForwardIR, BackwardIR | None, Node | None]:
    """Parse one layer's neuron; without ``written`` as if it had no backward. Raises CompileError."""
    context = Context(layer.neuron, layer.activation, layer.index, training)
    forward = parse.forward(context)
    backward = None
    if training and written and has_backward(layer.neuron) and layer.kind != "output":
        backward = parse.backward(context)
        _check_written(layer, forward, backward)
    interlayer = parse.function(layer.interlayer, OUTPUT) if layer.interlayer is not None else None
    return forward, backward, interlayer


def _check_written(layer: Layer, forward: ForwardIR, backward: BackwardIR) -> None:
    name = layer.neuron.__name__
    if layer.interlayer is not None:
        raise _at(backward.place, f"{name} writes backward, but {layer.name} has an interlayer, which mixes its neurons: leave backward out and horn derives it")  # fmt: skip
    if not derive.weighted_sum(forward.output)[0]:
        raise _at(backward.place, f"{name} writes backward, but its forward is more than a function of sum(input * weight), so it has no one delta: leave backward out and horn derives it")  # fmt: skip


def _at(place: CompileError, problem: str) -> CompileError:
    error = CompileError(problem)
    error.__dict__.update({**place.__dict__, "problem": problem})
    return error


class Builder:
    """Builds one program. ``optimizer`` None: inference."""

    def __init__(
        self, network: Network, optimizer: Optimizer | None, target: str | None, *, fuse: bool,
        written: frozenset[int] | None = None,
    ) -> None:
        self.written = written
        self.network, self.optimizer, self.target, self.fuse = network, optimizer, target, fuse
        self.training = optimizer is not None
        self.buffers: dict[str, Buffer] = {}
        self.prologue: list[Statement] = []
        self.statements: list[Statement] = []
        self.probes: dict[str, str] = {}
        self.known: dict[tuple[object, ...], Node] = {}
        self.stored: dict[tuple[Frame, str, Node], Node] = {}
        self.values: dict[Node, Node] = {}  # expressions that a buffer holds already
        self.masks: dict[int, Node] = {}  # layer -> who is live, where some sit out
        self.gradients: list[tuple[str, Frame, Node]] = []  # waiting for their common norm
        self.pending: list[tuple[str, Frame, Node]] = []  # of biases and parameters, which others still load
        self.compact: frozenset[int] = frozenset()
        self.codes: dict[int, Code] = {}
        self.outgoing: dict[int, list[Outgoing]] = {layer.index: [] for layer in network.layers}

    # --- buffers

    def buffer(self, name: str, axes: tuple[str, ...], role: str = "work", full: bool = False, value: tuple[object, ...] = ()) -> str:  # fmt: skip
        assert name not in self.buffers, name
        self.buffers[name] = Buffer(name, axes, role, full, value)
        return name

    def fresh(self, stem: str) -> str:
        if stem not in self.buffers:
            return stem
        k = 2
        while f"{stem}.{k}" in self.buffers:
            k += 1
        return f"{stem}.{k}"

    def axes_of(self, frame: Frame, letters: str) -> tuple[str, ...]:
        """The absolute axes of letters in a frame."""
        if frame.link is not None and "o" in letters and "i" in letters:
            if self.link(frame).edges is not None:
                return (*(("b",) if "b" in letters else ()), f"e{frame.layer}.{frame.link}")
        names = {"b": "b", "o": f"n{frame.layer}"}
        if frame.link is not None:
            names["i"] = f"n{self.link(frame).source.index}"
        return tuple(names[a] for a in letters)

    def link(self, frame: Frame) -> Link:
        assert frame.link is not None
        return self.network.layers[frame.layer].links[frame.link]

    def emit(self, statement: Statement) -> None:
        self.statements.append(statement)

    def learned(self, name: str, axes: tuple[str, ...], letters: str) -> Node:
        """A learned array, slot, state or constant as the program computes with it: its live part where layers are compact."""
        return self.taken(load(name, letters), axes)

    def taken(self, node: Node, axes: tuple[str, ...]) -> Node:
        if not any(axis == f"n{k}" for k in self.compact for axis in axes):
            return node
        name = f"{node.value}@live"
        if name not in self.buffers:
            self.buffer(name, axes)
            self.emit(Take(name, node.value))
        return load(name, node.axes)

    def persistent(self, name: str, axes: tuple[str, ...], role: str, value: tuple[object, ...] = ()) -> None:
        if name not in self.buffers:
            self.buffer(name, axes, role, True, value)

    # --- storing expressions

    def store(self, node: Node, frame: Frame, letters: str, stem: str) -> Node:
        """The node's value in a buffer of its own; a load of it."""
        if node.op is Op.LOAD and node.axes == letters:
            return node
        key = (frame, letters, node)
        if key not in self.stored:
            name = self.buffer(self.fresh(stem), self.axes_of(frame, letters))
            self.loop(frame, [Output(name, node)])
            self.stored[key] = load(name, letters)
        return self.stored[key]

    def remember(self, value: Node, name: str) -> None:
        """Later uses of this (b, o) expression load the buffer."""
        if value.args and value.axes == "bo":
            self.values[value] = load(name, "bo")

    def loop(self, frame: Frame, outputs: list[Output], scatter: bool = False) -> None:
        """Emit a Loop, after storing what varies along fewer axes than the loop does."""
        domain = ir.union(*(o.node.axes for o in outputs), *(self.letters(frame, o) for o in outputs))
        axis = outputs[0].axis
        domain = ir.union(domain, axis)
        lifted = [self.lift_out(o.node, frame, domain) for o in outputs] if not scatter else [self.lift_scalars(o.node) for o in outputs]  # fmt: skip
        self.emit(
            Loop(frame, tuple(Output(o.buffer, n, o.axis, o.monoid, o.accumulate) for o, n in zip(outputs, lifted, strict=True)), scatter)
        )  # fmt: skip

    def letters(self, frame: Frame, output: Output) -> str:
        """The letters of an output's buffer in this frame."""
        names = {name: letter for letter, name in zip("boi", (*self.axes_of(frame, "bo"), "" if frame.link is None else f"n{self.link(frame).source.index}"), strict=True) if name}  # fmt: skip
        letters = ""
        for axis in self.buffers[output.buffer].axes:
            letters += "oi" if axis.startswith("e") else names[axis]
        return ir.union(letters)

    def lift_out(self, root: Node, frame: Frame, domain: str) -> Node:
        """Store every subexpression that varies along fewer axes than the domain: it is computed once, not once per place."""

        def find(node: Node) -> Node | None:
            if not node.args:
                return node
            if node in self.values:
                return self.values[node]
            if not node.axes and domain:
                return self.store(node, Frame(0), "", "part")
            if len(node.axes) < len(domain) and not self.cheap(node):
                return self.store(node, frame, node.axes, "part")
            return None

        return ir.replace(root, find)

    def lift_scalars(self, root: Node) -> Node:
        def find(node: Node) -> Node | None:
            if node.args and not node.axes:
                return self.store(node, Frame(0), "", "part")
            return node if not node.args else None

        return ir.replace(root, find)

    @staticmethod
    def cheap(node: Node) -> bool:
        """Not worth a pass of its own: at most two plain operations."""
        nodes = [n for n in ir.walk(node) if n.args]
        return len(nodes) <= 2 and all(n.op in _CHEAP for n in nodes)

    # --- reductions over a link

    def reduced(self, node: Node, axis: str, monoid: str, frame: Frame, stem: str) -> Node:
        """The reduction of a link expression over one of its axes, as an expression over what is left."""
        link = self.link(frame)
        if monoid == "sum" and link.edges is None:
            found = contract(node, axis, self.count(frame, axis))
            if found is not None:
                return self.resolve(found, frame, stem)
        needed = axis if link.edges is None else "oi"  # the sources of a sparse receiver are its own
        for letter in needed:
            if letter not in node.axes:
                node = self.spread(node, letter, frame)
        return self.reduction_loop(node, axis, monoid, frame, stem)

    def spread(self, node: Node, letter: str, frame: Frame) -> Node:
        """The same value, made to vary (in name) along an axis, so that a loop meets it once per place."""
        return mul(node, self.ones(frame, letter))

    def ones(self, frame: Frame, letter: str) -> Node:
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
        rest = node.axes.replace(axis, "")
        key = (frame, f"{monoid} {axis}", node)
        if key not in self.stored:
            name = self.buffer(self.fresh(stem), self.axes_of(frame, rest))
            self.loop(frame, [Output(name, node, axis, monoid)])
            self.stored[key] = load(name, rest)
        return self.stored[key]

    def resolve(self, root: Node, frame: Frame, stem: str) -> Node:
        """Run the matrix products and the reductions in an expression; loads in their place."""

        def find(node: Node) -> Node | None:
            if node.op is Op.MATMUL:
                return self.matmul(node, frame, stem)
            if node.op is Op.REDUCE:
                inside = ir.replace(node.args[0], find)
                return self.reduction_loop(inside, node.value[1], node.value[0], frame, stem)
            return None

        return ir.replace(root, find)

    def matmul(self, node: Node, frame: Frame, stem: str) -> Node:
        key = (frame, "matmul", node)
        if key not in self.stored:
            a, b = (self.store(x, frame, x.axes, "factor") for x in node.args)
            name = self.buffer(self.fresh(stem), self.axes_of(frame, node.axes))
            self.emit(Matmul(frame, name, node.axes, a.value, a.axes, b.value, b.axes, node.value))
            self.stored[key] = load(name, node.axes)
        return self.stored[key]

    # --- leaves

    def at_vertex(self, root: Node, code: Code, phase: str) -> Node:
        """An abstract expression of one neuron as an expression over buffers, letters (b, o) of its layer."""
        layer = code.layer

        def find(node: Node) -> Node | None:
            key = (layer.index, phase, node)
            if key in self.known:
                return self.known[key]
            found: Node | None = None
            if node.op is Op.REDUCE and node.value[1] == "i":
                found = self.over_messages(node, code, phase)
            elif node.op is Op.REDUCE:
                frame = Frame(layer.index)
                inside = ir.replace(node.args[0], find)
                found = self.reduction_loop(inside, node.value[1], node.value[0], frame, f"{layer.name}.{node.value[0]}")
            elif not node.args:
                found = self.vertex_leaf(node, code, phase)
            if found is not None:
                self.known[key] = found
            return found

        return ir.replace(root, find)

    def vertex_leaf(self, node: Node, code: Code, phase: str) -> Node:
        layer = code.layer
        axis = f"n{layer.index}"
        if node.op in (Op.CONST, Op.LOAD):
            return node
        if node.op is Op.SCALAR:
            return const(float(layer.size)) if node.value == "layer_size" else node
        if node.op is Op.PARAM:
            name = f"{layer.name}.{node.value}"
            self.persistent(name, (axis,), "learned")
            return self.learned(name, (axis,), "o")
        if node.op is Op.STATE:
            now = self.known.get((layer.index, "state", node.value))
            if now is not None and phase == "backward":
                return now
            name = f"{layer.name}.{node.value}"
            self.persistent(name, (axis,), "state")
            return self.learned(name, (axis,), "o")
        if node.op is Op.INDEX:
            return self.index(layer, "o")
        if node.op is Op.COUNT:
            return self.fan(layer, "fan_in" if phase == "forward" else "fan_out")
        if node.op is Op.OUTPUT:
            return load(self.output_name(layer), "bo")
        if node.op is Op.DRAW:
            return self.draw(node, layer)
        raise AssertionError(f"{node!r} is not a value of a neuron")

    def index(self, layer: Layer, letter: str) -> Node:
        name, axis = f"layer{layer.index}#index", f"n{layer.index}"
        self.persistent(name, (axis,), "constant", ("index", layer.index))
        return self.learned(name, (axis,), letter)

    def fan(self, layer: Layer, kind: str) -> Node:
        """How many messages each neuron has."""
        if kind == "fan_in" and all(link.edges is None for link in layer.links):
            return const(float(sum(link.source.size for link in layer.links) + (layer.bias is not None)))
        out = self.outgoing[layer.index]
        if kind == "fan_out" and all(o.link.edges is None for o in out):
            return const(float(sum(o.receiver.layer.size for o in out)))
        name, axis = f"layer{layer.index}#{kind}", f"n{layer.index}"
        self.persistent(name, (axis,), "constant", (kind, layer.index))
        return self.learned(name, (axis,), "o")

    def draw(self, node: Node, layer: Layer) -> Node:
        kind, site, per = node.value
        name = f"{layer.name}.{kind}.{per}.{site}"
        axis = f"n{layer.index}"
        axes = ("b", axis) if per == "sample" else (axis,)
        if name not in self.buffers:
            self.buffer(name, axes, full=per != "sample")
            statement = Draw(name, kind, per, layer.index, site)
            (self.prologue if per == "run" else self.statements).append(statement)
        node = load(name, "bo" if per == "sample" else "o")
        return node if per == "sample" else self.taken(node, axes)

    def output_name(self, layer: Layer) -> str:
        return f"{layer.name}.output"

    # --- messages

    def over_messages(self, node: Node, code: Code, phase: str) -> Node:
        """A reduction over a neuron's messages: over every link, and the bias."""
        monoid, _ = node.value
        arg = node.args[0]
        layer = code.layer
        stem = f"{layer.name}.{monoid}" if phase == "forward" else f"{layer.name}.back"
        if monoid in ("argmax", "argmin"):
            return self.arg_over_messages(node, code)
        total: Node = const(ir.IDENTITY[monoid])
        if phase == "forward":
            for position, _ in enumerate(layer.links):
                frame = Frame(layer.index, position)
                part = self.reduced(self.at_link(arg, code, position), "i", monoid, frame, stem)
                total = ir.combine(monoid, total, part)
            if layer.bias is not None:
                total = ir.combine(monoid, total, self.at_bias(arg, code))
            return total
        for out in self.outgoing[layer.index]:
            frame = Frame(out.receiver.layer.index, out.position)
            part = self.reduced(self.at_outgoing(arg, code, out), "o", monoid, frame, stem)
            total = ir.combine(monoid, total, _swap(part))
        return total

    def arg_over_messages(self, node: Node, code: Code) -> Node:
        """The position of the first largest (smallest) message among all links and the bias."""
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
                for letter in "i" if layer.links[position].edges is None else "oi":
                    if letter not in here.axes:
                        here = self.spread(here, letter, frame)
                top = self.reduction_loop(here, "i", value, frame, f"{layer.name}.{value}")
                at = self.reduction_loop(here, "i", monoid, frame, f"{layer.name}.{monoid}") + offset
            elif layer.bias is not None:
                top, at = self.at_bias(arg, code), const(float(offset))
            else:
                continue
            if best is None:
                best, place = top, at
            else:
                c = make(better, top, best)
                best, place = select(c, top, best), select(c, at, place)
        return self.store(place, Frame(layer.index), ir.union(place.axes, "o"), f"{layer.name}.{monoid}")

    @staticmethod
    def offsets(layer: Layer) -> list[int]:
        """The position of each link's first message; the bias has the last."""
        found = [0]
        for link in layer.links:
            found.append(found[-1] + (link.source.size if link.edges is None else len(link.edges.indices)))
        return found

    def weight(self, layer: Layer, position: int) -> Node:
        link = layer.links[position]
        axes = self.axes_of(Frame(layer.index, position), "oi")
        self.persistent(link.weight, axes, "learned")
        return self.learned(link.weight, axes, "oi")

    def bias(self, layer: Layer) -> Node:
        axes = (f"n{layer.index}",)
        self.persistent(layer.bias_name, axes, "learned")
        return self.learned(layer.bias_name, axes, "o")

    def previous(self, name: str, axes: tuple[str, ...], letters: str) -> Node:
        if not self.training:
            return ZERO
        if not isinstance(self.optimizer, Direct):
            raise ModelError(
                "m.previous_update is what horn.Direct() last added to the weight; this job's optimizer is "
                f"{type(self.optimizer).__name__}"
            )
        slot = f"{name}/previous_update"
        self.persistent(slot, axes, "slot")
        return self.learned(slot, axes, letters)

    def at_link(self, root: Node, code: Code, position: int, phase: str = "forward") -> Node:
        """An abstract message expression of the receiver in the frame of one link."""
        layer = code.layer
        link = layer.links[position]
        frame = Frame(layer.index, position)

        def find(node: Node) -> Node | None:
            if node.op is Op.INPUT:
                return load(self.output_name(link.source), "bi")
            if node.op is Op.WEIGHT:
                return self.weight(layer, position)
            if node.op is Op.PREVIOUS:
                return self.previous(link.weight, self.axes_of(frame, "oi"), "oi")
            if node.op is Op.POSITION:
                return self.position(frame)
            if node.op is Op.SYNAPSE_DRAW:
                return self.synapse_draw(node, layer, position)
            if node.op is Op.UPSTREAM:
                return self.upstream(code)
            if not node.args or node.op is Op.REDUCE:
                return self.at_vertex(node, code, phase)
            return None

        return ir.replace(root, find)

    def position(self, frame: Frame) -> Node:
        layer, link = self.network.layers[frame.layer], self.link(frame)
        offset = self.offsets(layer)[frame.link or 0]
        if link.edges is None:
            return self.index(link.source, "i") + float(offset)
        name, axes = f"layer{layer.index}#edge{frame.link}", self.axes_of(frame, "oi")
        self.persistent(name, axes, "constant", ("edge", layer.index, frame.link))
        return load(name, "oi") + float(offset)

    def at_bias(self, root: Node, code: Code) -> Node:
        """An abstract message expression of the receiver for its bias synapse: an input of 1."""
        layer = code.layer

        def find(node: Node) -> Node | None:
            if node.op is Op.INPUT:
                return const(1.0)
            if node.op is Op.WEIGHT:
                return self.bias(layer)
            if node.op is Op.PREVIOUS:
                return self.previous(layer.bias_name, (f"n{layer.index}",), "o")
            if node.op is Op.POSITION:
                return const(float(self.offsets(layer)[-1]))
            if node.op is Op.SYNAPSE_DRAW:
                return self.synapse_draw(node, layer, len(layer.links))
            if node.op is Op.UPSTREAM:
                return self.upstream(code)
            if not node.args or node.op is Op.REDUCE:
                return self.at_vertex(node, code, "forward")
            return None

        return ir.replace(root, find)

    def synapse_draw(self, node: Node, layer: Layer, position: int) -> Node:
        kind, site = node.value
        name = f"{layer.name}.synapse.{kind}.{site}.{position}"
        bias = position == len(layer.links)
        axes = (f"n{layer.index}",) if bias else self.axes_of(Frame(layer.index, position), "oi")
        if name not in self.buffers:
            self.buffer(name, axes, full=True)
            self.prologue.append(Draw(name, kind, "synapse", layer.index, site, position))
        return self.taken(load(name, "o" if bias else "oi"), axes)

    def at_outgoing(self, root: Node, code: Code, out: Outgoing) -> Node:
        """An abstract message expression of a sender's backward in the frame of one outgoing link."""
        receiver = out.receiver

        def find(node: Node) -> Node | None:
            if node.op is Op.DELTA:
                return receiver.delta if receiver.delta is not None else ZERO
            if node.op is Op.WEIGHT:
                return self.weight(receiver.layer, out.position)
            if node.op is Op.PREVIOUS:
                axes = self.axes_of(Frame(receiver.layer.index, out.position), "oi")
                return self.previous(out.link.weight, axes, "oi")
            if node.op is Op.GRADIENT:
                return self.input_gradient(out)
            if node.op is Op.SYNAPSE_DRAW:
                return self.synapse_draw(node, receiver.layer, out.position)
            if not node.args or node.op is Op.REDUCE:
                return _swap(self.at_vertex(node, code, "backward"))
            return None

        return ir.replace(root, find)

    def input_gradient(self, out: Outgoing) -> Node:
        """d loss / d input of the synapses of a link, in its frame; 0 if nothing flows back through the receiver."""
        receiver = out.receiver
        if receiver.delta is not None:
            return mul(receiver.delta, self.weight(receiver.layer, out.position))
        if receiver.upstream is not None and not receiver.derived.is_weighted_sum:
            return self.at_link(receiver.derived.input, receiver, out.position)
        return ZERO

    def upstream(self, code: Code) -> Node:
        assert code.upstream is not None
        return code.upstream

    # --- the program

    def build(self) -> Program:
        net = self.network
        parsed = {
            layer.index: read_layer(layer, self.training, self.written is None or layer.index in self.written)
            for layer in net.layers[1:]
        }
        for layer in net.layers[1:]:
            forward, backward, interlayer = parsed[layer.index]
            self.codes[layer.index] = self.code(layer, forward, backward, interlayer)
        for layer in net.layers[1:]:
            for position, link in enumerate(layer.links):
                self.outgoing[link.source.index].append(Outgoing(self.codes[layer.index], position, link))
        if self.training:
            self.check_messages()
            self.sit_out()
        self.input()
        for layer in net.layers[1:]:
            self.forward(self.codes[layer.index])
        loss = self.loss() if self.target is not None and net.loss is not None else None
        if self.training:
            for layer in reversed(net.layers):
                self.backward(layer)
            self.keep_states()
            for name, frame, gradient in self.pending:
                self.apply(name, frame, gradient)
            self.apply_clipped()
        for layer in net.layers:
            self.probes.setdefault(f"{layer.name}.output", self.output_name(layer))
        program = Program(net, self.buffers, tuple(self.prologue), tuple(self.statements),
                          self.output_name(net.last), loss, self.compact, self.probes)  # fmt: skip
        verify(program)
        return program

    def code(self, layer: Layer, forward: ForwardIR, backward: BackwardIR | None, interlayer: Node | None) -> Code:
        stable = (
            layer.loss is losses.LOSSES["binary_cross_entropy"] and interlayer is None and forward.output.op is Op.SIGMOID
        )  # fmt: skip
        root = forward if not stable else ForwardIR(forward.output.args[0], forward.states, forward.push, None)
        return Code(layer, forward, backward, derive.derive(root, layer.parameters), interlayer, stable)

    def check_messages(self) -> None:
        """A written backward and its receivers must mean the same by delta and push."""
        for code in self.codes.values():
            written = code.backward
            if written is None:
                continue
            for out in self.outgoing[code.layer.index]:
                receiver, name = out.receiver, code.layer.neuron.__name__
                other = receiver.layer.neuron.__name__
                pushes, deltas = written.push is not None, written.uses_delta
                if pushes and receiver.is_local:
                    raise _at(written.place, f"{name}.backward pushes toward {receiver.layer.name}, but {other} learns from its own push in forward: leave the push out of {name}.backward")  # fmt: skip
                if (pushes or deltas) and not receiver.derived.is_weighted_sum:
                    what = "m.delta" if deltas else "push"
                    raise _at(written.place, f"{name}.backward uses {what} toward {receiver.layer.name}, but {other}.forward is more than a function of sum(input * weight) and has no one delta: read m.gradient, and do not push, or leave backward out")  # fmt: skip

    # -- sitting out

    def sit_out(self) -> None:
        """Find the layers that per-batch draws thin out, and compute only their live neurons where that changes nothing."""
        first = self.network.layers[0]
        out: dict[int, Node] = {}
        for code in self.codes.values():
            if code.forward.sits_out is not None:
                out[code.layer.index] = code.forward.sits_out
        candidates = [k for k in out if self.can_compact(self.codes[k])]
        if first.keep < 1.0 and first.per == "batch":
            u = leaf(Op.DRAW, "o", ("uniform", 0, "batch"))
            out[0] = make(Op.NOT, make(Op.LT, u, const(first.keep)))
            if all(o.link.edges is None and (o.receiver.derived.is_weighted_sum) for o in self.outgoing[0]):
                candidates.append(0)
        for k, condition in sorted(out.items()):
            layer = self.network.layers[k]
            code = self.codes.get(k) or Code(layer, ForwardIR(ZERO, {}, None, None), None, derive.derive(ForwardIR(ZERO, {}, None, None), ()), None)  # fmt: skip
            live = select(condition, ZERO, const(1.0))
            mask = self.buffer(f"{layer.name}#live", (f"n{k}",), full=True)
            self.loop(Frame(k), [Output(mask, self.at_vertex(live, code, "forward"))])
            self.masks[k] = load(mask, "o")
            if k in candidates:
                self.emit(Live(k, mask))
        self.known.clear()
        self.stored.clear()
        self.compact = frozenset(candidates)
        for k in candidates:
            if k:
                self.codes[k] = self.thinned(self.codes[k], out[k])

    def thinned(self, code: Code, condition: Node) -> Code:
        """The layer's code where nobody sits out."""
        forward = code.forward
        kept = ForwardIR(
            ir.assume(forward.output, condition, False),
            forward.states,
            None if forward.push is None else ir.assume(forward.push, condition, False),
            forward.sits_out,
        )
        found = self.code(code.layer, kept, code.backward, code.interlayer)
        for outgoing in self.outgoing.values():
            for position, o in enumerate(outgoing):
                if o.receiver is code:
                    outgoing[position] = Outgoing(found, o.position, o.link)
        return found

    def can_compact(self, code: Code) -> bool:
        """Whether leaving the silent neurons out of every array changes nothing."""
        layer = code.layer
        if layer.kind != "hidden" or layer.interlayer is not None or layer.states or code.is_local:
            return False
        links = [*layer.links, *(o.link for o in self.outgoing[layer.index])]
        if any(link.edges is not None for link in links):
            return False
        roots = [code.forward.output, *([code.backward.delta] if code.backward else [])]
        if any(n.op is Op.DRAW and n.value[2] == "sample" for n in ir.walk(*roots)):
            return False  # a draw per sample names every neuron of the layer
        if not all(o.receiver.derived.is_weighted_sum and not o.receiver.is_local for o in self.outgoing[layer.index]):
            return False
        for link in layer.links:  # senders that loop over their messages must not notice the silent ones
            sender = self.codes.get(link.source.index)
            if sender is None or sender.backward is None:
                continue
            for n in ir.walk(sender.backward.delta, *sender.backward.parameters.values()):
                if n.op is Op.REDUCE and not (n.value[0] == "sum" and _vanishes(n.args[0])):
                    return False
        return True

    # -- forward

    def input(self) -> None:
        first = self.network.layers[0]
        output = self.output_name(first)
        axes = ("b", "n0")
        if first.keep == 1.0:
            self.buffer(output, axes)
            self.emit(Input(output))
            return
        data = self.buffer(f"{first.name}.data", axes, full=True)
        self.emit(Input(data))
        if 0 in self.compact:
            self.buffer(output, axes)
            self.emit(Take(output, data))
            return
        x = load(data, "bo")
        if not self.training:
            value = mul(x, const(first.keep))
        elif first.per == "batch":
            value = select(make(Op.NE, self.masks[0], ZERO), x, ZERO)
        else:
            code = Code(first, ForwardIR(ZERO, {}, None, None), None, derive.derive(ForwardIR(ZERO, {}, None, None), ()), None)  # fmt: skip
            u = self.draw(leaf(Op.DRAW, "bo", ("uniform", 0, "sample")), code.layer)
            value = select(make(Op.LT, u, const(first.keep)), x, ZERO)
        self.buffer(output, axes)
        self.loop(Frame(0), [Output(output, value)])

    def forward(self, code: Code) -> None:
        layer = code.layer
        frame = Frame(layer.index)
        axes = ("b", f"n{layer.index}")
        sent = self.output_name(layer)
        value = self.at_vertex(code.forward.output, code, "forward")
        states: list[Output] = []
        if self.training:
            for name, node in code.forward.states.items():
                now = self.buffer(f"{layer.name}.{name}.now", axes)
                states.append(Output(now, self.at_vertex(node, code, "forward")))
        if code.interlayer is None:
            self.buffer(sent, axes)
            self.loop(frame, [Output(sent, value), *states])
            self.remember(value, sent)
        else:
            raw = self.buffer(f"{layer.name}.raw", axes)
            self.loop(frame, [Output(raw, value), *states])
            self.remember(value, raw)
            self.known[(layer.index, "inter", OUTPUT)] = load(raw, "bo")
            value = self.at_vertex(code.interlayer, code, "inter")
            self.buffer(sent, axes)
            self.loop(frame, [Output(sent, value)])
            self.remember(value, sent)
        for output in states:
            self.known[(layer.index, "state", output.buffer.split(".")[-2])] = load(output.buffer, "bo")

    # -- loss

    def target_node(self) -> Node:
        last = self.network.last
        axis = f"n{last.index}"
        if self.target == "label":
            name = self.buffer("target", ("b",), full=True)
            self.emit(Target(name, "label"))
            return select(make(Op.EQ, load(name, "b"), self.index(last, "o")), const(1.0), ZERO)
        if self.target == "value":
            name = self.buffer("target", ("b",), full=True)
            self.emit(Target(name, "value"))
            return load(name, "b")
        name = self.buffer("target", ("b", axis), full=True)
        self.emit(Target(name, self.target or ""))
        return load(name, "bo")

    def loss(self) -> str:
        """Each sample's loss, and d loss / d output of the last layer's neurons (before its interlayer)."""
        last = self.network.last
        code = self.codes[last.index]
        frame = Frame(last.index)
        loss = last.loss
        assert loss is not None
        t = self.target_node()
        y = load(self.output_name(last), "bo")
        name = self.buffer("loss", ("b",))
        if last.interlayer is softmax and loss is losses.LOSSES["cross_entropy"]:
            # log y without taking y: log sum exp. d loss / d raw = y * sum(t) - t; sum(t) is 1 for labels.
            raw = load(f"{last.name}.raw", "bo")
            top = self.reduction_loop(raw, "o", "max", frame, f"{last.name}.max")
            total = self.reduction_loop(make(Op.EXP, raw - top), "o", "sum", frame, f"{last.name}.sum")
            per_neuron = t * (make(Op.LOG, total) - (raw - top))
            wide = t if "o" in t.axes else self.spread_o(t, frame)
            sum_t = const(1.0) if self.target == "label" else self.reduction_loop(wide, "o", "sum", frame, "target.sum")  # fmt: skip
            adjoint = y * sum_t - t
        elif code.stable:
            z = self.at_vertex(code.forward.output.args[0], code, "forward")
            per_neuron = make(Op.SOFTPLUS, z) - t * z
            adjoint = y - t
        else:
            formula = parse.function(loss.f, OUTPUT, TARGET)
            per_neuron = ir.replace(formula, {OUTPUT: y, TARGET: t})
            slope = derive.gradient(formula, const(1.0), [OUTPUT], layerwide=True)[OUTPUT]
            adjoint = ir.replace(slope, {OUTPUT: y, TARGET: t})
            if last.interlayer is not None:
                adjoint = self.through_interlayer(code, adjoint)
        if "o" not in per_neuron.axes:
            per_neuron = self.spread_o(per_neuron, frame)
        self.loop(frame, [Output(name, per_neuron, "o", "sum")])
        if self.training:
            code.upstream = self.store(adjoint, frame, "bo", f"{last.name}.upstream") if not self.fuse else adjoint  # fmt: skip
        return name

    def spread_o(self, node: Node, frame: Frame) -> Node:
        return make(Op.MUL, node, self.ones(frame, "o"))

    def through_interlayer(self, code: Code, sent: Node) -> Node:
        """d loss / d (what the neurons fed forward), from d loss / d (what the layer sent)."""
        layer = code.layer
        frame = Frame(layer.index)
        assert code.interlayer is not None
        sent = self.store(sent, frame, "bo", f"{layer.name}.sent")
        if layer.interlayer is softmax:  # its Jacobian in closed form: y (g - sum(g y))
            y = load(self.output_name(layer), "bo")
            inner = self.reduction_loop(sent * y, "o", "sum", frame, f"{layer.name}.inner")
            return y * (sent - inner)
        slope = derive.gradient(code.interlayer, UPSTREAM, [OUTPUT], layerwide=True)[OUTPUT]
        self.known[(layer.index, "inter", UPSTREAM)] = sent
        return self.at_vertex(slope, code, "inter")

    # -- backward

    def backward(self, layer: Layer) -> None:
        """This layer's delta, then the updates of what it listens to with (bias, parameters) and of its outgoing weights."""
        code = self.codes.get(layer.index)
        if code is not None:
            self.delta(code)
            self.update_vertex(code)
        for out in self.outgoing[layer.index]:
            self.update_link(out)

    def delta(self, code: Code) -> None:
        layer = code.layer
        frame = Frame(layer.index)
        stem = f"{layer.name}.delta"
        if code.backward is not None:
            node = self.at_vertex(code.backward.delta, code, "backward")
            here = None if layer.index in self.compact else self.masks.get(layer.index)
            taking_part = const(1.0) if here is None else make(Op.NE, here, ZERO)
            node = select(taking_part, node, ZERO)  # who sits out is not asked
            code.delta = self.store(node, frame, "bo", stem)
            code.upstream = None
            for name, node in code.backward.states.items():
                now = self.buffer(self.fresh(f"{layer.name}.{name}.after"), ("b", f"n{layer.index}"))
                before = self.state_now(layer, name, code)
                after = self.at_vertex(node, code, "backward")
                self.loop(frame, [Output(now, select(taking_part, after, before))])
                self.known[(layer.index, "kept", name)] = load(now, "bo")
        else:
            if layer.kind != "output" and not code.is_local:
                code.upstream = self.from_receivers(code)
            elif code.is_local:
                code.upstream = None
            if code.upstream is None:
                return
            if code.interlayer is not None and layer.kind != "output":
                code.upstream = self.through_interlayer(code, code.upstream)
            self.known[(layer.index, "forward", UPSTREAM)] = code.upstream
            if code.derived.is_weighted_sum:
                assert code.derived.delta is not None
                node = self.at_vertex(code.derived.delta, code, "forward")
                code.delta = self.store(node, frame, "bo", stem)
            else:
                code.upstream = self.store(code.upstream, frame, "bo", f"{layer.name}.upstream")
                self.known[(layer.index, "forward", UPSTREAM)] = code.upstream
        if code.delta is not None:
            self.probes[stem] = code.delta.value

    def state_now(self, layer: Layer, name: str, code: Code) -> Node:
        """A State as forward left it."""
        now = self.known.get((layer.index, "state", name))
        return self.at_vertex(leaf(Op.STATE, "bo", name), code, "forward") if now is None else now

    def from_receivers(self, code: Code) -> Node | None:
        """d loss / d output: the sum of m.gradient over the outgoing synapses. None if nothing flows back."""
        live = [o for o in self.outgoing[code.layer.index] if o.receiver.sends_delta]
        if not live:
            return None
        total: Node = ZERO
        for out in live:
            frame = Frame(out.receiver.layer.index, out.position)
            part = self.reduced(self.input_gradient(out), "o", "sum", frame, f"{code.layer.name}.gradient")
            total = ir.add(total, _swap(part))
        return total

    # -- updates

    def update_vertex(self, code: Code) -> None:
        layer = code.layer
        frame = Frame(layer.index)
        axes = (f"n{layer.index}",)
        for name in layer.parameters:
            written = code.backward
            if written is not None:
                per_sample = self.at_vertex(written.parameters[name], code, "backward")
            elif code.upstream is not None:
                per_sample = self.at_vertex(code.derived.parameters[name], code, "forward")
            else:
                continue
            gradient = self.mean(per_sample, frame, f"{layer.name}.{name}")
            self.update(f"{layer.name}.{name}", axes, frame, "o", gradient, pushed=written is not None)
        if layer.bias is not None:
            node = self.weight_gradient(code, None)
            if node is not None:
                mean = self.mean(node, frame, layer.bias_name)
                self.update(layer.bias_name, axes, frame, "o", mean, pushed=code.is_local)

    def mean(self, per_sample: Node, frame: Frame, name: str) -> Node:
        """The mean over the batch of a vertex expression (b, o)."""
        if "b" not in per_sample.axes:
            return per_sample
        stem = f"{name}.gradient"
        return mul(self.reduction_loop(per_sample, "b", "sum", frame, stem), Scalar("inv_rows"))

    def weight_gradient(self, code: Code, position: int | None) -> Node | None:
        """d loss / d weight per sample of one link (or the bias) of a receiver, by the derived rule or its own push; None if it has none."""
        at: Callable[[Node], Node] = (
            (lambda n: self.at_bias(n, code)) if position is None else (lambda n: self.at_link(n, code, position))
        )
        if code.forward.push is not None:
            return at(code.forward.push)
        if code.delta is not None:
            return code.delta if position is None else mul(code.delta, at(leaf(Op.INPUT, "bi")))
        if code.upstream is not None and not code.derived.is_weighted_sum:
            return at(code.derived.weight)
        return None

    def update_link(self, out: Outgoing) -> None:
        code, position, link = out.receiver, out.position, out.link
        sender = self.codes.get(link.source.index)
        frame = Frame(code.layer.index, position)
        axes = self.axes_of(frame, "oi")
        self.weight(code.layer, position)
        written = sender is not None and sender.backward is not None and sender.backward.push is not None
        if written:
            assert sender is not None and sender.backward is not None and sender.backward.push is not None
            node: Node | None = self.at_outgoing(sender.backward.push, sender, out)
        else:
            node = self.weight_gradient(code, position)
        if node is None:
            return
        if self.fused_update(link, frame, node):
            return
        if "b" not in node.axes:
            gradient = node
        elif link.edges is None and (found := contract(node, "b", Scalar("rows"))) is not None:
            gradient = mul(self.resolve(found, frame, f"{link.weight}.gradient"), Scalar("inv_rows"))
        else:
            total = self.reduction_loop(node, "b", "sum", frame, f"{link.weight}.gradient")
            gradient = mul(total, Scalar("inv_rows"))
        self.update(link.weight, axes, frame, "oi", gradient, pushed=written or code.is_local)

    def fused_update(self, link: Link, frame: Frame, node: Node) -> bool:
        """The update inside the gradient's matrix product, where the optimizer is plain enough."""
        o = self.optimizer
        if not (self.fuse and isinstance(o, SGD) and type(o) is SGD and not o.nesterov):
            return False
        if o.weight_decay or o.clip_value is not None or o.clip_norm is not None or link.edges is not None:
            return False
        if {frame.layer, link.source.index} & set(self.masks):
            return False
        terms = monomials(node)
        if terms is None or len(terms) != 1 or terms[0][0] != 1.0 or len(terms[0][1]) != 2:
            return False
        a, b = sorted(terms[0][1], key=lambda n: n.axes != "bo")
        if a.op is not Op.LOAD or b.op is not Op.LOAD or (a.axes, b.axes) != ("bo", "bi"):
            return False
        velocity = None
        if o.momentum:
            velocity = f"{link.weight}/velocity"
            self.persistent(velocity, self.axes_of(frame, "oi"), "slot")
        self.emit(Update(frame, link.weight, velocity, o.momentum, a.value, b.value))
        return True

    def update(self, name: str, axes: tuple[str, ...], frame: Frame, letters: str, gradient: Node, pushed: bool) -> None:
        """Apply the optimizer to one array, now, or once all gradients are known (clip_norm)."""
        self.persistent(name, axes, "learned")
        o = self.optimizer
        assert o is not None
        if not self.fuse:
            here = self.live_synapse(frame)
            if here is not None:
                gradient = select(here, gradient, ZERO)
            gradient = self.store(gradient, frame, letters, f"{name}.mean_gradient")
            self.probes[f"{name}.gradient"] = gradient.value
        elif gradient.op is not Op.LOAD:
            gradient = self.lift_out(gradient, frame, letters)
        if isinstance(o, Direct) and not pushed:
            gradient = -Scalar("learning_rate") * gradient  # only what is pushed is an update already
        if o.weight_decay and letters == "oi":
            gradient = gradient + o.weight_decay * self.learned(name, axes, letters)
        if o.clip_value is not None:
            low, high = const(-o.clip_value), const(o.clip_value)
            gradient = make(Op.MINIMUM, make(Op.MAXIMUM, gradient, low), high)
        live = self.live_synapse(frame)
        if live is not None:
            gradient = select(live, gradient, ZERO)
        if o.clip_norm is not None:
            self.gradients.append((name, frame, self.store(gradient, frame, letters, f"{name}.clipped")))
        elif frame.link is None:
            self.pending.append((name, frame, self.store(gradient, frame, letters, f"{name}.mean_gradient")))
        else:
            self.apply(name, frame, gradient)

    def apply(self, name: str, frame: Frame, gradient: Node) -> None:
        o = self.optimizer
        assert o is not None
        axes = self.buffers[name].axes
        letters = "o" if frame.link is None else "oi"
        slots = {}
        for slot in o.slots:
            if slot == "velocity" and isinstance(o, SGD) and not o.momentum:
                slots[slot] = ZERO
                continue
            self.persistent(f"{name}/{slot}", axes, "slot")
            slots[slot] = load(f"{name}/{slot}", letters)
        w = load(name, letters)
        new, memory = o.update(w, gradient, slots, Scalar("learning_rate"), Scalar("updates"))
        results = [(name, w, new), *((f"{name}/{s}", slots[s], ir.lift(m)) for s, m in memory.items() if slots[s].op is Op.LOAD)]
        live = self.live_synapse(frame)
        if live is not None:
            results = [(buffer, old, select(live, value, old)) for buffer, old, value in results]
        scatter = any(axis == f"n{k}" for k in self.compact for axis in axes)
        self.loop(frame, [Output(buffer, value) for buffer, _, value in results], scatter)

    def live_synapse(self, frame: Frame) -> Node | None:
        """Where a synapse takes part in the batch, if it may not and its arrays are whole."""
        ends = [(frame.layer, "o")]
        if frame.link is not None:
            ends.append((self.link(frame).source.index, "i"))
        result: Node | None = None
        for k, letter in ends:
            if k in self.masks and k not in self.compact:
                here = make(Op.NE, load(self.masks[k].value, letter), ZERO)
                result = here if result is None else make(Op.AND, result, here)
        return result

    def apply_clipped(self) -> None:
        """Scale all gradients together so that their norm is at most clip_norm, and apply them."""
        o = self.optimizer
        if o is None or o.clip_norm is None or not self.gradients:
            return
        total: Node = ZERO
        for name, frame, gradient in self.gradients:
            square = gradient * gradient
            if "i" in square.axes:
                square = self.reduction_loop(square, "i", "sum", frame, f"{name}.squares")
            total = total + self.reduction_loop(square, "o", "sum", Frame(frame.layer), f"{name}.norm")
        frame = Frame(self.network.last.index)
        norm = make(Op.SQRT, total)
        scale = self.store(select(norm > o.clip_norm, o.clip_norm / norm, const(1.0)), frame, "", "clip")
        for name, frame, gradient in self.gradients:
            self.apply(name, frame, gradient * scale)

    def keep_states(self) -> None:
        """At the end of a batch a neuron keeps the mean over the samples of each State."""
        for code in self.codes.values():
            layer = code.layer
            frame = Frame(layer.index)
            for name in layer.states:
                now = self.known.get((layer.index, "kept", name), self.known.get((layer.index, "state", name)))
                if now is None:
                    continue
                full = f"{layer.name}.{name}"
                self.persistent(full, (f"n{layer.index}",), "state")
                if "b" in now.axes:
                    now = mul(self.reduction_loop(now, "b", "sum", frame, f"{full}.sum"), Scalar("inv_rows"))
                self.loop(frame, [Output(full, now)])


_CHEAP = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.NOT, Op.LT, Op.LE, Op.GT, Op.GE, Op.EQ, Op.NE, Op.AND, Op.OR, Op.SELECT})  # fmt: skip


def _swap(node: Node) -> Node:
    """The same values with the letters o and i exchanged: a vertex expression of a link's source, and back."""
    table = str.maketrans("oi", "io")

    def find(n: Node) -> Node | None:
        return load(n.value, ir.union(n.axes.translate(table))) if n.op is Op.LOAD else None

    return ir.replace(node, find)


def _vanishes(node: Node) -> bool:
    """Whether a message expression of backward is 0 where the receiver's delta is."""
    if node.op in (Op.DELTA, Op.GRADIENT):
        return True
    if node.op is Op.MUL:
        return any(map(_vanishes, node.args))
    if node.op in (Op.ADD, Op.SUB):
        return all(map(_vanishes, node.args))
    return node.op is Op.NEG and _vanishes(node.args[0])


def verify(program: Program) -> None:
    """Every expression obeys the table of IR and names buffers that exist; every buffer is written before it is read."""
    written = {b.name for b in program.buffers.values() if b.role != "work"}
    for statement in (*program.prologue, *program.statements):
        if isinstance(statement, Loop):
            roots = [o.node for o in statement.outputs]
            ir.verify(*roots)
            for node in ir.walk(*roots):
                assert node.op in ir.LOWERED, f"{node!r} is left in a lowered program"
                assert node.op not in (Op.REDUCE, Op.MATMUL), f"{node!r} is not scheduled"
                assert node.op is not Op.LOAD or node.value in written, f"{node.value} is read before it is written"
            written.update(o.buffer for o in statement.outputs)
        elif isinstance(statement, (Matmul, Update)):
            assert statement.a in written and statement.b in written, statement
            if isinstance(statement, Matmul):
                written.add(statement.out)
        elif isinstance(statement, Take):
            assert statement.array in written, statement
            written.add(statement.out)
        elif isinstance(statement, Live):
            assert statement.mask in written, statement
        else:
            written.add(statement.out)  # type: ignore[attr-defined]


def training_program(
    network: Network, optimizer: Optimizer, target: str | None, *, fuse: bool = True,
    written: frozenset[int] | None = None,
) -> Program:
    """One training step. ``target`` is the kind of Target, or None without a loss. ``fuse=False`` keeps every value that probes ask for.

    ``written`` : the layers whose written backward is used, the others' being derived; None for all.
    """  # fmt: skip
    return Builder(network, optimizer, target, fuse=fuse, written=written).build()


def inference_program(network: Network, target: str | None) -> Program:
    """Outputs, and with a target the loss of each sample."""
    return Builder(network, None, target, fuse=True).build()
